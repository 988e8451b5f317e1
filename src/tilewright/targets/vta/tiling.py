"""The block size of a reduction on the chip, chosen by a model of the time.

Every candidate is a tile of each loop; the tiles' parts of all tensors must fit the memories once
per virtual thread. The time is what the busiest module needs, or the bus; without virtual threads
modules take turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from math import prod

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import CompileError, ScheduleError
from tilewright.base.numbers import divisors
from tilewright.expr.affine import affine
from tilewright.expr.nodes import Buffer, Expr, Var
from tilewright.schedule.space import Choices
from tilewright.search import exhaustive
from tilewright.targets.vta.timing import TimingParameters

Tile = Mapping[Var, int]


@dataclass(frozen=True)
class TiledOperand:
    """A tensor on the chip: its buffer, the index of its elements, and the scope.

    depth: how many elements the scope holds. bytes: of an element in DRAM.
    apart: along which dimensions its elements have others between them in DRAM, if there are any.
    """

    buffer: Buffer
    index: Sequence[Expr]
    scope: str
    depth: int
    bytes: int
    apart: Sequence[bool] = ()

    @cached_property
    def _moves(self) -> list[list[tuple[Var, int]]]:
        """By how much each loop moves along each dimension."""
        return [
            [(v, abs(c)) for v, c in affine(i).terms if isinstance(v, Var)]
            for i in self.index
        ]

    def sides(self, tile: Tile) -> list[int]:
        """Elements along each dimension that a tile of the loops touches."""
        sides = []
        for moves in self._moves:
            side = 1
            for v, step in moves:
                side += step * (tile[v] - 1)
            sides.append(side)
        return sides


@dataclass(frozen=True, slots=True)
class TilingProblem:
    """Loops around a product of tiles: of the result and of the sum, with extents.

    operands: loaded by a step of the sum. result: the accumulators. extras: loaded to accumulators
    per block. lane_steps: lane operations per accumulator.
    """

    parallel: Mapping[Var, int]
    reduced: Mapping[Var, int]
    operands: Sequence[TiledOperand]
    result: TiledOperand
    extras: Sequence[TiledOperand]
    lane_steps: int

    @property
    def tensors(self) -> Sequence[TiledOperand]:
        """All that is on the chip."""
        return *self.operands, self.result, *self.extras


@dataclass(frozen=True, slots=True)
class TileChoice:
    """A tile, and the loop over blocks whose neighbors are virtual threads (None: one thread)."""

    tile: Tile
    thread: Var | None
    cycles: float


@dataclass(frozen=True, slots=True)
class _TileChoice:
    """A tile, the number of virtual threads, and the loop whose blocks they share."""

    tile: Tile
    threads: int
    thread: Var | None


def asked(
    p: TilingProblem, threads: int, timing: TimingParameters, ask: Choices
) -> TileChoice:
    """The same as a question for each part: the number of threads, each tile, the threads' loop.

    The offered values fit the chip together with the earlier choices and the smallest later ones.
    The defaults are those of `choose`. Raises ScheduleError if no loop has blocks for threads.
    """
    best = choose(p, threads, timing)
    usual = 1 if best.thread is None else threads
    count = ask("threads", tuple(dict.fromkeys((1, threads))), usual)
    sizes = tile_sizes(p)
    tile = {v: options[0] for v, options in sizes.items()}
    for v, options in sizes.items():
        fit = [n for n in options if room(p, {**tile, v: n}) >= count]
        if not fit:
            raise ScheduleError(
                f"not even the smallest tiles fit {count} times",
                where=f"tile.{v.name}",
                hint="fewer threads",
            )
        tile[v] = ask(f"tile.{v.name}", fit, min(best.tile[v], fit[-1]))
    thread = None
    if count > 1:
        loops = {v.name: v for v in around(p, tile, count)}
        if not loops:
            raise ScheduleError(
                f"no loop has a multiple of {count} blocks",
                where="threads",
                hint="other tiles, or one thread",
            )
        own = "" if best.thread is None else best.thread.name
        good = own if own in loops else next(iter(loops))
        thread = loops[ask("thread", tuple(loops), good)]
    return TileChoice(tile, thread, _cycles(p, tile, count, timing))


def choose(p: TilingProblem, threads: int, timing: TimingParameters) -> TileChoice:
    """The fastest by the model: tiles, and `threads` virtual threads or one.

    Raises CompileError, with the memory that is too small, where nothing fits the chip.
    """
    counts = dict.fromkeys((1, threads))
    fit = [blocks for tile in _tiles(p) for blocks in _fitting(p, tile, counts)]
    if not fit:
        raise _too_large(p, next(_tiles(p)))
    # All of them: a bound that excludes some takes longer to compute than their time.
    found = exhaustive(fit, lambda b: _cycles(p, b.tile, b.threads, timing))
    return TileChoice(found.state.tile, found.state.thread, found.cost)


def _too_large(p: TilingProblem, smallest: Tile) -> CompileError:
    """What the smallest block needs of the first memory that does not have it."""
    used = _used(p, smallest)
    full = next(o for o in p.tensors if used[o.scope] > o.depth)
    names = [o.buffer.name for o in p.tensors if o.scope == full.scope]
    return too_large(names, used[full.scope], full.scope, full.depth)


def too_large(
    names: Sequence[str], needed: int, scope: str, depth: int
) -> CompileError:
    """The error for a smallest block whose tensors of these names do not fit a memory."""
    return CompileError(
        f"the smallest block needs {needed} elements of {scope} for {', '.join(names)}, and the "
        f"machine has {depth}",
        code="TW-VTA-MEMORY",
        hint=f"a machine with a larger {scope} buffer, or a smaller window",
    )


def tile_sizes(p: TilingProblem) -> Mapping[Var, tuple[int, ...]]:
    """The tiles of every loop, smallest first: equal ones of the sum, a window's loops whole."""
    windows = {v for v in p.reduced if any(_in_window(v, o) for o in p.operands)}
    loops = {**p.parallel, **p.reduced}
    return {
        v: (n,) if v in windows else divisors(n) if v in p.reduced else shares(n)
        for v, n in loops.items()
    }


def _tiles(p: TilingProblem) -> Iterator[Tile]:
    """Every choice of `tile_sizes`, the smallest first."""
    options = tile_sizes(p)
    for sizes in product(*options.values()):
        yield dict(zip(options, sizes, strict=True))


def _in_window(v: Var, o: TiledOperand) -> bool:
    """Whether a loop of the sum moves along with one of the result."""
    forms = [affine(i).terms for i in o.index]
    return any(len(t) > 1 and any(atom is v for atom, _ in t) for t in forms)


def shares(n: int) -> tuple[int, ...]:
    """The smallest tile for every number of tiles that a loop can become, from 1 up."""
    return tuple(sorted({-(-n // count) for count in range(1, n + 1)}))


def _fitting(
    p: TilingProblem, tile: Tile, counts: Iterable[int]
) -> Iterator[_TileChoice]:
    """A tile with each of these numbers of virtual threads, as far as they fit the chip."""
    most = room(p, tile)
    for threads in counts:
        thread = next(iter(around(p, tile, threads)), None) if threads > 1 else None
        if threads <= most and (threads == 1 or thread is not None):
            yield _TileChoice(tile, threads, thread)


def room(p: TilingProblem, tile: Tile) -> int:
    """How many threads have room for a tile each, at once."""
    used = _used(p, tile)
    return min(o.depth // used[o.scope] for o in p.tensors)


def around(p: TilingProblem, tile: Tile, threads: int) -> list[Var]:
    """The loops whose blocks threads can share: each has as many."""
    return [v for v, n in p.parallel.items() if -(-n // tile[v]) % threads == 0]


def _used(p: TilingProblem, tile: Tile) -> Mapping[str, int]:
    """Elements of each scope that a block takes."""
    used: dict[str, int] = {}
    for o in p.tensors:
        used[o.scope] = used.get(o.scope, 0) + prod(o.sides(tile))
    return used


def _cycles(p: TilingProblem, tile: Tile, threads: int, t: TimingParameters) -> float:
    """A round is a block of every thread; in the first, nothing hides its loads and stores."""
    blocks = prod(-(-n // tile[v]) for v, n in p.parallel.items())
    steps = prod(n // tile[v] for v, n in p.reduced.items())
    loaded = [_transfer(o, tile, t) for o in p.operands]
    extra = [_transfer(o, tile, t) for o in p.extras]
    saved = _transfer(p.result, tile, t)
    load = sum(map(sum, loaded))
    store = sum(saved)
    made = prod(tile[v] for v in p.parallel)
    summed = prod(tile[v] for v in p.reduced)
    lane = made * t.alu_interval + t.start
    gemm = made * summed * t.gemm_interval + t.start
    of_lanes = (p.lane_steps - 1) * lane
    after = of_lanes + sum(map(sum, extra))
    of_steps = sum(d for _, d in loaded)
    of_extra = sum(d for _, d in extra)
    moved = steps * of_steps + saved[1] + of_extra
    if threads == 1:
        step = load + gemm
        last = max(load, after + store + lane)
        once = steps * step + after + store
        again = (steps - 1) * step + gemm + last
    else:
        every = threads * steps
        computing = every * gemm
        loading = (every - 1) * load + gemm
        once = load + max(computing, loading) + threads * after + store
        again = _again(threads, steps, load, gemm, lane, after, store)
    rounds = -(-blocks // threads)
    of_memory = threads * moved
    first = max(once, of_memory)
    others = max(again, of_memory)
    return first + (rounds - 1) * others


def _again(
    threads: int,
    steps: int,
    load: float,
    gemm: float,
    lane: float,
    after: float,
    store: float,
) -> float:
    """Cycles of a round after another one: its first loads and the last stores overlap."""
    if steps == 1:
        return threads * max(load, lane + gemm + after) + max(0, store - after)
    # Accumulators become zero when the last of them are stored.
    reset = max(threads * lane, store + lane)
    first = max(0, threads * (load - after) - reset)
    return reset + threads * (gemm + after + (steps - 1) * max(load, gemm)) + first


def _transfer(o: TiledOperand, tile: Tile, t: TimingParameters) -> tuple[float, float]:
    """Cycles that a transfer waits, and those that it holds the bus."""
    sides = o.sides(tile)
    # A request is a rectangle; dimensions that are there wholly make longer rows.
    apart = o.apart or (False,) * len(sides)
    rest = list(zip(sides, o.buffer.shape, apart))
    taken = 0
    while rest and taken < 2:
        side, extent, gaps = rest.pop()
        if gaps:
            taken = 2
        else:
            taken = taken + (side != extent)
    requests = prod(side for side, _, _ in rest)
    return requests * (t.start + t.dram_latency), prod(
        sides
    ) * o.bytes / t.dram_bytes_per_cycle
