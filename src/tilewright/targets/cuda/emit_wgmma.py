"""Emits `wgmma`: products of four warps, whose factors descriptors of shared memory say.

Between a product and the wait for it nothing may touch the accumulators: the text of each has them
as operands that stay in their registers, and so has a wait for all. The layout of descriptors and
accumulators follows the PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from tilewright.base.errors import CompileError
from tilewright.expr.swizzle import PATTERN
from tilewright.loops.nodes import Operand, Unit
from tilewright.loops.operands import position
from tilewright.targets.cuda.emit_tiles import WORD, held_elements, load_word
from tilewright.targets.cuda.group_intrinsics import (
    GROUP_ROWS,
    STEP,
    STEPS,
    TURNING,
    FactorLayout,
    factor_layout,
    group_depth,
)
from tilewright.targets.llvm.emit_launch import LaunchThread, ProductGroups
from tilewright.targets.llvm.emit_swizzle import offset_in
from tilewright.targets.llvm.emit_text import LlvmValue, integer

_SHARED: Final = "ptr addrspace(3)"
_LINE: Final = "\\0A"  # in a string of LLVM
_PER: Final = 16  # bytes that a unit of a descriptor's fields stands for
_FIELD: Final = 0x3FFF
_NAMES: Final = {
    "float16": "f16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
}
# Of a descriptor: between groups of rows one pattern, in bits 32 to 45; a swizzle of 128 bytes, in
# bits 62 and 63. What is between blocks is in bits 16 to 29, and 1 where there is one block.
_CONSTANT: Final = PATTERN // _PER << 32 | 1 << 62
_LEADING: Final = 16
_COMMIT: Final = "wgmma.commit_group.sync.aligned;"


def _product(name: str, x: LaunchThread, s: Unit) -> None:
    a, b, out = s.operands
    assert s.intrinsic is not None
    columns = s.intrinsic.intrinsic.tensors[-1].shape[1]
    part = held_elements(x, out, (GROUP_ROWS, columns))
    (across_a, along_a), (*block, along_b, across_b) = a.strides, b.strides
    left = _layout(x, a, GROUP_ROWS, (across_a, along_a))
    right = _layout(x, b, columns, (across_b, along_b), *block)
    steps = range(STEPS)
    itemsize = a.buffer.dtype.itemsize
    starts = [(_descriptor(x, o, how), how) for o, how in ((a, left), (b, right))]
    given = [
        x.binary("add", start, integer(n * how.step // _PER))
        for n in steps
        for start, how in starts
    ]
    count = len(part)
    held = ", ".join(f"${n}" for n in range(count))
    modes = [1, 1, 1]  # add, and change no sign
    if itemsize == TURNING:
        modes += [int(left.is_turned), int(right.is_turned)]
    shape = f"m{GROUP_ROWS}n{columns}k{STEP // itemsize}"
    op = f"wgmma.mma_async.sync.aligned.{shape}.f32.{name}.{name}"
    lines = ["wgmma.fence.sync.aligned;"]
    for n in steps:
        factors = f"${count + 2 * n}, ${count + 2 * n + 1}"
        lines.append(f"{op} {{{held}}}, {factors}, {', '.join(map(str, modes))};")
    _adding(x, lines, given, part)


def _adding(
    x: LaunchThread,
    lines: Sequence[str],
    given: Sequence[LlvmValue],
    part: Sequence[LlvmValue],
) -> None:
    """Instructions that change a thread's accumulators. given: their other operands, from the
    number behind the last accumulator on."""
    count = len(part)
    told = [*["=f"] * count, *["l"] * len(given), *map(str, range(count)), "~{memory}"]
    made = f"{{ {', '.join(['float'] * count)} }}"
    text = f'asm sideeffect "{_LINE.join(lines)}", "{",".join(told)}"'
    values = [*given, *(load_word(x, "float", p) for p in part)]
    arguments = ", ".join(v.typed for v in values)
    found = x.ins(f"call {made} {text}({arguments}) convergent", made)
    for n, p in enumerate(part):
        value = x.ins(f"extractvalue {found.typed}, {n}", "float")
        x.line(f"store {value.typed}, {p.typed}, align {WORD}")


def _commit(x: LaunchThread) -> None:
    x.line(f'call void asm sideeffect "{_COMMIT}", "~{{memory}}"() convergent')


def _wait(x: LaunchThread, pending: int) -> None:
    """Wait for products. None reads accumulators before a wait for all."""
    line = f"wgmma.wait_group.sync.aligned {pending};"
    if pending:
        x.line(f'call void asm sideeffect "{line}", "~{{memory}}"() convergent')
        return
    _adding(x, [line], [], [p for b in x.accumulators for p in x.own_elements(b)])


GROUPS: Final = ProductGroups(_commit, _wait)


def _layout(
    x: LaunchThread, o: Operand, side: int, strides: tuple[int, int], block: int = 0
) -> FactorLayout:
    """Raises CompileError for a factor that the instruction cannot read."""
    dtype = o.buffer.dtype
    found = factor_layout(side, strides, o.buffer.swizzle, block, dtype.itemsize)
    if found is None:
        raise CompileError(
            f"{o.buffer.name} is not swizzled in rows of 128 bytes that the instruction reads",
            code="TW-INTRINSIC",
            where=f"launch {x.launch.name}",
            hint=f"give its tile rows of {group_depth(dtype)} elements, and swizzle it",
        )
    return found


def _descriptor(x: LaunchThread, o: Operand, how: FactorLayout) -> LlvmValue:
    """The descriptor of an operand's first part."""
    form = position(o.buffer, o.index)
    size = o.buffer.dtype.itemsize
    offset = offset_in(x, o.buffer, form.terms, form.const * size)
    base = x.pointers[o.buffer]
    start = x.ins(f"addrspacecast {base.typed} to {_SHARED}", _SHARED)
    address = x.ins(f"ptrtoint {start.typed} to i32", "i32")
    field = x.binary("lshr", x.binary("add", address, offset), integer(4, "i32"))
    field = x.binary("and", field, integer(_FIELD, "i32"))
    fixed = _CONSTANT | max(how.leading // _PER, 1) << _LEADING
    return x.binary("or", x.convert("zext", field, "i64"), integer(fixed))


CALLS: Final[Mapping[str, Callable[[LaunchThread, Unit], None]]] = {
    f"wgmma.{of}": partial(_product, name) for of, name in _NAMES.items()
}
