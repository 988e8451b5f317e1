"""Kernel to object code: LLVM with three cheap passes, because the schedule did the rest."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import CompileError, TilewrightError, UnsupportedError
from tilewright.expr.nodes import Extent
from tilewright.ir.node import Node, postorder
from tilewright.loops.nodes import Kernel
from tilewright.loops.passes.keep_sums import keep_sums
from tilewright.loops.passes.ordered_pairs import ordered_pairs
from tilewright.loops.passes.promote import promote
from tilewright.loops.passes.unroll_scatters import unroll_scatters
from tilewright.loops.passes.write_out import write_out
from tilewright.runtime.abi import OF_PROCESS
from tilewright.runtime.elf import SHN_UNDEF, parse
from tilewright.schedule.align_rows import align_rows
from tilewright.schedule.steady import steady
from tilewright.targets.cpu.copies_across import copies_across
from tilewright.targets.cpu.cost import cost_model
from tilewright.targets.cpu.dead_fills import dead_fills
from tilewright.targets.cpu.emit import ONLY_CALLS, emit_module
from tilewright.targets.cpu.frame_layout import plan_memory
from tilewright.targets.cpu.lone_lanes import STORE, without_lone_lanes
from tilewright.targets.cpu.machine import CpuMachine
from tilewright.targets.cpu.roll_functions import roll_functions
from tilewright.targets.cpu.row_vectors import row_vectors
from tilewright.targets.llvm import backend
from tilewright.targets.llvm.emit_repeated import REPEATED
from tilewright.targets.permitted import Permissions

# Expressions are walked by recursion; a long chain of operations is a deep one.
_DEPTH = 50_000
SHALLOW = 300  # nodes below one another: any stack holds their walk
STACK = 256 << 20  # bytes; what is not touched takes no memory
LEVEL = 2  # of LLVM's choice of instructions and registers, 0 to 3


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """One compiled kernel. A call with n threads needs workspace_bytes + n * workspace_per_thread
    bytes of workspace."""

    symbol: str
    object_bytes: bytes
    workspace_bytes: Extent
    workspace_per_thread: Extent


def compile_kernel(
    kernel: Kernel,
    machine: CpuMachine,
    symbol: str | None = None,
    *,
    contract: bool = True,
    permitted: Permissions | None = None,
    level: int = LEVEL,
) -> CompiledKernel:
    """Object code of a scheduled kernel, position independent, with no external symbols.

    symbol: the entry point's name (default: the kernel's own). contract, permitted: as in
    `llvm_ir`. level: LLVM's optimization level, 0 to 3. Raises UnsupportedError for a kernel
    without native code, CompileError if LLVM rejects it.
    """
    name = symbol or kernel.name
    with events.span("emit", name=name):
        kernel = finished(kernel, machine, permitted is not None)
        text = written(kernel, machine, name, contract, permitted)
    with events.span("llvm", name=name, characters=len(text)):
        code = compile_text(text, machine, name, level=level)
    plan = plan_memory(kernel, permitted is not None)
    return CompiledKernel(
        symbol=name,
        object_bytes=code,
        workspace_bytes=plan.shared,
        workspace_per_thread=plan.thread,
    )


def kernel_text(
    kernel: Kernel,
    machine: CpuMachine,
    symbol: str,
    contract: bool,
    permitted: Permissions | None = None,
) -> CompiledKernel:
    """As `compile_kernel`, but returns LLVM assembly instead of object code, for output files.

    Raises UnsupportedError for code that calls functions of this process.
    """
    kernel = finished(kernel, machine, permitted is not None)
    text = written(kernel, machine, symbol, contract, permitted)
    check_for_files(text, symbol)
    plan = plan_memory(kernel, permitted is not None)
    return CompiledKernel(symbol, text.encode(), plan.shared, plan.thread)


def check_for_files(text: str, where: str) -> None:
    """Raise UnsupportedError for code that calls functions of this process."""
    if OF_PROCESS in text:
        raise UnsupportedError(
            "the code calls functions of this process",
            where=where,
            hint="a file can hold their code as LLVM's text: hardware_intrinsic(..., llvm=text)",
        )


def llvm_ir(
    kernel: Kernel,
    machine: CpuMachine,
    symbol: str | None = None,
    *,
    contract: bool = True,
    permitted: Permissions | None = None,
) -> str:
    """The kernel as LLVM assembly, before LLVM's passes.

    contract: allow fused multiply-add. permitted: sanitize it: where each buffer may be accessed.
    """
    name = symbol or kernel.name
    kernel = finished(kernel, machine, permitted is not None)
    return written(kernel, machine, name, contract, permitted)


def finished(kernel: Kernel, machine: CpuMachine, sanitized: bool = False) -> Kernel:
    """A scheduled kernel after the rewrites that precede code generation and that no schedule
    requests.

    sanitized: every access of the program is kept, in loops with their original names.
    """
    most = machine.registers * machine.vector_bits // 8
    if sanitized:
        return align_rows(steady(keep_sums(kernel, most)))
    kernel = row_vectors(dead_fills(kernel), machine)
    kernel = write_out(keep_sums(ordered_pairs(kernel), most))
    kernel = align_rows(steady(copies_across(kernel, machine.transpose)))
    kernel = promote(unroll_scatters(kernel), cost_model(machine).spilled * most)
    return roll_functions(kernel)


def written(
    kernel: Kernel,
    machine: CpuMachine,
    symbol: str,
    contract: bool = True,
    permitted: Permissions | None = None,
) -> str:
    """A finished kernel as LLVM assembly; arguments as of `llvm_ir`."""
    try:
        emit = partial(emit_module, kernel, symbol, machine, contract, permitted)
        with _deep_recursion():
            return emit() if _depth(kernel.body) <= SHALLOW else _on_large_stack(emit)
    except TilewrightError as e:
        raise e.at(f"kernel {kernel.name}") from e.__cause__


def assembly(
    kernel: Kernel,
    machine: CpuMachine,
    symbol: str | None = None,
    *,
    contract: bool = True,
    commented: bool = False,
) -> str:
    """The kernel as assembler text of the machine; contract: as in `llvm_ir`.

    commented: LLVM's comments name the loop that each block is in: see `targets.llvm.listing`.
    """
    text = llvm_ir(kernel, machine, symbol, contract=contract)
    target = target_machine(machine)
    module = optimized(text, machine, symbol or kernel.name)
    with backend.commented(target, commented):
        return str(target.emit_assembly(module))


def compile_text(
    text: str,
    machine: CpuMachine,
    where: str,
    allowed: frozenset[str] = frozenset(),
    level: int = LEVEL,
) -> bytes:
    """LLVM assembly -> object file that needs no symbols but the `allowed` ones.

    Raises CompileError naming `where`.
    """
    code = object_code(text, machine, where, level)
    missing = [name for name in undefined_symbols(code) if name not in allowed]
    if missing:
        raise CompileError(
            f"the generated code needs functions it may not call: {', '.join(missing)}",
            code="TW-SYMBOL",
            where=where,
            hint="the code generator must expand these operations itself",
        )
    return code


def object_code(text: str, machine: CpuMachine, where: str, level: int) -> bytes:
    """The object file that LLVM makes of assembly; errors as of `compile_text`."""
    module = optimized(text, machine, where)
    return bytes(target_machine(machine, level).emit_object(module))


def target_machine(machine: CpuMachine, level: int = LEVEL) -> Any:
    """LLVM's target machine, made once for each level.

    Raises CompileError if this LLVM lacks the target.
    """
    return backend.target_machine(machine.triple, "", machine.feature_string, level)


def optimized(text: str, machine: CpuMachine, where: str, level: int = LEVEL) -> Any:
    """LLVM assembly as a module of the machine, after the passes; errors as of `compile_text`."""
    passes = ("loop_unroll", *backend.CHEAP) if REPEATED in text else backend.CHEAP
    module = backend.optimized(text, target_machine(machine, level), where, passes)
    if machine.has("avx512f") and STORE in text:
        before = str(module)
        after = without_lone_lanes(before, machine.vector_bits)
        module = module if after == before else backend.parsed(after)
    backend.translate_only(module, ONLY_CALLS)
    return module


@contextmanager
def _deep_recursion() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _DEPTH))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def _depth(root: Node) -> int:
    """The most nodes below one another."""
    found: dict[Node, int] = {}
    for node in postorder(root):
        found[node] = 1 + max([found[c] for c in node.children()], default=0)
    return found[root]


def _on_large_stack(emit: Callable[[], str]) -> str:
    """`emit()` in a thread whose stack holds a deep walk.

    Calls of Python take none of it, unless something looks at each of them, as torch.compile and
    some debuggers do for the rest of the process.
    """
    before = threading.stack_size(STACK)
    try:
        with ThreadPoolExecutor(1) as pool:
            made = pool.submit(copy_context().run, emit)
    finally:
        threading.stack_size(before)
    return made.result()


def undefined_symbols(code: bytes) -> list[str]:
    """Names an object refers to without defining them."""
    symbols = parse(code).symbols
    return [s.name for s in symbols if s.section == SHN_UNDEF and s.name]
