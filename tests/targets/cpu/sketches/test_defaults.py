"""The default schedules: every sketch applies to its kind of kernel and keeps the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tilewright.base import events
from tilewright.base.dtypes import float32
from tilewright.compute.build import map_, padded, reduce_
from tilewright.compute.merge import merge_dims
from tilewright.compute.nodes import Computation
from tilewright.compute.transforms import follow, order_dims
from tilewright.expr.nodes import Buffer, Max, call, const
from tilewright.loops import interp
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel
from tilewright.loops.verify import verify
from tilewright.schedule import replay
from tilewright.schedule.space.patterns import classify
from tilewright.targets.cpu.cost import cost_model
from tilewright.targets.cpu.machine import machine
from tilewright.targets.cpu.sketches import Context, default, sketches
from tilewright.targets.cpu.sketches.register_tile_model import (
    RowData,
    Window,
    gain,
)
from tilewright.targets.cpu.sketches.register_tile_model import best as choose

V4 = machine("x86-64-v4")
WIDE = cost_model(V4)


def buffer(name: str, *shape: int) -> Buffer:
    return Buffer(name, shape, float32)


Case = tuple[list[Computation], list[Buffer], Buffer, list[Buffer]]


def matmul(m: int, n: int, k: int, epilogue: bool = True) -> Case:
    a, b, c = buffer("a", m, k), buffer("b", k, n), buffer("c", n)
    t, out = buffer("t", m, n), buffer("out", m, n)
    product = reduce_("mm", t, (k,), "add", lambda i, j, r: a[i, r] * b[r, j])
    if not epilogue:
        return [product], [a, b], t, [b]
    relu = follow(
        product, map_("relu", out, lambda i, j: Max(t[i, j] + c[j], const(0, float32)))
    )
    assert relu is not None
    return [product, relu], [a, b, c], out, [b, c]


def conv(size: int, cin: int, cout: int, kernel: int, stride: int) -> Case:
    pad = kernel // 2
    o = (size + 2 * pad - kernel) // stride + 1
    x, w, y = (
        buffer("x", 1, size, size, cin),
        buffer("w", cout, cin, kernel, kernel),
        buffer("y", 1, o, o, cout),
    )
    c = reduce_(
        "conv",
        y,
        (cin, kernel, kernel),
        "add",
        lambda n, h, v, q, c, i, j: (
            padded(x, (n, h * stride + i - pad, v * stride + j - pad, c), 0.0)
            * w[q, c, i, j]
        ),
    )
    return [c], [x, w], y, [w]


def depthwise() -> Case:
    x, w, y = (
        buffer("x", 1, 6, 6, 40),
        buffer("w", 40, 1, 3, 3),
        buffer("y", 1, 6, 6, 40),
    )
    c = reduce_(
        "dw",
        y,
        (3, 3),
        "add",
        lambda n, h, v, q, i, j: (
            padded(x, (n, h + i - 1, v + j - 1, q), 0.0) * w[q, 0, i, j]
        ),
    )
    return [c], [x, w], y, [w]


def max_pool() -> Case:
    x, y = buffer("x", 1, 7, 7, 40), buffer("y", 1, 4, 4, 40)
    c = reduce_(
        "pool",
        y,
        (3, 3),
        "max",
        lambda n, h, v, q, i, j: padded(
            x, (n, 2 * h + i - 1, 2 * v + j - 1, q), float("-inf")
        ),
    )
    return [c], [x], y, []


def softmax(rows: int, columns: int) -> Case:
    x, m, s, y = (
        buffer("x", rows, columns),
        buffer("m", rows),
        buffer("s", rows),
        buffer("y", rows, columns),
    )
    return (
        [
            reduce_("max", m, (columns,), "max", lambda i, k: x[i, k]),
            reduce_(
                "sum", s, (columns,), "add", lambda i, k: call("exp", x[i, k] - m[i])
            ),
            map_("div", y, lambda i, j: call("exp", x[i, j] - m[i]) / s[i]),
        ],
        [x],
        y,
        [],
    )


def attention(rows: int, keys: int, size: int, scaled: bool) -> Case:
    q, k = buffer("q", 2, rows, size), buffer("k", 2, keys, size)
    v, y = buffer("v", 2, keys, size), buffer("y", 2, rows, size)
    s, x, e, p = (buffer(name, 2, rows, keys) for name in "sxep")
    top, total = buffer("top", 2, rows), buffer("total", 2, rows)
    rated = x if scaled else s
    steps = [
        reduce_(
            "scores", s, (size,), "add", lambda b, i, j, r: q[b, i, r] * k[b, j, r]
        ),
        map_("scaled", x, lambda b, i, j: s[b, i, j] * 0.25),
        reduce_("max", top, (keys,), "max", lambda b, i, j: rated[b, i, j]),
        map_("exp", e, lambda b, i, j: call("exp", rated[b, i, j] - top[b, i])),
        reduce_("sum", total, (keys,), "add", lambda b, i, j: e[b, i, j]),
        map_("div", p, lambda b, i, j: e[b, i, j] / total[b, i]),
        reduce_("out", y, (keys,), "add", lambda b, i, d, j: p[b, i, j] * v[b, j, d]),
    ]
    aligned = follow(steps[0], steps[1])
    assert aligned is not None
    return [steps[0], *([aligned] if scaled else []), *steps[2:]], [q, k, v], y, []


def transposed() -> Case:
    x, y = buffer("x", 5, 33), buffer("y", 33, 5)
    return [map_("t", y, lambda i, j: x[j, i])], [x], y, []


CASES: dict[str, tuple[str, Callable[[], Case]]] = {
    "matmul": ("tiled", lambda: matmul(20, 100, 9)),
    "matmul smaller than a tile": ("tiled", lambda: matmul(3, 10, 7)),
    "matmul of one row": ("tiled", lambda: matmul(1, 70, 11)),
    "matmul without epilogue": ("tiled", lambda: matmul(15, 50, 6, epilogue=False)),
    "conv 3x3": ("tiled", lambda: conv(9, 6, 40, 3, 1)),
    "conv stride 2": ("tiled", lambda: conv(9, 5, 20, 3, 2)),
    "conv 1x1": ("tiled", lambda: conv(6, 8, 33, 1, 1)),
    "depthwise": ("tiled", depthwise),
    "max pool": ("tiled", max_pool),
    "softmax": ("rows", lambda: softmax(5, 150)),
    "softmax of a short row": ("rows", lambda: softmax(4, 10)),
    "attention": ("attention", lambda: attention(9, 20, 5, scaled=True)),
    "attention without a scale": (
        "attention",
        lambda: attention(5, 33, 17, scaled=False),
    ),
    "transpose": ("map", transposed),
}


def results(kernel: Kernel, out: Buffer) -> np.ndarray:
    rng = np.random.default_rng(3)
    data = {
        b: np.zeros(b.shape, np.float32)
        if b is out
        else rng.standard_normal(b.shape).astype(np.float32)
        for b in kernel.params
    }
    interp.run(kernel, data)
    return data[out]


@pytest.mark.covering(1)
@pytest.mark.parametrize("level", ["x86-64-v4", "x86-64-v3"])
@pytest.mark.parametrize("name", CASES)
def test_a_sketch_applies_and_keeps_the_result(name: str, level: str) -> None:
    kind, build = CASES[name]
    computations, inputs, out, weights = build()
    group, views = merge_dims([order_dims(c) for c in computations])
    assert classify(group).name == kind
    seen: Sequence[Buffer] = [views.get(b, b) for b in (*inputs, out)]
    plain = lower("k", group, seen, seen[-1:])
    with events.record() as log:
        s = default(
            plain, group, Context(machine(level), {views.get(b, b) for b in weights})
        )
    assert not [e for e in log if e.kind == "sketch-refused"]
    verify(s.kernel)
    expected = results(plain, seen[-1])
    np.testing.assert_allclose(
        results(s.kernel, seen[-1]), expected, rtol=1e-4, atol=1e-5
    )
    assert str(replay(plain, s.trace)) == str(s.kernel)


@pytest.mark.parametrize(
    ("rows", "columns", "expected"),
    [
        ((56, 56), 64, ((1, 14), 2)),
        ((7, 7), 512, ((1, 7), 2)),
        ((), 1000, ((), 8)),
    ],
)
def test_tiles_divide_the_usual_shapes(
    rows: tuple[int, ...], columns: int, expected: tuple[tuple[int, ...], int]
) -> None:
    tile = choose(rows, columns, 16, WIDE)
    assert (tile.rows, tile.vectors) == expected


@pytest.mark.parametrize("registers", [16, 32])
def test_a_tile_fits_the_registers(registers: int) -> None:
    for rows in [(), (1,), (3, 5), (197,), (56, 56)]:
        for columns in (1, 7, 16, 33, 1000):
            costs = cost_model(replace(V4, registers=registers))
            tile = choose(rows, columns, 8, costs)
            accumulators = tile.vectors
            for n in tile.rows:
                accumulators *= n
            assert accumulators + tile.vectors + 1 <= registers


def test_rows_that_displace_one_another_make_smaller_tiles() -> None:
    """Rows a multiple of 4 KiB apart share the sets of a first cache: 8 of 32 KiB's stay in it."""
    small, large = (cost_model(replace(V4, l1=size)) for size in (32 << 10, 48 << 10))
    assert small.resident_rows(4096) == 8
    assert large.resident_rows(3 * 4096) == 12
    assert small.resident_rows(2048) == 16
    assert small.resident_rows(3072) == 32
    apart = choose([1024], 1024, 16, WIDE, RowData(resident=8))
    assert apart.rows[0] <= 8 < choose([1024], 1024, 16, WIDE).rows[0]


@pytest.mark.parametrize(
    ("cores", "pitch", "expected"),
    [
        (2, 4096, (6, 4)),
        (2, 12288, (6, 4)),
        (1, 4096, (14, 2)),  # no other core has read them
        (2, 4224, (14, 2)),  # all rows have places of their own
    ],
)
def test_results_that_displace_one_another_make_smaller_tiles(
    cores: int, pitch: int, expected: tuple[int, ...]
) -> None:
    """Of a product that is 512 deep, by a first cache of 12 ways."""
    costs = cost_model(replace(machine("znver5"), cores=cores))
    data = RowData(column=2048, kept=costs.resident_rows(pitch))
    assert choose([196], 1024, 16, costs, data).value == expected


@pytest.mark.parametrize(("n", "smaller"), [(1024, True), (1056, False)])
def test_the_rows_of_a_products_results_are_seen(n: int, smaller: bool) -> None:
    """Results 4 KiB and 4224 bytes apart, by the sketch."""
    group, inputs, out, weights = matmul(196, n, 512)
    m = replace(machine("znver5"), cores=2)
    plain = lower("k", group, [*inputs, out], [out])
    s = sketches(plain, group, Context(m, set(weights)))[0].default()
    assert (s.values["mm.tile"][0] <= 7) is smaller


def test_tiles_of_dot_products_waste_no_columns() -> None:
    """512 columns are pairs of vectors, but no multiple of three."""
    assert choose([7, 7], 512, 16, WIDE, RowData(dots=True)).value == (1, 7, 2)
    assert choose([56, 56], 64, 16, WIDE, RowData(dots=True)).value == (1, 14, 2)


@pytest.mark.parametrize(
    ("level", "rows", "columns", "expected"),
    [
        ("x86-64-v2", [60], 96, (6, 2)),
        ("x86-64-v3", [7, 7], 160, (1, 4, 3)),
        ("x86-64-v3", [7, 7], 512, (1, 4, 3)),
        ("x86-64-v3", [128], 384, (4, 3)),
        ("x86-64-v4", [128], 384, (8, 3)),
        ("x86-64-v4", [7, 7], 512, (1, 7, 2)),
    ],
    ids=str,
)
def test_tiles_waste_no_rows_where_accumulators_suffice(
    level: str, rows: list[int], columns: int, expected: tuple[int, ...]
) -> None:
    """With 16 registers each of 12 accumulators is used: 7 rows of one vector would wait."""
    costs = cost_model(machine(level))
    lanes = costs.machine.lanes(float32)
    assert choose(rows, columns, lanes, costs).value == expected


@pytest.mark.parametrize("vectors", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 4, 17])
def test_tiles_have_the_vectors_of_columns_that_are_packed_already(
    vectors: int, rows: int
) -> None:
    last = (16,) if vectors == 1 else (vectors, 16)
    data = RowData(packed=(9, 96, *last))
    assert choose([rows], 960, 16, WIDE, data).vectors == vectors
    for other in ((), (9, 96, 8), (9, 96, 7, 8)):
        data = RowData(packed=other)
        assert choose([rows], 960, 16, WIDE, data) == choose([rows], 960, 16, WIDE)


def test_rows_that_displace_one_another_are_fewer() -> None:
    near, far = (
        choose([28], 16, 16, WIDE, RowData(resident=n)).rows[-1] for n in (28, 16)
    )
    assert near == 28 and far <= 16


@pytest.mark.parametrize(
    ("level", "l1", "pitch", "expected"),
    [
        ("x86-64-v4", 32, 4160, (2, 4, 1)),
        ("x86-64-v4", 32, 1024, (1, 2, 8)),
        ("x86-64-v4", 32, 2048, (1, 4, 6)),
        ("x86-64-v4", 32, 4096, (1, 4, 6)),
        ("x86-64-v4", 48, 4096, (1, 4, 6)),
        ("x86-64-v4", 48, 2048, (1, 2, 8)),
        ("x86-64-v4", 48, 1024, (2, 2, 2)),
        ("x86-64-v3", 32, 4160, (2, 4, 1)),
        ("x86-64-v3", 32, 4096, (1, 2, 5)),
        ("x86-64-v3", 32, 1024, (2, 2, 2)),
        ("x86-64-v3", 48, 2048, (1, 2, 5)),
    ],
    ids=str,
)
def test_rows_that_displace_one_another_are_read_in_wider_tiles(
    level: str, l1: int, pitch: int, expected: tuple[int, ...]
) -> None:
    """Where each piece of a row is waited for, longer pieces are fewer."""
    costs = cost_model(replace(machine(level), l1=l1 << 10))
    window = Window(3, 1, 1)
    data = RowData(
        streams=True,
        resident=costs.resident_rows(pitch),
        window=window,
        above=window,
        filled=2.0,
    )
    lanes = costs.machine.lanes(float32)
    assert choose([28, 28], 1024, lanes, costs, data).value == expected


def test_pieces_of_rows_that_displace_one_another_are_waited_for() -> None:
    """Four rows side by side read six pieces in three steps, whatever their vectors."""
    data = RowData(streams=True, resident=8, window=Window(3, 1, 1))
    apart = 6 / 3 * WIDE.lost_piece
    assert data.lost((4,), WIDE) == (1 - 8 / WIDE.ahead) * apart
    assert replace(data, streams=False).lost((4,), WIDE) == 0
    assert replace(data, resident=WIDE.ahead // 2).lost((4,), WIDE) == apart / 2
    assert replace(data, resident=WIDE.ahead).lost((4,), WIDE) == 0
    assert not replace(data, resident=WIDE.ahead).displaced(WIDE)
    assert replace(data, resident=WIDE.ahead - 1).displaced(WIDE)


@pytest.mark.parametrize(
    ("rows", "tile", "next_row", "pieces"),
    [
        # Above one another: windows of 4 rows, 4 wide; with the next tile's, 6.
        ((2, 2), 4 * 6 + 4, 2 * 4 + 4, (4 * 2, 4 * 4, 2 * 3 * 4)),
        # Side by side: windows of 3 rows, 6 and 10 wide. None is read again until the next tile.
        ((1, 4), 3 * 10 + 4, 6 + 4, (3 * 4, 3 * 6, 3 * 6)),
        ((1, 1), 3 * 4 + 1, 3 + 1, (3 * 1, 3 * 3, 3 * 3)),
    ],
)
def test_what_stays_in_the_first_cache_is_fetched_once(
    rows: tuple[int, int], tile: int, next_row: int, pieces: tuple[int, ...]
) -> None:
    """Where it holds what a tile and the next one read, only what is new; where it holds what is
    read until the next row of the window, each row once; else each row of results its own."""
    window = Window(3, 1, 1)
    data = RowData(streams=True, window=window, above=window)
    costs = replace(WIDE, ahead=1000)
    for resident, read in (
        (tile + 1, pieces[0]),
        (tile, pieces[1]),
        (next_row + 1, pieces[1]),
        (next_row, pieces[2]),
    ):
        held = replace(data, resident=resident)
        lost = (1 - resident / costs.ahead) * costs.lost_piece * read / 9
        assert held.lost(rows, costs) == pytest.approx(lost)


@pytest.mark.parametrize(
    ("results", "resident", "chosen"), [(28, 48, (2, 7, 2)), (16, 48, (1, 7, 3))]
)
def test_many_rows_above_one_another_share_registers(
    results: int, resident: int, chosen: tuple[int, ...]
) -> None:
    """Windows of two rows of seven, of two vectors, do not fit beside the results: the compiler
    would keep them and store results. Rows side by side alone may load theirs again."""
    costs = replace(cost_model(machine("znver5")), results_above=results)
    window = Window(5, 1, 1)
    data = RowData(
        streams=True, resident=resident, window=window, above=window, filled=2.0
    )
    assert data.held((2, 7), 2) > 32 - 1 - 2 * 7 * 2
    assert choose([7, 7], 768, 16, costs, data).value == chosen


@pytest.mark.parametrize(
    ("taps", "channels", "expected"),
    [
        (3, 128, (4, 4, 1)),
        (3, 256, (4, 2, 2)),
        (3, 512, (1, 2, 8)),
        (3, 1024, (1, 4, 6)),
        (5, 512, (2, 2, 4)),
        (5, 1024, (1, 4, 6)),
        (7, 256, (2, 7, 1)),
        (7, 1024, (1, 4, 6)),
    ],
)
def test_a_zen_5_takes_tiles_of_more_results(
    taps: int, channels: int, expected: tuple[int, ...]
) -> None:
    """Of a depthwise convolution of 28x28 results, of the channels that rows are apart by."""
    costs = cost_model(machine("znver5"))
    window = Window(taps, 1, 1)
    data = RowData(
        streams=True,
        resident=costs.resident_rows(4 * channels),
        window=window,
        above=window,
        filled=2.0,
    )
    lanes = costs.machine.lanes(float32)
    assert choose([28, 28], channels, lanes, costs, data).value == expected


@pytest.mark.parametrize(
    ("window", "resident", "ahead"),
    [
        (Window(3, 2, 1), 128, 0),
        (Window(3, 2, 1), 127, 128),
        (Window(3, 4, 2), 96, 128),
        (Window(3, 2, 1), 64, 128),
        # It holds a line of fewer than are fetched ahead without those in between.
        (Window(3, 2, 1), 63, 64),
        # No rows in between: one tap apart, nearer than taps, or rows that share nothing.
        (Window(3, 1, 1), 64, 0),
        (Window(3, 1, 2), 64, 0),
        (None, 64, 0),
    ],
    ids=str,
)
def test_rows_that_a_stride_passes_over_are_fetched_ahead(
    window: Window | None, resident: int, ahead: int
) -> None:
    costs = replace(WIDE, ahead=64)
    data = RowData(streams=True, resident=resident, window=window)
    assert data.displaced(costs) == (ahead > 0)
    part = (1 - resident / ahead) if ahead else 0
    assert data.lost((1,), costs) == pytest.approx(part * costs.lost_piece)
    assert not replace(data, streams=False).displaced(costs)


@pytest.mark.parametrize(
    ("window", "rows", "left", "spilled"),
    [
        # 13 vectors of a row and 6 more weights beside 15 registers, in each of 4 rows.
        (Window(7, 2, 1), (4, 4), 15, 4 * 4 / 7),
        (Window(7, 2, 1), (3, 4), 19, 0),
        (Window(7, 2, 1), (3, 4), 18, 3 / 7),
        # Side by side, weights are used once; one tap apart, fewer vectors are needed at a time.
        (Window(7, 2, 1), (1, 4), 15, 0),
        (Window(7, 2, 1), (4,), 15, 0),
        (Window(7, 1, 1), (4, 4), 15, 0),
        (Window(7, 1, 2), (4, 4), 15, 0),
        (Window(7, 2, 1), (4, 1), 15, 0),
        (None, (4, 4), 15, 0),
    ],
    ids=str,
)
def test_weights_of_strided_windows_need_registers(
    window: Window | None, rows: tuple[int, ...], left: int, spilled: float
) -> None:
    data = RowData(streams=True, window=window, above=window)
    assert data.spilled(rows, 1, left) == pytest.approx(spilled)


@pytest.mark.parametrize(
    ("size", "taps", "channels", "expected"),
    [
        (28, 3, 96, (4, 4, 1)),
        (28, 5, 96, (4, 4, 1)),
        # Four rows of four would not leave registers for the weights.
        (28, 7, 96, (7, 2, 1)),
        # Rows displace one another with those in between: pieces of several vectors.
        (14, 3, 128, (2, 2, 4)),
        (14, 3, 384, (2, 2, 4)),
        (28, 5, 384, (2, 2, 4)),
        # The wait for these hides loads of what does not fit beside the weights.
        (14, 7, 384, (3, 2, 2)),
        (14, 3, 512, (1, 2, 8)),
    ],
)
def test_a_zen_5_takes_tiles_of_strided_windows(
    size: int, taps: int, channels: int, expected: tuple[int, ...]
) -> None:
    costs = cost_model(machine("znver5"))
    window = Window(taps, 2, 1)
    data = RowData(
        streams=True,
        resident=costs.resident_rows(4 * channels),
        window=window,
        above=window,
        filled=2.0,
    )
    assert choose([size, size], channels, 16, costs, data).value == expected


def test_fewer_pipes_of_vectors_hide_more_of_their_loads() -> None:
    """Where half as many products issue, single vectors are bound by them and not by loads."""
    both = {n: gain([28], 16, 16, replace(WIDE, multiplied=n)) for n in (64.0, 128.0)}
    assert both[64.0] > 0.9 > both[128.0]
