"""What bounds a kernel, on machines of which one resource is scarce."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.tune.features import kernels
from tests.tune.features.kernels import FACTS
from tilewright.base.dtypes import float32
from tilewright.compute.build import map_
from tilewright.expr.nodes import Buffer, Call
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel
from tilewright.schedule import Schedule
from tilewright.tune.features.bounds import KernelBounds
from tilewright.tune.features.facts import Facts

# Nothing but arithmetic takes time, and one sum in registers hides its latency.
ENDLESS = 1e9
ARITHMETIC = replace(
    FACTS,
    multiply_adds=0.01,
    loads=ENDLESS,
    latency=1e-3,
    l2_bytes=ENDLESS,
    l3_bytes=ENDLESS,
    memory_bytes=ENDLESS,
)
SECONDS = 1e-9  # as short as no kernel is: what is known explains all of it


def bound(kernel: Kernel, facts: Facts, seconds: float = SECONDS) -> str:
    return KernelBounds(facts).of(kernel, seconds)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "arithmetic (all lanes are used)"),
        ({"loads": 1e-3}, "loads (1.5 per arithmetic instruction)"),
        ({"l2_bytes": 1e-3}, "memory traffic (3.38 KiB from the second cache)"),
        ({"l3_bytes": 1e-3}, "memory traffic (1.12 KiB from the last cache)"),
        # All of it fits into the last cache, where it was before the call.
        ({"memory_bytes": 1e-3}, "arithmetic"),
        ({"memory_bytes": 1e-3, "l3": 512}, "memory traffic"),
        ({"latency": 1e4}, "dependence chains (so few sums hide 2% of the latency)"),
    ],
)
def test_what_is_scarce_is_the_bound(changed: dict[str, float], said: str) -> None:
    assert said in bound(kernels.product(), replace(ARITHMETIC, **changed))


def exponentials(work: int) -> Kernel:
    x, y = Buffer("x", (8, 16), float32), Buffer("y", (8, 16), float32)
    made = map_("e", y, lambda i, j: Call("exp", (x[i, j],)) if work else x[i, j] * 2.0)
    s = Schedule(lower("p", [made], [x, y], [y]))
    s.vectorize("e.j")
    return s.kernel


def test_functions_are_told_from_other_arithmetic() -> None:
    assert bound(exponentials(1), ARITHMETIC).startswith("divisions and functions")
    assert bound(exponentials(0), ARITHMETIC).startswith("arithmetic")


def test_lanes_that_are_empty_are_said() -> None:
    half = replace(ARITHMETIC, vector=32)  # its vectors are of four floats
    assert "50% of the lanes are used" in bound(kernels.product(), half)


def test_threads_that_wait_are_said() -> None:
    alone = replace(ARITHMETIC, cores=1)
    assert "threads" not in bound(kernels.product(), alone)
    many = replace(ARITHMETIC, cores=64)  # for four rows
    assert "of 64 threads are busy" in bound(kernels.product(), many)


def test_the_share_that_is_explained() -> None:
    kernel = kernels.stencil()
    bounds = KernelBounds(replace(ARITHMETIC, cores=1, multiply_adds=1.0), clock=1.0)
    took = 40e-9  # 40 cycles of two additions in each of 5 x 16 / 4 vectors
    assert bounds.of(kernel, took) == (
        "arithmetic (all lanes are used, 100% of it besides multiply-adds)"
    )
    assert bounds.of(kernel, 2 * took * 0.9).endswith(", 56% of the time")
    assert bounds.of(kernel, 4 * took).startswith("not known: most is arithmetic")
    started = replace(bounds, call_ns=41.0)
    assert started.of(kernel, 50e-9) == "starting the kernel, 82% of the time"
