"""Code is chosen for the threads that it is to run on, whatever the machine has."""

import numpy as np
import pytest
from onnx import helper

import tilewright as tw
from tests.robust.models import FLOAT, model
from tilewright.base import events


@pytest.fixture
def source():
    """A convolution of 28 rows of tiles in Winograd's form, channels last by those around it."""
    rng = np.random.default_rng(0)
    weights = {
        "a": rng.standard_normal((64, 64, 1, 1), dtype=np.float32),
        "b": rng.standard_normal((64, 64, 3, 3), dtype=np.float32),
        "c": rng.standard_normal((64, 64, 1, 1), dtype=np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["u"]),
        helper.make_node("Conv", ["u", "b"], ["v"], pads=[1] * 4),
        helper.make_node("Conv", ["v", "c"], ["y"]),
    ]
    return model(nodes, {"x": (FLOAT, (1, 64, 56, 56))}, ["y"], weights)


def compiled(source, **options):
    """The executable and what happened meanwhile."""
    with events.record() as happened:
        exe = tw.compile(source, **options)
    return exe, happened


def transformed(happened):
    return any(e.kind == "winograd" and "tile" in e.fields for e in happened)


def cached(happened):
    return any(e.kind == "model-cached" for e in happened)


def test_tiles_too_few_for_many_threads_are_no_form_for_them(source):
    x = np.random.default_rng(1).standard_normal((1, 64, 56, 56), dtype=np.float32)
    few, made = compiled(source, threads=2, cache=False)
    many, made_for_many = compiled(source, threads=64, cache=False)
    assert transformed(made) and not transformed(made_for_many)
    assert np.abs(few(x) - many(x)).max() < 1e-5 * np.abs(many(x)).max()


def test_what_was_compiled_for_one_thread_is_not_taken_for_two(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    source = model(nodes, {"x": (FLOAT, (4, 8))}, ["y"]).SerializeToString()
    assert not cached(compiled(source, threads=1)[1])
    assert not cached(compiled(source, threads=2)[1])
    assert cached(compiled(source, threads=1)[1])
