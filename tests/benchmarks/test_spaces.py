"""The table of spaces counts what a task's sketches ask."""

from __future__ import annotations

import math

from benchmarks.spaces import sizes
from tilewright.driver.tasks import task_of_kernel
from tilewright.loops.parser import parse

TEXT = """
kernel twice(x: float32[6, 24]) -> y: float32[6, 24]:
  for i in 6:
    for j in 24:
      y[i, j] = x[i, j] * 2.0
"""


def test_points_are_the_products_of_choices() -> None:
    task = task_of_kernel(parse(TEXT.strip().splitlines()), threads=1)
    size = sizes(task)
    counts = [int(text.split()[-1]) for text in size.parameters]
    assert size.kernel == "twice" and size.sketch == "kernel"
    assert size.points == (math.prod(counts), math.prod(counts))
    assert min(counts) > 1 and all(name.startswith("j.") for name in size.parameters)
