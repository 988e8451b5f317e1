"""From records to primitives, in a fixed order.

The stages' plain nests come one after the other (`staging.py`: with a step for each cache). Then:

1. stages computed inline are put in the place of their reads, first to last;
2. from the last stage to the first, so that each consumer's loops exist when a producer moves
   into them: the stage is placed (compute_at); its splits and fusions follow as written, each
   putting the loops that it needs next to one another; then its loops are put in their final order,
   the start of a reduction becoming its own nest where reduction loops go outside others;
3. memories: set_scope, storage_align, double_buffer; 4. vthread; 5. loop kinds and notes:
   parallel, unroll, vectorize, bind, annotate; 6. tensorize; each from the first stage to the last,
   as written; 7. prefetch, a note at the vector loops that there are in the end.

A loop of one iteration does not exist in a program, and what is recorded about it holds trivially;
so do the loops of a stage that is computed inline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError, placed
from tilewright.compute.nodes import CC
from tilewright.lang.te.cooperative import part_threads
from tilewright.lang.te.records import Handle, Line, Mark, Split
from tilewright.lang.te.stage import Attach, Stage
from tilewright.lang.te.syntax.program import PlainProgram
from tilewright.loops.analysis.effects import reads
from tilewright.schedule import Schedule
from tilewright.schedule.ahead import prefetch_ahead
from tilewright.schedule.tree import find_loop, trips

_MEMORY: Final = ("set_scope", "storage_align", "double_buffer")
_KINDS: Final = ("parallel", "unroll", "vectorize", "bind", "annotate")
_PHASES: Final = (_MEMORY, ("vthread",), _KINDS, ("tensorize",))


@dataclass(frozen=True, slots=True)
class Replayed:
    """The schedule, and the names of the loops of each stage's handles."""

    schedule: Schedule
    loops: dict[Stage, dict[Handle, str]]


@dataclass(slots=True)
class _Nest:
    """A stage's loops in the program: by handle, and of the nests that start its reduction.

    parts: of a loop over threads, what else it has become where what they share is fetched.
    """

    stage: Stage
    buffers: tuple[str, ...]
    names: dict[Handle, str]
    starts: dict[Handle, list[str]] = field(default_factory=dict)
    order: list[Handle] = field(default_factory=list)
    parts: dict[Handle, list[str]] = field(default_factory=dict)

    def every(self, handle: Handle) -> list[str]:
        """The loops that have become of a handle."""
        own = [self.names[handle]] if handle in self.names else []
        return [*self.starts.get(handle, ()), *own, *self.parts.get(handle, ())]


def replay(stages: Sequence[Stage], program: PlainProgram, s: Schedule) -> Replayed:
    """Apply all records to `s`, a schedule of the program's kernel.

    Raises ScheduleError naming the line that cannot be applied.
    """
    nests = {stage: _nest(stage, program) for stage in stages}
    for stage in stages:
        if stage.attach is not None and stage.attach.how == "inline":
            with _naming(stage.attach.line):
                s.compute_inline(nests[stage].buffers[0])
            nests[stage] = _Nest(stage, (), {}, order=nests[stage].order)
    for stage in reversed(stages):
        if stage.attach is not None and stage.attach.how == "at":
            _place(s, nests, stage)
        _loops(s, nests[stage])
    for verbs in _PHASES:
        for stage in stages:
            for mark in stage.marks:
                if mark.verb in verbs:
                    what = (mark.verb, mark.loop, mark.args)
                    _apply(s, nests[stage], mark.line, what)
    for stage in stages:
        for mark in stage.marks:
            if mark.verb == "prefetch":
                _prefetch(s, nests[stage], program, mark)
    return Replayed(s, {stage: nest.names for stage, nest in nests.items()})


def _nest(stage: Stage, program: PlainProgram) -> _Nest:
    axes = (*stage.op.axis, *stage.op.reduce_axis)
    names: dict[Handle, str] = {
        a: program.loops[stage.op, a] for a in axes if (stage.op, a) in program.loops
    }
    buffers = tuple(program.buffers[t].name for t in stage.op.outputs)
    return _Nest(stage, buffers, names, order=list(axes))


@contextmanager
def _naming(line: Line) -> Iterator[None]:
    """Errors of the primitives, with the line that asked for them in front."""
    with placed(str(line)):
        yield


def _place(s: Schedule, nests: dict[Stage, _Nest], stage: Stage) -> None:
    attach = stage.attach
    assert attach is not None and attach.stage is not None and attach.loop is not None
    consumer = nests.get(attach.stage)
    with _naming(attach.line):
        if consumer is None:
            raise ScheduleError(
                f"a call of a function is between it and {attach.stage.name}",
                hint="compute it at a stage that is compiled together with it",
                where=str(attach.line),
            )
        if not any(x is attach.loop for x in attach.stage.leaves):
            raise ScheduleError(
                f"{attach.loop} is no longer a loop of {attach.stage.name}",
                hint=f"its loops are {', '.join(x.name for x in attach.stage.leaves)}",
                where=str(attach.line),
            )
        if not consumer.buffers:
            raise ScheduleError(
                f"{attach.stage.name} is computed inline and has no loops",
                hint="place it in a stage that reads that one",
                where=str(attach.line),
            )
        loop = _around(nests, attach)
        if loop is None:
            return
        buffer = nests[stage].buffers[0]
        if stage.scope == "shared":
            loop = _between_threads(s, nests, loop)
        s.compute_at(buffer, _part_of(s, nests, loop, buffer))


def _between_threads(s: Schedule, nests: dict[Stage, _Nest], loop: str) -> str:
    """The loop to fetch at, around which the loops over threads have been parted."""
    threads = {
        name
        for nest in nests.values()
        for mark in nest.stage.marks
        if mark.loop is not None and _is_thread(mark)
        for name in nest.every(mark.loop)
    }
    loop, made = part_threads(s, loop, threads)
    for old, new in made:
        for nest in nests.values():
            for handle in nest.order:
                if old in nest.every(handle):
                    nest.parts.setdefault(handle, []).append(new)
    return loop


def _is_thread(mark: Mark) -> bool:
    """Whether a loop is bound to threads of a block, or to virtual ones."""
    axis = str(mark.args[0]) if mark.verb == "bind" else mark.verb
    return axis.startswith("threadIdx") or axis == "vthread"


def _part_of(s: Schedule, nests: dict[Stage, _Nest], loop: str, buffer: str) -> str:
    """Of the parts of a loop over threads the one that reads the buffer."""
    every = (nest.every(h) for nest in nests.values() for h in nest.parts)
    for name in next((parts for parts in every if loop in parts), ()):
        f, _ = find_loop(s.kernel, name, "compute_at")
        if any(b.name == buffer for b in reads(f)):
            return name
    return loop


def _around(nests: dict[Stage, _Nest], attach: Attach | None) -> str | None:
    """The loop that a stage is placed in: one that would run once is not there."""
    if attach is None or attach.stage is None or attach.loop is None:
        return None
    leaves = attach.stage.leaves
    names = nests[attach.stage].names
    around = [names[x] for x in leaves[: leaves.index(attach.loop) + 1] if x in names]
    if around:
        return around[-1]
    return _around(nests, attach.stage.attach)


# -- the loops of one stage


def _loops(s: Schedule, nest: _Nest) -> None:
    for r in nest.stage.relations:
        with _naming(r.line):
            if isinstance(r, Split):
                _split(s, nest, r)
            else:
                _fuse(s, nest, (r.outer, r.inner), r.fused)
    if nest.stage.ordered is not None:
        with _naming(nest.stage.ordered):
            _order(s, nest, nest.stage.leaves)


def _split(s: Schedule, nest: _Nest, r: Split) -> None:
    at = nest.order.index(r.parent)
    nest.order[at : at + 1] = [r.outer, r.inner]
    name = nest.names.pop(r.parent, None)
    if name is None:
        return
    found = find_loop(s.kernel, name, "split")[0]
    n = found.trips
    if r.factor is not None:
        factor = r.factor
    else:
        factor = -(-trips(found, "split") // (r.nparts or 1))
    if n is not None and factor >= n:
        nest.names[r.inner] = name
    elif factor == 1:
        nest.names[r.outer] = name
    else:
        whole = n is not None and n % factor == 0
        tail = "exact" if whole else r.tail or "guard"
        nest.names[r.outer], nest.names[r.inner] = s.split(name, factor, tail)[:2]


def _fuse(
    s: Schedule,
    nest: _Nest,
    pair: tuple[Handle, Handle],
    fused: Handle,
) -> None:
    outer, inner = pair
    alike = [x for x in nest.order if x.combine == outer.combine]
    rest = [x for x in alike if x is not inner]
    rest.insert(rest.index(outer) + 1, inner)
    _permute(s, nest, alike, rest)
    nest.order[nest.order.index(outer)] = fused
    nest.order.remove(inner)
    names = [nest.names.pop(x) for x in pair if x in nest.names]
    if names:
        nest.names[fused] = s.fuse(*names) if len(names) == 2 else names[0]


def _permute(
    s: Schedule, nest: _Nest, before: list[Handle], after: list[Handle]
) -> None:
    """Put the loops `before` of a perfect nest in the order `after`, where that is another."""
    queue = iter(after)
    nest.order = [next(queue) if x in before else x for x in nest.order]
    old = [nest.names[x] for x in before if x in nest.names]
    new = [nest.names[x] for x in after if x in nest.names]
    if old != new:
        s.reorder(*new)


def _order(s: Schedule, nest: _Nest, wanted: list[Handle]) -> None:
    """The final order of a stage's loops."""
    existing = [x for x in wanted if x in nest.names]
    free = [x for x in existing if x.combine == CC]
    bound = [x for x in existing if x.combine != CC]
    for part in (free, bound):
        _permute(s, nest, [x for x in nest.order if x in part], part)
    nest.order = list(wanted)
    if existing == free + bound or not bound:
        return
    first = existing.index(bound[0])
    inside = [x for x in free if existing.index(x) > first]
    for buffer in nest.buffers:
        made = s.decompose_reduction(buffer, nest.names[inside[0]])
        for x, name in zip(inside, made, strict=True):
            nest.starts.setdefault(x, []).append(name)
    s.reorder(*(nest.names[x] for x in existing[first:]))


def _prefetch(s: Schedule, nest: _Nest, program: PlainProgram, mark: Mark) -> None:
    tensor, iterations = mark.args
    with _naming(mark.line):
        if tensor not in program.buffers:
            raise ScheduleError(
                f"prefetch: {tensor.name} is not a tensor of this program",
                hint="name one that the stage reads",
                where=str(mark.line),
            )
        if mark.loop in nest.names:
            name = program.buffers[tensor].name
            prefetch_ahead(s, name, nest.names[mark.loop], iterations)


def _apply(
    s: Schedule,
    nest: _Nest,
    line: Line,
    mark: tuple[str, Handle | None, tuple[Any, ...]],
) -> None:
    """A primitive on a loop, and on its twins in the nests that start the reduction."""
    verb, loop, args = mark
    primitive: Callable[..., Any] = getattr(s, verb)
    with _naming(line):
        if loop is None:
            for buffer in nest.buffers:
                primitive(buffer, *args)
            return
        names = nest.every(loop)
        if verb == "tensorize":
            names = [nest.names[loop]] if loop in nest.names else []
        for name in names:
            primitive(name, *args)
