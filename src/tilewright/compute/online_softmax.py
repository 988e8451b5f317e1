"""Attention over blocks of keys: the weighted mean of the attentions over each block.

    y[q] = sum[k] softmax(t[q])[k] * v[k]
         = combine[b] (m[b, q], l[b, q], y[b, q])

with the greatest score m[b], the sum l[b] of exp(t - m[b]) and the attention y[b] over block b of
the keys alone. The operator is associative and commutative, so that blocks may go by one after
another, or each by itself (split keys). Nothing overflows for whatever scores: every exponential is
of a number that is not positive, and a mean of means needs no greater numbers than those it is of.
Source: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache

from tilewright.base.dtypes import DType
from tilewright.compute.contraction import is_contraction
from tilewright.compute.nodes import CC, PW, Computation, Dim, Output
from tilewright.compute.reducer import Reducer, is_sum, reducer
from tilewright.compute.transforms import identity_dims, inline
from tilewright.expr.nodes import (
    INDEX,
    Buffer,
    Call,
    Const,
    Div,
    Eq,
    Expr,
    Le,
    Load,
    Max,
    Min,
    Mul,
    Select,
    Sub,
    Var,
    const,
)
from tilewright.ir.node import postorder, substitute

Group = tuple[Computation, ...]
Axes = Sequence[Expr]


@cache
def weighted_mean(dtype: DType) -> Reducer:
    """On (m, l, y): the mean of values y with the weights l * exp(m).

    A weight is held as its greatest exponent m, finite or inf, and what is left, l: 0 for nothing,
    else at least 1, so that the divisor Max(l, 1) changes nothing but 0 / 0. NaN goes through.
    """
    m, l, y, n, k, z = (Var(name, dtype) for name in "mlynkz")
    top = Max(m, n)
    left = l * Call("exp", (m - top,))
    right = k * Call("exp", (n - top,))
    total = left + right
    share = const(1.0, dtype) / Max(total, const(1.0, dtype))
    return Reducer(
        "weighted_mean",
        lhs=(m, l, y),
        rhs=(n, k, z),
        result=(top, total, y * (left * share) + z * (right * share)),
        identity=(_lowest(dtype), const(0.0, dtype), const(0.0, dtype)),
    )


def _lowest(dtype: DType) -> Const:
    return const(dtype.min, dtype)


@dataclass(frozen=True, slots=True)
class _Attention:
    """The parts of softmax(t) @ v: the scores t, what softmax is made of, the product, the rest.

    guarded: probabilities that are NaN count as 0.
    """

    scores: Group
    peak: Computation
    exp: Computation
    total: Computation
    weights: Computation
    mean: Computation
    rest: Group
    guarded: bool

    @property
    def inner(self) -> dict[Buffer, Computation]:
        """What is made and read inside alone, with what makes it."""
        made = (*self.scores, self.peak, self.exp, self.total, self.weights)
        return {c.outputs[0].tensor: c for c in made}

    @property
    def keys(self) -> int:
        """How many there are."""
        return self.scores[-1].outputs[0].tensor.shape[-1]


def online_softmax(
    group: Sequence[Computation],
    size: int,
    kept: Collection[Buffer] = (),
) -> Group | None:
    """Attention over blocks of `size` keys, the last one shorter, and the mean over the blocks.

    requires, else None: a product (the scores) and maps of it, whose last axis is the keys; along
    it max, exp(t - max), sum and exp / sum, nothing else; a product of that with values, summed
    over the keys alone. The same one dtype, float32 or float64, throughout. What is inside is read
    nowhere else, not by others either (`kept`). There are more keys than `size`.

    Where the blocks are not alike, the last one begins earlier, and the scores of keys that were in
    the block before are -inf. A block all of whose scores are -inf counts nothing; where all blocks
    are such, the result is NaN as it was.
    """
    found = _recognized(tuple(group))
    if found is None or not 0 < size < found.keys:
        return None
    inner = found.inner
    if not inner.keys().isdisjoint(kept):
        return None
    if any(b in inner for c in found.rest for b in c.inputs):
        return None
    blocks = _Blocks(found, size)
    parts = [blocks.part(c) for c in inner.values()]
    kept_rows = blocks.kept_rows()
    mean, *combined = blocks.means(kept_rows)
    return (*_cut(parts, blocks), mean, kept_rows, *_joined(combined, found.rest))


def _joined(combined: Sequence[Computation], rest: Group) -> Group:
    """The map behind the mean goes into the one map that follows, if there is one."""
    online, last = combined
    if len(rest) == 1:
        whole = inline(last, rest[0])
        if whole is not None:
            return (online, whole)
    return (online, last, *rest)


# ------------------------------------------------------------------------------------- recognition


def _recognized(group: Group) -> _Attention | None:
    at = next((n for n, c in enumerate(group) if _is_peak(c)), 0)
    if not at or len(group) < at + 5 or not is_contraction(group[0]):
        return None
    scores, (peak, exp, total, weights, mean) = group[:at], group[at : at + 5]
    tensor = scores[-1].outputs[0].tensor
    keys = tensor.shape[-1]
    axes = tuple(Var(f"a{n}", INDEX) for n in range(len(tensor.shape)))
    if not all(_has_keys(c, keys, tensor.dtype) for c in scores):
        return None
    row = (*axes[:-1], const(0))
    score = Load(tensor, axes)
    exped, summed = (Load(c.outputs[0].tensor, axes) for c in (exp, weights))
    top, whole = (Load(c.outputs[0].tensor, row) for c in (peak, total))
    one = const(1.0, tensor.dtype)
    shares = (exped * (one / whole), exped / whole)
    zero = const(0.0, tensor.dtype)
    guards = tuple(Select(Call("isnan", (s,)), zero, s) for s in shares)
    value = _value(weights, axes)
    fits = (
        _value(peak, axes) is score
        and _value(exp, axes) is Call("exp", (Sub(score, top),))
        and total.reducer is not None
        and is_sum(total.reducer)
        and _value(total, axes) is exped
        and value in (*shares, *guards)
        and _is_mean(mean, summed.buffer)
    )
    if not fits:
        return None
    return _Attention(
        scores, peak, exp, total, weights, mean, group[at + 5 :], value in guards
    )


def _is_peak(c: Computation) -> bool:
    """A maximum along one dimension, of one tensor."""
    if c.reducer is None or len(c.outputs) != 1 or len(c.combined_dims) != 1:
        return False
    dtype = c.reducer.dtypes[0]
    greatest = [reducer(name, dtype) for name in ("max_number", "max")]
    return any(c.reducer.does_as(r) for r in greatest)


def _has_keys(c: Computation, keys: int, dtype: DType) -> bool:
    """Whether its result is a tensor of its own whose last axis is the keys, in full precision."""
    axes = identity_dims(c)
    return (
        bool(axes)
        and c.outputs[0].tensor.shape[-1] == keys
        and axes[-1] is not None
        and c.outputs[0].tensor.dtype is dtype
        and dtype.is_float
        and dtype.bits >= 32
        and all(d.combine in (CC, PW) for d in c.dims)
    )


def _value(c: Computation, axes: Axes) -> Expr | None:
    """What it computes at a place: over the axes of the scores, of which the last is the keys.

    None where it covers its tensor by anything else than one dimension per axis.
    """
    found = identity_dims(c)
    if found is None or len(found) != len(axes):
        return None
    env: dict[object, object] = {
        d.var: a for d, a in zip(found, axes, strict=True) if d is not None
    }
    rest = [d for d in c.dims if d.var not in env]
    if len([d for d in rest if d.extent > 1]) > (0 if c.is_map else 1):
        return None
    last = found[-1]
    if c.combined_dims:
        (key,) = c.combined_dims
        env |= {key.var: axes[-1]}
        if last is not None and last.extent > 1:
            return None
    value: Expr = substitute(c.outputs[0].value, env)
    return _without_units(value, axes)


def _without_units(value: Expr, axes: Axes) -> Expr:
    """Indices along axes of extent 1 as the row has them: 0 for the last, the axis for others."""
    env: dict[object, object] = {}
    for load in (n for n in postorder(value) if isinstance(n, Load)):
        if len(load.index) != len(axes):
            continue
        index = [
            a if extent == 1 and i is const(0) else i
            for a, i, extent in zip(axes, load.index, load.buffer.shape, strict=True)
        ]
        if load.buffer.shape[-1] == 1:
            index[-1] = const(0)
        env[load] = Load(load.buffer, tuple(index))
    result: Expr = substitute(value, env)
    return result


def _is_mean(c: Computation, weights: Buffer) -> bool:
    """A product of the weights, once, with something else, summed over the keys alone."""
    reduced = [d for d in c.dims if d.combine != CC]
    if not is_contraction(c) or len(reduced) != 1 or weights not in c.inputs:
        return False
    value = c.outputs[0].value
    reads = [a for a in c.accesses if a.buffer is weights]
    if not isinstance(value, Mul) or len(reads) != 1:
        return False
    other = value.rhs if value.lhs is reads[0] else value.lhs
    if reads[0] not in (value.lhs, value.rhs) or weights in _buffers(other):
        return False
    *rows, key = reads[0].index
    free = {d.var for d in c.dims if d.combine == CC}
    varying = [i for i in rows if i is not const(0)]
    return (
        key is reduced[0].var
        and reduced[0].extent == weights.shape[-1]
        and all(i in free for i in varying)
        and len(set(varying)) == len(varying)
        and c.outputs[0].tensor.dtype is weights.dtype
        and c.outputs[0].tensor not in c.inputs
    )


def _buffers(e: Expr) -> set[Buffer]:
    return {n.buffer for n in postorder(e) if isinstance(n, Load)}


# ------------------------------------------------------------------------------------------ blocks


class _Blocks:
    """Rewrites Computations to blocks of the keys."""

    def __init__(self, attention: _Attention, size: int) -> None:
        self.attention = attention
        self.size = size
        self.count = -(-attention.keys // size)
        self.even = attention.keys % size == 0
        self.block = Dim(Var("b", INDEX), self.count)
        self.tensors = {
            b: Buffer(f"{b.name}_part", self._extents(b), b.dtype)
            for b in attention.inner
        }

    def _extents(self, b: Buffer) -> tuple[int, ...]:
        *rows, keys = b.shape
        return (self.count, *rows, min(keys, self.size))

    def start(self) -> Expr:
        """The first key of a block."""
        at = self.block.var * self.size
        return at if self.even else Min(at, const(self.attention.keys - self.size))

    def moved(self, value: Expr, key: Dim | None) -> Expr:
        """A value of one block, over the place in it instead of the key."""
        env: dict[object, object] = {}
        if key is not None:
            env[key.var] = self.start() + key.var
        for load in (n for n in postorder(value) if isinstance(n, Load)):
            if load.buffer in self.tensors:
                index = (self.block.var, *load.index)
                env[load] = Load(self.tensors[load.buffer], index)
        result: Expr = substitute(value, env)
        return result

    def part(self, c: Computation) -> Computation:
        """What is inside, of each block."""
        (out,) = c.outputs
        key = self.key(c)
        value = self.moved(out.value, key)
        if c is self.attention.exp:
            top = value.args[0].rhs  # type: ignore[attr-defined]
            floor = Max(top, _lowest(top.dtype))
            value = substitute(value, {top: floor})
        if c is self.attention.weights:
            value = self._share(value)
        dims = [replace(d, size=self.size) if d is key else d for d in c.dims]
        made = Output(self.tensors[out.tensor], (self.block.var, *out.index), value)
        return replace(c, dims=(self.block, *dims), outputs=(made,))

    def key(self, c: Computation) -> Dim | None:
        """The dimension of the keys."""
        if c in (self.attention.peak, self.attention.total, self.attention.mean):
            return c.combined_dims[0]
        axes = identity_dims(c)
        assert axes is not None
        return axes[-1]

    def _share(self, value: Expr) -> Expr:
        """exp / sum, where the sum may be 0: then every exp is."""
        made = self.tensors[self.attention.exp.outputs[0].tensor]
        loads = [n for n in postorder(value) if isinstance(n, Load)]
        exped = next(n for n in loads if n.buffer is made)
        whole = next(n for n in loads if n.buffer is not made)
        one = const(1.0, value.dtype)
        return exped * (one / Max(whole, one))

    def kept_rows(self) -> Computation:
        """The maximum and the sum of each row, for the mean over blocks."""
        a = self.attention
        tensors = [self.tensors[c.outputs[0].tensor] for c in (a.peak, a.total)]
        dtype = tensors[0].dtype
        shape = tensors[0].shape[1:-1]
        dims = tuple(Dim(Var(f"r{n}", INDEX), e) for n, e in enumerate(shape))
        place = (self.block.var, *(d.var for d in dims))
        top, total = (Load(b, (*place, const(0))) for b in tensors)
        held = [Buffer(f"{b.name}_row", (self.count, *shape), dtype) for b in tensors]
        values = (Max(top, _lowest(dtype)), total)
        outputs = tuple(Output(b, place, v) for b, v in zip(held, values, strict=True))
        return Computation(f"{a.mean.name}_rows", (self.block, *dims), outputs)

    def means(self, rows: Computation) -> tuple[Computation, Computation, Computation]:
        """The attention over each block, their mean, and the result.

        rows: what keeps the maximum and the sum of each row.
        """
        a = self.attention
        (out,) = a.mean.outputs
        free = a.mean.parallel_dims
        key = self.key(a.mean)
        dtype = out.tensor.dtype
        shape = tuple(d.extent for d in free)
        place = tuple(d.var for d in free)
        whole = Buffer(f"{out.tensor.name}_part", (self.count, *shape), dtype)
        value = self.moved(out.value, key)
        dims = [replace(d, size=self.size) if d is key else d for d in a.mean.dims]
        part = Output(whole, (self.block.var, *place), value)
        mean = replace(
            a.mean,
            name=f"{a.mean.name}_part",
            dims=(self.block, *dims),
            outputs=(part,),
        )
        row = self._row()
        top, total = (Load(o.tensor, row) for o in rows.outputs)
        values = (top, total, Load(whole, part.index))
        names = ("peak", "total", "mean")
        held = [Buffer(f"{out.tensor.name}_{n}", shape, dtype) for n in names]
        online = Computation(
            f"{a.mean.name}_online",
            (*free, replace(self.block, combine=PW)),
            tuple(Output(b, place, v) for b, v in zip(held, values, strict=True)),
            weighted_mean(dtype),
        )
        _, l, y = (Load(b, place) for b in held)
        last = Computation(
            f"{a.mean.name}_result",
            free,
            (replace(out, value=self._empty(l, y)),),
        )
        return mean, online, last

    def _row(self) -> tuple[Expr, ...]:
        """Where the maximum and the sum of a row of the product are."""
        weights = self.attention.weights.outputs[0].tensor
        read = next(a for a in self.attention.mean.accesses if a.buffer is weights)
        return (self.block.var, *read.index[:-1])

    def _empty(self, total: Load, mean: Load) -> Expr:
        """The mean; of nothing, NaN as 0 / 0 is. Guarded, the mean of weights that are all 0."""
        dtype = mean.dtype
        if self.attention.guarded:
            return Select(Call("isnan", (total,)), const(0.0, dtype), mean)
        nothing = Eq(total, const(0.0, dtype))
        return Select(nothing, const(float("nan"), dtype), mean)


def _cut(parts: list[Computation], blocks: _Blocks) -> list[Computation]:
    """The parts, with scores of keys that were in the block before as -inf."""
    if blocks.even:
        return parts
    n = len(blocks.attention.scores) - 1
    (out,) = parts[n].outputs
    key = parts[n].dims[1:]
    axes = identity_dims(parts[n])
    assert axes is not None and axes[-1] is not None and key
    own = Le(blocks.block.var * blocks.size, blocks.start() + axes[-1].var)
    hidden = const(float("-inf"), out.tensor.dtype)
    if parts[n].is_map:
        cut = Output(out.tensor, out.index, Select(own, out.value, hidden))
        return [*parts[:n], replace(parts[n], outputs=(cut,)), *parts[n + 1 :]]
    whole = Buffer(f"{out.tensor.name}_whole", out.tensor.shape, out.tensor.dtype)
    before = replace(parts[n], outputs=(replace(out, tensor=whole),))
    free = parts[n].parallel_dims
    value = Select(own, Load(whole, out.index), hidden)
    behind = Computation(
        f"{parts[n].name}_cut", free, (Output(out.tensor, out.index, value),)
    )
    return [*parts[:n], before, behind, *parts[n + 1 :]]
