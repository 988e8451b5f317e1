"""Lift's intermediate language: typed patterns over nested arrays (Steuwer et al., CGO 2017).

    Type = Scalar(dtype) | Vector(dtype, width) | TupleType(items) | Array(item, length)

    Term = Param(name, type)                      a variable; type None inside a program
         | Literal(value, dtype)
         | Apply(fun, args)
         | Tuple(items)
         | Fill(value, length) | Iota(length)     n copies of a value; 0, 1, ..., n-1

    Fun  = Lambda(params, body)                   applied at once, it names a value (a let)
         | Compose(funs)                          first to last: f >> g >> h
         | UserFun(name, dtypes, body)            a scalar function
         | Builtin(name)                          a scalar function for every dtype, by name
         | Map(f) | Reduce(f, init) | PartRed(f, init, count) | Scan(f, init) | Iterate(times, f)
         | Zip | Unzip | Get(position) | At(index)
         | Split(size) | Join | Slide(size, step) | Transpose | Concat | Take(size) | Drop(size)
         | Pad(left, right, boundary) | PadConstant(left, right, value)
         | Gather(index) | Scatter(index)         index: IndexFun(name, args)
         | Filter                                 elements at indices that are data
         | AsVector(width) | AsScalar | Vectorize(width, f)
         | MapSeq(f) | MapPar(f) | MapVec(f) | MapGlb(f, dim) | MapWrg(f, dim) | MapLcl(f, dim)
         | MapAtomWrg(f, dim) | MapAtomLcl(f, dim) | MapWarp(f) | MapLane(f)
         | MapSeqSlide(f, size, step)
         | ReduceSeq(f, init) | ReduceSeqUnroll(f, init) | ScanSeq(f, init)
         | To(space, f)                           the result of f lives in that address space
         | DeviceOp(name, sizes, meaning)         one instruction of an accelerator

with these types ([t]n is Array(t, n)):

    Map f         [a]n -> [b]n             f: a -> b; so for MapSeq .. MapLane
    Reduce f z    [a]n -> [b]1             f: (b, a) -> b, z: b
    PartRed f z m [a]n -> [b]m             m | n; result i reduces the i-th run of n/m elements
    Scan f z      [a]n -> [b]n             inclusive: element i is f(.. f(z, x0) .., xi)
    Iterate k f   a -> f(..f(a)..)         k times
    Zip           [a]n, [b]n, .. -> [(a, b, ..)]n
    Unzip         [(a, b, ..)]n -> ([a]n, [b]n, ..)
    Get i         (a0, a1, ..) -> ai
    At i          [a]n -> a                i < n
    Split m       [a]n -> [[a]m]n/m        m | n
    Join          [[a]m]n -> [a]n*m
    Slide s t     [a]n -> [[a]s](n-s+t)/t  t | n-s
    Transpose     [[a]m]n -> [[a]n]m
    Concat        [a]n, [a]m, .. -> [a]n+m+..
    Take m        [a]n -> [a]m             m <= n
    Drop m        [a]n -> [a]n-m           m <= n
    Pad l r b     [a]n -> [a]l+n+r         b: "clamp" | "mirror" | "wrap"
    PadConstant   [a]n -> [a]l+n+r         value: a
    Gather p      [a]n -> [a]n             out[i] = in[p(i)]
    Scatter p     [a]n -> [a]n             out[p(i)] = in[i]
    Filter        [a]n, [i]m -> [a]m       out[k] = in[ids[k]], 0 <= ids[k] < n; i: an integer type
    AsVector w    [s]n -> [<s>w]n/w        w | n
    AsScalar      [<s>w]n -> [s]n*w
    Vectorize w f <s>w, .. -> <t>w         f: s, .. -> t, a scalar function
    MapSeqSlide   Map f after Slide s t
    To sp f, DeviceOp                      as f, as the meaning

A function of n > 1 arguments may be applied to one n-tuple: `Map(add)(Zip(x, y))`. A length is an
int64 scalar expression (`expr.nodes`) over variables, in the normal form of `lengths.normal`;
lengths, types and meanings are data of a node, not children. `Map` and its low-level forms are
`AnyMap`s, reductions `AnyReduce`s, scans `AnyScan`s; functions of one loop body share the field
`f`. Params have identity: bodies are renamed, never captured.
"""

from __future__ import annotations

from tilewright.lift.nodes.patterns import (
    BLOCKS,
    BOUNDARIES,
    GROUPS,
    ITEMS,
    MAPS,
    SPACES,
    WARPS,
    AnyMap,
    AnyReduce,
    AnyScan,
    AsScalar,
    AsVector,
    At,
    Concat,
    DeviceOp,
    Drop,
    Filter,
    Gather,
    IndexFun,
    Iterate,
    Join,
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
    Meaning,
    Pad,
    PadConstant,
    PartRed,
    Permutation,
    Reduce,
    ReduceSeq,
    ReduceSeqUnroll,
    Scan,
    ScanSeq,
    Scatter,
    Slide,
    Split,
    Take,
    To,
    Transpose,
    Unzip,
    Vectorize,
    Zip,
)
from tilewright.lift.nodes.terms import (
    Apply,
    Builtin,
    Compose,
    DataType,
    Fill,
    Fun,
    Get,
    Iota,
    Lambda,
    Literal,
    Param,
    Part,
    ScalarBody,
    ScalarFun,
    Term,
    Tuple,
    UserFun,
    apply,
    argument,
    as_fun,
    as_term,
    chain,
    compose,
    expect_program,
    free_params,
    lambda_,
    literal,
    parameters,
)

__all__ = [
    "BOUNDARIES",
    "BLOCKS",
    "GROUPS",
    "ITEMS",
    "WARPS",
    "MapAtomLcl",
    "MapAtomWrg",
    "MapLane",
    "MapWarp",
    "MAPS",
    "SPACES",
    "AnyMap",
    "AnyReduce",
    "AnyScan",
    "Apply",
    "AsScalar",
    "AsVector",
    "At",
    "Builtin",
    "Compose",
    "Concat",
    "DataType",
    "DeviceOp",
    "Drop",
    "Fill",
    "Filter",
    "Fun",
    "Gather",
    "Get",
    "IndexFun",
    "Iota",
    "Iterate",
    "Join",
    "Lambda",
    "Literal",
    "Map",
    "MapGlb",
    "MapLcl",
    "MapPar",
    "MapSeq",
    "MapSeqSlide",
    "MapVec",
    "MapWrg",
    "Meaning",
    "Pad",
    "PadConstant",
    "Param",
    "Part",
    "PartRed",
    "Permutation",
    "Reduce",
    "ReduceSeq",
    "ReduceSeqUnroll",
    "ScalarBody",
    "ScalarFun",
    "Scan",
    "ScanSeq",
    "Scatter",
    "Slide",
    "Split",
    "Take",
    "Term",
    "To",
    "Transpose",
    "Tuple",
    "Unzip",
    "UserFun",
    "Vectorize",
    "Zip",
    "apply",
    "argument",
    "as_fun",
    "as_term",
    "chain",
    "compose",
    "expect_program",
    "free_params",
    "lambda_",
    "literal",
    "parameters",
]
