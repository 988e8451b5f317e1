"""Ansor's per-store features, with numbers worked out on paper."""

from __future__ import annotations

import pytest

from tests.tune.features import kernels
from tests.tune.features.kernels import rows
from tilewright.compute.build import map_
from tilewright.expr.nodes import Buffer, Select, call, const, var
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Alloc, Kernel, Store, block, loop
from tilewright.schedule import Schedule
from tilewright.tune.features import PerStore, names

SET = PerStore()


def test_there_are_164_columns():
    found = names(SET)
    assert len(found) == 164
    groups = [found.index("B0_acc_type_read"), found.index("curve_0")]
    assert groups == [57, 57 + 5 * 18]
    assert found.index("alloc_size") == 157 and found.index("outer_prod") == 161


def of(row: dict[str, float], prefix: str) -> dict[str, float]:
    n = len(prefix)
    return {k[n:]: v for k, v in row.items() if k.startswith(prefix)}


def test_arithmetic_and_loops_of_the_product():
    (row,) = rows(
        SET, kernels.product()
    )  # the start and the update store to one tensor
    assert (row["float_addsub"], row["float_mul"]) == (512, 512)
    # k.o * 4 + k.i twice and j.o * 4 + j.i once, in the indices of a and b.
    assert (row["int_addsub"], row["int_mul"]) == (1536, 1536)
    inner = {"num": 1, "prod": 4, "len": 4, "type_inner_spatial": 1}
    assert of(row, "vec_") == inner
    assert of(row, "unroll_") == inner | {"prod": 2, "len": 2}
    outer = {"num": 1, "prod": 4, "len": 4, "type_outer_spatial": 1}
    assert of(row, "parallel_") == outer
    assert (row["outer_prod"], row["num_loops"]) == (512, 5)
    assert "is_gpu" not in row and row["blockIdx_x_len"] == 1
    assert not of(row, "alloc_")


def test_tensors_of_the_product():
    (row,) = rows(SET, kernels.product())
    # b and c are in as many lines (a sixteenth of 512 executions), so all else decides; a is
    # invariant in both loops of j, and goes by neighbors then: 512 / 8 / 16 lines.
    assert (
        of(row, "B0_")
        == {
            "acc_type_read": 1,
            "bytes": 2048,
            "unique_bytes": 512,
            "lines": 32,
            "unique_lines": 16,  # pieces of 32 bytes: the last axis, which is touched as a whole
            # Used again in the next trip of i, the only loop that does not move it.
            "reuse_type_loop_multiple_read": 1,
            "reuse_dis_iter": 128,
            "reuse_dis_bytes": 608,
            "reuse_ct": 4,
            "bytes_d_reuse_ct": 512,
            "unique_bytes_d_reuse_ct": 128,
            "lines_d_reuse_ct": 8,
            "unique_lines_d_reuse_ct": 4,
            "stride": 1,
        }
    )
    c = of(row, "B1_")
    assert c["acc_type_read_write"] == 1 and c["lines"] == 32
    assert (c["reuse_dis_iter"], c["reuse_dis_bytes"], c["reuse_ct"]) == (8, 68, 4)
    a = of(row, "B2_")
    assert a["acc_type_read"] == 1 and a["lines"] == 4 and a["unique_bytes"] == 256
    # In the innermost loop already: of the step before, 4 bytes of each tensor lie between.
    assert (a["reuse_dis_iter"], a["reuse_dis_bytes"], a["reuse_ct"]) == (1, 12, 4)
    assert "stride" not in a
    assert not of(row, "B3_")


def test_intensity_of_the_product():
    (row,) = rows(SET, kernels.product())
    # Two operations per execution; from the inside 8, 16, 64, 256, 1024 of them, with 36, 68, 176,
    # 608 and 896 bytes.
    assert row["curve_9"] == pytest.approx(1024 / 896, abs=1e-3)
    # 102.4 lies between 64 and 256.
    low, high = 64 / 176, 256 / 608
    expected = low + (high - low) * (102.4 - 64) / (256 - 64)
    assert row["curve_0"] == pytest.approx(expected, abs=1e-3)


def test_a_reduction_in_its_innermost_loop():
    s = Schedule(kernels.row_sums())
    s.decompose_reduction("r", "r.i")
    s.split("r.j", 8)
    s.unroll("r.j.i")
    (row,) = rows(SET, s.kernel)
    assert row["unroll_type_inner_reduce"] == 1
    assert row["float_addsub"] == 192 and "float_mul" not in row
    # x is not used again.
    x = of(row, "B0_") if "B0_acc_type_read" in row else of(row, "B1_")
    assert x["reuse_type_no_reuse"] == 1 and "reuse_ct" not in x
    assert x["bytes_d_reuse_ct"] == 2 * x["bytes"]


def test_reuse_by_another_statement_in_the_same_loop():
    i = var("i")
    x = Buffer("x", (8,), kernels.float32)
    y, z = Buffer("y", (8,), kernels.float32), Buffer("z", (8,), kernels.float32)
    both = loop(i, 8, block(Store(y, (i,), x[i]), Store(z, (i,), x[i])))
    found = rows(SET, Kernel("p", (x, y, z), (y, z), both))
    assert len(found) == 2
    read = next(
        of(found[0], f"B{n}_") for n in range(2) if f"B{n}_acc_type_read" in found[0]
    )
    assert read["reuse_type_serial_multiple_read_write"] == 1
    # The other statement reads it in the same trip: of x twice, y and z 4 bytes.
    assert (read["reuse_dis_iter"], read["reuse_dis_bytes"], read["reuse_ct"]) == (
        1,
        16,
        1,
    )


def test_an_allocation():
    i, j = var("i"), var("j")
    t, y = Buffer("t", (5,), kernels.float32), Buffer("y", (3, 5), kernels.float32)
    fill = loop(j, 5, Store(t, (j,), const(1.0, kernels.float32)))
    body = Alloc(t, fill)
    kernel = Kernel("p", (y,), (y,), loop(i, 3, body))
    (row,) = rows(SET, kernel)
    assert of(row, "alloc_") == {
        "size": 20,
        "prod": 15,
        "outer_prod": 3,
        "inner_prod": 5,
    }


def test_every_kind_of_operation_has_its_column():
    x, y = Buffer("x", (4,), kernels.float32), Buffer("y", (4,), kernels.float32)

    def f(i):
        ratio = x[i] / (x[i] - 1.0)
        return Select((x[i] < ratio) & (ratio < 2.0), call("exp", x[i]), -ratio)

    made = map_("f", y, f)
    (row,) = rows(SET, lower("p", [made], [x, y], [y]))
    found = {k: v for k, v in row.items() if k in names(SET)[:16]}
    assert found == {
        "float_addsub": 8,  # x - 1 and the change of sign
        "float_divmod": 4,
        "float_cmp": 8,
        "float_mathfunc": 4,
        "bool_op": 4,
        "select_op": 4,
    }


def test_only_the_tensors_in_most_lines_have_columns():
    inputs = [Buffer(f"x{n}", (4,), kernels.float32) for n in range(7)]
    y = Buffer("y", (4,), kernels.float32)
    made = map_("f", y, lambda i: sum((x[i] for x in inputs[1:]), inputs[0][i]))
    (row,) = rows(SET, lower("p", [made], [*inputs, y], [y]))
    assert all(row[f"B{n}_bytes"] == 16 for n in range(5))
