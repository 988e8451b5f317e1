"""Numbers of positions per block: what is left over, and which numbers pay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.base.dtypes import float32
from tilewright.compute.build import map_
from tilewright.driver.ranges.block_counts import (
    BlockCounts,
    block_counts,
    rereading,
    speedup,
)
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import INDEX, Buffer, Var
from tilewright.targets.cpu.cost import cost_model
from tilewright.targets.registry import target

N = Var("n", INDEX)


def with_weights(weights: float) -> dict[int, float]:
    """Nanoseconds per block: a position takes 10, and each block reads the weights again."""
    return {n: 10.0 * n + weights for n in (64, 32, 16, 8, 4, 2, 1)}


def covered(found: BlockCounts, total: int) -> list[tuple[int, int, int]]:
    """Of each number the first position and how often it runs, by the expressions of its loops."""
    loops = found.loops(N)
    return [
        (count, *(int(evaluate(e, {N: total})) for e in (first, times)))
        for count, first, times in loops
    ]


@pytest.mark.parametrize("weights", [0.0, 30.0, 1000.0])
@pytest.mark.parametrize("counts", [[64, 16, 4, 1], [64, 8], [32, 16], [4]])
def test_each_position_is_in_one_block(counts: list[int], weights: float) -> None:
    costs = with_weights(weights)
    found = BlockCounts.of(counts, costs.__getitem__)
    assert found.counts == tuple(counts)
    for total in (*range(1, 70), 127, 128, 129, 1000):
        done, taken = 0, 0.0
        often = [times for *_, times in covered(found, total)]
        assert all(a <= b for a, b in zip(often, found.most(total), strict=True))
        for count, first, times in covered(found, total):
            assert times >= 0 and (first == done or not times)
            done += count * times
            taken += costs[count] * times
        assert total <= done < total + counts[0]
        assert taken == pytest.approx(found.cost(total))


def test_a_rest_goes_where_it_costs_least() -> None:
    cheap = BlockCounts.of([16, 4, 1], with_weights(0.0).__getitem__)
    assert cheap.left == (15, 3, 0)  # nothing is computed for nothing
    dear = BlockCounts.of([16, 4, 1], with_weights(100.0).__getitem__)
    assert dear.left == (5, 1, 0)  # one block more takes less than 4 and 2 apart
    assert [dear.cost(n) for n in (4, 5, 6)] == [140.0, 250.0, 260.0]


def test_numbers_are_those_that_pay_for_the_totals_of_a_range() -> None:
    counts = [64, 16, 4, 1]

    def chosen(least: int, most: int, weights: float, gain: float = 1.03):
        cost = with_weights(weights).__getitem__
        return block_counts(least, most, counts, cost, gain).counts

    assert chosen(1, 4096, 1000.0)[0] == 64  # weights are read as rarely as possible
    assert chosen(64, 64, 1000.0) == (64,)
    assert chosen(3, 4, 30.0) == (4,)
    assert 1 in chosen(1, 3, 0.0)
    assert len(chosen(1, 4096, 0.0, gain=10.0)) == 1


def test_a_block_reads_all_constants_but_those_of_its_own_part() -> None:
    x, table, y = (Buffer(name, (N, 8), float32) for name in ("x", "table", "y"))
    w = Buffer("w", (8,), float32)
    made = map_("f", y, lambda n, i: x[n, i] * w[i] + table[n, i] * w[i])
    costs = replace(target("cpu").open_costs, kept=32, near_ns=2.0, far_ns=3.0)
    assert rereading([made, made], {w, table}, costs) == 64.0
    assert rereading([made], {w, table}, replace(costs, kept=31)) == 96.0
    assert rereading([made], {table}, costs) == 0.0


def test_weights_are_read_again_from_the_last_cache() -> None:
    """Blocks of one kernel follow one another: memory is read for the first of them alone."""
    machine = target("cpu", "x86-64-v4").machine

    def waited(**measured: float) -> float:
        known = replace(machine, measured=tuple(measured.items()))
        return cost_model(known).open.far_ns

    assert waited(third_bytes=16.0) == 1 / (16.0 * machine.clock)
    assert waited(far_bytes=80.0) == waited(far_bytes=5.0)


def test_blocks_run_as_often_at_most_as_the_bound_says() -> None:
    """The bound is reached: for some number of positions, by each number."""
    found = BlockCounts.of([16, 4, 1], with_weights(0.0).__getitem__)
    reached = [0, 0, 0]
    for total in range(1, 32):
        often = [times for *_, times in covered(found, total)]
        reached = [max(a, b) for a, b in zip(reached, often, strict=True)]
    assert found.most(31) == reached == [1, 3, 3]


@pytest.mark.parametrize(
    ("cores", "inside", "fast"),
    [
        (2, [16, 8], 2),
        (2, [16, 3], 1),  # two rounds for three iterations
        (64, [16], 16),
        (3, [4], 2),
        (2, [None], 2),  # as often as a size says
        (2, [], 1),  # too little work to share
        (1, [16], 1),
    ],
)
def test_a_block_is_as_fast_as_its_loop_with_the_fewest_iterations_per_round(
    cores: int, inside: list[int | None], fast: int
) -> None:
    assert speedup(cores, inside) == fast
