"""Layouts by cost: what a kernel may choose, the least sum, and that nothing else changes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np
import pytest

from benchmarks import layouts
from benchmarks.layouts import KernelTimes, as_stored, cheapest, feature_maps
from tilewright.compute.interp import evaluate
from tilewright.driver.compilation import target_of
from tilewright.driver.options import Options
from tilewright.driver.remembered import RecordedAnswers
from tilewright.driver.stages import planned
from tilewright.plan.nodes import Plan
from tilewright.testing.networks import NETWORKS

OPTIONS = Options(threads=1, optimize="off")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned(NETWORKS["network_in_network"]().graph, (), None, OPTIONS)[0]


def table(maps: tuple[int, ...], **times: float) -> KernelTimes:
    """Times by choices: `lf` has its first map last and its second one in front."""
    chosen = {tuple(c == "f" for c in name): t for name, t in times.items()}
    return KernelTimes(maps, chosen)


def test_the_least_sum_of_kernels_that_share_maps() -> None:
    """Each kernel for itself would like 0 in front and 1 last; together, both in front is least."""
    tables = [
        table((0,), l=5, f=3),
        table((0, 1), ll=2, lf=9, fl=9, ff=4),
        table((1,), l=1, f=1.5),
    ]
    assert cheapest(tables, 2) == ((False, False), 8, True)
    tables[0] = table((0,), l=6, f=3)
    assert cheapest(tables, 2) == ((True, True), 8.5, True)


def test_the_least_sum_is_that_of_all_choices() -> None:
    rng = np.random.default_rng(0)
    for _ in range(5):
        tables = []
        for _ in range(6):
            maps = tuple(map(int, rng.choice(5, 2, replace=False)))
            times: Mapping[tuple[bool, ...], float] = {
                c: float(rng.uniform(1, 9)) for c in product((False, True), repeat=2)
            }
            tables.append(KernelTimes(maps, times))
        want = min(
            sum(t.least(c) for t in tables) for c in product((False, True), repeat=5)
        )
        _, found, proven = cheapest(tables, 5)
        assert found == pytest.approx(want) and proven


def test_kernels_compute_the_same_in_any_layout(plan: Plan) -> None:
    maps = set(feature_maps(plan))
    assert len(maps) >= 2
    rng = np.random.default_rng(0)
    for group in list(plan.groups)[:3]:
        own = [b for b in plan.touched(group) if b in maps]
        given = {
            b: rng.standard_normal(b.shape).astype(b.dtype.numpy) for b in group.reads
        }
        want = evaluate(group.computations, given)
        stored = {b: layouts.in_front(b) for b in own}
        changed = as_stored(group.computations, stored)
        moved = {
            stored[b][0] if b in stored else b: (
                a.transpose(stored[b][1]) if b in stored else a
            )
            for b, a in given.items()
        }
        got = evaluate(changed, moved)
        for b in group.writes:
            if b in stored:
                other, order = stored[b]
                np.testing.assert_allclose(
                    got[other], want[b].transpose(order), 1e-5, 1e-5
                )


def test_a_layout_that_is_chosen_is_compiled(
    plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    said = RecordedAnswers(target_of(OPTIONS))
    front = layouts.by_cost("network_in_network", plan, said)
    assert "maps" in capsys.readouterr().out
    first = feature_maps(plan)[0].name
    with layouts.channels_in_front(plan, {first}):
        other, _ = planned(NETWORKS["network_in_network"]().graph, (), None, OPTIONS)
    shapes = {b.name: b.shape for g in other.groups for b in g.writes}
    before = {b.name: b.shape for g in plan.groups for b in g.writes}
    assert sorted(shapes[first]) == sorted(before[first])
    assert shapes[first] != before[first] and front <= before.keys()
