"""Random graphs on several machines, led to rules, passes and sketches that never met."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from tilewright.base import events
from tilewright.driver import dynamic
from tilewright.graph import unroll
from tilewright.testing.differential import check
from tilewright.testing.graph_control import CONTROL
from tilewright.testing.graph_idioms import IDIOMS
from tilewright.testing.graph_ops import PIECES
from tilewright.testing.graph_runs import ALL, Setting, problem, run
from tilewright.testing.graph_shapes import SHAPES
from tilewright.testing.graphs import Case
from tilewright.testing.random_graphs import random_case
from tilewright.testing.steering import LEAST, MOST, Steering, facts

FAST = range(2000, 2008)
SLOW = range(2030, 4000)


def test_steered_graphs_are_right() -> None:
    steering = Steering()
    for seed in FAST:
        failure = run(seed, 6, steering)
        assert failure is None, str(failure)
    assert len(steering.met) > 50
    names = {name for pair in steering.met for name in pair}
    for kind in ("fuse", "sketch-chosen", "padded", "pass"):
        assert any(name.startswith(kind) for name in names), kind


@pytest.mark.slow
@pytest.mark.parametrize("start", range(SLOW.start, SLOW.stop, 50))
def test_many_steered_graphs_are_right(start: int) -> None:
    steering = Steering()
    failures = [
        str(f) for seed in range(start, start + 50) if (f := run(seed, None, steering))
    ]
    assert not failures


@pytest.mark.parametrize("name", IDIOMS)
def test_every_idiom_gets_into_graphs(name: str) -> None:
    seen: Counter[str] = Counter()
    for seed in range(30):
        steering = Steering()
        random_case(seed, 8, pieces={name: IDIOMS[name], "unary": PIECES["unary"]},
                    steering=steering)  # fmt: skip
        seen.update(steering.taken)
    assert seen[name] > 10


def test_what_never_met_is_drawn_more_often() -> None:
    steering = Steering(taken=["conv", "pool"])
    for _ in range(20):
        steering.add({"a", "b"})
    steering.taken = ["conv"]
    assert steering.weight("concat", 1.0) > steering.weight("pool", 1.0)
    assert steering.met["a", "b"] == 20


def test_what_brought_pairs_is_drawn_more_often() -> None:
    steering = Steering()
    for n in range(10):
        steering.taken = ["good"]
        assert steering.add({"a", f"{n}"}) == 1
        steering.taken = ["poor"]
        assert steering.add({"a", f"{n}"}) == 0
    steering.taken = []
    assert steering.weight("good", 2.0) > 2.0 > steering.weight("poor", 2.0)
    assert (
        2 * LEAST <= steering.weight("poor", 2.0)
        and steering.weight("good", 2.0) <= 2 * MOST
    )


def test_facts_are_what_acted() -> None:
    with events.record() as happened:
        events.emit("fuse", rule="inline", producer="a", into=["b"])
        events.emit("padded", tensor="t", pads=())
        events.emit("sketch-chosen", kernel="k", sketch="matmul")
        events.emit("pass", name="fold", changed=True)
        events.emit("pass", name="idle", changed=False)
        events.emit("kernel-ready", name="k", total=1)
    assert facts(happened) == {
        "fuse inline",
        "padded",
        "sketch-chosen matmul",
        "pass fold",
    }


def test_a_graph_without_steering_is_as_it_was() -> None:
    assert repr(random_case(7, 6).graph) == repr(random_case(7, 6, pieces=PIECES).graph)


# ----------------------------------------------------------- symbols and control flow


def test_graphs_with_bodies_and_symbols_are_made_and_are_right() -> None:
    """If, Loop and Scan, more than one size of a symbolic extent, and shapes that are computed."""
    seen: Counter[str] = Counter()
    pieces = {**PIECES, **{k: (f, 3 * w) for k, (f, w) in (CONTROL | SHAPES).items()}}
    for seed in range(4000, 4056):
        case = random_case(seed, 5, pieces=pieces)
        ops = {op.op_type: op for op in case.graph.operations}
        seen.update({"If", "Loop", "Scan"} & ops.keys())
        symbolic = any(not v.static for v in case.graph.inputs)
        seen["symbolic"] += symbolic
        seen["two sizes"] += len(case.others) > 0
        seen["a body with a symbol around it"] += symbolic and bool(
            {"If", "Loop", "Scan"} & {*ops}
        )
        for op in ops.values():
            seen["captured"] += any(g.captured for g in op.subgraphs)
            seen["nested"] += any(
                o.subgraphs for g in op.subgraphs for o in g.operations
            )
        if seed % 8 == 0:
            found = problem(case, Setting(None, "default", 1, dims=seed % 16 == 0))
            assert not found, f"{seed}: {found}"
    for what in ("If", "Loop", "Scan", "symbolic", "captured"):
        assert seen[what] > 5, seen
    for what in ("two sizes", "a body with a symbol around it", "nested"):
        assert seen[what] > 0, seen


@pytest.mark.parametrize("name", CONTROL | SHAPES)
def test_every_piece_of_these_gets_into_steered_graphs(name: str) -> None:
    steering = Steering()
    pieces = {
        name: (CONTROL | SHAPES)[name],
        "unary": PIECES["unary"],
        "matmul": PIECES["matmul"],
    }
    seen: Counter[str] = Counter()
    for seed in range(12):
        random_case(seed, 5, pieces=pieces, steering=steering)
        seen.update(steering.taken)
        steering.add(())
    assert seen[name] > 1
    assert name in ALL


def test_another_size_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the inputs of that size that the failure has."""
    case = next(c for s in range(4000, 4400) if (c := _free(s)).others)
    real = dynamic.DynamicExecutable.__call__

    def wrong(exe: Any, *args: Any, **options: Any) -> Any:
        found = real(exe, *args, **options)
        shapes = [np.shape(a) for a in args]
        first = [a.shape for a in case.inputs.values()]
        return found if shapes == first or len(args) != len(first) else None

    monkeypatch.setattr(dynamic.DynamicExecutable, "__call__", wrong)
    lines = check(case.graph, case.inputs, others=case.others)
    assert lines and not check(case.graph, case.inputs)


def _free(seed: int) -> Case:
    pieces = {n: ALL[n] for n in ("free_extent", "unary", "binary", "reshaped")}
    return random_case(seed, 3, pieces=pieces)


def test_a_body_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With iterations that are copied once too seldom."""
    real = unroll._Unroller.number

    def short(self: Any, i: int) -> Any:
        found = real(self, i)
        return found - 1 if i == 0 and isinstance(found, int) and found > 1 else found

    pieces = {n: ALL[n] for n in ("loop", "unary")}
    cases = [random_case(seed, 3, pieces=pieces) for seed in range(4000, 4012)]
    monkeypatch.setattr(unroll._Unroller, "number", short)
    assert any(problem(case, Setting(None, "default", 1)) for case in cases)
