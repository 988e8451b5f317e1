"""The pieces of an expansion: Computations, each distributed over tasks along some dimensions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from itertools import product

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import UnsupportedError
from tilewright.compute.contraction import is_contraction
from tilewright.compute.nodes import CC, PW, Computation, Dim, Output
from tilewright.compute.reducer import Reducer
from tilewright.compute.transforms import split_digits
from tilewright.dataflow.parts import Cuts
from tilewright.expr.nodes import INDEX, Add, Buffer, Expr, Load, Mul, Sub, Var
from tilewright.expr.reads import variables
from tilewright.ir.node import postorder, substitute


@dataclass(frozen=True, eq=False)
class ComputationTasks:
    """One Computation as tasks.

    spread: the extent of a part along each of these dimensions; the others stay whole. label: names
    the tasks. holds: whether a task keeps an operand and replays it; else each use reads it again.
    joins: whether the task reads the results of several tasks in parallel, one element of each at a
    time. stores: whether the result is stored completely before it is read, even if it could
    stream.
    """

    computation: Computation
    label: str = ""
    spread: dict[Var, int] = field(default_factory=dict)
    holds: bool = True
    joins: bool = False
    stores: bool = False

    def parts(self) -> Iterator[Cuts]:
        """The ranges of each task, in the order of the dimensions."""
        dims = self.computation.dims
        variables = [d.var for d in dims]
        ranges = [_ranges(d.extent, self.spread.get(d.var, d.extent)) for d in dims]
        for chosen in product(*ranges):
            yield dict(zip(variables, chosen, strict=True))


@dataclass(frozen=True, eq=False)
class TaskProduct:
    """A sum of products of two tensors, `rows` times `columns`, with the dimensions that each uses.

    For complex tensors, whose parts are separate accesses, each is one access that represents both
    parts. n: used by `rows` only, m: by `columns` only, k: reduced, b: used by both (a batch, a
    group).
    """

    computation: Computation
    rows: Load
    columns: Load
    n: tuple[Dim, ...]
    m: tuple[Dim, ...]
    k: tuple[Dim, ...]
    b: tuple[Dim, ...]


def _ranges(extent: int, step: int) -> list[tuple[int, int]]:
    """Split an extent into parts of `step`, the last of which may be smaller."""
    starts = range(0, extent, step)
    return [(low, min(low + step, extent)) for low in starts]


def product_of(c: Computation) -> TaskProduct | None:
    """`c` as a Product; None unless it is a sum of products of one access each, real or complex.

    The columns are the operand with the innermost dimension of the result: the second factor of a
    matrix product, the input of a convolution. Dimensions that are split as a mixed-radix number,
    such as the channels of a grouped convolution, count as several.
    """
    c = split_digits(c)
    if len(c.outputs) == 2:
        factors = _complex_factors(c)
    else:
        factors = _factors(c)
    if factors is None:
        return None
    if any(d.combine not in (CC, PW) for d in c.dims):
        return None
    rows, columns = factors
    own = _used(rows) ^ _used(columns)
    index = c.outputs[0].index
    inner = [v for i in index for v in variables(i) if v in own]
    if inner and inner[-1] in _used(rows):
        rows, columns = columns, rows
    in_rows = _used(rows)
    in_columns = _used(columns)

    def choose(*wanted: tuple[bool, bool]) -> tuple[Dim, ...]:
        free = (d for d in c.dims if d.combine == CC)
        return tuple(
            d for d in free if (d.var in in_rows, d.var in in_columns) in wanted
        )

    return TaskProduct(
        c,
        rows,
        columns,
        n=choose((True, False)),
        m=choose((False, True)),
        k=tuple(d for d in c.dims if d.combine == PW),
        b=choose((True, True)) + choose((False, False)),
    )


def _factors(c: Computation) -> tuple[Load, Load] | None:
    """The two accesses of a sum of real products; None for anything else."""
    if not is_contraction(c):
        return None
    if len(c.accesses) != 2:
        return None
    products = (n for n in postorder(c.outputs[0].value) if isinstance(n, Mul))
    for n in products:
        first = _only_load(n.lhs)
        second = _only_load(n.rhs)
        if first is not None and second is not None:
            return first, second
    return None


def _complex_factors(c: Computation) -> tuple[Load, Load] | None:
    """One access of each factor of a sum of complex products, written as a pair of real sums.

    Both parts add or subtract two real products, each of an access to one factor, identified by the
    variables it uses, and an access to the other.
    """
    real, imaginary = c.outputs
    if not _sums(c.reducer):
        return None
    if real.index != imaginary.index:
        return None
    found: list[tuple[Load, Load]] = []
    for value in (real.value, imaginary.value):
        if isinstance(value, Add | Sub):
            found += _loads_multiplied(value.lhs)
            found += _loads_multiplied(value.rhs)
    if len(found) != 4:
        return None
    if not all(map(_is_plain, found)):
        return None
    factors = {frozenset(frozenset(_used(load)) for load in pair) for pair in found}
    if len(factors) != 1:
        return None
    if len(factors.pop()) != 2:
        return None
    return found[0]


def _sums(r: Reducer | None) -> bool:
    """Whether a reducer adds each of its components."""
    if r is None:
        return False
    triples = zip(r.result, r.lhs, r.rhs, strict=True)
    return all(result is Add(a, b) for result, a, b in triples)


def _loads_multiplied(e: Expr) -> list[tuple[Load, Load]]:
    """The two accesses whose product is `e`, if it is one."""
    if not isinstance(e, Mul):
        return []
    lhs = e.lhs
    rhs = e.rhs
    if isinstance(lhs, Load) and isinstance(rhs, Load):
        return [(lhs, rhs)]
    return []


def _is_plain(pair: tuple[Load, Load]) -> bool:
    """Whether each index of both accesses has at most one variable."""
    indices = (i for load in pair for i in load.index)
    return all(len({*variables(i)}) < 2 for i in indices)


def _only_load(e: Expr) -> Load | None:
    loads = [n for n in postorder(e) if isinstance(n, Load)]
    if len(loads) == 1:
        return loads[0]
    return None


def _used(load: Load) -> set[Var]:
    return {v for i in load.index for v in variables(i)}


def is_windowed(p: TaskProduct) -> bool:
    """Whether the columns are windows over a tensor: an index with several variables."""
    return any(len({*variables(i)}) > 1 for i in p.columns.index)


def gathered(p: TaskProduct) -> tuple[Computation, TaskProduct]:
    """im2col: a Computation that copies the windows into the columns of a matrix, and the product
    with that matrix."""
    c = p.computation
    used = _used(p.columns)
    dims = [d for d in (*p.b, *p.m, *p.k) if d.var in used]
    shape = tuple(d.extent for d in dims)
    matrix = Buffer(f"{c.name}_windows", shape, p.columns.dtype)
    window = _guarded(p)
    fresh = {d.var: Var(d.var.name, INDEX) for d in dims}
    copied = substitute(window, dict(fresh))
    copy = Computation(
        f"{c.name}_im2col",
        tuple(Dim(fresh[d.var], d.extent, CC) for d in dims),
        (Output(matrix, tuple(fresh.values()), copied),),
    )
    read = matrix[tuple(fresh)]
    (o,) = c.outputs
    value = substitute(o.value, {window: read})
    output = Output(o.tensor, o.index, value)
    again = product_of(
        Computation(
            name=c.name,
            dims=c.dims,
            outputs=(output,),
            reducer=c.reducer,
        )
    )
    if again is None:
        raise UnsupportedError("no single access reads its windows", where=c.name)
    return copy, again


def _guarded(p: TaskProduct) -> Expr:
    """The access to the columns with its guard: the largest expression with no other access."""
    (o,) = p.computation.outputs
    best: Expr = p.columns
    for n in postorder(o.value):
        if not isinstance(n, Expr):
            continue
        if isinstance(n, Load):
            continue
        loads = {x for x in postorder(n) if isinstance(x, Load)}
        if n.dtype is best.dtype and loads == {p.columns}:
            best = n
    return best


def ordered(c: Computation, dims: Sequence[Dim]) -> Computation:
    """`c` with its dimensions in another order."""
    return Computation(
        name=c.name,
        dims=tuple(dims),
        outputs=c.outputs,
        reducer=c.reducer,
    )
