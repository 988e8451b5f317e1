"""Non-temporal stores of results, requested by a note, in whole registers.

An ordinary store first reads its cache line, and evicts other lines; a non-temporal one does
neither. It must be aligned to its size, which a caller's array may not be: a kernel with such
results has a version for each of the two cases.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.errors import CompileError
from tilewright.expr.affine import Affine
from tilewright.expr.nodes import Buffer, Load, Var
from tilewright.ir.node import postorder
from tilewright.loops.nodes import STREAM, Kernel, Update
from tilewright.targets.cpu.machine import CpuMachine

BOUNDARY = 64  # bytes: of the widest register

# What a non-temporal store has after it, what the module then defines, and what ends a function:
# such stores are ordered with others by a fence only.
STREAMING = ", !nontemporal !0"
METADATA = "!0 = !{i32 1}\n"
FENCE = "  call void @llvm.x86.sse.sfence()"


def streamed(kernel: Kernel, machine: CpuMachine) -> frozenset[Buffer]:
    """The results of a kernel that its notes mark for non-temporal stores, if their alignment
    allows it.

    Raises CompileError for a note on a buffer that is not a result or is also read, and on a
    processor without such stores.
    """
    noted = [str(said[STREAM]) for said in kernel.notes.values() if STREAM in said]
    names = {name for text in noted for name in text.split(",")}
    if not names:
        return frozenset()
    read = {n.buffer for n in postorder(kernel.body) if isinstance(n, Load)}
    read |= {
        b for n in postorder(kernel.body) if isinstance(n, Update) for b in n.buffers
    }
    results = {b.name: b for b in kernel.outputs if b not in read}
    if wrong := sorted(names - set(results)):
        raise CompileError(
            f"{', '.join(wrong)} cannot be stored past the caches: it is not a result, or is read",
            where=f"kernel {kernel.name}",
            hint=f"note {STREAM!r} of results only that the kernel does not read",
        )
    if not machine.has("avx"):
        raise CompileError(
            f"no stores past the caches on {machine.arch} without AVX",
            where=f"kernel {kernel.name}",
            hint=f"leave out the note {STREAM!r}",
        )
    return frozenset(results[name] for name in names)


def on_boundaries(form: Affine, lane: Var | None, elements: int) -> bool:
    """Whether the first lane is at a multiple of this many elements, for all values of the
    atoms."""
    rest = [c for atom, c in form.terms if atom is not lane]
    return all(c % elements == 0 for c in (*rest, form.const))


def versions(symbol: str, results: Sequence[int], params: int) -> str:
    """The function that runs `<symbol>.stream` where the results, numbered among the parameters,
    begin at boundaries, else `<symbol>.plain`."""
    names = ["%ctx", *(f"%p{n}" for n in range(params)), "%ws"]
    arguments = ", ".join(f"ptr {name}" for name in names)
    lines = [
        f"define void @{symbol}({arguments}) #0 {{",
        "entry:",
        "  %all0 = add i64 0, 0",
    ]
    for n, result in enumerate(results):
        lines.append(f"  %at{n} = ptrtoint ptr %p{result} to i64")
        lines.append(f"  %all{n + 1} = or i64 %all{n}, %at{n}")
    lines += [
        f"  %off = and i64 %all{len(results)}, {BOUNDARY - 1}",
        "  %good = icmp eq i64 %off, 0",
        "  br i1 %good, label %stream, label %plain",
    ]
    for kind in ("stream", "plain"):
        lines += [
            f"{kind}:",
            f"  call void @{symbol}.{kind}({arguments})",
            "  ret void",
        ]
    return "\n".join([*lines, "}", ""])
