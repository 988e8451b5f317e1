"""Dynamic loss scaling: what is skipped, how the scale changes, and PyTorch's for comparison."""

from itertools import pairwise

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

import tilewright as tw
from tilewright.base.dtypes import float32
from tilewright.base.errors import ExecutionError, InputError, ModelError
from tilewright.graph.interp import evaluate
from tilewright.graph.loss_scale import LossScale, all_finite
from tilewright.graph.nodes import Graph, Value
from tilewright.graph.ops.fragment import Fragment

RNG = np.random.default_rng(8)
W1 = RNG.standard_normal((5, 4)).astype(np.float32)
B1 = RNG.standard_normal(5).astype(np.float32)
W2 = RNG.standard_normal((3, 5)).astype(np.float32)
LAYERS = "f = Gemm<transB=1>(x, w1, b1) h = Tanh(f) y = Gemm<transB=1>(h, w2)"
BATCHES = [
    (RNG.standard_normal((6, 4)).astype(np.float32), RNG.integers(0, 3, 6))
    for _ in range(8)
]


def parsed(source, result, body, **weights):
    text = f'<ir_version: 10, opset_import: ["": 21]> g ({source}) => ({result})'
    model = onnx.parser.parse_model(f"{text} {{ {body} }}")
    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def network():
    return parsed("float[6, 4] x", "float[6, 3] y", LAYERS, w1=W1, b1=B1, w2=W2)


def scaled(rule, scale=None, **options):
    return tw.compile_training_step(
        network(), "cross_entropy", rule, loss_scale=scale, threads=1, **options
    )


def state_of(step, folder):
    """All that a step saves."""
    step.save(folder / "state.npz")
    with np.load(folder / "state.npz") as file:
        return {name: file[name] for name in file.files}


AFTER = {
    "counted": ((8.0, 0, True), (8.0, 1)),
    "one before the interval": ((8.0, 1, True), (8.0, 2)),
    "raised at the interval": ((8.0, 2, True), (24.0, 0)),
    "lowered": ((8.0, 2, False), (2.0, 0)),
    "lowered at once": ((8.0, 0, False), (2.0, 0)),
    "not beyond float32": ((3e38, 2, True), (3e38, 0)),
}


@pytest.mark.parametrize("name", AFTER)
def test_the_scale_after_a_step(name):
    rule = LossScale(8.0, growth=3.0, backoff=0.25, interval=3)
    before, after = AFTER[name]
    assert rule.after(*before) == after


def test_the_defaults_are_those_of_pytorch():
    rule = tw.optim.LossScale()
    assert (rule.initial, rule.growth, rule.backoff, rule.interval) == (
        65536,
        2,
        0.5,
        2000,
    )
    assert scaled(tw.optim.SGD(), precision="float16").loss_scale == 65536
    assert scaled(tw.optim.SGD()).loss_scale is None
    assert scaled(tw.optim.SGD(), precision="bfloat16").loss_scale is None


WRONG = {
    "initial": [0, -1.0, float("inf"), float("nan"), "8", 1e39],
    "growth": [0.5, float("inf"), None],
    "backoff": [0, -0.5, 1, 1.0, 1.5, float("nan")],
    "interval": [0, 1.5, -3, True],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_setting_out_of_range_is_refused(name):
    for value in WRONG[name]:
        with pytest.raises(InputError, match=f"LossScale: {name}="):
            LossScale(**{name: value})


def test_what_is_no_loss_scale_is_refused():
    with pytest.raises(InputError, match="loss_scale is 1024"):
        scaled(tw.optim.SGD(), 1024, precision="float16")


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, None])
@pytest.mark.parametrize("where", range(3))
def test_one_element_of_any_gradient_decides(bad, where):
    """An empty gradient is finite, and so is the largest number."""
    shapes = [(2, 3), (), (5,), (0, 4)]
    values = [Value(f"g{n}", float32, shape) for n, shape in enumerate(shapes)]
    f = Fragment("t", {})
    (out,) = [all_finite(f, values)]
    graph = Graph("t", tuple(values), (out,), tuple(f.operations), dict(f.constants))
    arrays = [np.full(s, np.finfo(np.float32).max, np.float32) for s in shapes]
    if bad is not None:
        arrays[where][(-1,) * arrays[where].ndim] = bad
    want = float(bad is None)
    feeds = {v.name: a for v, a in zip(values, arrays, strict=True)}
    assert evaluate(graph, feeds)[out.name] == want
    for math in ("default", "fast"):
        assert tw.compile(graph, threads=1, math=math)(*arrays) == want


@pytest.mark.parametrize("bad", [np.inf, np.nan, 1e6])
def test_a_step_with_infinite_gradients_changes_only_the_scale(bad, tmp_path):
    """1e6 is infinite in float16. The next step is as if nothing had been."""
    rule = LossScale(1024, interval=3)
    step = scaled(tw.optim.Adam(0.01), rule, precision="float16")
    twin = scaled(tw.optim.Adam(0.01), rule, precision="float16")
    for b in BATCHES[:2]:
        assert step.step(*b) == twin.step(*b)
    before = state_of(step, tmp_path)
    x, target = BATCHES[2]
    x = x.copy()
    x[0, 1] = bad
    step.step(x, target)
    after = state_of(step, tmp_path)
    assert (before.pop("loss_scale"), after.pop("loss_scale")) == (1024, 512)
    assert (before.pop("loss_scale.steps"), after.pop("loss_scale.steps")) == (2, 0)
    assert step.steps == 2
    for name, array in before.items():
        np.testing.assert_array_equal(array, after[name])
    assert step.step(*BATCHES[3]) == twin.step(*BATCHES[3])
    for name, array in step.parameters.items():
        np.testing.assert_allclose(array, twin.parameters[name], rtol=1e-5, atol=1e-6)
    assert (step.steps, step.loss_scale, twin.loss_scale) == (3, 512, 2048)


def test_a_power_of_two_changes_no_bit_in_float32():
    plain = scaled(tw.optim.Momentum(0.1))
    other = scaled(tw.optim.Momentum(0.1), LossScale(2.0**20, interval=2))
    for b in BATCHES:
        assert plain.step(*b) == other.step(*b)
    for name, array in plain.parameters.items():
        np.testing.assert_array_equal(array, other.parameters[name])
    assert other.loss_scale == 2.0**24


def test_small_gradients_need_the_scale():
    """Those of an error of one bit of 0.5, 1.5e-8 of each row, vanish without one."""
    w = np.full((2, 1), 0.25, np.float32)
    product = parsed("float[8, 2] x", "float[8, 1] y", "y = MatMul(x, w)", w=w)
    x = np.ones((8, 2), np.float32)
    target = np.full((8, 1), np.nextafter(np.float32(0.5), np.float32(1)))
    moved = {}
    for scale in (1.0, 65536.0):
        step = tw.compile_training_step(
            product, "mean_squared_error", tw.optim.SGD(1e5), precision="float16",
            loss_scale=LossScale(scale), threads=1,
        )  # fmt: skip
        step.step(x, target)
        moved[scale] = step.parameters["w"] - w
    assert not moved[1.0].any()
    np.testing.assert_allclose(moved[65536.0], np.full((2, 1), 2e5 * 2.0**-24))


def test_gradients_that_no_scale_mends_are_an_error():
    step = scaled(tw.optim.SGD(), LossScale(2.0**-124), precision="float16")
    x = np.full((6, 4), np.nan, np.float32)
    for _ in range(2):
        step.step(x, BATCHES[0][1])
    with pytest.raises(ExecutionError, match="infinite or NaN at every loss scale"):
        step.step(x, BATCHES[0][1])
    assert step.steps == 0


def test_the_scale_is_saved_and_restored(tmp_path):
    rule = LossScale(1024, interval=3)
    first = scaled(tw.optim.Adam(), rule, precision="float16")
    for b in BATCHES[:5]:
        first.step(*b)
    first.save(tmp_path / "at5.npz")
    second = scaled(tw.optim.Adam(), rule, precision="float16")
    second.restore(tmp_path / "at5.npz")
    assert (second.steps, second.loss_scale) == (5, 2048)
    for b in BATCHES[5:6]:  # the sixth step is the third at this scale
        assert first.step(*b) == second.step(*b)
    assert second.loss_scale == first.loss_scale == 4096
    plain = scaled(tw.optim.Adam())
    plain.restore(tmp_path / "at5.npz")  # what is over is left
    assert plain.steps == 5
    plain.save(tmp_path / "plain.npz")
    with pytest.raises(ModelError, match="the file has no array 'loss_scale'") as found:
        second.restore(tmp_path / "plain.npz")
    assert "with another optimizer or loss scale" in found.value.hint


def half(a):
    with np.errstate(over="ignore"):
        return a.astype(np.float16).astype(np.float64)


class Reference:
    """The same training in NumPy: float64 sums of products of float16, momentum, a scale."""

    def __init__(self, rate, beta, rule):
        self.p = [W1.astype(np.float64), B1.astype(np.float64), W2.astype(np.float64)]
        self.v = [np.zeros_like(a) for a in self.p]
        self.rate, self.beta, self.rule = rate, beta, rule
        self.scale, self.good, self.steps = rule.initial, 0, 0

    def step(self, x, target):
        w1, b1, w2 = self.p
        h = np.tanh(half(x) @ half(w1).T + b1)
        y = half(h) @ half(w2).T
        e = np.exp(y - y.max(-1, keepdims=True))
        soft = e / e.sum(-1, keepdims=True)
        rows = np.arange(len(target))
        loss = -np.log(soft[rows, target]).mean()
        soft[rows, target] -= 1
        with np.errstate(invalid="ignore"):
            dy = half(self.scale * soft / len(target))
            df = dy @ half(w2) * (1 - h * h)
            flows = [half(df).T @ half(x), df.sum(0), dy.T @ half(h)]
        if not all(np.isfinite(g).all() for g in flows):
            self.scale, self.good = self.scale * self.rule.backoff, 0
            return loss
        self.v = [self.beta * v + g / self.scale for v, g in zip(self.v, flows)]
        self.p = [p - self.rate * v for p, v in zip(self.p, self.v)]
        self.steps += 1
        self.good += 1
        if self.good == self.rule.interval:
            self.scale, self.good = self.scale * self.rule.growth, 0
        return loss


def test_training_agrees_with_numpy():
    """From a scale that overflows at first, so that it is lowered, kept and raised again."""
    rule = LossScale(2.0**21, interval=3)
    ours = scaled(tw.optim.Momentum(0.1), rule, precision="float16")
    theirs = Reference(0.1, 0.9, rule)
    scales = []
    for b in BATCHES * 2:
        assert ours.step(*b) == pytest.approx(theirs.step(*b), rel=1e-3)
        assert (ours.steps, ours.loss_scale) == (theirs.steps, theirs.scale)
        scales.append(ours.loss_scale)
    assert scales[0] < 2.0**21
    assert any(b > a for a, b in pairwise(scales))
    found = [ours.parameters[n] for n in ("w1", "b1", "w2")]
    for a, b in zip(found, theirs.p, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3)


def test_training_agrees_with_pytorch():
    """Sums are rounded to float16 there, and stay in float32 here. Infinite data in one step."""
    torch = pytest.importorskip("torch")
    rule = LossScale(1024, interval=3)
    ours = scaled(tw.optim.Adam(0.02), rule, precision="float16")
    p = [torch.tensor(a, requires_grad=True) for a in (W1, B1, W2)]
    optimizer = torch.optim.Adam(p, 0.02)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    for n, (x, target) in enumerate(BATCHES):
        x = np.where(n == 4, 1e6, 1).astype(np.float32) * x
        with torch.autocast("cpu", dtype=torch.float16):
            h = torch.tanh(torch.nn.functional.linear(torch.tensor(x), p[0], p[1]))
            y = torch.nn.functional.linear(h, p[2])
            loss = torch.nn.functional.cross_entropy(y.float(), torch.tensor(target))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        found = ours.step(x, target)
        assert found == pytest.approx(loss.item(), rel=1e-2, nan_ok=True)
        assert ours.loss_scale == scaler.get_scale()
    assert (ours.steps, ours.loss_scale) == (7, 2048)
    for a, b in zip((ours.parameters[n] for n in ("w1", "b1", "w2")), p, strict=True):
        np.testing.assert_allclose(a, b.detach().numpy(), rtol=2e-2, atol=2e-2)
