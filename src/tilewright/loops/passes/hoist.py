"""Moving work on constants from run time to compile time.

A schedule packs weights by a nest at the root of its Kernel that reads a parameter and fills a
local buffer. Where that parameter is a constant of the model, the nest becomes its own Kernel,
run once by the compiler, and the packed buffer becomes a parameter.
"""

from __future__ import annotations

from collections.abc import Collection

from tilewright.base.dataclass import dataclass
from tilewright.expr.nodes import Buffer
from tilewright.ir.node import postorder
from tilewright.loops.analysis.effects import reads, writes
from tilewright.loops.nodes import Alloc, Block, For, Kernel, Notes, Stmt, block


@dataclass(frozen=True, eq=False, slots=True)
class HoistedKernel:
    """The Kernel without its constant work, and the Kernels that do that work, in order."""

    kernel: Kernel
    prepare: tuple[Kernel, ...]


def hoist(kernel: Kernel, constants: Collection[Buffer]) -> HoistedKernel:
    """Split off root-level nests that depend on `constants` only.

    Let the kernel be a sequence s1 .. sn of root statements, and b a buffer that it allocates. The
    statements that write b may run once, before all others, if

        each writes only b, and reads only b, constants, and buffers already split off
        no other statement before the last of them reads b
    """
    allocs, stmts = _peel(kernel.body)
    known = set(constants)
    prepare: list[Kernel] = []
    for buffer in allocs:
        nests = [s for s in stmts if buffer in writes(s)]
        if not nests or not all(_only(s, buffer, known) for s in nests):
            continue
        before = stmts[: stmts.index(nests[-1])]
        if any(buffer in reads(s) for s in before if s not in nests):
            continue
        stmts = [s for s in stmts if s not in nests]
        body = block(*nests)
        inputs = sorted(reads(body) - {buffer}, key=lambda b: b.name)
        constant_work = Kernel(
            name=f"{kernel.name}.prepare{len(prepare)}",
            params=(*inputs, buffer),
            outputs=(buffer,),
            body=body,
            notes=_notes(kernel, body),
        )
        prepare.append(constant_work)
        known.add(buffer)
    made = [k.outputs[0] for k in prepare]
    rest = block(*stmts)
    for buffer in reversed([a for a in allocs if a not in made]):
        rest = Alloc(buffer, rest)
    used = reads(rest) | writes(rest)
    remaining = [b for b in (*kernel.inputs, *made) if b in used]
    slim = Kernel(
        name=kernel.name,
        params=(*remaining, *kernel.outputs),
        outputs=kernel.outputs,
        body=rest,
        notes=_notes(kernel, rest),
    )
    return HoistedKernel(slim, tuple(prepare))


def _notes(kernel: Kernel, body: Stmt) -> Notes:
    """What the kernel notes at the loops of a part of it."""
    loops = {s.var.name for s in postorder(body) if isinstance(s, For)}
    return {name: said for name, said in kernel.notes.items() if name in loops}


def _peel(body: Stmt) -> tuple[list[Buffer], list[Stmt]]:
    """The allocations around and between the root statements, and those statements."""
    allocs: list[Buffer] = []
    stmts: list[Stmt] = []
    stack = [body]
    while stack:
        s = stack.pop()
        if isinstance(s, Alloc):
            allocs.append(s.buffer)
            stack.append(s.body)
        elif isinstance(s, Block):
            stack.extend(reversed(s.stmts))
        else:
            stmts.append(s)
    return allocs, stmts


def _only(stmt: Stmt, buffer: Buffer, known: set[Buffer]) -> bool:
    return writes(stmt) == {buffer} and reads(stmt) - {buffer} <= known
