"""Which tiles are chosen, on every machine: they fit, and large products get large ones."""

from __future__ import annotations

import pytest

from tests.targets.simt.products import batch, convolution, product
from tilewright.base.dtypes import float32
from tilewright.compute.build import reduce_
from tilewright.expr.nodes import Buffer
from tilewright.schedule.space.patterns import classify
from tilewright.targets.cuda.machine import MACHINES as NVIDIA
from tilewright.targets.simt.cost import (
    bank_turns,
    held,
    padding,
    sectors,
    shared_bytes,
)
from tilewright.targets.simt.machine import MACHINES
from tilewright.targets.simt.predict import tiles
from tilewright.targets.simt.products import product_of
from tilewright.targets.simt.schedules import sketches
from tilewright.targets.simt.tiling import tiling
from tilewright.testing.random_kernels import plain

ALL = {m.name: m for m in (*MACHINES.values(), *(m.simt for m in NVIDIA.values()))}
FORMS = {
    "square": lambda: product(512, 512, 512),
    "thin": lambda: product(7, 1000, 300),
    "batch": lambda: batch(4, 65, 33, 40),
    "convolution": lambda: convolution(16, 28, 32, 3, 1),
}


@pytest.mark.sampled(7)  # each form; machines of each kind
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("of", ALL.values(), ids=ALL)
def test_a_tile_fits_the_machine(of, form):
    p = product_of(classify(FORMS[form]()))
    found = tiles(p, of, of.shared_pays)
    assert found
    for tile in found:
        plan = tiling(p, tile)
        rooms = {x: padding(plan, x, of) for x in (p.left, p.right)}
        has = held(plan, of, shared_bytes(plan, rooms, 1) if of.shared_pays else 0)
        assert has.blocks >= 1
        assert has.shared <= of.shared
        assert has.registers <= of.thread_registers
        assert plan.block_threads <= of.block_threads


WINDOWS = {
    "first": (convolution(8, 14, 32, 3, 1), "uv"),
    "strided": (convolution(3, 20, 16, 7, 2), "uv"),
    "last": (convolution(12, 12, 16, 3, 1, last=True), "uv"),
    "product": (product(64, 64, 101), ""),
}


@pytest.mark.parametrize("form", WINDOWS)
def test_a_step_does_not_reach_beyond_a_window(form):
    """Fetching its tile would be refused: the index of a place does not say where a window ends."""
    case, window = WINDOWS[form]
    p = product_of(classify(case))
    sketch = next(
        s for s in sketches(plain(case), case, ALL["mali"]) if s.name == "tiles"
    )
    found = {
        tuple(tiling(p, t).depths.values()): t for t in tiles(p, ALL["mali"], True)
    }
    ragged = set()
    for tile in found.values():
        depths = tiling(p, tile).depths
        ragged |= {d.var.name for d, n in depths.items() if d.extent % n}
        sketch.at({"mm.tile": tile, "mm.staged": True})
    assert not ragged & set(window)
    assert ("k" in ragged) == (form == "product")


@pytest.mark.parametrize("of", ["sm_80", "sm_90a"])
def test_large_products_have_large_tiles(of):
    large = tiles(product_of(classify(product(4096, 4096, 4096))), ALL[of], True)[0]
    small = tiles(product_of(classify(product(256, 256, 256))), ALL[of], True)[0]
    assert large.rows * large.columns >= 64 * 64
    assert small.rows * small.columns < large.rows * large.columns


@pytest.mark.sampled(3)  # without warps, with them, with tensor cores
@pytest.mark.parametrize("of", ALL.values(), ids=ALL)
def test_a_large_product_is_in_tiles_and_a_tiny_one_is_not(of):
    for size, first in ((1024, "tiles"), (4, "by element")):
        case = product(size, size, size)
        assert sketches(plain(case), case, of)[0].name == first


def test_banks_take_turns():
    assert bank_turns([4 * n for n in range(32)], 32) == 1
    assert bank_turns([8 * n for n in range(32)], 32) == 2
    assert bank_turns([128 * n for n in range(32)], 32) == 32
    assert bank_turns([132 * n for n in range(32)], 32) == 1
    assert bank_turns([0] * 32, 32) == 1


def test_sectors_are_counted_once():
    assert sectors(4 * n for n in range(32)) == 4
    assert sectors(4 * n + 16 for n in range(32)) == 5
    assert sectors(256 * n for n in range(32)) == 32


def test_one_buffer_on_both_sides_is_no_product_of_two_tiles():
    a, y = Buffer("A", (64, 32), float32), Buffer("Y", (64, 64), float32)
    gram = reduce_("mm", y, (32,), "add", lambda i, j, k: a[i, k] * a[j, k])
    assert product_of(classify([gram])) is None


def test_a_depthwise_convolution_is_no_product():
    a, b = Buffer("A", (8, 10), float32), Buffer("B", (8, 3), float32)
    y = Buffer("Y", (8, 8), float32)
    deep = reduce_("mm", y, (3,), "add", lambda c, i, k: a[c, i + k] * b[c, k])
    assert product_of(classify([deep])) is None


def test_a_maximum_of_products_is_no_product():
    a, b = Buffer("A", (8, 10), float32), Buffer("B", (10, 8), float32)
    y = Buffer("Y", (8, 8), float32)
    most = reduce_("mm", y, (10,), "max", lambda i, j, k: a[i, k] * b[k, j])
    assert product_of(classify([most])) is None
