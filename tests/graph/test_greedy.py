"""Greedy steps lower the arithmetic, keep the meaning, and are priced once for each structure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

from tilewright.frontends.onnx import load
from tilewright.graph import interp
from tilewright.graph.nodes import Graph, Value
from tilewright.graph.pipeline import graph_pipeline
from tilewright.graph.rules.rule import Rule
from tilewright.graph.rules.substitutions import SUBSTITUTIONS
from tilewright.graph.substitute.greedy import LowerArithmetic, lower_arithmetic
from tilewright.graph.substitute.pricing import Pricing, arithmetic
from tilewright.graph.substitute.steps import Substitution, folded, taken
from tilewright.graph.verify import verify
from tilewright.testing.substitutable import random_substitutable

RNG = np.random.default_rng(3)
FINITE = [r for r in SUBSTITUTIONS if r.allowed("fast")]


def work(graph: Graph) -> float:
    return sum(arithmetic(op, graph.constants) for op in graph.operations)


def parsed(text: str, **constants: Any) -> Graph:
    """A model; constants by name: arrays, or shapes of random ones."""
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> m ({text}'
    )
    for name, array in constants.items():
        if isinstance(array, tuple):
            array = RNG.standard_normal(array).astype(np.float32)
        array = np.asarray(array)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return load(model)


def lowered(
    graph: Graph, rules: Sequence[Rule] = FINITE, cost: Any = work
) -> tuple[Graph, tuple[Substitution, ...], Pricing]:
    pricing = Pricing(cost)
    found, steps = lower_arithmetic(graph, rules, pricing)
    verify(found)
    return found, steps, pricing


def check_same(before: Graph, after: Graph, inputs: dict[Value, Any]) -> None:
    wanted, got = (interp.evaluate(g, inputs) for g in (before, after))
    for (name, a), b in zip(wanted.items(), got.values(), strict=True):
        peak = max(1.0, float(np.abs(a).max(initial=0)))
        np.testing.assert_allclose(b, a, rtol=0, atol=1e-3 * peak, err_msg=name)


# Each of four layers multiplies by two matrices; from the right that is a third of the work.
LAYER = "h{0} = MatMul(x{0}, a{0}) x{1} = MatMul(h{0}, b{0}) "


def low_rank(layers: int, last: str = "", inner: int = 64) -> Graph:
    body = "".join(LAYER.format(n, n + 1) for n in range(layers))
    shapes = {f"a{n}": (48, inner) for n in range(layers)}
    shapes |= {f"b{n}": (inner, 48) for n in range(layers)}
    out = f"float[16, 48] x{layers}{last}"
    return parsed(f"float[16, 48] x0) => ({out}) {{ {body} }}", **shapes)


def test_layers_of_one_structure_are_priced_once() -> None:
    graph = low_rank(6)
    found, steps, pricing = lowered(graph)
    assert len(found.operations) == 1  # all matrices are one
    assert work(found) < work(graph) / 10
    alike = [
        s for s in steps if s.before - s.after == steps[-1].before - steps[-1].after
    ]
    assert len(alike) > 1 and pricing.asked < 2 * len(steps)


def test_every_step_lowers_the_arithmetic_and_replays() -> None:
    graph = low_rank(3)
    found, steps, _ = lowered(graph)
    by_name = {r.name: r for r in FINITE}
    for step in steps:
        before = work(graph)
        assert step.before == pytest.approx(before)
        after = taken(graph, step, by_name[step.rule])
        assert after is not None
        assert work(after) == pytest.approx(step.after) and step.after < before
        graph = after
    assert str(graph) == str(found)


def test_a_result_that_others_need_is_not_saved() -> None:
    """h0 leaves the model: the product from the right comes on top of it."""
    assert lowered(low_rank(1, inner=30))[1]
    _, steps, pricing = lowered(low_rank(1, ", float[16, 30] h0", inner=30))
    assert not steps and not pricing.asked


def test_a_result_that_others_read_is_not_saved() -> None:
    body = LAYER.format(0, 1) + "y = Neg(h0)"
    ends = "float[16, 48] x0) => (float[16, 48] x1, float[16, 30] y)"
    graph = parsed(f"{ends} {{ {body} }}", a0=(48, 30), b0=(30, 48))
    _, steps, pricing = lowered(graph)
    assert not steps and not pricing.asked


def test_a_layer_whose_result_others_need_is_priced_for_itself() -> None:
    """Two layers of the same shapes: h0 leaves the model, so only the second one pays."""
    body = "h0 = MatMul(x, a) y = MatMul(h0, b) z = Relu(y) h1 = MatMul(z, a) v = MatMul(h1, b)"
    ends = "float[16, 48] x) => (float[16, 48] v, float[16, 30] h0)"
    found, steps, _ = lowered(parsed(f"{ends} {{ {body} }}", a=(48, 30), b=(30, 48)))
    assert len(steps) == 1 and steps[0].after == work(found)
    assert [op.op_type for op in found.operations].count("MatMul") == 3


def test_matches_of_other_shapes_are_priced_for_themselves() -> None:
    """As many multiplications go in both layers, but others come."""
    body = "h = MatMul(x, a) y = MatMul(h, b) g = MatMul(u, c) v = MatMul(g, d)"
    ends = "float[16, 48] x, float[32, 24] u) => (float[16, 32] y, float[32, 16] v)"
    shapes = {"a": (48, 64), "b": (64, 32), "c": (24, 64), "d": (64, 16)}
    found, steps, _ = lowered(parsed(f"{ends} {{ {body} }}", **shapes))
    assert len(steps) == 2 and steps[-1].after == work(found)


def test_a_step_that_saves_too_little_is_not_priced() -> None:
    """Much goes, and nearly as much comes."""
    graph = parsed(
        f"float[16, 4000] x0) => (float[16, 4000] x1) {{ {LAYER.format(0, 1)} }}",
        a0=(4000, 2001),
        b0=(2001, 4000),
    )
    _, steps, pricing = lowered(graph)
    assert not steps and not pricing.asked


def test_what_saves_too_little_is_not_looked_at() -> None:
    """A number times a small matrix beside a large product."""
    body = "s = MatMul(y, a) t = MatMul(s, b) z = MatMul(x, w)"
    shapes = {"a": (8, 8), "b": (8, 8), "w": (64, 64)}
    ends = (
        "float[1, 8] y, float[{0}, 64] x) => (float[1, 8] t, float[{0}, 64] z) {{{1}}}"
    )
    assert lowered(parsed(ends.format(1, body), **shapes))[1]
    _, steps, pricing = lowered(parsed(ends.format(64, body), **shapes))
    assert not steps and not pricing.asked


def test_a_step_whose_kernels_are_not_faster_is_not_taken() -> None:
    graph = low_rank(1)
    found, steps, _ = lowered(graph, cost=lambda g: 1.0)
    assert not steps and found is graph


def test_rules_without_their_operators_are_not_tried() -> None:
    """The graph has no Add: a rule that needs one is not asked."""

    class Loud(Rule):
        def matches(self, graph: Graph, op: Any) -> Any:
            raise AssertionError(self.name)

    needs = [r for r in FINITE if "Add" in str(r.pattern) or " + " in str(r.pattern)]
    loud = [Loud(r.name, r.pattern, r.replacement) for r in needs]
    assert loud
    lowered(low_rank(1), [r for r in loud if hasattr(r.pattern, "operator")])


def test_integers_stay_packed() -> None:
    """Steps come behind the products of bytes, whose dequantized weights they would fold."""
    graph = parsed(
        "uint8[16, 48] q, float s, uint8 z) => (float[16, 48] y) "
        "{ x = DequantizeLinear(q, s, z) v = DequantizeLinear(w, t) y = MatMul(x, v) }",
        w=RNG.integers(-128, 128, (48, 48)).astype(np.int8),
        t=np.float32(0.5),
    )
    less = LowerArithmetic(FINITE, Pricing(work), None, [])
    plain, lower = (
        graph_pipeline("default", None, byte_products=True, less=p).run(graph)
        for p in (None, less)
    )
    names = [op.op_type for op in plain.operations]
    assert "MatMulInteger" in names
    assert names == [op.op_type for op in lower.operations]


def test_extents_of_a_call_stay_as_they_are() -> None:
    text = "float[n, 48] x) => (float[n, 48] y) { h = MatMul(x, a) y = MatMul(h, b) }"
    graph = parsed(text, a=(48, 64), b=(64, 48))
    assert LowerArithmetic(FINITE, Pricing(work), None, []).run(graph) is graph


@pytest.mark.sampled(4)
@pytest.mark.parametrize("group", range(15))
def test_random_graphs_mean_the_same(group: int) -> None:
    steps = 0
    for seed in range(20 * group, 20 * group + 20):
        case = random_substitutable(seed, 4)
        start = folded(case.graph)
        found, moved, _ = lowered(start)
        again, same, _ = lowered(start)
        assert str(again) == str(found) and same == moved
        assert work(found) <= work(start)
        steps += len(moved)
        check_same(case.graph, found, case.inputs)
    assert steps >= 5
