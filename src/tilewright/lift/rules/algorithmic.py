"""Algorithmic rules: equalities of maps and reductions, independent of the machine."""

from __future__ import annotations

from tilewright.expr.nodes import FloorDiv, const
from tilewright.lift.conditions import (
    associative,
    at_most,
    commutative,
    computes,
    divides,
    neutral,
    neutral_of,
    positive,
    power,
)
from tilewright.lift.nodes import (
    Concat,
    Drop,
    Fill,
    Fun,
    Gather,
    IndexFun,
    Iterate,
    Join,
    Map,
    MapSeq,
    PartRed,
    Reduce,
    ReduceSeq,
    Split,
    Take,
    Transpose,
    Tuple,
    Zip,
)
from tilewright.lift.rule import Rule
from tilewright.lift.rules.vocabulary import (
    a,
    arr,
    b,
    c,
    d,
    fn,
    fun,
    hole,
    j,
    k,
    m,
    n,
    term,
)
from tilewright.lift.types import Length, TupleType

# Holes for arrays.
xs = term("xs", arr(a, n))
bs = term("xs", arr(b, n))
ys = term("ys", arr(b, n))
ym = term("ys", arr(b, m))
xs2 = term("ys", arr(a, n))
zs = term("zs", arr(c, n))
xss = term("xss", arr(a, n, m))
yss = term("yss", arr(b, n, m))
one = term("yss", arr(b, n, const(1)))
# Holes for elements.
x = term("x", a)
y = term("y", a)
z = term("z", b)
w = term("w", b)
v = term("w", c)
# Holes for functions.
f = fun("f", a, b)
g = fun("g", b, c)
h = fun("h", a, c)
e = fun("e", a, b, c)
f_bc = fun("e", b, c, d)
f_ac = fun("e", a, c, d)
g_bc = fun("e", b, c, d)
left = fun("e", TupleType((a, b)), c, d)
row = fun("r", a, arr(b, m))
pair = fun("e", a, TupleType((b, c)), d)
swap = fun("e", a, a, b)
op = fun("f", b, b, b)
same = fun("f", a, a)
fold = fun("f", b, a, b)
fold_c = fun("g", c, b, c)
tree = (associative(op, b), neutral(z, op, b))


def shorter(size: Length) -> Fun:
    """An array as the reductions of its runs of `size` elements."""
    return fn(lambda xs: xs | Split(size) | Map(Reduce(op, z)) | Join())


_MAPS = (
    Rule(
        "split-join",
        xs | Map(f),
        xs | Split(m) | Map(Map(f)) | Join(),
        when=(divides(m, n),),
    ),
    Rule(
        "join-split",
        xss | Map(Map(f)),
        xss | Join() | Map(f) | Split(m),
        when=(positive(m),),
    ),
    Rule(
        "split-unequal",
        xs | Map(f),
        Concat()(xs | Take(m) | Map(f), xs | Drop(m) | Map(f)),
        when=(at_most(m, n),),
    ),
    Rule(
        "map-fusion",
        xs | Map(f) | Map(g),
        xs | Map(fn(lambda x: g(f(x)))),
    ),
    Rule(
        "map-fission",
        xs | Map(fn(lambda x: g(f(x)))),
        xs | Map(f) | Map(g),
        when=(computes(f),),
    ),
    Rule(
        "map-fission-zip",
        xs | Map(fn(lambda x: f_bc(f(x), h(x)))),
        Zip()(xs | Map(f), xs | Map(h)) | Map(f_bc),
    ),
    Rule(
        "map-fission-capture",
        xs | Map(fn(lambda x: row(x) | Map(fn(lambda y: e(x, y))))),
        Zip()(xs, xs | Map(row)) | Map(fn(lambda x, r: r | Map(fn(lambda y: e(x, y))))),
    ),
    Rule(
        "map-join-one",
        Zip()(xs, one) | Map(fn(lambda x, r: r | Map(fn(lambda y: e(x, y))))) | Join(),
        Zip()(xs, one | Join()) | Map(e),
    ),
    Rule(
        "map-identity",
        xs | Map(fn(lambda x: x)),
        xs,
    ),
)

_INTERCHANGES = (
    Rule(
        "interchange",
        xs | Map(fn(lambda x: ym | Map(fn(lambda y: e(x, y))))),
        ym | Map(fn(lambda y: xs | Map(fn(lambda x: e(x, y))))) | Transpose(),
    ),
    Rule(
        "interchange-zip-outside",
        Zip()(xs, yss) | Map(fn(lambda x, row: row | Map(fn(lambda y: e(x, y))))),
        yss
        | Transpose()
        | Map(fn(lambda column: Zip()(xs, column) | Map(e)))
        | Transpose(),
    ),
    Rule(
        "interchange-zip-inside",
        xss | Map(fn(lambda row: Zip()(row, ym) | Map(e))),
        Zip()(xss | Transpose(), ym)
        | Map(fn(lambda column, y: column | Map(fn(lambda x: e(x, y)))))
        | Transpose(),
    ),
)

_ZIPS = (
    Rule(
        "zip-map",
        Zip()(xs | Map(f), ys | Map(g)),
        Zip()(xs, ys) | Map(fn(lambda x, y: Tuple((f(x), g(y))))),
    ),
    Rule(
        "zip-map-left",
        Zip()(xs | Map(f), zs),
        Zip()(xs, zs) | Map(fn(lambda x, y: Tuple((f(x), y)))),
        when=(computes(f),),
    ),
    Rule(
        "zip-map-right",
        Zip()(zs, xs | Map(f)),
        Zip()(zs, xs) | Map(fn(lambda x, y: Tuple((x, f(y))))),
        when=(computes(f),),
    ),
    Rule(
        "zip-swap",
        Zip()(xs, ys) | Map(fn(lambda x, y: e(x, y))),
        Zip()(ys, xs) | Map(fn(lambda y, x: e(x, y))),
    ),
    Rule(
        "zip-commute",
        Zip()(xs, xs2) | Map(swap),
        Zip()(xs2, xs) | Map(swap),
        when=(commutative(swap, a),),
    ),
    Rule(
        "zip-same",
        Zip()(xs, xs) | Map(swap),
        xs | Map(fn(lambda x: swap(x, x))),
    ),
    Rule(
        "zip-first",
        Zip()(xs, zs) | Map(fn(lambda x, y: f(x))),
        xs | Map(f),
    ),
    Rule(
        "zip-second",
        Zip()(zs, xs) | Map(fn(lambda x, y: f(y))),
        xs | Map(f),
    ),
    Rule(
        "zip-flatten",
        Zip()(xs, Zip()(ys, zs)) | Map(fn(lambda x, p: pair(x, p))),
        Zip()(xs, ys, zs) | Map(fn(lambda x, y, z: pair(x, Tuple((y, z))))),
    ),
    Rule(
        "zip-flatten-left",
        Zip()(Zip()(xs, ys), zs) | Map(fn(lambda p, z: left(p, z))),
        Zip()(xs, ys, zs) | Map(fn(lambda x, y, z: left(Tuple((x, y)), z))),
    ),
    Rule(
        "zip-drop-first",
        Zip()(xs, ys, zs) | Map(fn(lambda x, y, z: g_bc(y, z))),
        Zip()(ys, zs) | Map(g_bc),
    ),
    Rule(
        "zip-drop-second",
        Zip()(xs, ys, zs) | Map(fn(lambda x, y, z: f_ac(x, z))),
        Zip()(xs, zs) | Map(f_ac),
    ),
    Rule(
        "zip-drop-third",
        Zip()(xs, ys, zs) | Map(fn(lambda x, y, z: e(x, y))),
        Zip()(xs, ys) | Map(e),
    ),
)

_REDUCTIONS = (
    Rule(
        "reduce-map-fusion",
        xs | MapSeq(f) | ReduceSeq(fold_c, v),
        xs | ReduceSeq(fn(lambda acc, x: fold_c(acc, f(x))), v),
    ),
    Rule(
        "zip-reduce",
        Zip()(xs | Reduce(fold, z), ys | Reduce(fold_c, v)),
        Zip()(xs, ys)
        | Reduce(
            fn(lambda acc, p: Tuple((fold(acc[0], p[0]), fold_c(acc[1], p[1])))),
            Tuple((z, v)),
        ),
    ),
    Rule(
        "reduce-init",
        bs | Reduce(op, z),
        bs | Reduce(op, w) | Map(fn(lambda s: op(z, s))),
        when=(associative(op, b), neutral_of(w, op, b)),
    ),
    Rule(
        "reduce-split",
        bs | Reduce(op, z),
        bs | Split(m) | Map(Reduce(op, z)) | Join() | Reduce(op, z),
        when=(divides(m, n), *tree),
    ),
    Rule(
        "reduce-columns",
        bs | Reduce(op, z),
        bs | Split(m) | Transpose() | Map(Reduce(op, z)) | Join() | Reduce(op, z),
        when=(divides(m, n), *tree, commutative(op, b)),
    ),
    Rule(
        "partial-reduce",
        bs | Reduce(op, z),
        bs | PartRed(op, z, m) | Reduce(op, z),
        when=(divides(m, n), *tree),
    ),
    Rule(
        "partial-reduce-one",
        xs | PartRed(fold, z, const(1)),
        xs | Reduce(fold, z),
    ),
    Rule(
        "partial-reduce-runs",
        xs | PartRed(fold, z, m),
        xs | Split(FloorDiv(n, m)) | Map(Reduce(fold, z)) | Join(),
        when=(positive(n),),
    ),
    Rule(
        "partial-reduce-split",
        xs | PartRed(fold, z, m),
        xs | Split(FloorDiv(n, k)) | Map(PartRed(fold, z, FloorDiv(m, k))) | Join(),
        when=(positive(n), divides(k, m)),
    ),
    Rule(
        "partial-reduce-order",
        bs | PartRed(op, z, m) | Reduce(op, z),
        bs | Gather(IndexFun("stride", (k,))) | PartRed(op, z, m) | Reduce(op, z),
        when=(divides(k, n), *tree, commutative(op, b)),
    ),
    Rule(
        "reduce-iterate",
        bs | Reduce(op, z),
        bs | Iterate(hole(k), shorter(m)),
        when=(power(n, m, k), *tree),
    ),
    Rule(
        "partial-reduce-iterate",
        bs | PartRed(op, z, m),
        bs | Iterate(hole(k), shorter(j)),
        when=(power(FloorDiv(n, m), j, k), *tree),
    ),
    Rule(
        "map-reduce",
        xss | Map(Reduce(fold, z)),
        xss
        | Transpose()
        | Reduce(fn(lambda acc, x: Zip()(acc, x) | Map(fold)), Fill(z, n))
        | Transpose(),
    ),
    Rule(
        "reduce-map",
        xss | Transpose() | Map(Reduce(fold, z)),
        xss
        | Reduce(fn(lambda acc, x: Zip()(acc, x) | Map(fold)), Fill(z, m))
        | Transpose(),
    ),
)

_SCALARS = (
    Rule(
        "commute",
        swap(x, y),
        swap(y, x),
        when=(commutative(swap, a),),
    ),
    Rule(
        "iterate-split",
        x | Iterate(hole(k), same),
        x | Iterate(hole(j), same) | Iterate(hole(k - j), same),
        when=(at_most(j, k),),
    ),
    Rule(
        "iterate-once",
        x | Iterate(1, same),
        same(x),
    ),
)

RULES = (*_MAPS, *_INTERCHANGES, *_ZIPS, *_REDUCTIONS, *_SCALARS)
