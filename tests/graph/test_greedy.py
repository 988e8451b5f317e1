"""Greedy steps lower the arithmetic, keep the meaning, and are priced once for each structure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

from tilewright.base import events
from tilewright.frontends.onnx import load
from tilewright.graph import interp
from tilewright.graph.nodes import Graph
from tilewright.graph.pipeline import graph_pipeline
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import Either, tensors
from tilewright.graph.rules.patterns import onnx as operator
from tilewright.graph.rules.rule import Rule
from tilewright.graph.rules.substitutions import SUBSTITUTIONS
from tilewright.graph.substitute import greedy
from tilewright.graph.substitute.greedy import LowerArithmetic, lower_arithmetic
from tilewright.graph.substitute.pricing import Pricing, arithmetic
from tilewright.graph.substitute.steps import Substitution, folded, taken
from tilewright.graph.verify import verify
from tilewright.testing.substitutable import random_substitutable

RNG = np.random.default_rng(3)
FINITE = [r for r in SUBSTITUTIONS if r.allowed("fast")]
A, B, C = tensors("A B C")


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


def check_same(before: Graph, after: Graph, inputs: dict[Any, Any]) -> None:
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


@pytest.mark.parametrize("first", ["Add(a, b)", "Add(b, a)"])
def test_operands_of_a_sum_match_in_both_orders(first: str) -> None:
    """Only b + (a + c) saves: the sum of two rows. Both matches have the same operations."""
    body = f"s = {first} y = Add(s, c)"
    ends = "float[1, 8] a, float[64, 8] b, float[1, 8] c) => (float[64, 8] y)"
    graph = parsed(f"{ends} {{ {body} }}")
    found, steps, _ = lowered(graph)
    assert [s.after for s in steps] == [work(found)] == [64 * 8 + 8]
    check_same(
        graph,
        found,
        {v.name: RNG.standard_normal(v.extents, np.float32) for v in graph.inputs},
    )


def test_matches_at_one_operation_are_distinguished() -> None:
    """Of two sums that are added, the second one has the rows."""
    body = "s = Add(p, q) t = Add(a, b) y = Add(s, t)"
    ends = "float[64, 8] p, float[64, 8] q, float[64, 8] a, float[1, 8] b) => (float[64, 8] y)"
    found, steps, _ = lowered(parsed(f"{ends} {{ {body} }}"))
    assert all(s.after < s.before for s in steps)
    assert work(found) == work(parsed(f"{ends} {{ {body} }}")) - sum(
        s.before - s.after for s in steps
    )


def test_operands_of_other_shapes_are_priced_for_themselves() -> None:
    """All sums have 64 rows, as before; their other operands do not."""
    body = "s = Add(b, a) y = Add(s, d) t = Add(e, f) z = Add(t, c)"
    row, rows = "float[1, 8]", "float[64, 8]"
    ends = f"{row} a, {row} c, {row} f, {rows} b, {rows} d, {rows} e) => ({rows} y, {rows} z)"
    found, steps, _ = lowered(parsed(f"{ends} {{ {body} }}"))
    assert len(steps) == 1 and steps[0].after == work(found)


def test_constants_are_priced_for_themselves() -> None:
    """Weights are multiplied before the run, inputs are not."""
    body = "h = MatMul(x, a) y = MatMul(h, b) g = MatMul(y, c) z = MatMul(g, d)"
    ends = "float[16, 48] x, float[48, 64] a, float[64, 48] b) => (float[16, 48] z)"
    graph = parsed(f"{ends} {{ {body} }}", c=(48, 64), d=(64, 48))
    found, steps, _ = lowered(graph)
    assert len(steps) == 1 and steps[0].after == work(found) < work(graph)


def test_a_result_that_leaves_the_model_is_priced_for_itself() -> None:
    """The rule returns an operand, which has another name: y must still be written."""
    rules = [Rule("no-sign", operator.Abs(A), A)]
    ends = "float[64] x, float[64] u) => (float[64] y, float[64] z)"
    graph = parsed(f"{ends} {{ y = Abs(x) g = Abs(u) z = Exp(g) }}")
    found, steps, _ = lowered(graph, rules)
    assert len(steps) == 1
    assert [op.op_type for op in found.operations] == ["Abs", "Exp"]


def counting(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What changes of graphs are made: put into the last list."""
    asked: list[list[str]] = []
    for name in ("change_at", "apply"):
        real = getattr(greedy, name)

        def counted(*args: Any, name: str = name, real: Any = real) -> Any:
            asked[-1].append(name)
            return real(*args)

        monkeypatch.setattr(greedy, name, counted)
    return asked


def test_copies_of_one_structure_are_priced_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever their weights are."""
    asked = counting(monkeypatch)
    for count in (1, 3):
        asked.append([])
        body = "".join(LAYER.format(n, f"{n}r") for n in range(count))
        ends = [
            ", ".join(f"float[16, 48] x{n}{end}" for n in range(count))
            for end in ("", "r")
        ]
        shapes = {f"a{n}": (48, 64) for n in range(count)}
        shapes |= {f"b{n}": (64, 48) for n in range(count)}
        graph = parsed(f"{ends[0]}) => ({ends[1]}) {{ {body} }}", **shapes)
        lowered(graph, cost=lambda g: 1.0)
    assert asked[0] == asked[1] and {"change_at", "apply"} == {*asked[0]}


def test_what_is_computed_of_constants_takes_no_time() -> None:
    rules = [Rule("signs", (A + B) + C, A + operator.Neg(operator.Neg(B + C)))]
    ends = "float[64] x) => (float[64] y) { s = Add(x, b) y = Add(s, c) }"
    found, steps, _ = lowered(parsed(ends, b=(64,), c=(64,)), rules)
    assert len(steps) == 1 and steps[0].after == work(found) == 64
    given = ends.replace("x)", "x, float[64] b, float[64] c)")
    assert not lowered(parsed(given), rules)[1]


def test_what_is_drawn_anew_takes_time() -> None:
    """Noise of a constant's shape is none."""
    noise = operator.Neg(operator.RandomNormalLike(B))
    for rule, taken_ in ((A + noise, 0), (A + operator.Neg(operator.Neg(B)), 1)):
        rules = [Rule("other", (A + B) + C, rule)]
        ends = (
            "float[64] x, float[64] c) => (float[64] y) { s = Add(x, b) y = Add(s, c) }"
        )
        _, steps, pricing = lowered(parsed(ends, b=(64,)), rules)
        assert len(steps) == taken_ == bool(pricing.asked)


LONG = "e = Exp(b) f = Exp(e) s = Add(x, f) y = Sub(s, f)"
USED = "f, g = MaxPool<kernel_shape=[1]>(b) s = Add(x, f) y = Sub(s, f)"


@pytest.mark.parametrize(
    ("body", "end", "left"),
    [(LONG, "float[64] y", 0), (LONG, "float[64] y, float[64] e", 1),
     (USED, "float[1, 1, 64] y, int64[1, 1, 64] g", 1)],
)  # fmt: skip
def test_all_that_nobody_reads_any_more_is_saved(
    body: str, end: str, left: int
) -> None:
    """However far upstream; but no operation with a result that is still read."""
    rules = [Rule("back", (A + B) - B, operator.Identity(A))]
    shape = end.partition(" y")[0]
    text = f"{shape} x, {shape} b) => ({end}) {{ {body} }}"
    found, steps, _ = lowered(parsed(text), rules)
    assert [s.after for s in steps] == [work(found)]
    assert len(found.operations) == 1 + left


def test_rules_with_several_forms_need_one_of_them() -> None:
    forms = Either((operator.Exp(A), operator.Sin(A)))
    rules = [Rule("either", operator.Abs(forms), operator.Identity(A))]
    text = "float[64] x) => (float[64] y) { e = Exp(x) y = Abs(e) }"
    with events.record() as log:
        _, steps, _ = lowered(parsed(text), rules)
    assert len(steps) == 1
    assert [e.fields["name"] for e in log if e.kind == "substitution"] == ["either"]


def test_attributes_are_priced_for_themselves() -> None:
    """A rule may make something else of each."""

    def made(m: Match, f: Any) -> Any:
        x = m[A]
        for _ in range(1 if m.root.attributes["alpha"] == 0.5 else 9):
            x = f.op("Abs", x)
        return x

    rules = [Rule("slope", operator.LeakyRelu(operator.Exp(A)).with_attributes(), made)]
    body = "e = Exp(x) y = LeakyRelu<alpha = {0}>(e) g = Exp(u) z = LeakyRelu<alpha = {1}>(g)"
    ends = "float[64] x, float[64] u) => (float[64] y, float[64] z)"
    for slopes in ((0.25, 0.5), (0.5, 0.25)):
        text = f"{ends} {{ {body.format(*slopes)} }}"
        _, steps, _ = lowered(parsed(text), rules)
        assert len(steps) == 1


def test_only_what_is_near_is_looked_at_again() -> None:
    seen: list[str] = []

    class Watching(Rule):
        def matches(self, graph: Graph, op: Any) -> Any:
            seen.append(op.op_type)
            return super().matches(graph, op)

    rules = [*FINITE, Watching("far", operator.Sin(A), A)]
    body = f"{LAYER.format(0, 1)} n0 = Exp(x1) "
    body += "".join(f"n{n + 1} = Exp(n{n}) " for n in range(8)) + "y = Sin(n8)"
    ends = f"float[16, 48] x0) => (float[16, 48] y) {{ {body} }}"
    _, steps, _ = lowered(parsed(ends, a0=(48, 64), b0=(64, 48)), rules)
    assert steps and seen == ["Sin"]


def test_a_step_that_cannot_be_applied_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(greedy, "apply", lambda graph, rule, m: None)
    graph = low_rank(1)
    found, steps, _ = lowered(graph)
    assert found is graph and not steps


def test_a_step_that_saves_too_little_is_not_priced() -> None:
    """The step removes much work, and adds nearly as much."""
    graph = parsed(
        f"float[16, 4000] x0) => (float[16, 4000] x1) {{ {LAYER.format(0, 1)} }}",
        a0=(4000, 2001),
        b0=(2001, 4000),
    )
    _, steps, pricing = lowered(graph)
    assert not steps and not pricing.asked


def test_what_saves_too_little_is_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A scalar times a small matrix, next to a large product."""
    body = "s = MatMul(y, a) t = MatMul(s, b) z = MatMul(x, w)"
    shapes = {"a": (8, 8), "b": (8, 8), "w": (64, 64)}
    ends = (
        "float[1, 8] y, float[{0}, 64] x) => (float[1, 8] t, float[{0}, 64] z) {{{1}}}"
    )
    assert lowered(parsed(ends.format(1, body), **shapes))[1]
    asked = counting(monkeypatch)
    asked.append([])
    _, steps, pricing = lowered(parsed(ends.format(64, body), **shapes))
    assert not steps and not pricing.asked and not asked[-1]


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
    """Steps run after integer products are formed; they would fold dequantized weights."""
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
    """Fixed extents of the same tensors too."""
    body = "h = MatMul(x, a) y = MatMul(h, b) g = MatMul(u, a) v = MatMul(g, b)"
    for n in ("n", "16"):
        ends = (
            f"float[{n}, 48] x, float[16, 48] u) => (float[{n}, 48] y, float[16, 48] v)"
        )
        graph = parsed(f"{ends} {{ {body} }}", a=(48, 64), b=(64, 48))
        told: list[Substitution] = []
        found = LowerArithmetic(FINITE, Pricing(work), None, told).run(graph)
        assert (found is graph) == (n == "n") == (not told)


@pytest.mark.sampled(8)  # each group draws of all operators
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


@pytest.mark.parametrize(("byte", "taken"), [(0.0, True), (1.0, False)])
def test_what_adds_a_table_pays_for_its_bytes(byte: float, taken: bool) -> None:
    """Tanh of a table's rows saves arithmetic, but the table is then there twice."""
    g = parsed(
        """int64[4] i) => (float[4, 64] y) { r = Gather(t, i) h = Tanh(r)
        y = Gemm<transB = 1>(h, t) }""",
        t=(64, 8),
    )
    pricing = Pricing(work, data=byte)
    found, _ = lower_arithmetic(g, FINITE, pricing)
    assert (len(found.constants) == 2) == taken
