"""Random graphs on several machines, led to rules, passes and sketches that never met."""

from __future__ import annotations

from collections import Counter

import pytest

from tilewright.base import events
from tilewright.testing.graph_idioms import IDIOMS
from tilewright.testing.graph_ops import PIECES
from tilewright.testing.graph_runs import run
from tilewright.testing.random_graphs import random_case
from tilewright.testing.steering import LEAST, MOST, Steering, facts

FAST = range(2000, 2024)
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
    failures = [str(f) for seed in range(start, start + 50) if (f := run(seed, None, steering))]
    assert not failures


@pytest.mark.parametrize("name", IDIOMS)
def test_every_idiom_gets_into_graphs(name: str) -> None:
    seen: Counter[str] = Counter()
    for seed in range(60):
        steering = Steering()
        random_case(seed, 8, pieces={name: IDIOMS[name], "unary": PIECES["unary"]},
                    steering=steering)  # fmt: skip
        seen.update(steering.taken)
    assert seen[name] > 20


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
    assert 2 * LEAST <= steering.weight("poor", 2.0) and steering.weight("good", 2.0) <= 2 * MOST


def test_facts_are_what_acted() -> None:
    with events.record() as happened:
        events.emit("fuse", rule="inline", producer="a", into=["b"])
        events.emit("padded", tensor="t", pads=())
        events.emit("sketch-chosen", kernel="k", sketch="matmul")
        events.emit("pass", name="fold", changed=True)
        events.emit("pass", name="idle", changed=False)
        events.emit("kernel-ready", name="k", total=1)
    assert facts(happened) == {"fuse inline", "padded", "sketch-chosen matmul", "pass fold"}


def test_a_graph_without_steering_is_as_it_was() -> None:
    assert repr(random_case(7, 6).graph) == repr(random_case(7, 6, pieces=PIECES).graph)
