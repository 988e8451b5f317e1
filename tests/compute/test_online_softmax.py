"""Attention over blocks of keys: the same results; nothing that the law does not hold for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from tilewright.base.dtypes import DType, float16, float32, float64
from tilewright.compute.build import map_, reduce_
from tilewright.compute.check import check
from tilewright.compute.interp import evaluate
from tilewright.compute.nodes import Computation, Output
from tilewright.compute.online_softmax import online_softmax, weighted_mean
from tilewright.compute.reducer import reducer
from tilewright.expr.interp import evaluate as value_of
from tilewright.expr.nodes import Buffer, Call, Const, Expr, Select, const

HEADS, ROWS, KEYS, SIZE, WIDTH = 3, 4, 12, 6, 5


def exp(x: Expr) -> Expr:
    return Call("exp", (x,))


class Attention:
    """softmax(mask(q k^T)) v, part by part, so that a test can change one."""

    def __init__(
        self,
        dtype: DType = float32,
        keys: int = KEYS,
        rows: int = ROWS,
        size: int = SIZE,
    ):
        def buffer(name: str, *shape: int) -> Buffer:
            return Buffer(name, shape, dtype)

        self.q, self.k = buffer("q", HEADS, rows, size), buffer("k", HEADS, keys, size)
        self.v, self.m = buffer("v", HEADS, keys, WIDTH), buffer("m", rows, keys)
        self.s, self.t = (buffer(n, HEADS, rows, keys) for n in "st")
        self.e, self.p = (buffer(n, HEADS, rows, keys) for n in "ep")
        self.top, self.sum = (buffer(n, HEADS, rows, 1) for n in ("top", "sum"))
        self.y = buffer("y", HEADS, rows, WIDTH)
        self.keys, self.dtype = keys, dtype
        one = const(1.0, dtype)
        self.parts = {
            "scores": reduce_(
                "scores", self.s, (size,), "add",
                lambda h, i, j, d: self.q[h, i, d] * self.k[h, j, d],
            ),
            "mask": map_("mask", self.t, lambda h, i, j: self.s[h, i, j] + self.m[i, j]),
            "peak": reduce_(
                "peak", self.top, (keys,), "max_number",
                lambda h, i, u, j: self.t[h, i, j],
            ),
            "exp": map_(
                "exp", self.e, lambda h, i, j: exp(self.t[h, i, j] - self.top[h, i, 0])
            ),
            "sum": reduce_(
                "sum", self.sum, (keys,), "add", lambda h, i, u, j: self.e[h, i, j]
            ),
            "weights": map_(
                "weights", self.p,
                lambda h, i, j: self.e[h, i, j] * (one / self.sum[h, i, 0]),
            ),
            "mean": reduce_(
                "mean", self.y, (keys,), "add",
                lambda h, i, d, j: self.p[h, i, j] * self.v[h, j, d],
            ),
        }  # fmt: skip

    @property
    def group(self) -> tuple[Computation, ...]:
        return tuple(self.parts.values())

    def arrays(self, seed: int = 0) -> dict[Buffer, Any]:
        rng = np.random.default_rng(seed)
        return {
            b: rng.standard_normal(b.shape).astype(b.dtype.numpy)
            for b in (self.q, self.k, self.v, self.m)
        }


def run(group: Sequence[Computation], arrays: dict[Buffer, Any]) -> dict[Buffer, Any]:
    values = dict(arrays)
    with np.errstate(all="ignore"):
        for c in group:
            values |= evaluate(c, values)
    return values


def same(
    a: Attention,
    size: int,
    arrays: dict[Buffer, Any] | None = None,
    group: Sequence[Computation] | None = None,
) -> Any:
    """Blocks have the same result as the whole, which is returned."""
    arrays = a.arrays() if arrays is None else arrays
    group = a.group if group is None else group
    made = online_softmax(group, size)
    assert made is not None
    for c in made:
        check(c)
    want, got = run(group, arrays)[a.y], run(made, arrays)[a.y]
    eps = float(np.finfo(a.dtype.numpy).eps)
    np.testing.assert_allclose(got, want, rtol=64 * eps, atol=64 * eps)
    return got


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
def test_blocks_that_divide_the_keys(size: int) -> None:
    same(Attention(), size)


@pytest.mark.parametrize("size", [5, 7, 8, 11])
def test_the_last_block_may_have_fewer_keys(size: int) -> None:
    same(Attention(), size)


def test_float64() -> None:
    same(Attention(float64), 4)


def test_one_row() -> None:
    same(Attention(rows=1), 4)


def test_without_a_map_behind_the_product() -> None:
    a = Attention()
    group = [c for c in a.group if c.name != "mask"]
    swap = {"peak": a.s, "exp": a.s}
    group = [reading(c, a.t, a.s) if c.name in swap else c for c in group]
    for size in (4, 1, 5):
        same(a, size, group=group)


def reading(c: Computation, old: Buffer, new: Buffer) -> Computation:
    from tilewright.compute.transforms import rewrite_loads

    return rewrite_loads(c, {old: lambda load: new[load.index]})


HIDDEN = {
    "the first keys": lambda m: m[:, :7].fill(-np.inf),
    "the last keys": lambda m: m[:, 4:].fill(-np.inf),
    "some rows whole": lambda m: m[1:3].fill(-np.inf),
    "all but one key": lambda m: (m.fill(-np.inf), m[:, 5].fill(0)),
    "all of it": lambda m: m.fill(-np.inf),
    "the lowest number": lambda m: m[1:3].fill(np.finfo(np.float32).min),
    "a NaN": lambda m: m[2, 9:10].fill(np.nan),
    "an infinity": lambda m: m[2, 9:10].fill(np.inf),
    "large scores": lambda m: m.__imul__(1e37),
    "the largest scores": lambda m: m[:, ::2].fill(3e38),
}


@pytest.mark.parametrize("size", [1, 4, 5, 6])
@pytest.mark.parametrize("what", HIDDEN)
def test_masks(what: str, size: int) -> None:
    a = Attention()
    arrays = a.arrays()
    HIDDEN[what](arrays[a.m])
    found = same(a, size, arrays)
    rows = {"some rows whole": [1, 2], "all of it": [0, 1, 2, 3]}.get(what)
    if rows:
        assert np.isnan(found[:, rows]).all()


def test_rows_in_another_order() -> None:
    a = Attention()
    turned = reduce_(
        "mean",
        a.y,
        (KEYS,),
        "add",
        lambda h, i, d, j: a.p[h, const(ROWS - 1) - i, j] * a.v[h, j, d],
    )
    same(a, 4, group=[*a.group[:-1], turned])


def test_a_block_of_nothing_has_a_finite_maximum() -> None:
    """So the operator combines two such blocks into one, in any order."""
    a = Attention()
    arrays = a.arrays()
    arrays[a.m].fill(-np.inf)
    made = online_softmax(a.group, 4)
    assert made is not None
    (rows,) = [c for c in made if c.name == "mean_rows"]
    found = run(made, arrays)
    assert (found[rows.outputs[0].tensor] == np.finfo(np.float32).min).all()
    assert (found[rows.outputs[1].tensor] == 0).all()


def test_values_that_are_hidden_count_as_they_did() -> None:
    """0 * inf is NaN, and so it stays."""
    a = Attention()
    arrays = a.arrays()
    arrays[a.m][:, 8:] = -np.inf
    arrays[a.v][:, 10] = np.inf
    assert np.isnan(same(a, 4, arrays)).all()


def test_large_values_do_not_overflow() -> None:
    a = Attention()
    arrays = a.arrays()
    arrays[a.v] = np.full_like(arrays[a.v], 3e38)
    arrays[a.m][:] = 0
    arrays[a.q][:] = 0
    made = online_softmax(a.group, 4)
    assert made is not None
    np.testing.assert_allclose(run(made, arrays)[a.y], 3e38, rtol=1e-5)


@pytest.mark.parametrize("masked", [False, True])
def test_guarded_probabilities(masked: bool) -> None:
    a = Attention()
    share = lambda *i: a.e[i] * (const(1.0, a.dtype) / a.sum[(*i[:-1], 0)])  # noqa: E731
    guarded = map_(
        "weights",
        a.p,
        lambda h, i, j: Select(
            Call("isnan", (share(h, i, j),)), const(0.0, a.dtype), share(h, i, j)
        ),
    )
    group = [guarded if c.name == "weights" else c for c in a.group]
    arrays = a.arrays()
    if masked:
        arrays[a.m][1:3] = -np.inf
        arrays[a.m][0, 9] = np.nan
    found = same(a, 4, arrays, group)
    assert not np.isnan(found).any()


def test_a_map_behind_is_kept_and_goes_into_the_result() -> None:
    a = Attention()
    z = Buffer("z", (ROWS, HEADS, WIDTH), a.dtype)
    turned = map_("turned", z, lambda i, h, d: a.y[h, i, d] + const(1.0, a.dtype))
    group = (*a.group, turned)
    made = online_softmax(group, 4)
    assert made is not None and made[-1].outputs[0].tensor is z
    assert a.y not in {b for c in made for b in c.inputs}
    arrays = a.arrays()
    np.testing.assert_allclose(
        run(made, arrays)[z], run(group, arrays)[z], rtol=1e-5, atol=1e-6
    )


# ---------------------------------------------------------------------------------- counterexamples


def changed(name: str, value: Callable[[Attention], Computation]) -> Any:
    a = Attention()
    return [value(a) if c.name == name else c for c in a.group]


def reduced(c: Computation, op: str) -> Computation:
    return replace(c, reducer=reducer(op, c.reducer.dtypes[0]))  # type: ignore[union-attr]


WRONG = {
    "the least score": ("peak", lambda a: reduced(a.parts["peak"], "min")),
    "the product of the exponentials": ("sum", lambda a: reduced(a.parts["sum"], "mul")),
    "scores that are not shifted": (
        "exp", lambda a: map_("exp", a.e, lambda h, i, j: exp(a.t[h, i, j])),
    ),
    "shifted by another row": (
        "exp", lambda a: map_(
            "exp", a.e, lambda h, i, j: exp(a.t[h, i, j] - a.top[h, 0, 0])),
    ),
    "the sum of another row": (
        "weights", lambda a: map_(
            "weights", a.p,
            lambda h, i, j: a.e[h, i, j] * (const(1.0, a.dtype) / a.sum[h, 0, 0])),
    ),
    "squares of the exponentials": (
        "sum", lambda a: reduce_(
            "sum", a.sum, (KEYS,), "add",
            lambda h, i, u, j: a.e[h, i, j] * a.e[h, i, j]),
    ),
    "a function of the probabilities": (
        "weights", lambda a: map_(
            "weights", a.p,
            lambda h, i, j: Call(
                "sqrt", (a.e[h, i, j] * (const(1.0, a.dtype) / a.sum[h, i, 0]),))),
    ),
    "less the score of the first key": (
        "mask", lambda a: map_(
            "mask", a.t, lambda h, i, j: a.s[h, i, j] - a.s[h, i, 0]),
    ),
    "scores in another order": (
        "mask", lambda a: map_(
            "mask", a.t, lambda h, i, j: a.s[h, i, const(KEYS - 1) - j]),
    ),
    "scores of another row for each key": (
        "mask", lambda a: map_("mask", a.t, lambda h, i, j: a.s[h, j % ROWS, j]),
    ),
    "scores multiplied by a matrix": (
        "mask", lambda a: reduce_(
            "mask", a.t, (KEYS,), "add",
            lambda h, i, j, k: a.s[h, i, k] * a.k[h, j, k % SIZE]),
    ),
    "the greatest score as a value": (
        "mean", lambda a: reduce_(
            "mean", a.y, (KEYS,), "add",
            lambda h, i, d, j: a.p[h, i, j] * (a.v[h, j, d] + a.top[h, i, 0])),
    ),
    "exponentials as values": (
        "mean", lambda a: reduce_(
            "mean", a.y, (KEYS,), "add",
            lambda h, i, d, j: a.p[h, i, j] * (a.v[h, j, d] * a.e[h, i, j])),
    ),
    "the probability of another key": (
        "mean", lambda a: reduce_(
            "mean", a.y, (KEYS,), "add",
            lambda h, i, d, j: a.p[h, i, const(KEYS - 1) - j] * a.v[h, j, d]),
    ),
    "a part of the keys": (
        "mean", lambda a: reduce_(
            "mean", a.y, (KEYS - 1,), "add",
            lambda h, i, d, j: a.p[h, i, j] * a.v[h, j, d]),
    ),
    "probabilities squared": (
        "mean", lambda a: reduce_(
            "mean", a.y, (KEYS,), "add",
            lambda h, i, d, j: a.p[h, i, j] * (a.p[h, i, j] * a.v[h, j, d])),
    ),
    "a sum of heads": (
        "mean", lambda a: reduce_(
            "mean", a.y, (KEYS, 2), "add",
            lambda h, i, d, j, g: a.p[g, i, j] * a.v[h, j, d]),
    ),
    "another row for each key": (
        "mean", lambda a: reduce_(
            "mean", a.y, (KEYS,), "add",
            lambda h, i, d, j: a.p[h, j % ROWS, j] * a.v[h, j, d]),
    ),
    "values that it writes itself": (
        "mean", lambda a: reduce_(
            "mean", a.y, (KEYS,), "add",
            lambda h, i, d, j: a.p[h, i, j] * a.y[h, i, d]),
    ),
    "a result that is rounded": (
        "mean", lambda a: replace(a.parts["mean"], outputs=(
            replace(a.parts["mean"].outputs[0], tensor=Buffer("r", a.y.shape, float16)),
        )),
    ),
    "values that are added to": (
        "mean", lambda a: reduce_(
            "mean", a.y, (KEYS,), "add",
            lambda h, i, d, j: a.p[h, i, j] + a.v[h, j, d]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_softmax_stays(what: str) -> None:
    name, value = WRONG[what]
    assert online_softmax(changed(name, value), 4) is None


@pytest.mark.parametrize("tensor", ["s", "t", "e", "p", "top", "sum"])
def test_what_others_read_stays(tensor: str) -> None:
    a = Attention()
    kept = getattr(a, tensor)
    assert online_softmax(a.group, 4, {kept}) is None
    z = Buffer("z", kept.shape, kept.dtype)
    group = (*a.group, map_("more", z, lambda h, i, j: kept[h, i, j]))
    assert online_softmax(group, 4) is None


def test_scores_that_are_no_product_stay() -> None:
    a = Attention()
    scores = map_("scores", a.s, lambda h, i, j: a.m[i, j])
    assert online_softmax([scores, *a.group[1:]], 4) is None
    assert online_softmax(a.group[1:], 4) is None


def test_half_precision_stays() -> None:
    assert online_softmax(Attention(float16).group, 4) is None


def test_no_keys_are_no_blocks() -> None:
    assert online_softmax(Attention(keys=0).group, 1) is None


@pytest.mark.parametrize("size", [4, 5])
@pytest.mark.parametrize("what", ["k", "v"])
def test_an_infinity_counts_as_it_did(what: str, size: int) -> None:
    """No block counts a key of another one, hidden: it would have 0 * inf."""
    a = Attention()
    for key in range(KEYS):
        arrays = a.arrays()
        arrays[getattr(a, what)][:, key, 2] = np.inf
        same(a, size, arrays)


def test_a_function_of_values_is_none_of_a_key_that_is_not_there() -> None:
    """1 / 0 is infinite, and 0 * inf is NaN."""
    a = Attention()
    one = const(1.0, a.dtype)
    mean = reduce_(
        "mean",
        a.y,
        (KEYS,),
        "add",
        lambda h, i, d, j: a.p[h, i, j] * (one / a.v[h, j, d]),
    )
    assert not np.isnan(same(a, 5, group=[*a.group[:-1], mean])).any()


@pytest.mark.parametrize("size", [0, KEYS, KEYS + 1])
def test_one_block_is_no_blocks(size: int) -> None:
    assert online_softmax(Attention().group, size) is None


@pytest.mark.parametrize("count", range(7))
def test_what_is_not_complete_stays(count: int) -> None:
    assert online_softmax(Attention().group[:count], 4) is None


def test_keys_that_are_not_the_last_axis_stay() -> None:
    a = Attention()
    mask = a.parts["mask"]
    (out,) = mask.outputs
    h, i, j = out.index
    turned = Output(a.t, (h, j, i), out.value)
    assert (
        online_softmax([a.group[0], replace(mask, outputs=(turned,)), *a.group[2:]], 4)
        is None
    )


# ------------------------------------------------------------------------------------- the operator


def combine(x: Sequence[float], y: Sequence[float]) -> tuple[float, ...]:
    op = weighted_mean(float64)
    sides = (tuple(const(float(n), float64) for n in side) for side in (x, y))
    with np.errstate(all="ignore"):
        return tuple(float(value_of(e, {})) for e in op.combine(*sides))


TRIPLES = [
    (0.3, 1.5, -2.0),
    (-7.0, 4.0, 5.0),
    (2.0, 1.0, 0.0),
    (-1e308, 3.0, 1.0),
    (700.0, 1.25, 8.0),
]


@pytest.mark.parametrize("three", list(permutations(TRIPLES, 3)))
def test_the_operator_is_associative_and_commutative(three: Any) -> None:
    x, y, z = three
    one, other = combine(combine(x, y), z), combine(x, combine(y, z))
    np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(combine(x, y), combine(y, x), rtol=1e-15)


@pytest.mark.parametrize("triple", TRIPLES)
def test_its_identity_is_neutral(triple: Any) -> None:
    empty = [
        float(e.value) for e in weighted_mean(float64).identity if isinstance(e, Const)
    ]
    assert combine(empty, triple) == combine(triple, empty) == triple
    assert combine(empty, empty) == tuple(empty)


def test_it_is_one_object_per_dtype() -> None:
    assert weighted_mean(float32) is weighted_mean(float32)
    assert weighted_mean(float32).dtypes == (float32,) * 3
