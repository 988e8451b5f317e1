"""AutoTVM's two sets, with numbers worked out on paper."""

from __future__ import annotations

from tests.tune.features import kernels
from tests.tune.features.kernels import rows
from tilewright.compute.build import map_
from tilewright.expr.nodes import Buffer, FloorDiv, Mod, const
from tilewright.loops.lower import lower
from tilewright.tune.features import LoopContext, RelationRow
from tilewright.tune.features.program import program
from tilewright.tune.features.touches import around


def test_touches_of_the_product():
    loops = around(program(kernels.product()))
    # The last five: i, k.o, k.i, j.o, j.i of 4, 4, 4, 2, 4 trips. Touches: c is written, then
    # read, then a and b.
    counts = [[(p.count, p.reuse) for p in at.patterns] for at in loops[3:]]
    c = [(32, 16), (8, 16), (8, 4), (8, 1), (4, 1)]
    assert [p[0] for p in counts] == c and [p[1] for p in counts] == c
    assert [p[2] for p in counts] == [(64, 8), (16, 8), (4, 8), (1, 8), (1, 4)]
    assert [p[3] for p in counts] == [(128, 4), (128, 1), (32, 1), (8, 1), (4, 1)]
    assert [at.outside for at in loops[3:]] == [4, 16, 64, 128, 512]
    assert [at.inside for at in loops[3:]] == [512, 128, 32, 8, 4]
    # Of the parallel loop: its counts by those of the loop inside of it.
    threads = [(p.thread_count, p.thread_reuse) for p in loops[3].patterns]
    assert threads == [(4, 1), (4, 1), (4, 1), (1, 4)]
    assert all(p.thread_count == 0 for at in loops[4:] for p in at.patterns)


def test_loop_context_of_the_product():
    found = rows(LoopContext(), kernels.product())
    assert len(found) == 8
    row = found[5]  # of k.i; what moves most comes first: b, then c twice, then a
    assert row["length"] == 4 and row["nest_level"] == 3 and row["is_serial"] == 1
    assert (row["topdown_product"], row["bottomup_product"]) == (64, 32)
    strides = [row.get(f"touch{n}_stride", 0) for n in range(4)]
    assert strides == [
        3.17,
        0,
        0,
        1,
    ]  # log2(8 + 1) and log2(1 + 1): may be negative, stay logs
    assert [row[f"touch{n}_count"] for n in range(4)] == [32, 8, 8, 4]
    assert [row[f"touch{n}_reuse"] for n in range(4)] == [1, 4, 4, 8]
    assert "touch4_count" not in row and "add_count" not in row
    innermost = found[7]
    assert (innermost["add_count"], innermost["mul_count"]) == (1, 1)
    assert innermost["is_vector"] == 1 and found[6]["is_unroll"] == 1
    assert found[3]["is_parallel"] == 1 and found[3]["touch0_thread_reuse"] == 4


def test_accesses_beyond_the_columns_are_those_that_move_least():
    (row,) = rows(LoopContext(touches=1), kernels.gather())[:1]
    assert row["touch0_count"] == 32 and "touch1_count" not in row


def test_what_an_index_wraps_at():
    x, y = Buffer("x", (4, 6), kernels.float32), Buffer("y", (24,), kernels.float32)
    made = map_("f", y, lambda i: x[FloorDiv(i, const(6)), Mod(i, const(6))])
    (row,) = rows(LoopContext(), lower("p", [made], [x, y], [y]))
    wraps = sorted(row[f"touch{n}_mod"] for n in range(2))
    assert wraps == [-1, 2.807]  # log2(6 + 1), and -log2(1 + 1) for none


def test_relation_of_the_product():
    (row,) = rows(RelationRow(samples=6, buffers=3), kernels.product())
    # Of b the logarithms of count over the loops are 7 7 5 3 2, of reuse 2 0 0 0 0, of the trips so
    # far 2 4 6 7 9. With a 0 each and sorted: 0 2 3 5 7 7 for count, 0 0 0 0 0 2 for reuse,
    # 0 2 4 6 7 9. The last count up to 1 is 0, up to 4 is 3. It has the smallest values, so it is
    # the last of three.
    assert relation(row, 2, "topdown", "count") == [0, 0, 2, 4, 4, 6]
    assert relation(row, 2, "topdown", "count", "_rest") == [0, 1, 0, 0, 1, 0]
    # Up to 1 the last reuse is the fifth 0, where count is 7.
    assert relation(row, 2, "count", "reuse") == [7, 7, 7, 7, 7, 7]
    assert relation(row, 2, "count", "reuse", "_rest") == [0, 1, 0, 1, 2, 3]
    # Of a: count 6 4 2 0 0 and reuse 3 3 3 3 2, sorted 0 0 0 2 4 6 and 0 2 3 3 3 3: only the first
    # reuse is 0. Of c: reuse 4 4 2 0 0 and count 5 3 3 3 2: the third is the last reuse of 0.
    orders = [relation(row, n, "count", "reuse")[0] for n in range(3)]
    assert orders == [0, 3, 7]


def relation(
    row: dict[str, float], buffer: int, y: str, x: str, what: str = ""
) -> list[float]:
    names = [f"buffer{buffer}_{y}_at_{x}_{n}{what}" for n in range(6)]
    return [row.get(name, 0) for name in names]


def test_relation_of_a_kernel_without_loops():
    x, y = Buffer("x", (1,), kernels.float32), Buffer("y", (1,), kernels.float32)
    made = map_("f", y, lambda i: x[i] + x[i])
    (row,) = rows(RelationRow(), lower("p", [made], [x, y], [y]))
    assert all(name.endswith("_rest") for name in row)
