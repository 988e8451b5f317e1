"""What a placement costs: cycles of one core, from what is computed, loaded and moved.

A stored stage takes the longer of its arithmetic and loads, and of moving what it reads and writes
from and to the cache (or memory) that has room for it; a share of the shorter is exposed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, inf, prod
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import Load
from tilewright.expr.reads import loads, variables
from tilewright.tune.stages.bodies import SMALL, Bodies, StageBody
from tilewright.tune.stages.places import Place, StagePlaces, chosen
from tilewright.tune.stages.program import ProgramStage, extents, size

# (vectors, rows) of a tile of registers.
TILES: Final = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 4), (4, 5), (2, 1), (4, 1))
ACCUMULATORS: Final = 24  # vectors of results in registers, at most
Region = list[tuple[int, int]]  # (first, last), in NumPy's order


@dataclass(frozen=True, slots=True)
class Priced:
    """Cycles, and the tile of each stage at root or in rows: vectors along x, and rows."""

    cycles: float
    tiles: Mapping[ProgramStage, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class NestTraffic:
    """A nest at root. window: bytes of the rows it keeps; streams: rows it reads and writes."""

    window: float
    streams: int


class Prices:
    """Prices of placements of one program, the parts of which are remembered."""

    def __init__(self, bodies: Bodies) -> None:
        self.bodies = bodies
        self.costs = bodies.costs
        self._known: dict[Any, Any] = {}

    def of(self, placement: StagePlaces) -> Priced | None:
        """The price; None for a placement that is not possible."""
        hosts = placement.hosts
        if hosts is None:
            return None
        total = 0.0
        tiles: dict[ProgramStage, tuple[int, int]] = {}
        groups: dict[ProgramStage, list[ProgramStage]] = {}
        for f in placement.stored:
            groups.setdefault(placement.nest(f), []).append(f)
        for root, members in groups.items():
            found = self._group(placement, root, members)
            if found is None:
                return None
            total += found.cycles
            tiles |= found.tiles
        return Priced(total, tiles)

    def _group(
        self,
        placement: StagePlaces,
        root: ProgramStage,
        members: Sequence[ProgramStage],
    ) -> Priced | None:
        """The price of a nest at root."""
        key: Any = root, *(self._said(placement, f) for f in members)
        if key not in self._known:
            self._known[key] = self._nest(placement, root, members)
        found: Priced | None = self._known[key]
        return found

    def _said(self, placement: StagePlaces, f: ProgramStage) -> tuple[Any, ...]:
        """All of a placement that decides what a stage costs."""
        laid = placement.laid_out
        inlined = self.bodies.inlined(f, placement.inline)
        read = ((placement.of(p), p in laid) for p in self._read(placement, f))
        return f, placement.of(f), f in laid, inlined, *read

    def _read(self, placement: StagePlaces, f: ProgramStage) -> list[ProgramStage]:
        bodies = self.bodies.of(f, placement.inline) or ()
        return [o for b in bodies for o in b.reads if isinstance(o, ProgramStage)]

    def _nest(
        self,
        placement: StagePlaces,
        root: ProgramStage,
        members: Sequence[ProgramStage],
    ) -> Priced | None:
        if any(self.bodies.of(f, placement.inline) is None for f in members):
            return None
        assert placement.hosts is not None
        rows = [f for f in members if placement.of(f) is Place.ROW]
        if rows and len(root.args) < 2:
            return None
        best: Priced | None = None
        for tile in self.tiles_of(root, rows):
            window = self._window(placement, root, rows, tile[1])
            if window is None:
                return best
            nest = NestTraffic(window, tile[1] * self._streams(placement, members))
            total, tiles = 0.0, {}
            for host in (root, *rows):
                inside = [
                    f
                    for f in members
                    if placement.hosts[f] is host and placement.of(f) is Place.TILE
                ]
                options = [tile] if host is root else self.tiles_of(host, (), 1)
                priced = [
                    (self._host(placement, host, inside, t, nest), t) for t in options
                ]
                cycles, chosen = min(priced, key=lambda p: p[0])
                total += cycles
                tiles[host] = chosen
            if total < inf and (best is None or total < best.cycles):
                best = Priced(total, tiles)
        return best

    def tiles_of(
        self, f: ProgramStage, rows: Sequence[ProgramStage], most: int = 8
    ) -> list[tuple[int, int]]:
        """Tiles that fit the extents of a stage."""
        sizes = extents(f)
        lanes = self.bodies.lanes(f)
        if not sizes or sizes[0] < lanes:
            return [(1, 1)]
        down = sizes[1] if len(sizes) > 1 else 1
        found = [
            (a, d) for a, d in TILES if a * lanes <= sizes[0] and d <= min(down, most)
        ]
        if (
            rows
        ):  # rows that are left over would be guarded, in all that is computed in rows
            found = [(a, d) for a, d in found if down % d == 0]
        return found

    # -- regions

    def _needed(
        self,
        placement: StagePlaces,
        start: Mapping[ProgramStage, Region],
        members: Sequence[ProgramStage],
    ) -> dict[ProgramStage, Region] | None:
        """The region of each member that those which read it need; None: not bounded."""
        regions: dict[ProgramStage, Region] = {f: list(r) for f, r in start.items()}
        for f in reversed(placement.stored):
            if f not in regions:
                continue
            for body in self.bodies.of(f, placement.inline) or ():
                env = _environment(body, regions[f])
                for p in members:
                    for load in body.reads.get(p, ()):
                        read = self._ends(p, load, env)
                        if not _joined(regions, p, read):
                            return None
        return regions

    def _ends(
        self, p: ProgramStage, load: Load, env: Mapping[Any, tuple[int, int]]
    ) -> list[tuple[int | None, int | None]]:
        """The region that a load reads: where data choose, all of a dimension."""
        key = load, *(env.get(v) for v in variables(load))
        if key not in self._known:
            whole = list(p.box)
            self._known[key] = [
                ends if loads(i) else bounds(i, env)
                for i, ends in zip(load.index, whole, strict=True)
            ]
        found: list[tuple[int | None, int | None]] = self._known[key]
        return found

    def _window(
        self,
        placement: StagePlaces,
        root: ProgramStage,
        rows: Sequence[ProgramStage],
        down: int,
    ) -> float | None:
        """The bytes of the rows that are kept while a nest goes down; None: not possible."""
        if not rows:
            return 0.0
        box = list(root.box)
        axis = self.row_axis(root)
        middle = (box[axis][0] + box[axis][1]) // 2
        box[axis] = (middle, middle + down - 1)
        needed = self._needed(placement, {root: box}, rows)
        if needed is None:
            return None
        total = 0.0
        for f in rows:
            if f not in needed:
                return None
            whole = size(f)
            kept = prod(hi - lo + 1 for lo, hi in needed[f])
            kept *= sum(s.dtype.itemsize for s in f.symbols)
            if kept * 2 > whole:
                return None  # nothing is gained over root
            total += kept
        return total

    def row_axis(self, f: ProgramStage) -> int:
        """The dimension that a nest goes down, in NumPy's order: the second, or the third where
        tiles take that."""
        return len(f.args) - 2

    # -- the price of one stage and what is computed in its tiles

    def _host(
        self,
        placement: StagePlaces,
        host: ProgramStage,
        inside: Sequence[ProgramStage],
        tile: tuple[int, int],
        nest: NestTraffic,
    ) -> float:
        across, down = tile
        lanes = self.bodies.lanes(host)
        sizes = extents(host)
        total = self._stage(placement, host, 1.0, tile, nest, ())
        if not inside:
            return total
        if not sizes or sizes[0] < lanes:
            return inf
        box = _middle(self.bodies, host, across * lanes, down)
        needed = self._needed(placement, {host: box}, inside)
        if needed is None:
            return inf
        tiles = ceil(sizes[0] / (across * lanes)) * prod(sizes[2:])
        tiles *= ceil(sizes[1] / down) if len(sizes) > 1 else 1
        vectors = 0
        for f in inside:
            if f not in needed:
                return inf
            region = [hi - lo + 1 for lo, hi in reversed(needed[f])]
            wide = self.bodies.lanes(f)
            count = ceil(region[0] / wide)
            vectors += count * prod(region[1:])
            whole = prod(extents(f))
            share = tiles * count * wide * prod(region[1:]) / whole
            rows = region[1] if len(region) > 1 else 1
            own = (count, rows)
            total += self._stage(placement, f, share, own, nest, inside)
            total += tiles * 2 * sum(1 for b in f.definitions)
        if vectors > 4 * ACCUMULATORS:
            return inf
        spilled = max(0, vectors - ACCUMULATORS)
        total += tiles * (spilled / self.costs.facts.loads + 2)
        return total

    def _stage(
        self,
        placement: StagePlaces,
        f: ProgramStage,
        share: float,
        tile: tuple[int, int],
        nest: NestTraffic,
        inside: Sequence[ProgramStage],
    ) -> float:
        """Cycles of computing a stored stage `share` times."""
        total = 0.0
        kept = placement.of(f)
        in_tile = f in inside
        for body in self.bodies.of(f, placement.inline) or ():
            points = self._points(body) * share
            computed = self._computed(body, tile, in_tile) * points
            computed += self._apart(placement, body) * points
            other = self._begun(body, points)
            if kept is Place.ROW:
                other += self._idle(placement, body, points)
            moved = self._moved(placement, f, body, nest)
            moved += self._written(f, kept, nest)
            exposed = self.costs.exposed * min(computed, moved)
            total += max(computed, moved) + exposed + other
        return total

    def _computed(self, body: StageBody, tile: tuple[int, int], in_tile: bool) -> float:
        """Cycles per element: arithmetic, or loads and stores where these take longer."""
        f = body.func
        down = f.args[1] if len(f.args) > 1 and tile[1] > 1 else None
        arithmetic, crowded = body.arithmetic, 1.0
        loaded, vectors = body.loads(tile[0], (down, tile[1]))
        if body.lane is not None and not in_tile:
            spilled = max(0, vectors - self.costs.kept) * f.symbols[0].dtype.itemsize
            loaded += 2 * spilled / self.costs.facts.vector / tile[0] / tile[1]
            crowded = self._crowded(body, tile)
        size = sum(s.dtype.itemsize for s in f.symbols)
        stored = size / self.costs.facts.vector
        if body.lane is None:
            stored = self.costs.scalar
        updates = body.definition is not f.definitions[0]
        if updates:
            arithmetic += stored / self.costs.issued * 0.5
            loaded += 0.0 if in_tile else 2 * stored
            if body.lane is None:
                loaded += 4 * self.costs.scalar
        elif not in_tile:
            loaded += stored
        return crowded * (max(arithmetic, loaded) + 0.25 * min(arithmetic, loaded))

    def _apart(self, placement: StagePlaces, body: StageBody) -> float:
        """Cycles per element that lanes take where what data choose from is apart in memory, and
        of stores where it is side by side."""
        costs, total = self.costs, 0.0
        if body.lane is None:
            return 0.0
        if body.func in placement.laid_out:
            total += costs.lane
        for owner, several in body.reads.items():
            if isinstance(owner, ProgramStage) and owner not in placement.laid_out:
                count = sum(1 for load in several if chosen(load, owner))
                total += (costs.far_lane - costs.lane) * count
        return total

    def _crowded(self, body: StageBody, tile: tuple[int, int]) -> float:
        """Times as long as operations take where a tile has so many that values are spilled."""
        lanes = self.bodies.lanes(body.func)
        count = body.arithmetic * lanes * self.costs.issued * tile[0] * tile[1]
        if tile == (1, 1) or count <= self.costs.written:
            return 1.0
        return 2 - self.costs.written / count

    def _points(self, body: StageBody) -> float:
        """How many elements a definition computes, all in all."""
        f = body.func
        boxes = list(reversed(extents(f)))
        pairs = zip(body.definition.args, reversed(f.args), boxes, strict=True)
        pure = prod(n for arg, v, n in pairs if arg is v)
        domain = body.definition.domain
        reduced = prod(hi - lo + 1 for lo, hi in domain.values())
        return float(pure * reduced)

    def _begun(self, body: StageBody, points: float) -> float:
        """Cycles to begin rows."""
        sizes = extents(body.func) or [1]
        return self.costs.start * points / sizes[0]

    def _idle(self, placement: StagePlaces, body: StageBody, points: float) -> float:
        """Cycles of a stage in rows where its nest goes down and it has no new row: its loops run,
        and compute nothing."""
        f = body.func
        rows = extents(placement.nest(f))[1]
        own = extents(f)[1] if len(f.args) > 1 else 1
        lanes = 1 if body.lane is None else self.bodies.lanes(f)
        return self.costs.idle * points / lanes * max(0.0, rows / own - 1)

    def _moved(
        self,
        placement: StagePlaces,
        f: ProgramStage,
        body: StageBody,
        nest: NestTraffic,
    ) -> float:
        """Cycles to bring what a definition reads to the first cache."""
        total = 0.0
        for owner in body.reads:
            if owner is f:
                continue
            amount = size(owner)
            near = float(amount)
            if isinstance(owner, ProgramStage) and placement.of(owner) is Place.TILE:
                continue
            if isinstance(owner, ProgramStage) and placement.of(owner) is Place.ROW:
                near = nest.window
            total += amount / self.costs.bytes_per_cycle(near, nest.streams)
        return total

    def _streams(self, placement: StagePlaces, members: Sequence[ProgramStage]) -> int:
        """The rows that a nest reads from and writes to whole stages and images at a time."""
        owners: dict[Any, None] = {}
        for f in members:
            for body in self.bodies.of(f, placement.inline) or ():
                owners |= dict.fromkeys((*body.reads, f))
        count = 0
        for owner in owners:
            if not isinstance(owner, ProgramStage) or placement.of(owner) is Place.ROOT:
                planes = [hi - lo + 1 for lo, hi in list(owner.box)[:-2]]
                count += prod(n for n in planes if n <= SMALL)
        return count

    def _written(self, f: ProgramStage, kept: Place, nest: NestTraffic) -> float:
        """Cycles to write a stage; lines of a large one are read first."""
        amount = size(f)
        near = nest.window if kept is Place.ROW else float(amount)
        if kept is Place.TILE:
            return 0.0
        return 2 * amount / self.costs.bytes_per_cycle(near, nest.streams)


def _middle(bodies: Bodies, f: ProgramStage, across: int, down: int) -> Region:
    """A tile in the middle of a stage."""
    found: Region = []
    for n, (lo, hi) in enumerate(reversed(f.box)):
        first = (lo + hi) // 2
        size = across if n == 0 else down if n == 1 else 1
        found.insert(0, (first, first + size - 1))
    return found


def _environment(body: StageBody, region: Region) -> dict[Any, tuple[int, int]]:
    env: dict[Any, tuple[int, int]] = {}
    f = body.func
    for arg, v, ends in zip(
        body.definition.args, reversed(f.args), region, strict=True
    ):
        if arg is v:
            env[arg] = ends
    return {**env, **body.definition.domain}


def _joined(
    regions: dict[ProgramStage, Region],
    p: ProgramStage,
    read: Sequence[tuple[int | None, int | None]],
) -> bool:
    """Add what is read to the region of a stage; False where it has no bounds."""
    found: Region = []
    for lo, hi in read:
        if lo is None or hi is None:
            return False
        found.append((lo, hi))
    if p in regions:
        old = regions[p]
        found = [
            (min(a, c), max(b, d)) for (a, b), (c, d) in zip(old, found, strict=True)
        ]
    regions[p] = found
    return True
