"""Printing kernels and programs of launches: one line per statement, two spaces per level."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod
from typing import Any

from tilewright.expr.nodes import Buffer, Expr
from tilewright.expr.printer import show as show_expr
from tilewright.ir.node import postorder
from tilewright.loops.launch import (
    AtomicUpdate,
    Barrier,
    CombineThreads,
    Commit,
    Launch,
    LaunchProgram,
    Wait,
)
from tilewright.loops.nodes import (
    Alloc,
    Block,
    For,
    If,
    Kernel,
    Notes,
    Stmt,
    Store,
    Unit,
    Update,
    While,
)


def show(stmt: Stmt) -> str:
    """The statement over as many lines as it has parts."""
    return "\n".join(_lines(stmt, 0, {}))


def show_kernel(kernel: Kernel) -> str:
    """`kernel name(inputs) -> outputs:` and the body below it."""
    head = f"kernel {kernel.name}({_buffers(kernel.inputs)})"
    return "\n".join(
        [
            f"{head} -> {_buffers(kernel.outputs)}:",
            *_lines(kernel.body, 1, kernel.notes),
        ]
    )


def show_program(program: LaunchProgram) -> str:
    """`program name(inputs) -> outputs:`, its workspace, and its launches in order."""
    ins = (b for b in program.params if b not in program.outputs)
    head = f"program {program.name}({_buffers(ins)}) -> {_buffers(program.outputs)}:"
    lines = [head, *(f"  size {v.name}" for v in program.sizes)]
    lines += [f"  workspace {show_buffer(b)}" for b in program.workspace]
    for launch in program.launches:
        lines += ["  " + line for line in show_launch(launch).split("\n")]
    return "\n".join(lines)


def show_launch(launch: Launch) -> str:
    """`launch name(params) grid [x, y, z] threads [x, y, z]:`, its shared buffers, and its body; in
    front of the colon `cluster [x, y, z]` if it has several blocks."""
    params = ", ".join(b.name for b in launch.params)
    grid = ", ".join(map(str, launch.grid))
    threads = ", ".join(map(str, launch.threads))
    cluster = ", ".join(map(str, launch.cluster))
    said = f" cluster [{cluster}]" if prod(launch.cluster) > 1 else ""
    return "\n".join(
        [
            f"launch {launch.name}({params}) grid [{grid}] threads [{threads}]{said}:",
            *(f"  shared {show_buffer(b)}{_at(launch, b)}" for b in launch.shared),
            *_lines(launch.body, 1, {}),
        ]
    )


def _at(launch: Launch, buffer: Buffer) -> str:
    """Where a shared buffer begins, if some share room."""
    return f" at {launch.places[buffer]}" if launch.places else ""


def _buffers(buffers: Iterable[Buffer]) -> str:
    return ", ".join(map(show_buffer, buffers))


def show_units(kernel: Kernel) -> str:
    """A description of each Unit: its line, its intrinsic with operands' strides, and its body."""
    lines = []
    for unit in postorder(kernel.body):
        if isinstance(unit, Unit) and unit.intrinsic is not None:
            use = unit.intrinsic
            strides = [o.strides for o in unit.operands]
            head = f"{show(unit)} = {use.intrinsic.name} {use.part} {use.sizes} strides {strides}:"
            lines += [head, *("  " + line for line in show(unit.body).split("\n"))]
    return "\n".join(lines)


def show_buffer(buffer: Buffer) -> str:
    """`name: dtype[shape]`, and the scope where it is not the caller's memory."""
    where = "" if buffer.scope == "global" else f" in {buffer.scope}"
    where += f" swizzled {buffer.swizzle}" if buffer.swizzle else ""
    return (
        f"{buffer.name}: {buffer.dtype}[{', '.join(map(str, buffer.extents))}]{where}"
    )


def show_place(buffer: Buffer, index: tuple[Expr, ...]) -> str:
    """`buffer[i, j]`."""
    return f"{buffer.name}[{', '.join(map(show_expr, index))}]"


def _lines(stmt: Stmt, depth: int, notes: Notes) -> Iterator[str]:
    if isinstance(stmt, For):
        parts = _for(stmt, notes)
    else:
        parts = _PRINT[type(stmt)](stmt)
    for text, level in parts:
        if isinstance(text, str):
            yield "  " * (depth + level) + text
        else:
            yield from _lines(text, depth + level, notes)


Part = tuple[str | Stmt, int]


def _for(s: For, notes: Notes) -> Iterator[Part]:
    kind = "" if s.kind == "serial" else f" {s.kind}"
    said = ", ".join(
        f"{key}: {value!r}" for key, value in notes.get(s.var.name, {}).items()
    )
    note = f" {{{said}}}" if said else ""
    yield f"for {s.var.name} in {show_expr(s.extent)}{kind}{note}:", 0
    yield s.body, 1


def _block(s: Block) -> Iterator[Part]:
    if not s.stmts:
        yield "pass", 0
    for inner in s.stmts:
        yield inner, 0


def _store(s: Store) -> Iterator[Part]:
    yield f"{show_place(s.buffer, s.index)} = {show_expr(s.value)}", 0


def _update(s: Update) -> Iterator[Part]:
    places = ", ".join(show_place(b, i) for b, i in s.targets)
    yield f"{places} {s.reducer.name}= {', '.join(map(show_expr, s.values))}", 0


def _atomic(s: AtomicUpdate) -> Iterator[Part]:
    for text, level in _update(s):
        yield f"atomic {text}", level


def _if(s: If) -> Iterator[Part]:
    yield f"if {show_expr(s.condition)}:", 0
    yield s.then, 1
    if s.otherwise is not None:
        yield "else:", 0
        yield s.otherwise, 1


def _while(s: While) -> Iterator[Part]:
    yield f"while {show_expr(s.condition)}:", 0
    yield s.body, 1


def _alloc(s: Alloc) -> Iterator[Part]:
    yield f"alloc {show_buffer(s.buffer)}:", 0
    yield s.body, 1


def _unit(s: Unit) -> Iterator[Part]:
    if s.intrinsic is None:
        yield f"block {s.name}:", 0
        yield s.body, 1
    else:
        operands = [s.operand(n) for n in s.intrinsic.call.tensors]
        yield (
            f"{s.name}({', '.join(show_place(o.buffer, o.index) for o in operands)})",
            0,
        )


def _barrier(s: Barrier) -> Iterator[Part]:
    yield f"barrier {s.scope}", 0


def _wait(s: Wait) -> Iterator[Part]:
    pending = f" {s.pending}" if s.pending else ""
    yield f"wait{_of(s)}{pending}", 0


def _commit(s: Commit) -> Iterator[Part]:
    yield f"commit{_of(s)}", 0


def _of(s: Wait | Commit) -> str:
    return "" if s.of == "copies" else f" {s.of}"


def _combine(s: CombineThreads) -> Iterator[Part]:
    places = ", ".join(show_place(b, i) for b, i in s.targets)
    yield f"combine {places} by {s.reducer.name} over {s.width}", 0


_PRINT: Mapping[type[Stmt], Callable[[Any], Iterator[Part]]] = {
    Block: _block,
    Store: _store,
    Update: _update,
    AtomicUpdate: _atomic,
    If: _if,
    While: _while,
    Alloc: _alloc,
    Unit: _unit,
    Barrier: _barrier,
    Wait: _wait,
    Commit: _commit,
    CombineThreads: _combine,
}
