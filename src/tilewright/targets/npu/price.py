"""What a program costs on a machine, at any level of its derivation: the cost of the search.

An operator costs the cheapest way that the machine has for it (`sizes`), as often as it is applied.
A scalar function in no operator is the host's, which is slow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tilewright.notation.lift.lengths import evaluate
from tilewright.notation.lift.nodes import (
    AnyMap,
    AnyReduce,
    AnyScan,
    DeviceOp,
    Fun,
    Iterate,
    PartRed,
    ScalarFun,
)
from tilewright.notation.lift.sites import Site, root_site
from tilewright.notation.lift.types import Array
from tilewright.targets.npu.sizes import Key, Sizes


@dataclass(frozen=True, slots=True)
class Price:
    """Cycles of a program; called with it. host: cycles of a scalar operation on the host."""

    sizes: Sizes
    host: float = 100.0

    def __call__(self, program: Fun) -> float:
        return self._of(root_site(program), 1)

    def _of(self, at: Site, times: int) -> float:
        """The cycles of a part that runs so many times."""
        match at.node:
            case ScalarFun():
                return self.host * times
            case DeviceOp() as op:
                return self.sizes.best(*operator_of(op)).cost * times
            case AnyMap() | AnyReduce() | AnyScan() | PartRed():
                assert at.args is not None and isinstance(at.args[0], Array)
                runs = times * evaluate(at.args[0].length, {})
                rest = sum(self._of(child, times) for child in at.children[1:])
                return rest + self._of(at.children[0], runs)
            case Iterate(count):
                return self._of(at.children[0], times * count)
        return sum(self._of(child, times) for child in at.children)


def operator_of(op: DeviceOp) -> Key:
    """Its name without sizes, and these."""
    return name_of(op), op.sizes


def name_of(op: DeviceOp) -> str:
    """`MVMul` of `MVMul128x64`."""
    found = re.match("[A-Za-z]+", op.name)
    return op.name if found is None else found[0]
