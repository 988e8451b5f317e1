"""Networks as task graphs: the published table from a convolution in ONNX, what tasks compute."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.dataflow.models import RNG, lenet, model
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.dataflow import schedule
from tilewright.dataflow.explore import explore
from tilewright.dataflow.lower import network, program
from tilewright.frontends.onnx import load
from tilewright.graph.interp import evaluate
from tilewright.graph.nodes import Graph
from tilewright.graph.ops import registry
from tilewright.graph.ops.registry import OpDef, register


def inputs(graph: Graph) -> dict[str, Any]:
    return {
        v.name: RNG.standard_normal(v.extents).astype(np.float32) for v in graph.inputs
    }


def agree(graph: Graph, choices: Mapping[str, str]) -> None:
    """The tasks of a network compute what the network does."""
    given = inputs(graph)
    found = program(network(graph), choices).run(given)
    for name, want in evaluate(graph, given).items():
        np.testing.assert_allclose(found[name], want, rtol=1e-4, atol=1e-4)


CONV = """g (float[1,1,28,28] x, float[6,1,5,5] w, float[6] b) => (float[1,6,24,24] y)
    { y = Conv(x, w, b) }"""
LENET_FIRST = model(
    CONV.replace(", float[6,1,5,5] w, float[6] b", ""), w=(6, 1, 5, 5), b=(6,)
)


@pytest.mark.parametrize(
    ("expansion", "io", "at16", "at128"),
    [
        ("mv", 129024, 145728, 35136),
        ("op", 222486, 194113, 107713),
        ("lmv", 150486, 35713, 35713),
    ],
)
def test_the_published_table_from_the_general_lowering(
    expansion: str, io: int, at16: int, at128: int
) -> None:
    found = program(network(LENET_FIRST), {"conv": expansion}, "array")
    assert found.io == io
    assert [schedule(found.graph, pes).makespan for pes in (16, 128)] == [at16, at128]


def least_io(expansion: str, filters: int, pixels: int, depth: int) -> int:
    """I/O of a convolution with bias in closed form."""
    windows, result = depth * pixels, filters * pixels
    if expansion == "mv":
        return windows + (windows + pixels * filters * depth + result) + 3 * result
    if expansion == "op":
        partial = depth * result
        return (
            windows
            + (windows + filters * depth + partial)
            + (partial + result)
            + 5 * result
        )
    return 3 * windows + (filters * windows + filters * depth + result) + 5 * result


def convolution(channels: int, size: int, filters: int) -> Graph:
    """3x3, with a bias."""
    out = f"{filters},{size - 2},{size - 2}"
    return model(
        f"g (float[1,{channels},{size},{size}] x) => (float[1,{out}] y) {{ y = Conv(x, w, b) }}",
        w=(filters, channels, 3, 3),
        b=(filters,),
    )


@pytest.mark.parametrize("expansion", ["mv", "op", "lmv"])
@pytest.mark.parametrize(
    ("channels", "size", "filters"), [(1, 9, 4), (2, 7, 5), (3, 6, 8)]
)
def test_other_convolutions_have_the_closed_forms_io(
    expansion: str, channels: int, size: int, filters: int
) -> None:
    graph = convolution(channels, size, filters)
    found = program(network(graph), {"conv": expansion}, "array")
    assert found.io == least_io(expansion, filters, (size - 2) ** 2, 9 * channels)


def phases(expansion: str, pes: int, filters: int, pixels: int, depth: int) -> int:
    """The makespan in closed form: im2col and what follows it, block by
    block, each as long as the array that its tasks share; no more filters than windows are deep,
    no deeper windows than there are pixels, and the filters at once."""
    windows, result = depth * pixels, filters * pixels
    if expansion == "mv":
        return windows + -(-(pixels + 2) // pes) * result + result
    if expansion == "op":
        return windows + -(-(depth + 4) // pes) * depth * result + 2 * result
    return 2 * windows + 2 * result


@pytest.mark.parametrize("expansion", ["mv", "op", "lmv"])
@pytest.mark.parametrize(
    ("channels", "size", "filters"), [(1, 9, 4), (2, 7, 5), (3, 12, 8), (2, 10, 3)]
)
def test_other_convolutions_have_the_closed_forms_makespan(
    expansion: str, channels: int, size: int, filters: int
) -> None:
    net = network(convolution(channels, size, filters))
    graph = program(net, {"conv": expansion}, "array").graph
    for pes in (16, 32, 128):
        expected = phases(expansion, pes, filters, (size - 2) ** 2, 9 * channels)
        late = schedule(graph, pes).makespan - expected
        assert late == (expansion != "mv"), (
            pes
        )  # a stream arrives a cycle after it left


PRODUCTS = ["lmv", "mv", "op", "tiled", "tiled8", "tiled16", "whole", "loop"]
EXPANSIONS = [*PRODUCTS, "direct", "rows", "winograd"]


@pytest.mark.covering(1)
@pytest.mark.parametrize("expansion", EXPANSIONS)
@pytest.mark.parametrize(
    "attributes",
    [
        "dilations = [2, 1]",
        "pads = [1, 1, 1, 1]",
        "strides = [2, 2], pads = [0, 1, 1, 0]",
    ],
)
def test_a_convolution_by_every_expansion(expansion: str, attributes: str) -> None:
    body = f"g (float[1,3,8,8] x) => (float[1,4,?,?] y) {{ y = Conv <{attributes}> (x, w) }}"
    graph = model(body.replace("float[1,4,?,?]", "float[n,m,h,v]"), w=(4, 3, 3, 3))
    if expansion == "winograd" and "dilations" in attributes:
        with pytest.raises(InputError, match="no expansion 'winograd' of a conv"):
            agree(graph, {"conv": expansion})
    else:
        agree(graph, {"conv": expansion})


@pytest.mark.parametrize("expansion", PRODUCTS)
@pytest.mark.parametrize("batch", ["", "2,"])
def test_a_matrix_product_by_every_expansion(expansion: str, batch: str) -> None:
    body = f"""g (float[{batch}6,5] a, float[{batch}5,4] b) => (float[{batch}6,4] c)
        {{ c = MatMul(a, b) }}"""
    agree(model(body), {"matmul": expansion})


@pytest.mark.parametrize(
    "operator",
    [
        "Softmax <axis = 1> (x)",
        "LayerNormalization <axis = 2> (x, s)",
        "MaxPool <kernel_shape = [2], strides = [2]> (x)",
        "Add(x, x)",
        "ReduceMean <keepdims = 0> (x)",
        "CumSum(x, axis)",
        "Transpose <perm = [0, 2, 1]> (x)",
    ],
)
@pytest.mark.parametrize("expansion", ["whole", "loop", "operator"])
def test_other_operators(operator: str, expansion: str) -> None:
    result = "float y" if "ReduceMean" in operator else "float[p,q,r] y"
    axis = "axis = Constant<value_int = 1>()"
    body = f"g (float[3,4,6] x) => ({result}) {{ {axis} y = {operator} }}"
    families = ("map", "reduce", "scan")
    agree(model(body, s=(6,)), dict.fromkeys(families, expansion))


@pytest.mark.parametrize(
    "operator", ["Softmax <axis = 1> (x)", "LayerNormalization <axis = 1> (x, s)"]
)
def test_an_operator_of_several_computations_is_one_task(operator: str) -> None:
    graph = model(f"g (float[6,6] x) => (float[6,6] y) {{ y = {operator} }}", s=(6,))
    net = network(graph)
    (name,) = net.choices
    assert "operator" in net.choices[name]
    (stage,), several = net.stages, program(net, {name: "whole"})
    assert several.graph.tasks >= len(stage.computations) > 1
    one = program(net, {name: "operator"})
    assert one.graph.tasks == 1 and one.io < several.io
    assert explore(net, [4], grain="operator").best(4).tasks == 1
    agree(graph, {name: "operator"})


def test_fused_tasks_compute_the_same_and_move_less() -> None:
    graph = lenet()
    plain, fused = (program(network(graph, fused=how)) for how in (False, True))
    assert fused.graph.tasks < plain.graph.tasks and fused.io < plain.io
    given = inputs(graph)
    found = fused.run(given)
    for name, want in evaluate(graph, given).items():
        np.testing.assert_allclose(found[name], want, rtol=1e-3, atol=1e-3)


def test_an_unknown_expansion_lists_those_there_are() -> None:
    net = network(LENET_FIRST)
    with pytest.raises(
        InputError, match=r"no expansion 'best' of a conv.*known: lmv, mv, op"
    ):
        program(net, {"conv": "best"})
    with pytest.raises(
        InputError, match="chosen for pool1, which is neither an operator nor a family"
    ):
        program(net, {"pool1": "whole"})


def test_an_operator_without_one_is_a_task_on_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "_definitions", dict(registry._definitions))
    register(
        OpDef(
            "Sorted",
            lambda call: [(call.dtype(0), call.shape(0))],
            domain="com.acme",
            reference=lambda call, x: [np.sort(x, -1)],
        )
    )
    text = """<ir_version: 10, opset_import: ["" : 21, "com.acme" : 1]>
        g (float[4,6] x) => (float[4,6] y) { a = Relu(x) b = com.acme.Sorted(a) y = Neg(b) }"""
    graph = load(onnx.parser.parse_model(text))
    with pytest.raises(
        UnsupportedError, match=r"1 operator has no expansion: .*Sorted"
    ):
        network(graph)
    found = program(network(graph, opaque=True))
    assert found.graph.tasks == 3
    x = RNG.standard_normal((4, 6)).astype(np.float32)
    want = -np.sort(np.maximum(x, 0), -1)
    np.testing.assert_array_equal(found.run({"x": x})["y"], want)
    assert (
        explore(network(graph, opaque=True), [4], grain="expanded").best(4).tasks == 3
    )


BRANCH = """g (float[3,SIZE] x, bool c) => (float[3,SIZE] y) {
    z = Exp(x)
    v = If (c) <
        then_branch = t () => (float[3,SIZE] a) { a = Relu(z) },
        else_branch = e () => (float[3,SIZE] b) { b = Sub(x, z) }>
    y = Neg(v)
}"""


def test_both_sides_of_a_small_branch_are_tasks() -> None:
    found = program(network(model(BRANCH.replace("SIZE", "4"))))
    x = RNG.standard_normal((3, 4)).astype(np.float32)
    for c, want in ((True, -np.exp(x)), (False, np.exp(x) - x)):
        np.testing.assert_allclose(found.run({"x": x, "c": c})["y"], want, rtol=1e-6)


def test_a_branch_that_a_run_decides_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"data-dependent control flow: .*v"):
        network(model(BRANCH.replace("SIZE", "4000")))


def test_outputs_that_nothing_computes_have_no_task() -> None:
    constant = "c = Constant <value = float[1] {1.0}> ()"
    graph = model(
        f"g (float[4] x) => (float[4] x, float[4] y, float[1] c) {{ y = Neg(x) {constant} }}"
    )
    found = program(network(graph))
    assert found.graph.tasks == 1
    results = found.run({"x": np.arange(4)})
    assert results["x"].tolist() == [0, 1, 2, 3] and results["c"].tolist() == [1]
    with pytest.raises(InputError, match="no operator to schedule"):
        network(model("g (float[4] x) => (float[4] x) { }"))


def test_operators_without_an_expansion_are_listed_at_once() -> None:
    graph = model(
        "g (float[n] x) => (int64[1,m] y, int64[2,k] z) { y = NonZero(x) z = NonZero(y) }"
    )
    for opaque in (False, True):  # their sizes are not known
        with pytest.raises(UnsupportedError, match="2 operators have no expansion"):
            network(graph, opaque=opaque)
