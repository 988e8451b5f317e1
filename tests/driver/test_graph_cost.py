"""What graphs cost: of their plan after fusion, measured, and mixed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tilewright.base.dtypes import float32
from tilewright.base.errors import InputError
from tilewright.driver.compilation import target_of
from tilewright.driver.graph_cost import COSTS, GraphCost
from tilewright.driver.options import Options
from tilewright.driver.remembered import RecordedAnswers
from tilewright.driver.stages import planned
from tilewright.driver.steps import build
from tilewright.driver.substitution import search
from tilewright.graph.nodes import Graph
from tilewright.plan.normalize import kernel_signature, normalized
from tilewright.targets.cpu.cost import cost_model
from tilewright.testing.networks.builder import Net

ONE = Options(threads=1, cache=False)


def network(width: int = 32, layers: int = 2) -> Graph:
    n = Net(f"mlp{width}")
    x = n.input(16, 64)
    for _ in range(layers):
        x = x.linear(width, act="Relu")
    return n.case([x]).graph


def cost(graph: Graph, options: Options = ONE, **weights: float) -> float:
    return GraphCost(options, weights, build)(graph)


def test_launches_and_flops_are_those_of_the_plan():
    """A product, its bias and its activation are one kernel."""
    assert cost(network(layers=2), launches=1) == 2
    assert cost(network(layers=3), launches=1) == 3
    products = 2 * 16 * (64 * 32 + 32 * 32)
    assert products <= cost(network(), flops=1) <= 1.1 * products


def test_bytes_count_what_kernels_read_and_write_and_not_what_is_fused():
    first = 16 * 64 + 64 * 32 + 32 + 16 * 32
    second = 16 * 32 + 32 * 32 + 32 + 16 * 32
    assert cost(network(), bytes=1) == 4 * (first + second)


def test_time_grows_with_the_work_and_falls_with_threads():
    small, large = network(32), network(1024)
    assert 0 < cost(small, time=1) < cost(large, time=1) < 1
    wide = network(4096, layers=1)
    many = Options(threads=4, cache=False)
    assert cost(wide, many, time=1) < 0.5 * cost(wide, time=1)


def over_positions() -> Graph:
    """A product over the positions of an image, which a pooling makes and a convolution reads."""
    n = Net("over_positions")
    image = n.input(1, 8, 14, 14).conv(48, 3).max_pool(3, 1, 1)
    weight, bias = n.weight(96, 48), n.weight(96, 1)
    made = weight @ image.reshape(1, 48, 14 * 14) + bias
    return n.case([made.reshape(1, 96, 14, 14).Relu().conv(8, 3)]).graph


@pytest.mark.parametrize("mcpu", ["x86-64-v2", "x86-64-v3", "znver4", "sapphirerapids"])
def test_no_product_is_faster_than_its_multiply_adds(mcpu: str):
    options = Options(threads=1, cache=False, mcpu=mcpu)
    target = target_of(options)
    plan, _ = planned(over_positions(), (), None, options)
    (group,) = (
        g for g in plan.groups if any("matmul" in c.name for c in g.computations)
    )
    costs = cost_model(target.machine)
    rate = costs.products(target.machine.lanes(float32), float32.itemsize)
    least = 96 * 48 * 14 * 14 / rate / target.machine.clock
    said = RecordedAnswers(target)
    assert said.predicted_time(group.computations, plan.data) > least


def test_kernels_are_priced_in_the_form_in_which_they_are_compiled():
    plan, _ = planned(over_positions(), (), None, ONE)
    for group in plan.groups:
        compiled = kernel_signature(group, plan.live[group], parts=False).computations
        priced, _ = normalized(group.computations, plan.data)
        assert list(map(str, priced)) == list(map(str, compiled))


def test_a_convolution_of_groups_and_the_map_after_it_are_one_kernel():
    """Planned in the form in which they are compiled: as one dimension, groups are no tiles."""
    n = Net("groups")
    graph = n.case([n.input(1, 64, 14, 14).conv(64, 1).conv(64, 3, groups=16)]).graph
    plan, _ = planned(graph, (), None, replace(ONE, mcpu="znver4"))
    sums = [g for g in plan.groups if any(not c.is_map for c in g.computations)]
    assert len(sums) == 2
    assert all(len(g.computations) == 2 for g in sums)


def test_measured_is_the_time_of_a_run():
    assert 0 < cost(network(), measured=1) < 1


def test_a_mix_is_a_sum():
    graph = network()
    mixed = cost(graph, time=2, launches=3)
    assert mixed == pytest.approx(2 * cost(graph, time=1) + 3 * 2)


def test_the_least_is_of_sums_and_products_without_maps():
    n = Net("one")
    product = n.case([n.input(64, 256) @ n.weight(256, 64, fan=256)]).graph
    n = Net("map")
    activation = n.case([n.input(64, 256).Tanh()]).graph
    time = GraphCost(ONE, {"time": 1}, build)
    assert 0 < time.least_of(product) <= time(product)
    assert time.least_of(activation) == 0 < time(activation)
    mixed = GraphCost(ONE, {"flops": 2, "launches": 1}, build)
    assert mixed.least is not None
    assert mixed.least_of(product) == 2 * 2 * 64 * 256 * 64
    assert (
        GraphCost(ONE, {"bytes": 1, "launches": 1, "measured": 1}, build).least is None
    )


@pytest.mark.parametrize(
    "weights", [{}, {"time": 0.0}, {"time": -1.0}, {"time": float("nan")}, {"x": 1.0}]
)
def test_wrong_weights_are_refused(weights):
    with pytest.raises(InputError):
        GraphCost(ONE, weights, build)


def test_the_names_are_those_that_are_documented():
    assert COSTS == ("time", "flops", "bytes", "launches", "measured")


def test_a_search_lowers_the_predicted_time_of_a_product_of_weights():
    n = Net("low")
    x = n.input(64, 256)
    y = (x @ n.weight(256, 256, fan=256)) @ n.weight(256, 64, fan=256)
    case = n.case([y])
    found = search(case.graph, ONE, build)
    assert found.after < 0.5 * found.before
    assert [op.op_type for op in found.graph.operations] == ["MatMul"]
    assert np.prod(next(iter(found.graph.constants.values())).shape) == 256 * 64


def test_the_public_face_takes_what_compile_takes(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> m (float[n, 64] x) => (float[n, 16] y)\n'
        "{ h = MatMul(x, a) y = MatMul(h, b) }"
    )
    rng = np.random.default_rng(0)
    for name, shape in (("a", (64, 16)), ("b", (16, 16))):
        weight = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    file = tmp_path / "m.onnx"
    onnx.save(model, file)
    x = rng.standard_normal((8, 64)).astype(np.float32)
    want = tw.compile(model)(x)
    for source in (model, file, file.read_bytes()):
        found = tw.optimize(source, dims={"n": 8}, cost={"flops": 1.0}, math="fast")
        assert len(found.graph.operations) == 1 and found.after < found.before
        np.testing.assert_allclose(
            tw.compile(found.graph)(x), want, rtol=1e-3, atol=1e-3
        )
    with pytest.raises(InputError, match="symbolic"):
        tw.optimize(model)
    with pytest.raises(InputError, match="seconds"):
        tw.optimize(model, dims={"n": 8}, seconds=0)
    with pytest.raises(InputError, match="beauty"):
        tw.optimize(model, dims={"n": 8}, cost="beauty")
