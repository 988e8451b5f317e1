"""Register tiles and loop orders for contractions, picked per shape by a small model.

The model counts vector instructions: a tile of m broadcast rows by v vectors does m*v fused
multiply-adds and m + v loads per step of the reduction, must fit m*v + v + 1 registers, and wastes
what sticks out over the edges (tiles are moved back at an edge and recompute).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import float32
from tilewright.schedule.space.choices import Choices
from tilewright.targets.cpu.cost import CostModel
from tilewright.targets.cpu.emit_transpose import SIDE


@dataclass(frozen=True, slots=True)
class Tile:
    """rows: one factor per row dimension (innermost last); vectors of `lanes` lanes."""

    rows: tuple[int, ...]
    vectors: int
    lanes: int

    @property
    def width(self) -> int:
        """Columns of the tile."""
        return self.vectors * self.lanes

    @property
    def value(self) -> tuple[int, ...]:
        """The tile as the value of a parameter."""
        return (*self.rows, self.vectors)

    def fits(self, packed: Sequence[int]) -> bool:
        """Whether columns of this shape may have been packed for such tiles: the vectors of a tile
        are last, and an axis of one vector is left out."""
        last = (self.lanes,) if self.vectors == 1 else (self.vectors, self.lanes)
        return tuple(packed[-len(last) :]) == last

    def divides(self, rows: Sequence[int], columns: int) -> bool:
        """Whether no tile overlaps another one, with these extents."""
        factors = zip((*rows, columns), (*self.rows, self.width), strict=True)
        return all(extent % factor == 0 for extent, factor in factors)


def _useful(extent: int, factor: int) -> float:
    return extent / (math.ceil(extent / factor) * factor)


def _row_choices(extents: Sequence[int], limit: int) -> list[tuple[int, ...]]:
    """Factors of the row dimensions: a part of the last one, or whole ones of it by some before."""
    if not extents:
        return [()]
    last = extents[-1]
    lead = (1,) * (len(extents) - 1)
    choices = [(*lead, f) for f in range(1, min(last, limit) + 1)]
    if len(extents) > 1 and last <= limit // 2:
        head = (1,) * (len(extents) - 2)
        choices += [
            (*head, r, last) for r in range(2, min(extents[-2], limit // last) + 1)
        ]
    return choices


def candidates(
    rows: Sequence[int], columns: int, lanes: int, costs: CostModel
) -> list[Tile]:
    """The tiles for row extents and a column extent whose accumulators fit the registers."""
    lanes = min(lanes, columns)
    found: list[Tile] = []
    for vectors in range(1, min(costs.tile_vectors, max(1, columns // lanes)) + 1):
        limit = (costs.machine.registers - costs.tile_registers - vectors) // vectors
        for factors in _row_choices(rows, max(1, min(limit, costs.tile_rows))):
            found.append(Tile(factors, vectors, lanes))
    return found


def grids(
    rows: Sequence[int], columns: int, lanes: int, costs: CostModel
) -> list[Tile]:
    """Tiles of a part of each of the last two row dimensions. The model compares few of them, where
    rows above one another share what they read."""
    if len(rows) < 2:
        return []
    lead = (1,) * (len(rows) - 2)
    lanes = min(lanes, columns)
    found: list[Tile] = []
    for vectors in range(1, min(costs.tile_vectors, max(1, columns // lanes)) + 1):
        limit = (costs.machine.registers - costs.tile_registers - vectors) // vectors
        for above in range(2, min(rows[-2], limit) + 1):
            most = min(rows[-1] - 1, limit // above)
            for last in range(2, most + 1):
                factors = (*lead, above, last)
                found.append(Tile(factors, vectors, lanes))
    return found


@dataclass(frozen=True, slots=True)
class Window:
    """What neighboring rows share: each reads `taps` vectors, `dilation` apart, `step` further
    than the row before."""

    taps: int
    step: int
    dilation: int

    @property
    def stride(self) -> int:
        """Taps between a row and the next one, at least 1."""
        return max(1, self.step // self.dilation)

    def distinct(self, rows: int) -> int:
        """Vectors that this many rows read."""
        places = {
            r * self.step + t * self.dilation
            for r in range(rows)
            for t in range(self.taps)
        }
        return len(places)

    def new(self, rows: int) -> int:
        """Those of them that as many rows before did not read."""
        return self.distinct(2 * rows) - self.distinct(rows)


@dataclass(frozen=True, slots=True)
class RowData:
    """How the rows of a tile are read.

    streams: they load their own vectors (a depthwise convolution) instead of broadcasts.
    resident: how many rows the first cache holds at a time; rows a multiple of its way apart
    displace one another. evicted: cycles per step for lines of a row that other steps displace.
    stored: cycles per step of a store of results; crossed: whether they leave the tile transposed;
    kept: of how many rows of results the first cache holds a line; line: cycles per step of each
    line where a column of a transposed tile starts. window: what streamed rows share, in registers;
    above: what those share that are above one another, in the first cache; filled: cycles until a
    vector of theirs is there. dots: whether a dot product takes the place of each multiply-add.
    column: bytes of one column of the column operand, and itemsize of one element; panel: bytes of
    a panel of columns that the second cache keeps from one tile of rows to the next. whole: tiles
    must divide the extents if any do. packed: the shape of columns that are packed already, which
    tiles must fit if any do.
    """

    streams: bool = False
    resident: float = math.inf
    stored: float = 0.0
    crossed: bool = False
    kept: float = math.inf
    line: float = 0.0
    evicted: float = 0.0
    window: Window | None = None
    above: Window | None = None
    filled: float = 0.0
    dots: bool = False
    column: int = 0
    itemsize: int = float32.itemsize
    panel: float = math.inf
    apart: float = math.inf
    whole: bool = False
    packed: tuple[int, ...] = ()

    @property
    def depth(self) -> int:
        """Steps of the reduction; 0 if that is not known."""
        return self.column // self.itemsize

    def far(self, rows: Sequence[int], tile: Tile) -> bool:
        """Whether each tile of rows fetches its columns again from after the second cache."""
        again = any(
            extent > factor for extent, factor in zip(rows, tile.rows, strict=True)
        )
        return again and self.column * tile.width > self.panel

    def leaving(self, tile: Tile, masks: bool) -> float:
        """Steps by which a vector of results leaves the tile. One that does not fill a register is
        stored under a mask, if masks have registers of their own, else in parts; a transposed one
        is loaded again and stored in parts."""
        if self.crossed:
            return 1 + _parts(math.prod(tile.rows), tile.lanes)
        parts = tile.lanes.bit_count()
        return min(parts, 2) if masks else parts

    def displaced(self, costs: CostModel) -> bool:
        """Whether streamed rows displace one another in the first cache before they are read: it
        holds a line of fewer than are fetched ahead."""
        return self.streams and self.resident < self._ahead(costs)

    def lost(self, rows: Sequence[int], costs: CostModel) -> float:
        """Cycles per step of the reduction for what was fetched ahead and displaced: for each piece
        of streamed rows, whose lines come one after another, or the first line of a step's columns.
        """
        if not self.displaced(costs):
            return costs.lost_line * max(0.0, 1 - self.apart / costs.ahead)
        part = 1 - self.resident / self._ahead(costs)
        return costs.lost_piece * part * self._fetched(rows)

    def displacing(self, tile: Tile, costs: CostModel) -> float:
        """Cycles per step of the reduction for results whose rows displace one another before they
        are written, beginning at half of those that the first cache holds. One core alone does not
        wait: its lines are still in the second cache, where other cores have not read them."""
        if costs.machine.cores == 1 or not self.depth:
            return 0.0
        rows = math.prod(tile.rows)
        lost = costs.lost_result * max(0.0, rows / self.kept - 0.5)
        return lost * rows * tile.vectors / self.depth

    def loads(self, rows: Sequence[int], vectors: int) -> float:
        """Loads of rows of a tile per step of the reduction."""
        m = math.prod(rows)
        if not self.streams:
            return m
        shared = self._shared(rows)
        if shared is None:
            return m * vectors
        return m // rows[-1] * shared.distinct(rows[-1]) / shared.taps * vectors

    def held(self, rows: Sequence[int], vectors: int) -> int:
        """Registers that hold what rows share."""
        shared = self._shared(rows)
        if shared is None:
            return 0
        return shared.distinct(rows[-1]) * vectors

    def spilled(self, rows: Sequence[int], vectors: int, left: int) -> float:
        """Loads per step of the reduction of what is shared and does not fit `left` registers
        beside the weights of its taps. Those are kept for rows above one another. Rows side by side
        that are one tap apart need fewer of their vectors at a time, which leaves room.
        """
        shared = self._shared(rows)
        if shared is None or rows[-2:-1] in ((), (1,)) or shared.stride == 1:
            return 0.0
        kept = self.held(rows, vectors) + (shared.taps - 1) * vectors
        return max(0, kept - left) * math.prod(rows[:-1]) / shared.taps

    def steps(self, rows: Sequence[int]) -> int:
        """Steps of the reduction that are written out in its innermost loop."""
        shared = self._shared(rows)
        return 1 if shared is None else shared.taps

    def _ahead(self, costs: CostModel) -> int:
        """Rows that are fetched ahead; with those that a stride passes over, if the first cache
        holds a line of each of the others."""
        if self.window is None or self.resident < costs.ahead:
            return costs.ahead
        return costs.ahead * self.window.stride

    def _fetched(self, rows: Sequence[int]) -> float:
        """Vectors per step that are not in the first cache, of a tile of one vector. Only those
        that are new, if it keeps what this tile and the next one read, and the results; all, but
        once for rows above one another, if it keeps them until the next row of the window.
        """
        if self.window is None or self.above is None:
            return self.loads(rows, 1)
        high, results = self.above.distinct(rows[-2]), math.prod(rows)
        wide = self.window.distinct(rows[-1])
        if high * self.window.distinct(2 * rows[-1]) + results < self.resident:
            return self.fresh(rows)
        if rows[-2] * wide + results < self.resident:
            return high * wide / (self.above.taps * self.window.taps)
        return self.loads(rows, 1)

    def fills(self, rows: Sequence[int], vectors: int) -> float:
        """Cycles per step of the reduction until the first cache has what rows above one another
        read; 0 if they share nothing."""
        if self.window is None or self.above is None:
            return 0.0
        return self.fresh(rows) * vectors * self.filled

    def fresh(self, rows: Sequence[int]) -> float:
        """Vectors per step of the reduction that a tile of one vector reads for the first time."""
        assert self.window is not None and self.above is not None
        read = self.above.distinct(rows[-2]) * self.window.new(rows[-1])
        return read / (self.above.taps * self.window.taps)

    def _shared(self, rows: Sequence[int]) -> Window | None:
        if rows and rows[-1] > 1:
            return self.window
        return None


NO_ROW_DATA: Final = RowData()


def _parts(rows: int, lanes: int) -> float:
    """Stores of a vector of a transposed tile, whose squares have sides of powers of two."""
    squares, left = 0, rows
    while left:
        side = 1 << min(left, lanes, SIDE).bit_length() - 1
        squares += left // side
        left %= side
    return lanes * squares / rows


def best(
    rows: Sequence[int],
    columns: int,
    lanes: int,
    costs: CostModel,
    data: RowData = NO_ROW_DATA,
) -> Tile:
    """The best of `candidates` by the model."""
    return _best(tuple(rows), columns, lanes, costs, data, hidden=True)[1]


def gain(
    rows: Sequence[int],
    columns: int,
    lanes: int,
    costs: CostModel,
    data: RowData = NO_ROW_DATA,
) -> float:
    """What part of the multiply-adds that could issue are useful ones, with the best tile, if none
    hides the end of another."""
    return _best(tuple(rows), columns, lanes, costs, data, hidden=False)[0]


@lru_cache(maxsize=256)
def _best(
    rows: tuple[int, ...],
    columns: int,
    lanes: int,
    costs: CostModel,
    data: RowData,
    hidden: bool,
) -> tuple[float, Tile]:
    """The score and the best tile; passes ask about one shape many times over."""
    possible = candidates(rows, columns, lanes, costs)
    if data.above is not None:
        possible += [
            t
            for t in grids(rows, columns, lanes, costs)
            if t.rows[-2] <= costs.rows_above
            and math.prod(t.rows) * t.vectors <= costs.results_above
        ]
    return _best_of(possible, rows, columns, costs, data, hidden)


def best_of(
    tiles: Iterable[Tile], rows: Sequence[int], columns: int, costs: CostModel
) -> Tile:
    """The best of some tiles by the model."""
    return _best_of(tiles, rows, columns, costs, RowData(), hidden=True)[1]


def _best_of(
    tiles: Iterable[Tile],
    rows: Sequence[int],
    columns: int,
    costs: CostModel,
    data: RowData,
    hidden: bool,
) -> tuple[float, Tile]:
    possible = list(tiles)
    if data.whole:
        possible = [t for t in possible if t.divides(rows, columns)] or possible
    fitting = [t for t in possible if t.fits(data.packed)]
    most = max((t.vectors for t in fitting), default=0)
    possible = [t for t in fitting if t.vectors == most] or possible
    found: tuple[float, Tile] | None = None
    for tile in possible:
        score = _score(rows, columns, tile, costs, data, hidden)
        if found is None or score > found[0] + 1e-9:
            found = (score, tile)
    assert found is not None
    return found


def _score(
    rows: Sequence[int],
    columns: int,
    tile: Tile,
    costs: CostModel,
    data: RowData,
    hidden: bool,
) -> float:
    m = math.prod(tile.rows)
    v = tile.vectors
    left = costs.machine.registers - costs.tile_registers - m * v
    shares = data.held(tile.rows, v) <= left
    if v > left or not (shares or _reloads(tile, costs, data)):
        return 0.0
    useful = _useful(columns, tile.width)
    for extent, factor in zip(rows, tile.rows, strict=True):
        useful *= _useful(extent, factor)
    work = m * v
    per_cycle, most = _issued(tile, costs, data)
    # Fewer accumulators than are in flight at the full rate wait for one another; products that
    # stream their rows never issue at it.
    latency = costs.latency * (1.0 if data.streams else most / per_cycle)
    # Where shared vectors do not fit beside the accumulators, each row loads its own again: more
    # instructions, but of lines that are there.
    loads = data.loads(tile.rows, v) if shares else m * v
    # Waits for rows that displace one another hide such loads.
    if not data.displaced(costs):
        loads += data.spilled(tile.rows, v, left)
    leaving = data.leaving(tile, costs.machine.has("avx512f"))
    alone = _alone(tile, loads, leaving, costs, data) if hidden else 1.0
    taken = max(work / per_cycle, (loads + v) / costs.loads, alone * latency)
    # A column vector comes from the second cache where its panel stays there, a broadcast from the
    # first where its row does; they and the loop's own cycle hide behind the arithmetic but for a
    # part. What comes from further away does not.
    near = _row_cycles(costs, data) * loads + costs.column_vector * v
    loop = 1 / data.steps(tile.rows)
    stored = data.stored * leaving * work
    late = stored - (1.0 - alone) * min(stored, taken)
    late += data.line * tile.lanes / m * work + data.evicted
    fills = data.fills(tile.rows, v) - costs.hidden_fills * work / per_cycle
    late += costs.exposed_traffic * max(0.0, fills)
    if data.far(rows, tile):
        late += costs.far_byte * tile.lanes * data.itemsize * v
    late += data.lost(tile.rows, costs) + data.displacing(tile, costs)
    if m > data.resident and not data.streams:
        late += costs.far_broadcast * loads
    exposed = 1.0 if data.streams else costs.exposed
    cycles = taken + exposed * (near + loop) + late
    return useful * (work / per_cycle) / cycles


def _reloads(tile: Tile, costs: CostModel, data: RowData) -> bool:
    """Whether rows may load again what they share: in the first cache others displace it anyway.
    Where many are above one another, the compiler would store and load accumulators instead."""
    few = math.prod(tile.rows) * tile.vectors <= costs.results_above
    return data.displaced(costs) and (few or math.prod(tile.rows[:-1]) == 1)


def _issued(tile: Tile, costs: CostModel, data: RowData) -> tuple[float, float]:
    """Vectors of products per cycle, and at most. A dot product takes several steps of the
    reduction at once, so that less is read in all."""
    if data.dots:
        return costs.dot_products, costs.dot_products
    itemsize = max(data.itemsize, float32.itemsize)
    return costs.multiply_rate(tile.lanes, itemsize), costs.multiply_adds


def _alone(
    tile: Tile, loads: float, leaving: float, costs: CostModel, data: RowData
) -> float:
    """The part of a tile in which nothing of the next one is done: the core begins so many
    instructions ahead, and those of a sum of few steps are not many."""
    if data.streams or not data.depth:
        return 1.0
    work = math.prod(tile.rows) * tile.vectors
    steps = data.depth * (work + loads + tile.vectors)
    begun = steps + 2 * work * leaving
    return min(1.0, begun / costs.begun)


def _row_cycles(costs: CostModel, data: RowData) -> float:
    """Of one load of a row, next to the arithmetic."""
    return costs.beside if data.streams else costs.broadcast


def choose_tile(
    choose: Choices,
    name: str,
    rows: Sequence[int],
    columns: int,
    lanes: int,
    costs: CostModel,
    data: RowData = NO_ROW_DATA,
) -> Tile:
    """The parameter `name`: rows of the tile by dimension, then its vectors."""
    tiles = candidates(rows, columns, lanes, costs)
    tiles += grids(rows, columns, lanes, costs)
    good = best(rows, columns, lanes, costs, data)
    *factors, vectors = choose(name, [t.value for t in tiles], good.value)
    return Tile(tuple(factors), vectors, good.lanes)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of the three operands of a contraction, and of one panel of columns."""

    rows: int
    columns: int
    panel: int
    row_steps: int
    column_steps: int


def columns_outermost(t: Traffic, costs: CostModel) -> bool:
    """Whether to keep a panel of columns and stream the rows, or the reverse.

    Costs are bytes weighted by the level they come from: what is kept comes once, and then again
    from where it stays for each step of the other operand.
    """
    level = costs.traffic
    outer_columns = t.column_steps * t.rows * level(t.rows + t.panel)
    outer_columns += t.columns * level(t.columns)
    outer_columns += (t.row_steps - 1) * t.columns * level(t.panel)
    outer_rows = t.row_steps * t.columns * level(t.columns)
    outer_rows += t.rows * level(t.rows)
    outer_rows += (t.column_steps - 1) * t.rows * level(t.rows // t.row_steps)
    return outer_columns <= outer_rows
