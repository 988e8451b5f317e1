"""Halide's features, with numbers worked out on paper."""

from __future__ import annotations

import pytest

from tests.tune.features import kernels
from tests.tune.features.kernels import FACTS, rows
from tilewright.compute.build import map_
from tilewright.expr.nodes import Buffer
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel
from tilewright.schedule import Schedule
from tilewright.tune.features import Halide, names
from tilewright.tune.features.halide_columns import PIPELINE_COLUMNS, SCHEDULE

SET = Halide(FACTS)


def schedule(row: dict[str, float]) -> dict[str, float]:
    return {k: v for k, v in row.items() if k in SCHEDULE}


def pipeline(row: dict[str, float]) -> dict[str, float]:
    return {k: v for k, v in row.items() if k not in SCHEDULE}


def test_there_are_39_and_40_times_7_columns():
    assert len(SCHEDULE) == 39 and len(PIPELINE_COLUMNS) == 280
    assert names(SET)[38:40] == ("working_set_at_root", "op_const_bool")


def test_the_schedule_of_the_product():
    start, update = rows(SET, kernels.product())
    assert schedule(start)["points_computed_total"] == 32
    assert schedule(start)["num_scalars"] == 32
    assert schedule(update) == {
        "num_realizations": 1,
        "num_productions": 1,
        "points_computed_per_realization": 512,
        "points_computed_per_production": 512,
        "points_computed_total": 512,
        "points_computed_minimum": 512,
        "innermost_loop_extent": 2,  # the loop that is unrolled
        "innermost_pure_loop_extent": 2,
        "unrolled_loop_extent": 2,
        "inner_parallelism": 4,
        "outer_parallelism": 1,
        "bytes_at_realization": 128,
        "bytes_at_production": 128,
        "bytes_at_root": 128,
        "bytes_at_task": 32,  # a row
        "innermost_bytes_at_realization": 32,
        "innermost_bytes_at_production": 32,
        "innermost_bytes_at_root": 32,
        "innermost_bytes_at_task": 32,
        "vector_size": 4,
        "native_vector_size": 4,
        "num_vectors": 128,
        # a is broadcast, once for both vectors of a row; b and c are loaded.
        "scalar_loads_per_vector": 0.5,
        "vector_loads_per_vector": 2,
        "scalar_loads_per_scalar": 3,
        "unique_bytes_read_per_realization": 896,
        "unique_lines_read_per_realization": 4 + 16 + 4,
        "allocation_bytes_read_per_realization": 896,
        "unique_bytes_read_per_vector": 4 + 16 + 16,
        "unique_lines_read_per_vector": 3,
        # A row of a and c, all of b.
        "unique_bytes_read_per_task": 64 + 512 + 32,
        "unique_lines_read_per_task": 1 + 16 + 1,
    }


def test_the_pipeline_of_the_product():
    _, update = rows(SET, kernels.product())
    assert pipeline(update) == {
        "op_add_float": 1,
        "op_mul_float": 1,
        "op_image_call_float": 2,
        "op_self_call_float": 1,
        # The dimensions are i, j and k; each access has two of them.
        "broadcast_load_image_float": 2,
        "broadcast_load_self_float": 1,
        "broadcast_store_float": 1,
    }


def classes(f, shape: tuple[int, ...]) -> set[str]:
    x, y = Buffer("x", shape, kernels.float32), Buffer("y", (4, 6), kernels.float32)
    (row,) = rows(SET, lower("p", [map_("f", y, lambda i, j: f(x, i, j))], [x, y], [y]))
    return {k.split("_")[0] for k in row if k.endswith("_load_image_float")}


@pytest.mark.parametrize(
    ("f", "shape", "expected"),
    [
        # A pointwise access is a transposition that moves nothing, and so on.
        (lambda x, i, j: x[i, j + 1], (4, 7), "pointwise transpose broadcast slice"),
        (lambda x, i, j: x[j, i], (6, 4), "transpose broadcast slice"),
        (lambda x, i, j: x[j], (6,), "broadcast"),
        (lambda x, i, j: x[i, 2, j], (4, 3, 6), "slice"),
        (lambda x, i, j: x[i * 2, j], (8, 6), ""),
        (lambda x, i, j: x[i, i], (4, 4), ""),
        (lambda x, i, j: x[0, i, j], (1, 4, 6), "pointwise transpose broadcast slice"),
    ],
)
def test_classes_of_accesses(f, shape, expected):
    assert classes(f, shape) == set(expected.split())


def test_classes_do_not_change_with_the_schedule():
    x, y = Buffer("x", (8, 8), kernels.float32), Buffer("y", (8, 8), kernels.float32)
    s = Schedule(lower("p", [map_("f", y, lambda i, j: x[i, j])], [x, y], [y]))
    (before,) = rows(SET, s.kernel)
    s.tile("f.i", "f.j", 4, 2)
    (after,) = rows(SET, s.kernel)
    assert pipeline(before) == pipeline(after)
    assert before["pointwise_load_image_float"] == 1


def chain() -> Schedule:
    """t[i] = x[i] + x[i + 1], y[i] = t[i] * t[i + 2], 8 results."""
    x, y = Buffer("x", (11,), kernels.float32), Buffer("y", (8,), kernels.float32)
    t = Buffer("t", (10,), kernels.float32)
    first = map_("t", t, lambda i: x[i] + x[i + 1])
    last = map_("y", y, lambda i: t[i] * t[i + 2])
    return Schedule(lower("p", [first, last], [x, y], [y]))


def test_a_stage_at_the_root_and_in_tiles_of_its_consumer():
    s = chain()
    (t, y) = map(schedule, rows(SET, s.kernel))
    assert (t["num_realizations"], t["num_productions"]) == (1, 1)
    assert t["points_computed_total"] == 10 and t["bytes_at_production"] == 40
    assert t["working_set_at_root"] == 40 and "working_set" not in t
    s.split("y.i", 4)
    s.compute_at("t", "y.i.o")
    (t, y) = map(schedule, rows(SET, s.kernel))
    # Each of two tiles needs 6 elements: 12 are computed.
    assert (t["num_realizations"], t["num_productions"]) == (2, 2)
    assert t["points_computed_per_production"] == 6
    assert t["points_computed_total"] == 12 and t["bytes_at_production"] == 24
    assert y["num_productions"] == 1 and y["working_set"] == 24
    assert y["unique_bytes_read_per_realization"] == 24


def test_lanes_that_are_apart():
    x = Buffer("x", (40,), kernels.float32)
    y = Buffer("y", (4,), kernels.float32)
    made = map_("f", y, lambda i: x[i * 3] + x[i * 9] + x[i * 0 + 5] + x[i])
    s = Schedule(lower("p", [made], [x, y], [y]))
    s.vectorize("f.i")
    (row,) = rows(SET, s.kernel)
    # 3 loads and a shuffle for three apart, one for neighbors; 4 lanes one by one, and a broadcast.
    assert row["vector_loads_per_vector"] == 4 and row["scalar_loads_per_vector"] == 5


def test_the_gather():
    (row,) = rows(SET, kernels.gather())
    # table by lanes; the ids are neighbors.
    assert row["scalar_loads_per_vector"] == 4 and row["vector_loads_per_vector"] == 1
    assert row["native_vector_size"] == 4
    assert row["op_image_call_uint64"] == 1


def test_parallel_loops_around_a_stage_are_outer():
    s = chain()
    s.split("y.i", 4)
    s.compute_at("t", "y.i.o")
    s.parallel("y.i.o")
    (t, y) = map(schedule, rows(SET, s.kernel))
    assert (t["inner_parallelism"], t["outer_parallelism"]) == (1, 2)
    assert (y["inner_parallelism"], y["outer_parallelism"]) == (2, 1)
    assert isinstance(s.kernel, Kernel)
