"""The result of `mma.sync`, on the registers of the threads of warps.

The position of element i of a thread's fragment follows the PTX ISA's formulas for each shape; they
are transcribed here independently of the emitter. Sums are rounded once, which PTX allows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from tilewright.base.dtypes import bfloat16, float8_e4m3fn, float8_e5m2
from tilewright.testing.ptx.arithmetic import Array

_GROUP: Final = np.arange(32) >> 2  # groupID of each thread
_NUMBER: Final = np.arange(32) % 4  # threadID_in_group
_PATTERN: Final = np.uint32(0xFFFFE000)  # bits of a float32 that tf32 has

_NUMBERS: Final[Mapping[str, Any]] = {
    "f16": np.float16,
    "bf16": bfloat16.numpy,
    "s8": np.int8,
    "u8": np.uint8,
    "e4m3": float8_e4m3fn.numpy,
    "e5m2": float8_e5m2.numpy,
}

# Element i of a fragment: the rows and the columns of all threads.
Place = Callable[[int], tuple[Array, Array]]


def _a16(i: int) -> tuple[Array, Array]:
    row = _GROUP
    column = _NUMBER * 2
    if not (0 <= i < 2 or 4 <= i < 6):
        row = row + 8
    if i >= 4:
        column = column + 8
    return row, column + (i & 1)


def _b16(i: int) -> tuple[Array, Array]:
    row = _NUMBER * 2
    if i >= 2:
        row = row + 8
    return row + (i & 1), _GROUP


def _a8(i: int) -> tuple[Array, Array]:
    row = _GROUP
    column = _NUMBER
    if i in (1, 3):
        row = row + 8
    if i in (2, 3):
        column = column + 4
    return row, column


def _b8(i: int) -> tuple[Array, Array]:
    row = _NUMBER
    if i == 1:
        row = row + 4
    return row, _GROUP


def _a32(i: int) -> tuple[Array, Array]:
    row = _GROUP
    column = _NUMBER * 4
    if not (0 <= i < 4 or 8 <= i < 12):
        row = row + 8
    if i >= 8:
        column = column + 16
    return row, column + (i & 3)


def _b32(i: int) -> tuple[Array, Array]:
    row = _NUMBER * 4
    if i >= 4:
        row = row + 16
    return row + (i & 3), _GROUP


def _c(i: int) -> tuple[Array, Array]:
    row = _GROUP
    column = _NUMBER * 2
    if i >= 2:
        row = row + 8
    return row, column + (i & 1)


_SHAPES: Final[Mapping[tuple[str, str], tuple[int, Place, Place]]] = {
    ("m16n8k16", "f16"): (16, _a16, _b16),
    ("m16n8k16", "bf16"): (16, _a16, _b16),
    ("m16n8k8", "tf32"): (8, _a8, _b8),
    ("m16n8k32", "s8"): (32, _a32, _b32),
    ("m16n8k32", "u8"): (32, _a32, _b32),
    ("m16n8k32", "e4m3"): (32, _a32, _b32),
    ("m16n8k32", "e5m2"): (32, _a32, _b32),
}


def rounded_to_tf32(value: Array) -> Array:
    """`cvt.rna.tf32.f32`: to 10 bits after the point, halves away from zero."""
    bits = value.view(np.uint32)
    finite = np.isfinite(value)
    return np.where(finite, bits + np.uint32(0x1000), bits) & _PATTERN


def mma(
    shape: str,
    of: tuple[str, str],
    to: str,
    a: Sequence[Array],
    b: Sequence[Array],
    c: Sequence[Array],
) -> list[Array]:
    """The result's registers. a, b, c: words of 32 bits, one row for each warp.

    Raises NotImplementedError for another shape.
    """
    known = _SHAPES.get((shape, of[0]))
    if known is None:
        raise NotImplementedError(f"PTX mma.sync.{shape} of {of[0]} and {of[1]}")
    depth, of_a, of_b = known
    wide: Any = np.float64
    held: Any = np.float32
    if to == "s32":
        wide = np.int64
        held = np.int32
    parts = _elements(a, of[0])
    left = _gathered(parts, of_a, (16, depth))
    parts = _elements(b, of[1])
    right = _gathered(parts, of_b, (depth, 8))
    parts = [word.view(held) for word in c]
    sums = _gathered(parts, _c, (16, 8))
    product = left.astype(wide) @ right.astype(wide)
    total = product + sums.astype(wide)
    made = total.astype(held)
    return [np.ascontiguousarray(made[:, *_c(i)]) for i in range(4)]


def _gathered(
    parts: Sequence[Array],
    place: Place,
    shape: tuple[int, int],
) -> Array:
    """The matrix of each warp from the elements of its threads."""
    whole = np.zeros((len(parts[0]), *shape), parts[0].dtype)
    for i, part in enumerate(parts):
        whole[:, *place(i)] = part
    return whole


def _elements(words: Sequence[Array], of: str) -> list[Array]:
    """The numbers in registers, those in low bits first."""
    if of == "tf32":
        return [(word & _PATTERN).view(np.float32) for word in words]
    held = _NUMBERS[of]
    bits = 8 * np.dtype(held).itemsize
    parts = [
        (word >> np.uint32(at)).astype(f"uint{bits}")
        for word in words
        for at in range(0, 32, bits)
    ]
    return [part.view(held) for part in parts]


def fragments(matrices: Array, is_turned: bool) -> Array:
    """The words that `ldmatrix` loads for each thread from matrices of 8 by 8 half-words.

    Thread t receives two neighbors of row t / 4, or with `.trans` of that row of the transpose.
    """
    if is_turned:
        matrices = matrices.swapaxes(-1, -2)
    first = matrices[..., _GROUP, _NUMBER * 2]
    second = matrices[..., _GROUP, _NUMBER * 2 + 1]
    low = first.astype(np.uint32)
    high = second.astype(np.uint32)
    words: Array = low | high << np.uint32(16)
    return words
