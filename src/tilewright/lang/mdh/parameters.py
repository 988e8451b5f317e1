"""MDH's tuning parameters of an expression: how it is cut into parts, and in which order.

A computation is de-composed over the layers of a machine, from its cores and caches to its vector
lanes, into `PRT.<layer>.<dimension>` parts each; along a dimension the parts multiply to its
extent. (Rasch, TOPLAS 2024, Table 1. As there in practice, de-composition, computation and
re-composition take one order and one assignment, so that they are one loop nest.)

    PRT.COR.i, PRT.SIMD.j, PRT.REG.k, ...   parts per layer and dimension; what is left is L1's
    ORD.L2, ORD.L1                          the order of a cache's loops
    ASS.COR                                 cores "outer": around the tiles of L2, or "inner"
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import prod
from typing import Any, Final

from tilewright.base.errors import InputError, UnsupportedError
from tilewright.base.text import listing
from tilewright.compute.nodes import CC, PS, Computation, Dim
from tilewright.expr.affine import affine
from tilewright.loops.lower import lower
from tilewright.schedule import Schedule
from tilewright.schedule.space.nest import fuse_all
from tilewright.tune.space import Divisors, Parameter, ProgramSpace, Set
from tilewright.tune.space.formula import Bound

UNROLLED: Final = 32  # iterations that are written out, of all dimensions together
ORDERED: Final = (
    5  # dimensions of which every order is tried; of more: each one as the innermost
)
OUTER: Final = ("COR", "L2", "L1", "REG", "SIMD")
INNER: Final = ("L2", "COR", "L1", "REG", "SIMD")
NESTS: Final = {"outer": OUTER, "inner": INNER}


def parameter_space(
    expression: Computation, *, lanes: int = 16, cores: int | None = None
) -> ProgramSpace:
    """The space of one expression; `.schedule(candidate)` is its schedule on a CPU.

    lanes: the longest vector. cores: the most parts for cores, of all dimensions together; None:
    no limit. Parts for cores and lanes are of cc dimensions only: results of others would have to
    be combined between them. Raises InputError for what is no single expression, UnsupportedError
    for one with a scan, whose steps have one order.
    """
    if not isinstance(expression, Computation):
        raise InputError(
            f"{expression!r} is not an expression",
            where="mdh.parameter_space",
            hint="as in out_view[...](...) @ md_hom[...](...) @ inp_view[...](...)",
        )
    scans = [d.var.name for d in expression.dims if d.combine == PS and d.extent > 1]
    if scans:
        raise UnsupportedError(
            f"{expression.name} is a scan along {listing(scans)}",
            where="mdh.parameter_space",
            hint="build it: the target's sketches have their own parameters",
        )
    cut = _Cut(expression, lanes, cores)
    return ProgramSpace(expression.name, cut.parameters(), cut.schedule)


@dataclass(frozen=True)
class _Cut:
    """One expression, and the limits of its parts."""

    expression: Computation
    lanes: int
    cores: int | None

    @property
    def dims(self) -> list[Dim]:
        """Dimensions that can be cut."""
        return [d for d in self.expression.dims if d.extent > 1]

    def parameters(self) -> Iterator[Parameter]:
        """Those of Table 1, each chain of parts in the order in which it is decided."""
        vector = self._vector()
        cores: list[str] = []
        unrolled: list[str] = []
        for d in self.dims:
            name = d.var.name
            taken: list[str] = []
            if d.combine == CC:
                yield _parts("COR", name, d.extent, taken, _room(self.cores, cores))
                cores.append(f"PRT.COR.{name}")
            if d is vector:
                yield _parts("SIMD", name, d.extent, taken, Bound(self.lanes, ()))
            yield _parts("REG", name, d.extent, taken, _room(UNROLLED, unrolled))
            unrolled.append(f"PRT.REG.{name}")
            yield _parts("L2", name, d.extent, taken, Bound(d.extent, ()))
        orders = _orders([d.var.name for d in self.dims])
        if len(orders) > 1:
            yield Parameter("ORD.L2", Set(*orders))
            yield Parameter("ORD.L1", Set(*orders))
        if cores:
            yield Parameter("ASS.COR", Set(*NESTS))

    def _vector(self) -> Dim | None:
        """The dimension along which results lie side by side in memory."""
        index = self.expression.outputs[0].index
        for d in self.dims:
            if d.combine == CC and affine(index[-1]).coefficient(d.var) == 1:
                return d
        return None

    def schedule(self, values: Mapping[str, Any]) -> Schedule:
        """The nest of these values. Raises ScheduleError where it is not legal."""
        c = self.expression
        results = list(dict.fromkeys(o.tensor for o in c.outputs))
        params = [*(b for b in c.inputs if b not in results), *results]
        s = Schedule(lower(c.name, [c], params, results))
        loops: dict[tuple[str, str], str] = {}
        nest = NESTS[values.get("ASS.COR", "outer")]
        for d in self.dims:
            loops |= _split(s, f"{c.name}.{d.var.name}", d, nest, values)
        order = [key for layer in nest for key in self._layer(layer, values)]
        order = [key for key in order if key in loops]
        starts = self._arrange(s, [(loops[key], key[1]) for key in order])

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

    def _layer(self, layer: str, values: Mapping[str, Any]) -> list[tuple[str, str]]:
        names = [d.var.name for d in self.dims]
        return [(layer, name) for name in values.get(f"ORD.{layer}", names)]

    def _arrange(self, s: Schedule, order: Sequence[tuple[str, str]]) -> dict[str, str]:
        """Put the loops in order; the loops that start the results, by those of the nest.

        order: each loop with its dimension. Where a reduction is outside of a free loop, results
        are started before it.
        """
        free = {d.var.name for d in self.dims if d.combine == CC}
        names = [loop for loop, _ in order]
        around = [loop for loop, dim in order if dim in free]
        reduced = [n for n, (_, dim) in enumerate(order) if dim not in free]
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


def _parts(
    layer: str, dim: str, extent: int, taken: list[str], most: Bound
) -> Parameter:
    """How many parts a layer makes along a dimension: divisors of what was not taken before."""
    name = f"PRT.{layer}.{dim}"
    left = Bound(lambda *before: extent // prod(before), tuple(taken))
    taken.append(name)
    return Parameter(name, Divisors(left, at_most=most))


def _room(most: int | None, taken: Sequence[str]) -> Bound:
    """What is left of a limit on the product of some parameters."""
    if most is None:
        return Bound(float("inf"), ())
    return Bound(lambda *before: most // prod(before), tuple(taken))


def _orders(names: Sequence[str]) -> list[tuple[str, ...]]:
    if len(names) <= ORDERED:
        return list(permutations(names))
    return [(*(n for n in names if n != last), last) for last in names]


def _split(
    s: Schedule,
    loop: str,
    dim: Dim,
    nest: Sequence[str],
    values: Mapping[str, Any],
) -> dict[tuple[str, str], str]:
    """Cut a loop into its layers' loops; those that there are, by layer and dimension."""
    name = dim.var.name
    parts = {layer: values.get(f"PRT.{layer}.{name}", 1) for layer in nest}
    parts["L1"] = dim.extent // prod(parts.values())
    there = [layer for layer in nest if parts[layer] > 1]
    made: dict[tuple[str, str], str] = {}
    for place, layer in enumerate(there[:-1]):
        below = prod([parts[inner] for inner in there[place + 1 :]])
        made[layer, name], loop = s.split(loop, below)
    made[there[-1], name] = loop
    return made
