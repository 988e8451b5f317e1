"""The set `fast`, with the numbers of small kernels worked out on paper."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.tune.features import kernels
from tests.tune.features.kernels import FACTS, rows
from tilewright.base.errors import UnsupportedError
from tilewright.expr.nodes import Buffer
from tilewright.loops.nodes import Block, Kernel
from tilewright.schedule import Schedule
from tilewright.targets.registry import target
from tilewright.testing.machines import MACHINES
from tilewright.tune.features import Column, ExtraColumn, Facts, Fast, names
from tilewright.tune.features.program import program

FAST = Fast(FACTS)


def test_the_product():
    (row,) = rows(FAST, kernels.product())
    expected = {
        # 32 executions of the start and 512 of the update, each a product that is added.
        "executions": 544,
        "multiply_adds": 512,
        # 512 / 4 vectors of the update; the start is 32 stores outside of vectors.
        "instructions": 128,
        "scalar": 32,
        "parallel": 512,
        # 64 tiles of j: two vectors of b and one element of a each, two vectors of c to store.
        "vector_loads": 128,
        "broadcasts": 64,
        "stores": 128 + 32,
        # The update is written out twice. Loops that are run: 4 + 8 + 32, and 4 + 16 + 64.
        "copies": 3,
        "control": 44 + 84,
        "regions": 1,
        # At level 2 c, a and b are 8 + 4 + 32 floats, 176 bytes: the first cache, of 256, holds
        # them. c stays over the loop around: 4 lines in all. 16 times a line of a and two of b.
        # The start: two lines of c.
        "from_l2": 64 * (4 + 16 + 32 + 2),
        # 640 bytes hold level 1, 608 bytes: 4 lines of c, 4 of a; b stays, 8 lines.
        "from_l3": 64 * (4 + 4 + 8 + 2),
        # 4096 bytes hold everything: 2 + 4 + 8 lines.
        "from_memory": 64 * (14 + 2),
        # Two multiply-adds per cycle; 192 loads, two per cycle.
        "issue_cycles": 64,
        "load_cycles": 96,
        # Per cycle 32 bytes, 8 and 4: 104 + 128 + 224 of the update, 4 + 16 + 32 of the start.
        "memory_cycles": 456 + 52,
        # Two cores share the update.
        "least_cycles": 228 + 52,
        "tile_width": 4,
        "tile_unrolled": 2,
        "tile_accumulators": 2,
        "tile_steps": 16,
        "tile_tasks": 4,
        "tile_task_work": 128,
        "trips_1": 4,
        "trips_2": 4,
        "trips_3": 4,
        "trips_4": 1,
        "trips_5": 1,
        "trips_6": 1,
        # 8 + 1 + 8 floats in the tile, then 44, 152 and 224.
        "bytes_0": 68,
        "bytes_1": 176,
        "bytes_2": 608,
        **{f"bytes_{n}": 896 for n in (3, 4, 5, 6)},
        "parameter_bytes": 896,
        "loops": 8,
        "statements": 2,
        "tile_lanes_used": 1,
        # Of two instructions: two vectors of b, one element of a.
        "tile_vector_loads_per": 1,
        "tile_broadcasts_per": 0.5,
        "tile_pressure": round((2 + 2 + 1) / 16, 3),
        "tile_overlap": 2 / 8,
        "tile_balance": 1,
        "tile_in_l1": round(1 / 3, 3),
        "tile_in_l2": round(2 / 3, 3),
        "tile_in_l3": 1,
        # 128 instructions and 192 loads of 32 stores more.
        "tile_share": round(320 / 352, 3),
        # By 544 executions.
        "issue_cycles_per": 64 / 544,
        "load_cycles_per": 96 / 544,
        "memory_cycles_per": 508 / 544,
        "least_cycles_per": 280 / 544,
        "from_l2_per": 64 * 54 / 544,
        "from_l3_per": 64 * 18 / 544,
        "from_memory_per": 64 * 16 / 544,
        "stores_per": 160 / 544,
        "control_per": 128 / 544,
    }
    assert {k: v for k, v in row.items() if k in expected} == pytest.approx(
        expected, abs=2e-3
    )
    assert set(row) == set(expected)


def test_the_stencil_in_vectors():
    (row,) = rows(FAST, kernels.stencil())
    # 5 rows of 4 vectors. A vector needs 6 neighbors of x, two registers; two additions each.
    assert row["executions"] == 80 and row["simple"] == 160
    assert row["instructions"] == 40 and row["vector_loads"] == 40
    assert row["stores"] == 20 and row["control"] == 5 + 20
    assert "multiply_adds" not in row and "broadcasts" not in row
    # x is 360 bytes, y 320. One row of both, 136 bytes, stays in 256: 5 times 72 and 64 bytes.
    assert row["from_l2"] == pytest.approx(5 * (72 + 64))
    assert row["from_l3"] == pytest.approx(5 * (72 + 64))  # 680 bytes are more than 640
    assert row["from_memory"] == pytest.approx(360 + 320)


def test_a_reduction_without_vectors():
    (row,) = rows(FAST, kernels.row_sums())
    # Of each execution an element is read; the sum is kept where it is.
    assert row["executions"] == 6 + 192 and row["scalar"] == 198
    assert row["broadcasts"] == 192 and row["simple"] == 192
    assert row["tile_steps"] == 32 and row["trips_1"] == 32 and row["trips_2"] == 6
    assert row["tile_lanes_used"] == 0.25


def test_a_gather():
    (row,) = rows(FAST, kernels.gather())
    # 8 vectors of 4 elements, each of another row; the ids are neighbors (8 bytes, two registers).
    assert row["gathers"] == 32 and row["vector_loads"] == 16
    # y is stored in columns, element by element.
    assert row["stores"] == 32 and row["tile_gathers_per"] == 4


def test_more_cores_than_tasks_are_no_use():
    found = [
        rows(Fast(replace(FACTS, cores=n)), kernels.product())[0] for n in (1, 3, 4, 9)
    ]
    least = [row["least_cycles"] for row in found]
    # 4 tasks on 3 cores take as long as on 2.
    assert least == pytest.approx([508, 280, 166, 166])
    assert [row["tile_balance"] for row in found] == [1, round(4 / 6, 3), 1, 1]


def test_buffers_in_registers_move_nothing():
    s = Schedule(kernels.plain_product())
    s.cache_write("c", "m.i")
    name = next(a.buffer.name for a in program(s.kernel).all_allocations)
    s.set_scope(name, "stack")
    (on_stack,) = rows(FAST, s.kernel)
    assert on_stack["stack_bytes"] == 32 and "register_bytes" not in on_stack
    s.set_scope(name, "register")
    (row,) = rows(FAST, s.kernel)
    assert row["register_bytes"] == 32 and "stack_bytes" not in row
    assert row["from_l2"] < on_stack["from_l2"] and row["stores"] < on_stack["stores"]


def test_prefetches_and_streams_are_counted():
    k = kernels.product()
    noted = Kernel(
        k.name, k.params, k.outputs, k.body,
        {"m.j.i": {"prefetch": 256}, "m.i": {"stream": "c"}},
    )  # fmt: skip
    (row,) = rows(FAST, noted)
    assert (row["prefetches"], row["streams"]) == (1, 1)


def test_terms_are_asked_of_the_target():
    cost = ExtraColumn(
        Column("analytic", "ns", "what the target expects"), lambda kernel: 42.0
    )
    with_terms = Fast(FACTS, (cost,))
    assert names(with_terms) == (*names(FAST), "analytic")
    made = with_terms.extract(kernels.product())
    assert made[0, -1] == 42
    assert np.array_equal(made[:, :-1], FAST.extract(kernels.product()))


def test_many_kernels_are_rows_as_one_by_one():
    some = [kernels.product(), kernels.stencil(), kernels.gather()]
    together = FAST.extract_all(some)
    assert together.dtype == np.float32
    for row, kernel in zip(together, some, strict=True):
        assert np.array_equal(row, FAST.extract(kernel)[0])
    assert FAST.extract_all([]).shape == (0, len(FAST.columns))


def test_a_kernel_that_does_nothing():
    x = Buffer("x", (4,), kernels.float32)
    (row,) = rows(FAST, Kernel("p", (x,), (x,), Block(())))
    assert row == {"parameter_bytes": 16}


def test_facts_of_a_target():
    found = Facts.of(MACHINES["zen2"].target())
    assert (found.vector, found.registers, found.cores) == (32, 16, 16)
    assert found.caches == (32 << 10, 512 << 10, 16 << 20)
    rates = {"second_bytes": 48, "far_bytes": 6.5}
    described = target("cpu", "x86-64-v4", description={"costs": rates})
    found = Facts.of(described)
    assert (found.vector, found.l2_bytes, found.l3_bytes) == (64, 48, 6.5)


def test_a_target_without_caches_is_refused():
    with pytest.raises(UnsupportedError, match="'vdla' has no caches") as raised:
        Facts.of(target("vdla"))
    assert "Facts(...)" in str(raised.value.hint)
