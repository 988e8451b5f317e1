"""reshape: the memory of a buffer under another shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tilewright.expr.affine import Affine, affine, rejoined, to_expr
from tilewright.expr.nodes import Buffer, Expr, FloorDiv, Mod, const
from tilewright.expr.reads import reads_memory
from tilewright.loops.analysis.access import Index, accesses, environment
from tilewright.loops.nodes import Kernel
from tilewright.schedule import edit, tree
from tilewright.schedule.legality import refuse_buffer
from tilewright.schedule.registry import primitive


@primitive
def reshape(kernel: Kernel, buffer: str, *extents: int) -> tuple[Kernel, None]:
    """View the memory of a buffer with a different shape; elements are not moved.

    args: the buffer, which may be a parameter (its caller gives the same memory); the new extents.
    requires: the same number of elements; no index that changes contains a value read from memory,
        since such an index is bounds-checked where it is used.
    before: A[4, 6]: A[i, j]
    after:  A[24]: A[i * 6 + j]
    """
    old, alloc = tree.find_buffer(kernel, buffer, "reshape")
    if math.prod(extents) != old.size or any(n < 1 for n in extents):
        raise refuse_buffer(
            "reshape",
            buffer,
            f"{list(extents)} are not the {old.size} elements of {list(old.shape)}",
            "give extents of at least 1 with the same product",
        )
    runs = _runs(old.shape, extents)
    for a in accesses(kernel.body):
        if a.buffer is old:
            _check_plain(buffer, a.index, runs)
    new = Buffer(old.name, tuple(extents), old.dtype, old.scope)
    moves = {old: onto_shape(old, new)}
    body = edit.rewrite(kernel.body, environment(kernel.body), moves=moves)
    if alloc is not None:
        return kernel.with_body(edit.with_allocs(body, {old: new})), None
    params, outputs = (
        tuple(new if b is old else b for b in buffers)
        for buffers in (kernel.params, kernel.outputs)
    )
    return replace(kernel, params=params, outputs=outputs, body=body), None


def onto_shape(old: Buffer, new: Buffer) -> edit.Move:
    """Where an access goes if a buffer has the memory of another one, under another shape."""
    runs = _runs(old.shape, new.shape)

    def moved(index: Index) -> tuple[Buffer, Index]:
        parts: list[Expr] = []
        for before, after in runs:
            shape, axes = old.shape[before], new.shape[after]
            if shape == axes:
                parts += index[before]
            else:
                parts += _digits(index[before], shape, axes)
        return new, tuple(parts)

    return moved


def _runs(old: Sequence[int], new: Sequence[int]) -> list[tuple[slice, slice]]:
    """The shortest runs of axes of both shapes that have the same number of elements, in order."""
    found: list[tuple[slice, slice]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        first = (i, j)
        a = b = 1
        while i == first[0] or j == first[1] or a != b:
            if i < len(old) and (a <= b or j == len(new)):
                a, i = a * old[i], i + 1
            elif j < len(new):
                b, j = b * new[j], j + 1
            else:
                break
        found.append((slice(first[0], i), slice(first[1], j)))
    return found


def _check_plain(buffer: str, index: Index, runs: list[tuple[slice, slice]]) -> None:
    for before, after in runs:
        changes = before.stop - before.start != 1 or after.stop - after.start != 1
        if changes and any(reads_memory(i) for i in index[before]):
            raise refuse_buffer(
                "reshape",
                buffer,
                f"{list(index)} is checked where it is used, and would not be the same index",
                "do not change axes that are indexed by an element of memory",
            )


def _digits(index: Index, shape: Sequence[int], axes: Sequence[int]) -> list[Expr]:
    """The index in `axes` of the element at `index` in `shape`, both in the order of memory."""
    flat = Affine((), 0)
    for i, extent in zip(index, shape, strict=True):
        flat = flat.scaled(extent) + affine(i)
    position = to_expr(rejoined(flat))
    parts: list[Expr] = []
    weight = math.prod(axes)
    for n, extent in enumerate(axes):
        weight //= extent
        part = position if weight == 1 else FloorDiv(position, const(weight))
        parts.append(Mod(part, const(extent)) if n else part)
    return parts
