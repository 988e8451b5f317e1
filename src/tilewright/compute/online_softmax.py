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
from dataclasses import replace
from functools import cache

from tilewright.base.dtypes import DType
from tilewright.compute.attention import (
    AttentionParts,
    Group,
    buffers_in,
    converted,
    recognized,
)
from tilewright.compute.hidden_keys import asks
from tilewright.compute.nodes import PW, Computation, Dim, Output
from tilewright.compute.reducer import Reducer
from tilewright.compute.transforms import identity_dims, inline
from tilewright.expr.nodes import (
    INDEX,
    Buffer,
    Call,
    Cast,
    Const,
    Eq,
    Expr,
    Load,
    Lt,
    Max,
    Mul,
    Select,
    Var,
    const,
)
from tilewright.ir.node import postorder, substitute


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


def online_softmax(
    group: Sequence[Computation],
    size: int,
    kept: Collection[Buffer] = (),
    far: Buffer | None = None,
    narrow: bool = False,
) -> Group | None:
    """Attention over blocks of `size` keys, and the mean over the blocks.

    far: what `hidden_blocks` asks. Where it is 0, blocks whose keys are all hidden from a query
    count nothing for it, which `schedule/primitives/skip.py` proves again.

    requires, else None: a product (the scores) and maps of it, key by key, whose last axis is the
    keys; along it max, exp(t - max), sum and exp / sum, nothing else; a product of that with
    values, summed over the keys alone. The same one dtype, float32 or float64, throughout; with
    `narrow`, scores and weights may be rounded to 16 bits between. What is inside is read nowhere
    else, not by others either (`kept`). There are more keys than `size`. Where it does not divide
    their number, the last block ends with keys that are not read, with scores of -inf and values of
    0. Weights are rounded as shares of their block, not of all keys.

    A block all of whose scores are -inf counts nothing; where all blocks are such, the result is
    NaN as it was.
    """
    found = recognized(tuple(group), narrow)
    if found is None:
        return None
    if not 0 < size < found.keys:
        return None
    inner = found.inner
    used = {*kept, *found.values}
    for c in found.rest:
        used.update(c.inputs)
    if not used.isdisjoint(inner):
        return None
    blocks = _Blocks(found, size, far)
    parts = [p for c in inner.values() for p in blocks.parts(c)]
    kept_rows = blocks.kept_rows()
    mean, *combined = blocks.means(kept_rows)
    return (*parts, mean, kept_rows, *_joined(combined, found.rest))


def hidden_blocks(
    group: Sequence[Computation], narrow: bool = False
) -> tuple[Buffer, Group] | None:
    """int64[1], for `online_softmax`, and what computes it, each its own kernel; None where no
    mask by position hides keys."""
    found = recognized(tuple(group), narrow)
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
        if isinstance(e, Cast):
            e = e.value
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


# ------------------------------------------------------------------------------------------ blocks


class _Blocks:
    """Rewrites Computations to blocks of the keys."""

    def __init__(
        self,
        attention: AttentionParts,
        size: int,
        far: Buffer | None,
    ) -> None:
        self.attention = attention
        self.size = size
        self.far = far
        self.count = -(-attention.keys // size)
        self.ragged = self.count * size != attention.keys
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
            elif key is not None and any(n is key.var for n in postorder(load)):
                read = self.there(key, load, const(0, load.dtype))
                env[load] = substitute(read, {key.var: env[key.var]})
        result: Expr = substitute(value, env)
        return result

    def there(self, key: Dim, value: Expr, otherwise: Expr) -> Expr:
        """A value of a key, or another where there is no such key."""
        if not self.ragged:
            return value
        return Select(Lt(key.var, const(self.attention.keys)), value, otherwise)

    def parts(self, c: Computation) -> Group:
        """What is inside, of each block; the last of the scores are -inf where there is no key.

        Those of a product are so in a map of it: none of its terms then has a condition.
        """
        key = self.key(c)
        is_last = self.ragged and c is self.attention.scores[-1] and key is not None
        if not is_last or c.reducer is None:
            return (self.part(c, key if is_last else None),)
        assert key is not None
        made = self.part(c)
        (out,) = made.outputs
        sums = Buffer(f"{out.tensor.name}_sums", out.tensor.shape, out.tensor.dtype)
        there = Lt(self.block.var * self.size + key.var, const(self.attention.keys))
        value = Select(there, Load(sums, out.index), const(-math.inf, sums.dtype))
        hidden = replace(out, value=value)
        return (
            replace(made, outputs=(replace(out, tensor=sums),)),
            Computation(f"{c.name}_there", made.parallel_dims, (hidden,)),
        )

    def part(self, c: Computation, hides: Dim | None = None) -> Computation:
        """What is inside, of each block; -inf where there is no key of the dimension `hides`."""
        (out,) = c.outputs
        key = self.key(c)
        value = out.value
        if hides is not None:
            value = self.there(hides, value, const(-math.inf, value.dtype))
        value = self.moved(value, key)
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
        one = const(1.0, exped.dtype)
        return converted(exped * (one / Max(whole, one)), value.dtype)

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
        part = Output(made, index, self.moved(self._products(), key))
        mean = replace(
            c,
            name=f"{c.name}_part",
            dims=self._dims(c, key),
            outputs=(part,),
        )
        return (mean, *self._combined(rows, Load(made, index)))

    def _products(self) -> Expr:
        """Weights times values, which are 0 where there is no key: a function of no elements, such
        as 1 / 0, might be anything. Elements are 0 there themselves."""
        c = self.attention.mean
        value = c.outputs[0].value
        key = self.key(c)
        assert isinstance(value, Mul) and key is not None
        weights = self.attention.weights.outputs[0].tensor
        (what,) = (e for e in (value.lhs, value.rhs) if weights not in buffers_in(e))
        element = what.value if isinstance(what, Cast) else what
        if isinstance(element, Load):
            return value
        held: Expr = substitute(
            value, {what: self.there(key, what, const(0, what.dtype))}
        )
        return held

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
