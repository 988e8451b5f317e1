"""Operators that move nothing are not tasks, and what reads their results computes the same."""

import numpy as np
import pytest

from tests.dataflow.models import lenet, model
from tilewright.base.errors import InputError
from tilewright.dataflow.explore import explore
from tilewright.dataflow.lower import network, program

# What moves nothing, as the middle of a model: its input has 4x1x6 elements.
MOVES_NOTHING = {
    "flatten": "b = Flatten(a)",
    "squeeze": "b = Squeeze(a)",
    "unsqueeze": "n = Constant<value_ints = [0]>() b = Unsqueeze(a, n)",
    "reshape": "n = Constant<value_ints = [2, 12]>() b = Reshape(a, n)",
    "transpose": "b = Transpose<perm = [1, 0, 2]>(a)",
    "two": "c = Flatten(a) n = Constant<value_ints = [3, 8]>() b = Reshape(c, n)",
}
MOVES = {
    "transpose": "b = Transpose<perm = [2, 1, 0]>(a)",
    "cast": "c = Cast<to = 7>(a) b = Cast<to = 1>(c)",
}


def middle(lines: str) -> str:
    """An operator before, the lines, and one after."""
    return f"g (float[4,1,6] x) => (float y) {{ a = Exp(x) {lines} y = Sqrt(b) }}"


@pytest.mark.parametrize("name", MOVES_NOTHING)
@pytest.mark.parametrize("fused", [False, True])
def test_what_moves_nothing_is_no_task(name: str, fused: bool) -> None:
    net = network(model(middle(MOVES_NOTHING[name])), fused=fused)
    found = program(net, {"map": "operator"})
    assert found.graph.tasks == 2
    x = np.linspace(0, 1, 24, dtype=np.float32).reshape(4, 1, 6)
    (y,) = found.run({"x": x}).values()
    np.testing.assert_allclose(y.ravel(), np.sqrt(np.exp(x)).ravel(), rtol=1e-5)


@pytest.mark.parametrize("name", MOVES)
def test_what_moves_something_is_a_task(name: str) -> None:
    assert program(network(model(middle(MOVES[name])))).graph.tasks > 2


def test_results_stream_through_what_moves_nothing() -> None:
    """As without it, to the cycle; the bound holds."""
    plain = network(model(middle("b = Neg(a)")))
    through = network(model(middle("c = Flatten(a) b = Neg(c)")))
    found = [explore(net, [4]) for net in (plain, through)]
    cycles = [one.best(4).makespan for one in found]
    assert cycles[0] == cycles[1] >= found[1].bounds[4]


def test_a_tensor_may_be_read_under_both_shapes_and_leave_the_model() -> None:
    body = """g (float[4,6] x) => (float[24] y, float[2,12] z, float[4,6] w) {
        a = Exp(x)
        n = Constant<value_ints = [24]>()
        b = Reshape(a, n)
        y = Neg(b)
        m = Constant<value_ints = [2, 12]>()
        z = Reshape(a, m)
        w = Sqrt(a)
    }"""
    found = program(network(model(body)), {"map": "operator"})
    assert found.graph.tasks == 3
    x = np.linspace(0, 1, 24, dtype=np.float32).reshape(4, 6)
    made = found.run({"x": x})
    np.testing.assert_allclose(made["y"], -np.exp(x).ravel(), rtol=1e-5)
    np.testing.assert_allclose(made["z"], np.exp(x).reshape(2, 12), rtol=1e-5)
    np.testing.assert_allclose(made["w"], np.sqrt(np.exp(x)), rtol=1e-5)


def test_a_model_of_nothing_else_has_no_operator_to_schedule() -> None:
    body = "g (float[4,6] x) => (float[4,6] y) { y = Flatten(x) }"
    with pytest.raises(InputError, match="there is no operator to schedule"):
        network(model(body))


def test_flatten_is_none_of_lenets_operators() -> None:
    for fused in (False, True):
        names = [stage.name for stage in network(lenet(), fused=fused).stages]
        assert not [name for name in names if "flatten" in name]
