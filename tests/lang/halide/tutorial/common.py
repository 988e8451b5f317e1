"""Programs in the manner of Halide's tutorial, as a CPU's user writes: the lessons in `LESSONS`.

Each takes the module (`halide` or ours), and returns what it realizes: a Buffer or several.
"""

from __future__ import annotations

import numpy as np

RNG = np.random.default_rng(0)
GRAY = RNG.integers(0, 256, (36, 48)).astype(np.uint8)
COLOR = RNG.integers(0, 256, (3, 20, 32)).astype(np.uint8)

PROGRAMS = {}
# Those on algorithms, schedules and running. Not here: debugging (3, 4), compiling ahead of time
# (10, 11, 16), GPUs (12), generators (15), autoschedulers (21), serialization (23), async (24).
LESSONS = (1, 2, 5, 6, 7, 8, 9, 13, 14, 17, 18, 19, 20, 22)


def program(f):
    """Add to the table."""
    PROGRAMS[f.__name__] = f
    return f


def variables(m, names):
    return [m.Var(name) for name in names.split()]
