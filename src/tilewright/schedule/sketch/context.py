"""What a sketch must know besides the Computations: the machine, what is constant, how exact."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from tilewright.base.dtypes import DType
from tilewright.expr.nodes import Buffer
from tilewright.schedule.sketch.choices import Choices


class Machine(Protocol):
    """A processor with vector registers and caches; sizes in bytes."""

    @property
    def registers(self) -> int:
        """Vector registers."""
        ...

    @property
    def l1(self) -> int:
        """The first data cache of one core."""
        ...

    @property
    def l2(self) -> int:
        """The second cache of one core."""
        ...

    @property
    def cores(self) -> int:
        """Cores that kernels may use."""
        ...

    @property
    def clock(self) -> float:
        """Cycles per nanosecond."""
        ...

    def lanes(self, dtype: DType) -> int:
        """Elements of a dtype in one vector register."""
        ...

    def streams(self, size: int) -> bool:
        """Whether a result of so many bytes passes the caches by, if its kernel never reads it."""
        ...

    def transpose(self, dtype: DType) -> str | None:
        """The intrinsic that transposes small tiles of a dtype; None without one."""
        ...

    def products(self, a: DType, b: DType, out: DType) -> Sequence[str]:
        """Intrinsics that add products of `a` and `b` to lanes or tiles of `out`, best first."""
        ...

    def interleave(self, dtype: DType) -> str | None:
        """The intrinsic that makes neighbours of rows, for the second operand of a dot product."""
        ...


@dataclass(frozen=True, slots=True)
class Context:
    """machine: whose numbers to use. constants: buffers known at compile time. exact: keep every
    reduction in its order. around: loops over blocks that a nest is inside of, outermost first."""

    machine: Machine
    constants: Collection[Buffer] = ()
    exact: bool = False
    around: tuple[str, ...] = ()

    def threads(self, choose: Choices, name: str, good: bool) -> bool:
        """The parameter `<name>.parallel`. Not inside of blocks: their loops have the threads."""
        return not self.around and choose(f"{name}.parallel", (True, False), good)
