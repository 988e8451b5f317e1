"""A Launch as the text of a kernel of a GPU: the program of one thread, by the scalar emitter.

Everything is computed as on a processor without vectors, to the last bit. What a GPU adds are the
numbers of a thread, barriers, values of neighbors, and memory of a block; `Dialect` has their names
in LLVM. Indices are computed in 32 bits where their bounds prove that these hold them.

A kernel's parameters are the launch's buffers, and last of all an integer of 64 bits that stays 0
unless a thread reads at an index outside its buffer that only data decide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cache
from math import prod
from typing import Any, Final, TypeVar

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.base.errors import CompileError, UnsupportedError, placed
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import (
    Buffer,
    Call,
    Load,
)
from tilewright.ir.node import Node, postorder
from tilewright.loops.launch import (
    AXIS,
    AtomicUpdate,
    Barrier,
    CombineThreads,
    Commit,
    Launch,
    LaunchProgram,
    Wait,
)
from tilewright.loops.nodes import ASYNC, For, Unit
from tilewright.loops.passes.bulk_copies import BOX_KINDS, boxes_of
from tilewright.loops.passes.constant_memory import constants_of
from tilewright.loops.passes.in_flight import BOXES, PRODUCTS, accumulators_of
from tilewright.loops.passes.shared_room import ALIGNMENT
from tilewright.loops.scopes import CONSTANT
from tilewright.targets.llvm.emit_atomic import emit_atomic
from tilewright.targets.llvm.emit_boxes import BoxCopies, BoxRing
from tilewright.targets.llvm.emit_copies import AsyncCopies, copy_elements
from tilewright.targets.llvm.emit_fmod import fmod_function
from tilewright.targets.llvm.emit_launch_memory import LaunchMemory
from tilewright.targets.llvm.emit_stmt import Statements
from tilewright.targets.llvm.emit_text import (
    LlvmValue,
    flatten,
    integer,
)
from tilewright.targets.llvm.emit_types import memory_type
from tilewright.targets.llvm.processor import Processor
from tilewright.targets.llvm.shared_layout import SharedMemoryLayout
from tilewright.targets.llvm.statements import written

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProductGroups:
    """How a GPU waits for units beside the threads.

    commit: ends a group of them. wait: for all but so many groups.
    """

    commit: Callable[[LaunchThread], None]
    wait: Callable[[LaunchThread, int], None]


@dataclass(frozen=True, slots=True)
class Dialect:
    """How LLVM expresses the features of one kind of GPU.

    convention: of a kernel. axes: the intrinsic call that returns the number on an axis. barrier:
    lines that synchronize the threads of a block. shuffle: reads a 32-bit value from the thread
    whose number differs in one bit, among a mask of threads. local: the address space of a thread's
    memory. copies: asynchronous copies. constant: the address space of constant memory. symbol: the
    array there of a parameter, by its number; None: kernels are given its address. attributes: of a
    kernel, by its threads. intrinsics: how hardware calls are emitted, by name. fence: what a
    thread has written to shared memory is there for those that read it by another path. products:
    how units beside the threads are waited for. boxes: copies of boxes of tensors.
    """

    convention: str
    axes: Mapping[str, str]
    barrier: tuple[str, ...]
    shuffle: Callable[[Statements, LlvmValue, int, LlvmValue], LlvmValue]
    warp: int
    attributes: Callable[[tuple[int, int, int]], str]
    local: int = 0
    copies: AsyncCopies | None = None
    intrinsics: Mapping[str, Callable[[Any, Unit], None]] = field(default_factory=dict)
    constant: int = 4
    symbol: Callable[[int], str] | None = None
    fence: str = ""
    products: ProductGroups | None = None
    boxes: BoxCopies | None = None


class LaunchThread(LaunchMemory):
    """The function of one launch."""

    def __init__(
        self,
        launch: Launch,
        dialect: Dialect,
        machine: Processor,
        contract: bool,
        shared: SharedMemoryLayout,
        symbols: Mapping[Buffer, str],
    ) -> None:
        """symbols: the arrays in constant memory that the kernel takes no pointers to."""
        super().__init__(launch, machine, contract, dialect.local)
        self.symbols: Final = symbols
        self.dialect: Final = dialect
        self.written: Final = written(launch.body)
        self.accumulators: Final = accumulators_of(launch.body)
        here, self.out = self.out, self.entry
        for n, buffer in enumerate(launch.params):
            name = f"@{symbols[buffer]}" if buffer in symbols else f"%p{n}"
            self.pointers[buffer] = self.generic(name, self._space(buffer))
        for buffer, offset in shared.offsets.items():
            self.pointers[buffer] = self.generic(
                f"getelementptr (i8, ptr addrspace(3) @{shared.symbol}, i64 {offset})",
                3,
            )
        self._bind_axes()
        self.ring: BoxRing | None = None
        if count := shared.memory.ring:
            place = shared.memory.ring_place
            at = f"getelementptr (i8, ptr addrspace(3) @{shared.symbol}, i64 {place})"
            boxes = boxes_of(launch.body)
            how = self._has(self._boxes())
            blocks = prod(launch.cluster)
            self.ring = BoxRing(self, how, boxes, at, count, blocks)
        self.out = here
        if self.ring is not None:
            scope = "shared" if self.ring.blocks == 1 else "cluster"
            is_for_units = self.ring.blocks > 1
            self.ring.begin(self._is_first(), self._barrier(scope, is_for_units))

    def _space(self, buffer: Buffer) -> int:
        """The address space of a buffer of the caller."""
        return self.dialect.constant if buffer.scope == CONSTANT else 1

    def _boxes(self) -> BoxCopies | None:
        """How the machine copies boxes, if it does."""
        found = self.dialect.boxes
        return found if found and self.machine.has(found.feature) else None

    def _is_first(self) -> LlvmValue:
        """Whether the thread is the first one of its block."""
        return self.compare("icmp eq", self._number(), integer(0, "i32"))

    def _bind_axes(self) -> None:
        extents = (*self.launch.grid, *self.launch.threads)
        for (axis, var), extent in zip(AXIS.items(), extents, strict=True):
            if not isinstance(extent, int):
                raise UnsupportedError(
                    f"its grid depends on a size, {extent}, known only at run time",
                    where=f"launch {self.launch.name}",
                    hint="compile the model for each shape: give it fixed input shapes",
                )
            held = integer(0)
            if extent > 1:
                name = f"@llvm.{self.dialect.axes[axis]}"
                held = self.ins(f"call range(i32 0, {extent}) i32 {name}", "i32")
                held = self.convert("zext nneg", held, "i64")
            self.bind(var, held, (0, max(extent, 1) - 1))

    # -- statements

    def emit(self, s: Node) -> None:
        """One statement at the current place."""
        if isinstance(s, Barrier):
            self.changed(b for b in self.written if b.scope != "register")
            for line in self._barrier(s.scope, self.accumulators or self.ring):
                self.line(line)
        elif isinstance(s, Commit | Wait):
            self._in_flight(s)
        elif isinstance(s, For) and s.kind == ASYNC:
            copy_elements(self, s, self._has(self.dialect.copies))
        elif isinstance(s, For) and s.kind in BOX_KINDS:
            self._has(self.ring).copy(s)
        elif isinstance(s, CombineThreads):
            self._combine_threads(s)
        elif isinstance(s, AtomicUpdate):
            emit_atomic(self, s)
        else:
            super().emit(s)

    def _barrier(self, scope: str, is_for_units: object) -> tuple[str, ...]:
        """The lines of a barrier. is_for_units: whether it is one for those beside the threads."""
        lines = self.dialect.barrier
        if scope == "cluster":
            boxes = self._has(self._boxes())
            lines = (boxes.fence, *boxes.together) if is_for_units else boxes.together
        elif is_for_units:
            lines = (self.dialect.fence, *lines)
        return lines

    def peer(self, place: LlvmValue, rank: LlvmValue) -> LlvmValue:
        """The address of the same place in the memory of another block of the cluster."""
        boxes = self._has(self._boxes())
        of_block = f"addrspacecast {place.typed} to ptr addrspace(3)"
        mine = self.ins(of_block, "ptr addrspace(3)")
        there = self.ins(boxes.peer(mine, rank), boxes.space)
        return self.ins(f"addrspacecast {there.typed} to ptr", "ptr")

    def _in_flight(self, s: Commit | Wait) -> None:
        """End a group of copies or products, or wait for them."""
        if isinstance(s, Wait):
            self.changed(b for b in self.written if b.scope == "shared")
        if s.of == PRODUCTS:
            products = self._has(self.dialect.products)
            if isinstance(s, Wait):
                products.wait(self, s.pending)
            else:
                products.commit(self)
        elif s.of == BOXES:
            ring = self._has(self.ring)
            if isinstance(s, Wait):
                ring.wait(s.pending)
            else:
                ring.commit(self._is_first())
        else:
            copies = self._has(self.dialect.copies)
            self.line(copies.waits(s.pending) if isinstance(s, Wait) else copies.commit)

    def _has(self, found: T | None) -> T:
        """What the dialect has. Raises CompileError if it is nothing."""
        if found is None:
            raise CompileError(
                "it uses asynchronous copies, which this GPU lacks",
                code="TW-LAUNCH",
                where=f"launch {self.launch.name}",
                hint=f"remove the annotation {ASYNC!r}: the threads then copy it",
            )
        return found

    def _combine_threads(self, s: CombineThreads) -> None:
        """Combine in log2(width) rounds, each of which doubles the threads combined; earlier
        threads are left operands."""
        if s.width > self.dialect.warp:
            raise CompileError(
                f"it combines {s.width} threads, but a warp has {self.dialect.warp}",
                where=f"launch {self.launch.name}",
            )
        held = [self.value(Load(b, index)) for b, index in s.targets]
        mask, number = self._mask(), self._number()
        step = 1
        while step < s.width:
            other = [self._exchanged(v, step, mask) for v in held]
            bit = self.binary("and", number, integer(step, "i32"))
            is_later = self.compare("icmp ne", bit, integer(0, "i32"))
            pairs = list(zip(held, other, strict=True))
            lhs = [self.select(is_later, b, a) for a, b in pairs]
            rhs = [self.select(is_later, a, b) for a, b in pairs]
            held = self.combine(s.reducer, lhs, rhs)
            step *= 2
        for (buffer, index), v in zip(s.targets, held, strict=True):
            self.store(buffer, index, v)
        self.changed(s.buffers)

    def _number(self) -> LlvmValue:
        """The number of the thread in its block."""
        total, stride = integer(0), 1
        for axis, extent in zip("xyz", self.launch.threads, strict=True):
            part = self.binary(
                "mul", self.value(AXIS[f"threadIdx.{axis}"]), integer(stride)
            )
            total, stride = self.binary("add", total, part), stride * extent
        return self.convert("trunc", total, "i32")

    def number_around(self, threads: int) -> LlvmValue:
        """Which of the groups of so many threads in a row this one is in."""
        return self.binary("udiv", self._number(), integer(threads, "i32"))

    def _mask(self) -> LlvmValue:
        """The threads of this one's warp, a bit for each."""
        warp, count = self.dialect.warp, prod(self.launch.threads)
        every = integer(-1, f"i{warp}")
        last = integer((1 << count % warp) - 1, f"i{warp}")
        if count % warp == 0:
            return every
        if count < warp:
            return last
        is_last = self.compare(
            "icmp uge", self._number(), integer(count // warp * warp, "i32")
        )
        return self.select(is_last, last, every)

    def _exchanged(self, v: LlvmValue, step: int, mask: LlvmValue) -> LlvmValue:
        """The value of the thread whose number differs in one bit, exchanged in words of 32
        bits."""
        kept = v.type
        bits = {"float": 32, "double": 64}.get(kept) or int(kept[1:])
        raw = v if kept.startswith("i") else self.convert("bitcast", v, f"i{bits}")
        if bits < 64:
            word = self.convert("zext", raw, "i32")
            word = self.dialect.shuffle(self, word, step, mask)
            raw = self.convert("trunc", word, f"i{bits}")
        else:
            high = self.binary("lshr", raw, integer(32))
            words = [
                self.dialect.shuffle(self, self.convert("trunc", w, "i32"), step, mask)
                for w in (raw, high)
            ]
            low, high = (self.convert("zext", w, "i64") for w in words)
            raw = self.binary("or", low, self.binary("shl", high, integer(32)))
        return raw if kept.startswith("i") else self.convert("bitcast", raw, kept)

    def parallel(self, s: For) -> None:
        """A loop that no axis has: the thread runs it."""
        self.serial(s, integer(0), self.value(s.extent), s.trips is not None)

    def intrinsic(self, s: Unit) -> None:
        """Raises CompileError for an intrinsic that the machine lacks, or an inexact one in exact
        code."""
        assert s.intrinsic is not None
        of = s.intrinsic.intrinsic
        emit = self.dialect.intrinsics.get(s.intrinsic.call.name)
        missing = [f for f in of.features if not self.machine.has(f)]
        if emit is None:
            why = f"is an intrinsic of {of.target or 'no machine'}, not of this one"
            hint = "the interpreter runs every kernel"
        elif missing:
            why = f"needs {', '.join(missing)}, which this GPU does not have"
            hint = "compile for another architecture, or schedule without it"
        elif of.tolerance and not self.ops.flags:
            why, hint = f"rounds its own way: {of.rounding}", "compile without exact"
        else:
            emit(self, s)
            self.changed((s.operands[-1].buffer,))
            return
        raise CompileError(
            f"{of.name} {why}",
            code="TW-INTRINSIC",
            where=f"launch {self.launch.name}",
            hint=hint,
        )

    def own_function(self, e: Call, text: str) -> LlvmValue:
        """Raises CompileError: it is code of the host."""
        raise CompileError(
            f"{e.function} is a function of this process",
            code="TW-FUNCTION",
            where=f"launch {self.launch.name}",
            hint='build it with target="cpu"',
        )

    # -- text

    def finish(self, name: str, group: int) -> str:
        """The text of the function; group: of its attributes."""
        parameters = [
            self._parameter(n, b)
            for n, b in enumerate(self.launch.params)
            if b not in self.symbols
        ]
        parameters += self.ring.parameters if self.ring is not None else []
        parameters.append("ptr addrspace(1) noalias align 8 %status")
        head = f"define {self.dialect.convention} void @{name}"
        lines = [f"{head}({', '.join(parameters)}) #{group} {{", "entry:"]
        flatten(self.entry, lines)
        flatten(self.out, lines)
        attributes = self.dialect.attributes(self.launch.threads)
        if prod(self.launch.cluster) > 1:
            how = self._has(self._boxes())
            attributes += f" {how.cluster(self.launch.cluster)}"
        return "\n".join(
            [*lines, "  ret void", "}", f"attributes #{group} = {{ {attributes} }}", ""]
        )

    def _parameter(self, n: int, buffer: Buffer) -> str:
        """A read-only buffer may be loaded through the read-only cache; a buffer that threads
        exchange at a barrier, or update together, is not private."""
        said = f"align {ALIGNMENT}"
        if buffer not in self.written:
            said += " noalias readonly"
        elif not self._exchanges:
            said += " noalias"
        return f"ptr addrspace({self._space(buffer)}) {said} %p{n}"

    @property
    def _exchanges(self) -> bool:
        nodes: Any = postorder(self.launch.body)
        return any(
            isinstance(s, AtomicUpdate)
            or (isinstance(s, Barrier) and s.scope != "shared")
            for s in nodes
        )


def launches_text(
    program: LaunchProgram,
    dialect: Dialect,
    machine: Processor,
    contract: bool,
    static: int,
) -> str:
    """A program as LLVM assembly, before LLVM's passes; a kernel has its launch's name.

    static: as for `Shared.of`. Raises UnsupportedError for code without a native equivalent,
    CompileError for memory that a GPU lacks.
    """
    symbols: Mapping[Buffer, str] = {}
    if (symbol := dialect.symbol) is not None:
        found = constants_of(program)
        symbols = {b: symbol(program.params.index(b)) for b in found}
    parts = [_array(b, name, dialect.constant) for b, name in symbols.items()]
    remainders: set[str] = set()
    for number, launch in enumerate(program.launches):
        # What is defined outside a module has no dot in its name.
        shared = SharedMemoryLayout.of(launch, f"{launch.name}_shared", static)
        with placed(f"launch {launch.name}"):
            thread = LaunchThread(launch, dialect, machine, contract, shared, symbols)
            thread.emit(launch.body)
        parts.append(shared.text + thread.finish(launch.name, number + 1))
        remainders |= thread.ops.remainders
    common = [fmod_function(type) for type in sorted(remainders)]
    last = 'attributes #0 = { nounwind "no-builtins" }\n'
    return "\n".join([*common, *parts, last])


def _array(buffer: Buffer, symbol: str, space: int) -> str:
    """An array in constant memory, which is filled from outside."""
    of = f"[{buffer.size * buffer.dtype.itemsize} x i8] zeroinitializer"
    kind = f"addrspace({space}) externally_initialized global"
    return f"@{symbol} = {kind} {of}, align {ALIGNMENT}\n"


def unheld(computations: Sequence[Computation]) -> str:
    """A tensor of a group whose dtype no GPU supports; empty if there is none."""
    tensors = [o.tensor for c in computations for o in c.outputs]
    for b in (*tensors, *(b for c in computations for b in c.inputs)):
        if not _is_held(b.dtype):
            return f"{b.name} is {b.dtype}, which no GPU holds"
    return ""


@cache
def _is_held(dtype: DType) -> bool:
    try:
        memory_type(dtype)
    except UnsupportedError:
        return False
    return True
