"""Patterns: the functions of arrays, and the low-level ones that say how."""

from __future__ import annotations

from typing import TypeAlias

from tilewright.ir.node import Node
from tilewright.lift.nodes.terms import Fun, Term
from tilewright.lift.types import Length

BOUNDARIES = ("clamp", "mirror", "wrap")
SPACES = ("global", "local", "private", "dram", "chip", "output")


class AnyMap(Fun):
    """Applies `f` to every element."""

    f: Fun


class Map(AnyMap): ...


class MapSeq(AnyMap): ...


class MapPar(AnyMap): ...


class MapVec(AnyMap): ...


class MapGlb(AnyMap):
    dim: int


class MapWrg(AnyMap):
    dim: int


class MapLcl(AnyMap):
    dim: int


class MapAtomWrg(AnyMap):
    dim: int


class MapAtomLcl(AnyMap):
    dim: int


class MapWarp(AnyMap): ...


class MapLane(AnyMap): ...


BLOCKS = (MapWrg, MapAtomWrg)
ITEMS = (MapLcl, MapAtomLcl)
WARPS = (MapWarp, MapLane)
GROUPS = (MapGlb, *BLOCKS, *ITEMS, *WARPS)
MAPS = (Map, MapSeq, MapPar, MapVec, *GROUPS)


class MapSeqSlide(Fun):
    """`Map(f)` after `Slide(size, step)`, the window kept in registers that rotate."""

    f: Fun
    size: Length
    step: Length


class AnyReduce(Fun):
    """Combines all elements from the left, beginning with `init`; the result has length 1."""

    f: Fun
    init: Term


class Reduce(AnyReduce): ...


class ReduceSeq(AnyReduce): ...


class ReduceSeqUnroll(AnyReduce): ...


class PartRed(Fun):
    f: Fun
    init: Term
    count: Length


class AnyScan(Fun):
    """All prefixes, combined from the left, beginning with `init`; inclusive."""

    f: Fun
    init: Term


class Scan(AnyScan): ...


class ScanSeq(AnyScan): ...


class Iterate(Fun):
    times: int
    f: Fun


class Zip(Fun):
    """Arrays of one length, as an array of tuples: `Zip(a, b)` has (a[i], b[i]) at i."""


class Unzip(Fun):
    """An array of tuples as a tuple of arrays: what undoes `Zip`."""


class At(Fun):
    index: Length


class Split(Fun):
    size: Length


class Join(Fun):
    """An array of arrays, one after another: [n][m] elements become [n * m]; it undoes `Split`."""


class Slide(Fun):
    size: Length
    step: Length


class Transpose(Fun):
    """An array of arrays with its two lengths exchanged: [n][m] elements become [m][n]."""


class Concat(Fun):
    """Arrays one after another: lengths n and m become n + m."""


class Take(Fun):
    size: Length


class Drop(Fun):
    size: Length


class Pad(Fun):
    left: Length
    right: Length
    boundary: str


class PadConstant(Fun):
    left: Length
    right: Length
    value: Term


class IndexFun(Node):
    """A permutation of 0..n-1 by name: a row of `indices.INDEX_FUNCTIONS`."""

    name: str
    args: tuple[Length, ...]


Permutation: TypeAlias = IndexFun


class Gather(Fun):
    index: Permutation


class Filter(Fun):
    """Elements of an array at the places of another one: `Filter(x, ids)` has x[ids[i]] at i."""


class Scatter(Fun):
    index: Permutation


class AsVector(Fun):
    width: int


class AsScalar(Fun):
    """Vectors as their elements: n vectors of w lanes become n * w scalars; undoes `asVector`."""


class Vectorize(Fun):
    width: int
    f: Fun


class To(Fun):
    """`f`, its result in the address space `space`, one of SPACES."""

    space: str
    f: Fun


Meaning: TypeAlias = Fun


class DeviceOp(Fun):
    """One instruction: `name` includes its size (`MVMul128`), `meaning` is the function it
    computes."""

    name: str
    sizes: tuple[int, ...]
    meaning: Meaning
