"""The derivatives of LSTM, GRU and RNN: against central differences, and PyTorch's."""

import numpy as np
import onnx
import pytest
from onnx import helper

import tilewright as tw

RNG = np.random.default_rng(11)
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, BATCH, WIDTH, UNITS = 4, 3, 2, 5


def arrays(kind, directions=1, state=True, peepholes=False, dtype=np.float64):
    """The operands by the names of ONNX."""
    rows = GATES[kind] * UNITS

    def drawn(*shape):
        return RNG.uniform(-0.8, 0.8, shape).astype(dtype)

    found = {
        "X": drawn(STEPS, BATCH, WIDTH),
        "W": drawn(directions, rows, WIDTH),
        "R": drawn(directions, rows, UNITS),
        "B": drawn(directions, 2 * rows),
    }
    if state:
        found["initial_h"] = drawn(directions, BATCH, UNITS)
        if kind == "LSTM":
            found["initial_c"] = drawn(directions, BATCH, UNITS)
    if peepholes:
        found["P"] = drawn(directions, 3 * UNITS)
    return found


def loss_model(kind, given, lengths=None, results=(0, 1, 2), **attributes):
    """The sum of the results, each times weights of its own, as a model of the operands."""
    names = ["X", "W", "R", "B", "lengths", "initial_h", "initial_c", "P"]
    operands = [n if n in given else "" for n in names]
    constants = {}
    if lengths is not None:
        operands[4] = "lengths"
        constants["lengths"] = np.array(lengths, np.int32)
    while not operands[-1]:
        operands.pop()
    count = 3 if kind == "LSTM" else 2
    chosen = [n for n in results if n < count]
    outputs = [f"y{n}" if n in chosen else "" for n in range(count)]
    directions = given["W"].shape[0]
    dtype = given["X"].dtype
    shapes = [(STEPS, directions, BATCH, UNITS), *[(directions, BATCH, UNITS)] * 2]
    rng = np.random.default_rng(5)
    nodes = [helper.make_node(kind, operands, outputs, hidden_size=UNITS, **attributes)]
    for n in chosen:
        constants[f"v{n}"] = rng.uniform(-1, 1, shapes[n]).astype(dtype)
        nodes.append(helper.make_node("Mul", [f"y{n}", f"v{n}"], [f"p{n}"]))
        nodes.append(helper.make_node("ReduceSum", [f"p{n}"], [f"s{n}"], keepdims=0))
    nodes.append(helper.make_node("Sum", [f"s{n}" for n in chosen], ["loss"]))
    element = helper.np_dtype_to_tensor_dtype(dtype)
    graph = helper.make_graph(
        nodes,
        "f",
        [helper.make_tensor_value_info(n, element, a.shape) for n, a in given.items()],
        [helper.make_tensor_value_info("loss", element, ())],
        [onnx.numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])


def differences(run, given, step=1e-6):
    found = []
    for name, a in given.items():
        slope = np.zeros_like(a)
        for i in np.ndindex(a.shape):
            low, high = a.copy(), a.copy()
            low[i] -= step
            high[i] += step
            ends = [run(*{**given, name: b}.values()) for b in (low, high)]
            slope[i] = (ends[1] - ends[0]) / (2 * step)
        found.append(slope)
    return found


CASES = {
    "LSTM": ("LSTM", {}, {}),
    "LSTM without states": ("LSTM", {"state": False}, {}),
    "LSTM with peepholes": ("LSTM", {"peepholes": True}, {}),
    "LSTM of sequences": ("LSTM", {}, {"lengths": [4, 1, 3]}),
    "LSTM that couples its gates": ("LSTM", {}, {"input_forget": 1}),
    "LSTM in both directions": (
        "LSTM",
        {"directions": 2, "peepholes": True},
        {"direction": "bidirectional", "lengths": [2, 4, 3]},
    ),
    "LSTM of the last state": ("LSTM", {}, {"results": (1,)}),
    "LSTM of the last cell": ("LSTM", {}, {"results": (2,)}),
    "LSTM that clips": ("LSTM", {}, {"clip": 0.3}),
    "LSTM of others": ("LSTM", {}, {"activations": ["HardSigmoid", "Softsign", "Elu"]}),
    "GRU": ("GRU", {}, {}),
    "GRU backwards": ("GRU", {}, {"direction": "reverse", "lengths": [4, 1, 3]}),
    "GRU of products": ("GRU", {}, {"linear_before_reset": 1}),
    "GRU of products, in both directions": (
        "GRU",
        {"directions": 2},
        {
            "linear_before_reset": 1,
            "direction": "bidirectional",
            "lengths": [2, 4, 3],
        },
    ),
    "RNN": ("RNN", {}, {}),
    "RNN backwards": ("RNN", {}, {"direction": "reverse", "lengths": [3, 4, 1]}),
    "RNN of every step": ("RNN", {}, {"results": (0,)}),
}


@pytest.mark.representatives("LSTM in both directions", "GRU")
@pytest.mark.parametrize("name", CASES)
def test_differences(name):
    kind, operands, attributes = CASES[name]
    given = arrays(kind, **operands)
    model = loss_model(kind, given, **attributes)
    wanted = differences(tw.compile(model), given)
    found = tw.compile(tw.grad(model, list(given)))(*given.values())
    for n, a, b in zip(given, wanted, found, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-8, err_msg=n)


def test_what_is_behind_the_end_of_a_sequence_reaches_no_state():
    given = arrays("LSTM")
    given["X"][2:, 1] = np.nan
    model = loss_model("LSTM", given, lengths=[4, 2, 3])
    found = tw.compile(tw.grad(model, ["R", "initial_h"]))(*given.values())
    for slope in found:
        assert np.isfinite(slope).all()


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("LSTM", "RNN")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["GRU", *SLOW])
def test_a_step_of_training_is_that_of_pytorch(kind):
    torch = pytest.importorskip("torch")

    class Last(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = getattr(torch.nn, kind)(6, 20, num_layers=2, batch_first=True)
            self.out = torch.nn.Linear(20, 4)

        def forward(self, x):
            return self.out(self.inner(x)[0][:, -1])

    torch.manual_seed(2)
    module = Last()
    x, t = torch.randn(3, 70, 6), torch.tensor([0, 3, 1])
    step = tw.compile_training_step(module, "cross_entropy", tw.optim.SGD(0.5), (x,))
    loss = step.step(x.numpy(), t.numpy())
    optimizer = torch.optim.SGD(module.parameters(), 0.5)
    wanted = torch.nn.functional.cross_entropy(module(x), t)
    wanted.backward()
    optimizer.step()
    assert loss == pytest.approx(wanted.item(), rel=1e-5)
    for name, p in module.named_parameters():
        np.testing.assert_allclose(
            step.parameters[name], p.detach().numpy(), rtol=1e-4, atol=1e-6
        )
