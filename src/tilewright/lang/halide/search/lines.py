"""A placement as directives: compute_at, split, reorder, vectorize, unroll, parallel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.lang.halide.levels import Scheduled
from tilewright.lang.halide.syntax.domain import Var
from tilewright.lang.halide.verbs import Stage as Update
from tilewright.lang.halide.verbs import Verbs
from tilewright.tune.stages.bodies import SMALL
from tilewright.tune.stages.places import Place, StagePlaces
from tilewright.tune.stages.program import ProgramStage, StageNest, extents

STRIPS: Final = 2  # strips of rows for each thread


class _Loops:
    """The loops of a definition while they are written: those done, innermost first."""

    def __init__(self, verbs: Verbs) -> None:
        self.verbs = verbs
        self.order: list[Any] = []

    def vectors(self, var: Var, lanes: int) -> None:
        """Vectors along a loop, which is then over them."""
        name = f"{var.name()}.lane"
        inner = Var(name)
        self.verbs.split(var, var, inner, lanes)
        self.verbs.vectorize(inner)
        self.order.append(inner)

    def tile(self, var: Var, factor: int) -> Var:
        """The inner loop of tiles along a loop, which is then over them."""
        name = f"{var.name()}.tile"
        inner = Var(name)
        self.verbs.split(var, var, inner, factor)
        return inner

    def unroll(self, *several: Var) -> None:
        """Loops that are written out."""
        for var in several:
            self.verbs.unroll(var)
        self.order += several

    def close(self, *outer: Any) -> None:
        """The loops around them."""
        self.order += outer
        if len(self.order) > 1:
            self.verbs.reorder(*self.order)


@dataclass(frozen=True, eq=False)
class Lines:
    """Writes a placement on new Funcs. to: the Func to write on, of each stage."""

    placement: StagePlaces
    tiles: Mapping[ProgramStage, tuple[int, int]]
    to: Mapping[ProgramStage, Scheduled]
    threads: int

    def write(self) -> None:
        """Give every stored Func its directives."""
        placement = self.placement
        for f in reversed(placement.stored):
            self._place(f)
            self._lay_out(f)
            place = placement.of(f)
            if place is Place.TILE:
                self._in_tile(f)
            elif f.args:
                self._in_rows(f)
            count = len(f.definitions)
            for n in range(1, count):
                self._update(f, n)

    def _place(self, f: ProgramStage) -> None:
        hosts = self.placement.hosts
        assert hosts is not None
        place = self.placement.of(f)
        made = self.to[f]
        if place is Place.TILE:
            host = self.to[hosts[f]]
            x = host.args[0]
            made.compute_at(host, x)
        elif place is Place.ROW:
            nest = self.placement.nest(f)
            root = self.to[nest]
            y = root.args[1]
            made.compute_at(root, y)
            if self._strip(nest):
                outer = _outer(root)
                made.store_at(root, outer)
            else:
                made.store_root()
        elif not self._is_output(f):
            made.compute_root()

    def _is_output(self, f: ProgramStage) -> bool:
        program = self.placement.bodies.program
        return f in program.outputs

    def _lay_out(self, f: ProgramStage) -> None:
        """Where data choose among the values of a coordinate, these are side by side in memory."""
        chosen = self.placement.laid_out.get(f)
        if chosen is None or self._is_output(f):
            return
        near: dict[str, int] = {}
        for v in self._few(f):
            name = v.name()
            near[name] = 0
        for name in chosen:
            near[name] = 1

        def place(v: Var) -> int:
            name = v.name()
            return near.get(name, 2)

        made = self.to[f]
        order = sorted(made.args, key=place)
        made.reorder_storage(*order)

    def _strip(self, f: ProgramStage) -> int:
        """The rows of a strip that a thread computes; 0: there is only one."""
        if self.threads == 1 or len(f.args) < 2:
            return 0
        rows = extents(f)[1]
        _, down = self.tiles[f]
        strips = self.threads * STRIPS
        each = -(-rows // strips)
        strip = -(-each // down) * down
        return strip if strip < rows else 0

    def _lanes(self, f: ProgramStage) -> int:
        """How many lanes vectors have along the first coordinate; 1: scalar code."""
        if not f.args:
            return 1
        extent = extents(f)[0]
        lanes = self.placement.bodies.lanes(f)
        while lanes > extent:
            lanes //= 2
        return lanes

    def _in_rows(self, f: ProgramStage) -> None:
        """The loops of a Func at root, or in rows: from the innermost, a vector, the coordinates
        of few values, the rest of a tile, tiles, other coordinates, rows."""
        made = self.to[f]
        loops = _Loops(made)
        across, down = self.tiles[f]
        lanes = self._lanes(f)
        x = made.args[0]
        inner = x
        if across > 1:
            columns = lanes * across
            inner = loops.tile(x, columns)
        if lanes > 1:
            loops.vectors(inner, lanes)
        few = self._few(f)
        loops.unroll(*few)
        if across > 1:
            loops.unroll(inner)
        if len(made.args) == 1:
            loops.close(x)
            return
        y = made.args[1]
        if down > 1:
            rows = loops.tile(y, down)
            loops.unroll(rows)
        others = self._others(f, few)
        strip = self._strip(f)
        if self.placement.of(f) is not Place.ROOT or not strip:
            loops.close(x, *others, y)
            return
        outer = _outer(made)
        tiles = strip // down
        made.split(y, outer, y, tiles)
        made.parallel(outer)
        loops.close(x, *others, y, outer)

    def _others(self, f: ProgramStage, few: list[Var]) -> list[Var]:
        """The coordinates after the second that have many values."""
        names = {v.name() for v in few}
        found = []
        for v in self.to[f].args[2:]:
            name = v.name()
            if name not in names:
                found.append(v)
        return found

    def _few(self, f: ProgramStage) -> list[Var]:
        """Coordinates of few values, which are computed side by side."""
        found = []
        made = self.to[f]
        sizes = extents(f)
        pairs = zip(made.args, sizes, strict=True)
        for v, n in list(pairs)[2:]:
            if n <= SMALL:
                found.append(v)
        return found

    def _in_tile(self, f: ProgramStage) -> None:
        """The loops of a Func in a tile: all written out."""
        made = self.to[f]
        lanes = self._lanes(f)
        first = 1
        if lanes > 1:
            made.vectorize(made.args[0], lanes)
            first = 0
        for v in made.args[first:2]:
            made.unroll(v)

    def _update(self, f: ProgramStage, n: int) -> None:
        """Vectors innermost, then the coordinates of few values and (of a tile) its others, the
        reduction, and the rest."""
        bodies = self.placement.bodies.of(f, self.placement.inline)
        assert bodies is not None
        body = bodies[n]
        made = self.to[f]
        plan = made.plan(n)
        loops = _Loops(Update(plan))
        pure = _pure(f, made, body.definition)
        near = self._few(f)
        if self.placement.of(f) is Place.TILE:
            near += made.args[:2]
        few = {v.name() for v in near}
        lanes = self._lanes(f)
        if body.lane is not None and lanes > 1:
            first = made.args[0]
            name = first.name()
            loops.vectors(first, lanes)
            if name not in few:
                vectors = pure.pop(name)
                loops.order.append(vectors)
        for name in list(pure):
            if name in few:
                var = pure.pop(name)
                loops.unroll(var)
        domain = made.definitions[n].domain
        reduced = () if domain is None else domain.vars
        loops.close(*reduced, *pure.values())


def _pure(f: ProgramStage, made: Scheduled, definition: StageNest) -> dict[str, Var]:
    """The coordinates that an update leaves as they are, x first, by name."""
    found = {}
    places = reversed(definition.args)
    for place, v, var in zip(places, f.args, made.args, strict=True):
        if place is v:
            name = var.name()
            found[name] = var
    return found


def _outer(made: Scheduled) -> Var:
    """The loop over a Func's strips of rows."""
    y = made.args[1]
    name = f"{y.name()}.strip"
    return Var(name)
