"""store_with: an intermediate in the memory of a result that is stored after its last use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tilewright.base.errors import ScheduleError
from tilewright.expr.affine import Affine, affine
from tilewright.expr.nodes import Buffer, Min, const
from tilewright.ir.node import postorder
from tilewright.loops.analysis.access import Env, Index, accesses, environment
from tilewright.loops.analysis.dependence import stored_once
from tilewright.loops.analysis.effects import reads, writes
from tilewright.loops.analysis.region import Region, region, uncovered
from tilewright.loops.analysis.terms import loads
from tilewright.loops.nodes import Alloc, Kernel, Stmt, Store, Unit
from tilewright.loops.walk import loops_of, walk
from tilewright.schedule import edit, tree
from tilewright.schedule.legality import check_kinds, refuse_buffer
from tilewright.schedule.registry import primitive
from tilewright.schedule.relocate import in_order, own_buffer

_VERB = "store_with"


class _Both(NamedTuple):
    """An intermediate and the buffer whose memory it takes."""

    part: Buffer
    home: Buffer

    def refused(self, message: str, hint: str) -> ScheduleError:
        return refuse_buffer(_VERB, self.part.name, f"{self.home.name} {message}", hint)


@primitive
def store_with(kernel: Kernel, buffer: str, other: str) -> tuple[Kernel, None]:
    """Keep an intermediate in the memory of a buffer that is stored where it is last used.

    args: the intermediate; the other buffer, of the same dtype.
    requires: in the sequence in which the intermediate exists, nothing touches the other buffer
        before one nest N, and nothing the intermediate after it. N is one Store to the other
        buffer, of as many elements as the intermediate has, each once and none left out (bounds);
        its value reads the intermediate at the very element that it stores, if at all. Tiles that
        overlap do not store two values: none are around.
    Memory is touched once where it would be twice, and its lines are on their way to the cache
    while the intermediate is computed.
    before: for i: { alloc T: { for j: T[j] = f(i, j)
                                for j: c += T[j]
                                for j: D[i, j] = g(T[j], c) } }
    after:  for i: { for j: D[i, j] = f(i, j)
                     for j: c += D[i, j]
                     for j: D[i, j] = g(D[i, j], c) }
    """
    part, alloc = own_buffer(kernel, buffer, _VERB)
    home, place = tree.find_buffer(kernel, other, _VERB)
    both = _Both(part, home)
    if part is home or (place is not None and place.stmt not in alloc.above):
        raise both.refused("does not exist around it", "name a buffer from further out")
    if part.dtype is not home.dtype:
        raise both.refused(
            f"is of {home.dtype}, it of {part.dtype}",
            "name a buffer of the same dtype",
        )
    assert isinstance(alloc.stmt, Alloc)
    env = environment(kernel.body)
    nest = _nest(both, list(in_order([alloc.stmt.body])))
    move = _into(both, _box(both, nest, env))
    _check_same_element(both, nest, move)
    new = edit.rewrite(alloc.stmt.body, env, moves={part: move})
    result = edit.put(kernel, alloc, new)
    kinds = [f.var.name for f in (*alloc.loops, *loops_of(new))]
    check_kinds(result, kinds, _VERB, "store it there before the loops get their kinds")
    return result, None


def _nest(both: _Both, steps: Sequence[Stmt]) -> Stmt:
    """The statement that stores the other buffer, after all other uses of the part."""
    part, home = both
    at = next((n for n, s in enumerate(steps) if home in writes(s)), None)
    if at is None:
        raise both.refused(
            "is not stored where it exists",
            "name what is stored at its last use",
        )
    if any(home in reads(s) for s in steps[:at]):
        raise both.refused(
            "is read before it is stored",
            "it holds something else until then",
        )
    if any(part in reads(s) | writes(s) for s in steps[at + 1 :]):
        raise both.refused("is stored before its last use", "name what is stored later")
    if any(isinstance(p.stmt, Unit) for p in walk(steps[at])):
        raise both.refused(
            "is stored by a Unit",
            "store it there before tensorize or blockize",
        )
    return steps[at]


def _box(both: _Both, nest: Stmt, env: Env) -> Region:
    """What the nest stores of the other buffer: as many elements as the part has, each once."""
    part, home = both
    found = [a for a in accesses(nest, env) if a.buffer is home]
    if len(found) != 1 or found[0].kind != "store":
        raise both.refused(
            "is not stored there by one Store alone",
            "fission the nest first",
        )
    box = region(home, found, env, _VERB)
    if [n for n in box.shape if n != 1] != [n for n in part.shape if n != 1]:
        raise both.refused(
            f"has {list(box.shape)} elements stored there, it has {list(part.shape)}",
            "compute_at the loop around those that are stored",
        )
    clamps = (n for i in box.base for n in postorder(i) if isinstance(n, Min))
    if not stored_once(found[0]) or next(clamps, None) is not None:
        raise both.refused(
            "is stored by tiles that overlap",
            "store it there before the split",
        )
    if uncovered(nest, home, env, writes_too=True) is not None:
        raise both.refused(
            "is not wholly stored there",
            "store it there before there are guards",
        )
    return box


def _into(both: _Both, box: Region) -> edit.Move:
    """Where in the other buffer an element of the part is."""
    wide = [d for d, n in enumerate(both.part.shape) if n != 1]

    def move(index: Index) -> tuple[Buffer, Index]:
        own = (index[d] for d in wide)
        local = [next(own) if n != 1 else const(0) for n in box.shape]
        return both.home, box.point(local)

    return move


def _check_same_element(both: _Both, nest: Stmt, move: edit.Move) -> None:
    """The nest uses the part in the value of its Store only, at the element that this stores."""
    part, home = both
    uses = sum(a.buffer is part for a in accesses(nest))
    for s in (p.stmt for p in walk(nest)):
        if not isinstance(s, Store) or s.buffer is not home:
            continue
        taken = [x for x in loads(s.value) if x.buffer is part]
        if uses != len(taken):
            raise both.refused(
                "is stored where it has other uses",
                "fission the nest first",
            )
        for x in taken:
            _, moved = move(x.index)
            pairs = zip(moved, s.index, strict=True)
            if any(affine(i) - affine(j) != Affine((), 0) for i, j in pairs):
                raise both.refused(
                    f"is stored at {list(s.index)} while it is read at {list(x.index)}",
                    "an element has to be overwritten at its last use",
                )
