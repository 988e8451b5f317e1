"""Attention with more keys than a cache keeps scores of: one kernel over blocks of keys."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.graph.test_attention import (
    FOUND,
    KEYS,
    ROWS,
    agree,
    bytes_of,
    inputs_of,
    kernels_of,
)
from tests.networks.elsewhere import Validation
from tilewright.base import events
from tilewright.driver.compile import text
from tilewright.frontends.onnx.load import load
from tilewright.graph.interp import evaluate
from tilewright.targets.cpu.sketches import rules
from tilewright.testing.machines import MACHINES

LONG, BLOCK = 152, 76
MANY = 40  # queries, more than read each key along its row
FORMS = {name: body.replace(f",{KEYS}", f",{LONG}") for name, body in FOUND.items()}
STREAMED = [name for name in FOUND if name != "any step of one element"]


@pytest.fixture(autouse=True)
def no_cache_keeps_the_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few keys are enough: attention as a whole is not profitable."""
    monkeypatch.setattr(rules, "block_rows", lambda pattern, costs: 0)


def streams(body: str, change: Any = None) -> list[int]:
    """Keys per block, of what compiles to one kernel that is right and had its own schedule."""
    with events.record() as log:
        agree(body, change)
    assert not [e for e in log if e.kind in ("kept-plain", "kept-serial")]
    return [e.fields["keys"] for e in log if e.kind == "streamed-attention"]


@pytest.mark.representatives("scaled q-40", "chosen mask-10", "one head of keys-10")
@pytest.mark.parametrize("rows", [ROWS, MANY])
@pytest.mark.parametrize("name", STREAMED)
def test_it_is_one_kernel_over_blocks_of_keys(name: str, rows: int) -> None:
    body = re.sub(rf"(?<=[,\[]){ROWS},", f"{rows},", FORMS[name])
    assert streams(body) == [BLOCK]
    assert len(kernels_of(body)) == 1


def test_a_step_behind_the_softmax_keeps_it_whole() -> None:
    name = "any step of one element"
    assert streams(FORMS[name]) == []
    assert len(kernels_of(FORMS[name])) > 1


@pytest.mark.sampled(2)  # one query, and a vector of them
@pytest.mark.parametrize("rows", [1, 2, 16])
def test_few_queries_read_keys_along_their_rows(rows: int) -> None:
    assert streams(FORMS["plain"].replace(f",{ROWS},", f",{rows},")) == [BLOCK]


@pytest.mark.parametrize(
    "rows,keys,block",
    [
        (1, 1, 0),
        (5, 1, 0),
        (5, 64, 0),
        (5, 130, 65),
        (2, 128, 64),
        pytest.param(197, 132, 66, marks=pytest.mark.slow),
    ],
)
def test_shapes(rows: int, keys: int, block: int) -> None:
    body = (
        FOUND["added mask"]
        .replace(f",{KEYS}", f",{keys}")
        .replace(f",{ROWS},", f",{rows},")
    )
    assert streams(body) == ([block] if block else [])


@pytest.mark.sampled(3)  # a prime, and three times one, few queries and many
@pytest.mark.parametrize("rows", [1, ROWS, MANY])
@pytest.mark.parametrize("keys", [131, 2 * 67, 3 * 43, 257])
def test_the_last_block_may_have_fewer_keys(rows: int, keys: int) -> None:
    body = FOUND["plain"].replace(f",{KEYS}", f",{keys}")
    body = body.replace(f",{ROWS},", f",{rows},")
    (size,) = streams(body)
    assert size == {134: 67}.get(keys, 64) and len(kernels_of(body)) == 1


@pytest.mark.representatives("scaled q", "chosen mask", "guarded", "one head of keys")
@pytest.mark.parametrize("name", STREAMED)
def test_every_form_may_have_fewer_keys_in_the_last_block(name: str) -> None:
    assert streams(FOUND[name].replace(f",{KEYS}", ",131")) == [64]


@pytest.mark.parametrize("rows,keys", [(1, 0), (5, 0), (0, 0), (0, 128)])
def test_nothing_is_right_too(rows: int, keys: int) -> None:
    """A sum over no keys is 0."""
    body = FOUND["plain"].replace(f",{KEYS}", f",{keys}")
    exe = tw.compile(bytes_of(body.replace(f",{ROWS},", f",{rows},")), cache=False)
    given = {t.name: np.ones(t.extents, np.float32) for t in exe.inputs}
    (y,) = exe.outputs
    np.testing.assert_array_equal(exe(given), np.zeros(y.extents, np.float32))


@pytest.mark.parametrize("keys", [131, 132])
def test_an_infinite_value_gives_an_infinite_mean(keys: int) -> None:
    """Every weight is positive: no block may count a key twice, once of it hidden."""
    exe = tw.compile(
        bytes_of(FOUND["plain"].replace(f",{KEYS}", f",{keys}")), cache=False
    )
    for key in (0, 63, keys // 2 - 1, keys // 2, keys // 2 + 1, keys - 1):
        arrays = {t.name: np.ones(t.extents, np.float32) for t in exe.inputs}
        arrays["v"][..., key, 0] = np.inf
        y = exe(arrays)
        assert (y[..., 0] == np.inf).all()
        np.testing.assert_allclose(y[..., 1:], 1, rtol=1e-5)


@pytest.mark.parametrize("value", [-np.inf, np.finfo(np.float32).min])
def test_masked_rows_are_as_onnx_has_them(value: float) -> None:
    """All keys hidden by -inf: NaN; by a number: their mean. A padding to the left hides blocks."""

    def mask(arrays: dict[str, Any]) -> None:
        m = arrays["m"]
        m[..., :90] = value
        m[0] = value

    assert streams(FORMS["added mask"], mask) == [BLOCK]


def test_guarded_rows() -> None:
    def mask(arrays: dict[str, Any]) -> None:
        arrays["m"][4, :] = -np.inf
        arrays["m"][5, 1:] = -np.inf
        arrays["m"][6, 3] = np.nan

    assert streams(FORMS["guarded"], mask) == [BLOCK]


def test_large_scores_do_not_overflow() -> None:
    def scale(arrays: dict[str, Any]) -> None:
        arrays["q"] *= 1e18
        arrays["k"] *= 1e18

    assert streams(FORMS["plain"], scale) == [BLOCK]


def test_a_causal_mask() -> None:
    size = 130
    body = (
        f"(float[2,{size},8] q, float[2,8,{size}] k, float[2,{size},8] v, "
        f"bool[{size},{size}] m) => (float[2,{size},8] y) {{ s = MatMul(q, k) "
        "low = Constant<value_float=-3.4028234663852886e38>() t = Where(m, s, low) "
        "p = Softmax<axis=-1>(t) y = MatMul(p, v) }"
    )

    def causal(arrays: dict[str, Any]) -> None:
        arrays["m"] = np.tril(np.ones((size, size), bool))

    assert streams(body, causal) == [65]


@pytest.mark.parametrize("group", [1, 3])
def test_grouped_heads_and_values_of_another_size(group: int) -> None:
    body = (
        f"(float[2,2,{group},9,8] q, float[2,2,1,8,150] k, float[2,2,1,150,12] v) => "
        f"(float[2,2,{group},9,12] y) {{ s = MatMul(q, k) p = Softmax<axis=-1>(s) "
        "y = MatMul(p, v) }"
    )
    assert streams(body) == [75]


def test_float64() -> None:
    model = bytes_of(FORMS["plain"].replace("float[", "double["))
    arrays = {k: a.astype(np.float64) for k, a in inputs_of(load(model)).items()}
    with events.record() as log:
        exe = tw.compile(model, threads=1, cache=False, fallback="error")
    assert [e for e in log if e.kind == "streamed-attention"]
    want = evaluate(load(model), arrays)["y"]
    np.testing.assert_allclose(exe(**arrays), want, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("keys,blocks", [(LONG, [BLOCK]), (131, [64])])
def test_float16(keys: int, blocks: list[int]) -> None:
    """Scores and weights are rounded to it, as they are without blocks; the means are not."""
    body = FOUND["plain"].replace(f",{KEYS}", f",{keys}").replace("float[", "float16[")
    model = bytes_of(body)
    arrays = {k: a.astype(np.float16) for k, a in inputs_of(load(model)).items()}
    with events.record() as log:
        exe = tw.compile(model, threads=1, cache=False, fallback="error")
    found = [e.fields["keys"] for e in log if e.kind == "streamed-attention"]
    assert found == blocks
    wide = {k: a.astype(np.float64) for k, a in arrays.items()}
    of = bytes_of(body.replace("float16[", "double["))
    want = evaluate(load(of), wide)["y"]
    np.testing.assert_allclose(exe(**arrays), want, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize(
    "keys,block,dots", [(LONG, BLOCK, 2), (131, 64, None)], ids=["whole", "ragged"]
)
def test_bfloat16_streams_as_float32_does(
    keys: int, block: int, dots: int | None
) -> None:
    """In blocks that divide the keys, both of whose products are dot products, and in others."""
    body = FOUND["plain"].replace(f",{KEYS}", f",{keys}")
    model = bytes_of(body.replace(f",{ROWS},", f",{MANY},"))
    with events.record() as log:
        found = text(model, "kernel", precision="bfloat16", mcpu="znver4")
    assert [e.fields["keys"] for e in log if e.kind == "streamed-attention"] == [block]
    assert dots is None or found.count("vdpbf16ps(") == dots


def test_exact_mathematics_keeps_the_sums_in_their_order() -> None:
    with events.record() as log:
        tw.compile(bytes_of(FORMS["plain"]), cache=False, math="exact")
    assert not [e for e in log if e.kind == "streamed-attention"]


def test_threads() -> None:
    model = bytes_of(FOUND["plain"].replace(f",{KEYS}", ",700").replace(",10,", ",90,"))
    arrays = inputs_of(load(model))
    want = evaluate(load(model), arrays, float64=True)["y"]
    for threads in (1, 2):
        exe = tw.compile(model, threads=threads, cache=False, fallback="error")
        np.testing.assert_allclose(exe(**arrays), want, rtol=2e-5, atol=2e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("machine", MACHINES)
def test_kernels_are_right_as_another_machine_has_them(machine: str, rows: int) -> None:
    body = FOUND["added mask"].replace(f",{KEYS}", ",131")
    graph = load(bytes_of(body.replace(f",{ROWS},", f",{rows},")))
    found = Validation()
    with events.record() as log:
        found.network(graph, MACHINES[machine].target())
    assert [e for e in log if e.kind == "streamed-attention"]
    assert not found.wrong and sum(found.judged.values()) == 1
