"""Names that rules make are those of no value of a subgraph: none hides another."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.checker
import pytest

from tilewright.base.dtypes import bool_, float32
from tilewright.frontends.onnx.export import to_onnx
from tilewright.graph.nodes import Graph, Operation, Value, constant
from tilewright.graph.rules.substitutions import SUBSTITUTIONS
from tilewright.graph.substitute.optimize import OptimizeSettings, optimize
from tilewright.graph.substitute.parts import extract, splice
from tilewright.graph.verify import verify

SHAPE = (2, 2)


def branch(name: str, read: Value) -> Graph:
    """A body with an inner value of that name, and one that reads the graph around it."""
    inner, out = Value(name, float32, SHAPE), Value(f"{name}.out", float32, SHAPE)
    ops = (
        Operation("Neg", (read,), (inner,), version=13),
        Operation("Add", (inner, read), (out,), version=14),
    )
    return Graph("body", (), (out,), ops)


def with_bodies(inner: str) -> Graph:
    """x @ (a @ b) for which rules make a value; then an If whose bodies have one named so."""
    x, y, z = (Value(n, float32, SHAPE) for n in "xyz")
    h = Value("h", float32, SHAPE)
    c = Value("c", bool_, ())
    a, b = (constant(n, np.eye(2, dtype=np.float32)) for n in "ab")
    eye = np.eye(2, dtype=np.float32)
    branches = {
        "then_branch": branch(inner, y),
        "else_branch": branch(f"{inner}.else", y),
    }
    ops = (
        Operation("MatMul", (x, a), (h,), version=13),
        Operation("MatMul", (h, b), (y,), version=13),
        Operation("If", (c,), (z,), branches, version=21),
    )
    return Graph("g", (x, c), (z,), ops, {a: eye, b: eye})


def every_name(graph: Graph) -> list[str]:
    inner = [n for op in graph.operations for g in op.subgraphs for n in every_name(g)]
    return [v.name for v in graph.values] + inner


def searched(graph: Graph, part: int) -> Graph:
    how = OptimizeSettings(part=part)
    products = [r for r in SUBSTITUTIONS if r.name == "product-from-the-right"]
    return optimize(graph, products, lambda g: float(len(g.operations)), how).graph


def made_by_the_rule() -> set[str]:
    plain = with_bodies("nothing")
    return set(every_name(searched(plain, 40))) - set(every_name(plain))


@pytest.mark.parametrize("part", [2, 40])
def test_a_rule_makes_no_name_that_a_body_has(part: int) -> None:
    (name,) = made_by_the_rule()
    found = searched(with_bodies(name), part)
    assert len(found.operations) == 2
    names = every_name(found)
    assert len(set(names)) == len(names) and name in names
    verify(found)
    onnx.checker.check_model(to_onnx(found), full_check=True)


def test_a_part_put_back_hides_nothing_in_a_body() -> None:
    (name,) = made_by_the_rule()
    graph = with_bodies(name)
    inside = graph.operations[:2]
    part = extract(graph, inside)
    hidden = Value(name, float32, SHAPE)
    first, second = inside
    other = (
        Operation("MatMul", first.inputs, (hidden,), version=13),
        Operation("MatMul", (hidden, second.inputs[1]), second.outputs, version=13),
    )
    back = splice(graph, inside, part.with_operations(other))
    names = every_name(back)
    assert len(set(names)) == len(names)
    verify(back)
