"""The lanes of an index in a vector loop: a uniform base, plus a number per lane."""

from __future__ import annotations

from tilewright.base.dataclass import dataclass
from tilewright.expr.affine import Affine, affine, to_expr
from tilewright.expr.nodes import Const, Expr, FloorDiv, Max, Min, Mod, Var, const
from tilewright.ir.node import postorder


# Not frozen for speed: many are created, and a frozen one takes three times as long.
@dataclass(slots=True, eq=False)
class Lanes:
    """The value `base + steps[n]` in lane n."""

    base: Affine
    steps: tuple[int, ...]

    @property
    def is_uniform(self) -> bool:
        """Whether it is the same in every lane."""
        return len(set(self.steps)) == 1


def lanes_of(e: Expr, lane: Var, count: int) -> Lanes | None:
    """An index as a uniform base and an offset per lane, `lane` being 0 .. count - 1; None if it
    has no such form.

    `x // d` and `x % d` have that form if the uniform part of x has a known residue modulo d: 2*i +
    3 has one modulo 2, i does not.
    """
    form = affine(e)
    base = Affine((), form.const)
    steps = [0] * count
    for atom, c in form.terms:
        if atom is lane:
            steps = [n + c * step for step, n in enumerate(steps)]
        elif lane not in postorder(atom):
            base = base + Affine(((atom, c),), 0)
        else:
            found = _division(atom, lane, count)
            if found is None:
                return None
            base = base + found.base.scaled(c)
            steps = [n + c * step for n, step in zip(steps, found.steps, strict=True)]
    return Lanes(base, tuple(steps))


def _division(e: Expr, lane: Var, count: int) -> Lanes | None:
    if not isinstance(e, FloorDiv | Mod) or not isinstance(e.rhs, Const):
        return None
    d = int(e.rhs.value.real)
    if d <= 0:
        return None
    found = lanes_of(e.lhs, lane, count)
    if found is None:
        return None
    rest = residue(found.base, d)
    if rest is None:
        return None
    if isinstance(e, Mod):
        return Lanes(Affine((), 0), tuple((rest + n) % d for n in found.steps))
    steps = tuple((rest + n) // d for n in found.steps)
    return Lanes(_quotient(found.base, d), steps)


def _quotient(form: Affine, d: int) -> Affine:
    """`form // d`, term by term where each has the factor d."""
    if all(c % d == 0 for _, c in form.terms):
        return Affine(tuple((a, c // d) for a, c in form.terms), form.const // d)
    quotient = FloorDiv(to_expr(form), const(d))
    return Affine(((quotient, 1),), 0)


def residue(form: Affine, d: int) -> int | None:
    """`form % d` if it is the same for all values of the variables; else None."""
    total = form.const
    for atom, c in form.terms:
        if c % d == 0:
            continue
        rest = _residue_of(atom, d)
        if rest is None:
            return None
        total += c * rest
    return total % d


def _residue_of(atom: Expr, d: int) -> int | None:
    if isinstance(atom, Min | Max):
        lhs, rhs = (residue(affine(x), d) for x in (atom.lhs, atom.rhs))
        return lhs if lhs == rhs else None
    if isinstance(atom, Mod) and isinstance(atom.rhs, Const):
        whole = int(atom.rhs.value.real)
        return residue(affine(atom.lhs), d) if whole > 0 and whole % d == 0 else None
    return None
