"""Movement rules: reshaping and reordering moved through maps and zips, or canceled."""

from __future__ import annotations

from tilewright.expr.nodes import FloorDiv, const
from tilewright.lift.conditions import at_most, positive
from tilewright.lift.nodes import (
    AsScalar,
    AsVector,
    Concat,
    Drop,
    Fill,
    Filter,
    Gather,
    IndexFun,
    Join,
    Map,
    Pad,
    PadConstant,
    Scatter,
    Split,
    Take,
    Transpose,
    Tuple,
    Unzip,
    Zip,
)
from tilewright.lift.rule import Rule
from tilewright.lift.rules.vocabulary import (
    a,
    arr,
    b,
    c,
    fn,
    fun,
    hole,
    j,
    k,
    m,
    n,
    p,
    s,
    term,
)
from tilewright.lift.types import Vector

xs = term("xs", arr(a, n))
ys = term("ys", arr(b, n))
yt = term("ys", arr(a, m))
xss = term("xss", arr(a, n, m))
yss = term("yss", arr(b, n, m))
xsss = term("xsss", arr(a, n, m, k))
lanes = term("xs", arr(s, n))
ids = term("ids", arr(s, m))
idss = term("idss", arr(s, m, k))
vs = term("vs", arr(Vector(hole(s), hole(k)), n))
x = term("x", a)
v = term("v", a)
w = term("w", b)
f = fun("f", a, b)
g = fun("f", a, b, c)

_TRANSPOSES = (
    Rule(
        "transpose-transpose",
        xss | Transpose() | Transpose(),
        xss,
    ),
    Rule(
        "transpose-map-map",
        xss | Map(Map(f)) | Transpose(),
        xss | Transpose() | Map(Map(f)),
    ),
    Rule(
        "map-map-transpose",
        xss | Transpose() | Map(Map(f)),
        xss | Map(Map(f)) | Transpose(),
    ),
    Rule(
        "transpose-map-split",
        xss | Transpose() | Map(Split(k)),
        xss | Split(k) | Map(Transpose()) | Transpose(),
    ),
    Rule(
        "split-map-transpose",
        xss | Split(k) | Map(Transpose()) | Transpose(),
        xss | Transpose() | Map(Split(k)),
    ),
    Rule(
        "map-split-transpose",
        xss | Map(Split(k)) | Transpose(),
        xss | Transpose() | Split(k) | Map(Transpose()),
    ),
    Rule(
        "transpose-split",
        xss | Transpose() | Split(k),
        xss | Map(Split(k)) | Transpose() | Map(Transpose()),
    ),
    Rule(
        "join-transpose",
        xsss | Join() | Transpose(),
        xsss | Map(Transpose()) | Transpose() | Map(Join()),
    ),
    Rule(
        "transpose-map-join",
        xsss | Map(Transpose()) | Transpose() | Map(Join()),
        xsss | Join() | Transpose(),
    ),
    Rule(
        "map-join-transpose",
        xsss | Map(Join()) | Transpose(),
        xsss | Transpose() | Map(Transpose()) | Join(),
    ),
    Rule(
        "transpose-join",
        xsss | Transpose() | Map(Transpose()) | Join(),
        xsss | Map(Join()) | Transpose(),
    ),
    Rule(
        "transpose-take",
        xss | Transpose() | Take(k),
        xss | Map(Take(k)) | Transpose(),
    ),
    Rule(
        "transpose-drop",
        xss | Transpose() | Drop(k),
        xss | Map(Drop(k)) | Transpose(),
    ),
)

_JOINS = (
    Rule(
        "split-cancel",
        xs | Split(m) | Join(),
        xs,
    ),
    Rule(
        "join-cancel",
        xss | Join() | Split(m),
        xss,
    ),
    Rule(
        "join-map",
        xss | Join() | Map(f),
        xss | Map(Map(f)) | Join(),
    ),
    Rule(
        "map-join",
        xss | Map(Map(f)) | Join(),
        xss | Join() | Map(f),
    ),
    Rule(
        "map-split",
        xs | Map(f) | Split(m),
        xs | Split(m) | Map(Map(f)),
    ),
    Rule(
        "split-map",
        xs | Split(m) | Map(Map(f)),
        xs | Map(f) | Split(m),
    ),
    Rule(
        "join-join",
        xsss | Join() | Join(),
        xsss | Map(Join()) | Join(),
    ),
    Rule(
        "map-join-join",
        xsss | Map(Join()) | Join(),
        xsss | Join() | Join(),
    ),
    Rule(
        "split-split",
        xs | Split(m) | Split(k),
        xs | Split(m * k) | Map(Split(m)),
    ),
    Rule(
        "zip-split",
        Zip()(xs | Split(m), ys | Split(m)),
        Zip()(xs, ys) | Split(m) | Map(Unzip()),
    ),
    Rule(
        "zip-join",
        Zip()(xss | Join(), yss | Join()),
        Zip()(xss, yss) | Map(fn(lambda x, y: Zip()(x, y))) | Join(),
    ),
    Rule(
        "unzip-zip",
        Zip()(xs, ys) | Unzip() | fn(lambda p: p[0]),
        xs,
    ),
)

_SLICES = (
    Rule(
        "map-take",
        xs | Map(f) | Take(m),
        xs | Take(m) | Map(f),
    ),
    Rule(
        "take-map",
        xs | Take(m) | Map(f),
        xs | Map(f) | Take(m),
    ),
    Rule(
        "map-drop",
        xs | Map(f) | Drop(m),
        xs | Drop(m) | Map(f),
    ),
    Rule(
        "drop-map",
        xs | Drop(m) | Map(f),
        xs | Map(f) | Drop(m),
    ),
    Rule(
        "take-take",
        xs | Take(m) | Take(k),
        xs | Take(k),
    ),
    Rule(
        "drop-drop",
        xs | Drop(m) | Drop(k),
        xs | Drop(m + k),
    ),
    Rule(
        "drop-take",
        xs | Drop(m) | Take(k),
        xs | Take(m + k) | Drop(m),
    ),
    Rule(
        "take-all",
        xs | Take(n),
        xs,
    ),
    Rule(
        "drop-none",
        xs | Drop(const(0)),
        xs,
    ),
    Rule(
        "split-take",
        xs | Split(m) | Take(k),
        xs | Take(m * k) | Split(m),
    ),
    Rule(
        "split-drop",
        xs | Split(m) | Drop(k),
        xs | Drop(m * k) | Split(m),
    ),
    Rule(
        "zip-take",
        Zip()(xs | Take(m), ys | Take(m)),
        Zip()(xs, ys) | Take(m),
    ),
    Rule(
        "take-zip",
        Zip()(xs, ys) | Take(m),
        Zip()(xs | Take(m), ys | Take(m)),
    ),
    Rule(
        "drop-zip",
        Zip()(xs, ys) | Drop(m),
        Zip()(xs | Drop(m), ys | Drop(m)),
    ),
    Rule(
        "cut",
        xs,
        Concat()(xs | Take(m), xs | Drop(m)),
        when=(at_most(m, n),),
    ),
    Rule(
        "uncut",
        Concat()(xs | Take(m), xs | Drop(m)),
        xs,
    ),
    Rule(
        "map-concat",
        Concat()(xs, yt) | Map(f),
        Concat()(xs | Map(f), yt | Map(f)),
    ),
    Rule(
        "concat-map",
        Concat()(xs | Map(f), yt | Map(f)),
        Concat()(xs, yt) | Map(f),
    ),
    Rule(
        "take-concat",
        Concat()(xs, yt) | Take(n),
        xs,
    ),
    Rule(
        "drop-concat",
        Concat()(xs, yt) | Drop(n),
        yt,
    ),
)


def _pads(mode: str) -> tuple[Rule, ...]:
    """The rules of one boundary."""
    return (
        Rule(
            f"map-pad-{mode}",
            xs | Map(f) | Pad(k, j, mode),
            xs | Pad(k, j, mode) | Map(f),
        ),
        Rule(
            f"pad-{mode}-map",
            xs | Pad(k, j, mode) | Map(f),
            xs | Map(f) | Pad(k, j, mode),
        ),
        Rule(
            f"zip-pad-{mode}",
            Zip()(xs | Pad(k, j, mode), ys | Pad(k, j, mode)),
            Zip()(xs, ys) | Pad(k, j, mode),
        ),
    )


_PADS = (
    *(rule for mode in ("clamp", "mirror", "wrap") for rule in _pads(mode)),
    Rule(
        "pad-clamp-twice",
        xs | Pad(k, j, "clamp") | Pad(m, p, "clamp"),
        xs | Pad(k + m, j + p, "clamp"),
    ),
    Rule(
        "pad-constant-map",
        xs | PadConstant(k, j, v) | Map(f),
        xs | Map(f) | PadConstant(k, j, f(v)),
    ),
    Rule(
        "zip-pad-constant",
        Zip()(xs | PadConstant(k, j, v), ys | PadConstant(k, j, w)),
        Zip()(xs, ys) | PadConstant(k, j, Tuple((v, w))),
    ),
    Rule(
        "pad-constant-concat",
        xs | PadConstant(k, j, v),
        Concat()(Fill(v, k), xs, Fill(v, j)),
    ),
    Rule(
        "pad-constant-back",
        xs | PadConstant(const(0), j, v) | Take(n),
        xs,
    ),
)

_stride = IndexFun("stride", (k,))
_back = IndexFun("stride", (FloorDiv(n, k),))
_reverse = IndexFun("reverse", ())
_rotate = IndexFun("rotate", (k,))


def _orders(name: str, index: IndexFun) -> tuple[Rule, ...]:
    """The rules of one permutation."""
    return (
        Rule(
            f"scatter-gather-{name}",
            xs | Gather(index) | Scatter(index),
            xs,
        ),
        Rule(
            f"gather-scatter-{name}",
            xs | Scatter(index) | Gather(index),
            xs,
        ),
        Rule(
            f"map-gather-{name}",
            xs | Gather(index) | Map(f),
            xs | Map(f) | Gather(index),
        ),
        Rule(
            f"gather-map-{name}",
            xs | Map(f) | Gather(index),
            xs | Gather(index) | Map(f),
        ),
        Rule(
            f"map-scatter-{name}",
            xs | Scatter(index) | Map(f),
            xs | Map(f) | Scatter(index),
        ),
        Rule(
            f"scatter-map-{name}",
            xs | Map(f) | Scatter(index),
            xs | Scatter(index) | Map(f),
        ),
    )


_PERMUTATIONS = (
    *_orders("stride", _stride),
    *_orders("reverse", _reverse),
    *_orders("rotate", _rotate),
    Rule(
        "reverse-reverse",
        xs | Gather(_reverse) | Gather(_reverse),
        xs,
    ),
    Rule(
        "stride-transpose",
        xs | Gather(_stride),
        xs | Split(k) | Transpose() | Join(),
        when=(positive(n),),
    ),
    Rule(
        "transpose-stride",
        xs | Split(k) | Transpose() | Join(),
        xs | Gather(_stride),
    ),
)

_FILTERS = (
    Rule(
        "filter-map",
        Filter()(xs | Map(f), ids),
        Filter()(xs, ids) | Map(f),
    ),
    Rule(
        "map-filter",
        Filter()(xs, ids) | Map(f),
        Filter()(xs | Map(f), ids),
    ),
    Rule(
        "filter-join",
        Filter()(xs, idss | Join()),
        idss | Map(fn(lambda row: Filter()(xs, row))) | Join(),
    ),
    Rule(
        "join-filter",
        idss | Map(fn(lambda row: Filter()(xs, row))) | Join(),
        Filter()(xs, idss | Join()),
    ),
    Rule(
        "filter-zip",
        Filter()(Zip()(xs, ys), ids),
        Zip()(Filter()(xs, ids), Filter()(ys, ids)),
    ),
    Rule(
        "zip-filter",
        Zip()(Filter()(xs, ids), Filter()(ys, ids)),
        Filter()(Zip()(xs, ys), ids),
    ),
)

_VECTORS = (
    Rule(
        "vector-cancel",
        lanes | AsVector(hole(k)) | AsScalar(),
        lanes,
    ),
    Rule(
        "scalar-cancel",
        vs | AsScalar() | AsVector(hole(k)),
        vs,
    ),
)

RULES = (
    *_TRANSPOSES,
    *_JOINS,
    *_SLICES,
    *_PADS,
    *_PERMUTATIONS,
    *_FILTERS,
    *_VECTORS,
)
