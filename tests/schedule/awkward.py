"""Small programs that write buffers in part, shifted, in place, several times or under guards.

Elements that a program does not write must keep their values, and reads before writes must see
the initial values: each is a counterexample to rewrites that assume a buffer is computed whole.
Values are integers, so that results are equal to the bit.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.base import dtypes
from tilewright.compute.reducer import arg_reducer, reducer
from tilewright.expr.nodes import (
    And,
    Buffer,
    Cast,
    Eq,
    Expr,
    FloorDiv,
    Le,
    Lt,
    Min,
    Mod,
    Mul,
    Select,
    Var,
    const,
)
from tilewright.loops.analysis.access import accesses
from tilewright.loops.nodes import (
    Alloc,
    If,
    Kernel,
    Stmt,
    Store,
    Unit,
    Update,
    While,
    block,
    loop,
)

i32, i64 = dtypes.int32, dtypes.int64
ADD = reducer("add", i32)
ARGMAX = arg_reducer("argmax", i32, i64)


def buffer(name: str, *shape: int) -> Buffer:
    return Buffer(name, shape, i32)


def kernel(body: Stmt, inputs: str = "X", outputs: str = "Y") -> Kernel:
    """A program whose parameters are the buffers of these names in it."""
    found = {b.name: b for b in _buffers(body)}
    params = [found[n] for n in (*inputs, *outputs) if n in found]
    return Kernel("k", tuple(params), tuple(found[n] for n in outputs), body)


def _buffers(body: Stmt) -> list[Buffer]:

    return [a.buffer for a in accesses(body)]


def over(
    name: str, extent: int, body: Callable[[Var], Stmt], kind: str = "serial"
) -> Stmt:
    v = Var(name, i64)
    return loop(v, extent, body(v), kind)


def number(i: Expr) -> Expr:
    return Cast(i, i32)


X, Y, Z = buffer("X", 8), buffer("Y", 8), buffer("Z", 8)
A, B = buffer("X", 6, 5), buffer("Y", 8, 7)
T = buffer("T", 8)


def first_half() -> Kernel:
    return kernel(over("i", 4, lambda i: Store(Y, (i,), X[i] * 3)))


def shifted() -> Kernel:
    return kernel(over("i", 4, lambda i: Store(Y, (i + 2,), X[i] + X[i + 1])))


def strided() -> Kernel:
    return kernel(over("i", 4, lambda i: Store(Y, (i * 2 + 1,), X[i])))


def interleaved() -> Kernel:
    """Iteration i writes i and i + 4: the box around both has elements of other iterations."""
    return kernel(
        over(
            "i",
            4,
            lambda i: over("j", 2, lambda j: Store(Y, (i + j * 4,), X[i] + number(j))),
        )
    )


def inner_part() -> Kernel:
    """The inner part of a matrix, as a pooling writes the input of a padded convolution."""
    return kernel(
        over(
            "i",
            6,
            lambda i: over("j", 5, lambda j: Store(B, (i + 1, j + 1), A[i, j] * 2)),
        )
    )


def guarded() -> Kernel:
    return kernel(
        over("i", 8, lambda i: If(Lt(i, const(5)), Store(Y, (i,), X[i]), None))
    )


def chosen() -> Kernel:
    """Which elements are written depends on the data."""
    return kernel(
        over("i", 8, lambda i: If(Lt(X[i], const(0, i32)), Store(Y, (i,), X[i]), None))
    )


def tail() -> Kernel:
    """Two tiles of four cover six elements under a guard."""
    return kernel(
        over(
            "o",
            2,
            lambda o: over(
                "i",
                4,
                lambda i: If(
                    Lt(o * 4 + i, const(6)), Store(Y, (o * 4 + i,), X[o * 4 + i]), None
                ),
            ),
        )
    )


def in_place() -> Kernel:
    return kernel(over("i", 5, lambda i: Store(Y, (i + 1,), Y[i + 1] * 2 + X[i])))


def running() -> Kernel:
    return kernel(over("i", 7, lambda i: Store(Y, (i + 1,), Y[i] + X[i])))


def mirrored() -> Kernel:
    """In place; reads elements that earlier iterations have written."""
    return kernel(over("i", 8, lambda i: Store(Y, (i,), Y[const(7) - i] + X[i])))


def twice() -> Kernel:
    one = over("i", 6, lambda i: Store(Y, (i,), X[i]))
    return kernel(block(one, over("j", 5, lambda j: Store(Y, (j + 2,), X[j] * 3))))


def two_ends() -> Kernel:
    one = over("i", 3, lambda i: Store(Y, (i,), X[i]))
    return kernel(block(one, over("j", 3, lambda j: Store(Y, (j + 5,), X[j] * 3))))


def again_and_again() -> Kernel:
    """All iterations of r write the same elements."""
    return kernel(
        over(
            "r",
            3,
            lambda r: over("i", 4, lambda i: Store(Y, (i + 1,), X[i + r] + number(r))),
        )
    )


def row_sums() -> Kernel:
    def row(i: Var) -> Stmt:
        step = over("k", 5, lambda k: Update((Y,), ((i + 1,),), (A[i, k],), ADD))
        return block(Store(Y, (i + 1,), const(0, i32)), step)

    return kernel(over("i", 6, row))


def added() -> Kernel:
    """A reduction that starts from the initial values."""
    return kernel(
        over(
            "k",
            5,
            lambda k: over(
                "i", 3, lambda i: Update((Y,), ((i * 2,),), (A[i, k],), ADD)
            ),
        )
    )


def added_guarded() -> Kernel:
    """Reductions of two tiles; without its guard the last one would leave the buffer."""

    def body(o: Var, k: Var, i: Var) -> Stmt:
        at = o * 5 + i
        step = Update((Y,), ((at,),), (A[i, k],), ADD)
        return If(Lt(at, const(8)), step, None)

    return kernel(
        over(
            "o",
            2,
            lambda o: over("k", 5, lambda k: over("i", 5, lambda i: body(o, k, i))),
        )
    )


def read_later() -> Kernel:
    one = over("i", 6, lambda i: Store(Y, (i + 1,), X[i]))
    return kernel(
        block(one, over("j", 8, lambda j: Store(Z, (j,), Y[j] * 3))), outputs="YZ"
    )


def read_before() -> Kernel:
    one = over("i", 8, lambda i: Store(Z, (i,), Y[i] * 3))
    return kernel(
        block(one, over("j", 6, lambda j: Store(Y, (j + 1,), X[j]))), outputs="YZ"
    )


def exchanged() -> Kernel:
    """Two results, each computed from the other one."""
    one = over("i", 8, lambda i: Store(Y, (i,), X[i]))
    two = over("j", 5, lambda j: Store(Z, (j,), Y[j + 3] + 1))
    three = over("l", 3, lambda m: Store(Y, (m + 4,), Z[m]))
    return kernel(block(one, two, three), outputs="YZ")


def inner_intermediate() -> Kernel:
    made = over("i", 6, lambda i: Store(T, (i + 1,), X[i] * 2))
    used = over("j", 5, lambda j: Store(Y, (j + 1,), T[j + 1] - T[j + 2]))
    return kernel(Alloc(T, block(made, used)))


def filled_then_written() -> Kernel:
    """The padding of an intermediate, then its inner part: two nests make one buffer."""
    fill = over("p", 8, lambda p: Store(T, (p,), const(7, i32)))
    made = over("i", 6, lambda i: Store(T, (i + 1,), X[i] * 2))
    used = over("j", 6, lambda j: Store(Y, (j,), T[j] + T[j + 2]))
    return kernel(Alloc(T, block(fill, made, used)))


def changed_between() -> Kernel:
    """An intermediate is written again after its first use."""
    made = over("i", 8, lambda i: Store(T, (i,), X[i] * 2))
    used = over("j", 8, lambda j: Store(Y, (j,), T[j] + 1))
    again = over("l", 4, lambda m: Store(T, (m + 2,), Y[m]))
    last = over("n", 8, lambda n: Store(Z, (n,), T[n]))
    return kernel(Alloc(T, block(made, used, again, last)), outputs="YZ")


def input_changed() -> Kernel:
    """What an intermediate was computed from changes before it is used."""
    made = over("i", 8, lambda i: Store(T, (i,), Y[i] * 2))
    other = over("l", 4, lambda m: Store(Y, (m + 1,), X[m]))
    used = over("j", 8, lambda j: Store(Z, (j,), T[j] + 1))
    return kernel(Alloc(T, block(made, other, used)), outputs="YZ")


def one_arm_each() -> Kernel:
    """One arm of a branch keeps a value for the other arm of later iterations."""

    def step(i: Var) -> Stmt:
        keep = Store(T, (const(0),), X[0])
        return If(Eq(i, const(0)), keep, Store(Y, (i,), T[0] + X[i]))

    return kernel(Alloc(T, over("i", 8, step)))


def kept_sometimes() -> Kernel:
    """A value is kept across the iterations that do not set it."""

    def step(i: Var) -> Stmt:
        keep = If(Eq(Mod(i, const(3)), const(0)), Store(T, (const(0),), X[i]), None)
        return block(keep, Store(Y, (i,), T[0]))

    return kernel(Alloc(T, over("i", 8, step)))


def carried_rows() -> Kernel:
    """An intermediate: each iteration writes one row and reads the previous one."""

    def step(i: Var) -> Stmt:
        return block(Store(T, (i + 1,), X[i]), Store(Y, (i,), T[i] + T[i + 1]))

    return kernel(
        Alloc(T, block(Store(T, (const(0),), const(5, i32)), over("i", 7, step)))
    )


def scattered() -> Kernel:
    """Where it writes depends on the data."""
    at = Buffer("P", (6,), i64)
    return kernel(
        over("i", 6, lambda i: Store(Y, (Mod(at[i], const(8)),), X[i])), inputs="XP"
    )


def gathered() -> Kernel:
    at = Buffer("P", (6,), i64)
    made = over("i", 8, lambda i: Store(T, (i,), X[i] * 2))
    used = over("j", 6, lambda j: Store(Y, (j + 1,), T[Mod(at[j], const(8))]))
    return kernel(Alloc(T, block(made, used)), inputs="XP")


def clamped() -> Kernel:
    """A user's own clamp, which is not a promise about overlapping tiles."""

    def store(i: Var, r: Var) -> Stmt:
        at = Min(Mul(i, const(4)), const(5)) + r
        return Store(Y, (at,), X[i] + number(r))

    return kernel(over("i", 3, lambda i: over("r", 3, lambda r: store(i, r))))


def looped() -> Kernel:
    """A loop without a known end."""
    n = (const(0),)
    step = block(Store(Y, (const(2),), Y[2] + X[0]), Store(T, n, T[0] + 1))
    run = While(Lt(T[0], const(3, i32)), step)
    return kernel(Alloc(T, block(Store(T, n, const(0, i32)), run)))


def piece() -> Kernel:
    """Part of it is one indivisible unit."""

    def inner(i: Var) -> Stmt:
        return over("u", 2, lambda u: If(Eq(u, const(1)), Store(T, (i,), X[i]), None))

    made = over("i", 6, lambda i: Unit("piece", None, (), inner(i)))
    used = over("j", 6, lambda j: Store(Y, (j + 1,), T[j]))
    return kernel(Alloc(T, block(made, used)))


def argmax_part() -> Kernel:
    """Two results of one reduction, at one place of buffers of different sizes."""
    v, p = buffer("Y", 8), Buffer("P", (9,), i64)

    def row(i: Var) -> Stmt:
        start = [
            Store(b, (i + 1,), c) for b, c in zip((v, p), ARGMAX.identity, strict=True)
        ]
        at = ((i + 1,), (i + 1,))
        return block(
            *start, over("k", 5, lambda k: Update((v, p), at, (A[i, k], k), ARGMAX))
        )

    return kernel(over("i", 6, row), outputs="YP")


def window() -> Kernel:
    """Rows of an intermediate, two read at a time, into the inner part of the result."""
    t, y = buffer("T", 7, 4), buffer("Y", 8, 6)

    def row(i: Var) -> Stmt:
        at = i - FloorDiv(i, const(6))  # there are six rows to read
        return over("j", 4, lambda j: Store(t, (i, j), A[at, j] * 2))

    def used(v: Var, u: Var) -> Stmt:
        return Store(y, (v + 1, u + 2), t[v, u] - t[v + 1, u])

    rows = over("v", 6, lambda v: over("u", 4, lambda u: used(v, u)))
    return kernel(Alloc(t, block(over("i", 7, row), rows)))


def window_under_a_border() -> Kernel:
    """The border of the intermediate is filled first, its inner rows are computed then."""
    t, y = buffer("T", 8), buffer("Y", 9)
    fill = over("p", 8, lambda p: Store(t, (p,), const(7, i32)))
    made = over("i", 6, lambda i: Store(t, (i + 1,), X[i] * 2))
    used = over("v", 6, lambda v: Store(y, (v + 2,), t[v] + t[v + 1] + t[v + 2]))
    return kernel(Alloc(t, block(fill, made, used)))


def sums_then_map() -> Kernel:
    """Sums of rows, each mapped into a part of the result."""
    t = buffer("T", 6)

    def row(i: Var) -> Stmt:
        step = over("k", 5, lambda k: Update((t,), ((i,),), (A[i, k],), ADD))
        return block(Store(t, (i,), const(0, i32)), step)

    used = over("j", 6, lambda j: Store(Y, (j + 1,), t[j] * 3))
    return kernel(Alloc(t, block(over("i", 6, row), used)))


def rows_kept() -> Kernel:
    """A row is computed, summed, and stored into the inner part of the result."""
    t, c = buffer("T", 5), buffer("S", 1)
    zero = (const(0),)

    def row(i: Var) -> Stmt:
        made = over("j", 5, lambda j: Store(t, (j,), A[i, j] * 2))
        total = over("k", 5, lambda k: Update((c,), (zero,), (t[k],), ADD))
        used = over("l", 5, lambda m: Store(B, (i + 1, m + 1), t[m] + c[0]))
        return Alloc(
            t, Alloc(c, block(made, Store(c, zero, const(0, i32)), total, used))
        )

    return kernel(over("i", 6, row))


def rows_from_the_result() -> Kernel:
    """As before, but a row is computed from its previous content."""
    t = buffer("T", 5)

    def row(i: Var) -> Stmt:
        made = over("j", 5, lambda j: Store(t, (j,), B[i + 1, j + 1] * 2))
        used = over("l", 5, lambda m: Store(B, (i + 1, m + 1), t[m] + t[const(4) - m]))
        return Alloc(t, block(made, used))

    return kernel(over("i", 6, row))


def map_in_place() -> Kernel:
    made = over("i", 8, lambda i: Store(T, (i,), X[i] * 2))
    return kernel(
        Alloc(T, block(made, over("j", 6, lambda j: Store(Y, (j,), Y[j] + T[j + 1]))))
    )


def map_of_the_result() -> Kernel:
    """The intermediate is computed from elements that its reader overwrites."""
    made = over("i", 8, lambda i: Store(T, (i,), Y[i] * 2))
    used = over("j", 6, lambda j: Store(Y, (j + 1,), T[j] + X[j]))
    return kernel(Alloc(T, block(made, used)))


def two_readers() -> Kernel:
    made = over("i", 8, lambda i: Store(T, (i,), X[i] * 2))
    one = over("j", 5, lambda j: Store(Y, (j + 1,), T[j]))
    two = over("l", 7, lambda m: Store(Z, (m,), T[m + 1] + T[m]))
    return kernel(Alloc(T, block(made, one, two)), outputs="YZ")


def padded() -> Kernel:
    """A window that reads 0 outside of an intermediate, into part of the result."""
    made = over("i", 8, lambda i: Store(T, (i,), X[i] * 2))

    def step(j: Var, k: Var) -> Stmt:
        at = j + k - 1
        inside = And(Le(const(0), at), Lt(at, const(8)))
        return Update((Y,), ((j + 1,),), (Select(inside, T[at], const(0, i32)),), ADD)

    def row(j: Var) -> Stmt:
        return block(
            Store(Y, (j + 1,), const(0, i32)), over("k", 3, lambda k: step(j, k))
        )

    return kernel(Alloc(T, block(made, over("j", 7, row))))


def rows_in_a_loop() -> Kernel:
    """The same intermediate is computed anew in each round, and read in the next one too."""

    def round_(r: Var) -> Stmt:
        made = over("i", 4, lambda i: Store(T, (i + 1,), X[i + r]))
        used = over("j", 4, lambda j: Store(Y, (j + 2,), T[j] + T[j + 1]))
        return block(made, used, Store(T, (const(0),), number(r)))

    return kernel(
        Alloc(T, block(Store(T, (const(0),), const(9, i32)), over("r", 3, round_)))
    )


def same_step_twice() -> Kernel:
    """One statement twice in a sequence: both are the same object."""

    def steps(k: Var) -> Stmt:
        step = Update((Y,), ((const(0),),), (X[k],), ADD)
        return block(step, step)

    return kernel(over("k", 8, steps))


def same_nest_twice() -> Kernel:
    """Doubles the sum of an element and an input twice, by one statement in two places."""
    part = buffer("T", 1)
    made = Store(part, (const(0),), Y[1] + X[2])
    nest = Alloc(part, block(made, Store(Y, (const(1),), part[0] * 2)))
    return kernel(block(nest, Store(Y, (const(3),), Y[1]), nest))


KERNELS: tuple[Callable[[], Kernel], ...] = (
    first_half,
    shifted,
    strided,
    interleaved,
    inner_part,
    guarded,
    chosen,
    tail,
    in_place,
    running,
    mirrored,
    twice,
    two_ends,
    again_and_again,
    row_sums,
    added,
    added_guarded,
    read_later,
    read_before,
    exchanged,
    inner_intermediate,
    filled_then_written,
    changed_between,
    input_changed,
    one_arm_each,
    kept_sometimes,
    carried_rows,
    scattered,
    gathered,
    clamped,
    looped,
    piece,
    argmax_part,
    window,
    window_under_a_border,
    sums_then_map,
    rows_kept,
    rows_from_the_result,
    map_in_place,
    map_of_the_result,
    two_readers,
    padded,
    rows_in_a_loop,
    same_step_twice,
    same_nest_twice,
)
