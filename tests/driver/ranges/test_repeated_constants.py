"""Constants that repeat along a size are stored once: which they are, and the results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tests.driver.ranges.test_ranged import HEAD
from tilewright.driver.ranges import open_model
from tilewright.driver.ranges.repeated_constants import without_repeats
from tilewright.plan.nodes import Plan

HOW: Any = {"jit": False, "threads": 1, "cache": False}
RNG = np.random.default_rng(5)
DIMS = {"b": (2, 5), "n": (2, 40)}
X = "float[b, n, 4] x"
SIZES = (
    "s = Shape<end = 2>(x) o = Constant<value_ints = [1]>() z = Constant<value_ints = [0]>()"
    " p = Constant<value_ints = [2]>() d = Squeeze(o) a = Squeeze(z)"
    " bs = Slice(s, z, o) ns = Slice(s, o, p) bc = Squeeze(bs) nc = Squeeze(ns) "
)
FIRST = "i = Expand(z, s) e = Gather(t, i)"
# A row for each place, of all sequences; and one for each sequence, at all places.
PLACES = "r = Range(a, nc, d) i = Expand(r, s) e = Gather(t, i)"
SEQUENCES = "r = Range(a, bc, d) q = Unsqueeze(r, o) i = Expand(q, s) e = Gather(t, i)"
MODELS: dict[str, tuple[str, str, tuple[int, ...]]] = {
    "a row": (X, FIRST + " y = Add(x, e)", (1, 1, 4)),
    "a row for each place": (X, PLACES + " y = Add(x, e)", (1, 40, 4)),
    "a row for each sequence": (X, SEQUENCES + " y = Add(x, e)", (5, 1, 4)),
    "a loop program": (
        f"{X}, int64[b, n, 4] k, float[b, n, 4] u",
        FIRST + " y = ScatterElements<axis = 2>(e, k, u)",
        (5, 40, 4),
    ),
}


def model(inputs: str, body: str) -> onnx.ModelProto:
    made = onnx.parser.parse_model(
        f"{HEAD}({inputs}) => (float[b, n, 4] y) {{ {SIZES} {body} }}"
    )
    table = RNG.standard_normal((64, 4)).astype(np.float32)
    made.graph.initializer.append(onnx.numpy_helper.from_array(table, "t"))
    return made


def given(source: onnx.ModelProto, b: int, n: int) -> list[Any]:
    """Random numbers, and places below 4."""
    found = [RNG.standard_normal((b, n, 4)).astype(np.float32)]
    if len(source.graph.input) > 1:
        found.append(RNG.permuted(np.tile(np.arange(4), (b, n, 1)), axis=2))
        found.append(RNG.standard_normal((b, n, 4)).astype(np.float32))
    return found


def plans(source: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Plan]:
    """The executable of the range, and the plan whose constants are to be cut."""
    seen: list[Plan] = []

    def noted(plan: Plan) -> Plan:
        seen.append(plan)
        return without_repeats(plan)

    monkeypatch.setattr(open_model, "without_repeats", noted)
    exe = tw.compile(source, dims=DIMS, **HOW)
    (plan,) = seen
    return exe, plan


@pytest.mark.parametrize("name", MODELS)
def test_axes_along_which_a_constant_repeats_have_one_element(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, body, shape = MODELS[name]
    source = model(inputs, body)
    exe, plan = plans(source, monkeypatch)
    assert [b.shape for b in plan.data if len(b.shape) == 3] == [(5, 40, 4)]
    cut = without_repeats(plan)
    assert [b.shape for b in cut.data if len(b.shape) == 3] == [shape]
    assert all(b.shape == a.shape for b, a in cut.data.items())
    assert all(v.shape == a.shape for v, a in cut.graph.constants.items())
    for b, n in ((2, 2), (2, 40), (5, 2), (5, 40), (3, 17)):
        alone: Any = tw.compile(source, dims={"b": b, "n": n}, **HOW)
        x = given(source, b, n)
        np.testing.assert_array_equal(exe(*x), alone(*x))


def whole(plan: Plan) -> bool:
    """Whether no constant is cut."""
    return without_repeats(plan) is plan


def test_parts_that_are_not_equal_bit_for_bit_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, plan = plans(model(*MODELS["a row"][:2]), monkeypatch)
    (b,) = (b for b in plan.data if len(b.shape) == 3)
    array = np.zeros(b.shape, np.float32)
    assert not whole(replace(plan, data=plan.data | {b: array}))
    last = array.copy()
    last[-1, -1] = -0.0
    assert whole(replace(plan, data=plan.data | {b: last}))


def test_a_result_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    _, plan = plans(model(*MODELS["a row"][:2]), monkeypatch)
    (v,) = (v for v, b in plan.buffers.items() if b in plan.data and len(b.shape) == 3)
    graph = replace(plan.graph, outputs=(*plan.graph.outputs, v))
    assert whole(replace(plan, graph=graph))


def test_a_weight_of_equal_rows_keeps_its_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    zeros = "w = Constant<value = float[4, 4] {" + ", ".join("0" * 16) + "}>()"
    _, plan = plans(model(X, zeros + " m = MatMul(x, w) y = Add(x, m)"), monkeypatch)
    assert (4, 4) in [b.shape for b in plan.data]
    assert whole(plan)
