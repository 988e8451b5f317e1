"""Lift programs as Computations: normalization by evaluation on delayed values.

`Map` is a parallel dimension, `Reduce` a `pw`, `Scan` a `ps`; what only moves data is an edit of
an index map (views.py); `Concat` at the outside is several Computations on disjoint parts. A value
becomes its own stage where a program names it (a Lambda applied at once) and where more
arithmetic follows a reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.compute.nodes import PS, PW, Computation, Dim
from tilewright.compute.reducer import Reducer
from tilewright.expr.nodes import Buffer, Expr, Load, const
from tilewright.lift import nodes as n
from tilewright.lift import scalars
from tilewright.lift.custom import custom_reducer, no_operator
from tilewright.lift.infer import arity
from tilewright.lift.lengths import Sizes
from tilewright.lift.pending import (
    OPERATORS,
    DeferredOperator,
    DeferredReduction,
    PendingReduction,
    moved,
    step_of,
)
from tilewright.lift.sizes import specialized
from tilewright.lift.stages import Stages, leaf_buffers, view_type
from tilewright.lift.types import Array as ArrayType
from tilewright.lift.types import Scalar, TupleType, Type
from tilewright.lift.views import (
    LAYOUT,
    Array,
    View,
    number,
    of_buffers,
    pad_constant,
    scalar,
    split,
)

# An element of overlapping windows that reads more than this is its own stage. Without it, the
# work of stencils after stencils is multiplied at each.
MAX_INLINED_READS = 2


@dataclass(frozen=True, eq=False, slots=True)
class NormalForm:
    """A program as Computations: run in order they write `outputs` from `inputs`."""

    name: str
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    computations: tuple[Computation, ...]


def normalize(program: n.Lambda, sizes: Sizes, name: str = "lift") -> NormalForm:
    """The Computations of a program at these sizes.

    One buffer per leaf of a parameter and of the result (`sizes.leaves`), named after it. Address
    spaces and the kinds of loops say how, and are passed over. Raises UnsupportedError for a
    reduction whose function is not a combine operator, InputError for ill-typed programs.
    """
    fixed, typing = specialized(program, sizes)
    inputs: list[Buffer] = []
    env: dict[n.Param, View] = {}
    for p, t in zip(fixed.params, typing.params, strict=True):
        buffers = leaf_buffers(p.name, t)
        env[p] = of_buffers(t, buffers)
        inputs += buffers
    outputs = leaf_buffers("out", typing.result)
    stages = Stages(name)
    result = _Work(stages).value(fixed.body, _Scope(env))
    stages.emit(result, typing.result, outputs)
    return NormalForm(name, tuple(inputs), tuple(outputs), tuple(stages.done))


@dataclass(frozen=True, slots=True)
class _Scope:
    env: Mapping[n.Param, View]
    known: dict[n.Term, View] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class _Work:
    """Evaluates terms to views; what must exist before it is read becomes a stage."""

    stages: Stages

    # -- terms

    def value(self, term: n.Term, scope: _Scope) -> View:
        if term not in scope.known:
            scope.known[term] = self._value(term, scope)
        return scope.known[term]

    def _value(self, term: n.Term, scope: _Scope) -> View:
        match term:
            case n.Param():
                return scope.env[term]
            case n.Literal(value, dtype):
                return const(value, dtype)
            case n.Apply(n.Lambda(params, _) as f, args):
                values = [self.value(a, scope) for a in args]
                if len(values) == len(params):
                    named = zip(params, values, strict=True)
                    values = [self.stages.stage(p.name, v) for p, v in named]
                return self.call(f, values, scope)
            case n.Apply(f, args):
                return self.call(f, [self.value(a, scope) for a in args], scope)
            case n.Tuple(items):
                return tuple(self.value(i, scope) for i in items)
            case n.Fill(value, length):
                filled = self.value(value, scope)
                return Array(number(length), lambda i: filled)
            case n.Iota(length):
                return Array(number(length), lambda i: i)
        raise TypeError(type(term).__name__)

    def call(
        self,
        f: n.Fun,
        args: Sequence[View],
        scope: _Scope,
    ) -> View:
        expected = arity(f)
        if expected != 1 and len(args) == 1 and isinstance(args[0], tuple):
            args = args[0]
        if type(f) in _CALL:
            return _CALL[type(f)](self, f, scope, *args)
        return LAYOUT[type(f)](f, *args)

    def mapped(self, f: Callable[[View], View], x: Array) -> Array:
        rows = None
        if (before := x.rows) is not None:
            rows = Array(before.length, lambda i: self.mapped(f, before.at(i)))
        return Array(
            x.length,
            self.stages.generic(x.length, lambda i: f(x.at(i))),
            rows,
            parts=tuple(self.mapped(f, part) for part in x.parts),
        )

    # -- reductions

    def reduced(
        self,
        f: Callable[..., View],
        init: View,
        x: Array,
    ) -> View:
        dims, element = self.elements(x)
        return self.combined(f, init, dims, element)

    def elements(self, x: Array) -> tuple[tuple[Dim, ...], View]:
        """One dimension per level of joined rows, and the element at them."""
        if x.rows is None:
            k = self.stages.fresh(x.length, "k")
            return (Dim(k, x.length, PW),), x.at(k)
        outer: tuple[Dim, ...] = ()
        if x.rows.length == 1:
            row = x.rows.at(const(0))
        else:
            outer, row = self.elements(x.rows)
        if row.length == 1:
            return outer, row.at(const(0))
        inner, element = self.elements(row)
        return (*outer, *inner), element

    def combined(
        self, f: Callable[..., View], init: View, dims: tuple[Dim, ...], element: View
    ) -> View:
        """The result of the reduction of `element` over `dims`, pending leaf by leaf."""
        t = view_type(init)
        buffers = leaf_buffers("acc", t)
        acc = of_buffers(t, buffers)
        step = _Step(f, t, dims, element, frozenset(buffers))
        return self._leafwise(step, t, (acc, f(acc, element), init))

    def _leafwise(
        self,
        step: _Step,
        t: Type,
        views: tuple[View, View, View],
    ) -> View:
        acc, result, init = views
        if isinstance(t, ArrayType):
            item = t.item
            length = number(t.length)

            def element(i: Expr) -> View:
                return self._leafwise(step, item, (acc.at(i), result.at(i), init.at(i)))

            return Array(length, self.stages.generic(length, element))
        if isinstance(t, TupleType):
            parts = [*zip(acc, result, strict=True)]
            scalars_only = all(isinstance(a, Load) for a, _ in parts)
            if scalars_only and any(step.of(r, a) is None for a, r in parts):
                return self._custom(step, t, init)
            components = zip(acc, result, init, strict=True)
            return tuple(
                self._leafwise(step, item, views)
                for item, views in zip(t.items, components, strict=True)
            )
        found = step.of(result, acc)
        if found is None:
            return self._custom(step, t, init)
        reducer, operand = found
        dims = step.dims
        if isinstance(operand, PendingReduction) and _merges(
            operand.core, dims, reducer
        ):
            dims = (*dims, *operand.core.dims)
            values = operand.values()
        else:
            values = (scalar(operand),)
        value = PendingReduction(
            DeferredReduction(dims, reducer, values, self.stages.force), {}
        )
        start = scalar(init)
        if start is reducer.identity[0]:
            return value
        return reducer.combine((start,), (value.expr(),))[0]

    def _custom(self, step: _Step, t: Type, init: View) -> View:
        """A reduction by an operator of the program's own, on all components at once."""
        single = isinstance(t, Scalar)
        element = (step.element,) if single else step.element
        if t is not step.type or not _scalars(element, t):
            raise no_operator()
        values = tuple(map(scalar, element))
        reducer = custom_reducer(step.f, (init,) if single else init, values)
        core = DeferredReduction(step.dims, reducer, values, self.stages.force)
        parts = tuple(PendingReduction(core, {}, k) for k in range(len(reducer.dtypes)))
        return parts[0] if single else parts


def _scalars(element: View, t: Type) -> bool:
    """Whether the element is a scalar for each component of the accumulator."""
    count = len(t.items) if isinstance(t, TupleType) else 1
    found = isinstance(element, tuple) and len(element) == count
    return found and not any(isinstance(x, tuple | Array) for x in element)


@dataclass(frozen=True, eq=False, slots=True)
class _Step:
    """One step of a reduction: `f(accumulator of that type, element)`, over the dimensions.

    accumulators: the buffers that stand for the accumulator.
    """

    f: Callable[..., View]
    type: Type
    dims: tuple[Dim, ...]
    element: View
    accumulators: frozenset[Buffer]

    def of(self, result: View, acc: Load) -> tuple[Reducer, View] | None:
        """The operator and the operand of one leaf, if the step treats it separately."""
        return step_of(result, acc, self.accumulators)


def _merges(core: DeferredReduction, dims: Sequence[Dim], reducer: Any) -> bool:
    """Whether a reduction of a reduction is one over all the dimensions."""
    only_reduced = all(d.combine == PW for d in (*dims, *core.dims))
    return core.reducer is reducer and only_reduced


# -- functions: (work, pattern, scope, views) -> view


def _lambda(
    w: _Work,
    f: n.Lambda,
    s: _Scope,
    *args: View,
) -> View:
    bound = dict(zip(f.params, args, strict=True))
    return w.value(f.body, _Scope({**s.env, **bound}))


def _compose(
    w: _Work,
    f: n.Compose,
    s: _Scope,
    *args: View,
) -> View:
    value = w.call(f.funs[0], args, s)
    for g in f.funs[1:]:
        value = w.call(g, [value], s)
    return value


def _scalar(
    w: _Work,
    f: n.ScalarFun,
    s: _Scope,
    *args: View,
) -> View:
    if isinstance(f, n.Builtin):
        if f.name == "id":
            return args[0]
        node: Any = scalars.BUILTINS[f.name].value
        pending = any(isinstance(a, PendingReduction) for a in args)
        if pending and node in OPERATORS:
            return DeferredOperator(node, args)
    return scalars.body(f, tuple(map(scalar, args)))


def _called(w: _Work, f: n.Fun, s: _Scope) -> Callable[..., View]:
    """A function of Lift as one of Python, on views."""
    return lambda *args: w.call(f, args, s)


def _map(
    w: _Work,
    f: n.AnyMap,
    s: _Scope,
    x: Array,
) -> View:
    return w.mapped(_called(w, f.f, s), x)


def _reduce(
    w: _Work,
    f: n.AnyReduce,
    s: _Scope,
    x: Array,
) -> View:
    init = w.value(f.init, s)
    value = w.reduced(_called(w, f.f, s), init, x)
    return Array(1, lambda i: value)


def _part_red(
    w: _Work,
    f: n.PartRed,
    s: _Scope,
    x: Array,
) -> View:
    init = w.value(f.init, s)
    runs = split(x, x.length // number(f.count))
    fold = _called(w, f.f, s)
    return w.mapped(lambda run: w.reduced(fold, init, run), runs)


def _scan(
    w: _Work,
    f: n.AnyScan,
    s: _Scope,
    x: Array,
) -> View:
    k = w.stages.fresh(x.length, "s")
    init = w.value(f.init, s)
    dims = (Dim(k, x.length, PS),)
    value = w.combined(_called(w, f.f, s), init, dims, x.at(k))
    return Array(x.length, lambda i: moved(value, {k: i}))


def _map_seq_slide(
    w: _Work,
    f: n.MapSeqSlide,
    s: _Scope,
    x: Array,
) -> View:
    windows = _slide(w, n.Slide(f.size, f.step), s, x)
    return _map(w, n.Map(f.f), s, windows)


def _slide(
    w: _Work,
    f: n.Slide,
    s: _Scope,
    x: Array,
) -> View:
    """Windows that overlap take elements several times: costly ones are computed once, before."""
    if number(f.size) > number(f.step) and w.stages.reads(x) > MAX_INLINED_READS:
        x = w.stages.stage(w.stages.next_name, x)
    return LAYOUT[n.Slide](f, x)


def _iterate(
    w: _Work,
    f: n.Iterate,
    s: _Scope,
    x: View,
) -> View:
    for _ in range(f.times):
        x = w.call(f.f, [x], s)
    return x


def _pad_constant(
    w: _Work,
    f: n.PadConstant,
    s: _Scope,
    x: Array,
) -> View:
    outside = w.value(f.value, s)
    return pad_constant(x, number(f.left), number(f.right), outside)


def _vectorize(
    w: _Work,
    f: n.Vectorize,
    s: _Scope,
    *args: Array,
) -> View:
    def lane(i: Expr) -> View:
        return w.call(f.f, [a.at(i) for a in args], s)

    return Array(f.width, lane)


_CALL: Mapping[type[n.Fun], Callable[..., View]] = {
    n.Lambda: _lambda,
    n.Compose: _compose,
    n.UserFun: _scalar,
    n.Builtin: _scalar,
    **dict.fromkeys(n.MAPS, _map),
    n.MapSeqSlide: _map_seq_slide,
    n.Slide: _slide,
    n.Reduce: _reduce,
    n.ReduceSeq: _reduce,
    n.ReduceSeqUnroll: _reduce,
    n.PartRed: _part_red,
    n.Scan: _scan,
    n.ScanSeq: _scan,
    n.Iterate: _iterate,
    n.PadConstant: _pad_constant,
    n.Vectorize: _vectorize,
    n.To: lambda w, f, s, *args: w.call(f.f, args, s),
    n.DeviceOp: lambda w, f, s, *args: w.call(f.meaning, args, s),
}
