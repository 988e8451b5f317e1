"""Convolutions with a filter for each channel, directly: a thread has neighbors along a window.

    for c, i, j: for u, v: y[i, j, c] add= x[i + u, j + v, c] * w[u, v, c]
    ->  blockIdx; threadIdx.x: c; threadIdx.y: i:
          registers of q places along j = 0
          for u: the row of x under q windows, and that of w, in registers: q * v products, unrolled

Neighboring threads have neighboring results: channels if they are last, places of a row otherwise;
then the q places of a thread are below one another. A thread reads what its windows share once.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from tilewright.base.numbers import ceil_div
from tilewright.compute.nodes import Dim
from tilewright.expr.affine import affine
from tilewright.schedule import Schedule
from tilewright.schedule.space import Choices
from tilewright.schedule.space.nest import existing
from tilewright.targets.simt.binding import bind_blocks
from tilewright.targets.simt.last_wave import WHOLE, tile_parts
from tilewright.targets.simt.machine import SimtMachine
from tilewright.targets.simt.products import Product
from tilewright.targets.simt.row_cost import STEP_NS
from tilewright.targets.simt.tiles import cleared, grid_of, results
from tilewright.targets.simt.tiling import DimensionShare, Tiling

PLACES: Final = (1, 2, 4, 8)  # of a thread
ACROSS: Final = (8, 16, 32, 64, 128, 256)  # threads along contiguous results
DOWN: Final = (1, 2, 4, 8, 16, 32)


class WindowShare(NamedTuple):
    """A block: places of a thread, threads along contiguous results, threads along other ones."""

    places: int
    across: int
    down: int


def in_windows(
    s: Schedule, product: Product, machine: SimtMachine, choose: Choices
) -> None:
    """Schedule a convolution; see the module's docstring. requires: `window_of` found it.

    parameters: `<reduction>.share`, a WindowShare. Raises ScheduleError if a primitive fails.
    """
    fitting = window_shares(product, machine)
    share = WindowShare(*choose(f"{product.name}.share", fitting, fitting[0]))
    plan = planned(product, share)
    target, last = results(s, product)
    grid = grid_of(s, plan, last)
    (part,) = tile_parts(s, plan, target, last, grid, WHOLE, "register", machine)
    zeros = cleared(s, part, part.target)
    there = [d for d in (*product.rows, *product.columns) if plan.shares[d].size > 1]
    threads = [d for d in there if plan.shares[d].axis]
    mine = [d for d in there if not plan.shares[d].axis]
    *rows, taps = window_sums(product)
    inner = existing(s, [part.sums[d] for d in (taps, *mine)])
    around = existing(s, [part.sums[d] for d in (*threads, *rows)])
    s.reorder(*around, *inner)
    for read in (product.left, product.right):
        name = s.cache_read(read.buffer.name, around[-1], "register", pad=True)
        loops = [f"{name}.r{n}" for n in range(len(read.index))]
        for loop in existing(s, loops):
            s.unroll(loop)
    for loop in (*inner, *(phase[d] for phase in (zeros, part.stores) for d in mine)):
        s.unroll(loop)
    for phase in (zeros, part.sums, part.stores):
        for d in threads:
            s.bind(phase[d], plan.shares[d].axis)
    bind_blocks(s, part.blocks)


def window_refusal(product: Product, machine: SimtMachine, exact: bool) -> str:
    """Why this sketch does not apply to a convolution; empty if it does.

    exact: sums of floats keep the order of the program, which they have if a thread's places are
    along the innermost dimension of the window.
    """
    dtypes = [o.tensor.dtype for o in product.reduction.outputs]
    moved = window_sums(product) != list(product.sums)
    if exact and moved and any(t.is_float for t in dtypes):
        return "sums of floats would be in another order"
    return "" if window_shares(product, machine) else "no share fits the machine"


def planned(product: Product, share: WindowShare) -> Tiling:
    """A block's part of each dimension of the results; each sum is one step."""
    *others, along = product.rows
    (contiguous,) = product.columns
    shares = {d: DimensionShare(1, 1, "") for d in product.batch}
    shares |= {d: DimensionShare(1, 1, "") for d in others}
    shares[along] = DimensionShare(share.places, 1, "")
    if others:
        axis = "threadIdx.y" if share.down > 1 else ""
        shares[others[-1]] = DimensionShare(share.down, share.down, axis)
    shares[contiguous] = DimensionShare(share.across, share.across, "threadIdx.x")
    return Tiling(product, shares, {d: d.extent for d in product.sums})


def window_sums(product: Product) -> list[Dim]:
    """The dimensions of the window, last the one along which a thread has several places."""
    along = product.rows[-1].var
    index = next(i for i in product.left.index if affine(i).coefficient(along))
    last = next(d for d in product.sums if affine(index).coefficient(d.var))
    return [*(d for d in product.sums if d is not last), last]


def window_loads(product: Product, places: int) -> int:
    """Elements that a thread reads: the rows under its windows, and the filter."""
    *rows, taps = window_sums(product)
    along = product.rows[-1].var
    index = next(i for i in product.left.index if affine(i).coefficient(along))
    step = abs(affine(index).coefficient(along))
    apart = abs(affine(index).coefficient(taps.var))
    row = (places - 1) * step + (taps.extent - 1) * apart + 1
    return math.prod(d.extent for d in rows) * (row + taps.extent)


def window_shares(product: Product, machine: SimtMachine) -> list[WindowShare]:
    """The shares that a block may have, the one that is expected to be the fastest first."""
    *others, along = product.rows
    (contiguous,) = product.columns
    down = others[-1].extent if others else 1
    found = [
        WindowShare(places, across, below)
        for places in PLACES
        for across in ACROSS
        for below in DOWN
        if places < 2 * along.extent
        and across < 2 * contiguous.extent
        and (below == 1 or below < 2 * down)
        and across * below <= machine.block_threads
        and _registers(product, places) <= machine.thread_registers // 2
    ]
    return sorted(found, key=lambda x: (window_ns(product, x, machine), x))


def _registers(product: Product, places: int) -> int:
    """Of 4 bytes, that a thread's results, and its rows of both operands take."""
    rows = math.prod(d.extent for d in window_sums(product)[:-1])
    held = places + window_loads(product, places) // rows
    return held * max(1, product.itemsize // 4)


def window_ns(product: Product, share: WindowShare, m: SimtMachine) -> float:
    """Nanoseconds: what all threads read and multiply, or how long the rounds of blocks take."""
    plan = planned(product, share)
    threads = share.across * share.down
    loads = window_loads(product, share.places)
    products = plan.depth * share.places
    at_once = m.units * max(1, min(m.unit_blocks, m.unit_threads // threads))
    rounds = ceil_div(plan.blocks, at_once)
    issued = plan.blocks * ceil_div(threads, m.warp) * m.warp * (loads + products)
    work = issued / (m.units * m.rate)
    return m.launch_ns + max(work, rounds * loads * STEP_NS)
