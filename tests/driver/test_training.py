"""Training steps: optimizers against PyTorch's, what is trained and kept, and wrong requests."""

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

import tilewright as tw
from tilewright.base.errors import InputError, ModelError, UnsupportedError
from tilewright.graph.interp import evaluate

RNG = np.random.default_rng(5)
SHAPES = {"w1": (5, 4), "b1": (5,), "w2": (3, 5)}


def network(result="float[6, 3] y", tail=""):
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21]> g (float[6, 4] x) => ({result}) {{
          f = Gemm<transB=1>(x, w1, b1)
          h = Tanh(f)
          y = Gemm<transB=1>(h, w2)
          {tail}
        }}"""
    )
    for name, shape in SHAPES.items():
        array = RNG.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def parse(text):
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')


def weights(model):
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


BATCHES = [
    (RNG.standard_normal((6, 4)).astype(np.float32), RNG.integers(0, 3, 6))
    for _ in range(5)
]


def trained_by_torch(model, make, batches):
    import torch

    p = {n: torch.tensor(a, requires_grad=True) for n, a in weights(model).items()}
    optimizer = make(torch.optim, list(p.values()))
    losses = []
    for x, t in batches:
        h = torch.tanh(torch.tensor(x) @ p["w1"].T + p["b1"])
        loss = torch.nn.functional.cross_entropy(h @ p["w2"].T, torch.tensor(t))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {n: v.detach().numpy() for n, v in p.items()}


@pytest.mark.parametrize(
    ("rule", "make"),
    [
        (tw.optim.SGD(0.1), lambda o, p: o.SGD(p, 0.1)),
        (tw.optim.SGD(0.1, 0.05), lambda o, p: o.SGD(p, 0.1, weight_decay=0.05)),
        (tw.optim.Momentum(0.1), lambda o, p: o.SGD(p, 0.1, 0.9)),
        (
            tw.optim.Momentum(0.1, 0.8, nesterov=True),
            lambda o, p: o.SGD(p, 0.1, 0.8, nesterov=True),
        ),
        (tw.optim.Adam(0.02), lambda o, p: o.Adam(p, 0.02)),
        (tw.optim.AdamW(0.02), lambda o, p: o.AdamW(p, 0.02)),
    ],
    ids=["sgd", "decay", "momentum", "nesterov", "adam", "adamw"],
)
def test_optimizers_agree_with_torch(rule, make):
    pytest.importorskip("torch")
    model = network()
    step = tw.compile_training_step(model, "cross_entropy", rule, threads=1)
    losses = [step.step(*b) for b in BATCHES]
    want, parameters = trained_by_torch(model, make, BATCHES)
    np.testing.assert_allclose(losses, want, rtol=1e-5)
    for name, array in step.parameters.items():
        np.testing.assert_allclose(array, parameters[name], rtol=1e-4, atol=1e-5)


def test_the_trained_model_computes_with_the_new_parameters():
    model = network()
    step = tw.compile_training_step(model, "cross_entropy", threads=1)
    step.step(*BATCHES[0])
    trained = step.model()
    for name, array in weights(trained).items():
        np.testing.assert_array_equal(array, step.parameters[name])
    assert not np.array_equal(weights(trained)["w1"], weights(model)["w1"])
    p = step.parameters
    want = np.tanh(BATCHES[0][0] @ p["w1"].T + p["b1"]) @ p["w2"].T
    got = tw.compile(trained, threads=1)(BATCHES[0][0])
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_what_was_saved_goes_on_alike(tmp_path):
    model = network()
    first = tw.compile_training_step(model, "cross_entropy", tw.optim.Adam(), threads=1)
    for b in BATCHES[:2]:
        first.step(*b)
    first.save(tmp_path / "at2.npz")
    second = tw.compile_training_step(
        model, "cross_entropy", tw.optim.Adam(), threads=1
    )
    second.restore(tmp_path / "at2.npz")
    assert second.steps == 2
    for b in BATCHES[2:]:
        assert first.step(*b) == second.step(*b)
    other = tw.compile_training_step(
        model, "cross_entropy", tw.optim.Momentum(), threads=1
    )
    with pytest.raises(ModelError, match=r"the file has no array 'w2\.state1'"):
        tw.compile_training_step(
            model, "cross_entropy", tw.optim.Adam(), parameters=["w2", "b1", "w1"],
            threads=1,
        ).restore(_saved(other, tmp_path))  # fmt: skip
    assert sorted(p.name for p in tmp_path.iterdir()) == ["at2.npz", "other.npz"]


def _saved(step, folder):
    step.save(folder / "other.npz")
    return folder / "other.npz"


def test_only_the_chosen_parameters_change():
    model = network()
    step = tw.compile_training_step(
        model, "cross_entropy", parameters=["w2"], threads=1
    )
    step.step(*BATCHES[0])
    assert list(step.parameters) == ["w2"]
    after = weights(step.model())
    np.testing.assert_array_equal(after["w1"], weights(model)["w1"])
    assert not np.array_equal(after["w2"], weights(model)["w2"])


def test_the_rate_may_change_between_steps():
    step = tw.compile_training_step(network(), "cross_entropy", threads=1)
    step.learning_rate = 0.0
    before = step.parameters
    step.step(*BATCHES[0])
    for name, array in step.parameters.items():
        np.testing.assert_array_equal(array, before[name])


def test_a_loss_of_the_models_own():
    model = network("float loss", "s = Mul(y, y) loss = ReduceMean<keepdims=0>(s)")
    step = tw.compile_training_step(model, "loss", tw.optim.SGD(0.1), threads=1)
    losses = [step.step(BATCHES[0][0]) for _ in range(20)]
    assert losses[-1] < 0.5 * losses[0]


def test_a_torch_module():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
    )
    first = {n: p.detach().numpy().copy() for n, p in module.named_parameters()}
    x, t = BATCHES[0]
    step = tw.compile_training_step(
        module, "cross_entropy", tw.optim.SGD(0.1), (torch.tensor(x),), threads=1
    )
    loss = torch.nn.functional.cross_entropy(module(torch.tensor(x)), torch.tensor(t))
    loss.backward()
    assert step.step(x, t) == pytest.approx(loss.item(), rel=1e-5)
    assert set(step.parameters) == set(first)
    for n, p in module.named_parameters():
        want = first[n] - 0.1 * p.grad.numpy()
        np.testing.assert_allclose(step.parameters[n], want, rtol=1e-5, atol=1e-6)


def tied():
    """A module with a shared, a frozen and an unused parameter, and one named as its input.

    PyTorch's ONNX exporter converts erfcx wrongly.
    """
    import torch

    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words = torch.nn.Embedding(7, 6)
            self.scores = torch.nn.Linear(6, 7, bias=False)
            self.scores.weight = self.words.weight
            self.norm = torch.nn.BatchNorm1d(6)
            self.norm.running_mean.normal_()
            self.norm.running_var.uniform_(0.5, 2)
            self.ids = torch.nn.Parameter(torch.rand(6))
            self.fixed = torch.nn.Parameter(torch.randn(6), requires_grad=False)
            self.unused = torch.nn.Linear(3, 3)

        def forward(self, ids):
            h = self.words(ids) * torch.special.erfcx(self.ids)
            h = self.norm(h + self.fixed.exp())
            return self.scores(torch.special.erfcx(h.sigmoid()))

    torch.manual_seed(0)
    return Tied()


def computed(graph, x):
    (found,) = evaluate(graph, {graph.inputs[0].name: x.numpy()}).values()
    return found


@pytest.mark.parametrize(
    "exported", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_modules_train_by_the_rules_for_pytorchs_operators(exported):
    torch = pytest.importorskip("torch")
    module, (ids, t) = tied(), torch.randint(0, 7, (2, 5))
    given = torch.export.export(module.eval(), (ids,)) if exported else module
    step = tw.compile_training_step(
        given, "cross_entropy", tw.optim.SGD(0.1), (ids,), threads=1
    )
    before = computed(step.model(), ids)
    loss = step.step(ids, t)
    scores = module.eval()(ids)
    wanted = torch.nn.functional.cross_entropy(scores, t)
    wanted.backward()
    np.testing.assert_allclose(before, scores.detach().numpy(), atol=1e-6)
    assert loss == pytest.approx(wanted.item(), rel=1e-5)
    named = dict(module.named_parameters())
    assert (
        set(step.parameters) == {n for n, p in named.items() if p.grad is not None}
        and "fixed" not in step.parameters
    )
    torch.optim.SGD(named.values(), 0.1).step()
    for name, array in step.parameters.items():
        want = named[name].detach().numpy()
        np.testing.assert_allclose(array, want, rtol=1e-5, atol=1e-6)
    after = module(ids).detach().numpy()
    np.testing.assert_allclose(computed(step.model(), ids), after, atol=1e-6)


def stopped(further):
    """A module in which some results have no gradient."""
    import torch

    class Stopped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(4, 3)

        def forward(self, x):
            h = self.first(x)
            with torch.no_grad():
                middle = h.mean(0)
            return further(h * h.detach().exp() - middle)

    torch.manual_seed(0)
    return Stopped()


def test_gradients_stop_where_pytorchs_do():
    torch = pytest.importorskip("torch")
    module, (x, t) = stopped(torch.tanh), BATCHES[0]
    optimizer = tw.optim.SGD(0.1)
    step = tw.compile_training_step(module, "cross_entropy", optimizer, (x,), threads=1)
    scores = module(torch.tensor(x))
    torch.nn.functional.cross_entropy(scores, torch.tensor(t)).backward()
    step.step(x, t)
    for name, p in module.named_parameters():
        want = (p - 0.1 * p.grad).detach().numpy()
        np.testing.assert_allclose(step.parameters[name], want, atol=1e-6)


def test_stops_that_pytorch_would_lose_are_refused():
    torch = pytest.importorskip("torch")
    decomposed = torch.nn.HuberLoss(reduction="none")
    module = stopped(lambda y: decomposed(y, y.tanh()))
    with pytest.raises(UnsupportedError, match="stops a gradient") as caught:
        tw.compile_training_step(module, "cross_entropy", None, (BATCHES[0][0],))
    assert str(caught.value).startswith("mean:")


def test_a_modules_batch_may_be_given_later():
    torch = pytest.importorskip("torch")
    step = tw.compile_training_step(
        torch.nn.Linear(4, 3),
        "cross_entropy",
        example_inputs=(torch.randn(6, 4),),
        dynamic_shapes=({0: torch.export.Dim("rows")},),
        dims={"rows": 5},
    )
    x, t = BATCHES[0]
    assert step.step(x[:5], t[:5]) > 0


def test_complex_parameters_are_refused():
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(2, 2, dtype=torch.complex64)
    with pytest.raises(InputError, match="parameter 'weight' is complex"):
        tw.compile_training_step(module, "cross_entropy", None, (torch.ones(1, 2),))


def test_a_wrong_batch_is_refused_and_changes_nothing():
    step = tw.compile_training_step(network(), "cross_entropy", threads=1)
    before = step.parameters
    x, t = BATCHES[0]
    with pytest.raises(InputError, match="'x'"):
        step.step(x[:3], t[:3])
    with pytest.raises(InputError, match="a step takes x, target"):
        step.step(x)
    with pytest.raises(InputError, match="a step takes"):
        step.step(x, labels=t)
    assert step.steps == 0
    for name, array in step.parameters.items():
        np.testing.assert_array_equal(array, before[name])
    assert step.step(x=x, target=t) == pytest.approx(step.step(x, t), rel=0.5)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"loss": "hinge"}, "'hinge' is neither a loss nor an output"),
        ({"loss": "y"}, "is not a scalar"),
        ({"loss": "cross_entropy", "parameters": ["w3"]}, "no parameter 'w3'"),
        ({"loss": "cross_entropy", "parameters": []}, "no parameters to train"),
    ],
)
def test_wrong_requests(how, said):
    with pytest.raises(InputError, match=said):
        tw.compile_training_step(network(), **how)


def test_a_parameter_that_does_not_reach_the_loss():
    model = network("float loss", "loss = ReduceMean<keepdims=0>(h)")
    with pytest.raises(InputError, match="'w2' does not reach the loss"):
        tw.compile_training_step(model, "loss", parameters=["w1", "w2"])


@pytest.mark.parametrize(
    "make",
    [
        lambda: tw.optim.SGD(-1.0),
        lambda: tw.optim.Adam(beta1=1.0),
        lambda: tw.optim.Momentum(beta=-0.1),
        lambda: tw.optim.SGD(float("nan")),
        lambda: tw.optim.Adam(beta1="0.9"),
    ],
)
def test_settings_out_of_range(make):
    with pytest.raises(InputError):
        make()


def line(kind="float", x="x", w="w"):
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        g ({kind}[4, 2] {x}) => ({kind}[4, 1] y) {{ y = MatMul({x}, {w}) }}"""
    model = onnx.parser.parse_model(text)
    dtype = np.float16 if kind == "float16" else np.float32
    zeros = np.zeros((2, 1), dtype)
    model.graph.initializer.append(numpy_helper.from_array(zeros, w))
    return model


@pytest.mark.parametrize(
    ("make", "optimizer", "said"),
    [
        (lambda: line(x="target"), tw.optim.SGD(), "already has an input 'target'"),
        (lambda: line(w="target"), tw.optim.SGD(), "already has an input 'target'"),
        (lambda: line("float16"), tw.optim.Adam(), "epsilon=1e-08 is 0 in float16"),
        (line, tw.optim.Adam, "the optimizer is <class"),
        (line, "adam", "the optimizer is 'adam'"),
    ],
)
def test_what_cannot_be_trained_is_said(make, optimizer, said):
    with pytest.raises(InputError, match=said):
        tw.compile_training_step(make(), "mean_squared_error", optimizer)


def test_what_no_step_saved_is_refused_and_changes_nothing(tmp_path):
    step = tw.compile_training_step(line(), "mean_squared_error", tw.optim.Adam())
    step.step(np.ones((4, 2), np.float32), np.ones((4, 1), np.float32))
    whole = tmp_path / "whole.npz"
    step.save(whole)
    content = whole.read_bytes()
    saved = dict(np.load(whole))
    before = step.parameters["w"]
    (tmp_path / "cut").write_bytes(content[: len(content) // 2])
    (tmp_path / "text").write_text("hello")
    for name, other in (
        ("count", {k: a for k, a in saved.items() if k != "step"}),
        ("type", saved | {"parameter.w": saved["parameter.w"].astype(str)}),
        ("shape", saved | {"parameter.w": np.zeros((2, 2), np.float32)}),
    ):
        with (tmp_path / name).open("wb") as file:
            np.savez(file, **other)
    for name in ("cut", "text", "count", "type", "shape", "none"):
        with pytest.raises(ModelError, match=name):
            step.restore(tmp_path / name)
        np.testing.assert_array_equal(step.parameters["w"], before)
        assert step.steps == 1
    step.restore(whole)


def test_a_loss_of_one_element_with_axes():
    model = network("float[1, 1] loss", "loss = ReduceMean(h)")
    step = tw.compile_training_step(model, "loss", parameters="w1")
    assert isinstance(step.step(np.ones((6, 4), np.float32)), float)


def deep(layers=5, rows=512, width=64):
    """Products with a map behind each, whose operand and result are both kept for derivatives."""
    body = "".join(
        f" u{i} = MatMul(g{i}, w{i}) g{i + 1} = Gelu(u{i})" for i in range(layers)
    )
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[{rows}, {width}] g0) => (float loss) {{ {body}
          s = Mul(g{layers}, g{layers}) loss = ReduceMean<keepdims=0>(s) }}"""
    )
    for i in range(layers):
        array = RNG.standard_normal((width, width)) / np.sqrt(width)
        model.graph.initializer.append(
            numpy_helper.from_array(array.astype(np.float32), f"w{i}")
        )
    return model


def test_recomputing_saves_memory_and_changes_no_bit():
    model, x = deep(4), RNG.standard_normal((512, 64)).astype(np.float32)
    steps = [
        tw.compile_training_step(model, "loss", remat=remat, threads=1)
        for remat in (False, True)
    ]
    losses = [[s.step(x) for _ in range(3)] for s in steps]
    assert losses[0] == losses[1]
    for name, array in steps[0].parameters.items():
        np.testing.assert_array_equal(array, steps[1].parameters[name])
    peaks = [s._run.peak_bytes for s in steps]
    assert peaks[1] <= peaks[0] - 2 * x.nbytes


def test_a_memory_limit_for_the_step():
    model = deep()
    with pytest.raises(
        tw.TilewrightError, match=r"over the limit of 1,000; use smaller"
    ):
        tw.compile_training_step(model, "loss", remat=1000)


@pytest.mark.parametrize("shape", [(3,), (2, 2)])
def test_targets_are_classes_or_ignored_as_in_pytorch(shape):
    torch = pytest.importorskip("torch")
    source = parse(
        f"line (float[{', '.join(map(str, shape))}, 2] x) => "
        f"(float[{', '.join(map(str, shape))}, 4] y) {{ y = MatMul(x, w) }}"
    )
    rng = np.random.default_rng(2)
    w = rng.standard_normal((2, 4)).astype(np.float32)
    source.graph.initializer.append(numpy_helper.from_array(w, "w"))
    step = tw.compile_training_step(source, "cross_entropy", tw.optim.SGD(0.5))
    x = rng.standard_normal((*shape, 2)).astype(np.float32)
    target = rng.integers(0, 4, shape)
    target.reshape(-1)[1] = -100
    other = torch.tensor(w, requires_grad=True)
    scores = (torch.tensor(x) @ other).reshape(-1, 4)
    wanted = torch.nn.functional.cross_entropy(scores, torch.tensor(target).reshape(-1))
    wanted.backward()
    for wrong in (-1, -4, 4, 100, -101):
        bad = target.copy()
        bad.reshape(-1)[2] = wrong
        with pytest.raises(
            InputError, match=rf"target\[.*\] is {wrong}, not one of the 4"
        ):
            step.step(x, bad)
        assert step.steps == 0
    assert step.step(x, target) == pytest.approx(wanted.item(), rel=1e-5)
    moved = (w - step.parameters["w"]) / 0.5
    np.testing.assert_allclose(moved, other.grad.numpy(), rtol=1e-4, atol=1e-6)
    assert np.isnan(step.step(x, np.full(shape, -100)))


def test_a_class_without_any_chance_costs_what_it_must():
    """The score of another class may be minus infinity: 0 * inf is not a part of the sum."""
    source = parse("line (float[1, 3] x) => (float[1, 3] y) { y = Add(x, b) }")
    source.graph.initializer.append(
        numpy_helper.from_array(np.zeros(3, np.float32), "b")
    )
    step = tw.compile_training_step(source, "cross_entropy", tw.optim.SGD(1.0))
    x = np.array([[0.0, 0.0, -np.inf]], np.float32)
    assert step.step(x, np.array([1])) == pytest.approx(np.log(2), rel=1e-6)
