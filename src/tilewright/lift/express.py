"""A Computation as a Lift program: each dimension maps over the arrays it indexes.

Dimensions are taken outermost first. A tensor whose axis is indexed by one is transposed until that
axis is the first; a stride or a sum of dimensions is a Slide, an offset a Drop, a guard with a
constant outside a Pad. Whether the program says exactly the Computation is not argued but tried:
`show` normalizes it again and compares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import UnsupportedError
from tilewright.compute.canonical import canonical
from tilewright.compute.nodes import CC, PS, PW, Computation, Dim, Output
from tilewright.compute.reducer import reducer
from tilewright.expr import nodes as e
from tilewright.expr.affine import Affine, affine, to_expr
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import Buffer, Const, Expr, Load, Select, Var, const
from tilewright.expr.printer import short
from tilewright.expr.reads import variables
from tilewright.ir.node import postorder
from tilewright.lift import nodes as n
from tilewright.lift.nodes import apply, lambda_
from tilewright.lift.normalize import normalize
from tilewright.lift.patterns import parse as parse_program
from tilewright.lift.pending import OPERATORS
from tilewright.lift.printer import show_lines
from tilewright.lift.tidy import tidy
from tilewright.lift.types import Scalar, array

_FUNCTIONS: Mapping[type[Expr], str] = {
    e.Add: "add",
    e.Sub: "sub",
    e.Mul: "mul",
    e.Div: "div",
    e.FloorDiv: "floordiv",
    e.Mod: "mod",
    e.Rem: "rem",
    e.Min: "min",
    e.Max: "max",
    e.And: "and_",
    e.Or: "or_",
    e.Xor: "xor",
    e.Shl: "shl",
    e.Shr: "shr",
    e.Lt: "lt",
    e.Le: "le",
    e.Eq: "eq",
    e.Ne: "ne",
    e.Neg: "neg",
    e.Not: "not_",
    e.Select: "select",
}


def show(c: Computation) -> str:
    """The Computation as a Lift program; `parse` of the text gives an equal one.

    Equal up to the normal form of index arithmetic (`tidy`), in which programs always are. Raises
    UnsupportedError, with the reason, for a Computation that Lift cannot express.
    """
    if c.tags:
        raise _no_form(c, f"it carries the tags {', '.join(c.tags)}")
    if sum(d.combine == PS for d in c.dims) > 1:
        raise _no_form(c, "it scans along several dimensions at once")
    program = program_of(c)
    again = normalize(program, {})
    mine = canonical([tidied(c)], [*c.inputs, *(o.tensor for o in c.outputs)])
    if canonical(again.computations, [*again.inputs, *again.outputs]) != mine:
        raise _no_form(
            c, "no patterns produce its results or the order of its dimensions"
        )
    return show_lines(program)


def parse(text: str) -> Computation:
    """The Computation of a program that `show` printed.

    Raises InputError for other text, UnsupportedError for a program of several Computations.
    """
    program = parse_program(text)
    if not isinstance(program, n.Lambda):
        raise UnsupportedError(
            "this is not a program: its parameters have no types",
            where="printed form",
            hint="as in fun(lambda x: ..., f32[8])",
        )
    found = normalize(program, {}).computations
    if len(found) != 1:
        raise UnsupportedError(
            f"this program is {len(found)} Computations, not one",
            where="printed form",
            hint="normalize gives all of them",
        )
    return found[0]


def program_of(c: Computation) -> n.Lambda:
    """A program for the Computation, if patterns can follow its index maps.

    Raises UnsupportedError, with the reason, if not.
    """
    params = {b: n.Param(b.name, array(Scalar(b.dtype), *b.shape)) for b in c.inputs}
    body = _Expression(c, params).program()
    return n.Lambda(tuple(params.values()), body)


@dataclass(frozen=True, slots=True)
class _Source:
    """What is left of an access: a nested array and the indices of its axes."""

    term: n.Term
    axes: tuple[Expr, ...]
    lengths: tuple[int, ...]

    def uses(self, v: Var) -> bool:
        """Whether the variable is in an index."""
        return any(v in variables(index) for index in self.axes)

    def mapped(self, depth: int, f: n.Fun) -> n.Term:
        """`f` at every element `depth` levels down."""
        for _ in range(depth):
            f = n.Map(f)
        return apply(f, self.term)

    def without(self, axis: int, term: n.Term) -> _Source:
        """`term`, which no longer has that axis."""
        axes = [*self.axes]
        lengths = [*self.lengths]
        del axes[axis], lengths[axis]
        return _Source(term, tuple(axes), tuple(lengths))

    def fronted(self, axis: int) -> _Source:
        """With that axis first."""
        source = self
        for a in range(axis - 1, -1, -1):
            axes = [*source.axes]
            lengths = [*source.lengths]
            axes[a], axes[a + 1] = axes[a + 1], axes[a]
            lengths[a], lengths[a + 1] = lengths[a + 1], lengths[a]
            term = source.mapped(a, n.Transpose())
            source = _Source(term, tuple(axes), tuple(lengths))
        return source


class _Expression:
    def __init__(self, c: Computation, params: Mapping[Buffer, n.Param]) -> None:
        self.c = c
        self.params = params
        self.env = {d.var: (0, d.extent - 1) for d in c.dims}
        accesses = [_accesses(o.value) for o in c.outputs]
        self.accesses = tuple(dict.fromkeys(chain.from_iterable(accesses)))
        # Dimensions that are values themselves, outside every index.
        self.counted: set[Var] = set()
        for output in c.outputs:
            self.counted |= _without(output.value, set(self.accesses))

    def program(self) -> n.Term:
        sources = tuple(map(self.source, self.accesses))
        return self.over(self.c.dims, sources, {})

    def source(self, access: Expr) -> _Source:
        """An access before any dimension is taken: padded, constant indices done."""
        load = access.then if isinstance(access, Select) else access
        assert isinstance(load, Load)
        source = _Source(self.params[load.buffer], load.index, load.buffer.shape)
        if isinstance(access, Select):
            assert isinstance(access.otherwise, Const)
            source = self.padded(source, access.otherwise)
        axis = 0
        while axis < len(source.axes):
            form = affine(source.axes[axis])
            if form.is_const:
                at = n.At(const(form.const))
                source = source.without(axis, source.mapped(axis, at))
            else:
                axis += 1
        return source

    def padded(self, source: _Source, outside: Const) -> _Source:
        for axis in range(len(source.axes) - 1, -1, -1):
            index = source.axes[axis]
            lo, hi = self.bounds(index)
            left = max(0, -lo)
            right = max(0, hi - source.lengths[axis] + 1)
            if not left and not right:
                continue
            value: n.Term = n.Literal(outside.value, outside.type)  # type: ignore[arg-type]
            for length in reversed(source.lengths[axis + 1 :]):
                value = n.Fill(value, const(length))
            pad = n.PadConstant(const(left), const(right), value)
            axes = [*source.axes]
            lengths = [*source.lengths]
            axes[axis], lengths[axis] = index + left, lengths[axis] + left + right
            source = _Source(source.mapped(axis, pad), tuple(axes), tuple(lengths))
        return source

    def bounds(self, index: Expr) -> tuple[int, int]:
        lo, hi = bounds(index, self.env)
        if lo is None or hi is None:
            raise _no_form(self.c, f"the index {index!r} has no bounds")
        return lo, hi

    # -- dimensions

    def over(
        self,
        dims: Sequence[Dim],
        sources: tuple[_Source, ...],
        values: Mapping[Var, n.Term],
    ) -> n.Term:
        """The program over the dimensions that are left."""
        if not dims or dims[0].combine == PW:
            return self.reduced(tuple(dims), sources, values)
        d = dims[0]
        rest = dims[1:]
        mapped = self.map_over(d, sources, values, lambda s, v: self.over(rest, s, v))
        if d.combine == CC:
            return mapped
        f, init = self.operator()
        return apply(n.Scan(f, init), mapped)

    def reduced(
        self,
        dims: tuple[Dim, ...],
        sources: tuple[_Source, ...],
        values: Mapping[Var, n.Term],
    ) -> n.Term:
        if not dims:
            return self.element(sources, values)

        def inner(
            rest: tuple[Dim, ...], s: tuple[_Source, ...], v: Mapping[Var, n.Term]
        ) -> n.Term:
            if not rest:
                return self.element(s, v)
            return self.map_over(rest[0], s, v, lambda s, v: inner(rest[1:], s, v))

        term = inner(dims, sources, values)
        for _ in dims[1:]:
            term = apply(n.Join(), term)
        return apply(n.At(const(0)), apply(n.Reduce(*self.operator()), term))

    def map_over(
        self,
        d: Dim,
        sources: tuple[_Source, ...],
        values: Mapping[Var, n.Term],
        body: Any,
    ) -> n.Term:
        """Map over the arrays that `d` indexes, zipped; over 0, 1, ... where it is a value."""
        fronts = {
            k: self.taken(source, d)
            for k, source in enumerate(sources)
            if source.uses(d.var)
        }
        items = [front.term for front in fronts.values()]
        is_value = d.var in self.counted
        if is_value or not items:
            items.append(n.Iota(const(d.extent)))
        p = n.Param(d.var.name, None)
        parts: list[n.Term]
        if len(items) == 1:
            over = items[0]
            parts = [p]
        else:
            over = apply(n.Zip(), *items)
            parts = [p[k] for k in range(len(items))]
        inner = list(sources)
        for (k, front), part in zip(fronts.items(), parts, strict=False):
            inner[k] = replace(front, term=part)
        if is_value:
            values = {**values, d.var: parts[-1]}
        value = body(tuple(inner), values)
        if value is p:
            return over
        return apply(n.Map(lambda_((p,), value)), over)

    def taken(self, source: _Source, d: Dim) -> _Source:
        """The array whose elements `d` counts; its element's axes and indices."""
        found = [k for k, i in enumerate(source.axes) if d.var in variables(i)]
        form = affine(source.axes[found[0]])
        step = form.coefficient(d.var)
        if len(found) > 1 or not step:
            raise _no_form(self.c, f"{d.var.name} indexes in a way that no pattern has")
        source = source.fronted(found[0])
        length = source.lengths[0]
        rest = form - Affine(((d.var, step),), 0)
        term = source.term
        if step < 0:
            term = apply(n.Gather(n.IndexFun("reverse", ())), term)
            step = -step
            rest = Affine((), length - 1) - rest
        lo, hi = self.bounds(to_expr(rest))
        size = hi - lo + 1
        need = step * (d.extent - 1) + size
        if lo < 0 or lo + need > length:
            raise _no_form(self.c, f"{d.var.name} leaves the tensor")
        if lo:
            term = apply(n.Drop(const(lo)), term)
        if lo + need < length:
            term = apply(n.Take(const(need)), term)
        if rest.is_const:
            if step > 1:
                single = apply(n.Slide(const(1), const(step)), term)
                term = apply(n.Map(n.At(const(0))), single)
            return source.without(0, term)
        windows = apply(n.Slide(const(size), const(step)), term)
        axis = to_expr(rest - Affine((), lo))
        return _Source(
            windows,
            axes=(axis, *source.axes[1:]),
            lengths=(size, *source.lengths[1:]),
        )

    # -- values

    def element(
        self, sources: tuple[_Source, ...], values: Mapping[Var, n.Term]
    ) -> n.Term:
        if any(s.axes for s in sources):
            raise _no_form(self.c, "an index stands for no dimension")
        env: dict[Any, n.Term] = {
            a: s.term for a, s in zip(self.accesses, sources, strict=True)
        }
        found = [self.term(o.value, {**env, **values}) for o in self.c.outputs]
        if len(found) == 1:
            return found[0]
        return n.Tuple(tuple(found))

    def term(self, root: Expr, env: Mapping[Any, n.Term]) -> n.Term:
        """A scalar expression as calls of functions; env: the terms of some of its parts."""
        done: dict[Any, n.Term] = dict(env)

        def of(x: Any) -> n.Term:
            if x not in done:
                done[x] = self.called(x, [of(c) for c in x.children()])
            return done[x]

        return of(root)

    def called(self, root: Expr, args: Sequence[n.Term]) -> n.Term:
        """The function of an expression's root, called on the terms of its operands."""
        match root:
            case Const(value, dtype):
                return n.Literal(value, dtype)  # type: ignore[arg-type]
            case e.Call(name, _):
                return n.Builtin(name)(*args)
            case e.Cast(_, dtype):
                return n.Builtin(short(dtype))(*args)
        if type(root) not in _FUNCTIONS:
            raise _no_form(self.c, f"there is no function {type(root).__name__}")
        return n.Builtin(_FUNCTIONS[type(root)])(*args)

    def operator(self) -> tuple[n.Fun, n.Term]:
        """The combine operator as a function, and its neutral element."""
        op = self.c.reducer
        assert op is not None
        neutral = tuple(n.Literal(i.value, i.type) for i in op.identity)  # type: ignore[arg-type]
        a = n.Param("a", None)
        b = n.Param("b", None)
        if len(op.dtypes) == 1:
            env: dict[Any, n.Term] = {op.lhs[0]: a, op.rhs[0]: b}
            for node, name in OPERATORS.items():
                # Not every dtype has every reducer: its own node is looked at first.
                mine = type(op.result[0]) is node
                if mine and op is reducer(name, op.dtypes[0]):
                    return n.Builtin(_FUNCTIONS[node]), neutral[0]
            return lambda_((a, b), self.term(op.result[0], env)), neutral[0]
        env = {v: a[k] for k, v in enumerate(op.lhs)}
        env |= {v: b[k] for k, v in enumerate(op.rhs)}
        result = n.Tuple(tuple(self.term(r, env) for r in op.result))
        return lambda_((a, b), result), n.Tuple(neutral)


def _accesses(root: Expr) -> list[Expr]:
    """The loads in order, each with the Select that pads it."""
    nodes = [*postorder(root)]
    pads: dict[Expr, Expr] = {}
    for x in nodes:
        match x:
            case Select(_, Load() as load, Const()):
                pads[load] = x
    return [pads.get(x, x) for x in nodes if isinstance(x, Load)]


def tidied(c: Computation) -> Computation:
    """The Computation with its index arithmetic in normal form."""
    env = {d.var: (0, d.extent - 1) for d in c.dims}
    outputs = []
    for o in c.outputs:
        index = tuple(tidy(i, env) for i in o.index)
        outputs.append(Output(o.tensor, index, tidy(o.value, env)))
    return replace(c, outputs=tuple(outputs))


def _without(root: Expr, stop: set[Expr]) -> set[Var]:
    """The variables of an expression outside the accesses."""
    waiting: list[Any] = [root]
    seen: set[Any] = set(stop)
    while waiting:
        x = waiting.pop()
        if x not in seen:
            seen.add(x)
            waiting += x.children()
    return {x for x in seen - stop if isinstance(x, Var)}


def _no_form(c: Computation, reason: str) -> UnsupportedError:
    return UnsupportedError(
        f"no Lift program: {reason}",
        where=f"computation {c.name}",
        hint="print it with repr, or in another notation",
    )
