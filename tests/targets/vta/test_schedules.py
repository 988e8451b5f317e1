"""Default schedules on the simulator, bit for bit against NumPy, for any layer."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.targets.vta.layer_formulas import convolved, random_arrays, windows
from tilewright.base.errors import InputError
from tilewright.loops.lower import lower
from tilewright.schedule import Schedule
from tilewright.targets.vta import schedules
from tilewright.targets.vta.blocks import blocked
from tilewright.targets.vta.compiled import VtaProgram
from tilewright.targets.vta.config import VTAConfig
from tilewright.targets.vta.intrinsics import ACC, INP
from tilewright.targets.vta.layers import (
    Convolution,
    Requantize,
    convolution,
    depthwise,
    pooling,
)
from tilewright.targets.vta.schedules import schedule
from tilewright.targets.vta.tiling import choose

Bytes = NDArray[np.int8]


def formula(c: Convolution, q: Requantize, *given: NDArray) -> Bytes:
    """The layer by NumPy, in the layout of the machine."""
    return convolved(c, q, VTAConfig(), given)


def check(c: Convolution, q: Requantize, threads: int) -> None:
    layer = convolution(c, q)
    given = random_arrays(layer)
    program = VtaProgram(schedule(layer, threads).kernel)
    program.check(given)  # no race, whatever the timing
    np.testing.assert_array_equal(given[-1], formula(c, q, *given[:-1]))


SIDES = st.integers(1, 12)
ONE_TO_3, PADS = st.integers(1, 3), st.integers(0, 3)


@st.composite
def convolutions(draw: st.DrawFn) -> Convolution:
    kernel, stride, dilation = (draw(st.tuples(ONE_TO_3, ONE_TO_3)) for _ in range(3))
    pads, ends = (draw(st.tuples(PADS, PADS)) for _ in range(2))
    size = tuple(
        max(draw(SIDES), (k - 1) * d + 1 - p - e)
        for k, d, p, e in zip(kernel, dilation, pads, ends, strict=True)
    )
    channels = 16 * draw(ONE_TO_3), 16 * draw(st.integers(1, 4))
    return Convolution(
        *channels, (size[0], size[1]), kernel, stride, pads, ends, dilation
    )


@settings(deadline=None, max_examples=25)
@given(
    convolutions(),
    st.builds(
        Requantize,
        shift=st.integers(0, 12),
        relu=st.booleans(),
        bias=st.booleans(),
        residual=st.none() | st.sampled_from([1, 64, 3, 32767, 1 << 20]),
        factor=st.sampled_from([1, 2, 5, 32767, None]),
        before=st.integers(0, 12),
        high=st.sampled_from([127, 96, 0]),
    ),
    st.sampled_from([1, 2]),
)
@example(Convolution(16, 16, (1, 1), (1, 1), (1, 2), (0, 1), (0, 0)), Requantize(0), 1)
@example(Convolution(16, 48, (11, 2), (1, 1), (1, 2), (0, 0), (0, 1)), Requantize(0), 2)
def test_any_layer_is_its_formula(c: Convolution, q: Requantize, threads: int) -> None:
    check(c, q, threads)


@settings(deadline=None, max_examples=15)
@given(convolutions(), st.sampled_from([1, 2]), st.sampled_from([0, -128]))
def test_pooling(c: Convolution, threads: int, outside: int) -> None:
    layer = pooling(c, outside=outside)
    x, y = random_arrays(layer)
    VtaProgram(schedule(layer, threads).kernel).check([x, y])
    np.testing.assert_array_equal(
        y, np.max([part for _, part in windows(c, x, outside)], 0)
    )


@settings(deadline=None, max_examples=15)
@given(convolutions(), st.sampled_from([1, 2]))
def test_depthwise(c: Convolution, threads: int) -> None:
    layer = depthwise(c, q := Requantize(4, residual=1, factor=None))
    x, w, *more, y = random_arrays(layer)
    VtaProgram(schedule(layer, threads).kernel).check([x, w, *more, y])
    ct = len(x)
    full = np.zeros((ct, ct, *c.kernel, 16, 16), np.int8)
    for k, lane in product(range(ct), range(16)):
        full[k, k, :, :, lane, lane] = w[k, :, :, lane]
    square = replace(c, outputs=c.inputs)
    np.testing.assert_array_equal(y, formula(square, q, x, full, *more))


PRIMES = {  # -> what two virtual threads use of the matrix unit, at least
    Convolution(64, 64, (53, 53), (3, 3), (1, 1), (1, 1)): 0.83,
    Convolution(64, 128, (53, 47), (3, 3), (2, 2), (1, 1)): 0.83,
    Convolution(768, 768, (197, 1)): 0.87,
    Convolution(64, 64, (31, 31), (3, 3), (1, 1), (1, 1)): 0.81,
}


@pytest.mark.sampled(4)  # two prime extents
@pytest.mark.parametrize("c", PRIMES, ids=lambda c: "x".join(map(str, c.size)))
def test_blocks_of_prime_extents_overlap(c: Convolution) -> None:
    """They need not divide the extent: the last one is as large as the others."""
    layer = convolution(c, q := Requantize(7))
    given = random_arrays(layer)
    program = VtaProgram(schedule(layer).kernel)
    assert c.macs / 256 / program.time(given).cycles > PRIMES[c]
    np.testing.assert_array_equal(given[-1], formula(c, q, *given[:-1]))
    program.check(given)


@pytest.mark.parametrize("rows", [1, 2])
def test_blocks_of_one_row(rows: int) -> None:
    """A loop of one turn is gone from the image's index, and from its padding."""
    c = Convolution(64, 64, (8, 53), (3, 3), (1, 1), (1, 1))
    layer = convolution(c, Requantize(7))
    last = layer.computations[-1]
    made = lower(
        layer.name, layer.computations, params=layer.params, outputs=layer.params[-1:]
    )
    s = Schedule(made)
    block = blocked(s, last, (4, rows, 53, 16), 1, None)
    s.compute_at("acc", block, scope=ACC)
    assert s.cache_read("x", block, INP, pad=True)
    (added,) = (line for line in str(s.kernel).splitlines() if "add=" in line)
    assert "select" not in added


def test_virtual_threads_hide_latency() -> None:
    c = Convolution(128, 128, (28, 28), (3, 3), (1, 1), (1, 1))
    layer = convolution(c, Requantize(7))
    given = random_arrays(layer)
    used = []
    for threads in (1, 2):
        timing = VtaProgram(schedule(layer, threads).kernel).time(given)
        used.append(c.macs / 256 / timing.cycles)
    assert used[0] < 0.85
    assert used[1] > 0.9


LAYERS = {  # -> what two virtual threads use of the matrix unit, at least
    "C3": (Convolution(64, 64, (56, 56)), 0.47),
    "C5": (Convolution(64, 128, (56, 56), stride=(2, 2)), 0.45),
    "C8": (Convolution(128, 256, (28, 28), stride=(2, 2)), 0.59),
    "C11": (Convolution(256, 512, (14, 14), stride=(2, 2)), 0.72),
}


@pytest.mark.sampled(3)  # the first layer and a late one
@pytest.mark.parametrize("name", LAYERS)
def test_the_model_of_the_time_is_near_the_simulator(name: str) -> None:
    c, least = LAYERS[name]
    layer = convolution(c, Requantize(7, bias=False))
    given = random_arrays(layer)
    for threads in (1, 2):
        with mock.patch.object(schedules, "choose", wraps=choose) as chosen:
            program = VtaProgram(schedule(layer, threads).kernel)
        cycles = program.time(given).cycles
        made = choose(*chosen.call_args.args)
        assert abs(made.cycles - cycles) < 0.06 * cycles
    assert c.macs / 256 / cycles > least


def test_rows_that_a_stride_passes_over_are_not_loaded() -> None:
    c = Convolution(64, 128, (56, 56), stride=(2, 2))
    layer = convolution(c, Requantize(7))
    loaded = (
        VtaProgram(schedule(layer).kernel).check(random_arrays(layer)).inp_load_nbytes
    )
    assert loaded <= 64 * 28 * 56


def test_layers_that_are_none() -> None:
    with pytest.raises(InputError, match="3 channels are not whole tiles of 16"):
        convolution(Convolution(3, 16, (8, 8)), Requantize(7))
    with pytest.raises(InputError, match="points"):
        Convolution(16, 16, (2, 2), (3, 3))
    with pytest.raises(InputError, match="below 1"):
        Convolution(16, 16, (8, 8), (3, 3), stride=(0, 1))
    with pytest.raises(InputError, match="bits"):
        Requantize(40)
    with pytest.raises(InputError, match="1 to 32767 or a power of 2"):
        Requantize(4, factor=40000)
    with pytest.raises(InputError, match="expected 0 to 127"):
        Requantize(4, high=128)
