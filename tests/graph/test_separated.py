"""Siblings in distant parts of a graph are merged if that pays."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.test_substitute import check_same, operations
from tilewright.graph.nodes import Graph
from tilewright.graph.rules.substitutions import SUBSTITUTIONS
from tilewright.graph.substitute.derivation import GraphDerivation, replay
from tilewright.graph.substitute.identity import digest
from tilewright.graph.substitute.optimize import OptimizeSettings, optimize
from tilewright.graph.substitute.partition import partition
from tilewright.graph.substitute.pricing import Pricing
from tilewright.graph.substitute.separated import merge_separated
from tilewright.graph.substitute.steps import folded
from tilewright.graph.verify import verify
from tilewright.search.result import SearchLimits
from tilewright.testing.graphs import Case
from tilewright.testing.networks.builder import Net

MERGE = "merge-products-of-one-right-operand"
STEPS, PART = 6, 8


def recurrence() -> Case:
    """A state that each step changes by its own input's product with one matrix."""
    n = Net("recurrence")
    w = n.weight(4, 4)
    state = n.input(2, 4)
    for _ in range(STEPS):
        state = (state * (n.input(2, 4) @ w).Sigmoid()).Tanh()
    return n.case([state])


def products(graph: Graph) -> float:
    return sum(100.0 if op.op_type == "MatMul" else 1.0 for op in graph.operations)


@pytest.mark.parametrize("strategy", ["backtrack", "saturate"])
def test_products_of_one_matrix_in_all_parts_become_one(strategy: str) -> None:
    case = recurrence()
    how = OptimizeSettings(part=PART, strategy=strategy, nodes=40)
    found = optimize(case.graph, SUBSTITUTIONS, products, how)
    verify(found.graph)
    kinds = [op.op_type for op in found.graph.operations]
    assert kinds.count("MatMul") == 1
    assert found.derivation.steps[0].rule == MERGE
    check_same(case.graph, found.graph, case.inputs)
    steps = GraphDerivation.from_json(found.derivation.to_json())
    again = replay(folded(case.graph), steps, SUBSTITUTIONS)
    assert digest(again) == digest(found.graph)


def merged(graph: Graph, cost, ended=lambda: False, most=PART):
    rules = [rule for rule in SUBSTITUTIONS if rule.name == MERGE]
    parts = partition(graph, SUBSTITUTIONS, most)
    return list(merge_separated(graph, rules, parts, Pricing(cost), ended))


def test_all_siblings_are_merged_at_once():
    (step,) = merged(recurrence().graph, products)
    assert step is not None and step[0].after < step[0].before


def test_siblings_of_one_part_are_left_to_its_search():
    assert merged(recurrence().graph, products, most=100) == []


def test_what_does_not_pay_is_not_taken():
    """A Concat and a Split cost more here than a product: the largest match alone is tried."""
    assert merged(recurrence().graph, lambda g: -operations(g)) == [None]


def test_a_limit_ends_it():
    assert merged(recurrence().graph, products, lambda: True) == []
    asked: list[Graph] = []

    def cost(graph: Graph) -> float:
        asked.append(graph)
        return products(graph)

    limits = SearchLimits(until=lambda: bool(asked))
    how = OptimizeSettings(part=PART)
    found = optimize(recurrence().graph, SUBSTITUTIONS, cost, how, limits=limits)
    assert found.interrupted and not found.derivation.steps


def test_siblings_that_depend_on_each_other_stay():
    n = Net("chain")
    w, x = n.weight(4, 4), n.input(2, 4)
    for _ in range(STEPS):
        x = ((x @ w).Sigmoid() * x).Tanh()
    case = n.case([x])
    how = OptimizeSettings(part=PART, math="fast")
    found = optimize(case.graph, SUBSTITUTIONS, products, how)
    assert [op.op_type for op in found.graph.operations].count("MatMul") == STEPS
    check_same(case.graph, found.graph, case.inputs)
    assert np.isfinite(found.after)
