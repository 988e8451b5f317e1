"""Attention skips blocks of keys that a mask by position hides, and its results are unchanged."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import ModelProto, numpy_helper

import tilewright as tw
from tilewright.base import events
from tilewright.base.dtypes import bool_
from tilewright.driver.compile import text
from tilewright.expr import interp
from tilewright.expr.nodes import INDEX, Buffer, Load, Var
from tilewright.frontends.onnx.load import load
from tilewright.graph.interp import evaluate
from tilewright.plan.passes.band_tables import as_band

Array = np.ndarray[Any, Any]
KEYS, BLOCK = 256, 64
LOWEST = float(np.finfo(np.float32).min)
PLACES = np.arange(KEYS)
CAUSAL = PLACES[None] <= PLACES[:, None]
WINDOW = CAUSAL & (PLACES[None] > PLACES[:, None] - 40)
FORMS = {
    "where -inf": (CAUSAL, -np.inf, "t = Where(m, s, low)"),
    "where lowest": (CAUSAL, LOWEST, "t = Where(m, s, low)"),
    "where -10000": (CAUSAL, -10000.0, "t = Where(m, s, low)"),
    "added -inf": (CAUSAL, -np.inf, "z = Where(m, zero, low) t = Add(s, z)"),
    "added lowest": (CAUSAL, LOWEST, "z = Where(m, zero, low) t = Add(z, s)"),
    "hides": (~CAUSAL, LOWEST, "t = Where(m, low, s)"),
    "window": (WINDOW, -np.inf, "t = Where(m, s, low)"),
}


def model(seen: Array, low: float, step: str, share: str = "") -> ModelProto:
    """Of one head; `m` is a constant table, `low` a number."""
    rows, keys = seen.shape[-2:]
    made = onnx.parser.parse_model(f"""
<ir_version: 10, opset_import: ["": 21]>
g (float[1,{rows},8] q, float[1,8,{keys}] k, float[1,{keys},8] v) => (float[1,{rows},8] y)
<float zero = {{0}}, float scale = {{0.5}}> {{
  p = MatMul(q, k) s = Mul(p, scale) {step}
  w = Softmax<axis=-1>(t) {share or "u = Identity(w)"} y = MatMul(u, v) }}""")
    tables = {"m": seen, "low": np.float32(low)}
    for name, a in tables.items():
        made.graph.initializer.append(numpy_helper.from_array(np.asarray(a), name))
    return made


# Like another form; only `make test-all` tries both.
LIKE = ("where lowest", "added -inf")
SOME = [
    pytest.param(name, marks=pytest.mark.slow) if name in LIKE else name
    for name in FORMS
]


@cache
def compiled(name: str, threads: int = 1) -> Any:
    with events.record() as log:
        exe = tw.compile(model(*FORMS[name]), threads=threads, cache=False)
    assert [e.fields["keys"] for e in log if e.kind == "streamed-attention"] == [BLOCK]
    assert not [e for e in log if e.kind in ("kept-plain", "kept-serial")]
    return exe


def inputs(keys: int = KEYS) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    shapes = {"q": (1, keys, 8), "k": (1, 8, keys), "v": (1, keys, 8)}
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


def agrees(exe: Any, of: ModelProto, arrays: dict[str, Array]) -> None:
    """With the result of the operators, including NaN and infinities."""
    with np.errstate(all="ignore"):
        want = evaluate(load(of), arrays)["y"]
    np.testing.assert_allclose(exe(**arrays), want, rtol=2e-5, atol=2e-5)


def skips(of: ModelProto) -> list[str]:
    shown = text(of, "schedule", threads=1, cache=False)
    return [n.strip() for n in shown.splitlines() if n.strip().startswith("s.skip(")]


# selected, added, by position
@pytest.mark.representatives("where -inf", "added lowest", "window")
@pytest.mark.parametrize("name", SOME)
def test_hidden_blocks_are_skipped(name: str) -> None:
    agrees(compiled(name), model(*FORMS[name]), inputs())


@pytest.mark.representatives("where -inf", "added lowest", "window")
@pytest.mark.parametrize("name", SOME)
def test_the_last_block_may_have_fewer_keys(name: str) -> None:
    keys = 241  # a prime
    seen, low, step = FORMS[name]
    seen = seen[:keys, :keys]
    of = model(seen, low, step)
    with events.record() as log:
        exe = tw.compile(of, threads=1, cache=False)
    assert [e.fields["keys"] for e in log if e.kind == "streamed-attention"] == [64]
    assert not [e for e in log if e.kind in ("kept-plain", "kept-serial")]
    assert len(skips(of)) == 1
    agrees(exe, of, inputs(keys))
    arrays = inputs(keys)
    arrays["v"][0, keys - 1, 3] = np.inf
    agrees(exe, of, arrays)


@pytest.mark.parametrize(
    "name", [pytest.param("added lowest", marks=pytest.mark.slow), "window"]
)
def test_the_schedule_says_so(name: str) -> None:
    of = model(*FORMS[name])
    assert len(skips(of)) == 1
    shown = text(of, "kernel", threads=1, cache=False)
    (test,) = [n for n in shown.splitlines() if n.strip().startswith("if ")]
    assert test.count("<=") == (2 if name == "window" else 1)


def test_two_threads() -> None:
    agrees(compiled("where -inf", 2), model(*FORMS["where -inf"]), inputs())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", SOME)
def test_a_hidden_value_that_is_not_finite_counts(name: str, value: float) -> None:
    """0 times it is NaN."""
    arrays = inputs()
    arrays["v"][0, 200, 3] = value
    agrees(compiled(name), model(*FORMS[name]), arrays)


@pytest.mark.parametrize("name", [n for n in SOME if n != "where -10000"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_hidden_score_that_is_not_finite_counts(name: str, value: float) -> None:
    arrays = inputs()
    arrays["k"][0, :, 201] = value
    agrees(compiled(name), model(*FORMS[name]), arrays)


def test_scores_as_low_as_hidden_ones_leave_these_their_weight() -> None:
    """Far from 0: all visible scores are below -10000, so hidden keys have all the weight."""
    arrays = inputs()
    arrays["q"][:] = 1
    arrays["k"][:] = -2600
    name = "where -10000"
    agrees(compiled(name), model(*FORMS[name]), arrays)
    want = arrays["v"][0, 1:].mean(0)
    np.testing.assert_allclose(compiled(name)(**arrays)[0, 0], want, atol=1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("at", [(3, 250), (0, 0), (KEYS - 1, KEYS - 1), (250, 3)])
def test_a_mask_that_is_nearly_causal_is_read(at: tuple[int, int]) -> None:
    seen = CAUSAL.copy()
    seen[at] ^= True
    of = model(seen, LOWEST, "t = Where(m, s, low)")
    assert not skips(of)
    agrees(tw.compile(of, threads=1, cache=False), of, inputs())


def test_a_query_that_sees_nothing_has_the_mean_of_all() -> None:
    """Hidden scores are finite, so no block may be skipped."""
    of = model(PLACES[None] < PLACES[:, None], LOWEST, "t = Where(m, s, low)")
    assert not skips(of)
    agrees(tw.compile(of, threads=1, cache=False), of, inputs())


def test_a_query_that_sees_nothing_is_nan_with_infinity() -> None:
    of = model(PLACES[None] < PLACES[:, None], -np.inf, "t = Where(m, s, low)")
    assert len(skips(of)) == 1
    agrees(tw.compile(of, threads=1, cache=False), of, inputs())


def test_shares_that_are_masked_again() -> None:
    """As PyTorch's attention with a mask is imported."""
    of = model(CAUSAL, -np.inf, "t = Where(m, s, low)", "u = Where(m, w, zero)")
    assert len(skips(of)) == 1
    agrees(tw.compile(of, threads=1, cache=False), of, inputs())


def test_shares_that_another_mask_leaves_stay() -> None:
    of = model(CAUSAL, -np.inf, "t = Where(m, s, low)", "n = Not(m) u = Where(n, w, w)")
    agrees(tw.compile(of, threads=1, cache=False), of, inputs())


BANDS = [
    (CAUSAL, True),
    (~CAUSAL, True),
    (WINDOW, True),
    (~WINDOW, False),
    (CAUSAL[:4], True),
    (np.stack([CAUSAL, WINDOW]), False),
    (np.ones((4, 4), bool), False),
    (np.zeros((4, 4), bool), False),
    (PLACES[None] % 2 <= PLACES[:, None], False),
    (CAUSAL[:1], False),
    (CAUSAL[0], False),
    (CAUSAL[:0], False),
]


@pytest.mark.parametrize("case", range(len(BANDS)))
def test_tables_that_are_bands(case: int) -> None:
    table, is_band = BANDS[case]
    b = Buffer("m", table.shape, bool_)
    read = as_band(b, table)
    assert (read is not None) == is_band
    if read is not None:
        axes = [Var(f"i{n}", INDEX) for n in range(table.ndim)]
        grid = np.indices(table.shape, sparse=True)
        found = interp.evaluate(
            read(Load(b, tuple(axes))), dict(zip(axes, grid, strict=True))
        )
        np.testing.assert_array_equal(np.broadcast_to(found, table.shape), table)
