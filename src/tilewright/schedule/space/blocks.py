"""Blocks: a part of a kernel cut into blocks of its results, others computed inside them.

What the nests are then, seen from inside the blocks, is again a sequence of Computations, of
smaller extents: the rules of the sketches schedule those as any others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError
from tilewright.compute.nodes import PS, Computation, Dim, Output
from tilewright.expr.nodes import INDEX, Buffer, Expr, Load, Var, const
from tilewright.ir.node import substitute
from tilewright.loops.analysis.terms import loads
from tilewright.loops.nodes import Alloc
from tilewright.loops.walk import walk
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.space.nest import extents, place
from tilewright.schedule.space.patterns import free_dims


@dataclass(slots=True)
class BlockPart:
    """Computations that one rule schedules.

    blocks: its own loops over blocks, outermost first. around: the loops it is computed in, its own
    or another part's. cut: by name of a loop, the loop inside a block. staged: copies of its
    inputs. holds: the blocks in which the next loop is not the only statement.
    """

    computations: list[Computation]
    blocks: list[str] = field(default_factory=list)
    around: tuple[str, ...] = ()
    cut: dict[str, str] = field(default_factory=dict)
    staged: dict[Buffer, str] = field(default_factory=dict)
    holds: set[str] = field(default_factory=set)

    @property
    def last(self) -> Computation:
        """The Computation of its result."""
        return self.computations[-1]

    @property
    def nested(self) -> list[str]:
        """The blocks with nothing between them, outermost first."""
        first = next(
            (n for n, x in enumerate(self.blocks) if x in self.holds), len(self.blocks)
        )
        return self.blocks[: first + 1]

    def up_to(self, loop: str) -> tuple[str, ...]:
        """The blocks from the outermost to this one."""
        return tuple(self.blocks[: self.blocks.index(loop) + 1])

    def reads(self, others: Sequence[BlockPart]) -> list[BlockPart]:
        """Those of the others whose results it reads."""
        needed = {b for c in self.computations for b in c.inputs}
        made = ({o.tensor for c in p.computations for o in c.outputs} for p in others)
        return [p for p, tensors in zip(others, made, strict=True) if tensors & needed]


def has_blocks(c: Computation) -> bool:
    """Whether the results of a Computation may be cut: one tensor, and no scan."""
    return (
        len(c.outputs) == 1
        and bool(free_dims(c))
        and all(d.combine != PS for d in c.dims)
    )


def in_blocks(
    s: Schedule, part: BlockPart, levels: Sequence[Mapping[Dim, int]], stack: int
) -> tuple[Schedule, BlockPart]:
    """Add loops over blocks of the part's results around its whole computation; returns the new
    part.

    levels: sizes of a block by dimension, outermost level first. stack: the largest result, in
    bytes, that may be on the stack. Unchanged if a primitive refuses: the event `kept-whole` says
    why.
    """
    if all(size == d.extent for sizes in levels for d, size in sizes.items()):
        return s, part
    trial, new = s.fork(), BlockPart(list(part.computations))
    try:
        _cut(trial, new, levels, stack)
    except ScheduleError as error:
        events.emit(
            "kept-whole", kernel=s.kernel.name, part=part.last.name, reason=str(error)
        )
        return s, part
    return trial, new


def _cut(
    s: Schedule, part: BlockPart, levels: Sequence[Mapping[Dim, int]], stack: int
) -> None:
    if not part.last.is_map:
        levels = _copied(s, part, levels)
    loops = {d: f"{part.last.name}.{d.var.name}" for d in levels[0]}
    left = {d: d.extent for d in loops}
    for sizes in levels:
        for d, size in sizes.items():
            if size < left[d]:
                whole = f"{part.last.name}.{d.var.name}"
                block, loops[d] = s.split(loops[d], size, "overlap")
                left[d] = size
                part.blocks.append(block)
                part.cut[whole] = loops[d]
    s.reorder(*part.blocks, *loops.values())
    part.around = tuple(part.blocks)
    for c in reversed(part.computations[:-1]):
        _compute_at(s, c, part.blocks[-1], stack)


def _copied(
    s: Schedule, part: BlockPart, levels: Sequence[Mapping[Dim, int]]
) -> list[dict[Dim, int]]:
    """The results of a reduction in their own buffer, and the copy as the last Computation.

    Returns the sizes of blocks by the dimensions of the copy.
    """
    r = part.last
    (out,) = r.outputs
    new = s.cache_write(out.tensor.name, None, "global")
    made = buffers(s)[new]
    index = tuple(
        Var(f"w{n}", INDEX) if m != 1 else const(0) for n, m in enumerate(made.shape)
    )
    dims = [
        Dim(i, m) for i, m in zip(index, made.shape, strict=True) if isinstance(i, Var)
    ]
    copy = Computation(
        new, tuple(dims), (Output(out.tensor, index, Load(made, index)),)
    )
    part.computations[-1:] = [replace(r, outputs=(replace(out, tensor=made),)), copy]
    of = {
        to: d
        for i, to in zip(out.index, index, strict=True)
        for d in r.dims
        if d.var is i
    }
    return [
        {d: sizes.get(of[d.var], d.extent) if d.var in of else d.extent for d in dims}
        for sizes in levels
    ]


def computed_at(s: Schedule, part: BlockPart, loop: str, stack: int) -> Schedule | None:
    """The schedule with the part computed inside a loop; None if a primitive refuses.

    stack: the largest result, in bytes, that may be on the stack.
    """
    trial = s.fork()
    try:
        for c in reversed(part.computations):
            _compute_at(trial, c, loop, stack)
    except ScheduleError:
        return None
    return trial


def _compute_at(s: Schedule, c: Computation, loop: str, stack: int) -> None:
    s.compute_at(c.outputs[0].tensor.name, loop)
    for o in c.outputs:
        place(s, o.tensor.name, stack)


def buffers(s: Schedule) -> dict[str, Buffer]:
    """Every buffer of the program as it is now, by name."""
    found = {b.name: b for b in s.kernel.params}
    allocs = (p.stmt for p in walk(s.kernel.body))
    return found | {x.buffer.name: x.buffer for x in allocs if isinstance(x, Alloc)}


def local(s: Schedule, part: BlockPart) -> list[Computation]:
    """The part's Computations as they are inside blocks: with the loops and buffers of there.

    Where a block is in the whole is left out: only differences of addresses are right.
    """
    if not part.around:
        return part.computations
    now, trips = buffers(s), extents(s.kernel)
    names = {b: part.staged.get(b, b.name) for c in part.computations for b in c.inputs}
    return [_local(c, part.cut, names, now, trips) for c in part.computations]


def _local(
    c: Computation,
    cut: Mapping[str, str],
    names: Mapping[Buffer, str],
    now: Mapping[str, Buffer],
    trips: Mapping[str, int],
) -> Computation:
    dims: list[Dim] = []
    values: dict[object, object] = {}
    for d in c.dims:
        whole = f"{c.name}.{d.var.name}"
        loop = cut.get(whole, whole)
        extent = trips.get(loop, 1)
        var = Var(loop.removeprefix(f"{c.name}."), d.var.dtype)
        values[d.var] = var if extent > 1 else const(0)
        if extent > 1:
            dims.append(Dim(var, extent, d.combine))

    def moved(e: Expr) -> Expr:
        reads: dict[object, object] = {
            x: Load(now[names[x.buffer]], x.index) for x in loads(e)
        }
        result: Expr = substitute(substitute(e, reads), values)
        return result

    outputs = tuple(
        Output(now[o.tensor.name], tuple(moved(i) for i in o.index), moved(o.value))
        for o in c.outputs
    )
    return Computation(c.name, tuple(dims), outputs, c.reducer)
