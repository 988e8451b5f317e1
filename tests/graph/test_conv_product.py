"""Convolutions as products of matrices: where, and that they and their derivatives are right."""

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tilewright.base import events
from tilewright.frontends.onnx.load import load
from tilewright.graph import interp
from tilewright.graph.rules.conv_product import CONV_PRODUCT
from tilewright.graph.rules.driver import rewrite

RNG = np.random.default_rng(3)
PADDED = "<pads = [1, 0, 2, 1], strides = [2, 1], dilations = [1, 2]>"


def graph_of(inputs, out, body, dtype="float", opset=22):
    given = ", ".join(
        f"{dtype}[{', '.join(map(str, s))}] {n}" for n, s in inputs.items()
    )
    return load(
        onnx.parser.parse_model(
            f'<ir_version: 10, opset_import: ["": {opset}]> '
            f"f ({given}) => ({dtype}[{', '.join(map(str, out))}] y) {{ {body} }}"
        )
    )


SHAPES = {"x": (2, 3, 4, 4), "w": (8, 3, 3, 3), "b": (8,)}
FIRES = {
    "plain": (SHAPES, (2, 8, 2, 2), "y = Conv(x, w, b)"),
    "no bias": ({"x": (1, 3, 4), "w": (8, 3, 1)}, (1, 8, 4), "y = Conv(x, w)"),
    "padded": (
        {"x": (2, 3, 4, 6), "w": (32, 3, 3, 2)}, (2, 32, 3, 5),
        f"y = Conv{PADDED}(x, w)",
    ),
    "as many positions as channels": (
        {"x": (2, 3, 4, 4), "w": (8, 3, 3, 3)}, (2, 8, 2, 2), "y = Conv(x, w)",
    ),
    "padded by itself": (
        {"x": (1, 2, 3, 3), "w": (9, 2, 2, 2)}, (1, 9, 3, 3),
        'y = Conv<auto_pad = "SAME_LOWER">(x, w)',
    ),
}  # fmt: skip
KEEPS_OFF = {
    "more positions than channels": (
        {"x": (2, 3, 4, 4), "w": (7, 3, 3, 3)}, (2, 7, 2, 2), "y = Conv(x, w)", "float",
    ),
    "groups": (
        {"x": (1, 4, 3, 3), "w": (8, 2, 2, 2)}, (1, 8, 2, 2),
        "y = Conv<group = 2>(x, w)", "float",
    ),
    "half precision": (SHAPES, (2, 8, 2, 2), "y = Conv(x, w, b)", "float16"),
    "constant weights": (
        {"x": (1, 1, 2, 2)}, (1, 4, 2, 2),
        "w = Constant<value = float[4,1,1,1] {1.0, 2.0, 3.0, 4.0}>() y = Conv(x, w)",
        "float",
    ),
    "no images": ({"x": (0, 3, 4, 4), "w": (8, 3, 3, 3)}, (0, 8, 2, 2),
                  "y = Conv(x, w)", "float"),
}  # fmt: skip


def drawn(graph):
    return {
        v.name: RNG.standard_normal(v.extents).astype(v.dtype.numpy)
        for v in graph.inputs
    }


@pytest.mark.parametrize("name", FIRES)
def test_few_positions_are_a_product(name):
    graph = graph_of(*FIRES[name])
    after = rewrite(graph, [CONV_PRODUCT])
    assert "Conv" not in {op.qualified for op in after.operations}
    feeds = drawn(graph)
    [want] = interp.evaluate(graph, feeds).values()
    [got] = interp.evaluate(after, feeds).values()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        tw.compile(after)(*feeds.values()), want, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("name", KEEPS_OFF)
def test_other_convolutions_stay(name):
    graph = graph_of(*KEEPS_OFF[name])
    assert rewrite(graph, [CONV_PRODUCT]) is graph


def test_derivatives_are_those_of_the_convolution():
    inputs, _, body = FIRES["padded"]
    given = ", ".join(
        f"double[{', '.join(map(str, s))}] {n}" for n, s in inputs.items()
    )
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 22]> f ({given}) => (double loss) {{ '
        f"{body} s = Mul(y, y) loss = ReduceSum<keepdims = 0>(s) }}"
    )
    graph = load(model)
    product = rewrite(graph, [CONV_PRODUCT])
    assert product is not graph
    feeds = [a.astype(np.float64) for a in drawn(graph).values()]
    wanted = tw.compile(tw.grad(graph))(*feeds)
    found = tw.compile(tw.grad(product))(*feeds)
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def small_network(torch, convolutions):
    torch.manual_seed(1)
    layers = [torch.nn.Conv2d(3, 32, 3, 2, 1), torch.nn.ReLU()]
    if convolutions == 2:
        layers.append(torch.nn.Conv2d(32, 32, 3, padding=1))
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(32 * 16, 5))


@pytest.mark.parametrize(
    ("math", "convolutions"),
    [
        ("default", 2),
        ("exact", 1),
        pytest.param("exact", 2, marks=pytest.mark.slow),
    ],
)
def test_a_training_step_uses_it_unless_exact(math, convolutions):
    torch = pytest.importorskip("torch")
    module = small_network(torch, convolutions)
    x, t = torch.randn(2, 3, 8, 8), torch.tensor([1, 4])
    with events.record() as log:
        step = tw.compile_training_step(
            module, "cross_entropy", tw.optim.SGD(0.1), (x,), math=math
        )
    rules = [e.fields["rule"] for e in log if e.kind == "rule"]
    assert rules.count(CONV_PRODUCT.name) == (2 if math == "default" else 0)
    loss = step.step(x.numpy(), t.numpy())
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    wanted = torch.nn.functional.cross_entropy(module(x), t)
    wanted.backward()
    optimizer.step()
    assert loss == pytest.approx(wanted.item(), rel=1e-5)
    for name, p in module.named_parameters():
        np.testing.assert_allclose(
            step.parameters[name], p.detach().numpy(), rtol=1e-4, atol=1e-6
        )
