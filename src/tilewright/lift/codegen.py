"""Low-level Lift as loops: every pattern becomes the loop it names.

    MapSeq f              for i in n                     Map f       where it is read, or as MapSeq
    MapPar f              for i in n parallel            MapVec f    for i in n vector
    MapGlb f d, MapWrg    for i in n blockIdx.d          MapLcl f d  for i in n threadIdx.d
    MapAtomWrg, -Lcl      as MapWrg, MapLcl
    MapWarp f             for i in n threadIdx.y         MapLane f   for i in n threadIdx.x
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

from collections.abc import Callable, Mapping
from dataclasses import replace

from tilewright.base.errors import InputError
from tilewright.expr.nodes import Buffer, Expr, const
from tilewright.ir.node import postorder
from tilewright.lift import folds, scalars, views
from tilewright.lift import nodes as n
from tilewright.lift.code import KernelWriter
from tilewright.lift.infer import Scope as Types
from tilewright.lift.lengths import Sizes
from tilewright.lift.memory import space_of_result
from tilewright.lift.producer import ProducedValue, TypedValue
from tilewright.lift.sizes import specialized
from tilewright.lift.stages import leaf_buffers
from tilewright.lift.translator import PatternUse, TranslationScope, Translator
from tilewright.lift.types import Array as ArrayType
from tilewright.lift.views import Array, Reads, View, number, of_buffers, scalar
from tilewright.loops.nodes import Kernel, Unit
from tilewright.loops.scopes import declare_scopes

# Where an address space of Lift is on a processor, and on a device with memory of blocks.
PROCESSOR: Mapping[str, str] = {
    **dict.fromkeys(("global", "dram", "output"), "global"),
    **dict.fromkeys(("local", "private", "chip"), "stack"),
}
DEVICE: Mapping[str, str] = {
    **{space: space for space in n.SPACES},
    "local": "shared",
    "private": "stack",
}
declare_scopes(*DEVICE.values())

_LOOPS: Mapping[type[n.Fun], str] = {
    n.MapSeq: "serial",
    n.MapPar: "parallel",
    n.MapVec: "vector",
    n.MapGlb: "blockIdx",
    n.MapWrg: "blockIdx",
    n.MapLcl: "threadIdx",
    n.MapAtomWrg: "blockIdx",
    n.MapAtomLcl: "threadIdx",
    n.MapWarp: "threadIdx.y",
    n.MapLane: "threadIdx.x",
}
LANES = 32  # of a warp


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
    fixed, typing = specialized(program, sizes)
    inputs: list[Buffer] = []
    env: dict[n.Param, View] = {}
    for p, t in zip(fixed.params, typing.params, strict=True):
        buffers = leaf_buffers(p.name, t)
        env[p] = of_buffers(t, buffers)
        inputs += buffers
    outputs = leaf_buffers("out", typing.result)
    code = KernelWriter(spaces, {b.name for b in (*inputs, *outputs)})
    scope = TranslationScope(
        env, Types(dict(zip(fixed.params, typing.params, strict=True)))
    )
    value = Translator(code, _PATTERNS).value(fixed.body, scope)
    code.into(value, of_buffers(value.type, outputs))
    return Kernel(name, (*inputs, *outputs), tuple(outputs), code.frames[0].close())


_STATEMENTS: tuple[type[n.Fun], ...] = (
    n.AnyReduce,
    n.AnyScan,
    n.PartRed,
    n.MapSeqSlide,
    n.To,
    n.DeviceOp,
    n.Concat,
    *_LOOPS,
)


def _takes_statements(f: n.Fun) -> bool:
    """Whether the function may take statements: it reduces, loops, names or joins values."""
    for part in postorder(f):
        names_value = isinstance(part, n.Apply) and isinstance(part.fun, n.Lambda)
        if names_value or isinstance(part, _STATEMENTS):
            return True
    return False


# -- patterns


def _lambda(u: PatternUse) -> View:
    types = u.scope.types.inner(u.f.params, tuple(a.type for a in u.args))
    bound = zip(u.f.params, (a.view for a in u.args), strict=True)
    inner = TranslationScope({**u.scope.env, **dict(bound)}, types)
    return u.translator.value(u.f.body, inner).view


def _compose(u: PatternUse) -> View:
    first, *rest = u.f.funs
    value = u.call(first, *u.args)
    for g in rest:
        value = u.call(g, value)
    return value.view


def _scalar(u: PatternUse) -> View:
    if isinstance(u.f, n.Builtin) and u.f.name == "id":
        return u.x
    return scalars.body(u.f, [scalar(a.view) for a in u.args])


def _map(u: PatternUse) -> View:
    if _takes_statements(u.f.f):
        reads = Reads.STATEMENTS
    else:
        reads = min(u.x.reads, Reads.EXPRESSION)
    lazy = views.mapped(lambda e: u.body(e).view, u.x)
    lazy = replace(lazy, reads=reads)
    made = u.produced(lambda to: u.code.into(TypedValue(lazy, u.type), to))
    made.lazy = lazy
    return made


def _map_loop(u: PatternUse) -> View:
    kind = _LOOPS[type(u.f)]
    if kind in ("blockIdx", "threadIdx"):
        kind = f"{kind}.{'xyz'[u.f.dim]}"
    in_work_group = any(k.startswith("blockIdx") for k in u.code.kinds)
    of_group = kind.startswith("threadIdx")
    if of_group and not in_work_group:
        raise InputError(
            f"{type(u.f).__name__} is not inside MapWrg",
            code="TW-LIFT-NEST",
            where=repr(u.f),
            hint="put it into the function of a MapWrg",
        )
    if isinstance(u.f, n.MapLane) and u.length and LANES % u.length:
        raise InputError(
            f"MapLane over {u.length} elements: a warp has {LANES} lanes, which that does not "
            "divide",
            code="TW-LIFT-NEST",
            where=repr(u.f),
            hint=f"split the array by {LANES} before, or use MapLcl",
        )
    made = _loop(u, kind, u.x)
    if of_group and space_of_result(u.f.f) == "local":
        made.usual = "local"
    return made


def _loop(u: PatternUse, kind: str, x: Array) -> ProducedValue:
    def write(to: View) -> None:
        def element(i: Expr) -> None:
            u.code.into(u.body(x.at(i)), to.at(i))

        u.code.loop(u.length, kind, element)

    return u.produced(write)


def _map_seq_slide(u: PatternUse) -> View:
    size = number(u.f.size)
    step = number(u.f.step)
    keep = size - step
    code = u.code
    if keep <= 0:
        return _loop(u, "serial", views.slide(u.x, size, step))
    (window,) = u.body_types()
    assert isinstance(window, ArrayType)

    def write(to: View) -> None:
        kept = code.allocate(window, "private", "window")

        def take(j: int, source: View) -> None:
            code.into(TypedValue(source, window.item), kept.at(const(j)))

        def element(i: Expr) -> None:
            for j in range(keep, size):
                take(j, u.x.at(views.plain(i * step + j)))
            code.into(u.body(kept), to.at(i))
            for j in range(keep):
                take(j, kept.at(const(j + step)))

        for j in range(keep):
            take(j, u.x.at(const(j)))
        code.loop(u.length, "serial", element)

    return u.produced(write)


def _iterate(u: PatternUse) -> View:
    value = u.args[0]
    for _ in range(u.f.times):
        value = u.call(u.f.f, value)
    return value.view


def _concat(u: PatternUse) -> View:
    if not any(isinstance(a.view, ProducedValue) for a in u.args):
        return views.concat(*map(u.translator.guarded, u.args))

    def write(to: View) -> None:
        start = 0
        for part in u.args:
            length = part.view.length
            u.code.into(part, views.shifted(to, start, length))
            start += length

    return u.produced(write)


def _pad_constant(u: PatternUse) -> View:
    inside = u.translator.guarded(u.args[0])
    outside = u.translator.guarded(u.term(u.f.value))
    return views.pad_constant(inside, number(u.f.left), number(u.f.right), outside)


def _vectorize(u: PatternUse) -> View:
    def lane(i: Expr) -> View:
        return u.body(*(a.view.at(i) for a in u.args)).view

    return Array(u.f.width, lane)


def _to(u: PatternUse) -> View:
    value = u.call(u.f.f, *u.args)
    view = value.view
    unplaced = isinstance(view, ProducedValue) and view.made is None
    if unplaced and view.space is None:
        return ProducedValue(u.type, view.write, view.frame, u.code, u.f.space)
    made = u.produced(lambda to: u.code.into(value, to))
    made.space = u.f.space
    return made


def _device_op(u: PatternUse) -> View:
    operands = [TypedValue(u.translator.named(a), a.type) for a in u.args]
    inside = Translator(u.code, _PATTERNS, in_place=True)

    def write(to: View) -> None:
        with u.code.block() as frame:
            u.code.into(inside.call(u.f.meaning, u.scope, *operands), to)
        u.code.emit(Unit(u.f.name, None, (), frame.close()))

    return u.produced(write)


_PATTERNS: Mapping[type[n.Fun], Callable[[PatternUse], View]] = {
    n.Lambda: _lambda,
    n.Compose: _compose,
    n.UserFun: _scalar,
    n.Builtin: _scalar,
    n.Map: _map,
    **dict.fromkeys(_LOOPS, _map_loop),
    n.MapSeqSlide: _map_seq_slide,
    n.Reduce: folds.reduce,
    n.ReduceSeq: folds.reduce,
    n.ReduceSeqUnroll: folds.reduce,
    n.PartRed: folds.part_red,
    n.Scan: folds.scan,
    n.ScanSeq: folds.scan,
    n.Iterate: _iterate,
    n.Concat: _concat,
    n.PadConstant: _pad_constant,
    n.Vectorize: _vectorize,
    n.To: _to,
    n.DeviceOp: _device_op,
}
