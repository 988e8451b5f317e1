"""The pieces of an expansion: Computations, each distributed over tasks along some dimensions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

from tilewright.base.errors import UnsupportedError
from tilewright.compute.contraction import is_contraction
from tilewright.compute.nodes import CC, PW, Computation, Dim, Output
from tilewright.compute.transforms import split_digits
from tilewright.dataflow.parts import Cuts
from tilewright.expr.nodes import INDEX, Add, Buffer, Expr, Load, Mul, Sub, Var
from tilewright.expr.reads import variables
from tilewright.ir.node import postorder, substitute


@dataclass(frozen=True, eq=False)
class Piece:
    """One Computation as tasks.

    spread: the extent of a part along each of these dimensions; the others stay whole.
    label: names the tasks. holds: whether a task keeps an operand that it replays; else each use
    reads it again. joins: whether the task reads what several tasks write side by side, an element
    of each at a time. stores: whether the result is stored whole before it is read, even where it
    could stream.
    """

    computation: Computation
    label: str = ""
    spread: dict[Var, int] = field(default_factory=dict)
    holds: bool = True
    joins: bool = False
    stores: bool = False

    def parts(self) -> Iterator[Cuts]:
        """The ranges of each task, in the order of the dimensions."""
        ranges = []
        for d in self.computation.dims:
            step = self.spread.get(d.var, d.extent)
            ranges.append(
                [(low, min(low + step, d.extent)) for low in range(0, d.extent, step)]
            )
        variables = [d.var for d in self.computation.dims]
        for chosen in product(*ranges):
            yield dict(zip(variables, chosen, strict=True))


@dataclass(frozen=True, eq=False)
class Product:
    """A sum of products of two tensors, `rows` times `columns`, by the dimensions that each uses.

    Of complex ones, whose parts are accesses of their own, it is one access that stands for both.
    n: those of `rows` alone, m: of `columns` alone, k: reduced, b: of both (a batch, a group).
    """

    computation: Computation
    rows: Load
    columns: Load
    n: tuple[Dim, ...]
    m: tuple[Dim, ...]
    k: tuple[Dim, ...]
    b: tuple[Dim, ...]


def product_of(c: Computation) -> Product | None:
    """`c` as a Product; None unless it is a sum of products of one access each, real or complex.

    The columns are what the innermost dimension of the result belongs to: the second factor of a
    matrix product, the input of a convolution. Dimensions whose digits are used, such as the
    channels of a grouped convolution, are split.
    """
    c = split_digits(c)
    factors = _complex_factors(c) if len(c.outputs) == 2 else _factors(c)
    if factors is None or any(d.combine not in (CC, PW) for d in c.dims):
        return None
    first, second = factors
    own = _used(first) ^ _used(second)
    inner = [v for i in c.outputs[0].index for v in variables(i) if v in own]
    rows, columns = (
        (second, first) if inner and inner[-1] in _used(first) else (first, second)
    )
    mine, theirs = _used(rows), _used(columns)

    def choose(in_rows: bool, in_columns: bool) -> tuple[Dim, ...]:
        wanted = (in_rows, in_columns)
        free = (d for d in c.dims if d.combine == CC)
        return tuple(d for d in free if (d.var in mine, d.var in theirs) == wanted)

    reduced = tuple(d for d in c.dims if d.combine == PW)
    both, neither = choose(True, True), choose(False, False)
    return Product(
        c,
        rows,
        columns,
        choose(True, False),
        choose(False, True),
        reduced,
        both + neither,
    )


def _factors(c: Computation) -> tuple[Load, Load] | None:
    """The accesses of a sum of real products, if they are one product's."""
    if not is_contraction(c) or len(c.accesses) != 2:
        return None
    products = (n for n in postorder(c.outputs[0].value) if isinstance(n, Mul))
    for n in products:
        first, second = _only_load(n.lhs), _only_load(n.rhs)
        if first is not None and second is not None:
            return first, second
    return None


def _complex_factors(c: Computation) -> tuple[Load, Load] | None:
    """An access of each factor of a sum of complex products, written as a pair of real sums.

    Both parts add or subtract two real products, each of an access of the one factor, told by the
    variables it uses, with an access of the other.
    """
    real, imaginary = c.outputs
    r, values = c.reducer, (real.value, imaginary.value)
    if r is None or real.index != imaginary.index:
        return None
    if any(e is not Add(a, b) for e, a, b in zip(r.result, r.lhs, r.rhs, strict=True)):
        return None
    products = [n for v in values if isinstance(v, Add | Sub) for n in (v.lhs, v.rhs)]
    found: list[tuple[Load, Load]] = []
    for n in products:
        if isinstance(n, Mul) and isinstance(n.lhs, Load) and isinstance(n.rhs, Load):
            found.append((n.lhs, n.rhs))
    sides = {frozenset(map(frozenset, map(_used, pair))) for pair in found}
    plain = all(
        len({*variables(i)}) < 2 for pair in found for load in pair for i in load.index
    )
    if len(found) != 4 or len(sides) != 1 or len(next(iter(sides))) != 2 or not plain:
        return None
    return found[0]


def _only_load(e: Expr) -> Load | None:
    loads = [n for n in postorder(e) if isinstance(n, Load)]
    return loads[0] if len(loads) == 1 else None


def _used(load: Load) -> set[Var]:
    return {v for i in load.index for v in variables(i)}


def is_windowed(p: Product) -> bool:
    """Whether the columns are windows over a tensor: an index of several variables."""
    return any(len({*variables(i)}) > 1 for i in p.columns.index)


def gathered(p: Product) -> tuple[Computation, Product]:
    """im2col: a Computation that lays the windows out one after the other, the columns of a matrix,
    and the product with that matrix."""
    used = _used(p.columns)
    dims = [d for d in (*p.b, *p.m, *p.k) if d.var in used]
    matrix = Buffer(
        f"{p.computation.name}_windows", tuple(d.extent for d in dims), p.columns.dtype
    )
    fresh = {d.var: Var(d.var.name, INDEX) for d in dims}
    window = _guarded(p)
    copy = Computation(
        f"{p.computation.name}_im2col",
        tuple(Dim(fresh[d.var], d.extent, CC) for d in dims),
        (
            Output(
                matrix,
                tuple(fresh[d.var] for d in dims),
                substitute(window, dict(fresh)),
            ),
        ),
    )
    read = matrix[tuple(d.var for d in dims)]
    (o,) = p.computation.outputs
    value = substitute(o.value, {window: read})
    changed = Computation(
        p.computation.name,
        p.computation.dims,
        (Output(o.tensor, o.index, value),),
        p.computation.reducer,
    )
    again = product_of(changed)
    if again is None:
        raise UnsupportedError(
            "its windows are not read in one place", where=p.computation.name
        )
    return copy, again


def _guarded(p: Product) -> Expr:
    """The access to the columns with the guard around it, whatever has no access to the rows."""
    (o,) = p.computation.outputs
    best: Expr = p.columns
    for n in postorder(o.value):
        if (
            not isinstance(n, Expr)
            or isinstance(n, Load)
            or n.dtype is not p.columns.dtype
        ):
            continue
        loads = {x for x in postorder(n) if isinstance(x, Load)}
        if loads == {p.columns}:
            best = n
    return best


def ordered(c: Computation, dims: Sequence[Dim]) -> Computation:
    """`c` with its dimensions in another order."""
    return Computation(c.name, tuple(dims), c.outputs, c.reducer)
