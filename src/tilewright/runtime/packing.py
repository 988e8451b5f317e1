"""Packing as data: how a kernel's constant is made of a weight, without any code.

A packing moves elements, and may do arithmetic on them (Winograd's transform of filters). NumPy
does it, so every machine makes the same bytes, and what is read from a file runs nothing of it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from itertools import product
from typing import Any, Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.runtime import schema

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Array = np.ndarray[Any, Any]
Step = tuple[str, int, int | float]

# On registers; the second operand of "scale" is a number.
_ARITHMETIC: Final = {
    "add": np.add,
    "subtract": np.subtract,
    "scale": np.multiply,
}
# Elements of a register, 128 KiB of float32: the registers of F(2, 3) stay in the second level of
# the cache, and calling NumPy takes a tenth of the time (4,096: 1.7 times as long in all).
_BLOCK: Final = 1 << 15
_FEW: Final = 16  # blocks that are so many times smaller are not worth a call each
SHAPE: Final = [
    (
        [schema.Count],
        [schema.Count],
        [schema.Integer],
        [(schema.OneOf("operation", *_ARITHMETIC), schema.Count, schema.Number)],
        [(schema.Count, schema.Count)],
        [schema.Integer],
    )
]


@dataclass(frozen=True, slots=True)
class PackingPart:
    """The same arithmetic at every point of a box, on elements at regular places.

    extents: of the box. reads: the weight's elements that the first point takes, into registers
    from 0 on. strides: how many elements further those of the next point along each axis are.
    steps: each makes the next register of two others, or of one and a number. writes: registers,
    and where in the result the first point has them. into: the strides there.
    """

    extents: tuple[int, ...]
    reads: tuple[int, ...]
    strides: tuple[int, ...]
    steps: tuple[Step, ...]
    writes: tuple[tuple[int, int], ...]
    into: tuple[int, ...]

    @property
    def size(self) -> int:
        """Elements that it writes."""
        return math.prod(self.extents) * len(self.writes)

    def run(self, weight: Array, result: Array) -> None:
        """Write them; both arrays are flat. Raises ValueError for a place outside of an array."""
        sources = [self._view(weight, at, self.strides) for at in self.reads]
        targets = [self._view(result, at, self.into) for _, at in self.writes]
        if not self.steps:
            for (register, _), target in zip(self.writes, targets, strict=True):
                target[...] = sources[register]
            return
        outer = _outer(self.extents)
        inner = self.extents[outer:]
        registers = _Registers(self, inner, result.dtype)
        for point in product(*map(range, self.extents[:outer])):
            registers.run([s[point] for s in sources], [t[point] for t in targets])

    def _view(self, array: Array, at: int, strides: Iterable[int]) -> Array:
        size = array.itemsize
        offsets = [n * size for n in strides]
        found: Array = np.ndarray(
            self.extents, array.dtype, array.data, at * size, offsets
        )
        return found


def _outer(extents: Sequence[int]) -> int:
    """How many axes are in front of those that make a block."""
    sizes = [math.prod(extents[n:]) for n in range(len(extents))]
    small = [n for n, size in enumerate(sizes) if size <= _BLOCK]
    first = min(small, default=len(extents) - 1)
    if first and sizes[first] * _FEW < _BLOCK:
        return first - 1
    return first


def _operands(step: Step) -> tuple[int, ...]:
    """The registers that a step reads."""
    name, a, b = step
    return (a,) if name == "scale" else (a, int(b))


def _places(part: PackingPart) -> list[int]:
    """Which memory each register is in, reused after the last step that reads it; -1 for a step
    that makes a result, which is made in its place."""
    first = len(part.reads)
    results = {register for register, _ in part.writes}
    last = {r: n for n, step in enumerate(part.steps, first) for r in _operands(step)}
    places: list[int] = []
    free: list[int] = []
    for register in range(first + len(part.steps)):
        step = register - first
        if step >= 0 and register in results:
            places.append(-1)
        else:
            places.append(free.pop() if free else max(places, default=-1) + 1)
        read = set(_operands(part.steps[step])) if step >= 0 else set()
        ended = {r for r in read - results if last[r] == register}
        free += [places[r] for r in ended]
    return places


class _Registers:
    """Memory for the registers of a part at the points of one block."""

    def __init__(self, part: PackingPart, block: tuple[int, ...], dtype: Any) -> None:
        self._part = part
        self._places = _places(part)
        self._memory = [np.empty(block, dtype) for _ in range(max(self._places) + 1)]
        self._numbers = [dtype.type(b) for _, _, b in part.steps]

    def run(self, sources: Sequence[Array], targets: Sequence[Array]) -> None:
        """Do the steps on a block of the weight and of the result."""
        made: list[Array] = []
        results = self._part.writes
        there = {
            r: t for (r, _), t in reversed(list(zip(results, targets, strict=True)))
        }
        for source in sources:
            made.append(self._memory[self._places[len(made)]])
            made[-1][...] = source
        for step, number in zip(self._part.steps, self._numbers, strict=True):
            name, a, b = step
            place = self._places[len(made)]
            out = there[len(made)] if place < 0 else self._memory[place]
            operand = number if name == "scale" else made[int(b)]
            _ARITHMETIC[name](made[a], operand, out=out)
            made.append(out)
        for (register, _), target in zip(results, targets, strict=True):
            if made[register] is not target:
                target[...] = made[register]


@dataclass(frozen=True, slots=True)
class Packing:
    """All elements of a constant, made part by part."""

    parts: tuple[PackingPart, ...]

    @property
    def size(self) -> int:
        """Elements that it writes."""
        return sum(p.size for p in self.parts)

    @property
    def symbol(self) -> str:
        """A name that no other packing has."""
        return f"packing_{hashlib.sha256(repr(self).encode()).hexdigest()[:16]}"

    def run(self, weight: Bytes, result: Bytes, dtype: np.dtype[Any]) -> None:
        """Write the result, and zeros where it is longer.

        dtype: of the elements of both. Raises ValueError for a packing that leaves either.
        """
        plain = dtype
        if not any(p.steps for p in self.parts):
            size = dtype.itemsize
            plain = np.dtype(f"u{size}" if size <= 8 else f"c{size}")
        end = self.size * plain.itemsize
        given = weight.view(plain)
        made = result[:end].view(plain)
        for part in self.parts:
            part.run(given, made)
        result[end:] = 0

    def to_json(self) -> Any:
        """As JSON of the shape `SHAPE`."""
        return [list(astuple(p)) for p in self.parts]

    @staticmethod
    def from_json(data: Any) -> Packing:
        """The inverse of `to_json`. Raises ValueError for what no packing is."""
        parts = []
        for extents, reads, strides, steps, writes, into in data:
            parts.append(
                PackingPart(
                    tuple(extents),
                    tuple(reads),
                    tuple(strides),
                    tuple((name, a, b) for name, a, b in steps),
                    tuple((register, at) for register, at in writes),
                    tuple(into),
                )
            )
        found = Packing(tuple(parts))
        for part in found.parts:
            _check(part)
        return found


def _check(part: PackingPart) -> None:
    """Raise ValueError for axes that do not fit, and registers that nothing has made.

    Without results its points would not be counted, and so not be limited.
    """
    if {len(part.strides), len(part.into)} != {len(part.extents)}:
        raise ValueError(f"a part of {len(part.extents)} axes has other strides")
    known = len(part.reads)
    for name, a, b in part.steps:
        operands = (a,) if name == "scale" else (a, b)
        if not all(isinstance(r, int) and 0 <= r < known for r in operands):
            raise ValueError(f"{name} of {a} and {b}, of {known} registers")
        known += 1
    if not part.writes or not all(register < known for register, _ in part.writes):
        raise ValueError(f"it has {known} registers, and writes none or others")
