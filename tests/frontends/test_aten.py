"""Operators of ATen, one by one and in modules, compared with PyTorch."""

import importlib
import sys

import numpy as np
import pytest

from tilewright.base.errors import TilewrightError, UnsupportedError
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph import gradient
from tilewright.graph.interp import evaluate
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.passes.differentiate import extended
from tilewright.graph.specialize import specialize

torch = pytest.importorskip("torch")
F = torch.nn.functional

from tests.frontends.aten import (  # noqa: E402
    complex_pairs,
    elements,
    gradients,
    orders,
    shapes,
    special,
    spectral,
    sums,
)
from tests.frontends.aten.tensors import x  # noqa: E402
from tilewright.frontends import torch as frontend  # noqa: E402
from tilewright.frontends.torch.aten import program as programs  # noqa: E402
from tilewright.frontends.torch.aten.importer import (  # noqa: E402
    FxSource,
    ImportSettings,
    RuleRefused,
    import_graph,
    numpy_of,
)
from tilewright.frontends.torch.aten.program import import_program  # noqa: E402
from tilewright.frontends.torch.aten.rules import _RULES  # noqa: E402

CASES = elements.CASES | shapes.CASES | sums.CASES
CASES |= (
    complex_pairs.CASES
    | gradients.CASES
    | spectral.CASES
    | special.CASES
    | orders.CASES
)


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


# Nothing of the graph does these, and the error names the operator and the line.
REFUSED = {
    "eigenvalues": (lambda a: torch.linalg.eigvals(a).abs(), "aten.*eig"),
    "means of integers": (
        lambda a: F.avg_pool1d(a.long()[None], 2),
        "it averages int64",
    ),
    "a product of two types": (
        lambda a: a.half() @ a,
        "operands are float16 and float32; convert one",
    ),
    "bytes of numbers": (lambda a: a.view(torch.uint8), "a type of another size"),
    "labels of several margins": (
        lambda a: F.multilabel_margin_loss(a, torch.full(a.shape, -1)),
        "aten.multilabel_margin_loss_forward",
    ),
    "a complex input": (
        lambda a: torch.fft.fft(a).acos().abs(),
        "its numbers are complex",
    ),
}


def run(program, inputs, **symbols):
    graph = import_program(program, ImportSettings(1 << 32, OnnxFallback()))
    if symbols:
        graph = specialize(graph, symbols, fallback=OnnxFallback())
    assert len(graph.inputs) == len(inputs)
    given = {v.name: numpy_of(a) for v, a in zip(graph.inputs, inputs, strict=True)}
    return graph, evaluate(graph, given, fallback=OnnxFallback())


def check(program, inputs, expected, **symbols):
    graph, found = run(program, inputs, **symbols)
    leaves = [t for t in torch.utils._pytree.tree_leaves(expected) if t is not None]
    assert len(leaves) == len(graph.outputs)
    for n, (value, want) in enumerate(zip(graph.outputs, leaves, strict=True)):
        want = numpy_of(want)
        got = found[value.name]
        assert (got.dtype, got.shape) == (want.dtype, want.shape), n
        np.testing.assert_allclose(
            got, want, rtol=2e-5, atol=2e-6, err_msg=f"result {n}"
        )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_operator(name):
    function, *inputs = CASES[name]
    expected = function(*inputs)
    program = torch.export.export(Function(function), tuple(inputs))
    check(program, inputs, expected)


@pytest.mark.covering(1)
@pytest.mark.parametrize("known", [(1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("name", ["strides and padding", "sampled", "attention"])
def test_gradients_of_constants(name, known):
    """A constant input still has a gradient with respect to itself."""
    function, *inputs = CASES[name]
    program = torch.export.export(Function(function), tuple(inputs))
    nodes = [n.name for n in program.graph.nodes if n.op == "placeholder"]
    held = {nodes[n]: (inputs[n], nodes[n]) for n in known}
    graph = import_graph(FxSource(program.graph_module, held), ImportSettings(1 << 32))
    rest = [numpy_of(a) for n, a in enumerate(inputs) if n not in known]
    given = dict(zip((v.name for v in graph.inputs), rest, strict=True))
    found = evaluate(graph, given, fallback=OnnxFallback())
    leaves = torch.utils._pytree.tree_leaves(function(*inputs))
    for value, want in zip(graph.outputs, leaves, strict=True):
        np.testing.assert_allclose(
            found[value.name], want.numpy(), rtol=2e-5, atol=2e-6
        )


@pytest.mark.parametrize(
    ("function", "numbers"),
    [
        (torch.log1p, [1e-9, 0.0, 1e-5, 3e-7, 0.3, 1e30, float("inf"), -0.999]),
        (torch.expm1, [1e-9, 0.0, 1e-5, 3e-7, 0.3, 80.0, -200.0, -float("inf")]),
        (lambda a: torch.logaddexp(a, a.flip(0)), [100.0, 2.0, 2.0, -300.0]),
    ],
    ids=["log1p", "expm1", "logaddexp"],
)
def test_derivatives_where_a_formula_changes(function, numbers):
    a = torch.tensor(numbers, requires_grad=True)
    (want,) = torch.autograd.grad(function(a).sum(), a)
    program = torch.export.export(Function(function), (a.detach(),))
    graph = import_program(program, ImportSettings(1 << 32))
    f = Fragment("gradient", graph.constants)
    y = graph.outputs[0]
    found = gradient.gradients(graph.operations, y, graph.inputs, f)
    given = {graph.inputs[0].name: a.detach().numpy()}
    (got,) = evaluate(extended(graph, f, found), given).values()
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-5)


def test_one_element_has_any_stride():
    line = x(1, 2)[:, 0]
    assert line.stride() == (2,)
    np.testing.assert_array_equal(numpy_of(line), line.numpy())


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_named_with_its_line(name):
    function, pattern = REFUSED[name]
    program = torch.export.export(Function(function), (x(3, 3),))
    with pytest.raises(UnsupportedError, match=pattern) as caught:
        run(program, (x(3, 3),))
    assert "test_aten.py:" in str(caught.value)


@pytest.mark.parametrize("function", [torch.fft.fft, lambda a: a.to(torch.complex64)])
def test_a_complex_result_is_refused(function):
    program = torch.export.export(Function(function), (x(3),))
    with pytest.raises(UnsupportedError, match=r"output .* is complex"):
        run(program, (x(3),))


def test_a_complex_input_is_refused():
    z = torch.view_as_complex(x(3, 2))
    program = torch.export.export(Function(torch.abs), (z,))
    with pytest.raises(UnsupportedError, match=r"input .* is complex"):
        run(program, (z,))


@pytest.mark.covering(1)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_layers(kind, both, layers):
    torch.manual_seed(0)
    module = kind(
        4, 5, layers, batch_first=both, bidirectional=both, bias=layers > 1
    ).eval()
    inputs = (x(3, 7, 4),)
    check(torch.export.export(module, inputs), inputs, module(*inputs))


def test_projected_states_are_decomposed():
    """The rule refuses them, so PyTorch decomposes them."""
    torch.manual_seed(0)
    module, inputs = torch.nn.LSTM(4, 5, proj_size=3).eval(), (x(3, 7, 4),)
    check(torch.export.export(module, inputs), inputs, module(*inputs))


def test_sizes_that_a_call_knows():
    """Arithmetic on them, in views, ranges and concatenations."""

    def function(a):
        n, m = a.shape
        return (
            a.view(n * m), a.new_zeros(n // 2 + m % 4), torch.arange(n * 2),
            torch.cat([a, a]).reshape(2, n, m),
            a.expand(3, n, m), torch.zeros(n, 2), a.flatten().unsqueeze(0) + n, a.mean(0),
            a.roll(1, 0), torch.full((m,), 2.0),
        )  # fmt: skip

    program = torch.export.export(
        Function(function),
        (x(4, 6),),
        dynamic_shapes=(
            ({0: torch.export.Dim("n"), 1: torch.export.Dim("m", min=4, max=99)},),
        ),
    )
    graph = import_program(program, ImportSettings(1 << 32))
    n, m = graph.inputs[0].shape
    for shape in ((4, 6), (3, 7)):
        check(
            program,
            (x(*shape),),
            function(x(*shape)),
            **dict(zip((n, m), shape, strict=True)),
        )


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_statistics_of_open_extents():
    """Divided by a number that only the call knows, which is at least 0."""

    def function(a):
        return (
            a.var(), a.std(0), a.var(0, unbiased=False), a.std((0, 1), keepdim=True),
            torch.var(a, (0, 2), correction=2), *torch.var_mean(a, 0, keepdim=True),
            *torch.std_mean(a, (-3, -1)), *torch.var_mean(a.half(), 0), a.double().var(0),
            a.var(1),
        )  # fmt: skip

    rows = torch.export.Dim("rows")
    program = torch.export.export(
        Function(function), (x(4, 3, 2),), dynamic_shapes=(({0: rows},),)
    )
    for n in (1, 2, 5):
        a = x(n, 3, 2)
        check(program, (a,), function(a), **{str(_symbol(program)): n})


def test_gradients_by_group_of_an_open_number_of_rows():
    def function(a, g, w):
        return spectral.gradients(a, w, g, 0, 3, 3, 5)

    w = x(4, 3, 2, seed=2)
    open_rows = {0: torch.export.Dim("n", min=5, max=99)}
    program = torch.export.export(
        Function(function),
        (x(6, 3), x(6, 2, seed=1), w),
        dynamic_shapes=((open_rows, open_rows, None),),
    )
    for n in (5, 9):
        inputs = x(n, 3), x(n, 2, seed=1), w
        check(program, inputs, function(*inputs), **{str(_symbol(program)): n})


def test_the_gradient_of_maxima_of_open_extents():
    backward = torch.ops.aten.max_pool2d_with_indices_backward

    def function(g, a):
        how = [3, 2], [2, 1], [1, 0], [1, 1], False
        _, places = torch.ops.aten.max_pool2d_with_indices(a, *how)
        return backward(g, a, *how, places)

    rows = {0: torch.export.Dim("rows", min=0)}
    program = torch.export.export(
        Function(function),
        (x(4, 3, 3, 4), x(4, 3, 5, 5)),
        dynamic_shapes=((rows, rows),),
    )
    for n in (1, 5):
        given = x(n, 3, 3, 4), x(n, 3, 5, 5, seed=1)
        check(program, given, function(*given), **{str(_symbol(program)): n})


@pytest.mark.parametrize("shift", [1, -2, 9])
def test_a_roll_may_go_more_than_once_around(shift):
    rows = torch.export.Dim("rows")
    function = Function(lambda a: a.roll(shift, 0))
    program = torch.export.export(function, (x(5, 2),), dynamic_shapes=(({0: rows},),))
    for n in (2, 5, 12):
        check(program, (x(n, 2),), x(n, 2).roll(shift, 0), **{str(_symbol(program)): n})


def _symbol(program):
    return import_program(program, ImportSettings(1 << 32)).inputs[0].shape[0]


def test_a_result_that_a_rule_leaves_out_is_refused():
    batch_norm = torch.ops.aten._native_batch_norm_legit_no_training

    def function(a):
        return batch_norm(a, None, None, a[0], a[1], 0.1, 1e-5)[1]

    program = torch.export.export(Function(function), (x(2, 4),))
    with pytest.raises(RuleRefused, match="result 1 is not computed"):
        import_graph(FxSource(program.graph_module), ImportSettings(1 << 32))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_a_use_that_a_rule_refuses_is_decomposed(mode):
    """PyTorch's kernels for bytes have rounded weights on some processors: 1 off."""

    def function(a):
        return F.interpolate(a, (9, 15), mode=mode)

    a = (x(1, 2, 4, 6).sigmoid() * 256).byte()
    program = torch.export.export(Function(function), (a,))
    with pytest.raises(RuleRefused, match="it interpolates uint8"):
        import_graph(FxSource(program.graph_module), ImportSettings(1 << 32))
    graph, found = run(program, (a,))
    got = found[graph.outputs[0].name]
    assert got.dtype == np.uint8
    np.testing.assert_allclose(got.astype(int), function(a).int().numpy(), atol=1)


def test_names_are_those_of_modules_and_weights_are_shared():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(7, 4)
            self.block = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
            self.head = torch.nn.Linear(4, 7, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens):
            return {
                "logits": self.head(self.block(self.embed(tokens))),
                "tokens": tokens,
            }

    module, tokens = Tied(), torch.tensor([1, 2, 3])
    program = torch.export.export(module, (tokens,))
    check(program, (tokens,), module(tokens))
    graph, _ = run(program, (tokens,))
    # No two values of a graph have one name.
    assert [v.name for v in graph.outputs] == ["logits", "tokens_2"]
    assert any(op.name.startswith("block.0.linear/MatMul") for op in graph.operations)
    assert len([v for v in graph.constants if v.shape == (7, 4)]) == 1


def test_a_module_that_changes_itself_is_refused():
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, a):
            self.count += 1
            return a + self.count

    with pytest.raises(UnsupportedError, match="changes 'count'"):
        run(torch.export.export(Counter(), (x(2),)), (x(2),))


def test_weights_over_the_limit():
    program = torch.export.export(torch.nn.Linear(100, 100), (x(1, 100),))
    with pytest.raises(TilewrightError, match="over the memory limit"):
        import_program(program, ImportSettings(1000))


class Changed(torch.nn.Module):
    """The result of a layer, changed in one of several ways."""

    def __init__(self, way):
        super().__init__()
        self.conv = torch.nn.Conv1d(2, 2, 1)
        self.way = way

    def forward(self, a):
        return self.way(self.conv(a))


def _view_before(y):
    flat = y.view(-1)
    y.relu_()
    return flat + 1


def _dropout_before(y):
    same = F.dropout(y, 0.5, training=False)
    same.relu_()
    return y + 1


def _dropout_left(y):
    same = F.dropout(y, 0.5, training=False)
    y.relu_()
    return same + 1


def _changed_twice(y):
    z = y.add_(1)
    twice = y * 2
    z.relu_()
    return y, z, twice


def _changed_argument(y):
    (z := y * 2).mul_(y)
    return z.add_(y), y


@pytest.mark.parametrize(
    ("way", "traced"),
    [
        (lambda y: y.relu_() + 1, False),
        (lambda y: (y.relu_(), y)[1].view(-1), False),
        (lambda y: F.silu(y, inplace=True), False),
        (_changed_twice, False),
        (_changed_argument, False),
        (_view_before, True),
        (_dropout_before, False),
        (_dropout_left, False),
        (lambda y: (y[:, 0].zero_(), y)[1], True),
    ],
)
def test_changes_in_place(way, traced, monkeypatch):
    """Changes of a layer's result are imported directly; with possible views, decomposed."""
    again = []
    decomposed = programs._decomposed
    monkeypatch.setattr(
        programs, "_decomposed", lambda *a: (again.append(1), decomposed(*a))[1]
    )
    torch.manual_seed(0)
    module, inputs = Changed(way).eval(), (x(2, 2, 5),)
    check(torch.export.export(module, inputs), inputs, module(*inputs))
    assert bool(again) == traced


def test_rules_are_all_there_whichever_module_was_imported_first(monkeypatch):
    package = "tilewright.frontends.torch.aten"
    monkeypatch.setattr(frontend, "aten", frontend.aten)  # importing sets it anew
    for name in [n for n in sys.modules if f"{n}.".startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    importlib.import_module(f"{package}.operators.spectral")
    rules = importlib.import_module(f"{package}.rules")
    assert rules._RULES is not _RULES
    assert rules.rule_of(torch.ops.aten.mm.default) is not None
