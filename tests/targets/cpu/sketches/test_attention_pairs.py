"""Attention by dot products of bfloat16, as processors with and without tiles of it schedule it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tests.targets.cpu.sketches.test_sketches import draw
from tilewright.base.dtypes import DType, bfloat16, float32, int8
from tilewright.compute.build import cast, map_, reduce_
from tilewright.compute.nodes import Computation, Dim
from tilewright.expr.nodes import Buffer, Expr, Load, call, const, var
from tilewright.ir.node import postorder
from tilewright.loops import interp
from tilewright.loops.nodes import Kernel, Unit
from tilewright.loops.verify import verify
from tilewright.loops.walk import walk
from tilewright.targets.cpu.machine import CpuMachine, machine
from tilewright.targets.cpu.sketches import Context, sketches
from tilewright.targets.cpu.sketches.dot_products import _depth, _in_blocks
from tilewright.testing.random_kernels import plain

PROCESSORS = ("znver4", "znver5", "sapphirerapids")
DOT = "cpu.vdpbf16ps"
WORDS = "cpu.transpose.words.bfloat16"
INTERLEAVE = "cpu.interleave.bfloat16"
RNG = np.random.default_rng(5)


def attention(
    rows: int,
    keys: int,
    depth: int,
    columns: int,
    narrow: DType = bfloat16,
    turned: bool = False,
    queries_turned: bool = False,
) -> list[Computation]:
    """softmax(q @ k) @ v of two heads; keys and queries as rows, or as columns."""
    q, v = (
        Buffer("q", (2, depth, rows) if queries_turned else (2, rows, depth), narrow),
        Buffer("v", (2, keys, columns), narrow),
    )
    k = Buffer("k", (2, depth, keys) if turned else (2, keys, depth), narrow)
    return _attended(
        (rows, keys, depth, columns),
        narrow,
        lambda b, i, r: q[b, r, i] if queries_turned else q[b, i, r],
        lambda b, j, r: k[b, r, j] if turned else k[b, j, r],
        lambda b, j, d: v[b, j, d],
    )


def joint_attention(rows: int, depth: int) -> list[Computation]:
    """As `attention`; all heads of queries, keys and values are columns of one product."""
    x = Buffer("x", (rows, 3 * 2 * depth), bfloat16)

    def part(n: int) -> Any:
        return lambda b, i, r: x[i, (2 * n + b) * depth + r]

    return _attended((rows, rows, depth, depth), bfloat16, *map(part, range(3)))


def _attended(
    extents: tuple[int, int, int, int], narrow: DType, q: Any, k: Any, v: Any
) -> list[Computation]:
    """q, k, v: functions of a head, a row and a column."""
    rows, keys, depth, columns = extents
    s, e = (Buffer(name, (2, rows, keys), float32) for name in "se")
    p = Buffer("p", (2, rows, keys), narrow)
    top, total = (Buffer(name, (2, rows), float32) for name in ("top", "total"))
    y = Buffer("y", (2, rows, columns), float32)

    def score(b: Any, i: Any, j: Any, r: Any) -> Any:
        return cast(q(b, i, r), float32) * cast(k(b, j, r), float32)

    def mean(b: Any, i: Any, d: Any, j: Any) -> Any:
        return cast(p[b, i, j], float32) * cast(v(b, j, d), float32)

    return [
        reduce_("scores", s, (depth,), "add", score),
        reduce_("max", top, (keys,), "max", lambda b, i, j: s[b, i, j]),
        map_("exp", e, lambda b, i, j: call("exp", s[b, i, j] - top[b, i])),
        reduce_("sum", total, (keys,), "add", lambda b, i, j: e[b, i, j]),
        map_("div", p, lambda b, i, j: cast(e[b, i, j] / total[b, i], narrow)),
        reduce_("out", y, (keys,), "add", mean),
    ]


def scheduled(steps: list[Computation], on: CpuMachine) -> Kernel:
    kernel = plain(steps)
    sketch, *_ = sketches(kernel, steps, Context(on))
    assert sketch.name == "attention"
    return sketch.default().schedule.kernel


def units(kernel: Kernel) -> list[str]:
    found = [s.stmt for s in walk(kernel.body) if isinstance(s.stmt, Unit)]
    return [u.intrinsic.intrinsic.name for u in found if u.intrinsic is not None]


def result(kernel: Kernel, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    data = {
        b: np.zeros(b.shape, np.float32)
        if b in kernel.outputs
        else rng.standard_normal(b.shape).astype(b.dtype.numpy)
        for b in kernel.params
    }
    interp.run(kernel, data)
    return data[kernel.outputs[0]]


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("keys", [18, 37])
def test_both_products_are_dot_products(processor: str, keys: int) -> None:
    """An odd number of keys leaves one, which is added by itself."""
    steps = attention(17, keys, 6, 18)
    kernel = scheduled(steps, machine(processor))
    verify(kernel)
    assert sorted(units(kernel)) == [INTERLEAVE, WORDS, DOT, DOT]
    want, found = result(plain(steps)), result(kernel)
    # Scores are summed in another order, and a share between two numbers may round to either.
    assert np.abs(found - want).max() <= 2.0**-8 * np.abs(want).max()
    assert ("out.j.t" in str(kernel)) == (keys % 2 == 1)


@pytest.mark.parametrize("processor", PROCESSORS)
def test_queries_keys_and_values_may_be_parts_of_one_tensor(processor: str) -> None:
    """The keys are packed, not the queries: only they move with the lanes."""
    steps = joint_attention(18, 16)
    kernel = scheduled(steps, machine(processor))
    verify(kernel)
    assert sorted(units(kernel)) == [INTERLEAVE, WORDS, DOT, DOT]
    want, found = result(plain(steps)), result(kernel)
    assert np.abs(found - want).max() <= 2.0**-8 * np.abs(want).max()


def test_keys_as_columns_are_interleaved() -> None:
    steps = attention(17, 34, 6, 16, turned=True)
    kernel = scheduled(steps, machine("znver4"))
    assert sorted(units(kernel)) == [INTERLEAVE, INTERLEAVE, DOT, DOT]
    want, found = result(plain(steps)), result(kernel)
    assert np.abs(found - want).max() <= 2.0**-8 * np.abs(want).max()


def test_queries_whose_words_are_apart_are_multiplied_one_by_one() -> None:
    steps = attention(17, 34, 6, 16, queries_turned=True)
    kernel = scheduled(steps, machine("znver4"))
    verify(kernel)
    assert units(kernel).count(DOT) == 1
    want, found = result(plain(steps)), result(kernel)
    assert np.abs(found - want).max() <= 2.0**-8 * np.abs(want).max()


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(attention(17, 32, 6, 16, float32), id="of float32"),
        pytest.param(attention(17, 12, 6, 12), id="fewer columns than lanes"),
    ],
)
def test_others_are_sums_of_products(steps: list[Computation]) -> None:
    assert DOT not in units(scheduled(steps, machine("znver4")))


def test_a_processor_without_dot_products_has_none() -> None:
    steps = attention(17, 32, 6, 16)
    assert DOT not in units(scheduled(steps, machine("x86-64-v4")))


def test_words_change_places_and_stay_whole() -> None:
    """On the columns of a tile: those of keys that are no multiple of it, too."""
    steps = attention(17, 37, 70, 16)
    kernel = scheduled(steps, machine("znver5"))
    assert units(kernel).count(WORDS) == 1
    ones = result(kernel, 3), result(plain(steps), 3)
    assert np.abs(ones[0] - ones[1]).max() <= 2.0**-7 * np.abs(ones[1]).max()


@pytest.mark.parametrize(
    ("index", "found"),
    [
        pytest.param(lambda o, d: (o * 8 + d, 3), True, id="blocks"),
        pytest.param(lambda o, d: (o * 16 + d, o), True, id="every other block"),
        pytest.param(lambda o, d: (o * 4 + d, 3), False, id="that overlap"),
        pytest.param(lambda o, d: (o * 8 + d * 2, 3), False, id="of others"),
        pytest.param(lambda o, d: (o * 8 + d, d), False, id="of two axes"),
        pytest.param(lambda o, d: (o * 8, 3), False, id="of none"),
    ],
)
def test_depth_goes_through_whole_blocks_of_an_axis(index: Any, found: bool) -> None:
    """Windows that overlap would be packed as often as they do."""
    d, o = Dim(var("d"), 8), var("o")
    given = index(o, d.var)
    wrapped = [i if isinstance(i, Expr) else const(i) for i in given]
    load = Load(Buffer("v", (64, 64), bfloat16), tuple(wrapped))
    assert _in_blocks(load, d) is found


@pytest.mark.parametrize(
    ("dtype", "extent", "found"),
    [
        pytest.param(int8, 8, True, id="whole words"),
        pytest.param(int8, 6, False, id="half a word of the next block"),
        pytest.param(bfloat16, 6, True, id="whole words of floats"),
        pytest.param(bfloat16, 7, False, id="half a word of floats"),
    ],
)
def test_words_of_blocks_have_none_of_the_next_block(
    dtype: DType, extent: int, found: bool
) -> None:
    x, w = Buffer("x", (4, 3 * extent), dtype), Buffer("w", (3 * extent, 16), dtype)
    y = Buffer("y", (4, 16), float32)

    def value(i: Any, j: Any, o: Any, d: Any) -> Any:
        depth = o * extent + d
        return cast(x[i, depth], float32) * cast(w[depth, j], float32)

    r = reduce_("sums", y, (3, extent), "add", value)
    row, column = (n for n in postorder(r.outputs[0].value) if isinstance(n, Load))
    inside = 4 // dtype.itemsize
    depth = _depth(r, row, column, inside, row, blocks=True)
    assert depth is (r.dims[-1] if found else None)
    assert _depth(r, row, column, inside, row, blocks=False) is None


def test_every_choice_keeps_the_result() -> None:
    """Tiles, blocks of rows, panels, threads and plain sums: points of the space at random."""
    steps = attention(19, 37, 6, 18)
    kernel = plain(steps)
    want = result(kernel)
    sketch, *_ = sketches(kernel, steps, Context(machine("sapphirerapids")))
    drawn = [draw(sketch, random.Random(n)) for n in range(4)]
    made = [point.schedule.kernel for point in drawn if point is not None]
    assert len({str(k) for k in made}) > 2
    for after in made:
        verify(after)
        assert np.abs(result(after) - want).max() <= 2.0**-8 * np.abs(want).max()
