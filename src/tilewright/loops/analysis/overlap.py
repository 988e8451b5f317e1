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

Who asks: `lemmas` and `isl`, where `dependence` says that they may. A rewrite that changes an
`Overlap` into anything else takes the promise back, which is always right.
"""

from __future__ import annotations

from collections.abc import Collection

from tilewright.expr.affine import Affine, affine
from tilewright.expr.nodes import Overlap, Var
from tilewright.expr.reads import variables


def clamps(form: Affine, loops: Collection[Var]) -> dict[Overlap, int]:
    """The starts of overlapping tiles of `loops` in an index, each with its factor."""
    return {
        atom: c
        for atom, c in form.terms
        if isinstance(atom, Overlap) and any(v in loops for v in variables(atom))
    }


def ideal(form: Affine, loops: Collection[Var]) -> Affine:
    """The index as if the tiles of `loops` did not overlap."""
    starts = clamps(form, loops)
    total = Affine(tuple(t for t in form.terms if t[0] not in starts), form.const)
    for atom, c in starts.items():
        total = total + affine(atom.lhs).scaled(c)
    return total
