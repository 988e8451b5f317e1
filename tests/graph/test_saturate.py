"""Equality saturation: what an e-graph holds, what is extracted, and that results are derived."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from tests.graph.test_substitute import check_same, operations
from tilewright.base.dtypes import float32
from tilewright.base.errors import InputError
from tilewright.graph.nodes import Graph, Operation, Value, constant
from tilewright.graph.rules.patterns import onnx, tensors
from tilewright.graph.rules.rule import Rule
from tilewright.graph.rules.substitutions import SUBSTITUTIONS
from tilewright.graph.substitute.backtracking import backtrack
from tilewright.graph.substitute.derivation import replay
from tilewright.graph.substitute.egraph import EGraph
from tilewright.graph.substitute.extraction import extract
from tilewright.graph.substitute.identity import digest
from tilewright.graph.substitute.optimize import OptimizeSettings, optimize
from tilewright.graph.substitute.pricing import Pricing
from tilewright.graph.substitute.saturate import saturate
from tilewright.graph.substitute.saturation import Saturation
from tilewright.graph.substitute.steps import folded
from tilewright.graph.verify import verify
from tilewright.search.result import SearchLimits, StopReason
from tilewright.testing.networks.builder import Net
from tilewright.testing.substitutable import random_substitutable

SHAPE = (2, 2)


def value(name: str) -> Value:
    return Value(name, float32, SHAPE)


def graph_of(*rows: tuple[str, str, str], outputs: str, inputs: str = "xy") -> Graph:
    """Operations as (operator, operands, result), each value a letter."""
    values = {name: value(name) for name in inputs}
    ops = []
    for op_type, operands, result in rows:
        values[result] = value(result)
        reads = tuple(values[o] for o in operands)
        ops.append(Operation(op_type, reads, (values[result],), version=13))
    ins = tuple(values[n] for n in inputs)
    return Graph("g", ins, tuple(values[n] for n in outputs), tuple(ops))


def places(e: EGraph, graph: Graph) -> dict[str, int]:
    return {v.name: e.place(v, graph.constants) for v in graph.values}


# -- the e-graph


def test_equal_operations_are_one_node_and_commutative_ones_in_any_order():
    g = graph_of(
        ("Add", "xy", "a"),
        ("Add", "yx", "b"),
        ("Sub", "xy", "c"),
        ("Sub", "yx", "d"),
        outputs="abcd",
    )
    e = EGraph(g)
    at = places(e, g)
    assert len(e.nodes) == 3
    assert at["a"] == at["b"] and at["c"] != at["d"]


def test_what_draws_numbers_is_never_equal_to_another():
    a, b = value("a"), value("b")
    draw = {"shape": [2, 2]}
    ops = tuple(
        Operation("RandomNormal", (), (v,), dict(draw), version=1) for v in (a, b)
    )
    assert len(EGraph(Graph("g", (), (a, b), ops)).nodes) == 2


def test_constants_are_equal_by_their_bits():
    zeros = [np.array(z, np.float32) for z in (0.0, -0.0, 0.0)]
    x, outs = Value("x", float32, ()), [Value(f"y{n}", float32, ()) for n in range(3)]
    consts = [constant(f"c{n}", a) for n, a in enumerate(zeros)]
    pairs = zip(consts, outs, strict=True)
    ops = tuple(Operation("Add", (x, c), (y,), version=14) for c, y in pairs)
    data = dict(zip(consts, zeros, strict=True))
    g = Graph("g", (x,), tuple(outs), ops, data)
    at = places(EGraph(g), g)
    assert at["y0"] == at["y2"] != at["y1"]


def test_what_reads_equal_classes_is_equal_after_a_rebuild():
    """Nelson and Oppen's closure, two levels deep."""
    g = graph_of(
        ("Neg", "x", "a"),
        ("Neg", "y", "b"),
        ("Relu", "a", "c"),
        ("Relu", "b", "d"),
        outputs="cd",
    )
    e = EGraph(g)
    at = places(e, g)
    assert e.union(at["x"], at["y"]) and not e.union(at["y"], at["x"])
    assert len(e.nodes) == 4
    e.rebuild()
    after = places(e, g)
    assert len(e.nodes) == 2 and after["a"] == after["b"] and after["c"] == after["d"]


def test_results_of_one_operation_are_equal_place_by_place():
    parts = [[Value(f"{n}{m}", float32, (1, 2)) for m in "01"] for n in "ab"]
    x, y = value("x"), value("y")
    ops = tuple(
        Operation("Split", (v,), tuple(p), {"axis": 0}, version=2)
        for v, p in zip((x, y), parts, strict=True)
    )
    g = Graph("g", (x, y), (*parts[0], *parts[1]), ops)
    e = EGraph(g)
    e.union(0, 1)
    e.rebuild()
    at = places(e, g)
    assert at["a0"] == at["b0"] != at["a1"] == at["b1"]


# -- saturation

x, y, z = tensors("x y z")
FACTOR = Rule("factor", x * z + y * z, (x + y) * z, exact=False, finite=True)
TWICE_NEGATED = Rule("twice-negated", onnx.Neg(onnx.Neg(x)), x)


def test_both_sides_of_a_rule_stay():
    g = graph_of(
        ("Mul", "xz", "a"),
        ("Mul", "yz", "b"),
        ("Add", "ab", "c"),
        outputs="c",
        inputs="xyz",
    )
    grown = Saturation(g, [FACTOR])
    grown.grow(8, 100)
    e = grown.egraph
    assert grown.full and len(e.nodes) == 5
    (root,) = e.outputs
    made = {n.operation.op_type for n in e.nodes if e.find(root) in n.writes}
    assert made == {"Add", "Mul"}
    assert {n.rule for n in e.nodes} == {"", "factor"}


def test_a_match_may_be_of_what_another_rule_made():
    """-(-x) becomes x only in the other form of what it is an operand of."""
    g = graph_of(("Neg", "x", "a"), ("Sub", "ya", "b"), ("Neg", "b", "c"), outputs="c")
    u, v = tensors("u v")
    rules = [
        Rule("out", onnx.Neg(u - v), onnx.Neg(u) + v),
        Rule("in", onnx.Neg(u) + onnx.Neg(v), onnx.Neg(u + v)),
        TWICE_NEGATED,
    ]
    grown = Saturation(g, rules)
    grown.grow(8, 100)
    assert grown.full
    assert {n.rule for n in grown.egraph.nodes} >= {"out", "in"}


def test_the_number_of_nodes_has_a_limit():
    case = random_substitutable(3, 6)
    for most in (1, 30):
        grown = Saturation(folded(case.graph), SUBSTITUTIONS)
        grown.grow(9, most)
        before = len(EGraph(folded(case.graph)).nodes)
        assert not grown.full
        assert len(grown.egraph.nodes) < max(most, before) + 30


# -- extraction


def cheapest(e: EGraph, **prices: float) -> list[str]:
    costs = {n: prices.get(n.operation.op_type, 1.0) for n in e.nodes}
    return [n.operation.op_type for n in extract(e, costs)]


def test_the_cheapest_graph_is_extracted():
    g = graph_of(
        ("Mul", "xz", "a"),
        ("Mul", "yz", "b"),
        ("Add", "ab", "c"),
        outputs="c",
        inputs="xyz",
    )
    grown = Saturation(g, [FACTOR])
    grown.grow(8, 100)
    assert sorted(cheapest(grown.egraph)) == ["Add", "Mul"]
    assert cheapest(grown.egraph)[-1] == "Mul"


def test_what_pays_only_for_several_results_together_is_found():
    """One wide product and a Split cost less than two products, and more than one of them."""
    n = Net("pair")
    image = n.input(4, 8)
    y = (image @ n.weight(8, 4, fan=8)).Relu()
    case = n.case([y + (image @ n.weight(8, 4, fan=8))])
    merges = [
        r for r in SUBSTITUTIONS if r.name == "merge-products-of-one-left-operand"
    ]
    grown = Saturation(case.graph, merges)
    grown.grow(1, 100)
    assert cheapest(grown.egraph, MatMul=5.0).count("MatMul") == 1
    assert cheapest(grown.egraph, Split=9.0, MatMul=5.0).count("MatMul") == 2


def test_a_class_that_could_be_made_of_itself_is_not():
    """-(-x) = x makes x a class with a node that needs x."""
    g = graph_of(("Neg", "x", "a"), ("Neg", "a", "b"), ("Relu", "b", "c"), outputs="c")
    grown = Saturation(g, [TWICE_NEGATED])
    grown.grow(4, 100)
    assert cheapest(grown.egraph) == ["Relu"]
    assert cheapest(grown.egraph, Relu=0.5, Neg=0.001) == ["Relu"]


# -- the strategy


@pytest.mark.sampled(7)  # each group draws of all operators
@pytest.mark.parametrize("group", range(4))
def test_random_graphs_mean_the_same_and_are_replayed(group):
    moved = 0
    how = OptimizeSettings(strategy="saturate", part=12, nodes=60)
    for n in range(12):
        seed = 12 * group + n
        case = random_substitutable(seed, 4)
        some = SUBSTITUTIONS[seed % 3 :: 3]
        found = optimize(case.graph, some, operations, how)
        verify(found.graph)
        moved += len(found.derivation.steps)
        assert found.after <= found.before
        check_same(case.graph, found.graph, case.inputs)
        again = replay(folded(case.graph), found.derivation, SUBSTITUTIONS)
        assert digest(again) == digest(found.graph)
    assert moved >= 2


def hill() -> Graph:
    """x*z + y*z, in which nothing pays by itself before a difference became a sum."""
    n = Net("hill")
    a, b, c = (n.input(4, 4) for _ in range(3))
    return n.case([(a * c - b * c).Tanh()]).graph


def test_it_finds_what_backtracking_finds_whatever_is_in_between():
    u, v = tensors("u v")
    rules = [
        Rule("as-sum", u - v, u + onnx.Neg(v)),
        Rule("sign-in", onnx.Neg(u * v), onnx.Neg(u) * v),
        FACTOR,
    ]
    price = Pricing(operations)
    steady = backtrack(hill(), rules, price, alpha=1.0)
    found = saturate(hill(), rules, price)
    assert steady.cost == steady.start == 4
    assert (
        found.cost == 4 and found.stop is StopReason.FINISHED
    )  # as many, in another form
    cost = weighed(Mul=5.0)
    found = saturate(hill(), rules, Pricing(cost))
    assert [s.rule for s in found.steps] == ["as-sum", "sign-in", "factor"]
    assert found.start - found.cost == 4
    assert found.steps[0].after > found.start > found.steps[-1].after == found.cost


def weighed(**prices: float):
    return lambda g: sum(prices.get(op.op_type, 1.0) for op in g.operations)


def test_it_repeats_itself():
    case = random_substitutable(3, 6)
    how = OptimizeSettings(strategy="saturate", nodes=80)
    one, two = (optimize(case.graph, SUBSTITUTIONS, operations, how) for _ in range(2))
    assert one.derivation == two.derivation and str(one.graph) == str(two.graph)


def test_limits_end_it_and_it_says_so():
    case = random_substitutable(3, 6)
    how = OptimizeSettings(strategy="saturate")
    for limits in (
        SearchLimits(seconds=0.0),
        SearchLimits(1),
    ):
        start = time.monotonic()
        found = optimize(case.graph, SUBSTITUTIONS, operations, how, limits=limits)
        assert found.interrupted and time.monotonic() - start < 20
        check_same(case.graph, found.graph, case.inputs)


def test_exact_takes_no_rule_that_rounds():
    g = graph_of(
        ("Mul", "xz", "a"),
        ("Mul", "yz", "b"),
        ("Add", "ab", "c"),
        outputs="c",
        inputs="xyz",
    )
    how = OptimizeSettings(strategy="saturate")
    assert optimize(g, [FACTOR], operations, how).derivation.steps
    exact = replace(how, math="exact")
    assert not optimize(g, [FACTOR], operations, exact).derivation.steps
    default = replace(how, math="default")
    assert not optimize(g, [FACTOR], operations, default).derivation.steps
    rounds = replace(FACTOR, finite=False)
    assert optimize(g, [rounds], operations, default).derivation.steps


@pytest.mark.parametrize("wrong", [{"strategy": "guess"}, {"nodes": 0}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(InputError):
        OptimizeSettings(**wrong)
