"""Code is chosen for the threads that it is to run on, whatever the machine has."""

import numpy as np
import pytest
from onnx import helper

import tilewright as tw
from tests.robust.models import FLOAT, model
from tilewright.base import events
from tilewright.runtime import threads as runtime_threads
from tilewright.runtime.ranged import RangedExecutable


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


@pytest.fixture
def wide_machine(monkeypatch):
    """A machine of 8 cores that nothing else limits."""
    monkeypatch.setattr(runtime_threads, "available", lambda: 8)
    for name in ("TILEWRIGHT_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("dims", [{"n": 4}, {"n": (1, 4)}])
def test_an_artifact_runs_on_the_threads_that_it_was_compiled_for(
    dims, tmp_path, monkeypatch, wide_machine
):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    nodes = [helper.make_node("Exp", ["x"], ["y"])]
    source = model(nodes, {"x": (FLOAT, ("n", 8))}, ["y"])
    how = {"dims": dims, "jit": False}

    def saved(name, **threads):
        tw.compile(source, **how, **threads).save(tmp_path / name)
        return tw.load(tmp_path / name).threads

    x = np.ones((4, 8), np.float32)
    assert saved("one.tw", threads=1) == 1
    assert saved("any.tw") == 8
    # The cached code of a compilation that named the same number does not bring it along.
    assert saved("eight.tw", threads=8) == 8 and saved("any.tw") == 8
    monkeypatch.setattr(runtime_threads, "available", lambda: 6)
    assert tw.load(tmp_path / "any.tw").threads == 6
    again = tw.load(tmp_path / "one.tw")
    again.save(tmp_path / "again.tw")
    assert tw.load(tmp_path / "again.tw").threads == 1
    other = tw.load(tmp_path / "one.tw", threads=3)
    other.save(tmp_path / "again.tw")
    assert other.threads == 3 and tw.load(tmp_path / "again.tw").threads == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert tw.load(tmp_path / "one.tw").threads == 2
    np.testing.assert_array_equal(again(x), other(x))
    if isinstance(again, RangedExecutable):
        monkeypatch.delenv("OMP_NUM_THREADS")
        again.specialized({"x": x}).save(tmp_path / "part.tw")
        assert tw.load(tmp_path / "part.tw").threads == 1
        tw.load(tmp_path / "any.tw").specialized({"x": x}).save(tmp_path / "part.tw")
        monkeypatch.setattr(runtime_threads, "available", lambda: 7)
        assert tw.load(tmp_path / "part.tw").threads == 7
