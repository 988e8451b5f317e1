"""Lowering rules: mapping patterns to threads, lanes, sequential loops and memories.

`MapPar` and `MapVec` are a CPU's cores and lanes, the others OpenCL's (Steuwer et al., 2015,
section 4.3): global threads, or work groups with local threads or warps of lanes inside.
"""

from __future__ import annotations

from tilewright.expr.nodes import const
from tilewright.lift.conditions import (
    among,
    associative,
    commutative,
    divides,
    holds,
    holds_no,
    inside,
    neutral,
    outside,
    read,
    scalar_fun,
)
from tilewright.lift.match import size_holes
from tilewright.lift.nodes import (
    BLOCKS,
    GROUPS,
    ITEMS,
    WARPS,
    AnyMap,
    AsScalar,
    AsVector,
    At,
    Builtin,
    Fill,
    Fun,
    Map,
    MapAtomLcl,
    MapAtomWrg,
    MapGlb,
    MapLane,
    MapLcl,
    MapPar,
    MapSeq,
    MapSeqSlide,
    MapVec,
    MapWarp,
    MapWrg,
    Reduce,
    ReduceSeq,
    ReduceSeqUnroll,
    Scan,
    ScanSeq,
    To,
    Vectorize,
    Zip,
)
from tilewright.lift.rule import Rule
from tilewright.lift.rules.vocabulary import a, arr, b, fun, hole, k, n, s, t, term, u

(dim,) = size_holes("d")
axis = hole(dim)
lanes = hole(k)
xs = term("xs", arr(a, n))
z = term("z", b)
x = term("xs", arr(s, n))
y = term("ys", arr(t, n))
zero = term("z", s)
f = fun("f", a, b)
fold = fun("f", b, a, b)
one = fun("f", s, t)
two = fun("f", s, t, u)
add = fun("f", s, s, s)
_0 = const(0)
WIDTHS = (2, 4, 8, 16)
LOOPS: tuple[type[Fun], ...] = (
    AnyMap,
    MapSeqSlide,
    ReduceSeq,
    ReduceSeqUnroll,
    ScanSeq,
)

_of_blocks = (
    among(dim, (0, 1, 2)),
    holds(f, (AnyMap,)),
    holds_no(f, BLOCKS, dim),
    holds_no(f, (MapGlb,)),
    outside(BLOCKS, dim),
    outside((MapGlb, *ITEMS, *WARPS, MapPar)),
)
_of_items = (
    among(dim, (0, 1, 2)),
    inside(BLOCKS, dim),
    outside(ITEMS, dim),
    outside(WARPS),
    holds_no(f, ITEMS, dim),
    holds_no(f, (MapGlb, *BLOCKS, *WARPS)),
)

RULES = (
    Rule(
        "map-seq",
        xs | Map(f),
        xs | MapSeq(f),
    ),
    Rule(
        "map-par",
        xs | Map(f),
        xs | MapPar(f),
        when=(holds_no(f, (MapPar, *GROUPS)), outside((MapPar, MapVec, *GROUPS))),
    ),
    Rule(
        "map-vec",
        xs | Map(f),
        xs | MapVec(f),
        when=(holds_no(f, LOOPS), outside((MapVec,))),
    ),
    Rule(
        "map-glb",
        xs | Map(f),
        xs | MapGlb(f, axis),
        when=(
            among(dim, (0, 1, 2)),
            holds_no(f, (MapGlb,), dim),
            holds_no(f, (*BLOCKS, *ITEMS, *WARPS)),
            outside((MapGlb,), dim),
            outside((*BLOCKS, *ITEMS, *WARPS, MapPar)),
        ),
    ),
    *(
        Rule(name, xs | Map(f), xs | kind(f, axis), when=_of_blocks)
        for name, kind in (("map-wrg", MapWrg), ("map-atom-wrg", MapAtomWrg))
    ),
    *(
        Rule(name, xs | Map(f), xs | kind(f, axis), when=_of_items)
        for name, kind in (("map-lcl", MapLcl), ("map-atom-lcl", MapAtomLcl))
    ),
    Rule(
        "map-warp",
        xs | Map(f),
        xs | MapWarp(f),
        when=(
            holds(f, (AnyMap,)),
            inside(BLOCKS),
            outside((*ITEMS, *WARPS)),
            holds_no(f, (MapGlb, *BLOCKS, *ITEMS, MapWarp)),
        ),
    ),
    Rule(
        "map-lane",
        xs | Map(f),
        xs | MapLane(f),
        when=(
            inside((MapWarp,)),
            outside((*ITEMS, MapLane)),
            holds_no(f, GROUPS),
        ),
    ),
    Rule(
        "reduce-seq",
        xs | Reduce(fold, z),
        xs | ReduceSeq(fold, z),
    ),
    Rule(
        "reduce-seq-unroll",
        xs | ReduceSeq(fold, z),
        xs | ReduceSeqUnroll(fold, z),
    ),
    Rule(
        "scan-seq",
        xs | Scan(fold, z),
        xs | ScanSeq(fold, z),
    ),
    Rule(
        "copy",
        x,
        x | Map(Builtin("id")),
    ),
    Rule(
        "to-global",
        xs | MapSeq(f),
        xs | To("global", MapSeq(f)),
    ),
    Rule(
        "to-global-lcl",
        xs | MapLcl(f, axis),
        xs | To("global", MapLcl(f, axis)),
    ),
    Rule(
        "to-local",
        xs | MapLcl(f, axis),
        xs | To("local", MapLcl(f, axis)),
        when=(inside(BLOCKS), read("local")),
    ),
    Rule(
        "to-local-seq",
        xs | MapSeq(f),
        xs | To("local", MapSeq(f)),
        when=(inside((*ITEMS, *WARPS)), read("local")),
    ),
    Rule(
        "to-private",
        xs | MapSeq(f),
        xs | To("private", MapSeq(f)),
        when=(inside((MapSeq, MapPar, MapGlb, *ITEMS, *WARPS)), read("private")),
    ),
    Rule(
        "to-private-reduce",
        xs | ReduceSeq(fold, z),
        xs | To("private", ReduceSeq(fold, z)),
        when=(inside((MapSeq, MapPar, MapGlb, *ITEMS, *WARPS)), read("private")),
    ),
    Rule(
        "vectorize",
        x | Map(one),
        x | AsVector(lanes) | Map(Vectorize(lanes, one)) | AsScalar(),
        when=(among(k, WIDTHS), divides(k, n), scalar_fun(one)),
    ),
    Rule(
        "vectorize-reduce",
        x | Reduce(add, zero),
        x
        | AsVector(lanes)
        | Reduce(Vectorize(lanes, add), Fill(zero, k) | AsVector(lanes) | At(_0))
        | AsScalar()
        | Reduce(add, zero),
        when=(
            among(k, WIDTHS),
            divides(k, n),
            scalar_fun(add),
            commutative(add, s),
            associative(add, s),
            neutral(zero, add, s),
        ),
    ),
    Rule(
        "vectorize-zip",
        Zip()(x, y) | Map(two),
        Zip()(x | AsVector(lanes), y | AsVector(lanes))
        | Map(Vectorize(lanes, two))
        | AsScalar(),
        when=(among(k, WIDTHS), divides(k, n), scalar_fun(two)),
    ),
)
