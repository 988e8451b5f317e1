"""Tasks of the processor: operators on elements of values, each element by its address.

An address names an element of a value (`value << SHIFT | offset`) before the value has a place in
a memory; an operand is an array of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import field
from functools import cached_property
from hashlib import blake2b
from math import prod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dataclass import dataclass
from tilewright.targets.npu.isa import NpuInstruction

SHIFT = 32
OFFSET = (1 << SHIFT) - 1
Addresses: TypeAlias = NDArray[np.int64]
Shape = tuple[int, ...]


@dataclass(eq=False)
class NpuValue:
    """Something in memory. space: "chip", "dram" or "output"; constant: the number that it is.

    made: whether a task makes it; inputs and constants are there before.
    """

    number: int
    name: str
    shape: Shape
    space: str
    constant: float | None = None
    made: bool = False

    @cached_property
    def size(self) -> int:
        """How many elements it has."""
        return prod(self.shape)

    @cached_property
    def addresses(self) -> Addresses:
        """All of its elements."""
        return (self.number << SHIFT) + np.arange(self.size).reshape(self.shape)


class TaskOperand:
    """Elements that a task reads, with facts about them.

    fixed: it only has inputs and constants, so that all candidates of a form can share it. parts:
    operands derived from this one that candidates share. loads: the instructions that read it from
    DRAM, if it only has inputs.
    """

    __slots__ = ("addresses", "fixed", "parts", "loads", "__dict__")

    def __init__(self, addresses: Addresses, fixed: bool) -> None:
        self.addresses = addresses
        self.fixed = fixed
        self.parts: dict[Hashable, TaskOperand] = {}
        self.loads: tuple[NpuInstruction, ...] | None = None

    @cached_property
    def reads(self) -> list[int]:
        """The numbers of the values that its elements are of, in order of appearance."""
        return values_in(self.addresses)

    @cached_property
    def key(self) -> bytes:
        """Equal for operands of the same shape and elements."""
        shape = repr(self.addresses.shape).encode()
        return blake2b(shape + self.addresses.tobytes(), digest_size=16).digest()

    @cached_property
    def flat(self) -> Addresses:
        """Its elements one after the other."""
        return self.addresses.ravel()


@dataclass(frozen=True, eq=False)
class NpuTask:
    """One application of a device operator."""

    operator: str
    sizes: Shape
    operands: tuple[TaskOperand, ...]
    result: NpuValue

    @cached_property
    def title(self) -> str:
        """`MVMul128x64`."""
        return self.operator + "x".join(map(str, self.sizes))

    @cached_property
    def reads(self) -> list[int]:
        """The numbers of the values that its operands are of, each once for an operand."""
        return [v for operand in self.operands for v in operand.reads]


def values_in(addresses: Addresses) -> list[int]:
    """The numbers of the values that elements belong to, in order of appearance."""
    numbers = addresses.ravel() >> SHIFT
    if (numbers == numbers[0]).all():
        return [int(numbers[0])]
    first = np.flatnonzero(np.diff(numbers)) + 1
    return list(dict.fromkeys([int(numbers[0]), *numbers[first].tolist()]))


# The shapes of results that are not as long as their operator's sizes say.
_SHAPES: Mapping[str, Callable[[Shape], Shape]] = {
    "MVMul": lambda sizes: sizes[:1],
    "MMMul": lambda sizes: (sizes[0], sizes[2]),
    "VReduceAdd": lambda sizes: (1,),
    "VReduceMax": lambda sizes: (1,),
}


@dataclass(slots=True)
class Evaluated:
    """All values by number, tasks in the order of evaluation, and where the outputs are."""

    values: list[NpuValue] = field(default_factory=list)
    tasks: list[NpuTask] = field(default_factory=list)
    inputs: list[NpuValue] = field(default_factory=list)
    outputs: list[Addresses] = field(default_factory=list)

    def new(
        self, name: str, shape: Shape, space: str, constant: float | None = None
    ) -> NpuValue:
        """One more value."""
        value = NpuValue(len(self.values), name, shape, space, constant)
        self.values.append(value)
        return value

    def apply(
        self, operator: str, sizes: Shape, operands: tuple[TaskOperand, ...], space: str
    ) -> NpuValue:
        """One more task; its result."""
        if operator in _SHAPES:
            shape = _SHAPES[operator](sizes)
        else:
            shape = sizes
        result = self.new(f"t{len(self.tasks)}", shape, space)
        result.made = True
        self.tasks.append(NpuTask(operator, sizes, operands, result))
        return result

    def operand(self, addresses: Addresses) -> TaskOperand:
        """These elements."""
        found = TaskOperand(addresses, fixed=False)
        found.fixed = not any(self.values[n].made for n in found.reads)
        return found
