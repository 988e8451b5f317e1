"""MDH's tuning parameters of an expression: how it is split into parts, and in which order.

A computation is de-composed over the layers of a machine, from its cores and caches to its vector
lanes, into `PRT.<layer>.<dimension>` parts each; along a dimension the parts multiply to its
extent. (Rasch, TOPLAS 2024, Table 1. As there in practice, de-composition, computation and
re-composition take one order and one assignment, so that they are one loop nest.)

    PRT.COR.i, PRT.SIMD.j, PRT.REG.k, ...   parts per layer and dimension; L1 takes the rest
    ORD.L2, ORD.L1                          the order of a cache's loops
    ASS.COR                                 cores "outer": around the tiles of L2, or "inner"
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from math import prod
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.compute.nodes import CC, Computation, Dim
from tilewright.expr.affine import affine
from tilewright.loops.lower import lower
from tilewright.schedule import Schedule
from tilewright.schedule.space.nest import fuse_all
from tilewright.tune.space import Divisors, Parameter, Set
from tilewright.tune.space.formula import BoundFormula

UNROLLED: Final = 32  # iterations that are written out, of all dimensions together
# Up to this many dimensions every order is tried; beyond it, each one as the innermost.
ORDERED: Final = 5
OUTER: Final = ("COR", "L2", "L1", "REG", "SIMD")
INNER: Final = ("L2", "COR", "L1", "REG", "SIMD")
NESTS: Final = {"outer": OUTER, "inner": INNER}


@dataclass(frozen=True)
class PartedExpression:
    """One expression, and the limits of its parts."""

    expression: Computation
    lanes: int
    cores: int | None

    @property
    def dims(self) -> list[Dim]:
        """Dimensions that can be cut."""
        return [d for d in self.expression.dims if d.extent > 1]

    def parameters(self) -> Iterator[Parameter]:
        """The parameters of Table 1; each chain of parts is in decision order."""
        vector = self._vector()
        cores: list[str] = []
        unrolled: list[str] = []
        for d in self.dims:
            name = d.var.name
            taken: list[str] = []
            if d.combine == CC:
                most = room(self.cores, cores)
                yield parts("COR", name, d.extent, taken, most)
                cores.append(f"PRT.COR.{name}")
            if d is vector:
                lanes = BoundFormula(self.lanes, ())
                yield parts("SIMD", name, d.extent, taken, lanes)
            most = room(UNROLLED, unrolled)
            yield parts("REG", name, d.extent, taken, most)
            unrolled.append(f"PRT.REG.{name}")
            yield parts("L2", name, d.extent, taken, BoundFormula(d.extent, ()))
        choices = orders([d.var.name for d in self.dims])
        if len(choices) > 1:
            yield Parameter("ORD.L2", Set(*choices))
            yield Parameter("ORD.L1", Set(*choices))
        if cores:
            yield Parameter("ASS.COR", Set(*NESTS))

    def _vector(self) -> Dim | None:
        """The dimension along which results are side by side in memory."""
        index = self.expression.outputs[0].index
        for d in self.dims:
            if d.combine == CC and affine(index[-1]).coefficient(d.var) == 1:
                return d
        return None

    def plain(self, passes: Sequence[Computation] = ()) -> Schedule:
        """The nest of the expression, or those of its passes, with nothing done."""
        c = self.expression
        results = list(dict.fromkeys(o.tensor for o in c.outputs))
        params = [*(b for b in c.inputs if b not in results), *results]
        return Schedule(lower(c.name, list(passes) or [c], params, results))

    def schedule(self, values: Mapping[str, Any]) -> Schedule:
        """The nest of these values. Raises ScheduleError if it is not legal."""
        c = self.expression
        s = self.plain()
        loops: dict[tuple[str, str], str] = {}
        nest = NESTS[values.get("ASS.COR", "outer")]
        for d in self.dims:
            name = f"{c.name}.{d.var.name}"
            loops |= split_layers(s, name, d, nest, values)
        order: list[tuple[str, str]] = []
        for layer in nest:
            keys = self.layer(layer, values)
            order += [key for key in keys if key in loops]
        starts = self.arrange(s, [(loops[key], key[1]) for key in order])

        def of_layer(layer: str) -> list[str]:
            return [loops[key] for key in order if key[0] == layer]

        for name in of_layer("REG"):
            s.unroll(name)
        for name in of_layer("SIMD"):
            s.vectorize(name)
            if name in starts:
                s.vectorize(starts[name])
        for name in of_layer("COR"):
            s.parallel(name)
        fuse_all(s, of_layer("COR"))
        return s

    def layer(self, layer: str, values: Mapping[str, Any]) -> list[tuple[str, str]]:
        """The loops of a layer, as layer and dimension, in their order."""
        names = [d.var.name for d in self.dims]
        return [(layer, name) for name in values.get(f"ORD.{layer}", names)]

    def arrange(self, s: Schedule, order: Sequence[tuple[str, str]]) -> dict[str, str]:
        """Put the loops in order; returns the loops that initialize results, by those of the nest.

        order: each loop with its dimension. If a reduction is outside a free loop, results are
        initialized before it.
        """
        free = {d.var.name for d in self.dims if d.combine == CC}
        names = [loop for loop, _ in order]
        around = [loop for loop, dim in order if dim in free]
        reduced = []
        for n, (_, dim) in enumerate(order):
            if dim not in free:
                reduced.append(n)
        if len(around) > 1:
            s.reorder(*around)
        if not reduced:
            return {}
        first = reduced[0]
        inside = [loop for loop, dim in order[first:] if dim in free]
        starts: dict[str, str] = {}
        if inside:
            for o in self.expression.outputs:
                made = s.decompose_reduction(o.tensor.name, inside[0])
                starts |= dict(zip(inside, made, strict=True))
        if len(names[first:]) > 1:
            s.reorder(*names[first:])
        return starts


def parts(
    layer: str, dim: str, extent: int, taken: list[str], most: BoundFormula
) -> Parameter:
    """A layer's number of parts along a dimension: a divisor of what earlier layers left."""
    name = f"PRT.{layer}.{dim}"
    left = BoundFormula(lambda *before: extent // prod(before), tuple(taken))
    taken.append(name)
    return Parameter(name, Divisors(left, at_most=most))


def room(most: int | None, taken: Sequence[str]) -> BoundFormula:
    """The remainder of a limit on the product of some parameters."""
    if most is None:
        return BoundFormula(float("inf"), ())
    return BoundFormula(lambda *before: most // prod(before), tuple(taken))


def orders(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Orders of dimensions that are tried."""
    if len(names) <= ORDERED:
        return list(permutations(names))
    return [(*(n for n in names if n != last), last) for last in names]


def split_layers(
    s: Schedule,
    loop: str,
    dim: Dim,
    nest: Sequence[str],
    values: Mapping[str, Any],
    rest: str = "L1",
) -> dict[tuple[str, str], str]:
    """Cut a loop into its layers' loops; those that there are, by layer and dimension.

    rest: the layer that has the parts which are left.
    """
    name = dim.var.name
    count = {layer: values.get(f"PRT.{layer}.{name}", 1) for layer in nest}
    count[rest] = dim.extent // prod(count.values())
    there = [layer for layer in nest if count[layer] > 1]
    made: dict[tuple[str, str], str] = {}
    for place, layer in enumerate(there[:-1]):
        below = prod([count[inner] for inner in there[place + 1 :]])
        made[layer, name], loop = s.split(loop, below)
    made[there[-1], name] = loop
    return made
