"""Waits for several products beside the threads, in a program of units, copies and barriers."""

from __future__ import annotations

from collections.abc import Callable

from tests.loops.gpu_kernels import judged
from tests.targets.cuda.test_wgmma import small_intrinsics, waits
from tilewright.base.dtypes import float32
from tilewright.compute.build import reduce_
from tilewright.expr.nodes import INDEX, Buffer, Expr, Var, const
from tilewright.loops.launch import LaunchProgram
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Alloc, Kernel, Stmt, Store, Unit, block, loop
from tilewright.loops.passes.thread_registers import moved
from tilewright.loops.passes.to_launches import to_launches
from tilewright.loops.walk import walk
from tilewright.schedule import Schedule

SIDE = 4
COUNT = SIDE * SIDE


class Products:
    """Statements of a block: products of shared tiles, each in accumulators of its own,
    and results of them."""

    def __init__(self) -> None:
        product, store = small_intrinsics(by_proxy=True)
        tile = (SIDE, SIDE)
        self.a, self.b, self.c = (Buffer(n, tile, float32) for n in "abc")
        mm = reduce_(
            "mm", self.c, (SIDE,), "add", lambda i, j, k: self.a[i, k] * self.b[j, k]
        )
        params = [self.a, self.b, self.c]
        s = Schedule(lower("f", [mm], params=params, outputs=[self.c]))
        whole, row = s.split("mm.i", SIDE)
        held = s.cache_write("c", whole, "warp")
        s.decompose_reduction(held, row)
        s.tensorize(row, product)
        s.tensorize(f"{held}.w0", store)
        found = [at.stmt for at in walk(s.kernel.body)]
        self.fill, self.product, self.store = (s for s in found if isinstance(s, Unit))
        self.held = next(s.buffer for s in found if isinstance(s, Alloc))
        self.x = Buffer("x", (COUNT,), float32)
        self.y = Buffer("y", (COUNT,), float32)
        self.t, self.u, self.w = (Buffer(n, (COUNT,), float32, "shared") for n in "tuw")
        self.v = Buffer("v", (COUNT,), float32, "shared")
        self.sums: list[Buffer] = []
        self.results: list[Buffer] = []
        self.count = 0

    def threads(self, body: Callable[[Expr], Stmt]) -> Stmt:
        """A loop over threads."""
        self.count += 1
        i = Var(f"i{self.count}", INDEX)
        return loop(i, COUNT, body(i), "threadIdx.x")

    def copy(self, to: Buffer) -> Stmt:
        """All of x into shared memory."""
        return self.threads(lambda i: Store(to, (i,), self.x[i]))

    def multiply(self, tile: Buffer) -> Stmt:
        """A product of a tile by itself, in new accumulators."""
        held = Buffer(f"sum{len(self.sums)}", (SIDE, SIDE), float32, "warp")
        self.sums.append(held)
        move = {b: lambda at: (tile, (at[0] * SIDE + at[1],)) for b in (self.a, self.b)}
        return moved(self.product, move | {self.held: lambda at: (held, at)})

    def result(self, number: int) -> Stmt:
        """Store what a product has added to."""
        to = Buffer(f"c{number}", (SIDE, SIDE), float32)
        self.results.append(to)
        held = self.sums[number]
        move = {self.c: lambda at: (to, at), self.held: lambda at: (held, at)}
        return moved(self.store, move)

    def launches(self, *stmts: Stmt, own_room: int | None = None) -> LaunchProgram:
        """Checked in many orders of the threads."""
        fills = [
            moved(self.fill, {self.held: lambda at, b=b: (b, at)}) for b in self.sums
        ]
        tiles = (self.t, self.u, self.w)
        body = block(*fills, *map(self.copy, tiles), *stmts)
        for b in (*self.sums, *tiles, self.v):
            body = Alloc(b, body)
        outputs = (*self.results, self.y)
        body = loop(Var("one", INDEX), 1, body, "blockIdx.x")
        kernel = Kernel("f", (self.x, *outputs), outputs, body)
        made = to_launches(kernel, 32, own_room=own_room)
        for seed in range(5):
            judged(kernel, made, seed)
        return made


def test_a_wait_behind_a_barrier_does_not_serve_other_threads():
    """The one before the barrier has to: threads overwrite t that a product of others reads."""
    p = Products()
    before = [p.multiply(tile) for tile in (p.w, p.t, p.u)]
    apart = [s for product in before for s in (product, p.copy(p.v))]
    meet = p.threads(lambda i: Store(p.y, (i,), p.v[const(COUNT - 1) - i]))
    last = [p.multiply(p.u), p.result(3), p.copy(p.t), p.copy(p.w)]
    made = p.launches(*apart, meet, *last, *(p.result(n) for n in range(3)))
    assert waits(made) == [1, 0]


def test_accumulators_are_read_when_no_product_is_in_flight():
    """Only a wait for all products says to the compiler that accumulators have changed."""
    p = Products()
    one, two, three = (p.multiply(p.u) for _ in range(3))
    first, apart = p.result(0), p.copy(p.v)
    end = [p.result(2), p.result(1), p.threads(lambda i: Store(p.y, (i,), p.v[i]))]
    made = p.launches(one, apart, two, first, apart, three, *end)
    assert waits(made) == [0, 0]
