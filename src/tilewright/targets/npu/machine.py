"""A machine description: number format, memories, and operators with their costs.

vectors   VVAdd VVSub VVMul VVMax (two operands), VVRelu VVTanh VVSigm VVExp VVRecip,
          VReduceAdd VReduceMax (to one element); a size is a length
matrices  MVMul MVAdd: rows and columns; MMMul: rows, columns, columns of the second operand
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from math import inf, prod

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.base.numbers import whole
from tilewright.targets.npu.numbers import BlockFloat, Float32, NumberFormat

BINARY = ("VVAdd", "VVSub", "VVMul", "VVMax")
UNARY = ("VVRelu", "VVTanh", "VVSigm", "VVExp", "VVRecip")
REDUCTIONS = ("VReduceAdd", "VReduceMax")
MATRICES = {"MVMul": 2, "MVAdd": 2, "MMMul": 3}
NAMES = (*BINARY, *UNARY, *REDUCTIONS, *MATRICES)


def whole_numbers(least: int, **given: object) -> None:
    """Raises InputError for a value that is not an integer from `least` on."""
    for name, value in given.items():
        if whole(value, least) is None:
            raise InputError(
                f"{name} is {value!r}, expected a whole number from {least} on"
            )


def amounts(**given: object) -> None:
    """Raises InputError for a value that is not a finite number from 0 on."""
    for name, value in given.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value < inf:  # type: ignore[operator]
            raise InputError(f"{name} is {value!r}, expected a number from 0 on")


@dataclass(frozen=True, slots=True)
class Memory:
    """A memory of `capacity` bytes. bandwidth: bytes per cycle. energy: pJ per byte.

    Raises InputError for a memory that moves nothing, and for negative numbers.
    """

    capacity: int
    bandwidth: float
    latency: int
    energy: float

    def __post_init__(self) -> None:
        whole_numbers(0, capacity=self.capacity, latency=self.latency)
        amounts(bandwidth=self.bandwidth, energy=self.energy)
        if not self.bandwidth:
            raise InputError("bandwidth is 0, expected more")


@dataclass(frozen=True, slots=True)
class MachineOperator:
    """An operator at one size.

    issue: cycles that giving the instruction takes. interval: cycles that its unit is taken.
    latency: cycles from its operands to its result. energy: pJ. Raises InputError for numbers that
    are not one of these.
    """

    name: str
    sizes: tuple[int, ...]
    issue: int
    interval: int
    latency: int
    energy: float

    def __post_init__(self) -> None:
        for size in self.sizes:
            whole_numbers(1, size=size)
        whole_numbers(1, interval=self.interval)
        whole_numbers(0, issue=self.issue, latency=self.latency)
        amounts(energy=self.energy)

    @property
    def work(self) -> int:
        """Scalar operations, or multiply-adds."""
        return prod(self.sizes)

    @property
    def unit(self) -> str:
        """The part of the machine that does it."""
        return "matrix" if self.name in MATRICES else "vector"


def operators(
    names: Iterable[str],
    sizes: Iterable[int],
    *,
    lanes: int,
    latency: int,
    issue: int = 1,
    energy: float = 1.0,
) -> tuple[MachineOperator, ...]:
    """A row per name and size, square for matrices: `lanes` results or multiply-adds per cycle.

    energy: pJ for one of them. Raises InputError for numbers that are not one of these.
    """
    whole_numbers(1, lanes=lanes)
    amounts(energy=energy)
    rows = []
    for name in names:
        if name not in NAMES:
            raise InputError(
                f"{name!r} is not an operator", hint=f"known: {', '.join(NAMES)}"
            )
        for size in sizes:
            whole_numbers(1, size=size)
            shape = (size,) * MATRICES.get(name, 1)
            work = prod(shape)
            rows.append(
                MachineOperator(
                    name, shape, issue, -(-work // lanes), latency, energy * work
                )
            )
    return tuple(rows)


@dataclass(frozen=True)
class NpuMachine:
    """The description. Raises InputError for operators that are unknown or given twice.

    vectors, matrices: the register files. block: the format inside matrix products. transfer:
    cycles to issue an instruction that only moves data.
    """

    name: str
    operators: tuple[MachineOperator, ...]
    dram: Memory
    vectors: Memory
    matrices: Memory
    number: NumberFormat = Float32
    block: BlockFloat | None = None
    transfer: int = 1

    def __post_init__(self) -> None:
        if not self.operators:
            raise InputError("it has no operators", where=f"machine {self.name}")
        whole_numbers(0, transfer=self.transfer)
        for op in self.operators:
            if op.name not in NAMES or len(op.sizes) != MATRICES.get(op.name, 1):
                raise InputError(
                    f"{op.name}{op.sizes} is not an operator",
                    where=f"machine {self.name}",
                    hint=f"known: {', '.join(NAMES)}; two sizes for MV, three for MM",
                )
        if len(self._table) != len(self.operators):
            raise InputError(
                "an operator is given twice at one size",
                where=f"machine {self.name}",
                hint="one row for each name and size",
            )

    def __hash__(self) -> int:
        """Fast: machines are arguments of functions that remember results."""
        return hash(self.name)

    @cached_property
    def _table(self) -> dict[tuple[str, tuple[int, ...]], MachineOperator]:
        return {(op.name, op.sizes): op for op in self.operators}

    def find(self, name: str, sizes: Sequence[int]) -> MachineOperator | None:
        """The operator of this name at these sizes."""
        return self._table.get((name, tuple(sizes)))

    def sizes(self, name: str) -> tuple[tuple[int, ...], ...]:
        """The sizes at which it has an operator, largest first."""
        return self._sizes.get(name, ())

    @cached_property
    def _sizes(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        found: dict[str, list[tuple[int, ...]]] = {}
        for op in self.operators:
            found.setdefault(op.name, []).append(op.sizes)
        return {name: tuple(sorted(of, reverse=True)) for name, of in found.items()}

    @property
    def bytes(self) -> int:
        """Bytes of one number."""
        return self.number.bits // 8

    def elements(self, memory: str) -> int:
        """How many numbers a memory holds."""
        return self.memory(memory).capacity // self.bytes

    def memory(self, name: str) -> Memory:
        """The memory `dram`, `vrf` or `mrf`."""
        return self._memories[name]

    @cached_property
    def _memories(self) -> dict[str, Memory]:
        return {"dram": self.dram, "vrf": self.vectors, "mrf": self.matrices}

    @property
    def peak(self) -> float:
        """The most multiply-adds per cycle; scalar operations if it has no matrix products."""
        products = [o for o in self.operators if o.name in ("MVMul", "MMMul")]
        return max(op.work / op.interval for op in products or self.operators)
