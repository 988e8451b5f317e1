"""The cost of a program on an accelerator: an example of a cost function for `search`.

Work that no instruction does, the host does slowly. An operator of a size that the machine does
not have must be split first, so it counts between the two. A result that stays on the chip is
free; any other one is written to memory and read again.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tilewright.base.dataclass import dataclass
from tilewright.lift.lengths import evaluate
from tilewright.lift.memory import nbytes
from tilewright.lift.nodes import (
    AnyMap,
    AnyReduce,
    AnyScan,
    DeviceOp,
    Fun,
    Iterate,
    PartRed,
    ScalarFun,
    To,
)
from tilewright.lift.sites import Site, root_site
from tilewright.lift.types import Array


def weighed(
    program: Fun, operator: Callable[[Site, DeviceOp], float], scalar: float
) -> float:
    """The cost of a program: each operator by the given function and each scalar operation at one
    price, as often as the patterns around them run it."""

    def of(at: Site, times: int) -> float:
        match at.node:
            case ScalarFun():
                return scalar * times
            case DeviceOp() as op:
                return operator(at, op) * times
            case AnyMap() | AnyReduce() | AnyScan() | PartRed():
                assert at.args is not None and isinstance(at.args[0], Array)
                runs = times * evaluate(at.args[0].length, {})
                rest = sum(of(child, times) for child in at.children[1:])
                return rest + of(at.children[0], runs)
            case Iterate():
                return sum(of(iteration, times) for iteration in at.iterations)
        return sum(of(child, times) for child in at.children)

    return of(root_site(program), 1)


@dataclass(frozen=True, slots=True)
class Cycles:
    """Cycles of a program; called with it.

    has: whether an operator is an instruction of the machine. host, split: cycles per scalar
    operation on the host, and in an operator of another size. issue: cycles per instruction.
    lanes: scalar operations per cycle inside one. memory: cycles per byte.
    """

    has: Callable[[DeviceOp], bool]
    host: float = 100.0
    split: float = 10.0
    issue: float = 4.0
    lanes: float = 64.0
    memory: float = 0.25

    def __call__(self, program: Fun) -> float:
        return weighed(program, self._instruction, self.host)

    def _instruction(self, at: Site, op: DeviceOp) -> float:
        return self._operator(op) + self._traffic(at, op)

    def _operator(self, op: DeviceOp) -> float:
        operations_per_point = 2 if len(op.sizes) > 1 else 1
        work = prod(op.sizes) * operations_per_point
        if self.has(op):
            return self.issue + work / self.lanes
        return self.split * work

    def _traffic(self, at: Site, op: DeviceOp) -> float:
        """Writing a result that does not stay on the chip, and reading it unless it is output."""
        assert at.args is not None
        spaces = [p.space for p in at.above[-2:] if isinstance(p, To)]
        space = spaces[-1] if spaces else "dram"
        ways = {"chip": 0, "output": 1}.get(space, 2)
        return ways * self.memory * nbytes(at.result_of(op, at.args))
