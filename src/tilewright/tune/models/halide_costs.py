"""The physical terms of Halide's cost model (Adams et al., 2019), as factors of 28 coefficients.

The seconds of a stage are linear in the network's outputs: the sum over k of coefficient k of the
stage times `factors(...)[k]`. The terms and their numbers are those of cost_model_generator.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from tilewright.base.errors import InputError
from tilewright.tune.models.programs import Numbers

Array = np.ndarray[Any, np.dtype[np.float64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]

# The schedule features of Halide's autoscheduler, in its order.
SCHEDULE: Final = tuple(
    """
    num_realizations num_productions points_computed_per_realization
    points_computed_per_production points_computed_total points_computed_minimum
    innermost_loop_extent innermost_pure_loop_extent unrolled_loop_extent inner_parallelism
    outer_parallelism bytes_at_realization bytes_at_production bytes_at_root
    innermost_bytes_at_realization innermost_bytes_at_production innermost_bytes_at_root
    inlined_calls unique_bytes_read_per_realization unique_lines_read_per_realization
    allocation_bytes_read_per_realization working_set vector_size native_vector_size num_vectors
    num_scalars scalar_loads_per_vector vector_loads_per_vector scalar_loads_per_scalar
    bytes_at_task innermost_bytes_at_task unique_bytes_read_per_vector
    unique_lines_read_per_vector unique_bytes_read_per_task unique_lines_read_per_task
    working_set_at_task working_set_at_production working_set_at_realization working_set_at_root
    """.split()
)
COEFFICIENTS: Final = 32  # number 4 and the last four are unused
PAGE: Final = 4096

Feature = Callable[[str], Array]


def columns(names: Sequence[str]) -> tuple[Numbers, Numbers]:
    """The indices of the schedule features among these column names, and of the other columns.

    Raises InputError for a missing schedule feature.
    """
    place = {name: n for n, name in enumerate(names)}
    missing = [name for name in SCHEDULE if name not in place]
    if missing:
        raise InputError(
            f"features lack {', '.join(missing)}",
            where="Halide's cost model",
            hint="it needs the schedule features of Halide's autoscheduler, by their names",
        )
    schedule = [place[name] for name in SCHEDULE]
    known = set(schedule)
    others = [n for n in range(len(names)) if n not in known]
    return np.array(schedule, np.int64), np.array(others, np.int64)


def factors(schedule: Array, last: Flags, cores: int) -> Array:
    """The multiplier of each coefficient: [stages, COEFFICIENTS], all at least 0.

    schedule: [stages, features] in the order of SCHEDULE. last: whether a stage is the output's.
    """
    number = {name: n for n, name in enumerate(SCHEDULE)}

    def f(name: str) -> Array:
        return schedule[:, number[name]]

    found = np.zeros((len(schedule), COEFFICIENTS))
    _compute(found, f, cores)
    _load(found, f)
    _store(found, f, last)
    realizations = f("num_realizations")
    inner = f("inner_parallelism")
    found[:, 24] = realizations
    found[:, 25] = f("num_productions") * (inner > 1)
    found[:, 26] = f("num_productions") * np.maximum(inner - 1, 0)
    found[:, 27] = f("working_set")
    return found


def _tasks(f: Feature) -> Array:
    return np.maximum(1, f("inner_parallelism") * f("outer_parallelism"))


def _compute(found: Array, f: Feature, cores: int) -> None:
    """Vectors and scalars, scaled up for idle cores; inlined stages have separate coefficients."""
    each = _tasks(f) / cores
    idle = np.ceil(each) / np.maximum(1, each)
    inlined = f("inlined_calls") > 0
    vectors = f("vector_size") * f("num_vectors") * idle
    scalars = f("num_scalars") * idle
    found[:, 0], found[:, 2] = vectors * ~inlined, vectors * inlined
    found[:, 1], found[:, 3] = scalars * ~inlined, scalars * inlined


def _load(found: Array, f: Feature) -> None:
    runs, vectors = f("num_realizations"), f("num_vectors")
    scalars, tasks = f("num_scalars"), _tasks(f)
    found[:, 5] = runs * f("unique_lines_read_per_realization")
    found[:, 6] = runs * f("unique_bytes_read_per_realization")
    found[:, 7] = vectors * f("scalar_loads_per_vector")
    found[:, 8] = scalars * f("scalar_loads_per_scalar")
    found[:, 9] = vectors * f("vector_loads_per_vector")
    found[:, 10] = scalars * f("unique_bytes_read_per_vector")
    found[:, 11] = vectors * f("unique_bytes_read_per_vector")
    found[:, 12] = scalars * f("unique_lines_read_per_vector")
    found[:, 13] = vectors * f("unique_lines_read_per_vector")
    found[:, 14] = tasks * f("unique_bytes_read_per_task")
    found[:, 15] = tasks * f("unique_lines_read_per_task")


def _store(found: Array, f: Feature, last: Flags) -> None:
    """Lines and bytes written, false sharing, page faults; each counts twice."""
    inner = f("inner_parallelism")
    piece = np.maximum(1, f("innermost_bytes_at_task"))
    runs = f("num_realizations")
    lines = runs * inner * f("bytes_at_task") / piece
    written = runs * f("bytes_at_realization")
    shared = inner > 1
    kinds = (shared, ~shared & last, ~shared & ~last)
    for n, kind in enumerate(kinds):
        found[:, 16 + n] = 2 * lines * kind
        found[:, 19 + n] = 2 * written * kind
    stored = f("num_vectors") + f("num_scalars")
    found[:, 22] = 2 * shared * stored / piece
    pages = np.minimum(inner, PAGE / piece) * inner * f("outer_parallelism")
    found[:, 23] = 2 * f("bytes_at_production") * pages
