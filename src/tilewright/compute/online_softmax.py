"""Attention over blocks of keys: the weighted mean of the attentions over each block.

    y[q] = sum[k] softmax(t[q])[k] * v[k]
         = combine[b] (m[b, q], w[b, q], y[b, q])

with the greatest score m[b], the sum w[b] of exp(t - m[b]) and the attention y[b] over block b of
the keys alone. The operator is associative and commutative, so that blocks may go by one after
another, or each separately (split keys). Nothing overflows for whatever scores: every exponential
is of a number that is not positive, and a mean of means needs no greater numbers than those it is
of. Source: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax".
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache

from tilewright.base.dtypes import DType
from tilewright.compute.contraction import is_contraction
from tilewright.compute.hidden_keys import Hidden, asks, hidden_keys
from tilewright.compute.nodes import CC, PW, Computation, Dim, Output
from tilewright.compute.reducer import Reducer, is_sum, reducer
from tilewright.compute.transforms import identity_dims, inline
from tilewright.expr.nodes import (
    INDEX,
    Buffer,
    Call,
    Const,
    Eq,
    Expr,
    Load,
    Max,
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
    """On (m, w, y): the mean of values y with the weights w * exp(m).

    A weight is held as its greatest exponent m, finite or inf, and what is left, w: 0 for nothing,
    else at least 1, so that the divisor Max(w, 1) changes nothing but 0 / 0. NaN goes through.
    """
    m = Var("m", dtype)
    w = Var("w", dtype)
    y = Var("y", dtype)
    n = Var("n", dtype)
    k = Var("k", dtype)
    z = Var("z", dtype)
    one = const(1.0, dtype)
    zero = const(0.0, dtype)
    top = Max(m, n)
    left = w * Call("exp", (m - top,))
    right = k * Call("exp", (n - top,))
    total = left + right
    share = one / Max(total, one)
    mean = y * (left * share) + z * (right * share)
    return Reducer(
        "weighted_mean",
        lhs=(m, w, y),
        rhs=(n, k, z),
        result=(top, total, mean),
        identity=(_lowest(dtype), zero, zero),
    )


def _lowest(dtype: DType) -> Const:
    return const(dtype.min, dtype)


@dataclass(frozen=True, slots=True)
class _Attention:
    """The parts of softmax(t) @ v: the scores t, what softmax is made of, the product, the rest.

    guarded: probabilities that are NaN count as 0. hidden: what a mask by position hides.
    """

    scores: Group
    peak: Computation
    exp: Computation
    total: Computation
    weights: Computation
    mean: Computation
    rest: Group
    guarded: bool
    hidden: Hidden | None

    @property
    def inner(self) -> dict[Buffer, Computation]:
        """What is made and read inside alone, with what makes it."""
        made = (
            *self.scores,
            self.peak,
            self.exp,
            self.total,
            self.weights,
        )
        return {c.outputs[0].tensor: c for c in made}

    @property
    def values(self) -> set[Buffer]:
        """What the weights are multiplied with."""
        return set(self.mean.inputs) - {self.weights.outputs[0].tensor}

    @property
    def keys(self) -> int:
        """How many there are."""
        return self.scores[-1].outputs[0].tensor.shape[-1]


def online_softmax(
    group: Sequence[Computation],
    size: int,
    kept: Collection[Buffer] = (),
    far: Buffer | None = None,
) -> Group | None:
    """Attention over blocks of `size` keys, and the mean over the blocks.

    far: what `hidden_blocks` asks. Where it is 0, blocks whose keys are all hidden from a query
    count nothing for it, which `schedule/primitives/skip.py` proves again.

    requires, else None: a product (the scores) and maps of it, key by key, whose last axis is the
    keys; along it max, exp(t - max), sum and exp / sum, nothing else; a product of that with
    values, summed over the keys alone. The same one dtype, float32 or float64, throughout. What is
    inside is read nowhere else, not by others either (`kept`). There are more keys than `size`,
    which divides their number: a block that repeats keys, hidden, would make NaN of their values
    where infinite.

    A block all of whose scores are -inf counts nothing; where all blocks are such, the result is
    NaN as it was.
    """
    found = _recognized(tuple(group))
    if found is None:
        return None
    if not 0 < size < found.keys or found.keys % size:
        return None
    inner = found.inner
    used = {*kept, *found.values}
    for c in found.rest:
        used.update(c.inputs)
    if not used.isdisjoint(inner):
        return None
    blocks = _Blocks(found, size, far)
    parts = [blocks.part(c) for c in inner.values()]
    kept_rows = blocks.kept_rows()
    mean, *combined = blocks.means(kept_rows)
    return (*parts, mean, kept_rows, *_joined(combined, found.rest))


def hidden_blocks(group: Sequence[Computation]) -> tuple[Buffer, Group] | None:
    """int64[1], for `online_softmax`, and what computes it, each its own kernel; None where no
    mask by position hides keys."""
    found = _recognized(tuple(group))
    if found is None or found.hidden is None or len(found.values) != 1:
        return None
    (values,) = found.values
    if not _as_they_are(found.mean, values):
        return None
    return asks(found.mean.name, found.hidden, found.scores[0], values)


def _as_they_are(mean: Computation, values: Buffer) -> bool:
    """Whether what the weights are multiplied with are elements of a tensor, or constants."""
    value = mean.outputs[0].value
    assert isinstance(value, Mul)
    for e in (value.lhs, value.rhs):
        if isinstance(e, Select) and isinstance(e.otherwise, Const):
            e = e.then
        if not isinstance(e, Load):
            return False
    return values.dtype.is_float


def _joined(
    combined: Sequence[Computation],
    rest: Group,
) -> Group:
    """The map after the mean goes into the one map that follows, if there is one."""
    online, last = combined
    if len(rest) == 1:
        whole = inline(last, rest[0])
        if whole is not None:
            return (online, whole)
    return (online, last, *rest)


# ------------------------------------------------------------------------------------- recognition


def may_be_attention(group: Sequence[Computation]) -> bool:
    """Whether there are a product and, after it, a maximum that enough others follow."""
    return bool(_peak_at(group)) and is_contraction(group[0])


def _peak_at(group: Sequence[Computation]) -> int:
    """The place of the first maximum, where four follow it, else 0."""
    at = next((n for n, c in enumerate(group) if _is_peak(c)), 0)
    return at if len(group) >= at + 5 else 0


def _recognized(group: Group) -> _Attention | None:
    if not may_be_attention(group):
        return None
    at = _peak_at(group)
    scores = group[:at]
    peak, exp, total, weights, mean = group[at : at + 5]
    tensor = scores[-1].outputs[0].tensor
    keys = tensor.shape[-1]
    axes = tuple(Var(f"a{n}", INDEX) for n in range(len(tensor.shape)))
    if not all(_has_keys(c, keys, tensor.dtype) for c in scores):
        return None
    made = {c.outputs[0].tensor for c in scores}
    if not all(_key_by_key(c, made) for c in scores):
        return None
    row = (*axes[:-1], const(0))
    score = Load(tensor, axes)
    exponential = Load(exp.outputs[0].tensor, axes)
    top = Load(peak.outputs[0].tensor, row)
    whole = Load(total.outputs[0].tensor, row)
    one = const(1.0, tensor.dtype)
    zero = const(0.0, tensor.dtype)
    shares = (exponential * (one / whole), exponential / whole)
    guards = tuple(Select(Call("isnan", (s,)), zero, s) for s in shares)
    value = _value(weights, axes)
    hidden = _hidden(scores, axes)
    if hidden is not None and isinstance(value, Select):
        value = _unmasked(value, hidden)
    fits = (
        _value(peak, axes) is score
        and _value(exp, axes) is Call("exp", (Sub(score, top),))
        and total.reducer is not None
        and is_sum(total.reducer)
        and _value(total, axes) is exponential
        and value in (*shares, *guards)
        and _is_mean(mean, weights.outputs[0].tensor)
    )
    if not fits:
        return None
    return _Attention(
        scores,
        peak,
        exp,
        total,
        weights,
        mean,
        rest=group[at + 5 :],
        guarded=value in guards,
        hidden=hidden,
    )


def _hidden(scores: Group, axes: tuple[Var, ...]) -> Hidden | None:
    value = _value(scores[-1], axes)
    if value is None or len(scores) != 2:
        return None
    return hidden_keys(value, axes, scores[-1].outputs[0].tensor.shape, scores[0])


def _unmasked(share: Select, hidden: Hidden) -> Expr:
    """A share that is 0 where the score is hidden, which it is anyway where each query sees a key:
    or all of its shares are NaN, and so is the mean."""
    same = share.condition is hidden.seen and share.otherwise is const(0.0, share.dtype)
    if same and hidden.low == -math.inf and bool(hidden.table.any(-1).all()):
        return share.then
    return share


def _is_peak(c: Computation) -> bool:
    """A maximum along one dimension, of one tensor."""
    if c.reducer is None or len(c.outputs) != 1 or len(c.combined_dims) != 1:
        return False
    dtype = c.reducer.dtypes[0]
    greatest = [reducer(name, dtype) for name in ("max_number", "max")]
    return any(c.reducer.does_as(r) for r in greatest)


def _has_keys(
    c: Computation,
    keys: int,
    dtype: DType,
) -> bool:
    """Whether its result is its own tensor whose last axis is the keys, in full precision."""
    axes = identity_dims(c)
    if not axes or axes[-1] is None:
        return False
    if not dtype.is_float or dtype.bits < 32:
        return False
    tensor = c.outputs[0].tensor
    return (
        tensor.shape[-1] == keys
        and tensor.dtype is dtype
        and all(d.combine in (CC, PW) for d in c.dims)
    )


def _key_by_key(
    c: Computation,
    made: set[Buffer],
) -> bool:
    """Whether it reads of what is made inside, for a key, that of the same key alone."""
    axes = identity_dims(c)
    key = axes[-1] if axes else None
    if key is None:
        return False
    reads = [a.index for a in c.accesses if a.buffer in made]
    return all(
        last is key.var and not any(key.var in postorder(i) for i in rows)
        for *rows, last in reads
    )


def _value(
    c: Computation,
    axes: Axes,
) -> Expr | None:
    """What it computes at a place: over the axes of the scores, of which the last is the keys.

    None where it covers its tensor by anything else than one dimension per axis.
    """
    found = identity_dims(c)
    if found is None or len(found) != len(axes):
        return None
    env: dict[object, object] = {}
    for d, axis in zip(found, axes, strict=True):
        if d is not None:
            env[d.var] = axis
    for d in c.dims:
        if d.combine == CC and d.extent > 1 and d.var not in env:
            return None
    last = found[-1]
    if c.combined_dims:
        if len(c.combined_dims) > 1 or (last is not None and last.extent > 1):
            return None
        env[c.combined_dims[0].var] = axes[-1]
    value: Expr = substitute(c.outputs[0].value, env)
    return _without_units(value, axes)


def _without_units(
    value: Expr,
    axes: Axes,
) -> Expr:
    """Indices along axes of extent 1 as the row has them: 0 for the last, the axis for others."""
    env: dict[object, object] = {}
    for load in (n for n in postorder(value) if isinstance(n, Load)):
        if len(load.index) != len(axes):
            continue
        index = list(load.index)
        for n, extent in enumerate(load.buffer.shape):
            if extent == 1 and index[n] is const(0):
                index[n] = axes[n]
        if load.buffer.shape[-1] == 1:
            index[-1] = const(0)
        env[load] = Load(load.buffer, tuple(index))
    result: Expr = substitute(value, env)
    return result


def _is_mean(
    c: Computation,
    weights: Buffer,
) -> bool:
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
    if key is not reduced[0].var or reduced[0].extent != weights.shape[-1]:
        return False
    if any(n is key for i in rows for n in postorder(i)):
        return False
    made = c.outputs[0].tensor
    return made.dtype is weights.dtype and made not in c.inputs


def _buffers(e: Expr) -> set[Buffer]:
    return {n.buffer for n in postorder(e) if isinstance(n, Load)}


# ------------------------------------------------------------------------------------------ blocks


class _Blocks:
    """Rewrites Computations to blocks of the keys."""

    def __init__(
        self,
        attention: _Attention,
        size: int,
        far: Buffer | None,
    ) -> None:
        self.attention = attention
        self.size = size
        self.far = far
        self.count = attention.keys // size
        self.block = Dim(Var("b", INDEX), self.count)
        self.tensors = {b: self._part(b) for b in attention.inner}

    def _part(self, b: Buffer) -> Buffer:
        *rows, keys = b.shape
        extents = (self.count, *rows, min(keys, self.size))
        return Buffer(f"{b.name}_part", extents, b.dtype)

    def moved(
        self,
        value: Expr,
        key: Dim | None,
    ) -> Expr:
        """A value of one block, over the place in it instead of the key."""
        env: dict[object, object] = {}
        if key is not None:
            env[key.var] = self.block.var * self.size + key.var
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
        index = (self.block.var, *out.index)
        if c is self.attention.exp:
            top = value.args[0].rhs  # type: ignore[attr-defined]
            floor = Max(top, _lowest(top.dtype))
            value = substitute(value, {top: floor})
        if c is self.attention.weights:
            value = self._share(value)
        made = Output(self.tensors[out.tensor], index, value)
        return replace(c, dims=self._dims(c, key), outputs=(made,))

    def _dims(
        self,
        c: Computation,
        key: Dim | None,
    ) -> tuple[Dim, ...]:
        """The blocks, and the dimensions with as many keys as a block has."""
        dims = (replace(d, size=self.size) if d is key else d for d in c.dims)
        return (self.block, *dims)

    def key(self, c: Computation) -> Dim | None:
        """The dimension of the keys."""
        a = self.attention
        if c in (a.peak, a.total, a.mean):
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
        peaks = self.tensors[a.peak.outputs[0].tensor]
        totals = self.tensors[a.total.outputs[0].tensor]
        shape = peaks.shape[:-1]
        rows = tuple(
            Dim(Var(f"r{n}", INDEX), extent) for n, extent in enumerate(shape[1:])
        )
        place = (self.block.var, *(d.var for d in rows))
        top = Load(peaks, (*place, const(0)))
        total = Load(totals, (*place, const(0)))
        values = {peaks: Max(top, _lowest(top.dtype)), totals: total}
        outputs = []
        for b, value in values.items():
            held = Buffer(f"{b.name}_row", shape, b.dtype)
            outputs.append(Output(held, place, value))
        return Computation(
            f"{a.mean.name}_rows",
            (self.block, *rows),
            tuple(outputs),
        )

    def means(self, rows: Computation) -> tuple[Computation, Computation, Computation]:
        """The attention over each block, their mean, and the result.

        rows: what keeps the maximum and the sum of each row.
        """
        c = self.attention.mean
        (out,) = c.outputs
        key = self.key(c)
        shape = tuple(d.extent for d in c.parallel_dims)
        place = tuple(d.var for d in c.parallel_dims)
        made = Buffer(f"{out.tensor.name}_part", (self.count, *shape), out.tensor.dtype)
        index = (self.block.var, *place)
        part = Output(made, index, self.moved(out.value, key))
        mean = replace(
            c,
            name=f"{c.name}_part",
            dims=self._dims(c, key),
            outputs=(part,),
        )
        return (mean, *self._combined(rows, Load(made, index)))

    def _combined(
        self,
        rows: Computation,
        part: Load,
    ) -> tuple[Computation, Computation]:
        """The mean over the blocks, of which `part` is one, and the result."""
        c = self.attention.mean
        (out,) = c.outputs
        free = c.parallel_dims
        shape = tuple(d.extent for d in free)
        place = tuple(d.var for d in free)
        row = self._row()
        reads = [*(Load(o.tensor, row) for o in rows.outputs), part]
        operator = weighted_mean(part.dtype)
        values = self._seen(reads, operator, row)
        outputs = []
        for what, value in zip(("peak", "total", "mean"), values, strict=True):
            held = Buffer(f"{out.tensor.name}_{what}", shape, part.dtype)
            outputs.append(Output(held, place, value))
        online = Computation(
            f"{c.name}_online",
            (*free, replace(self.block, combine=PW)),
            tuple(outputs),
            operator,
        )
        _, total, mean = (Load(o.tensor, place) for o in outputs)
        result = replace(out, value=self._empty(total, mean))
        return online, Computation(f"{c.name}_result", free, (result,))

    def _seen(
        self, reads: Sequence[Expr], operator: Reducer, row: Sequence[Expr]
    ) -> list[Expr]:
        """What is read of a block where a query may see one of its keys, else what changes
        nothing."""
        hidden = self.attention.hidden
        if hidden is None or self.far is None:
            return list(reads)
        far = Load(self.far, (const(0),))
        seen = hidden.block(self.block.var, self.size, far)
        seen = substitute(seen, dict(zip(hidden.axes[:-1], row[1:], strict=True)))
        return [
            Select(seen, e, nothing)
            for e, nothing in zip(reads, operator.identity, strict=True)
        ]

    def _row(self) -> tuple[Expr, ...]:
        """Where the maximum and the sum of a row of the product are."""
        weights = self.attention.weights.outputs[0].tensor
        read = next(a for a in self.attention.mean.accesses if a.buffer is weights)
        return (self.block.var, *read.index[:-1])

    def _empty(
        self,
        total: Load,
        mean: Load,
    ) -> Expr:
        """The mean; of nothing, NaN as 0 / 0 is. Guarded, the mean of weights that are all 0."""
        dtype = mean.dtype
        if self.attention.guarded:
            return Select(Call("isnan", (total,)), const(0.0, dtype), mean)
        nothing = Eq(total, const(0.0, dtype))
        return Select(nothing, const(float("nan"), dtype), mean)
