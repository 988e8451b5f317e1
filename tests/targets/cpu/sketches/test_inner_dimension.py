"""Maps that read in another order than they write: which dimension goes along vectors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.base.dtypes import float32
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
