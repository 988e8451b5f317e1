"""What was applied to a network is told completely."""

from __future__ import annotations

from benchmarks.applied import applied
from tilewright.driver.options import Options
from tilewright.frontends.onnx.load import load
from tilewright.graph.nodes import Graph
from tilewright.testing.networks.builder import Net


def cell() -> Graph:
    """A product of products of weights, and a bias behind it."""
    n = Net("cell")
    y = (n.input(16, 256) @ n.weight(256, 64, fan=256)) @ n.weight(64, 48, fan=64)
    return n.case([(y + n.weight(48)).Relu()]).graph


def test_fusions_and_kernels_are_counted() -> None:
    lines = list(applied(cell(), Options(threads=1, mcpu="x86-64-v3")))
    assert lines[0] == "graph rules: 0"
    assert "substitutions: 0" in lines
    assert "kernels: 2" in lines
    assert "     1 x MatMul + Add + Relu" in lines


def test_substitutions_are_those_of_the_passes() -> None:
    """With math="fast", both weights become one."""
    lines = list(applied(cell(), Options(threads=1, mcpu="x86-64-v3", math="fast")))
    assert "substitutions: 1" in lines
    assert "     1 x product-from-the-right" in lines
    assert "kernels: 1" in lines


def test_rules_are_counted_once() -> None:
    source = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[4, 8] x) => (float[4, 8] y) { a = Identity(x) y = Relu(a) }"""
    import onnx.parser

    graph = load(onnx.parser.parse_model(source))
    lines = list(applied(graph, Options(threads=1, mcpu="x86-64-v3")))
    assert lines[:2] == ["graph rules: 1", "     1 x identity"]
