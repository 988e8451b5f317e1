"""A scheduled Kernel as the text of an LLVM module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.expr.affine import Affine
from tilewright.expr.intervals import Interval
from tilewright.expr.nodes import MAX_SIZE, Buffer, Extent, Var
from tilewright.ir.node import Node, postorder
from tilewright.loops.analysis.contents import contents
from tilewright.loops.nodes import PREFETCH, Alloc, Block, For, Kernel, Stmt, Unit
from tilewright.runtime.abi import (
    CTX_PARALLEL,
    CTX_SIZES,
    CTX_STATUS,
    CTX_THREADS,
)
from tilewright.targets.cpu.emit_intrinsic import emit_intrinsic
from tilewright.targets.cpu.emit_stream import (
    FENCE,
    METADATA,
    STREAMING,
    on_boundaries,
    streamed,
    versions,
)
from tilewright.targets.cpu.emit_tiles import TileShape, tile_support, with_tiles
from tilewright.targets.cpu.frame_layout import FrameLayout, plan_memory
from tilewright.targets.cpu.machine import CpuMachine
from tilewright.targets.llvm.emit_fmod import fmod_function
from tilewright.targets.llvm.emit_repeated import (
    DEFINITIONS,
    KEPT,
    REPEATED,
    may_repeat,
)
from tilewright.targets.llvm.emit_stmt import Statements
from tilewright.targets.llvm.emit_text import LlvmValue, flatten, integer
from tilewright.targets.llvm.statements import written
from tilewright.targets.llvm.value_numbering import NumberingScope
from tilewright.targets.permitted import Permissions

# LLVM rewrites the addresses of a loop for its counter ("loop strength reduction"), which takes a
# quarter of the time for code. A body with fewer named values than this may gain from it.
LONG_BODY: Final = 40

# The attribute of a function that gains nothing from LLVM's choice of instructions.
ONLY_CALLS: Final = "only-calls"


@dataclass(slots=True)
class Module:
    """The functions of one kernel while they are written."""

    symbol: str
    machine: CpuMachine
    plan: FrameLayout
    contract: bool
    sizes: tuple[Var, ...] = ()
    functions: list[str] = field(default_factory=list)
    remainders: set[str] = field(default_factory=set)
    tiles: set[TileShape] = field(default_factory=set)
    own: dict[str, str] = field(default_factory=dict)
    regions: int = 0
    ahead: Mapping[str, int] = field(default_factory=dict)
    streams: frozenset[Buffer] = frozenset()
    has_streamed: bool = False
    permitted: Permissions | None = None
    contents: Mapping[Buffer, Interval] = field(default_factory=dict)
    texts: int = 0

    def text(self) -> str:
        """The whole module."""
        for type in sorted(self.remainders):
            self.functions.append(fmod_function(type))
        if self.tiles:
            self.functions.append(tile_support(self.tiles))
        self.functions += self.own.values()
        text = "\n".join([*self.functions, attributes(self.machine)])
        if REPEATED in text or KEPT in text:
            text += DEFINITIONS
        return text


def emit_module(
    kernel: Kernel,
    symbol: str,
    machine: CpuMachine,
    contract: bool = True,
    permitted: Permissions | None = None,
) -> str:
    """LLVM assembly of `void symbol(ptr ctx, ptr p0.., ptr workspace)`; see runtime/abi.py.

    contract: whether a product and a sum may be fused into one rounding. permitted: for sanitized
    code, where each buffer may be accessed.
    Raises UnsupportedError for an operation or dtype without native code, CompileError for a
    memory scope that a processor does not have.
    """
    module = Module(
        symbol,
        machine,
        plan_memory(kernel, permitted is not None),
        contract,
        kernel.sizes,
    )
    module.permitted = permitted
    if permitted is None:
        module.contents = contents(kernel)
    noted = ((loop, said.get(PREFETCH)) for loop, said in kernel.notes.items())
    module.ahead = {loop: n for loop, n in noted if isinstance(n, int)}
    large = streamed(kernel, machine)
    if large:
        module.streams = large
        _write_kernel(module, kernel, f"{symbol}.stream", "internal ")
        module.streams = frozenset()
    if not module.has_streamed:
        module.functions.clear()
        _write_kernel(module, kernel, symbol, "")
        return module.text()
    _write_kernel(module, kernel, f"{symbol}.plain", "internal ")
    results = [n for n, b in enumerate(kernel.params) if b in large]
    module.functions.append(versions(symbol, results, len(kernel.params)) + METADATA)
    return module.text()


def _write_kernel(module: Module, kernel: Kernel, name: str, linkage: str) -> None:
    f = EmittedFunction(module, kernel.params)
    f.pointers |= {b: LlvmValue(f"%p{n}", "ptr") for n, b in enumerate(kernel.params)}
    f.emit(kernel.body)
    module.functions.append(f.finish(name, linkage, _only_calls(kernel.body)))


def _only_calls(s: Stmt) -> bool:
    """Whether the threads' loops are all that a statement has."""
    match s:
        case Block():
            return all(map(_only_calls, s.stmts))
        case Alloc():
            return _only_calls(s.body)
        case For():
            return s.kind == "parallel" and s.trips != 1
    return False


def attributes(machine: CpuMachine) -> str:
    """The attribute groups every module ends with: #0 for functions, #1 for those that only call
    others."""
    width = min(machine.vector_bits, 512)
    common = (
        'nounwind "no-builtins" "frame-pointer"="none" '
        f'"prefer-vector-width"="{width}" "target-features"="{machine.feature_string}"'
    )
    return (
        f"attributes #0 = {{ {common} }}\n"
        f'attributes #1 = {{ {common} "{ONLY_CALLS}" }}\n'
    )


class EmittedFunction(Statements):
    """One function of a module: the kernel itself, or the body of a parallel region."""

    def __init__(
        self, module: Module, params: Sequence[Buffer], region: bool = False
    ) -> None:
        super().__init__(module.machine, module.contract)
        self.module = module
        self.ahead = module.ahead
        # What is stored past the caches, and whether some of it is.
        self.streams = module.streams
        self.has_streamed = False
        self.permitted = module.permitted
        self.contents = module.contents
        self.params = tuple(params)
        self.region = region
        self._repeats: dict[For, bool] = {}
        # Values known at function entry: the sizes, and numbers computed from them.
        self.start = NumberingScope()
        self.scopes.insert(0, self.start)
        self._bind_sizes(module.sizes)

    def _bind_sizes(self, sizes: Sequence[Var]) -> None:
        """Load the sizes of this call."""
        here, self.out = self.out, self.entry
        for n, size in enumerate(sizes):
            if n == 0:
                slot = self.ins(
                    f"getelementptr i8, ptr %ctx, i64 {8 * CTX_SIZES}", "ptr"
                )
                first = self.ins(f"load ptr, {slot.typed}, align 8", "ptr")
            at = self.ins(f"getelementptr i8, {first.typed}, i64 {8 * n}", "ptr")
            value = self.ins(f"load i64, {at.typed}, align 8", "i64")
            self.start.bound.add(size)
            self.start.values[size] = value
            self.learn({size: (0, MAX_SIZE - 1)})
        self.out = here

    def at_start(self, number: Extent) -> LlvmValue:
        """A number that depends only on sizes, computed at function entry."""
        if isinstance(number, int):
            return integer(number)
        inner, out = self.scopes, self.out
        self.scopes, self.out = [self.start], self.entry
        try:
            return self.value(number)
        finally:
            self.scopes, self.out = inner, out

    def step(self, counter: LlvmValue, following: str, length: int) -> None:
        """As for all loops. Behind `expect`, which is not an instruction, LLVM does not see the
        counter of a long body, and leaves the addresses to x86's addressing modes."""
        if length < LONG_BODY or self.machine.arch != "x86_64":
            return super().step(counter, following, length)
        type, hidden = counter.type, self.fresh("i")
        super().step(counter, hidden, length)
        expected = f"@llvm.expect.{type}({type} {hidden}, {type} 0)"
        return self.line(f"{following} = call {type} {expected}")

    def intrinsic(self, s: Unit) -> None:
        """The instructions of a Unit."""
        emit_intrinsic(self, s)

    def status(self) -> LlvmValue:
        """The address for the status of a failure, passed by the caller."""
        return self.ins(f"getelementptr i8, ptr %ctx, i64 {8 * CTX_STATUS}", "ptr")

    def storing(
        self, buffer: Buffer, form: Affine, lane: Var | None, lanes: int
    ) -> str:
        """How a store is aligned, and whether it passes the caches by: whole registers of such a
        buffer do."""
        register = self.machine.vector_bits // 8
        whole = lanes * buffer.dtype.itemsize % register == 0
        streams = buffer in self.streams and whole
        if not streams or not on_boundaries(form, lane, lanes):
            return super().storing(buffer, form, lane, lanes)
        self.has_streamed = True
        return f"align {register}{STREAMING}"

    def may_repeat(self, s: For) -> bool:
        """Whether LLVM writes out an unrolled loop; sanitized code names each access, and without
        vectors, RISC-V has no cost of copies of a number, with which LLVM keeps the loop."""
        found = self._repeats.get(s)
        if found is None:
            costs = self.machine.arch != "riscv64" or self.machine.has("v")
            found = self.permitted is None and costs
            found = found and may_repeat(s, self._runs, self.address)
            self._repeats[s] = found
        return found

    def repeat(self, branch: str, written_out: bool) -> None:
        """The branch that ends a loop's body, marked for LLVM."""
        self.line(branch + (REPEATED if written_out else KEPT))

    def may_be_values(self, buffer: Buffer) -> bool:
        """Whether an array may be values: it is small, and its accesses are not checked."""
        return buffer in self.module.plan.on_stack and self.permitted is None

    def place_buffer(self, buffer: Buffer) -> None:
        """Give an allocated buffer its address, once per function."""
        if buffer in self.pointers:
            return
        plan = self.module.plan
        if buffer not in plan.offsets:
            if self.vector is not None:
                copies = self.vector[1]
            else:
                copies = 1
            self.allocate(buffer, copies)
            return
        offset = self.at_start(plan.offsets[buffer])
        if buffer in plan.of_thread:
            private = self.at_start(plan.thread)
            begin = self.at_start(plan.offsets[buffer] + plan.shared)
        here, self.out = self.out, self.entry
        if buffer in plan.of_thread:
            # A parallel loop that runs once, or inside vectors, has no region: the caller runs it.
            if self.region:
                thread = LlvmValue("%thread", "i64")
            else:
                thread = integer(0)
            part = self.binary("mul", thread, private)
            offset = self.binary("add", part, begin)
        self.pointers[buffer] = self.ins(
            f"getelementptr i8, ptr %ws, {offset.typed}", "ptr"
        )
        self.out = here

    def report(self) -> LlvmValue:
        """The address for reports of sanitized code."""
        report = self.module.plan.report
        assert report is not None
        return self.ins(
            f"getelementptr i8, ptr %ws, {self.at_start(report).typed}", "ptr"
        )

    def constant_text(self, text: str) -> str:
        """The address of a text, which ends with 0."""
        data = "".join(f"\\{byte:02X}" for byte in (*text.encode(), 0))
        name = f"@{self.module.symbol}.text{self.module.texts}"
        self.module.texts += 1
        size = len(data) // 3
        self.module.functions.append(
            f'{name} = internal constant [{size} x i8] c"{data}"'
        )
        return name

    def finish(self, name: str, linkage: str, only_calls: bool) -> str:
        """The text of the kernel's own function."""
        arguments = [f"ptr noalias %p{n}" for n in range(len(self.params))]
        passed = ", ".join(["ptr %ctx", *arguments, "ptr noalias %ws"])
        # What configures and releases tiles is more than a call.
        group = 1 if only_calls and not self.module.tiles else 0
        return self._function(f"define {linkage}void @{name}({passed}) #{group} {{", [])

    def finish_region(self, name: str, held: Sequence[str]) -> str:
        """The text of a region's function; held: what it takes from the closure, typed."""
        lines: list[str] = []
        for n, value in enumerate(held):
            type, _, local = value.partition(" ")
            lines.append(f"  {local}.at = getelementptr i8, ptr %closure, i64 {8 * n}")
            lines.append(f"  {local} = load {type}, ptr {local}.at, align 8")
        head = f"define internal void @{name}(ptr %closure, {_PART}) #0 {{"
        return self._function(head, lines)

    def _function(self, head: str, first: Sequence[str]) -> str:
        self.module.remainders |= self.ops.remainders
        self.module.tiles |= self.tiles
        self.module.own |= self.own
        self.module.has_streamed |= self.has_streamed
        lines = [head, "entry:", *first]
        flatten(self.entry, lines)
        body: list[str] = []
        flatten(self.out, body)
        asks = not self.region and bool(self.module.tiles)
        lines += with_tiles(body, self.tiles, asks)
        lines += [FENCE] if self.has_streamed else []
        self.end()
        return "\n".join([*lines, "  ret void", "}", ""])

    # -- parallel regions

    def parallel(self, s: For) -> None:
        """A region function for the loop, and its call by all threads or by this one."""
        if self.region:
            self.serial(s, integer(0), self.value(s.extent), s.trips is not None)
            return
        changed = written(s)
        self.changed(changed)
        variables, buffers = self._captured(s)
        number = self.module.regions
        self.module.regions += 1
        name = f"{self.module.symbol}.par{number}"
        held = [LlvmValue("%ctx", "ptr")]
        held += [self.pointers[b] for b in self.params]
        held.append(LlvmValue("%ws", "ptr"))
        held += [self.pointers[b] for b in buffers]
        held += [self.value(v) for v in variables]
        _write_region(self.module, name, s, self, variables, buffers)
        closure = self._closure(held)
        self._call_region(name, closure, self.value(s.extent))
        self.changed(changed)

    def _captured(self, s: For) -> tuple[list[Var], list[Buffer]]:
        """Outer loop variables and stack buffers that the region uses."""
        nodes: list[Node] = list(postorder(s))
        inside = {n.buffer for n in nodes if isinstance(n, Alloc)}
        held = (n for n in nodes if isinstance(n, Var) and self.lookup(n) is not None)
        variables = [n for n in held if n not in self.start.bound]
        used = dict.fromkeys(b for n in nodes for b in _buffers(n))
        buffers = [b for b in used if b not in inside and b not in self.params]
        return variables, buffers

    def _closure(self, held: list[LlvmValue]) -> LlvmValue:
        here, self.out = self.out, self.entry
        closure = self.ins(f"alloca [{len(held)} x i64], align 64", "ptr")
        self.out = here
        for n, v in enumerate(held):
            slot = self.ins(f"getelementptr i8, {closure.typed}, i64 {8 * n}", "ptr")
            self.line(f"store {v.typed}, {slot.typed}, align 8")
        return closure

    def _call_region(self, name: str, closure: LlvmValue, extent: LlvmValue) -> None:
        slot = self.ins(f"getelementptr i8, ptr %ctx, i64 {8 * CTX_THREADS}", "ptr")
        threads = self.ins(f"load i64, {slot.typed}, align 8", "i64")
        many = self.compare("icmp sgt", threads, integer(1))
        fork = self.fresh("fork")
        alone = self.fresh("alone")
        join = self.fresh("join")
        self.line(f"br {many.typed}, label {fork}, label {alone}")
        self.label(fork)
        slot = self.ins(f"getelementptr i8, ptr %ctx, i64 {8 * CTX_PARALLEL}", "ptr")
        call = self.ins(f"load ptr, {slot.typed}, align 8", "ptr")
        arguments = f"ptr %ctx, ptr @{name}, {closure.typed}, {extent.typed}"
        self.line(f"call void {call.text}({arguments})")
        self.line(f"br label {join}")
        self.label(alone)
        self.line(f"call void @{name}({closure.typed}, i64 0, i64 0, {extent.typed})")
        self.line(f"br label {join}")
        self.label(join)
        if self.permitted is not None:
            self._leave_if_failed()

    def _leave_if_failed(self) -> None:
        """A region that reported a failure ends the kernel."""
        status = self.status()
        found = self.ins(f"load i64, {status.typed}, align 8", "i64")
        failed = self.compare("icmp ne", found, integer(0))
        leave = self.fresh("leave")
        stay = self.fresh("stay")
        self.line(f"br {failed.typed}, label {leave}, label {stay}")
        self.label(leave)
        self.line("ret void")
        self.label(stay)


def _buffers(node: Node) -> tuple[Buffer, ...]:
    found = getattr(node, "buffers", None) or (getattr(node, "buffer", None),)
    return tuple(b for b in found if isinstance(b, Buffer))


def _write_region(
    module: Module,
    name: str,
    s: For,
    outer: EmittedFunction,
    variables: list[Var],
    buffers: list[Buffer],
) -> None:
    """The function of a region, which the pool calls: the iterations from `begin` to before `end`,
    by thread `thread`."""
    f = EmittedFunction(module, outer.params, region=True)
    f.learn(outer.ranges)
    f.pointers |= {b: LlvmValue(f"%p{n}", "ptr") for n, b in enumerate(outer.params)}
    f.pointers |= {b: LlvmValue(f"%b{n}", "ptr") for n, b in enumerate(buffers)}
    for n, var in enumerate(variables):
        f.bind(var, LlvmValue(f"%x{n}", "i64"))
    begin = LlvmValue("%begin", "i64")
    end = LlvmValue("%end", "i64")
    f.when(f.compare("icmp slt", begin, end), lambda: f.serial(s, begin, end, True))
    held = ["ptr %ctx", *(f"ptr %p{n}" for n in range(len(outer.params))), "ptr %ws"]
    held += [f"ptr %b{n}" for n in range(len(buffers))]
    held += [f"i64 %x{n}" for n in range(len(variables))]
    module.functions.append(f.finish_region(name, held))


_PART: Final = "i64 %thread, i64 %begin, i64 %end"
