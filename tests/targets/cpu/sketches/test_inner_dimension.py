"""Maps that read in another order than they write: which dimension goes along vectors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.base.dtypes import float32, int64
from tilewright.compute.nodes import Computation
from tilewright.driver.build_kernel import build_kernel
from tilewright.loops.lower import lower
from tilewright.operators import Buffer, map_
from tilewright.runtime.executable import Executable
from tilewright.schedule.space import Point
from tilewright.targets.cpu.cost import cost_model
from tilewright.targets.cpu.machine import host, machine
from tilewright.targets.cpu.sketches import Context, sketches
from tilewright.targets.cpu.sketches.inner_dimension import cycles, inner_dimension
from tilewright.targets.registry import target

HEIGHT, WIDTH = 37, 129
LEVELS = ["x86-64-v3", "x86-64-v4"]


def channels_first(count: int, taps: int = 1) -> Computation:
    """An image stored channels last, summed over neighbors, written channels first."""
    x = Buffer("x", (HEIGHT, WIDTH + taps - 1, count), float32)
    y = Buffer("y", (count, HEIGHT, WIDTH), float32)
    return map_("t", y, lambda c, i, j: sum(x[i, j + k, c] for k in range(taps)))


def channels_last(count: int, taps: int = 1) -> Computation:
    """The other way around."""
    x = Buffer("x", (count, HEIGHT, WIDTH + taps - 1), float32)
    y = Buffer("y", (HEIGHT, WIDTH, count), float32)
    return map_("t", y, lambda i, j, c: sum(x[c, i, j + k] for k in range(taps)))


def point(c: Computation, level: str) -> Point:
    out = c.outputs[0].tensor
    kernel = lower(c.name, [c], params=[*c.inputs, out], outputs=[out])
    return sketches(kernel, [c], Context(machine(level)))[0].default()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("made", "count", "tiles"),
    [
        (channels_first, 3, [False, False]),
        (channels_first, 4, [False, False]),
        (channels_first, 5, [True, True]),
        (channels_last, 2, [False, False]),
        (channels_last, 4, [True, False]),  # stored apart by shuffles of long vectors
        (channels_last, 5, [True, True]),
    ],
)
def test_few_channels_go_by_shuffles_and_many_by_tiles(
    made, count: int, tiles: list[bool], level: str
) -> None:
    assert point(made(count), level).values["t.tiles"] is tiles[LEVELS.index(level)]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("count", [2, 3, 8, 24])
def test_neighbors_are_read_side_by_side(count: int, level: str) -> None:
    """Stores may go apart where several loads would."""
    assert point(channels_last(count, 3), level).values["t.inner"] == "j"


@pytest.mark.parametrize("level", LEVELS)
def test_the_last_dimension_stays_where_another_is_not_much_faster(level: str) -> None:
    c = channels_first(3, 3)
    costs = cost_model(machine(level))
    times = {d.var.name: cycles(c, c.dims, d, costs) for d in c.dims}
    assert inner_dimension(c, c.dims, costs) is c.dims[-1]
    assert min(times, key=times.__getitem__) == c.dims[-1].var.name


def test_every_result_of_a_map_counts() -> None:
    """Two results stored side by side outweigh one read that is not."""
    one = channels_last(3)
    (o,) = one.outputs
    other = Buffer("z", o.tensor.shape, float32)
    both = replace(one, outputs=(o, replace(o, tensor=other)))
    costs = cost_model(machine("x86-64-v3"))
    times = [[cycles(c, c.dims, d, costs) for d in c.dims] for c in (one, both)]
    assert all(b > a for a, b in zip(*times, strict=True))


@pytest.mark.parametrize("made", [channels_first, channels_last])
@pytest.mark.parametrize("count", [1, 3, 17])
@pytest.mark.parametrize("taps", [1, 3])
def test_results(made, count: int, taps: int) -> None:
    c = made(count, taps)
    out = c.outputs[0].tensor
    kernel = lower(c.name, [c], params=[*c.inputs, out], outputs=[out])
    best = sketches(kernel, [c], Context(host()))[0].default()
    x = np.random.default_rng(0).standard_normal(c.inputs[0].shape)
    x = x.astype(np.float32)
    exe = Executable(build_kernel(best.schedule.kernel, target("cpu")), threads=2)
    axis = 1 if made is channels_first else 2
    width = np.arange(WIDTH)
    want = sum(np.take(x, width + k, axis) for k in range(taps))
    order = (2, 0, 1) if made is channels_first else (1, 2, 0)
    np.testing.assert_allclose(exe(x), want.transpose(order), rtol=1e-6, atol=1e-6)


def cycles_by_dim(c: Computation, level: str = "x86-64-v3") -> dict[str, float]:
    costs = cost_model(machine(level))
    return {d.var.name: cycles(c, c.dims, d, costs) for d in c.dims}


def pixels(count: int, width: int = 40) -> Computation:
    """Pixels of four images, in turn, written channels first."""
    x = Buffer("x", (width // 2 + 1, 2, count), float32)
    y = Buffer("y", (count, width), float32)
    return map_("t", y, lambda i, j: x[(j + 1) // 2, (j + 1) % 2, i])


@pytest.mark.parametrize("level", LEVELS)
def test_lanes_on_many_lines_are_not_halves_side_by_side(level: str) -> None:
    assert point(pixels(32), level).values["t.inner"] == "i"
    near = cycles_by_dim(pixels(1), level)
    assert near["j"] < cycles_by_dim(pixels(32), level)["j"] / 4


def test_lines_that_the_loop_around_reads_again_are_not_new() -> None:
    """Eight rows side by side are read along; of the columns of an image, none is again."""
    x = Buffer("x", (8, 4000), float32)
    y = Buffer("y", (4000, 8), float32)
    along = map_("t", y, lambda j, i: x[i, j])
    far = Buffer("x", (8, 4000, 16), float32)
    beyond = map_("t", y, lambda j, i: far[i, j, 3])
    assert 1.5 * cycles_by_dim(along)["i"] < cycles_by_dim(beyond)["i"]


def test_lines_that_do_not_stay_are_new() -> None:
    """A column of more lines than the cache has is gone before the next one is read."""
    few, many = (Buffer("x", (n, 4001), float32) for n in (64, 4096))
    times = []
    for x in (few, many):
        y = Buffer("y", (4001, x.shape[0]), float32)
        times.append(cycles_by_dim(map_("t", y, lambda j, i, x=x: x[i, j]))["i"])
    assert 1.5 * times[0] < times[1]


def test_a_lane_is_stored_by_itself_where_it_would_be_read_by_shuffles() -> None:
    x, y = Buffer("x", (2, 640), float32), Buffer("y", (640, 2), float32)
    back = map_("t", y, lambda j, i: x[i, j])
    across = map_("t", x, lambda i, j: y[j, i])
    assert 2 * cycles_by_dim(across)["j"] < cycles_by_dim(back)["j"]
    level = "x86-64-v4"  # whole lines are stored by shuffles, too
    ours = cycles_by_dim(back, level)["j"]
    assert ours == pytest.approx(cycles_by_dim(across, level)["j"])


def test_addresses_that_depend_on_data_have_a_cost() -> None:
    x, rows = Buffer("x", (64, 64), float32), Buffer("rows", (64,), int64)
    y = Buffer("y", (64, 64), float32)
    times = cycles_by_dim(map_("t", y, lambda j, i: x[rows[j], i]))
    assert times["i"] < times["j"]


@pytest.mark.parametrize("read", [True, False])
def test_lanes_that_evict_one_another_cost_most(read: bool) -> None:
    costs = cost_model(machine("x86-64-v4"))
    apart, far = Buffer("x", (64, 1024 + 16), float32), Buffer("x", (64, 8192), float32)
    times = []
    for x in (apart, far):
        y = Buffer("y", (x.shape[1], 64), float32)
        c = map_("t", y, lambda j, i, x=x: x[i, j])
        back = map_("t", x, lambda i, j, y=y: y[j, i])
        times.append(cycles_by_dim(c if read else back, "x86-64-v4")["i"])
    least = costs.far_load if read else costs.far_store
    assert times[0] < least <= times[1]


def rows_apart(rows: int, pitch: int, written: bool) -> float:
    """The cycles of vectors along so many rows, whose lines the loop around comes back to."""
    x, y = Buffer("x", (rows, pitch), float32), Buffer("y", (pitch, rows), float32)
    if written:
        return cycles_by_dim(map_("t", x, lambda i, j: y[j, i]))["i"]
    return cycles_by_dim(map_("t", y, lambda j, i: x[i, j]))["i"]


@pytest.mark.parametrize("written", [True, False])
def test_rows_that_the_loop_around_finds_evicted_cost_most(written: bool) -> None:
    """Eight rows a page apart fit the ways of a set, and sixteen do not."""
    costs = cost_model(machine("x86-64-v3"))
    far = costs.far_store if written else costs.far_load
    assert rows_apart(8, 1024, written) < far <= rows_apart(16, 1024, written)
    assert rows_apart(16, 1024 + 16, written) < far


@pytest.mark.parametrize("written", [True, False])
def test_rows_of_a_cache_that_is_full_are_fetched_ahead(written: bool) -> None:
    costs = cost_model(machine("x86-64-v3"))
    far = costs.far_store if written else costs.far_load
    assert costs.resident_rows(1000 * 4) > costs.ahead
    assert rows_apart(1001, 1000, written) < far


def test_lines_that_the_loop_around_leaves_are_not_lost() -> None:
    """Sixteen rows a page apart, one line of each at a time."""
    costs = cost_model(machine("x86-64-v3"))
    x, y = Buffer("x", (16, 64, 16), float32), Buffer("y", (64, 16), float32)
    lines = cycles_by_dim(map_("t", y, lambda j, i: x[i, j, 0]))["i"]
    assert lines < costs.far_load
