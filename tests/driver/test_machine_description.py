"""A machine description changes what the compiler assumes of a processor, and what it caches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.driver.test_compile import expected, model, perceptron, sample
from tilewright.base import events
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.driver import text
from tilewright.driver.options import Options
from tilewright.targets import registry
from tilewright.targets.base import Target
from tilewright.targets.cpu.cost import cost_model
from tilewright.targets.cpu.description import described
from tilewright.targets.cpu.machine import machine

V3 = machine("x86-64-v3")


def test_facts_and_costs_take_the_place_of_the_usual_ones() -> None:
    found = described(V3, {"l2": 1 << 21, "clock": 4.5, "costs": {"share_ns": 123}})
    assert (found.l1, found.l2, found.clock) == (V3.l1, 1 << 21, 4.5)
    assert cost_model(found).share_ns == 123
    assert described(V3, {"processor": "one"}) == V3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"l4": 1}, r"l4 is not a field.*l"),
        ({"features": ["avx"]}, "features is not a field"),
        ({"l1": 0.5}, r"l1 is 0\.5; give an integer of at least 1"),
        ({"l1": -1}, "l1 is -1"),
        ({"line": True}, "line is True"),
        ({"clock": float("inf")}, "clock is inf; give a number above 0"),
        ({"clock": "fast"}, "clock is 'fast'"),
        ({"costs": 3}, "costs is not a table"),
        ({"costs": {"share": 1}}, r"costs\.share is not a field.*'shares'"),
        ({"costs": {"share_ns": 0}}, r"costs\.share_ns is 0; give a number"),
        ({"costs": {"shares": 2.5}}, r"costs\.shares is 2\.5; give an integer"),
    ],
    ids=str,
)
def test_a_bad_field_is_named(given: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        described(V3, given)


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"l1 = ", "cannot be read"), (b"\xff", "cannot be read"), (b"#" * (1 << 17), "more than"),
     (b"l1 = 'small'", "l1 is 'small'"), (None, "cannot be read: No such file or directory; ")],
)  # fmt: skip
def test_a_bad_file_is_named(content: bytes | None, said: str, tmp_path: Path) -> None:
    file = tmp_path / "machine.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(
        InputError, match=rf"machine\.toml.*{said}|{said}.*machine\.toml"
    ):
        text(perceptron(3), "kernel", machine=file)


def kernels(**options: object) -> str:
    nodes = [tw_node("Relu", ["x"], ["y"])]
    return text(
        model(nodes, {"x": [4, 64]}, {}),
        "kernel",
        threads=2,
        mcpu="x86-64-v3",
        **options,
    )


def tw_node(*arguments: object) -> object:
    from onnx import helper

    return helper.make_node(*arguments)


def test_schedules_go_by_the_description(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "machine.toml"
    file.write_text("[costs]\nshare_ns = 1\nshared_vectors = 2\nchunk_vectors = 1\n")
    assert "parallel" not in kernels()
    assert "parallel" in kernels(machine=str(file))
    monkeypatch.setenv("TILEWRIGHT_MACHINE", str(file))
    assert "parallel" in kernels()


@pytest.mark.parametrize(("most", "vectors"), [(3, 2), (16, 16)])
def test_a_cost_need_not_be_one_of_the_candidates_of_a_parameter(
    most: int, vectors: int, tmp_path: Path
) -> None:
    """At most as many vectors of 256 elements, in whole tiles."""
    file, x = tmp_path / "machine.toml", sample(7)
    file.write_text(f"[costs]\nin_flight = {most}\n")
    assert f"ij.i.o in {vectors} " in kernels(machine=str(file))
    exe = tw.compile(perceptron(7), machine=file, cache=False)
    np.testing.assert_allclose(exe(x), expected(x), rtol=1e-5, atol=1e-5)


def test_a_description_changes_what_is_cached(tmp_path: Path) -> None:
    file, x = tmp_path / "machine.toml", sample(7)
    source = perceptron(7).SerializeToString()
    for content in ("l2 = 65536", "l2 = 131072", "[costs]\nshare_ns = 77"):
        file.write_text(content)
        with events.record() as log:
            exe = tw.compile(source, machine=file)
        assert [e for e in log if e.kind == "span" or "kernel" in e.kind]
        assert not [e for e in log if e.kind == "model-cached"], content
        np.testing.assert_allclose(exe(x), expected(x), rtol=1e-5, atol=1e-5)
    with events.record() as log:
        tw.compile(source, machine=file)
    assert [e for e in log if e.kind == "model-cached"]


def test_the_keys_of_kernels_hold_the_description() -> None:
    usual = registry.target("cpu", "x86-64-v3")
    keys = {usual.key}
    for given in ({"l1": 1}, {"line": 128}, {"clock": 2.0}, {"costs": {"full": 0.5}}):
        keys.add(registry.target("cpu", "x86-64-v3", description=given).key)
    assert len(keys) == 5


def test_nothing_changes_where_nothing_is_given() -> None:
    assert Options().description is None
    usual = registry.target("cpu", "x86-64-v3")
    assert registry.target("cpu", "x86-64-v3", description={}) == usual


def test_a_target_without_descriptions_refuses_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bare = registry.TargetEntry(lambda settings: Target())
    monkeypatch.setitem(registry._ROWS, "bare", bare)
    with pytest.raises(UnsupportedError, match="'bare' takes no machine description"):
        registry.target("bare", description={})
    assert registry.target("bare").sketches(None, (), ()) == ()
