"""Inclusive intervals of integers, an unknown end None, and arithmetic on them."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.base.dtypes import DType, int64

Interval = tuple[int | None, int | None]

ANY: Interval = (None, None)


def is_real(dtype: DType) -> bool:
    """Whether values of a dtype have no interval here."""
    return not (dtype.is_int or dtype.is_bool)


def natural(dtype: DType) -> Interval:
    """What a dtype alone says; int64 is the type of indices, whose range says nothing."""
    if dtype is int64:
        return ANY
    return (int(dtype.min), int(dtype.max))


def unless_wrapped(found: Interval, dtype: DType) -> Interval:
    """`found`, unless it leaves the dtype, whose integers then may have wrapped around."""
    whole = natural(dtype)
    return found if intersection(found, whole) == found else whole


def intersection(a: Interval, b: Interval) -> Interval:
    """The values in both."""
    lo = better_end(max, a[0], b[0])
    hi = better_end(min, a[1], b[1])
    return (lo, hi)


def hull(a: Interval, b: Interval) -> Interval:
    """The least interval that holds both."""
    if a[0] is None or b[0] is None:
        lo = None
    else:
        lo = min(a[0], b[0])
    if a[1] is None or b[1] is None:
        hi = None
    else:
        hi = max(a[1], b[1])
    return (lo, hi)


def better_end(
    better: Callable[[int, int], int],
    a: int | None,
    b: int | None,
) -> int | None:
    """The tighter of two ends, either of which may be unknown."""
    if a is None or b is None:
        return b if a is None else a
    return better(a, b)


def scaled(interval: Interval, c: int) -> Interval:
    """Every value times c."""
    lo, hi = interval
    if c <= 0:
        lo, hi = hi, lo
    least = None if lo is None else lo * c
    most = None if hi is None else hi * c
    return (least, most)


def product(a: Interval, b: Interval) -> Interval:
    """The products of a value of each."""
    least, most = a
    low, high = b
    if least is None or most is None or low is None or high is None:
        if least is None or low is None or least < 0 or low < 0:
            return ANY
        return (0, None)
    corners = [x * y for x in (least, most) for y in (low, high)]
    return (min(corners), max(corners))


def plus(a: Interval, b: Interval) -> Interval:
    """The sums of a value of each."""
    if a[0] is None or b[0] is None:
        lo = None
    else:
        lo = a[0] + b[0]
    if a[1] is None or b[1] is None:
        hi = None
    else:
        hi = a[1] + b[1]
    return (lo, hi)


def minimum(a: Interval, b: Interval) -> Interval:
    """The lesser of a value of each."""
    lo, _ = hull(a, b)
    hi = better_end(min, a[1], b[1])
    return (lo, hi)


def maximum(a: Interval, b: Interval) -> Interval:
    """The greater of a value of each."""
    lo = better_end(max, a[0], b[0])
    _, hi = hull(a, b)
    return (lo, hi)


def is_above(lo: int | None, limit: int) -> bool:
    """Whether a least value is known and larger than `limit`."""
    return lo is not None and lo > limit


def is_below(hi: int | None, limit: int) -> bool:
    """Whether a largest value is known and smaller than `limit`."""
    return hi is not None and hi < limit
