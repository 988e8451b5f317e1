"""Classifying a group of Computations by kernel pattern, which selects its sketch.

* `map`: no reduction.
* `tiled`: one reduction whose results are contiguous along a free dimension (matrix products,
  convolutions, pooling, column sums), with at most one map after it.
* `rows`: reductions along the contiguous dimension of their input (softmax, layer normalization,
  row sums), any number of them over the same leading dimensions.
* `attention`: a contraction, `rows` over its results, and a contraction of what they make.
* `streaming_attention`: `attention` of blocks of keys, the maximum and sum of each row, the mean of
  the blocks, which is a reduction to several results, and a map of it.
* `scan`: a scan along one dimension.
* `joint`, `joint_rows`: a reduction to several results at one place (argmax), which are contiguous
  along a free dimension, or whose input is contiguous along the reduction.
* `windows`: a reduction of windows along one axis, and of its results along another, with at most
  one map after them.
* `winograd`: a contraction of two transforms, maps of many outputs each, and a map after it.
* `block_scaled`: a contraction with integers cut out of words, by the block, a sum over the blocks,
  and at most one map after them.
* `plain`: anything else.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache

from tilewright.base.dataclass import dataclass
from tilewright.compute.contraction import is_contraction
from tilewright.compute.nodes import CC, PS, Computation, Dim
from tilewright.compute.reducer import is_sum
from tilewright.expr.affine import Affine, affine
from tilewright.expr.nodes import Buffer, Call, Cast, Expr, Load, Mul, Var
from tilewright.ir.node import postorder
from tilewright.loops.analysis.terms import variables

CLOSE = 4  # elements apart: a vector of them is a few loads and shuffles


@dataclass(frozen=True, slots=True)
class KernelPattern:
    """The sketch's name and the Computations it schedules.

    reduction, epilogue: for `tiled` and `winograd`, the reduction and the map after it. vector: for
    `tiled` and joint sketches, the vector dimension. dims: the epilogue's dimensions by the
    reduction's. parts: for `attention`, streaming or not, the patterns of scores, rows and output.
    """

    name: str
    computations: tuple[Computation, ...]
    reduction: Computation | None = None
    epilogue: Computation | None = None
    vector: Dim | None = None
    dims: Mapping[Dim, Dim] = field(default_factory=dict)
    parts: tuple[KernelPattern, KernelPattern, KernelPattern] | None = None


@lru_cache(maxsize=1 << 12)
def address(load: Load) -> Affine:
    """The element offset of an access in its buffer, as a linear form."""
    total = Affine((), 0)
    for index, stride in zip(load.index, load.buffer.strides, strict=True):
        total = total + affine(index).scaled(stride)
    return total


def stride(form: Affine, v: Var) -> int | None:
    """Elements moved per step of `v`; None where the address is not linear in `v`."""
    for atom, _ in form.terms:
        if atom is not v and v in variables(atom):
            return None
    return form.coefficient(v)


def arguments(c: Computation) -> set[Load]:
    """What functions (exp, tanh) are called of."""
    calls = [n for o in c.outputs for n in postorder(o.value) if isinstance(n, Call)]
    return {n for call in calls for n in postorder(call) if isinstance(n, Load)}


def uses(e: Expr, v: Var) -> bool:
    """Whether `v` occurs in `e`."""
    return v in variables(e)


def free_dims(computation: Computation) -> list[Dim]:
    """cc dimensions with more than one point, outermost first."""
    return [d for d in computation.dims if d.combine == CC and d.extent > 1]


def reduction_dims(computation: Computation) -> list[Dim]:
    """pw dimensions with more than one point, outermost first."""
    return [d for d in computation.dims if d.combine != CC and d.extent > 1]


def classify(computations: Sequence[Computation]) -> KernelPattern:
    """The pattern of kernel these Computations make, in the order given."""
    group = tuple(computations)
    if any(d.combine == PS for c in computations for d in c.dims):
        return KernelPattern(
            "scan" if len(group) == 1 and _is_scan(group[0]) else "plain", group
        )
    if all(c.is_map for c in computations):
        return KernelPattern("map" if len(computations) == 1 else "plain", group)
    if len(group) == 1 and len(group[0].outputs) > 1:
        return _joint(group[0])
    reductions = [c for c in computations if not c.is_map]
    if (
        len(reductions) == 1
        and computations[0] is reductions[0]
        and len(computations) <= 2
    ):
        tiled = _tiled(reductions[0], group)
        if tiled is not None:
            return tiled
    separate = _windows(group)
    if separate is not None:
        return separate
    scaled = _block_scaled(group)
    if scaled is not None:
        return scaled
    if _transformed(computations):
        return KernelPattern("winograd", group, computations[2], computations[3])
    products = [c for c in reductions if _is_product(c)]
    if len(products) == 2 and computations[0] is products[0]:
        return (
            _streaming(group, products[1])
            or _attention(computations, products[1])
            or KernelPattern("plain", group)
        )
    alike = all(_points(p) == _points(c) for p in products for c in reductions)
    if alike and all(_row_reduction(c) for c in reductions):
        return KernelPattern("rows", group)
    return KernelPattern("plain", group)


def parts(computations: Sequence[Computation]) -> Iterator[KernelPattern]:
    """The sequence cut into runs of one pattern each, the longest first ones first."""
    start = 0
    while start < len(computations):
        ends = range(len(computations), start, -1)
        patterns = (classify(computations[start:end]) for end in ends)
        pattern = next(
            k for k in patterns if k.name != "plain" or len(k.computations) == 1
        )
        start += len(pattern.computations)
        yield pattern


def _is_scan(c: Computation) -> bool:
    """One running result, along one dimension."""
    return len(c.outputs) == 1 and [d.combine for d in reduction_dims(c)] == [PS]


def _joint(c: Computation) -> KernelPattern:
    """A reduction to several results, with its vectors along a dimension that suits them."""
    assert c.reducer is not None
    first = c.outputs[0]
    alike = all(o.index == first.index for o in c.outputs)
    held = all(
        o.tensor.dtype is t for o, t in zip(c.outputs, c.reducer.dtypes, strict=True)
    )
    inner = reduction_dims(c)
    if not (alike and held and inner):
        return KernelPattern("plain", (c,))
    place = address(first.tensor[first.index])
    changing = [a for a in c.accesses if any(uses(a, d.var) for d in inner)]
    for d in free_dims(c):
        along = [stride(address(a), d.var) for a in changing]
        if stride(place, d.var) == 1 and all(step in (0, 1) for step in along):
            return KernelPattern("joint", (c,), vector=d)
    last = inner[-1]
    along = [stride(address(a), last.var) for a in c.accesses]
    if 1 in along and all(step in (0, 1) for step in along) and c.reducer.commutative:
        return KernelPattern("joint_rows", (c,), vector=last)
    return KernelPattern("plain", (c,))


def _tiled(r: Computation, group: tuple[Computation, ...]) -> KernelPattern | None:
    """A reduction and at most one map of the same points, in vectors along one dimension."""
    free = free_dims(r)
    epilogue = group[1] if len(group) == 2 else None
    dims = {d: d for d in free} if epilogue is None else aligned(r, epilogue)
    if len(r.outputs) != 1 or not free or dims is None:
        return None
    last = r if epilogue is None else epilogue
    place = address(last.outputs[0].tensor[last.outputs[0].index])
    # Best a dimension that is contiguous in an operand and in the result, or almost.
    along = [d for d in free if stride(place, dims[d].var) == 1]
    good = [d for most in (1, CLOSE) for d in along if _near(r, d, most)]
    for vector in (*good, free[-1]):
        if _contiguous_result(r, vector):
            return KernelPattern("tiled", group, r, epilogue, vector, dims)
    return None


def _windows(group: tuple[Computation, ...]) -> KernelPattern | None:
    """Two reductions along one dimension each; the second reads windows of the first one's
    results."""
    if (
        len(group) not in (2, 3)
        or group[0].is_map
        or group[1].is_map
        or len(group[0].outputs) > 1
    ):
        return None
    first, last, *rest = group
    made, reads = first.outputs[0].tensor, last.accesses
    if [a.buffer for a in reads] != [made] or any(made in c.inputs for c in rest):
        return None
    if any(len(reduction_dims(c)) != 1 or is_contraction(c) for c in (first, last)):
        return None
    step = reduction_dims(last)[0]
    index = [i for i in reads[0].index if uses(i, step.var)]
    slides = len(index) == 1 and any(uses(index[0], d.var) for d in free_dims(last))
    found = classify(group[1:])
    return (
        replace(found, name="windows", computations=group)
        if slides and found.name == "tiled"
        else None
    )


def nested_dims(inner: Computation, outer: Computation) -> dict[Dim, Dim] | None:
    """The inner sum's dimension by the outer's, where the outer one reads each of its results once.

    None where it does not, or reads them at other points than they are made at.
    """
    made = inner.outputs[0]
    reads = [a for a in outer.accesses if a.buffer is made.tensor]
    mine, theirs = ({d.var: d for d in c.dims} for c in (inner, outer))
    if len(inner.outputs) > 1 or len(reads) != 1:
        return None
    found: dict[Dim, Dim] = {}
    for i, j in zip(made.index, reads[0].index, strict=True):
        if i in mine and j in theirs and mine[i].extent == theirs[j].extent:
            found[theirs[j]] = mine[i]
        elif affine(i) != affine(j):
            return None
    outside = {d for d in outer.dims if d.extent > 1}
    return found if outside <= set(found) else None


def _block_scaled(group: tuple[Computation, ...]) -> KernelPattern | None:
    """A sum over blocks of sums of products with bits of words; the columns are contiguous."""
    if len(group) not in (2, 3) or any(c.is_map for c in group[:2]):
        return None
    inner, outer, *rest = group
    words = [n for n in postorder(inner.outputs[0].value) if isinstance(n, Cast)]
    from_words = any(n.value.dtype.is_int for n in words)
    if not (from_words and is_contraction(inner) and len(reduction_dims(outer)) == 1):
        return None
    if nested_dims(inner, outer) is None or len(free_dims(outer)) > 2:
        return None
    found = _tiled(outer, tuple(group[1:]))
    if found is None or outer.reducer is None or not is_sum(outer.reducer):
        return None
    (held,) = {b for b in outer.inputs if b is inner.outputs[0].tensor}
    if any(held in c.inputs for c in rest):
        return None
    return replace(found, name="block_scaled", computations=group, reduction=outer)


def _near(r: Computation, d: Dim, most: int) -> bool:
    """Whether neighbors along `d` are at most so far apart in some operand."""
    return any(s is not None and 0 < s <= most for s in _strides(r, d))


def _strides(r: Computation, d: Dim) -> list[int | None]:
    return [stride(address(a), d.var) for a in r.accesses]


def aligned(r: Computation, epilogue: Computation) -> dict[Dim, Dim] | None:
    """The map's dimension by the reduction's whose points are the same; None where they are not.

    They are if the map has the same dimensions, or reads each result once, at its own point.
    """
    free = free_dims(r)
    if set(free) == set(free_dims(epilogue)):
        return {d: d for d in free}
    out = r.outputs[0]
    reads = [a for a in epilogue.accesses if a.buffer is out.tensor]
    mine, theirs = ({d.var: d for d in dims} for dims in (free, free_dims(epilogue)))
    if len(reads) != 1 or len(mine) != len(theirs):
        return None
    found: dict[Dim, Dim] = {}
    for i, j in zip(out.index, reads[0].index, strict=True):
        if i in mine and j in theirs and mine[i].extent == theirs[j].extent:
            found[mine[i]] = theirs[j]
        elif affine(i) != affine(j):
            return None
    return found if len(found) == len(mine) == len(set(found.values())) else None


def _transformed(computations: Sequence[Computation]) -> bool:
    """Whether two transforms of many outputs are multiplied, and the products transformed back."""
    if [c.is_map for c in computations] != [True, True, False, True]:
        return False
    left, right, product, _ = computations
    made = {o.tensor for c in (left, right) for o in c.outputs}
    several = len(left.outputs) > 1 and len(right.outputs) > 1
    return several and made == set(product.inputs) and is_contraction(product)


def _points(reduction: Computation) -> int:
    return math.prod(d.extent for d in free_dims(reduction))


def _is_product(c: Computation) -> bool:
    """A sum of products of two elements, which are not one and the same (a square)."""
    factors = [n for n in postorder(c.outputs[0].value) if isinstance(n, Mul)]
    return is_contraction(c) and any(not _loads(n.lhs) & _loads(n.rhs) for n in factors)


def _loads(e: Expr) -> set[Load]:
    return {n for n in postorder(e) if isinstance(n, Load)}


def _attention(
    computations: Sequence[Computation], second: Computation
) -> KernelPattern | None:
    """Scores, rows, output; None where the rows are not one row of scores for one of output."""
    at = computations.index(second)
    head = 2 if computations[1].is_map else 1
    scores, output = classify(computations[:head]), classify(computations[at:])
    rows = classify(computations[head:at])
    if (scores.name, rows.name, output.name) != ("tiled", "rows", "tiled"):
        return None
    made, used = computations[at - 1], second.outputs[0].value
    reads = [
        n for n in postorder(used) if isinstance(n, Load) and n.buffer in _written(made)
    ]
    if len(reads) != 1 or not made.is_map:
        return None
    dims = {d.var: d for d in second.dims}
    along = [dims.get(i) for i in reads[0].index if isinstance(i, Var)]
    keys = reduction_dims(second)
    if len(along) != len(reads[0].index) or len(keys) != 1 or along[-1] is not keys[0]:
        return None
    return KernelPattern("attention", tuple(computations), parts=(scores, rows, output))


def _streaming(
    group: tuple[Computation, ...], second: Computation
) -> KernelPattern | None:
    """Attention of blocks, and the mean of the blocks; None where it is not that."""
    at = group.index(second)
    tail = group[at + 1 :]
    if [c.is_map for c in tail] != [True, False, True]:
        return None
    rows, online, last = tail
    whole = _attention(group[: at + 1], second)
    blocks = reduction_dims(online)
    made = {o.tensor for o in (*rows.outputs, *second.outputs)}
    if whole is None or len(blocks) != 1 or len(online.outputs) != len(made):
        return None
    inside = {b for c in group for b in _written(c)}
    if inside.intersection(online.inputs) != made or not made.isdisjoint(last.inputs):
        return None
    return replace(whole, name="streaming_attention", computations=group)


def _written(c: Computation) -> set[Buffer]:
    return {o.tensor for o in c.outputs}


def _contiguous_result(r: Computation, vector: Dim) -> bool:
    """Whether vectors along `vector` read contiguous, close or invariant data, or weights to be
    packed."""
    steps = _strides(r, vector)
    if any(s is None for s in steps):
        return False
    inner = reduction_dims(r)
    if 1 in steps or (inner and inner[-1].extent <= CLOSE and _near(r, vector, CLOSE)):
        return True
    return len(steps) >= 2 and bool(inner) and any(s == 0 for s in steps)


def are_rows(computations: Sequence[Computation]) -> bool:
    """Whether every reduction among them reads something along its rows."""
    return all(c.is_map or _row_reduction(c) for c in computations)


def streams_rows(
    pattern: KernelPattern,
    constants: Collection[Buffer],
    few: int = 1,
    size: int = 0,
    terms: int = 1,
    again: float = 1.0,
) -> bool:
    """Whether a tiled reduction reads most of its data once, along rows: a matrix times a vector.

    Such data, if it is not constant, is not worth copying into an order for tiles. A tensor of more
    than `size` elements is not either for at most `few` vectors: it comes from memory. Tiles whose
    vectors go along another tensor need no copy: a row then has `terms` elements for each sum that
    ends with it. An element is read up to `again` times in the mean, more often where windows
    overlap.
    """
    r = pattern.reduction
    inner = [] if r is None else reduction_dims(r)
    if r is None or not inner or inner[-1].extent <= CLOSE:
        return False
    dims = [*free_dims(r), *inner]
    for a in r.accesses:
        if a.buffer in constants or stride(address(a), inner[-1].var) != 1:
            continue
        read = [d for d in dims if any(uses(i, d.var) for i in a.index)]
        points = math.prod(d.extent for d in read)
        vectors = math.prod(d.extent for d in dims) // points if points else 0
        most = few if a.buffer.size > size else 1
        if pattern.vector not in read:
            most = min(most, inner[-1].extent // terms)
        if vectors <= most and points <= again * a.buffer.size:
            return True
    return False


def _row_reduction(c: Computation) -> bool:
    """Whether some input is read contiguously along the last reduced dimension, and none in steps
    of which each element of a vector would be a load of its own."""
    inner = reduction_dims(c)
    if not inner or len(c.outputs) != 1:
        return False
    steps = [stride(address(a), inner[-1].var) for a in c.accesses]
    return 1 in steps and all(s is None or abs(s) <= CLOSE for s in steps)
