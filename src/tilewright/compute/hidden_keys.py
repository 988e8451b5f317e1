"""Keys that a mask by position hides from queries: which they are, and when they count nothing.

    t[q, k] = seen(q, k) ? s[q, k] : low        or        s[q, k] + (seen(q, k) ? 0 : low)

The first also with one comparison of what is hidden, and its arms exchanged.

A hidden key has the weight exp(low - max). That is 0, and its value counts nothing, where
* values are finite, since 0 times another is NaN;
* low is -inf, in place of a score; or the scores are so near 0 that none is near low. A product of
  n elements is at most n * max|q| * max|k|;
* some key is seen by each query, unless low is -inf: else all keys of a query count alike.

The first two depend on data: each call tests them on all elements of the operands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.compute.build import map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.affine import affine, to_expr
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import (
    INDEX,
    Add,
    And,
    Buffer,
    Call,
    Cast,
    Const,
    Div,
    Expr,
    Le,
    Load,
    Lt,
    Mul,
    Select,
    Var,
    const,
)
from tilewright.ir.node import postorder, substitute

MOST = 1 << 24  # pairs of query and key that are looked at one by one
FAR = 1 << 40  # further than any key is from a query
SLACK = 4.0  # for what rounding adds to a bound


@dataclass(frozen=True)
class MaskedScores:
    """Scores of which a mask hides some.

    seen: the condition, over the axes of the scores, the last of which is the keys; comparisons of
    linear forms of these alone. low: what hidden keys have. scale: what the scores are times the
    product, where they must be near 0; None where they need not.
    """

    axes: tuple[Var, ...]
    extents: tuple[int, ...]
    seen: Expr
    low: float
    scale: float | None

    @cached_property
    def table(self) -> Any:
        """Whether each query sees each key, along axes that the condition depends on."""
        ends = zip(self.axes, self.extents, strict=True)
        shape = [n if _uses(self.seen, a) else 1 for a, n in ends]
        grid = np.indices(shape, sparse=True)
        env = dict(zip(self.axes, grid, strict=True))
        return np.broadcast_to(evaluate(self.seen, env), shape)

    def block(self, number: Expr, size: int, far: Expr) -> Expr:
        """Whether a query may see a key of the block of that number, `size` keys long; always
        where `far` is FAR, and not 0."""
        key = self.axes[-1]
        tests = []
        for c in _comparisons(self.seen):
            form = affine(c.lhs) - affine(c.rhs)
            last = size - 1 if form.coefficient(key) < 0 else 0
            form = replace(form, const=form.const + isinstance(c, Lt))
            moved = substitute(to_expr(form), {key: number * size + last})
            tests.append(Le(moved, far))
        return _all(tests)


def hidden_keys(
    value: Expr, axes: Sequence[Var], extents: Sequence[int], product: Computation
) -> MaskedScores | None:
    """What a mask hides in scores; None where it is not a mask by position, or nothing can be
    proven.

    value: of the scores over `axes`, the last of which is the keys. product: what makes them.

    requires: one of the forms above; `seen` a conjunction of comparisons of linear forms of axes;
    in the forms with a bound, s is the product times constants, and every query sees some key.
    """
    (out,) = product.outputs
    if isinstance(value, Cast):
        value = value.value
    match value:
        case Select(seen, scores, Const(low)):
            added = False
        case Select(Le() | Lt() as hides, Const(low), scores):
            seen, added = _negated(hides), False
        case Add(scores, Select(seen, Const(0.0), Const(low))):
            added = True
        case Add(Select(seen, Const(0.0), Const(low)), scores):
            added = True
        case _:
            return None
    low = float(low.real)
    if not low < 0 or not all(_is_linear(c, axes) for c in _comparisons(seen)):
        return None
    along = (n for a, n in zip(axes, extents, strict=True) if _uses(seen, a))
    if math.prod(along) > MOST:
        return None
    found = MaskedScores(tuple(axes), tuple(extents), seen, low, None)
    if low == -math.inf and not added:
        return found
    scale = _scale(scores, out.tensor)
    if scale is None or not bool(found.table.any(-1).all()):
        return None
    return replace(found, scale=scale)


def _comparisons(condition: Expr) -> list[Any]:
    if isinstance(condition, And):
        return [*_comparisons(condition.lhs), *_comparisons(condition.rhs)]
    return [condition]


def _negated(c: Le | Lt) -> Expr:
    return Lt(c.rhs, c.lhs) if isinstance(c, Le) else Le(c.rhs, c.lhs)


def _all(tests: Sequence[Expr]) -> Expr:
    found, *rest = tests
    for t in rest:
        found = And(found, t)
    return found


def _is_linear(c: Expr, axes: Sequence[Var]) -> bool:
    if not isinstance(c, Le | Lt) or c.lhs.dtype is not INDEX:
        return False
    return all(a in axes for a, _ in (affine(c.lhs) - affine(c.rhs)).terms)


def _uses(e: Expr, v: Var) -> bool:
    return any(n is v for n in postorder(e))


def _scale(e: Expr, product: Buffer) -> float | None:
    """How many times the product's elements a value is; None where it is anything else."""
    match e:
        case Load(b) if b is product:
            return 1.0
        case Cast(x) if x.dtype.is_float and e.dtype.is_float:
            return _scale(x, product)
        case Mul(x, Const(c)) | Mul(Const(c), x):
            return _times(_scale(x, product), float(c.real))
        case Div(x, Const(c)) if c:
            return _times(_scale(x, product), 1 / float(c.real))
    return None


def _times(scale: float | None, factor: float) -> float | None:
    return None if scale is None else scale * factor


# --------------------------------------------------------------------------------- what data decide


def asks(
    name: str, hidden: MaskedScores, product: Computation, values: Buffer
) -> tuple[Buffer, tuple[Computation, ...]] | None:
    """int64[1]: 0 where what is hidden counts nothing, FAR where it might; and what computes it.

    The Computations are to be their own kernels. None where the operands of the product are not
    two tensors, or one of elements that are not floats.
    """
    peaks = {values: _peak(name, values)}
    if hidden.scale is not None:
        operands = _factors(product)
        if not operands:
            return None
        for b in operands:
            peaks.setdefault(b, _peak(name, b))
    if not values.dtype.is_float or 0 in [b.size for b in peaks]:
        return None
    tops = {b: Load(c.outputs[0].tensor, (const(0),)) for b, c in peaks.items()}
    dtype = values.dtype
    small: Expr = Le(tops[values], const(dtype.max, dtype))
    if hidden.scale is not None:
        left, right = (tops[b] for b in operands)
        wide = product.outputs[0].tensor.dtype
        most = min(_limit(hidden, product, float(wide.max)), float(dtype.max))
        limit = const(most, dtype)
        small = And(small, Le(left * right, limit))
    far = Buffer(f"{name}_far", (1,), INDEX)
    near = map_(
        f"{name}_far",
        far,
        lambda i: Select(small, const(0), const(FAR)),
    )
    return far, (*peaks.values(), near)


def _factors(product: Computation) -> list[Buffer]:
    """The tensors of which a product multiplies elements; none of another sum."""
    match product.outputs[0].value:
        case Mul(Load(a), Load(b)) | Mul(Cast(Load(a)), Cast(Load(b))):
            return [a, b] if a.dtype.is_float and b.dtype.is_float else []
    return []


def _peak(name: str, b: Buffer) -> Computation:
    """The greatest magnitude of all elements; NaN where one is."""
    held = Buffer(f"{name}_{b.name}_peak", (1,), b.dtype)
    return reduce_(
        f"{name}_{b.name}_peak",
        held,
        b.shape,
        "max",
        lambda *i: Call("abs", (b[i[1:]],)),
    )


def _limit(hidden: MaskedScores, product: Computation, largest: float) -> float:
    """Of max|q| * max|k|, so that no sum overflows and no score is near the hidden ones'.

    exp of less than the logarithm of the least number above 0, by far, is 0.
    """
    assert hidden.scale is not None
    terms = math.prod(d.extent for d in product.combined_dims)
    room = largest
    if hidden.low > -math.inf:
        least = 2 * math.log(largest)
        room = max(0.0, -hidden.low - least) / 2
    return min(largest, room / max(abs(hidden.scale), 1e-30)) / max(terms, 1) / SLACK


def seen_share(online: Computation, rows: int) -> float:
    """The share of blocks of keys that are read, for blocks of so many queries; 1 without a mask.

    online: the mean over blocks, whose operands a condition guards that `Hidden.block` made.
    """
    first = online.outputs[0].value
    (block,) = online.combined_dims
    if not isinstance(first, Select):
        return 1.0
    tests = [t for t in _comparisons(first.condition) if isinstance(t, Le)]
    around = [d for d in online.parallel_dims if _uses(first.condition, d.var)]
    if len(around) != 1 or not tests:
        return 1.0
    (query,) = around
    grid = np.indices((query.extent, block.extent), sparse=True)
    env = dict(zip((query.var, block.var), grid, strict=True))
    found = evaluate(
        first.condition,
        env,
        lambda b, i: np.zeros((), np.int64),
    )
    seen = np.broadcast_to(found, (query.extent, block.extent))
    starts = np.arange(
        0,
        query.extent,
        max(rows, 1),
    )
    return float(np.logical_or.reduceat(seen, starts).mean())
