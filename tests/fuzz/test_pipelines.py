"""Random pipelines and layers: what their stages mean, as NumPy says it, and as they compile."""

import dataclasses

import numpy as np
import pytest

import tilewright as tw
from tilewright.base.errors import InputError
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph import interp
from tilewright.testing import random_layers, random_pipelines
from tilewright.testing.pipeline_stages import KINDS
from tilewright.testing.random_layers import layer
from tilewright.testing.random_pipelines import DrawnPipeline, drawn_pipeline, pipeline

# One that counts or chooses by values: a rounding before it may turn another one of them.
JUMPS = ("tiled_histogram", "slice")
SMOOTH = tuple(k for k in KINDS if k not in JUMPS)


def evaluated(case):
    """The graph's outputs, by its own definitions in float64."""
    found = interp.evaluate(
        case.graph, case.inputs, float64=True, fallback=OnnxFallback()
    )
    return [np.asarray(found[v.name]) for v in case.graph.outputs]


def compiled(case):
    made = tw.compile(case.graph, threads=1, cache=False)(dict(case.inputs))
    return made if isinstance(made, list | tuple) else [made]


def far(wanted, got):
    """The largest difference, by the largest value."""
    assert [w.shape for w in wanted] == [g.shape for g in got]
    pairs = zip(wanted, got, strict=True)
    return max(np.abs(w - g).max() / max(1.0, np.abs(w).max()) for w, g in pairs)


def test_the_kinds_are_halides_eighteen_and_binary():
    assert len(KINDS) == 18 + 1


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
def test_a_stage_means_what_numpy_says(kind):
    """Alone, so that its input has no roundings: as its graph says, and compiled."""
    for seed in range(4):
        made = pipeline(seed, 64, 96, 1, (kind,))
        assert set(made.kinds.values()) == {kind}
        assert far(made.meaning, evaluated(made.case)) < 1e-12
    assert far(made.meaning, compiled(made.case)) < 1e-5


@pytest.mark.parametrize("seed", range(6))
def test_a_pipeline_means_what_numpy_says(seed):
    made = pipeline(seed, 64, 32, 8)
    assert far(made.meaning, evaluated(made.case)) < 1e-9


@pytest.mark.sampled(2)  # each seed draws of all stages
@pytest.mark.parametrize("seed", range(2))
def test_a_pipeline_compiles(seed):
    made = pipeline(seed, 32, 64, 6, SMOOTH)
    assert far(made.meaning, compiled(made.case)) < 1e-4


def test_a_wrong_meaning_is_noticed(monkeypatch):
    """The comparison above sees a stage that is one place off."""
    right = KINDS["scan"]

    def shifted(r, f, g):
        stage = right(r, f, g)
        return dataclasses.replace(stage, ask=lambda: np.roll(stage.ask(), 1, -1))

    monkeypatch.setattr(random_pipelines, "KINDS", {"scan": shifted})
    made = pipeline(0, 32, 32, 1, ("scan",))
    assert far(made.meaning, evaluated(made.case)) > 1e-3


def test_a_seed_makes_the_same_again():
    one, other = drawn_pipeline(3), drawn_pipeline(3)
    assert str(one.case.graph) == str(other.case.graph)
    pairs = zip(one.case.inputs.values(), other.case.inputs.values(), strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)
    assert str(drawn_pipeline(4).case.graph) != str(one.case.graph)
    assert str(layer(3).case.graph) == str(layer(3).case.graph)


def test_all_kinds_are_drawn():
    drawn = [pipeline(seed, 64, 64) for seed in range(40)]
    assert {k for p in drawn for k in p.kinds.values()} == set(KINDS)
    layers = [layer(seed) for seed in range(150)]
    assert {k for p in layers for k in p.kinds.values()} == set(random_layers.KINDS)


def test_what_nothing_reads_is_an_output():
    for seed in range(10):
        graph = pipeline(seed, 64, 64, 6).case.graph
        read = {v for o in graph.operations for v in o.reads}
        ends = [v for o in graph.operations for v in o.outputs if v not in read]
        assert set(ends) <= set(graph.outputs)


def test_a_size_that_no_stage_fits_is_refused():
    with pytest.raises(InputError, match="no stage of these kinds fits"):
        pipeline(0, 16, 16, 3, ("downsample",))


@pytest.mark.parametrize("kind", random_layers.KINDS)
def test_layers_are_finite_and_not_too_long(kind):
    for seed in range(3):
        made = layer(seed, (kind,))
        inputs = made.case.graph.inputs
        assert all(np.prod(v.extents) <= random_layers.MOST_ELEMENTS for v in inputs)
    assert all(np.isfinite(x).all() for x in evaluated(made.case))


def test_a_kernel_is_of_the_last_kind_that_is_known():
    drawn = DrawnPipeline(layer(0).case, {"conv1": "convolve", "relu2": "activation"})
    assert drawn.kind_of(["Conv -> conv1", "Relu -> relu2", "Add -> x"]) == "activation"
    assert drawn.kind_of(["Add -> x"]) == "other"
