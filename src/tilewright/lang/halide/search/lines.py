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
from tilewright.tune.stages.places import Place, Placement
from tilewright.tune.stages.program import Definition, Stage, extents

STRIPS: Final = 2  # strips of rows for each thread


class _Loops:
    """The loops of a definition while they are written: those done, innermost first."""

    def __init__(self, verbs: Verbs) -> None:
        self.verbs = verbs
        self.order: list[Any] = []

    def vectors(self, var: Var, lanes: int) -> None:
        """Vectors along a loop, which is then over them."""
        inner = Var(f"{var.name()}.lane")
        self.verbs.split(var, var, inner, lanes)
        self.verbs.vectorize(inner)
        self.order.append(inner)

    def tile(self, var: Var, factor: int) -> Var:
        """The inner loop of tiles along a loop, which is then over them."""
        inner = Var(f"{var.name()}.tile")
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

    placement: Placement
    tiles: Mapping[Stage, tuple[int, int]]
    to: Mapping[Stage, Scheduled]
    threads: int

    def write(self) -> None:
        """Give every stored Func its directives."""
        for f in reversed(self.placement.stored):
            self._place(f)
            self._lay_out(f)
            if self.placement.of(f) is Place.TILE:
                self._in_tile(f)
            elif f.args:
                self._in_rows(f)
            for n in range(1, len(f.definitions)):
                self._update(f, n)

    def _place(self, f: Stage) -> None:
        hosts = self.placement.hosts
        assert hosts is not None
        place = self.placement.of(f)
        made = self.to[f]
        if place is Place.TILE:
            host = self.to[hosts[f]]
            made.compute_at(host, host.args[0])
        elif place is Place.ROW:
            nest = self.placement.nest(f)
            root = self.to[nest]
            made.compute_at(root, root.args[1])
            if self._strip(nest):
                made.store_at(root, _outer(root))
            else:
                made.store_root()
        elif f not in self.placement.bodies.program.outputs:
            made.compute_root()

    def _lay_out(self, f: Stage) -> None:
        """Where data choose among the values of a coordinate, these are side by side in memory."""
        chosen = self.placement.laid_out.get(f)
        if chosen is None or f in self.placement.bodies.program.outputs:
            return
        made = self.to[f]
        few = {v.name() for v in self._few(f)}
        few -= set(chosen)
        near = [v for v in made.args if v.name() in few]
        near += [v for v in made.args if v.name() in chosen]
        names = {v.name() for v in near}
        rest = [v for v in made.args if v.name() not in names]
        made.reorder_storage(*near, *rest)

    def _strip(self, f: Stage) -> int:
        """The rows of a strip that a thread computes; 0: there is only one."""
        if self.threads == 1 or len(f.args) < 2:
            return 0
        rows = extents(f)[1]
        down = self.tiles[f][1]
        each = -(-rows // (self.threads * STRIPS))
        strip = -(-each // down) * down
        return strip if strip < rows else 0

    def _lanes(self, f: Stage) -> int:
        """How many lanes vectors have along the first coordinate; 1: scalar code."""
        lanes = self.placement.bodies.lanes(f)
        extent = extents(f)[0] if f.args else 1
        while lanes > extent:
            lanes //= 2
        return max(1, lanes)

    def _in_rows(self, f: Stage) -> None:
        """The loops of a Func at root, or in rows: from the innermost, a vector, the coordinates
        of few values, the rest of a tile, tiles, other coordinates, rows."""
        made = self.to[f]
        loops = _Loops(made)
        across, down = self.tiles[f]
        lanes = self._lanes(f)
        x = made.args[0]
        inner = x
        if across > 1:
            inner = loops.tile(x, lanes * across)
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
            loops.unroll(loops.tile(y, down))
        names = {v.name() for v in few}
        others = [v for v in made.args[2:] if v.name() not in names]
        strip = self._strip(f)
        if strip and self.placement.of(f) is Place.ROOT:
            made.split(y, _outer(made), y, strip // down)
            made.parallel(_outer(made))
            loops.close(x, *others, y, _outer(made))
        else:
            loops.close(x, *others, y)

    def _few(self, f: Stage) -> list[Var]:
        """Coordinates of few values, which are computed side by side."""
        pairs = zip(self.to[f].args, extents(f), strict=True)
        return [v for v, n in list(pairs)[2:] if n <= SMALL]

    def _in_tile(self, f: Stage) -> None:
        """The loops of a Func in a tile: all written out."""
        made = self.to[f]
        lanes = self._lanes(f)
        first = 1
        if lanes > 1:
            made.vectorize(made.args[0], lanes)
            first = 0
        for v in made.args[first:2]:
            made.unroll(v)

    def _update(self, f: Stage, n: int) -> None:
        """Vectors innermost, then the coordinates of few values and (of a tile) its others, the
        reduction, and the rest."""
        bodies = self.placement.bodies.of(f, self.placement.inline)
        assert bodies is not None
        made = self.to[f]
        loops = _Loops(Update(made.plan(n)))
        pure = _pure(f, made, bodies[n].definition)
        first = made.args[0] if made.args else None
        few = [v.name() for v in self._few(f)]
        if self.placement.of(f) is Place.TILE:
            few += [v.name() for v in made.args[:2]]
        lanes = self._lanes(f)
        if first is not None and bodies[n].lane is not None and lanes > 1:
            loops.vectors(first, lanes)
            if first.name() not in few:
                loops.order.append(pure.pop(first.name()))
        inner = [name for name in pure if name in few]
        loops.unroll(*(pure.pop(name) for name in inner))
        domain = made.definitions[n].domain
        reduced = () if domain is None else domain.vars
        loops.close(*reduced, *pure.values())


def _pure(f: Stage, made: Scheduled, definition: Definition) -> dict[str, Var]:
    """The coordinates that an update leaves as they are, x first, by name."""
    found = {}
    for place, v, made_var in zip(
        reversed(definition.args), f.args, made.args, strict=True
    ):
        if place is v:
            found[made_var.name()] = made_var
    return found


def _outer(made: Scheduled) -> Var:
    """The loop over a Func's strips of rows."""
    return Var(f"{made.args[1].name()}.strip")
