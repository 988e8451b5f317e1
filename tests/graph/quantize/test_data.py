"""Calibration data: how they are cut into samples, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from tests.graph.quantize.models import drawn, graph_of
from tilewright.base.errors import InputError
from tilewright.graph.quantize.data import held_out, samples_of


@pytest.fixture(scope="module")
def graph():
    return graph_of(
        "z = MatMul(x, w)  y = Add(z, b)",
        "float[2, 4] x, float[2, 3] b) => (float[2, 3] y", w=drawn(0, 4, 3),
    )  # fmt: skip


def data(count=3, **changed):
    return {"x": drawn(0, count, 2, 4), "b": drawn(1, count, 2, 3), **changed}


def test_samples_along_an_axis_of_their_own(graph):
    given = data()
    found = samples_of(graph, given)
    assert len(found) == 3
    assert (found[1]["x"] == given["x"][1]).all() and found[1]["b"].shape == (2, 3)


def test_samples_one_after_another(graph):
    given = data(x=drawn(0, 6, 4), b=drawn(1, 6, 3))
    found = samples_of(graph, given)
    assert len(found) == 3
    assert (found[2]["x"] == given["x"][4:]).all()


def test_a_list_of_samples(graph):
    one = {"x": drawn(0, 2, 4), "b": drawn(1, 2, 3)}
    assert len(samples_of(graph, [one, one])) == 2


def test_symbolic_batches_are_cut_into_single_rows():
    graph = graph_of(
        "y = MatMul(x, w)", "float[N, 4] x) => (float[N, 3] y", w=drawn(0, 4, 3)
    )
    found = samples_of(graph, {"x": drawn(0, 5, 4)})
    assert [s["x"].shape for s in found] == [(1, 4)] * 5


NAN = drawn(0, 3, 2, 4)
NAN[1, 0, 2] = np.nan
REFUSED = {
    "the model has no input 'z'": data(z=np.ones(3)),
    "there is no array for input 'b'": {"x": drawn(0, 3, 2, 4)},
    "different numbers of samples: 2 for 'x', 3 for 'b'": data(x=drawn(0, 2, 2, 4)),
    "5 rows are not a whole number of samples of 2": data(x=drawn(0, 5, 4)),
    "expected float32[2, 4]": data(x=drawn(0, 3, 2, 5)),
    "got float32[3]": data(x=drawn(0, 3)),
    "got float64[2, 4]": data(x=np.ones((3, 2, 4))),
    "1 number is NaN or infinite": data(x=NAN),
    "all numbers are 2.0: the data are constant": data(
        x=np.full((3, 2, 4), 2, np.float32)
    ),
    "there are no samples": data(0),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused(graph, message):
    with pytest.raises(InputError) as error:
        samples_of(graph, REFUSED[message])
    assert message in str(error.value)
    assert "calibration data" in str(error.value)


def test_refused_lists(graph):
    with pytest.raises(InputError, match="there are no samples"):
        samples_of(graph, [])
    with pytest.raises(InputError, match="a sample is a ndarray"):
        samples_of(graph, [drawn(0, 2, 4)])
    with pytest.raises(InputError, match="expected samples, got NoneType"):
        samples_of(graph, None)


def test_empty_samples_are_refused():
    graph = graph_of(
        "y = MatMul(x, w)", "float[N, 4] x) => (float[N, 3] y", w=drawn(0, 4, 3)
    )
    with pytest.raises(InputError, match="a sample is empty"):
        samples_of(graph, [{"x": drawn(0, 0, 4)}])


@pytest.mark.parametrize(("count", "apart"), [(2, 1), (3, 1), (8, 2), (100, 25)])
def test_the_last_quarter_is_held_out(count, apart):
    samples = [{"n": np.array(n)} for n in range(count)]
    ranges, measuring = held_out(samples)
    assert (len(ranges), len(measuring)) == (count - apart, apart)
    assert [*ranges, *measuring] == samples


def test_one_number_for_an_input_of_any_rank_is_refused():
    graph = graph_of("y = Mul(x, x)", "float x) => (float y")
    free = replace(graph.inputs[0], shape=None)
    graph = replace(graph, inputs=(free,))
    with pytest.raises(InputError, match="expected"):
        samples_of(graph, {"x": np.float32(1)})
