"""Linear forms of index expressions: `i*8 + j - 3` as {i: 8, j: 1} and -3.

Atoms are variables and every subexpression that is not linear (`i // 8`, `min(i, 3)`, a load).
Only int64, the dtype of indices, is decomposed: narrower integers wrap around.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilewright.expr.nodes import (
    INDEX,
    Add,
    Const,
    Expr,
    FloorDiv,
    Mod,
    Mul,
    Neg,
    Sub,
    const,
)
from tilewright.ir.node import keep_fact


# Not frozen, since many are made: setting the fields of a frozen one takes twice as long.
@dataclass(slots=True, unsafe_hash=True)
class Affine:
    """`sum(coefficient * atom) + const`; no coefficient is 0, atoms in order of first occurrence.

    Two forms with the same atoms in another order are not `==`; subtract them to compare.
    """

    terms: tuple[tuple[Expr, int], ...]
    const: int

    @property
    def is_const(self) -> bool:
        """Whether there are no atoms."""
        return not self.terms

    def coefficient(self, atom: Expr) -> int:
        """The factor of `atom`, 0 where it does not occur."""
        for a, c in self.terms:
            if a is atom:
                return c
        return 0

    def __add__(self, other: Affine) -> Affine:
        return _combine(self, other, 1)

    def __sub__(self, other: Affine) -> Affine:
        return _combine(self, other, -1)

    def scaled(self, factor: int) -> Affine:
        """This form times an integer."""
        if factor == 0:
            return _ZERO
        if factor == 1:
            return self
        terms = tuple((a, c * factor) for a, c in self.terms)
        return Affine(terms, self.const * factor)

    def times(self, other: Affine) -> Affine:
        """The product; an atom times the other form is one atom, `x * (y + z)`."""
        if not other.terms:
            return self.scaled(other.const)
        atom, factor = to_expr(other), 1
        if len(other.terms) == 1 and not other.const:
            atom, factor = other.terms[0]
        products = tuple((Mul(a, atom), c * factor) for a, c in self.terms)
        return Affine(products, 0) + Affine(((atom, self.const * factor),), 0)


_ZERO = Affine((), 0)
_UNKNOWN = Affine((), 0)  # by identity: no form was found yet


def _combine(
    lhs: Affine,
    rhs: Affine,
    sign: int,
) -> Affine:
    constant = lhs.const + sign * rhs.const
    if not rhs.terms:
        return Affine(lhs.terms, constant)
    total = dict(lhs.terms)
    for atom, c in rhs.terms:
        total[atom] = total.get(atom, 0) + sign * c
    terms = tuple((a, c) for a, c in total.items() if c)
    return Affine(terms, constant)


def _mul(e: Mul) -> Affine | None:
    lhs = affine(e.lhs)
    rhs = affine(e.rhs)
    if not rhs.terms:
        return lhs.scaled(rhs.const)
    if not lhs.terms:
        return rhs.scaled(lhs.const)
    return None


_FORMS: Mapping[type[Expr], Callable[..., Affine | None]] = {
    Add: lambda e: affine(e.lhs) + affine(e.rhs),
    Sub: lambda e: affine(e.lhs) - affine(e.rhs),
    Neg: lambda e: affine(e.value).scaled(-1),
    Mul: _mul,
    Const: lambda e: Affine((), int(e.value)),
}


def affine(e: Expr) -> Affine:
    """The linear form of an int64 expression; anything else is one atom. Kept in the node."""
    rule = _FORMS.get(type(e))
    if rule is None or e.dtype is not INDEX:
        return Affine(((e, 1),), 0)
    # A form that is kept holds proper subexpressions only. Where none is, the node is one atom.
    form: Affine | None = getattr(e, "fact", _UNKNOWN)
    if form is _UNKNOWN:
        form = rule(e)
        keep_fact(e, form)
    return Affine(((e, 1),), 0) if form is None else form


def rejoined(form: Affine) -> Affine:
    """The form with `c * (x // c) + x % c` replaced by `x`, and with positive a and c
    `c * (x // (a * c)) + x // a % c` by `x // a`; both times any factor."""
    for whole, factor in form.terms:
        if not isinstance(whole, FloorDiv) or not isinstance(whole.rhs, Const):
            continue
        for part, times in form.terms:
            if isinstance(part, Mod) and _is_digit(part, whole):
                if times * affine(part.rhs).const != factor:
                    continue
                form = form - Affine(((whole, factor), (part, times)), 0)
                return rejoined(form + affine(part.lhs).scaled(times))
    return form


def _is_digit(part: Mod, whole: FloorDiv) -> bool:
    """Whether `whole` is what is left of `part.lhs` above its lowest digit, `part`."""
    low = part.lhs
    if low is whole.lhs:
        return part.rhs is whole.rhs
    if not isinstance(low, FloorDiv) or low.lhs is not whole.lhs:
        return False
    a, c, both = (affine(e) for e in (low.rhs, part.rhs, whole.rhs))
    known = a.is_const and c.is_const and min(a.const, c.const) > 0
    return known and a.const * c.const == both.const


def quotient(form: Affine, divisor: int) -> Affine:
    """`form // divisor` for a positive number; the terms that it divides leave the quotient."""
    even = tuple((a, c // divisor) for a, c in form.terms if c % divisor == 0)
    odd = tuple((a, c) for a, c in form.terms if c % divisor)
    if not odd:
        return Affine(even, form.const // divisor)
    rest = to_expr(Affine(odd, form.const))
    return Affine((*even, (FloorDiv(rest, const(divisor)), 1)), 0)


def to_expr(form: Affine) -> Expr:
    """The expression `a*c + b*d + const` of a form, without factors 1 and terms 0."""
    total: Expr | None = None
    for atom, c in form.terms:
        size = abs(c)
        term = atom if size == 1 else Mul(atom, const(size))
        if total is None:
            total = term if c > 0 else Mul(atom, const(c))
        elif c > 0:
            total = Add(total, term)
        else:
            total = Sub(total, term)
    if total is None:
        return const(form.const)
    if form.const == 0:
        return total
    if form.const < 0:
        return Sub(total, const(-form.const))
    return Add(total, const(form.const))
