"""Transposed tiles: whole rows into registers, shuffles there, whole columns out.

A tile is cut into squares whose side is a power of two and whose rows fill a register at most. A
square of n rows is transposed in log2(n) rounds of n shuffles. The first rounds stay within
groups of 16 bytes, the reach of x86's cheap shuffles; the others move whole groups. Squares whose
rows are at most one group are processed side by side, as many as fit a register.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilewright.base.errors import CompileError
from tilewright.expr.affine import Affine
from tilewright.loops.nodes import Operand, Unit
from tilewright.targets.llvm.emit_expr import Expressions
from tilewright.targets.llvm.emit_places import address
from tilewright.targets.llvm.emit_text import LlvmValue

GROUP = 16  # bytes
SIDE = 16  # rows of a square at most: as many as there are registers
LARGEST = 4096  # elements of a tile, which is written out as a whole

Squares = tuple[
    int, int, int, int
]  # side by side: the first row and column, side and number


def emit_transpose(x: Expressions, s: Unit) -> None:
    """`out[i, j] = a[j, i]`, of elements or of words of several.

    Raises CompileError for a tile that is not a small piece of code.
    """
    assert s.intrinsic is not None
    a, out = s.operands
    columns, rows, *inside = s.intrinsic.sizes
    word = math.prod(inside)
    if rows * columns > LARGEST:
        raise CompileError(
            f"a tile of {rows} x {columns} is written out as a whole: {LARGEST} elements at most",
            code="TW-INTRINSIC",
            where=f"{s!r}",
            hint="tile the loops",
        )
    near = a.buffer.dtype.itemsize
    size = word * near
    lanes = x.machine.vector_bits // 8 // size
    start, to = (x.access(o.buffer, o.index).pointer for o in (a, out))
    form = address(out.buffer, out.index)
    group = max(1, GROUP // size)
    for row, column, side, count in _squares(rows, columns, lanes, group):
        lines = [
            _load(
                x, _row(x, start, a, row + n, column * word), size, side * count, near
            )
            for n in range(side)
        ]
        for n, v in enumerate(_columns(x, lines, group)):
            place = _row(x, to, out, column + n, row * word)
            at = form + Affine((), (column + n) * out.strides[0] + row * word)
            how = x.storing(out.buffer, at, None, side * word)
            x.line(f"store {v.typed}, {place.typed}, {how}")


def _squares(
    rows: int, columns: int, lanes: int, group: int, row: int = 0, column: int = 0
) -> Iterator[Squares]:
    """A rectangle as squares: the largest that fit, then the strips that are left.

    lanes: of a register. group: neighbors among them that are shuffled cheaply.
    """
    fitting = min(rows, columns, lanes, SIDE)
    if not fitting:
        return
    side = 1 << fitting.bit_length() - 1
    down = rows // side * side
    right = columns // side * side
    most = lanes // side if 1 < side <= group else 1
    for r in range(0, down, side):
        for c in range(0, right, side * most):
            yield row + r, column + c, side, min(most, (right - c) // side)
    yield from _squares(down, columns - right, lanes, group, row, column + right)
    yield from _squares(rows - down, columns, lanes, group, row + down, column)


def _row(
    x: Expressions, start: LlvmValue, o: Operand, row: int, column: int
) -> LlvmValue:
    offset = (row * o.strides[0] + column) * o.buffer.dtype.itemsize
    return (
        x.ins(f"getelementptr i8, {start.typed}, i64 {offset}", "ptr")
        if offset
        else start
    )


def _load(
    x: Expressions, place: LlvmValue, size: int, lanes: int, align: int
) -> LlvmValue:
    type = f"i{8 * size}"
    full = type if lanes == 1 else f"<{lanes} x {type}>"
    return x.ins(f"load {full}, {place.typed}, align {align}", type, lanes)


def _columns(x: Expressions, rows: list[LlvmValue], group: int) -> list[LlvmValue]:
    """The columns of squares side by side; `group` neighboring lanes are shuffled cheaply."""
    n = len(rows)
    lanes = rows[0].lanes
    if lanes > n:
        zipped = _zipped(x, rows, n)
        return [
            x.shuffle(v, list(range(k, k + n)))
            for k in range(0, lanes, n)
            for v in zipped
        ]
    group = min(group, n)
    blocks = [_zipped(x, rows[k : k + group], group) for k in range(0, n, group)]
    # Now lanes g*group.. of a block's t-th vector are a piece of column g*group + t.
    columns = [_unzipped(x, [b[t] for b in blocks], group) for t in range(group)]
    return [columns[t][g] for g in range(n // group) for t in range(group)]


def _zipped(x: Expressions, rows: list[LlvmValue], group: int) -> list[LlvmValue]:
    """The square in each group of lanes transposed: the two halves of the rows take turns."""
    lanes = rows[0].lanes
    half = group // 2
    moves = [
        [
            k + n + side
            for k in range(at, lanes, group)
            for n in range(half)
            for side in (0, lanes)
        ]
        for at in (0, half)
    ]
    for _ in range(group.bit_length() - 1):
        pairs = zip(rows[:half], rows[half:], strict=True)
        rows = [x.shuffle(p, chosen, q) for p, q in pairs for chosen in moves]
    return rows


def _unzipped(x: Expressions, rows: list[LlvmValue], group: int) -> list[LlvmValue]:
    """The groups of these rows transposed: the even ones of every two rows, then the odd."""
    lanes = rows[0].lanes
    moves = [
        [k + n for k in range(at, 2 * lanes, 2 * group) for n in range(group)]
        for at in (0, group)
    ]
    for _ in range(len(rows).bit_length() - 1):
        pairs = list(zip(rows[::2], rows[1::2], strict=True))
        rows = [x.shuffle(p, chosen, q) for chosen in moves for p, q in pairs]
    return rows
