"""Overlapping tiles: what an `Overlap` in an index promises about the kernel.

`split(..., tail="overlap")` runs a loop of n iterations as tiles that all have f iterations:
iteration i of tile o is `x = min(o*f, n-f) + i`, so that some x run twice. It proves that this
makes no difference, and writes the start of the tile as `Overlap(o*f, n-f)`. Nothing else makes
one, and a `Min` that a user wrote promises nothing, whatever it looks like.

The promise: let s be a Store with `Overlap`s in its index, and p, q two of its executions that
differ only in loops whose variables occur in these `Overlap`s, and in loops inside them. If p
and q write the same element, and no execution of s between them does, both write the same value.
The same holds of what Updates make of it whose element, with the same `Overlap`s, s stores first in
the same iteration of those loops (`region.uncovered`): split has proved that all of an iteration
can run again.

The ideal reading of an index puts `o*f` for `Overlap(o*f, n-f)`: every x then runs once. Where two
accesses have the same `Overlap`s in the same dimensions and conflict, they conflict in the ideal
reading too, once x = x' is all that their indices ask of those loops; and if they agree in o there,
what differs in fact is only which of the two equal stores is seen.

A start inside of `x // n` or `x % n` is not read ideally: of equal quotients alone, x may differ.
Where both are in the indices, with p + a*(x // n) equal and q + b*(x % n) equal, then so is what
n*b times the one and a times the other make together, n*b*p + a*q + a*b*x. That is an index
without the quotient, as if the array were flat, and it stands for both (`rejoined`). An index that
has a start inside of something else is left out of the ideal reading, which then asks for less: it
says which x the tile has in fact, and x is elsewhere in the ideal reading. So are guards, and loops
that run as far as others say, since these also hold at other places there (`Access.anywhere`).

The ideal reading also needs that an index has o and i in x alone: T[x + j, i] may be one element of
tiles at min(o*f, n-f) and of no tiles at o*f, since i says which x the tile has in fact. Split
makes every index of x, and what adds a loop to the indices of a buffer in it, `expand`, makes plain
minima of the starts there (`without_promise`): later, one element may be that of several tiles
(`fold_storage`). The copies of `pipeline` need not: a tile reads what another one stores.

Who asks: `lemmas` and `isl`, where `dependence` says that they may. A rewrite that changes an
`Overlap` into anything else takes the promise back, which is always right.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import Any

from tilewright.expr.affine import Affine, affine
from tilewright.expr.nodes import Const, Expr, Min, Mod, Overlap, Var
from tilewright.expr.reads import variables
from tilewright.ir.node import postorder, transform
from tilewright.loops.analysis.terms import quotients

# The indices of two accesses, dimension by dimension.
Forms = Sequence[tuple[Affine, Affine]]


def clamps(form: Affine, loops: Collection[Var]) -> dict[Overlap, int]:
    """The starts of overlapping tiles of `loops` in an index, each with its factor."""
    return {
        atom: c
        for atom, c in form.terms
        if isinstance(atom, Overlap) and any(v in loops for v in variables(atom))
    }


def ideal(form: Affine, loops: Collection[Var]) -> Affine:
    """The index as if the tiles of `loops` did not overlap."""
    clamped = clamps(form, loops)
    total = Affine(tuple(t for t in form.terms if t[0] not in clamped), form.const)
    for atom, c in clamped.items():
        total = total + affine(atom.lhs).scaled(c)
    return total


def is_taken_apart(form: Affine, loops: Collection[Var]) -> bool:
    """Whether a start of a tile of `loops` is inside of a quotient, or of something else."""
    atoms = (atom for atom, _ in form.terms if not isinstance(atom, Overlap))
    return any(_has_start(atom, loops) for atom in atoms)


def _has_start(e: Expr, loops: Collection[Var]) -> bool:
    return any(v in loops for n in starts(e) for v in variables(n))


@lru_cache(maxsize=1 << 10)
def starts(e: Expr) -> tuple[Overlap, ...]:
    """The starts of overlapping tiles in an expression; cached, since it is needed after each
    step."""
    return tuple(n for n in postorder(e) if isinstance(n, Overlap))


def without_promise(index: Sequence[Expr], loops: Collection[Var]) -> tuple[Expr, ...]:
    """An index in which the starts of overlapping tiles of `loops` are minima."""

    def step(node: Any) -> Any:
        if isinstance(node, Overlap) and any(v in loops for v in variables(node)):
            return Min(node.lhs, node.rhs)
        return node

    return tuple(transform(e, step) if _has_start(e, loops) else e for e in index)


def rejoined(forms: Forms, loops: Collection[Var]) -> Forms:
    """Indices with one for each two that have a start in a quotient and in its remainder."""
    found = list(forms)
    while (parts := next(_parts(found, loops), None)) is not None:
        high, low, quotient, remainder = parts
        i, j = (
            _joined(found[high][n], found[low][n], quotient, remainder) for n in (0, 1)
        )
        found = [form for n, form in enumerate(found) if n not in (high, low)]
        found.append((i, j))
    return found


def _parts(
    forms: Forms, loops: Collection[Var]
) -> Iterator[tuple[int, int, Expr, Mod]]:
    """Dimensions with a quotient and with its remainder, which both accesses count alike."""
    for low, (i, _) in enumerate(forms):
        for atom, _ in i.terms:
            if not isinstance(atom, Mod) or not _has_start(atom, loops):
                continue
            if not isinstance(atom.rhs, Const):
                continue
            for quotient in quotients(atom):
                for high, (p, q) in enumerate(forms):
                    count = p.coefficient(quotient)
                    if high != low and count and count == q.coefficient(quotient):
                        yield high, low, quotient, atom


def _joined(high: Affine, low: Affine, quotient: Expr, remainder: Mod) -> Affine:
    """The two indices as one, with the whole for its parts."""
    a = high.coefficient(quotient)
    b = low.coefficient(remainder)
    modulus = affine(remainder.rhs).const
    both = high.scaled(modulus * b) + low.scaled(a)
    parts = Affine(((quotient, modulus * a * b), (remainder, a * b)), 0)
    return both - parts + affine(remainder.lhs).scaled(a * b)
