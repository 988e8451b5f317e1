"""Random kernels whose blocks copy boxes, in clusters or alone.

Each block has rings of tiles, which boxes fill, and rows that its threads write; a few nests, one
after another, copy boxes, read tiles and rows backwards, and write over either. Buffers of nests
that are over may share room. Some blocks do this several times, for one part of the results after
another: in buffers of each part or of all, and with copies for the next one before the end of this
one (`rotate`). All values are small integers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import float32
from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import INDEX, Buffer, Expr, Lt, Var, as_expr, const
from tilewright.ir.node import substitute
from tilewright.loops.nodes import (
    BULK,
    CLUSTER,
    Alloc,
    If,
    Kernel,
    Stmt,
    Store,
    block,
    loop,
)
from tilewright.loops.walk import loops_of
from tilewright.schedule import Schedule
from tilewright.schedule.edit import without_alloc
from tilewright.schedule.primitives.pipeline import sequence
from tilewright.schedule.primitives.rotate import guarded_body

ROWS: Final = 32  # of a tile
LANES: Final = 32
BLOCKS: Final = 4
_BATCH: Final = 2
_SOURCES: Final = 4
_PARTS: Final = 3  # of the results of a block, at most


_KINDS: Final = ["box", "box", "read", "read", "write", "row", "both"]


@dataclass(eq=False)
class _Nests:
    """The nests of a kernel in the making. threads: the kind of the loop over a row."""

    r: random.Random
    threads: str
    tiles: list[Buffer]
    rows: list[Buffer]
    x: Buffer
    block: Var = field(default_factory=lambda: Var("b", INDEX))
    batch: Var = field(default_factory=lambda: Var("z", INDEX))
    part: Var = field(default_factory=lambda: Var("p", INDEX))
    outputs: list[Buffer] = field(default_factory=list)
    boxes: list[str] = field(default_factory=list)
    count: int = 0

    def name(
        self,
        text: str,
    ) -> Var:
        self.count += 1
        return Var(f"{text}{self.count}", INDEX)

    def box(
        self,
        tile: Buffer,
        slot: Expr,
        source: Expr,
    ) -> Stmt:
        """A tile is copied, from one of the tensors of the block's batch."""
        row = self.name("r")
        column = self.name("c")
        self.boxes.append(row.name)
        value = self.x[self.batch, source + self.part, row, column]
        store = Store(tile, (slot, row, column), value)
        line = loop(column, LANES, store)
        return loop(row, ROWS, line)

    def phase(
        self,
        body: Callable[[Expr], Stmt],
    ) -> Stmt:
        """All threads do something."""
        lane = self.name("i")
        return loop(lane, LANES, body(lane), self.threads)

    def cleared(
        self,
        row: Buffer,
    ) -> Stmt:
        """Threads set a row."""
        one = const(1.0, float32)
        return self.phase(lambda i: Store(row, (i,), one))

    def seen(
        self,
        step: Expr,
        value: Callable[[Expr], Expr],
    ) -> Stmt:
        """What threads read becomes an output."""
        shape = (_BATCH, BLOCKS, _PARTS, 4, LANES)
        y = Buffer(f"y{len(self.outputs)}", shape, float32)
        self.outputs.append(y)
        at = (self.batch, self.block, self.part, step)
        last = const(LANES - 1)

        def store(i: Expr) -> Stmt:
            mirrored = value(last - i)
            return Store(y, (*at, i), mirrored)

        return self.phase(store)

    def source(
        self,
        step: Expr,
    ) -> Expr:
        """A tensor: of this step, always the same, or one of the block's own."""
        choices = [step, step, const(1)]
        if self.r.random() < 0.2:
            choices.append(self.block)
        return self.r.choice(choices)

    def fill(
        self,
        tile: Buffer,
    ) -> Stmt:
        """All tiles of a ring are copied, in one loop or one after another."""
        count = tile.shape[0]
        if self.r.random() < 0.5:
            slot = self.name("s")
            body = self.box(tile, slot, slot)
            return loop(slot, count, body)
        slots = map(const, range(count))
        boxes = [self.box(tile, n, n) for n in slots]
        return block(*boxes)

    def ring(
        self,
        k: Expr,
    ) -> list[Stmt]:
        """A tile is read, and another one copied that is read when the ring has turned."""
        tile = self.r.choice(self.tiles)
        count = tile.shape[0]
        at = self.r.randrange(ROWS)
        ahead = self.r.randrange(count)
        now = k % count
        then = (k + ahead) % count
        read = self.seen(k, lambda i: tile[now, at, i])
        copied = self.box(tile, then, self.source(k))
        if self.r.random() < 0.5:
            return [read, copied]
        return [copied, read]

    def step(
        self,
        k: Expr,
    ) -> Stmt:
        """One thing that a block does in a step."""
        tile = self.r.choice(self.tiles)
        row = self.r.choice(self.rows)
        slot = (k + self.r.randrange(3)) % tile.shape[0]
        at = self.r.randrange(ROWS)
        kind = self.r.choice(_KINDS)
        if kind == "box":
            return self.box(tile, slot, self.source(k))
        if kind == "read":
            return self.seen(k, lambda i: tile[slot, at, i])
        if kind == "write":
            line = as_expr(at, INDEX)
            return self.phase(
                lambda i: Store(
                    tile,
                    (slot, line, i),
                    self.given(k, i),
                )
            )
        if kind == "row":
            return self.phase(
                lambda i: Store(
                    row,
                    (i,),
                    self.given(k, i),
                )
            )
        return self.seen(k, lambda i: tile[slot, at, i] + row[i])

    def given(
        self,
        k: Expr,
        i: Expr,
    ) -> Expr:
        row = self.r.randrange(ROWS)
        value = self.x[self.batch, k + self.part, row, i]
        return value + value

    def steps(self) -> Stmt:
        """A loop of some steps, or of those before the last ones."""
        k = self.name("k")
        number = self.r.randint(2, 5)
        parts = [self.step(k) for _ in range(number)]
        if self.r.random() < 0.5:
            parts = [*self.ring(k), *parts[2:]]
        if self.r.random() < 0.3:
            at = self.r.randrange(len(parts))
            early = Lt(k, const(2))
            parts[at] = If(early, parts[at], None)
        turns = self.r.randint(2, 4)
        body = block(*parts)
        return loop(k, turns, body)

    def nest(
        self,
        tiles: list[Buffer],
        rows: list[Buffer],
    ) -> Stmt:
        """Some steps, or a single one, with buffers of their own."""
        self.tiles = tiles
        self.rows = rows
        filled = [self.fill(b) for b in tiles]
        cleared = [self.cleared(b) for b in rows]
        parts = [*filled, *cleared]
        number = self.r.randint(1, 2)
        for _ in range(number):
            is_loop = self.r.random() < 0.7
            part = self.steps() if is_loop else self.step(const(0))
            parts.append(part)
        return block(*parts)


def _buffers(
    r: random.Random,
    name: str,
) -> tuple[list[Buffer], list[Buffer]]:
    def tile(n: int) -> Buffer:
        shape = (r.randint(1, 3), ROWS, LANES)
        return Buffer(f"t{name}{n}", shape, float32, "shared", 128)

    number = r.randint(1, 2)
    tiles = [tile(n) for n in range(number)]
    row = Buffer(f"u{name}", (LANES,), float32, "shared")
    return tiles, [row]


def random_boxes(r: random.Random) -> Kernel:
    """A kernel of 2 x 4 blocks, of which 2 or 4 may be a cluster."""
    shape = (_BATCH, _SOURCES + _PARTS - 1, ROWS, LANES)
    x = Buffer("x", shape, float32)
    threads = "threadIdx.x" if r.random() < 0.85 else "serial"
    made = _Nests(r, threads, [], [], x)
    body: Stmt = block()
    held: list[Buffer] = []
    number = r.randint(1, 2)
    for name in "ab"[:number]:
        tiles, rows = _buffers(r, name)
        nest = made.nest(tiles, rows)
        held = [*tiles, *rows]
        body = block(body, _inside(held, nest))
    count = r.choice([1, 2, 2, 4])
    if r.random() < 0.5:
        some = held if number == 1 and r.random() < 0.5 else []
        body = _in_parts(made, body, some, count)
    else:
        body = substitute(body, {made.part: const(0)})
    whole = loop(made.block, BLOCKS, body, "blockIdx.x")
    whole = loop(made.batch, _BATCH, whole, "blockIdx.y")
    outputs = tuple(made.outputs)
    kernel = _ahead(r, Kernel("f", (x, *outputs), outputs, whole))
    loops = {f.var.name for f in loops_of(kernel.body)}
    copied = [n for b in made.boxes for n in (b, f"{b}.pro") if n in loops]
    notes: dict[str, dict[str, object]] = {b: {BULK: 1} for b in copied}
    if count > 1:
        notes[made.block.name] = {CLUSTER: count}
    return replace(kernel, notes=notes)


def _inside(buffers: Sequence[Buffer], s: Stmt) -> Stmt:
    for b in buffers:
        s = Alloc(b, s)
    return s


def _in_parts(made: _Nests, body: Stmt, held: Sequence[Buffer], cluster: int) -> Stmt:
    """One part of a block's results after another; not all blocks have as many. held: buffers that
    all parts use."""
    r = made.r
    number = made.r.randint(2, _PARTS)
    if r.random() < 0.5:
        # All blocks of a cluster do the same.
        other, count = (made.batch, _BATCH) if cluster > 1 else (made.block, BLOCKS)
        before = made.part * count + other
        body = If(Lt(before, const(number * count - 1)), body, None)
    for b in held:
        body = without_alloc(body, b)
    return _inside(held, loop(made.part, number, body))


def _ahead(r: random.Random, kernel: Kernel) -> Kernel:
    """The kernel with copies for the next part before the end of this one, if there are parts and
    statements that may move."""
    found = [f for f in loops_of(kernel.body) if f.var.name == "p"]
    if not found:
        return kernel
    s = Schedule(kernel)
    count = len(sequence(guarded_body(found[0].body)[1]).stmts)
    for _ in range(8):
        places = sorted(r.randint(0, count) for _ in range(3))
        try:
            s.rotate("p", *places)
        except ScheduleError:
            continue
        break
    return s.kernel
