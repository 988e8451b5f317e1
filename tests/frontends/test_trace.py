"""What PyTorch says of dimensions that do not fit, in one line with what to write."""

import pytest

import tilewright as tw
from tilewright.base.errors import ModelError

torch = pytest.importorskip("torch")
Dim = torch.export.Dim


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def refused(function, shapes, *dynamic):
    inputs = tuple(torch.zeros(s) for s in shapes)
    with pytest.raises(ModelError) as caught:
        tw.compile(Function(function), inputs, dynamic_shapes=(dynamic,))
    return caught.value


def test_the_hint_is_the_multiple_that_a_module_needs():
    """As PyTorch suggests it, and exporting succeeds with it."""

    def halves(a):
        return a.view(a.shape[0] // 2, 2, a.shape[1] // 3, 3).sum((1, 3))

    error = refused(halves, [(8, 12)], {0: Dim("h"), 1: Dim("w", max=300)})
    assert error.message.endswith("Constraints violated (h, w)")
    prefix, suffix = "write ", " in dynamic_shapes"
    assert error.hint.startswith(prefix) and error.hint.endswith(suffix)
    suggested = error.hint.removeprefix(prefix).removesuffix(suffix)
    assert suggested.endswith("h = 2*_h, w = 3*_w") and "oo" not in suggested
    known = {"Dim": Dim}
    exec(
        suggested.replace(", _w", "; _w").replace(", h", "; h").replace(", w", "; w"),
        known,
    )
    given = (({0: known["h"], 1: known["w"]},),)
    torch.export.export(Function(halves), (torch.zeros(8, 12),), dynamic_shapes=given)


def test_the_hint_says_that_two_dimensions_are_one():
    shapes = [(4, 3), (4, 3)]
    error = refused(torch.add, shapes, {0: Dim("b")}, {0: Dim("c")})
    assert error.hint == "write c = b in dynamic_shapes"


@pytest.mark.parametrize(
    ("dimension", "name"), [(Dim("b"), "b"), (Dim.DYNAMIC, "dimension 0 of args[0]")]
)
def test_the_hint_names_a_dimension_that_is_constant(dimension, name):
    error = refused(
        lambda a: a.view(4, -1) + torch.ones(4, 1), [(4, 6)], {0: dimension}
    )
    assert error.hint == f"leave {name} out of dynamic_shapes: the module fixes it at 4"


def test_the_hint_names_what_solving_the_conditions_fixes():
    def pooled(a):
        pool = torch.nn.functional.max_pool1d
        return pool(a, 4) + pool(a[:, 2:-2], 3)

    error = refused(pooled, [(2, 16)], {1: Dim("n")})
    assert error.hint == "leave n out of dynamic_shapes: the module fixes it at 16"


def test_the_hint_of_a_choice_by_data_is_what_works(capfd):
    """PyTorch prints the graph so far by itself."""
    branches = Function(lambda a: a + 1 if a.sum() > 0 else a - 1)
    x = torch.ones(3)
    with pytest.raises(ModelError) as caught:
        tw.compile(branches, (x,))
    assert "chooses by data: write torch.where" in caught.value.hint
    assert 'torch.compile(module, backend="tilewright")' in caught.value.hint
    for given in (x, -x):
        found = torch.compile(branches, backend="tilewright")(given)
        assert torch.equal(found, branches(given))


def test_an_operator_that_fails_is_named_by_its_line():
    def product(a):
        b = a + 1
        return b @ torch.ones(3, 3)

    error = refused(product, [(2, 4)], None)
    line = product.__code__.co_firstlineno + 2
    assert error.where == f"Function, test_trace.py:{line}"
    assert "[2, 4] X [3, 3]" in error.message
    with pytest.raises(ModelError) as caught:  # no line of it is the user's
        tw.compile(torch.nn.Linear(3, 2), (torch.ones(2, 4),))
    assert caught.value.where == "Linear"


def test_a_branch_on_data_is_named_by_its_line():
    def positive(a):
        return a if a.sum() > 0 else -a

    error = refused(positive, [(3,)], None)
    line = positive.__code__.co_firstlineno + 1
    assert error.where == f"Function, test_trace.py:{line}"
    assert "Could not guard on data-dependent expression" in error.message
    assert "For more information" not in error.message
