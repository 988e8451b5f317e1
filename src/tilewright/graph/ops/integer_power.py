"""Powers of integers by squares: exact, wrapping around as products do, without a loop."""

from __future__ import annotations

from tilewright.compute.build import cast
from tilewright.expr.nodes import And, Const, Eq, Expr, Ne, Or, Select, Shr, call, const


def integer_power(base: Expr, exponent: Expr) -> Expr:
    """base ** exponent modulo 2**bits of the base, for any integer exponent.

    With a negative exponent, 1 and -1 have their inverse; any other base, also 0, gives 0.
    """
    if isinstance(exponent, Const) and int(exponent.value.real) >= 0:
        return _product(base, int(exponent.value.real))
    vanishes = _vanishes(base, exponent)
    found = _by_squares(base, cast(exponent, base.dtype))
    return Select(vanishes, const(0, base.dtype), found)


def _product(base: Expr, count: int) -> Expr:
    """`count` factors, by squares."""
    if count == 0:
        return const(1, base.dtype)
    if count == 1:
        return base
    found = _product(base * base, count // 2)
    return found * base if count % 2 else found


def _vanishes(base: Expr, exponent: Expr) -> Expr:
    """Fractions, and powers of an even base that have at least as many factors 2 as bits."""
    even = Eq(base & 1, const(0, base.dtype))
    vanishes = And(even, exponent >= base.dtype.bits)
    if not exponent.dtype.is_signed:
        return vanishes
    size = call("abs", base) if base.dtype.is_signed else base
    fraction = And(exponent < 0, Ne(size, const(1, base.dtype)))
    return Or(vanishes, fraction)


def _by_squares(base: Expr, exponent: Expr) -> Expr:
    """The power of an odd base; also that of an even one if the exponent is below its bits.

    The powers of an odd base repeat after 2**(bits - 2), so the exponent may wrap around. After
    k squares the base is 1 + x with x a multiple of 2**(k + 2); once x * x is 0 modulo 2**bits,
    (1 + x) ** m is 1 + m * x, so half of the exponent's bits need no squares. For an even base,
    m is 0 or 1.
    """
    steps = base.dtype.bits // 2 - 2
    one = const(1, base.dtype)
    found: Expr = one
    for step in range(steps):
        unset = Eq(exponent & (1 << step), const(0, exponent.dtype))
        found = found * Select(unset, one, base)
        base = base * base
    rest = Shr(exponent, const(steps, exponent.dtype))
    return found * (rest * (base - one) + one)
