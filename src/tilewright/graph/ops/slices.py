"""The slices of a tensor along an axis, in lexicographic order, for Unique.

A NaN comes after every number and equals any other NaN, and 0.0 equals -0.0.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base import dtypes
from tilewright.base.dataclass import dataclass
from tilewright.compute.build import cast
from tilewright.expr.nodes import Buffer, Expr, Max, Min, Select, const
from tilewright.expr.nodes import call as apply
from tilewright.graph.ops.broadcasting import inserted, wide, without
from tilewright.graph.ops.registry import OpCall
from tilewright.loops.nests import LoopNests
from tilewright.loops.nodes import If, Stmt, block
from tilewright.loops.sorting import CounterCell

COUNT = 1  # the operand that holds the number of slices


@dataclass(frozen=True)
class Slices:
    """The slices of a tensor. x: the tensor. given: the buffer that holds their number, if any."""

    x: Buffer
    axis: int
    given: Buffer | None
    nests: LoopNests

    @classmethod
    def of(
        cls, call: OpCall, inputs: Sequence[Buffer | None], nests: LoopNests
    ) -> Slices:
        """Those of an operator's first operand, along its attribute `axis`."""
        x = inputs[0]
        assert x is not None
        axis = call.axis(call.attr("axis", 0), len(x.shape))
        return cls(x, axis, inputs[COUNT] if call.has(COUNT) else None, nests)

    @property
    def free(self) -> Sequence[int]:
        """The shape of a slice."""
        return without(self.x.shape, self.axis)

    @property
    def extent(self) -> int:
        """The capacity in slices."""
        return self.x.shape[self.axis]

    @property
    def count(self) -> Expr:
        """The number of slices that exist."""
        here: Expr = const(self.extent)
        if self.given is None:
            return here
        return Max(Min(self.given[(0,) * len(self.given.shape)], here), const(0))

    def at(self, number: Expr, i: Sequence[Expr]) -> tuple[Expr, ...]:
        """The index of an element of a slice."""
        return tuple(inserted(i, self.axis, number))

    def compare(self, order: CounterCell, m: Expr, n: Expr) -> tuple[Stmt, Expr]:
        """Whether slice `m` comes before slice `n`, by the first element that differs.

        order: set to -1 if it does, to 1 if `n` comes before, else to 0.
        """

        def look(*i: Expr) -> Stmt:
            one, other = (self.x[self.at(k, i)] for k in (m, n))
            sign = Select(_before(one, other), const(-1), const(0))
            sign = Select(_before(other, one), const(1), sign)
            return If(order.value.eq(0), order.set(sign), None)

        compare = self.nests.over(self.free, look)
        return block(order.set(0), compare), order.value.eq(-1)


def _before(
    a: Expr,
    b: Expr,
) -> Expr:
    a = _ordered(a)
    b = _ordered(b)
    less = a < b
    if not a.dtype.is_float:
        return less
    return less | (apply("isnan", b) & ~apply("isnan", a))


def _ordered(x: Expr) -> Expr:
    x = wide(x)
    return cast(x, dtypes.uint8) if x.dtype.is_bool else x
