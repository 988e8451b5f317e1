"""Softmax(t) @ v in a group of Computations: its parts, found by what they compute."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType, bfloat16, float16
from tilewright.compute.contraction import is_contraction
from tilewright.compute.hidden_keys import MaskedScores, hidden_keys
from tilewright.compute.nodes import CC, PW, Computation
from tilewright.compute.reducer import is_sum, reducer
from tilewright.compute.transforms import identity_dims
from tilewright.expr.nodes import (
    INDEX,
    Buffer,
    Call,
    Cast,
    Expr,
    Load,
    Mul,
    Select,
    Sub,
    Var,
    const,
)
from tilewright.ir.node import postorder, substitute

NARROW: Final = (float16, bfloat16)
Group = tuple[Computation, ...]
Axes = Sequence[Expr]


@dataclass(frozen=True, slots=True)
class AttentionParts:
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
    hidden: MaskedScores | None

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


def may_be_attention(group: Sequence[Computation]) -> bool:
    """Whether there are a product and, after it, a maximum that enough others follow."""
    return bool(_peak_at(group)) and is_contraction(group[0])


def _peak_at(group: Sequence[Computation]) -> int:
    """The place of the first maximum, where four follow it, else 0."""
    at = next((n for n, c in enumerate(group) if _is_peak(c)), 0)
    return at if len(group) >= at + 5 else 0


def recognized(group: Group, narrow: bool = False) -> AttentionParts | None:
    """The parts of an attention, as `online_softmax` requires them; None of anything else.

    narrow: scores and weights may be rounded to 16 bits."""
    if not may_be_attention(group):
        return None
    at = _peak_at(group)
    scores = group[:at]
    peak, exp, total, weights, mean = group[at : at + 5]
    tensor = scores[-1].outputs[0].tensor
    keys = tensor.shape[-1]
    wide = peak.outputs[0].tensor.dtype
    axes = tuple(Var(f"a{n}", INDEX) for n in range(len(tensor.shape)))
    dtypes = {wide, *NARROW} if narrow else {wide}
    if not all(_has_keys(c, keys, dtypes) for c in scores):
        return None
    made = {c.outputs[0].tensor for c in scores}
    if not all(_key_by_key(c, made) for c in scores):
        return None
    row = (*axes[:-1], const(0))
    score = converted(Load(tensor, axes), wide)
    exponential = Load(exp.outputs[0].tensor, axes)
    top = Load(peak.outputs[0].tensor, row)
    whole = Load(total.outputs[0].tensor, row)
    one = const(1.0, wide)
    zero = const(0.0, wide)
    shares = (exponential * (one / whole), exponential / whole)
    guards = tuple(Select(Call("isnan", (s,)), zero, s) for s in shares)
    value = _value(weights, axes)
    if value is not None and value.dtype is not wide:
        value = value.value if isinstance(value, Cast) else None
    hidden = _hidden(scores, axes)
    if hidden is not None and isinstance(value, Select):
        value = _unmasked(value, hidden)
    fits = (
        _value(peak, axes) is score
        and _value(exp, axes) is Call("exp", (Sub(score, top),))
        and exp.outputs[0].tensor.dtype is wide
        and weights.outputs[0].tensor.dtype in dtypes
        and total.reducer is not None
        and is_sum(total.reducer)
        and _value(total, axes) is exponential
        and value in (*shares, *guards)
        and _is_mean(mean, weights.outputs[0].tensor, wide)
    )
    if not fits:
        return None
    return AttentionParts(
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


def _hidden(scores: Group, axes: tuple[Var, ...]) -> MaskedScores | None:
    value = _value(scores[-1], axes)
    if value is None or len(scores) != 2:
        return None
    return hidden_keys(value, axes, scores[-1].outputs[0].tensor.shape, scores[0])


def _unmasked(share: Select, hidden: MaskedScores) -> Expr:
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


def converted(e: Expr, dtype: DType) -> Expr:
    """A value in a dtype."""
    return e if e.dtype is dtype else Cast(e, dtype)


def _has_keys(
    c: Computation,
    keys: int,
    dtypes: Collection[DType],
) -> bool:
    """Whether its result is its own tensor whose last axis is the keys, of one of these dtypes,
    and what it combines is in full precision."""
    axes = identity_dims(c)
    if not axes or axes[-1] is None:
        return False
    if any(not t.is_float or t.bits < 32 for t in set(dtypes) - set(NARROW)):
        return False
    tensor = c.outputs[0].tensor
    if c.reducer is not None and tensor.dtype in NARROW:
        return False
    return (
        tensor.shape[-1] == keys
        and tensor.dtype in dtypes
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
    wide: DType,
) -> bool:
    """A product of the weights, once, with something else, summed over the keys alone."""
    reduced = [d for d in c.dims if d.combine != CC]
    if not is_contraction(c) or len(reduced) != 1 or weights not in c.inputs:
        return False
    value = c.outputs[0].value
    reads = [a for a in c.accesses if a.buffer is weights]
    if not isinstance(value, Mul) or len(reads) != 1:
        return False
    weight = converted(reads[0], wide)
    other = value.rhs if value.lhs is weight else value.lhs
    if weight not in (value.lhs, value.rhs) or weights in buffers_in(other):
        return False
    *rows, key = reads[0].index
    if key is not reduced[0].var or reduced[0].extent != weights.shape[-1]:
        return False
    if any(n is key for i in rows for n in postorder(i)):
        return False
    made = c.outputs[0].tensor
    return made.dtype is wide and made not in c.inputs


def buffers_in(e: Expr) -> set[Buffer]:
    """The buffers that a value reads."""
    return {n.buffer for n in postorder(e) if isinstance(n, Load)}
