"""Low-level Lift as loops: every pattern is the loop that it names.

    MapSeq f              for i in n                     Map f       where it is read, or as MapSeq
    MapPar f              for i in n parallel            MapVec f    for i in n vector
    MapGlb f d, MapWrg    for i in n blockIdx.d          MapLcl f d  for i in n threadIdx.d
    ReduceSeq f z         acc = z; for i in n: acc = f(acc, x[i])    (Update where f says `acc + v`)
    ReduceSeqUnroll       the same loop, unrolled where it is an Update
    ScanSeq f z           the same loop, which also writes each acc
    MapSeqSlide f s t     for i in n: a window of registers takes t new elements, f, rotates
    Vectorize w f         for lane in w vector           Iterate     written k times
    To space f            memory in that space, if f's result is read
    DeviceOp              Unit with the meaning's loops as its body
    Reduce, PartRed, Scan as ReduceSeq, ScanSeq

Views (views.py) read through patterns that only move data, and write through them (producer.py):
a program is translated with its destination in hand, as in Atkey, Steuwer, Lindley and Dubach
(2017). A dimension of size 1 makes no loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.base.errors import InputError
from tilewright.expr.nodes import Buffer, Const, Expr, Load, const
from tilewright.ir.node import postorder
from tilewright.loops.nodes import For, Kernel, Stmt, Store, Unit, Update
from tilewright.notation.lift import nodes as n
from tilewright.notation.lift import scalars, views
from tilewright.notation.lift.code import Code, extent
from tilewright.notation.lift.infer import Scope as Types
from tilewright.notation.lift.infer import arguments_of_body, result, type_of, unpacked
from tilewright.notation.lift.lengths import Sizes
from tilewright.notation.lift.producer import Produced, inverse_of_all, invertible
from tilewright.notation.lift.sizes import specialised
from tilewright.notation.lift.stages import leaf_buffers
from tilewright.notation.lift.types import Array as ArrayType
from tilewright.notation.lift.types import Scalar, Type
from tilewright.notation.lift.views import LAYOUT, Array, Reads, View, number, of_buffers, scalar

# Where an address space of Lift is on a processor, and on a device that has them all.
PROCESSOR: Mapping[str, str] = {
    **dict.fromkeys(("global", "dram", "output"), "global"),
    **dict.fromkeys(("local", "private", "chip"), "stack"),
}
DEVICE: Mapping[str, str] = {space: space for space in n.SPACES} | {"private": "stack"}

_LOOPS: Mapping[type[n.Fun], str] = {
    n.MapSeq: "serial",
    n.MapPar: "parallel",
    n.MapVec: "vector",
    n.MapGlb: "blockIdx",
    n.MapWrg: "blockIdx",
    n.MapLcl: "threadIdx",
}

# A value and its type.
Typed = tuple[View, Type]


def lower(
    program: n.Lambda,
    sizes: Sizes,
    name: str = "lift",
    spaces: Mapping[str, str] = PROCESSOR,
) -> Kernel:
    """The Kernel of a program at these sizes, loop by loop as its patterns say.

    One buffer per leaf of a parameter and of the result, named after it. spaces: the memory scope
    of each address space. Raises InputError for ill-typed programs and for loops that cannot be
    nested as they are (TW-LIFT-NEST).
    """
    fixed, typing = specialised(program, sizes)
    inputs: list[Buffer] = []
    env: dict[n.Param, View] = {}
    for p, t in zip(fixed.params, typing.params, strict=True):
        buffers = leaf_buffers(p.name, t)
        env[p] = of_buffers(t, buffers)
        inputs += buffers
    outputs = leaf_buffers("out", typing.result)
    code = Code(spaces, {b.name for b in (*inputs, *outputs)})
    scope = _Scope(env, Types(dict(zip(fixed.params, typing.params, strict=True))))
    value, t = _Translator(code).value(fixed.body, scope)
    code.into(value, t, of_buffers(t, outputs))
    return Kernel(name, (*inputs, *outputs), tuple(outputs), code.frames[0].close())


@dataclass(frozen=True, slots=True)
class _Scope:
    env: Mapping[n.Param, View]
    types: Types
    known: dict[n.Term, Typed] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class _Translator:
    """Terms to views; what takes statements is Produced.

    in_place: reductions accumulate where their result belongs.
    """

    code: Code
    in_place: bool = False

    def value(self, term: n.Term, scope: _Scope) -> Typed:
        if term not in scope.known:
            scope.known[term] = self._value(term, scope), type_of(term, scope.types)
        return scope.known[term]

    def here(self, term: n.Term, scope: _Scope) -> Typed:
        """A term inside a pattern: evaluated anew in the block where the pattern runs."""
        return self.value(term, _Scope(scope.env, scope.types))

    def _value(self, term: n.Term, scope: _Scope) -> View:
        match term:
            case n.Param():
                return scope.env[term]
            case n.Literal(value, dtype):
                return const(value, dtype)
            case n.Apply(f, args):
                values = [self.value(a, scope) for a in args]
                if isinstance(f, n.Lambda):
                    values = [(self.named(v, t), t) for v, t in values]
                return self.call(f, values, scope)
            case n.Tuple(items):
                return tuple(self.value(i, scope)[0] for i in items)
            case n.Fill(value, length):
                filled = self.value(value, scope)[0]
                reads = Reads.MEMORY if _in_memory(filled) else Reads.EXPRESSION
                return Array(number(length), lambda i: filled, reads=reads)
            case n.Iota(length):
                return Array(number(length), lambda i: i, reads=Reads.MEMORY)
        raise TypeError(type(term).__name__)

    def call(self, f: n.Fun, args: Sequence[Typed], scope: _Scope) -> View:
        """`f` applied; one tuple may stand for several arguments."""
        types = tuple(t for _, t in args)
        items = unpacked(f, types)
        if items is not types:
            args = [(args[0][0][k], t) for k, t in enumerate(items)]
        if len(args) == 1 and isinstance(args[0][0], Produced):
            moved = self._moved(f, args[0], scope)
            if moved is not None:
                return moved
        if type(f) in LAYOUT and type(f) is not n.Concat:
            return LAYOUT[type(f)](f, *(v for v, _ in args))
        return _CALL[type(f)](self, f, scope, *args)

    def result(self, f: n.Fun, args: Sequence[Typed], scope: _Scope) -> Type:
        """The type of `f` applied to these."""
        return result(f, tuple(t for _, t in args), scope.types)

    def body(self, f: Any, args: Sequence[Typed], scope: _Scope) -> tuple[Type, ...]:
        """The types of the arguments of `f.f`."""
        return arguments_of_body(f, tuple(t for _, t in args), scope.types)

    def produced(
        self, t: Type, write: Callable[[View], None], space: str | None = None
    ) -> Produced:
        """A value made in the block being written."""
        return Produced(t, write, self.code.frames[-1], self.code, space)

    def named(self, view: View, t: Type) -> View:
        """In memory, unless it only moves what is there already."""
        if isinstance(view, Produced):
            return view.place()
        if isinstance(t, Scalar) or _in_memory(view):
            return view
        return self.produced(t, lambda to: self.code.into(view, t, to)).place()

    def guarded(self, view: View, t: Type) -> View:
        """A view that may be read under a condition: no statement is needed for it there."""
        if isinstance(view, Array | Produced) and view.reads is Reads.STATEMENTS:
            return self.named(view, t)
        return view

    def _moved(self, f: n.Fun, arg: Typed, scope: _Scope) -> View | None:
        """A pattern that only moves data: the destination moves instead of the value."""
        view, t = arg
        if view.made is not None or not invertible(f):
            return None

        def types(g: n.Fun, a: Type) -> Type:
            return result(g, (a,), scope.types)

        lazy = None if view.lazy is None else self.call(f, [(view.lazy, t)], scope)
        return Produced(
            types(f, t),
            lambda to: view.write(inverse_of_all(f, types, t, to)),
            view.frame,
            self.code,
            view.space,
            lazy,
        )


def _in_memory(view: View) -> bool:
    """Whether every leaf is an element of memory, a constant or an index."""
    if isinstance(view, tuple):
        return all(map(_in_memory, view))
    if isinstance(view, Array):
        return view.reads is Reads.MEMORY
    if not isinstance(view, Expr):
        return False
    return isinstance(view, Load | Const) or not any(isinstance(x, Load) for x in postorder(view))


_STATEMENTS = (
    *(n.AnyReduce, n.AnyScan, n.PartRed, n.MapSeqSlide, n.To, n.DeviceOp),
    *(n.MapSeq, n.MapPar, n.MapVec, n.MapGlb, n.MapWrg, n.MapLcl),
)


def _makes(f: n.Fun) -> bool:
    """Whether the function may take statements: it reduces, loops or names a value."""
    return any(
        isinstance(p, _STATEMENTS) or (isinstance(p, n.Apply) and isinstance(p.fun, n.Lambda))
        for p in postorder(f)
    )


# -- functions: (translator, pattern, scope, values with types) -> view


def _lambda(w: _Translator, f: n.Lambda, s: _Scope, *args: Typed) -> View:
    env = {**s.env, **{p: v for p, (v, _) in zip(f.params, args, strict=True)}}
    types = s.types.inner(f.params, tuple(t for _, t in args))
    return w.value(f.body, _Scope(env, types))[0]


def _compose(w: _Translator, f: n.Compose, s: _Scope, *args: Typed) -> View:
    values: Sequence[Typed] = args
    for g in f.funs:
        values = [(w.call(g, values, s), w.result(g, values, s))]
    return values[0][0]


def _scalar(w: _Translator, f: n.ScalarFun, s: _Scope, *args: Typed) -> View:
    if isinstance(f, n.Builtin) and f.name == "id":
        return args[0][0]
    return scalars.body(f, [scalar(v) for v, _ in args])


def _map(w: _Translator, f: n.Map, s: _Scope, x: Typed) -> View:
    (item,) = w.body(f, [x], s)
    t = w.result(f, [x], s)
    reads = Reads.STATEMENTS if _makes(f.f) else min(x[0].reads, Reads.EXPRESSION)
    lazy = replace(views.mapped(lambda e: w.call(f.f, [(e, item)], s), x[0]), reads=reads)
    made = w.produced(t, lambda to: w.code.into(lazy, t, to))
    made.lazy = lazy
    return made


def _map_loop(w: _Translator, f: n.AnyMap, s: _Scope, x: Typed) -> View:
    kind, (item,) = _LOOPS[type(f)], w.body(f, [x], s)
    if isinstance(f, n.MapGlb | n.MapWrg | n.MapLcl):
        kind = f"{kind}.{'xyz'[f.dim]}"
    if isinstance(f, n.MapLcl) and not any(k.startswith("blockIdx") for k in w.code.kinds):
        raise InputError("MapLcl is not inside MapWrg", code="TW-LIFT-NEST", where=repr(f))
    t = w.result(f, [x], s)
    assert isinstance(t, ArrayType)

    def write(to: View) -> None:
        def element(i: Expr) -> None:
            w.code.into(w.call(f.f, [(x[0].at(i), item)], s), t.item, to.at(i))

        w.code.loop(extent(t), kind, element)

    return w.produced(t, write)


def _map_seq_slide(w: _Translator, f: n.MapSeqSlide, s: _Scope, x: Typed) -> View:
    size, step = number(f.size), number(f.step)
    keep, (window,) = size - step, w.body(f, [x], s)
    t = w.result(f, [x], s)
    assert isinstance(t, ArrayType) and isinstance(window, ArrayType)
    item = window.item
    if keep <= 0:
        return _map_loop(
            w, n.MapSeq(f.f), s, (views.slide(x[0], size, step), ArrayType(window, t.length))
        )

    def write(to: View) -> None:
        code = w.code
        kept = code.allocate(window, "private", "window")

        def take(j: int, source: View) -> None:
            code.into(source, item, kept.at(const(j)))

        def element(i: Expr) -> None:
            for j in range(keep, size):
                take(j, x[0].at(views.plain(i * step + j)))
            code.into(w.call(f.f, [(kept, window)], s), t.item, to.at(i))
            for j in range(keep):
                take(j, kept.at(const(j + step)))

        for j in range(keep):
            take(j, x[0].at(const(j)))
        code.loop(extent(t), "serial", element)

    return w.produced(t, write)


def _step(w: _Translator, f: n.Fun, s: _Scope, acc: Typed, element: Typed) -> None:
    """`acc = f(acc, element)`, in place where no element of acc is needed after it is written."""
    view, t = acc
    with w.code.block() as frame:
        w.code.into(w.call(f, [acc, element], s), t, view)
    body = frame.close()
    if _keeps(body, _buffers(view)):
        w.code.emit(body)
        return
    new = w.code.allocate(t, "private", "next")
    w.code.into(w.call(f, [acc, element], s), t, new)
    w.code.into(new, t, view)


def _keeps(body: Stmt, acc: set[Buffer]) -> bool:
    """Whether each element of acc is read only by the statement that writes it."""
    for s in postorder(body):
        if isinstance(s, Store | Update):
            values = (s.value,) if isinstance(s, Store) else s.values
            for x in (x for v in (*values, *s.index) for x in postorder(v)):
                if isinstance(x, Load) and x.buffer in acc:
                    own = isinstance(s, Store) and x.buffer is s.buffer and x.index == s.index
                    if not own:
                        return False
    return True


def _buffers(view: View) -> set[Buffer]:
    if isinstance(view, tuple):
        return set().union(*map(_buffers, view))
    return _buffers(view.at(const(0))) if isinstance(view, Array) else {view.buffer}


def _accumulator(w: _Translator, f: Any, s: _Scope, to: View | None) -> Typed:
    """The accumulator with its initial value; `to` itself where that is private already."""
    init, t = w.here(f.init, s)
    ours = to is not None and (w.in_place or all(b.scope != "global" for b in _buffers(to)))
    acc = to if ours else w.code.allocate(t, "private", "acc")
    w.code.into(init, t, acc)
    return acc, t


def _fold(w: _Translator, f: Any, s: _Scope, x: Typed, to: View) -> None:
    acc = _accumulator(w, f, s, to)
    item = w.body(f, [x], s)[1]
    with w.code.block() as frame:
        w.code.loop(x[0].length, "serial", lambda i: _step(w, f.f, s, acc, (x[0].at(i), item)))
    body = frame.close()
    if isinstance(f, n.ReduceSeqUnroll) and isinstance(body, For):
        if isinstance(body.body, Update):
            body = For(body.var, body.extent, "unroll", body.body)
    w.code.emit(body)
    if acc[0] is not to:
        w.code.into(*acc, to)


def _reduce(w: _Translator, f: n.AnyReduce, s: _Scope, x: Typed) -> View:
    return w.produced(w.result(f, [x], s), lambda to: _fold(w, f, s, x, to.at(const(0))))


def _part_red(w: _Translator, f: n.PartRed, s: _Scope, x: Typed) -> View:
    t = w.result(f, [x], s)
    assert isinstance(t, ArrayType) and isinstance(x[1], ArrayType)
    runs = views.split(x[0], x[0].length // extent(t))

    def write(to: View) -> None:
        w.code.loop(extent(t), "serial", lambda i: _fold(w, f, s, (runs.at(i), x[1]), to.at(i)))

    return w.produced(t, write)


def _scan(w: _Translator, f: n.AnyScan, s: _Scope, x: Typed) -> View:
    item = w.body(f, [x], s)[1]

    def write(to: View) -> None:
        acc = _accumulator(w, f, s, None)

        def element(i: Expr) -> None:
            _step(w, f.f, s, acc, (x[0].at(i), item))
            w.code.into(*acc, to.at(i))

        w.code.loop(x[0].length, "serial", element)

    return w.produced(w.result(f, [x], s), write)


def _iterate(w: _Translator, f: n.Iterate, s: _Scope, x: Typed) -> View:
    for _ in range(f.times):
        x = w.call(f.f, [x], s), w.result(f.f, [x], s)
    return x[0]


def _concat(w: _Translator, f: n.Concat, s: _Scope, *xs: Typed) -> View:
    if not any(isinstance(v, Produced) for v, _ in xs):
        return views.concat(*(w.guarded(v, t) for v, t in xs))

    def write(to: View) -> None:
        start = 0
        for v, t in xs:
            w.code.into(v, t, views.shifted(to, start, v.length))
            start += v.length

    return w.produced(w.result(f, xs, s), write)


def _pad_constant(w: _Translator, f: n.PadConstant, s: _Scope, x: Typed) -> View:
    inside, outside = w.guarded(*x), w.guarded(*w.here(f.value, s))
    return views.pad_constant(inside, number(f.left), number(f.right), outside)


def _vectorize(w: _Translator, f: n.Vectorize, s: _Scope, *args: Typed) -> View:
    lanes = w.body(f, args, s)

    def lane(i: Expr) -> View:
        return w.call(f.f, [(v.at(i), t) for (v, _), t in zip(args, lanes, strict=True)], s)

    return Array(f.width, lane)


def _to(w: _Translator, f: n.To, s: _Scope, *args: Typed) -> View:
    value, t = w.call(f.f, args, s), w.result(f.f, args, s)
    if isinstance(value, Produced) and value.made is None and value.space is None:
        return Produced(t, value.write, value.frame, w.code, f.space)
    return w.produced(t, lambda to: w.code.into(value, t, to), f.space)


def _device_op(w: _Translator, f: n.DeviceOp, s: _Scope, *args: Typed) -> View:
    operands = [(w.named(v, t), t) for v, t in args]
    t = w.result(f, args, s)

    def write(to: View) -> None:
        inside = _Translator(w.code, in_place=True)
        with w.code.block() as frame:
            w.code.into(inside.call(f.meaning, operands, s), t, to)
        w.code.emit(Unit(f.name, None, (), frame.close()))

    return w.produced(t, write)


_CALL: Mapping[type[n.Fun], Callable[..., View]] = {
    n.Lambda: _lambda,
    n.Compose: _compose,
    n.UserFun: _scalar,
    n.Builtin: _scalar,
    n.Map: _map,
    **dict.fromkeys(_LOOPS, _map_loop),
    n.MapSeqSlide: _map_seq_slide,
    **dict.fromkeys((n.Reduce, n.ReduceSeq, n.ReduceSeqUnroll), _reduce),
    n.PartRed: _part_red,
    **dict.fromkeys((n.Scan, n.ScanSeq), _scan),
    n.Iterate: _iterate,
    n.Concat: _concat,
    n.PadConstant: _pad_constant,
    n.Vectorize: _vectorize,
    n.To: _to,
    n.DeviceOp: _device_op,
}
