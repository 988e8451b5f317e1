"""Rows worked on at once: short ones in a cache are interleaved, whatever their number."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.base.dtypes import float32
from tilewright.base.errors import ScheduleError
from tilewright.compute.nodes import Computation
from tilewright.driver.single import build_kernel
from tilewright.graph.ops.norm import exponentials
from tilewright.loops.lower import lower
from tilewright.loops.verify import verify
from tilewright.operators import Buffer, map_
from tilewright.runtime.executable import Executable
from tilewright.schedule.sketch import Context, Sketch, sketches
from tilewright.targets.cpu.machine import host, machine
from tilewright.targets.registry import target


def softmax(rows: int, width: int) -> list[Computation]:
    x, y = (Buffer(name, (rows, width), float32) for name in "xy")
    e = exponentials("e", x, [1], float32)
    return [*e.steps, map_("div", y, lambda i, j: e.terms[i, j] / e.total[i, 0])]


def best(steps: list[Computation], at: Context) -> Sketch:
    x, y = steps[0].inputs[0], steps[-1].outputs[0].tensor
    return sketches(lower("k", steps, params=[x, y], outputs=[y]), steps, at)[0]


@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("shape", [(23, 70), (16, 33), (5, 300)], ids=str)
def test_any_number_of_rows_at_a_time(shape: tuple[int, int], rows: int) -> None:
    kernel = best(softmax(*shape), Context(host())).at({"div.rows": rows}).schedule.kernel
    verify(kernel)
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    terms = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    found = Executable(build_kernel(kernel, target("cpu")), threads=2)(x)
    np.testing.assert_allclose(found, terms / terms.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize(
    ("shape", "level", "rows"),
    [
        ((128, 128), "x86-64-v4", 4),
        ((128, 128), "x86-64-v3", 2),  # half the registers
        ((128, 1024), "x86-64-v4", 1),  # long
        ((65536, 128), "x86-64-v4", 1),  # from memory
        ((8, 128), "x86-64-v4", 1),  # few
    ],
    ids=str,
)
def test_short_rows_in_a_cache_are_interleaved(
    shape: tuple[int, int], level: str, rows: int
) -> None:
    sketch = best(softmax(*shape), Context(machine(level)))
    assert sketch.default().values["div.rows"] == rows


def test_long_rows_are_not_offered_together() -> None:
    with pytest.raises(ScheduleError, match=r"div\.rows|no parameter|not possible"):
        best(softmax(64, 4096), Context(host())).at({"div.rows": 4})


@pytest.mark.parametrize(
    ("width", "vectors"), [(768, 4), (1024, 4), (128, 1), (770, 1), (4096, 1)], ids=str
)
def test_cheap_maps_of_rows_in_the_first_cache_have_more_on_the_way(
    width: int, vectors: int
) -> None:
    values = best(softmax(64, width), Context(machine("x86-64-v4"))).default().values
    assert values["div.vectors"] == vectors
    assert values["e_exp.vectors"] == 1
