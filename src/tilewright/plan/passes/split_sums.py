"""Splitting deep sums whose operands do not fit into the cache, or whose results are few.

A convolution over 2048 channels reads 18 kB of weights per result, which are evicted before the
next tile of results needs them. In partial sums, each part's weights and rows stay in the cache. On
a GPU a product with few results has too few thread blocks; its parts have more.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from tilewright.base import events
from tilewright.compute.contraction import is_contraction
from tilewright.compute.guards import loads
from tilewright.compute.nodes import CC, Computation, Dim
from tilewright.compute.split_sum import split_sum
from tilewright.expr.nodes import Buffer
from tilewright.ir.node import Node, postorder
from tilewright.plan.nodes import FusionGroup, Step
from tilewright.plan.questions import Cost


def split_deep_sums(
    steps: Sequence[Step],
    constants: Collection[Buffer],
    cost: Cost,
    least: int,
    launch_ns: float = 0.0,
    weights_only: bool = False,
) -> list[Step]:
    """The steps, with contractions split by the law of `compute/split_sum.py` where profitable.

    cost: the target's estimate of Computations with constants as one kernel in nanoseconds, None if
    another form is better. least: products per part that pay for storing it and reading it again.
    launch_ns: nanoseconds per additional kernel. weights_only: split only sums over axes of a
    constant, which have the same number of parts at any size of the inputs. This changes the order
    of summation, but deterministically.
    """
    found: list[Step] = []
    for step in steps:
        parts = (
            _in_parts(step, constants, cost, least, launch_ns)
            if isinstance(step, FusionGroup)
            and not (weights_only and _sums_over_inputs(step, constants))
            else None
        )
        found += [step] if parts is None else parts
    return found


def _sums_over_inputs(group: FusionGroup, constants: Collection[Buffer]) -> bool:
    """Whether the first Computation sums over an axis that no constant in it has."""
    if not group.computations:
        return False
    first = group.computations[0]
    known: set[Node] = set()
    for output in first.outputs:
        for load in loads(output.value):
            if load.buffer not in constants:
                continue
            for index in load.index:
                known.update(postorder(index))
    summed = [d.var for d in first.dims if d.combine != CC]
    return not known.issuperset(summed)


def _in_parts(
    group: FusionGroup,
    constants: Collection[Buffer],
    cost: Cost,
    least: int,
    launch_ns: float,
) -> list[Step] | None:
    """A group for the parts, and one for their sum and what follows; None if that costs more.

    requires: what follows the sum reads the parts only through their sum, which holds because their
    tensor is new.
    """
    first, *rest = group.computations or (None,)
    if (
        first is None
        or not is_contraction(first)
        or not first.outputs[0].value.dtype.is_float
    ):
        return None
    if any(not c.is_map for c in rest):
        return None
    along = max((d for d in first.dims if d.combine != CC), key=lambda d: d.extent)
    depth = math.prod(d.extent for d in first.dims if d.combine != CC)
    counts = [n for n in range(2, depth // least + 1) if along.extent % n == 0]
    if not counts:
        return None
    whole = cost((first,), constants)
    best = None if whole is None else _best(first, along, counts, constants, cost)
    if whole is None or best is None or best[0] + launch_ns >= whole:
        return None
    events.emit("split-sum", stage=group.name, parts=best[1])
    made = split_sum(first, along, best[1])
    assert made is not None
    before, after = made
    name = f"{group.name} in parts"
    return [
        replace(group, name=name, computations=(before,)),
        FusionGroup(f"{name}.sum", (after, *rest), group.sources),
    ]


def _best(
    c: Computation,
    along: Dim,
    counts: Sequence[int],
    constants: Collection[Buffer],
    cost: Cost,
) -> tuple[float, int] | None:
    """The least cost, and the number of parts."""
    found: list[tuple[float, int]] = []
    for n in counts:
        parts = split_sum(c, along, n)
        if parts is None:
            return None
        expected = cost(parts[:1], constants)
        if expected is not None:
            found.append((expected, n))
    return min(found, default=None)
