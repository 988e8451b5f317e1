"""The derivative of MaxPool against PyTorch's: windows of every kind, ties, edges, NaNs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.numpy_helper
import onnx.parser
import pytest

import tilewright as tw
from tests.graph.test_greedy import lowered
from tilewright.graph.interp import evaluate
from tilewright.graph.nodes import Graph

torch = pytest.importorskip("torch")
F = torch.nn.functional

# Geometry: the shape of x, the window, and torch's stride, padding, dilation and ceil_mode.
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], Any, Any, Any, bool]] = {
    "side by side": ((2, 3, 6, 8), (2, 2), 2, 0, 1, False),
    "overlapping, padded": ((2, 16, 7, 8), (3, 3), 2, 1, 1, False),
    "stride of one": ((1, 5, 6, 5), (3, 2), 1, (1, 0), 1, False),
    "apart": ((1, 4, 9, 7), (2, 1), (3, 2), 0, 1, False),
    "dilated": ((1, 4, 9, 11), (3, 2), 2, 1, (2, 3), False),
    "rounded up": ((1, 3, 8, 6), (3, 3), (2, 4), 1, 1, True),
    "one axis": ((2, 5, 11), (5,), 3, 2, 1, False),
    "three axes": ((1, 2, 5, 4, 6), (2, 3, 2), 2, (1, 1, 0), 1, False),
    "the whole image": ((2, 3, 4, 5), (4, 5), 1, 0, 1, False),
}


def model(shape: Any, kernel: Any, stride: Any, pad: Any, dilation: Any, ceil: bool,
          dtype: str = "float") -> onnx.ModelProto:  # fmt: skip
    """The sum of the windows' maxima, each times a weight."""

    def each(n: Any) -> list[int]:
        return [n] * len(kernel) if isinstance(n, int) else list(n)

    attributes = (
        f"kernel_shape={[*kernel]}, strides={each(stride)}, pads={each(pad) * 2}"
    )
    attributes += f", dilations={each(dilation)}, ceil_mode={int(ceil)}"
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g ({dtype}{list(shape)} x, {dtype}[] w) => '
        f"({dtype} s) {{ y = MaxPool<{attributes}>(x) p = Mul(y, w) "
        "s = ReduceSum<keepdims=0>(p) }"
    )


def gradients(x: np.ndarray, case: Any, dtype: str = "float") -> tuple[Any, Any]:
    """Ours and PyTorch's, for random weights of the maxima."""
    _, kernel, *rest = case
    pool = [F.max_pool1d, F.max_pool2d, F.max_pool3d][len(kernel) - 1]
    t = torch.tensor(x, requires_grad=True)
    y = pool(t, kernel, *rest)
    w = np.random.default_rng(1).uniform(0.5, 1.5, y.shape).astype(x.dtype)
    y.backward(torch.tensor(w))
    graph = tw.grad(_sized(model(x.shape, *case[1:], dtype), w.shape), "x")
    return tw.compile(graph, threads=1)(x=x, w=w), t.grad.numpy()


def _sized(source: onnx.ModelProto, shape: Any) -> onnx.ModelProto:
    dims = source.graph.input[1].type.tensor_type.shape.dim
    for n in shape:
        dims.add().dim_value = n
    return source


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_the_first_of_equal_maxima_gets_it_all(name: str) -> None:
    """Numbers 0 to 2: nearly every window has ties, and so has the padding with -inf."""
    case = CASES[name]
    x = np.random.default_rng(0).integers(0, 3, case[0]).astype(np.float32)
    x.reshape(-1)[::7] = -np.inf
    got, want = gradients(x, case)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_windows_of_nothing_but_the_smallest() -> None:
    """Not the padding, which is as small: the first element of the image."""
    case = CASES["overlapping, padded"]
    got, want = gradients(np.full(case[0], -np.inf, np.float32), case)
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize(("dtype", "kind"), [("double", "f8"), ("float16", "f2")])
def test_other_floats(dtype: str, kind: str) -> None:
    case = CASES["overlapping, padded"]
    x = np.random.default_rng(0).integers(0, 4, case[0]).astype(kind)
    got, want = gradients(x, case, dtype)
    assert got.dtype == x.dtype
    np.testing.assert_allclose(got, want, rtol=2e-3 if kind == "f2" else 1e-12)


def test_nothing_is_lost_beside_a_nan() -> None:
    """The first NaN of a window gets its gradient (PyTorch's: the last)."""
    case = CASES["stride of one"]
    x = np.random.default_rng(0).standard_normal(case[0]).astype(np.float32)
    x[0, :, 2, 2] = np.nan
    got, want = gradients(x, case)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    x[0, :, 2, 3] = np.nan
    got, want = gradients(x, case)
    np.testing.assert_allclose(got.sum(), want.sum(), rtol=1e-5)
    assert (got[0, :, 2, 2] > want[0, :, 2, 2]).all()


def test_indices_name_the_winners() -> None:
    """By columns, the element below the first one comes before the one beside it."""
    source = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[1, 1, 2, 2] x) => (float s) '
        "{ y, i = MaxPool<kernel_shape=[2, 2], storage_order=1>(x) "
        "s = ReduceSum<keepdims=0>(y) }"
    )
    x = np.array([0, 1, 1, 0], np.float32).reshape(1, 1, 2, 2)
    dx = tw.compile(tw.grad(source), threads=1)(x)
    np.testing.assert_array_equal(dx.reshape(-1), [0, 0, 1, 0])


def test_it_is_a_gather_stored_as_its_operands() -> None:
    """All channels at once, and nothing is added to what others add to."""
    from tilewright.driver import text

    shape, *rest = CASES["overlapping, padded"]
    source = _sized(model(shape, *rest), (2, 16, 4, 4))
    graph: Graph = tw.grad(source, "x")
    assert "MaxPoolGradient" in {op.op_type for op in graph.operations}
    plan = text(graph, "plan")
    assert "winner: int32[2, 4, 4, 16]" in plan


def test_greedy_steps_on_both_sides_of_it() -> None:
    """The sum of two convolutions of the maxima is one, and so are its two gradients' factors."""
    source = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[2, 4, 7, 6] x) => (float y) '
        "{ m = MaxPool<kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]>(x) "
        "a = Conv(m, k) b = Conv(m, l) s = Add(a, b) q = Mul(s, s) "
        "y = ReduceSum<keepdims=0>(q) }"
    )
    rng = np.random.default_rng(0)
    k, m = rng.integers(-2, 3, (2, 3, 4, 3, 3)).astype(np.float32)
    for name, array in (("k", k), ("l", m)):
        source.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    graph = tw.grad(source, "x")
    found, steps, _ = lowered(graph)
    assert "sum-of-convolutions-of-one-image" in {s.rule for s in steps}
    assert "MaxPoolGradient" in {op.op_type for op in found.operations}
    x = rng.integers(-3, 4, (2, 4, 7, 6)).astype(np.float32)
    leaf = torch.tensor(x, requires_grad=True)
    pooled = F.max_pool2d(leaf, 3, 2, 1)
    F.conv2d(pooled, torch.tensor(k + m)).square().sum().backward()
    want = leaf.grad.numpy()
    np.testing.assert_array_equal(*evaluate(found, {"x": x}).values(), want)
    exe: Any = tw.compile(found, threads=1, cache=False)
    np.testing.assert_array_equal(exe(x), want)  # whole numbers: any order of sums


WEIGHTS = {"k": (8, 1, 3, 3), "b": (8,), "w": (4, 32)}


def test_a_convolutional_network_trains_as_in_torch() -> None:
    """A convolution, a pooling whose windows overlap, and a product."""
    source = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[6, 1, 6, 6] x) => (float[6, 4] y) '
        "{ c = Conv(x, k, b) r = Relu(c) m = MaxPool<kernel_shape=[3, 3], strides=[2, 2], "
        "pads=[1, 1, 1, 1]>(r) f = Flatten(m) y = Gemm<transB=1>(f, w) }"
    )
    rng = np.random.default_rng(0)
    start = {n: rng.normal(0, 0.4, s).astype(np.float32) for n, s in WEIGHTS.items()}
    for name, array in start.items():
        source.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    x, t = rng.standard_normal((6, 1, 6, 6)).astype(np.float32), rng.integers(0, 4, 6)
    step = tw.compile_training_step(
        source, "cross_entropy", tw.optim.SGD(0.2), threads=1
    )
    p = {n: torch.tensor(a, requires_grad=True) for n, a in start.items()}
    losses, wanted = [], []
    for _ in range(10):
        losses.append(step.step(x, t))
        pooled = F.max_pool2d(F.conv2d(torch.tensor(x), p["k"], p["b"]).relu(), 3, 2, 1)
        loss = F.cross_entropy(pooled.flatten(1) @ p["w"].T, torch.tensor(t))
        loss.backward()
        wanted.append(loss.item())
        for tensor in p.values():
            tensor.data -= 0.2 * tensor.grad
            tensor.grad = None
    np.testing.assert_allclose(losses, wanted, rtol=1e-3)
    assert losses[-1] < 0.5 * losses[0]
    for name, array in step.parameters.items():
        np.testing.assert_allclose(
            array, p[name].detach().numpy(), rtol=1e-3, atol=1e-4
        )
