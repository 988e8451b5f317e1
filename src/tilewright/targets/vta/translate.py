"""From a Kernel to a stream of instructions: loops are walked, and their bodies recorded.

A nest around one statement is one piece, as large as possible: a product of the matrix unit, lane
operations, or a copy between DRAM and the chip. A loop bound to `vthread` is walked for all its
iterations at once: each of these virtual threads has its own instructions and buffers. Tokens
follow from the elements that instructions touch (`tokens.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import int8
from tilewright.base.errors import CompileError
from tilewright.expr import nodes as n
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import Buffer as Tensor
from tilewright.expr.nodes import Cast, Const, Expr, Load, Select, Var
from tilewright.expr.reads import reads_memory
from tilewright.loops.nodes import (
    Alloc,
    Block,
    For,
    If,
    Kernel,
    Stmt,
    Store,
    Unit,
    Update,
)
from tilewright.targets.vta.commands import Commands
from tilewright.targets.vta.config import MemoryId
from tilewright.targets.vta.dram import DramBuffer
from tilewright.targets.vta.guards import box_of
from tilewright.targets.vta.intrinsics import ACC, INP, MEMORIES, WGT, gemm
from tilewright.targets.vta.lanes import LaneStep, chain, loads, update
from tilewright.targets.vta.memory import Chip
from tilewright.targets.vta.micro import MicroRecorder
from tilewright.targets.vta.pieces import access, peeled, tiles
from tilewright.targets.vta.stages import VtaModule
from tilewright.targets.vta.tokens import MemoryTouch, Tokens
from tilewright.targets.vta.transfers import load, store


def translate(
    kernel: Kernel, commands: Commands, buffers: Mapping[Tensor, DramBuffer]
) -> None:
    """Record a kernel with its parameters in these buffers of DRAM.

    Raises CompileError for operations that the machine cannot do, and if its memories are too
    small.
    """
    walk = _Walk(kernel, commands, buffers)
    walk.walk(kernel.body, [_Thread(None)])
    walk.flush()


def _single(s: Stmt) -> bool:
    """Whether a statement is done by instructions without loops of the program around them."""
    return isinstance(s, Store | Update) or (
        isinstance(s, Unit) and s.intrinsic is not None
    )


_NOTHING: Mapping[Var, int] = {}


def _stage(s: Stmt) -> VtaModule:
    """The module of a statement's last instruction."""
    if isinstance(s, Store) and s.buffer.scope in (INP, WGT):
        return VtaModule.LOAD
    return (
        VtaModule.STORE
        if isinstance(s, Store) and s.buffer.scope != ACC
        else VtaModule.COMPUTE
    )


@dataclass(slots=True)
class _Thread:
    """A virtual thread: its number, the loops around at their values, and its buffers."""

    number: int | None
    values: dict[Var, int] = field(default_factory=dict)
    places: dict[Tensor, int] = field(default_factory=dict)

    def split(self, var: Var, extent: int) -> list[_Thread]:
        """One thread for each turn of a loop."""
        first = (self.number or 0) * extent
        return [self.copy(first + turn, {var: turn}) for turn in range(extent)]

    def copy(
        self, number: int | None = None, values: Mapping[Var, int] = _NOTHING
    ) -> _Thread:
        """The thread as it is now, under another number if one is given."""
        at = self.number if number is None else number
        return _Thread(at, {**self.values, **values}, dict(self.places))


@dataclass(slots=True)
class _Piece:
    """A nest around one statement."""

    loops: Mapping[Var, int]
    stmt: Stmt


class _Walk:
    """Walks the program for all virtual threads at once, a statement at a time."""

    def __init__(
        self, kernel: Kernel, commands: Commands, buffers: Mapping[Tensor, DramBuffer]
    ) -> None:
        self.where = f"kernel {kernel.name}"
        self.commands = commands
        self.dram = dict(buffers)
        self.values: Mapping[Var, int] = {}
        self.collected: list[tuple[VtaModule, _Thread, _Piece]] = []
        self.chip = Chip(commands.config, self.where)
        self.tokens = Tokens(commands)
        self.micro = MicroRecorder(self.chip, self.tokens, self.where)

    def walk(self, s: Stmt, threads: list[_Thread]) -> None:
        """Record a statement for each of these threads."""
        loops, inner = peeled(s)
        if _single(inner):
            self.collect(_Piece(loops, inner), threads)
        elif isinstance(s, For):
            self.loop(s, threads)
        elif isinstance(s, Block):
            for part in s.stmts:
                self.walk(part, threads)
        elif isinstance(s, Alloc):
            self.alloc(s, threads)
        elif isinstance(s, If) and not reads_memory(s.condition):
            self.branch(s, threads)
        elif isinstance(s, Unit):
            self.walk(s.body, threads)
        else:
            raise self.refused(s)

    def collect(self, piece: _Piece, threads: list[_Thread]) -> None:
        """Record a piece for these threads, after the pieces collected for the same stage."""
        stage = _stage(piece.stmt)
        if self.collected and stage is not self.collected[0][0]:
            self.flush()
        self.collected += [(stage, t.copy(), piece) for t in threads]

    def flush(self) -> None:
        """Record the collected pieces: a thread does all its work at one stage, then the next
        thread does. So no thread's instructions are between the operands of another."""
        for _, thread, piece in sorted(self.collected, key=lambda c: c[1].number or 0):
            self.values, self.chip.places = thread.values, thread.places
            with self.commands.thread(thread.number):
                self.piece(piece)
        self.collected.clear()

    def loop(self, f: For, threads: list[_Thread]) -> None:
        if f.trips is None:
            raise self.refused(f)
        if f.kind == "vthread":
            self.walk(
                f.body, [part for t in threads for part in t.split(f.var, f.trips)]
            )
            return
        for turn in range(f.trips):
            for thread in threads:
                thread.values[f.var] = turn
            self.walk(f.body, threads)
        for thread in threads:
            thread.values.pop(f.var, None)

    def branch(self, s: If, threads: list[_Thread]) -> None:
        holds = [bool(evaluate(s.condition, t.values)) for t in threads]
        self.walk(s.then, [t for t, yes in zip(threads, holds) if yes])
        if s.otherwise is not None:
            self.walk(s.otherwise, [t for t, yes in zip(threads, holds) if not yes])

    def alloc(self, s: Alloc, threads: list[_Thread]) -> None:
        if s.buffer.scope in MEMORIES:
            with self.chip.room(s.buffer, [t.places for t in threads]):
                self.walk(s.body, threads)
            return
        if s.buffer.scope != "global" or len(threads) > 1:
            raise CompileError(
                f"{s.buffer.name} is allocated in {s.buffer.scope}, which the machine does not "
                "have there",
                code="TW-SCOPE",
                where=self.where,
                hint=f"use {', '.join(MEMORIES)}, or global (DRAM) outside virtual threads",
            )
        size = s.buffer.size * s.buffer.dtype.itemsize
        self.dram[s.buffer] = self.commands.dram.allocate(size)
        self.walk(s.body, threads)

    def refused(self, s: Stmt) -> CompileError:
        line = str(s).splitlines()[0]
        return CompileError(
            f"`{line}` is done by no instruction, and the machine has no scalar unit",
            code="TW-VTA-SCALAR",
            where=self.where,
            hint="copies go between DRAM (global) and the chip, lane operations stay in vta.acc, "
            "products are tensorized with vta.gemm",
        )

    # ------------------------------------------------------------------------------ pieces

    def piece(self, p: _Piece) -> None:
        """Record a nest around one statement."""
        s = p.stmt
        if isinstance(s, Unit):
            self.unit(p, s)
        elif isinstance(s, Update):
            self.update(p, s)
        elif isinstance(s, Store):
            self.store(p, s)

    def unit(self, p: _Piece, s: Unit) -> None:
        assert s.intrinsic is not None
        of = s.intrinsic.intrinsic
        own = gemm(self.commands.config)
        if of.name != own.name:
            raise CompileError(
                f"{s!r}: {of.name} is not this machine's matrix unit",
                code="TW-VTA-INSTRUCTION",
                where=self.where,
                hint=f"tensorize with {own.name}",
            )
        found = [access(o.buffer, o.index, self.values, self.where) for o in s.operands]
        self.micro.gemm(p.loops, found)

    def update(self, p: _Piece, s: Update) -> None:
        result = s.reducer.result[0]
        target = Load(s.buffers[0], s.indices[0])
        if (
            len(s.buffers) > 1
            or target.buffer.scope != ACC
            or not isinstance(result, n.Binary)
        ):
            raise self.refused(s)
        self.lanes(
            p, update(type(result), target, s.values[0], self.where), target, once=False
        )

    def store(self, p: _Piece, s: Store) -> None:
        target = Load(s.buffer, s.index)
        copied = self.loaded(s) if s.buffer.scope in MEMORIES else None
        if copied is not None:
            self.load(p, target, *copied)
        elif s.buffer.scope == ACC:
            steps, _ = chain(s.value, target, self.where)
            for touch in self.lanes(p, steps, target):
                self.chip.spend(touch)
        elif s.buffer in self.dram and self.stores(s):
            if isinstance(s.value, Cast):
                value = s.value.value
            else:
                value = s.value
            steps, home = chain(value, None, self.where)
            spent = self.lanes(p, steps, target)
            self.save(p, target, home)
            for touch in spent:
                self.chip.spend(touch)
        else:
            raise self.refused(s)

    def stores(self, s: Store) -> bool:
        """Whether a statement stores the low bits of accumulators to DRAM."""
        stored = self.chip.elements[INP].dtype  # results are data of another layer
        read = loads(s.value)
        on_chip = all(x.buffer.scope == ACC for x in read)
        return s.buffer.dtype is stored and bool(read) and on_chip

    def lanes(
        self, p: _Piece, steps: Sequence[LaneStep], target: Load, once: bool = True
    ) -> list[MemoryTouch]:
        """Record lane operations; the accumulators they changed that are not `target`."""
        spent = []
        for step in steps:
            used = [x for x in (step.target, step.source) if x is not None]
            found = [access(x.buffer, x.index, self.values, self.where) for x in used]
            touch = self.micro.alu(p.loops, step.operation, found, once)
            if step.target is not target:
                spent.append(touch)
        return spent

    # ------------------------------------------------------------------------------ transfers

    def loaded(self, s: Store) -> tuple[Load, Expr | None, Const] | None:
        """What a statement copies from DRAM, under which condition, and what there is else."""
        value: Expr = s.value
        condition: Expr | None = None
        outside = n.const(0, s.buffer.dtype)
        if isinstance(value, Select) and isinstance(value.otherwise, Const):
            condition, outside, value = value.condition, value.otherwise, value.then
        wide = isinstance(value, Cast) and s.buffer.scope == ACC
        if isinstance(value, Cast) and wide:
            source = value.value
        else:
            source = value
        if not isinstance(source, Load) or source.buffer not in self.dram:
            return None
        if wide and not self.commands.config.loads_bytes:
            raise self.narrow(source)
        if wide:
            own = int8
        else:
            own = self.chip.elements[s.buffer.scope].dtype
        if source.dtype is not own:
            return None
        if outside.value != 0 and s.buffer.scope != ACC:
            return None
        return source, condition, outside

    def narrow(self, source: Load) -> CompileError:
        data = self.chip.elements[INP].dtype
        return CompileError(
            f"{source.buffer.name} is widened to accumulators, which a machine of {data} data "
            "does not do",
            code="TW-VTA-WIDEN",
            where=self.where,
            hint="give it as int32, or compute it on the CPU",
        )

    def load(
        self,
        p: _Piece,
        target: Load,
        source: Load,
        condition: Expr | None,
        outside: Const,
    ) -> None:
        scope = target.buffer.scope
        both = [
            access(x.buffer, x.index, self.values, self.where) for x in (target, source)
        ]
        inside = box_of(condition, p.loops, self.values, self.where)
        lanes = self.chip.elements[scope].lanes
        found = tiles(p.loops, both, inside or {}, lanes, self.where)
        if inside is None:
            found = found.outer
        if outside.value != 0 and any(a.padded for a in found.axes):
            # Padding is zero: fill everything, then load the inside.
            self.lanes(p, chain(outside, target, self.where)[0], target)
            found = found.inner
            if not all(a.extent for a in found.axes):
                return
        box = self.chip.moved(found, {0: target.buffer})
        memory = MEMORIES[scope]
        touched = self.chip.touch(target.buffer, box, 0, writes=True)
        if memory is MemoryId.ACC:
            at = VtaModule.COMPUTE
        else:
            at = VtaModule.LOAD
        kind = (
            MemoryId.ACC_8BIT
            if memory is MemoryId.ACC and source.dtype is int8
            else memory
        )
        dram = self.dram[source.buffer]
        self.tokens.record(
            at,
            [touched, MemoryTouch.of_dram(dram, False)],
            lambda: load(self.commands, kind, dram, box, self.where),
        )

    def save(self, p: _Piece, target: Load, home: Load) -> None:
        both = [
            access(x.buffer, x.index, self.values, self.where) for x in (home, target)
        ]
        lanes = self.chip.elements[ACC].lanes
        box = self.chip.moved(
            tiles(p.loops, both, {}, lanes, self.where), {0: home.buffer}
        )
        touched = self.chip.touch(home.buffer, box, 0, writes=False)
        dram = self.dram[target.buffer]
        self.tokens.record(
            VtaModule.STORE,
            [touched, MemoryTouch.of_dram(dram, True)],
            lambda: store(self.commands, dram, box),
        )
