"""What a program costs on a machine, at any level of its derivation: the cost of the search.

An operator costs the cheapest way that the machine has for it (`sizes`), as often as it is applied.
A scalar function in no operator is the host's, which is slow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tilewright.notation.lift.cost import weighed
from tilewright.notation.lift.nodes import DeviceOp, Fun
from tilewright.targets.npu.sizes import Key, Sizes


@dataclass(frozen=True, slots=True)
class Price:
    """Cycles of a program; called with it. host: cycles of a scalar operation on the host."""

    sizes: Sizes
    host: float = 100.0

    def __call__(self, program: Fun) -> float:
        return weighed(program, lambda _, op: self.sizes.best(*operator_of(op)).cost, self.host)


def operator_of(op: DeviceOp) -> Key:
    """Its name without sizes, and these."""
    return name_of(op), op.sizes


def name_of(op: DeviceOp) -> str:
    """`MVMul` of `MVMul128x64`."""
    found = re.match("[A-Za-z]+", op.name)
    return op.name if found is None else found[0]
