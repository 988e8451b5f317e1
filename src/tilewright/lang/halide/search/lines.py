"""A placement as directives: compute_at, split, reorder, vectorize, unroll, parallel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.lang.halide.levels import Scheduled
from tilewright.lang.halide.search.bodies import SMALL, Bodies
from tilewright.lang.halide.search.places import Place, Placement
from tilewright.lang.halide.syntax.domain import Var
from tilewright.lang.halide.verbs import Stage

STRIPS: Final = 2  # strips of rows for each thread


@dataclass(frozen=True, eq=False)
class Lines:
    """Writes a placement on new Funcs. to: the Func to write on, of each of the pipeline's."""

    bodies: Bodies
    placement: Placement
    tiles: Mapping[Any, tuple[int, int]]
    to: Mapping[Any, Scheduled]
    threads: int

    def write(self) -> None:
        """Give every stored Func its directives."""
        for f in reversed(self.placement.stored):
            self._place(f)
            self._lay_out(f)
            if self.placement.of(f) is Place.TILE:
                self._in_tile(f)
            else:
                self._in_rows(f)
            for n in range(1, len(f.definitions)):
                self._update(f, n)

    def _place(self, f: Any) -> None:
        hosts = self.placement.hosts
        assert hosts is not None
        place, made = self.placement.of(f), self.to[f]
        if place is Place.TILE:
            made.compute_at(self.to[hosts[f]], self._var(hosts[f], 0))
        elif place is Place.ROW:
            nest = self.placement.nest(f)
            made.compute_at(self.to[nest], self._var(nest, 1))
            if self._strips(nest):
                made.store_at(self.to[nest], _outer(nest))
            else:
                made.store_root()
        elif f not in self.bodies.stages.outputs:
            made.compute_root()

    def _lay_out(self, f: Any) -> None:
        """Where data choose among the values of a coordinate, these are side by side in memory."""
        chosen = self.placement.laid_out.get(f)
        if chosen is None or f in self.bodies.stages.outputs:
            return
        small = {v.name() for v in self._small(f)}.difference(chosen)
        near = [v for v in f.args if v.name() in small]
        near += [v for v in f.args if v.name() in chosen]
        rest = [v for v in f.args if v.name() not in small.union(chosen)]
        self.to[f].reorder_storage(*near, *rest)

    def _var(self, f: Any, n: int) -> Var:
        """The Func's loop along a coordinate: over tiles, where it has some."""
        found: Var = f.args[n]
        return found

    def _strips(self, f: Any) -> int:
        """The rows of a strip that a thread computes; 0: there is only one."""
        if self.threads == 1 or len(f.args) < 2:
            return 0
        rows, down = self.bodies.extents(f)[1], self.tiles[f][1]
        each = -(-rows // (self.threads * STRIPS))
        strip = -(-each // down) * down
        return strip if strip < rows else 0

    def _lanes(self, f: Any) -> int:
        """How many lanes vectors have along the first coordinate; 1: scalar code."""
        lanes = self.bodies.lanes(f)
        extent = self.bodies.extents(f)[0] if f.args else 1
        while lanes > extent:
            lanes //= 2
        return max(1, lanes)

    def _in_rows(self, f: Any) -> None:
        """The loops of a Func at root, or in rows: from the innermost, a vector, the coordinates
        of few values, the rest of a tile, tiles, other coordinates, rows."""
        made = self.to[f]
        if not f.args:
            return
        across, down = self.tiles[f]
        x, others = f.args[0], list(f.args[2:])
        lanes = self._lanes(f)
        order: list[Any] = []
        unrolled: list[Any] = []
        if across * down > 1:
            xi = Var(f"{x.name()}.tile")
            made.split(x, x, xi, lanes * across)
            unrolled += [xi] if across > 1 else []
        else:
            xi = x
        if lanes > 1 and (across > 1 or xi is x):
            xv = Var(f"{x.name()}.lane")
            made.split(xi, xi, xv, lanes)
            order.append(xv)
            made.vectorize(xv)
        elif lanes > 1:
            made.vectorize(xi)
        small = self._small(f)
        others = [v for v in others if v.name() not in {w.name() for w in small}]
        order += small
        unrolled += small
        order += [] if xi is x else [xi]
        if len(f.args) > 1:
            y = f.args[1]
            if down > 1:
                yi = Var(f"{y.name()}.tile")
                made.split(y, y, yi, down)
                order.append(yi)
                unrolled.append(yi)
            strip = self._strips(f) if self.placement.of(f) is Place.ROOT else 0
            if strip:
                made.split(y, _outer(f), y, strip // down)
                made.parallel(_outer(f))
            order += [x, *others, y]
            order += [_outer(f)] if strip else []
            made.reorder(*order)
        for v in unrolled:
            made.unroll(v)

    def _small(self, f: Any) -> list[Var]:
        """Coordinates of few values, which are computed side by side."""
        extents = self.bodies.extents(f)
        return [v for v, n in zip(f.args[2:], extents[2:], strict=True) if n <= SMALL]

    def _in_tile(self, f: Any) -> None:
        """The loops of a Func in a tile: all written out."""
        made = self.to[f]
        lanes = self._lanes(f)
        if lanes > 1:
            made.vectorize(f.args[0], lanes)
        for v in f.args[:2] if lanes > 1 else f.args[1:2]:
            made.unroll(v)

    def _update(self, f: Any, n: int) -> None:
        """Vectors innermost, then the coordinates of few values and (of a tile) its others, the
        reduction, and the rest."""
        bodies = self.bodies.of(f, self.placement.inline)
        assert bodies is not None
        body, stage = bodies[n], Stage(self.to[f].plan(n))
        pure = _pure(f, body.definition)
        in_tile = self.placement.of(f) is Place.TILE
        small = {v.name() for v in self._small(f)} & pure.keys()
        tiled = {v.name() for v in f.args[:2]} & pure.keys() if in_tile else set[str]()
        order: list[Any] = []
        if body.lane is not None and self._lanes(f) > 1:
            first = f.args[0]
            lanes = Var(f"{first.name()}.lane")
            stage.split(first, first, lanes, self._lanes(f))
            stage.vectorize(lanes)
            order.append(lanes)
            tiled.add(first.name())
        order += [v for name, v in pure.items() if name in small | tiled]
        if body.definition.domain is not None:
            order += body.definition.domain.vars
        order += [v for name, v in pure.items() if name not in small | tiled]
        if len(order) > 1:
            stage.reorder(*order)
        for name in small | (tiled if in_tile else set()):
            stage.unroll(pure[name])


def _pure(f: Any, definition: Any) -> dict[str, Var]:
    """The coordinates that an update leaves as they are, x first, by name."""
    pairs = zip(reversed(definition.args), f.args, strict=True)
    return {v.name(): v for arg, v in pairs if arg is v.node}


def _outer(f: Any) -> Var:
    """The loop over a Func's strips of rows."""
    return Var(f"{f.args[1].name()}.strip")
