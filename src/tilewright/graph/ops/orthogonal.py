"""QR: an orthogonal and an upper triangular factor of matrices; an operator of `tilewright`.

By Householder's reflections (Golub, Van Loan, "Matrix Computations", sections 5.1 and 5.2), with
the signs of LAPACK's `geqrf`: a diagonal entry of the triangle has the sign opposite to that of the
entry that it replaces, which is left as it is where all below it are zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.base.dtypes import float64
from tilewright.compute.build import cast
from tilewright.compute.reducer import reducer
from tilewright.expr.nodes import Buffer, Expr, Max, Select, call, const
from tilewright.graph.ops.factor_gradient import qr_gradient
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register
from tilewright.graph.ops.solve import DOMAIN
from tilewright.loops.nests import LoopNests, kernel
from tilewright.loops.nodes import If, Kernel, Stmt, Store, Update, block
from tilewright.loops.sorting import allocated

Buffers = Sequence[Buffer]
Outputs = Sequence[Buffer | None]
Point = tuple[Expr, ...]
Entry = Callable[[Expr, Expr], Expr]

ZERO = const(0, float64)
ONE = const(1, float64)


class LocalColumns:
    """The columns of one matrix in float64, each in the order of memory, for each of a batch.

    Entries are divided by the largest one, `scale`, so that no square of one overflows.
    """

    def __init__(self, x: Buffer) -> None:
        *self.batch, self.rows, self.count = x.shape
        self.nests = LoopNests()
        self.local: list[Buffer] = []
        self.columns = self.buffer("columns", self.count, self.rows)
        self.scale = self.cell("scale")
        self.held = self.cell("held")
        self.other = self.cell("other")
        self.peak = self.cell("peak")

    def buffer(self, name: str, *shape: int) -> Buffer:
        """A local array of float64."""
        made = Buffer(name, tuple(max(n, 1) for n in shape), float64)
        self.local.append(made)
        return made

    def cell(self, name: str) -> Buffer:
        """A local variable."""
        return self.buffer(name, 1)

    def set(self, cell: Buffer, value: Expr) -> Stmt:
        """Assign a local variable."""
        return Store(cell, (const(0),), value)

    def fill(self, i: Point, x: Buffer) -> Stmt:
        """Copy matrix `i`, divided by its scale."""

        def given(c: Expr, r: Expr) -> Expr:
            return cast(x[(*i, r, c)], float64)

        def look(c: Expr, r: Expr) -> Stmt:
            size = call("abs", given(c, r))
            return self.set(self.scale, Max(scale, size))

        def entry(c: Expr, r: Expr) -> Stmt:
            value = given(c, r) / scale
            return Store(self.columns, (c, r), value)

        extents = (self.count, self.rows)
        scale = self.scale[0]
        divisor = Select(scale.eq(0), ONE, scale)
        return block(
            self.set(self.scale, ZERO),
            self.nests.over(extents, look),
            self.set(self.scale, divisor),
            self.nests.over(extents, entry),
        )

    def unit(self, target: Buffer, extents: Sequence[int]) -> Stmt:
        """Ones on the diagonal of an array of columns, and zeros beside it."""

        def entry(c: Expr, r: Expr) -> Stmt:
            value = Select(c.eq(r), ONE, ZERO)
            return Store(target, (c, r), value)

        return self.nests.over(extents, entry)

    def sum(self, cell: Buffer, count: int, term: Callable[[Expr], Expr]) -> Stmt:
        """The sum of `count` terms in a local variable."""
        add = reducer("add", float64)
        place = (const(0),)

        def step(n: Expr) -> Stmt:
            return Update((cell,), (place,), (term(n),), add)

        start = self.set(cell, ZERO)
        return block(start, self.nests.loop(count, step))

    def kernel(
        self,
        op: OpCall,
        inputs: Buffers,
        outputs: Outputs,
        one: Callable[[Point], Stmt],
    ) -> list[Kernel]:
        """The kernel that runs `one` for each matrix of the batch."""
        work = (self.rows + self.count) ** 2 * max(self.count, 1)

        def row(*i: Expr) -> Stmt:
            return allocated(self.local, one(i))

        whole = self.nests.rows(self.batch, work, row)
        return [kernel(op.name, inputs, outputs, whole, self.nests.notes)]

    def result(self, i: Point, out: Buffer | None, value: Entry) -> Stmt:
        """Write matrix `i` of an output, if it is wanted."""
        if out is None:
            return block()

        def entry(r: Expr, c: Expr) -> Stmt:
            rounded = cast(value(r, c), out.dtype)
            return Store(out, (*i, r, c), rounded)

        return self.nests.over(out.shape[-2:], entry)


class Reflections:
    """Householder's reflections of the columns: the vectors below the diagonal, whose first entries
    are 1, and their factors."""

    def __init__(self, columns: LocalColumns, width: int) -> None:
        self.of = columns
        self.steps = min(columns.rows, columns.count)
        self.factors = columns.buffer("factors", self.steps)
        self.turned = columns.buffer("turned", width, columns.rows)
        self.width = width

    def reflect(self) -> Stmt:
        """Clear what is below the diagonal, column by column.

        Squares are of quotients by the largest entry, so that none vanishes that matters.
        """
        m = self.of
        columns = m.columns
        held = m.held[0]
        peak = m.peak[0]

        def step(k: Expr) -> Stmt:
            reflected = self._reflected(k)
            clear = Store(self.factors, (k,), ZERO)

            def square(r: Expr) -> Expr:
                entry = columns[k, r] / peak
                return Select(r > k, entry * entry, ZERO)

            def rest(c: Expr) -> Stmt:
                return If(c > k, self._apply(k, columns, c), None)

            # It is NaN where the peak is 0, and also if entries are not finite.
            choose = If(held.eq(0) | peak.eq(0), clear, reflected)
            return block(
                self._find_peak(k),
                m.sum(m.held, m.rows, square),
                choose,
                m.nests.loop(m.count, rest),
            )

        return m.nests.loop(self.steps, step)

    def _find_peak(self, k: Expr) -> Stmt:
        """The largest entry of column `k`, from the diagonal on."""
        m = self.of

        def look(r: Expr) -> Stmt:
            entry = call("abs", m.columns[k, r])
            counted = Select(r < k, ZERO, entry)
            return m.set(m.peak, Max(m.peak[0], counted))

        start = m.set(m.peak, ZERO)
        return block(start, m.nests.loop(m.rows, look))

    def _reflected(self, k: Expr) -> Stmt:
        """Vector `k` and its factor. `held`: the sum of the squares below the diagonal, which are
        those of quotients by `peak`."""
        m = self.of
        columns = m.columns
        held = m.held[0]
        other = m.other[0]
        peak = m.peak[0]
        first = columns[k, k] / peak
        size = call("sqrt", first * first + held)
        signed = Select(first < 0, size, -size)
        factor = (other - first) / other

        def divide(r: Expr) -> Stmt:
            entry = columns[k, r]
            divided = Select(r > k, entry / peak / held, entry)
            return Store(columns, (k, r), divided)

        return block(
            m.set(m.other, signed),
            Store(self.factors, (k,), factor),
            m.set(m.held, first - other),
            m.nests.loop(m.rows, divide),
            Store(columns, (k, k), other * peak),
        )

    def _apply(self, k: Expr, target: Buffer, c: Expr) -> Stmt:
        """Reflect column `c` of `target` by vector `k`."""
        m = self.of
        held = m.held[0]

        def vector(r: Expr) -> Expr:
            behind = Select(r > k, m.columns[k, r], ZERO)
            return Select(r.eq(k), ONE, behind)

        def product(r: Expr) -> Expr:
            return vector(r) * target[c, r]

        def change(r: Expr) -> Stmt:
            changed = target[c, r] - held * vector(r)
            return Store(target, (c, r), changed)

        return block(
            m.sum(m.held, m.rows, product),
            m.set(m.held, held * self.factors[k]),
            m.nests.loop(m.rows, change),
        )

    def orthogonal(self) -> Stmt:
        """The product of the reflections, by columns, in `turned`; the last is applied first."""
        m = self.of
        last = self.steps - 1

        def step(t: Expr) -> Stmt:
            def reflected(c: Expr) -> Stmt:
                return self._apply(last - t, self.turned, c)

            return m.nests.loop(self.width, reflected)

        start = m.unit(self.turned, (self.width, m.rows))
        return block(start, m.nests.loop(self.steps, step))


def rectangles(op: OpCall) -> tuple[tuple[int, ...], int, int]:
    """The batch, rows and columns of input 0. Raises ModelError unless it holds matrices of float32
    or float64."""
    shape = op.shape(0)
    if len(shape) < 2:
        raise op.error(f"{list(shape)} does not hold matrices")
    if op.dtype(0).name not in ("float32", "float64"):
        raise op.error(
            f"a matrix of {op.dtype(0).name}: only float32 and float64 are supported"
        )
    return shape[:-2], shape[-2], shape[-1]


def all_results(outputs: Outputs, count: int) -> Outputs:
    """The buffers of that many results; None for those that a model leaves out at the end."""
    return [*outputs, *[None] * (count - len(outputs))]


def flag(op: OpCall, name: str) -> bool:
    """An attribute that is 0, its default, or 1. Raises ModelError for another value."""
    value = op.attr(name, 0)
    if value not in (0, 1):
        raise op.error(f"{name} is {value!r}, expected 0 or 1")
    return bool(value)


def _types(op: OpCall) -> Sequence[Type]:
    batch, rows, columns = rectangles(op)
    width = rows if flag(op, "full") else min(rows, columns)
    dtype = op.dtype(0)
    return [(dtype, (*batch, rows, width)), (dtype, (*batch, width, columns))]


def _factored(op: OpCall, inputs: Buffers, outputs: Outputs) -> list[Kernel]:
    (x,) = inputs
    q, upper = all_results(outputs, 2)
    m = LocalColumns(x)
    h = Reflections(m, m.rows if flag(op, "full") else min(m.rows, m.count))

    def triangle(r: Expr, c: Expr) -> Expr:
        return Select(r > c, ZERO, m.columns[c, r] * m.scale[0])

    def one(i: Point) -> Stmt:
        return block(
            m.fill(i, x),
            h.reflect(),
            m.result(i, upper, triangle),
            block() if q is None else h.orthogonal(),
            m.result(i, q, lambda r, c: h.turned[c, r]),
        )

    return m.kernel(op, inputs, outputs, one)


def _flops(op: OpCall) -> int:
    _, rows, columns = rectangles(op)
    return 4 * op.size(0) * min(rows, columns)


register(
    OpDef(
        "QR",
        _types,
        DOMAIN,
        compute=_factored,
        flops=_flops,
        gradient=qr_gradient,
    )
)
