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
from dataclasses import replace

from tilewright.base.errors import InputError
from tilewright.expr.nodes import Buffer, Expr, const
from tilewright.ir.node import postorder
from tilewright.loops.nodes import Kernel, Unit
from tilewright.notation.lift import folds, scalars, views
from tilewright.notation.lift import nodes as n
from tilewright.notation.lift.code import Code, extent
from tilewright.notation.lift.infer import Scope as Types
from tilewright.notation.lift.lengths import Sizes
from tilewright.notation.lift.producer import Produced
from tilewright.notation.lift.sizes import specialised
from tilewright.notation.lift.stages import leaf_buffers
from tilewright.notation.lift.translator import Scope, Translator, Typed
from tilewright.notation.lift.types import Array as ArrayType
from tilewright.notation.lift.views import Array, Reads, View, number, of_buffers, scalar

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
    scope = Scope(env, Types(dict(zip(fixed.params, typing.params, strict=True))))
    value, t = Translator(code, _PATTERNS).value(fixed.body, scope)
    code.into(value, t, of_buffers(t, outputs))
    return Kernel(name, (*inputs, *outputs), tuple(outputs), code.frames[0].close())


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


def _lambda(w: Translator, f: n.Lambda, s: Scope, *args: Typed) -> View:
    env = {**s.env, **{p: v for p, (v, _) in zip(f.params, args, strict=True)}}
    types = s.types.inner(f.params, tuple(t for _, t in args))
    return w.value(f.body, Scope(env, types))[0]


def _compose(w: Translator, f: n.Compose, s: Scope, *args: Typed) -> View:
    values: Sequence[Typed] = args
    for g in f.funs:
        values = [(w.call(g, values, s), w.result(g, values, s))]
    return values[0][0]


def _scalar(w: Translator, f: n.ScalarFun, s: Scope, *args: Typed) -> View:
    if isinstance(f, n.Builtin) and f.name == "id":
        return args[0][0]
    return scalars.body(f, [scalar(v) for v, _ in args])


def _map(w: Translator, f: n.Map, s: Scope, x: Typed) -> View:
    (item,) = w.body(f, [x], s)
    t = w.result(f, [x], s)
    reads = Reads.STATEMENTS if _makes(f.f) else min(x[0].reads, Reads.EXPRESSION)
    lazy = replace(views.mapped(lambda e: w.call(f.f, [(e, item)], s), x[0]), reads=reads)
    made = w.produced(t, lambda to: w.code.into(lazy, t, to))
    made.lazy = lazy
    return made


def _map_loop(w: Translator, f: n.AnyMap, s: Scope, x: Typed) -> View:
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


def _map_seq_slide(w: Translator, f: n.MapSeqSlide, s: Scope, x: Typed) -> View:
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


def _iterate(w: Translator, f: n.Iterate, s: Scope, x: Typed) -> View:
    for _ in range(f.times):
        x = w.call(f.f, [x], s), w.result(f.f, [x], s)
    return x[0]


def _concat(w: Translator, f: n.Concat, s: Scope, *xs: Typed) -> View:
    if not any(isinstance(v, Produced) for v, _ in xs):
        return views.concat(*(w.guarded(v, t) for v, t in xs))

    def write(to: View) -> None:
        start = 0
        for v, t in xs:
            w.code.into(v, t, views.shifted(to, start, v.length))
            start += v.length

    return w.produced(w.result(f, xs, s), write)


def _pad_constant(w: Translator, f: n.PadConstant, s: Scope, x: Typed) -> View:
    inside, outside = w.guarded(*x), w.guarded(*w.here(f.value, s))
    return views.pad_constant(inside, number(f.left), number(f.right), outside)


def _vectorize(w: Translator, f: n.Vectorize, s: Scope, *args: Typed) -> View:
    lanes = w.body(f, args, s)

    def lane(i: Expr) -> View:
        return w.call(f.f, [(v.at(i), t) for (v, _), t in zip(args, lanes, strict=True)], s)

    return Array(f.width, lane)


def _to(w: Translator, f: n.To, s: Scope, *args: Typed) -> View:
    value, t = w.call(f.f, args, s), w.result(f.f, args, s)
    if isinstance(value, Produced) and value.made is None and value.space is None:
        return Produced(t, value.write, value.frame, w.code, f.space)
    return w.produced(t, lambda to: w.code.into(value, t, to), f.space)


def _device_op(w: Translator, f: n.DeviceOp, s: Scope, *args: Typed) -> View:
    operands = [(w.named(v, t), t) for v, t in args]
    t = w.result(f, args, s)

    def write(to: View) -> None:
        inside = Translator(w.code, _PATTERNS, in_place=True)
        with w.code.block() as frame:
            w.code.into(inside.call(f.meaning, operands, s), t, to)
        w.code.emit(Unit(f.name, None, (), frame.close()))

    return w.produced(t, write)


_PATTERNS: Mapping[type[n.Fun], Callable[..., View]] = {
    n.Lambda: _lambda,
    n.Compose: _compose,
    n.UserFun: _scalar,
    n.Builtin: _scalar,
    n.Map: _map,
    **dict.fromkeys(_LOOPS, _map_loop),
    n.MapSeqSlide: _map_seq_slide,
    **dict.fromkeys((n.Reduce, n.ReduceSeq, n.ReduceSeqUnroll), folds.reduce),
    n.PartRed: folds.part_red,
    **dict.fromkeys((n.Scan, n.ScanSeq), folds.scan),
    n.Iterate: _iterate,
    n.Concat: _concat,
    n.PadConstant: _pad_constant,
    n.Vectorize: _vectorize,
    n.To: _to,
    n.DeviceOp: _device_op,
}
