"""Open extents: numbers known only at run time, with bounds that hold for every run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.base.dataclass import dataclass
from tilewright.graph.nodes import Value


@dataclass(frozen=True, eq=False, slots=True)
class BoundedExtent:
    """A number that a run computes. Extents compare by identity, as two of them may differ.

    count: the int64 scalar that holds it. least, most: its bounds, both included.
    """

    count: Value
    least: int
    most: int


Dim = int | BoundedExtent
Dims = tuple[Dim, ...]
Bounds = tuple[int, int]


def most(dim: Dim) -> int:
    """The upper bound."""
    return dim if isinstance(dim, int) else dim.most


def least(dim: Dim) -> int:
    """The lower bound."""
    return dim if isinstance(dim, int) else dim.least


def storage(dims: Sequence[Dim]) -> tuple[int, ...]:
    """The shape of the memory for a tensor of these extents."""
    return tuple(max(most(d), 0) for d in dims)


def is_open(dims: Sequence[Dim]) -> bool:
    """Whether one of them is known only at run time."""
    return any(isinstance(d, BoundedExtent) for d in dims)


def _corners(
    f: Callable[[int, int], int],
) -> Callable[[Bounds, Bounds], Bounds]:
    """The bounds of a function that is monotone in each operand."""

    def bounds(
        a: Bounds,
        b: Bounds,
    ) -> Bounds:
        found = [f(x, y) for x in a for y in b]
        return min(found), max(found)

    return bounds


@dataclass(frozen=True, slots=True)
class ExtentArithmetic:
    """An operator on numbers. exact: on known numbers; bounds: of the result, from operands."""

    exact: Callable[[int, int], int]
    bounds: Callable[[Bounds, Bounds], Bounds]


def _quotient(
    a: int,
    b: int,
) -> int:
    """ONNX's integer Div, which rounds towards zero."""
    found = abs(a) // abs(b)
    return found if (a < 0) == (b < 0) else -found


def _of(
    f: Callable[[int, int], int],
) -> ExtentArithmetic:
    return ExtentArithmetic(f, _corners(f))


ARITHMETIC = {
    "Add": _of(lambda a, b: a + b),
    "Sub": _of(lambda a, b: a - b),
    "Mul": _of(lambda a, b: a * b),
    "Min": _of(min),
    "Max": _of(max),
    "Div": _of(_quotient),
}

# When operand `b` leaves `a` unchanged, decided by its bounds.
_NEUTRAL: dict[str, Callable[[Dim, Dim], bool]] = {
    "Add": lambda a, b: b == 0,
    "Sub": lambda a, b: b == 0,
    "Mul": lambda a, b: b == 1,
    "Div": lambda a, b: b == 1,
    "Min": lambda a, b: least(b) >= most(a),
    "Max": lambda a, b: most(b) <= least(a),
}
COMMUTES = frozenset(("Add", "Mul", "Min", "Max"))


def simplified(
    op: str,
    a: Dim,
    b: Dim,
) -> Dim | None:
    """The result if no run has to compute it, else None."""
    if isinstance(a, int) and isinstance(b, int):
        return None if op == "Div" and b == 0 else ARITHMETIC[op].exact(a, b)
    if a is b and op in ("Min", "Max"):
        return a
    if a is b and op == "Sub":
        return 0
    if _NEUTRAL[op](a, b):
        return a
    if op in COMMUTES and _NEUTRAL[op](b, a):
        return b
    return None
