"""Schedules that always apply: a thread for each element of a result.

    for i in m: for j in n: y[i, j] = ...     ->   blockIdx.x b: threadIdx.x t:
                                                     if 64*b + t < m*n: y[.., ..] = ...

The outer parallel loops of a nest are fused and tiled by a block's threads; inner loops run in a
thread. A nest without a parallel loop is one thread. Each nest is a separate launch, which passes
results to others through device memory; maps between nests are inlined, and a reduction with a
single map as reader is computed in the map's threads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from tilewright.base.errors import ScheduleError
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.loops.analysis.effects import writes
from tilewright.loops.nodes import GPU_AXES, For, Kernel
from tilewright.loops.passes.constant_memory import read_together
from tilewright.loops.passes.to_launches import to_launches
from tilewright.loops.scopes import CONSTANT
from tilewright.loops.walk import loops_of
from tilewright.schedule import Schedule
from tilewright.schedule.space import Choices, Sketch
from tilewright.schedule.space.inlining import inlined
from tilewright.schedule.space.merging import merged
from tilewright.schedule.space.patterns import KernelPattern, parts, uses
from tilewright.schedule.space.selection import legal_point
from tilewright.targets.simt.binding import (
    bind_elements,
    independent_outside,
    nests,
)
from tilewright.targets.simt.cost import GAIN
from tilewright.targets.simt.families import reductions
from tilewright.targets.simt.machine import SimtMachine
from tilewright.targets.simt.phases import by_phases
from tilewright.targets.simt.predict import tiles, time_by_element, time_in_tiles
from tilewright.targets.simt.products import Product, product_of, window_of
from tilewright.targets.simt.tiles import in_tiles
from tilewright.targets.simt.tiling import tiling
from tilewright.targets.simt.vectors import element_widths, usual_width
from tilewright.targets.simt.windows import (
    in_windows,
    window_ns,
    window_refusal,
    window_shares,
)

THREADS: Final = (32, 64, 128, 256, 512, 1024)  # of a block, as may be tried


def sketches(
    kernel: Kernel,
    computations: Sequence[Computation],
    machine: SimtMachine,
    exact: bool = False,
) -> list[Sketch]:
    """The families of schedules of a kernel, best first.

    computations: the kernel's Computations; empty for a kernel that an operator provides. exact:
    reductions keep the order of the program.
    """
    given = tuple(computations)
    found = [
        *reductions(kernel, computations, machine, exact),
        *([] if given else _in_turns(kernel, machine)),
        Sketch("by element", partial(_by_element, kernel, given, machine)),
    ]
    products = list(products_of(given))
    if products:
        first = any(_pays(p, machine, exact) for p in products)
        how = InTiles(partial(in_tiles, exact=exact), exact)
        tiled = Sketch("tiles", partial(tiled_products, kernel, given, machine, how))
        found.insert(0 if first else len(found), tiled)
    windows = list(products_of(given, window_of))
    if windows and all(window_refusal(p, machine, exact) == "" for p in windows):
        first = any(_window_pays(p, machine, exact) for p in windows)
        how = InTiles(in_windows, exact, window_of, _window_pays)
        run = partial(tiled_products, kernel, given, machine, how)
        found.insert(0 if first else len(found), Sketch("windows", run))
    return found


def _in_turns(kernel: Kernel, machine: SimtMachine) -> Iterator[Sketch]:
    """The sketch of phases, if its defaults are legal and expected to pay."""
    sketch = Sketch("phases", partial(_by_phases, kernel, machine))
    point = legal_point(kernel.name, sketch)
    if point is None:
        return
    if any(n > 1 for name, n in point.values.items() if name.endswith(".threads")):
        yield sketch


def _by_phases(kernel: Kernel, machine: SimtMachine, choose: Choices) -> Schedule:
    """Phases where they pay, all else by element. parameters: those of both.

    Raises ScheduleError if threads would race.
    """
    s, done = by_phases(Schedule(kernel), machine, choose)
    s = _elements(s, (), machine, choose, done)
    to_launches(s.kernel, machine.warp)
    return s


def products_of(
    computations: Sequence[Computation],
    find: Callable[[KernelPattern], Product | None] = product_of,
) -> Iterator[Product]:
    """The contractions among the parts of a sequence, of a form that `find` finds."""
    if computations and not any(d.extent == 0 for c in computations for d in c.dims):
        for part in parts(computations):
            product = find(part)
            if product is not None:
                yield product


def _pays(product: Product, machine: SimtMachine, exact: bool) -> bool:
    """Whether tiles are expected to be faster than a thread for each element."""
    alone = time_by_element(product, machine)
    best = tiles(product, machine, machine.shared_pays, exact)[:1]
    times = (
        time_in_tiles(tiling(product, tile), machine, machine.shared_pays, exact)
        for tile in best
    )
    return any(time is not None and GAIN * time < alone for time in times)


def _window_pays(product: Product, machine: SimtMachine, exact: bool) -> bool:
    """Whether neighbors in a thread are expected to be faster than a thread for each element."""
    alone = time_by_element(product, machine)
    best = window_shares(product, machine)[:1]
    return any(GAIN * window_ns(product, x, machine) < alone for x in best)


class InTiles(NamedTuple):
    """How one product is scheduled in tiles, and whether sums of floats keep their order. find:
    that it is such a product. pays: whether it should be where there are several."""

    schedule: Callable[[Schedule, Product, SimtMachine, Choices], None]
    exact: bool
    find: Callable[[KernelPattern], Product | None] = product_of
    pays: Callable[[Product, SimtMachine, bool], bool] = _pays


def tiled_products(
    kernel: Kernel,
    computations: Sequence[Computation],
    machine: SimtMachine,
    tiled: InTiles,
    choose: Choices,
) -> Schedule:
    """Products in tiles, everything else by element.

    parameters: those of both, and of `inlined`; `<reduction>.tiled` for each of several products.
    """
    start = merged(kernel, computations)
    s, rest = start.start(), list(start.computations)
    if len(rest) > 1:
        s, rest = inlined(s, rest, choose)
    products = list(products_of(rest, tiled.find))
    for product in products:
        alone = len(products) == 1
        if alone or choose(
            f"{product.name}.tiled",
            (True, False),
            tiled.pays(product, machine, tiled.exact),
        ):
            tiled.schedule(s, product, machine, choose)
    return start.finish(_elements(s, rest, machine, choose))


def _by_element(
    kernel: Kernel,
    computations: Sequence[Computation],
    machine: SimtMachine,
    choose: Choices,
) -> Schedule:
    """A thread for each element. parameters: `threads` of a block, those of `inlined`, and of
    `_in_constant_memory`."""
    s, rest = Schedule(kernel), list(computations)
    if len(rest) > 1:
        s, rest = inlined(s, rest, choose)
    s = _elements(s, rest, machine, choose)
    return _in_constant_memory(s, machine, choose)


def _in_constant_memory(s: Schedule, machine: SimtMachine, choose: Choices) -> Schedule:
    """Read small inputs there that all threads of a block read together, such as filters.

    parameters: `<input>.constant` for each, False by default, as no gain was measured.
    """
    room = machine.constant
    for b in read_together(s.kernel):
        if not b.static or b.size < 2:  # what is empty has no address there
            continue
        nbytes = b.size * b.dtype.itemsize
        if nbytes <= room and choose(f"{b.name}.constant", (True, False), False):
            s.set_scope(b.name, CONSTANT)
            room -= nbytes
    return s


def _elements(
    s: Schedule,
    rest: Sequence[Computation],
    machine: SimtMachine,
    choose: Choices,
    done: Collection[str] = (),
) -> Schedule:
    """Bind the remaining nests: a thread for each element.

    parameters: `threads` of a block; `<map>.width`, elements of a thread. done: nests to leave.
    """
    waiting = {n.var.name for n in _roots(s) if not _is_bound(n)}.difference(done)
    if not waiting:
        return s
    possible = [n for n in THREADS if n <= machine.block_threads]
    usual = min(machine.usual_threads, machine.block_threads)
    threads = choose("threads", possible, usual)
    writers = {o.tensor: c for c in rest for o in c.outputs}
    while found := [n for n in _roots(s) if n.var.name in waiting]:
        nest = found[-1]  # what it reads may be computed in its threads
        waiting.remove(nest.var.name)
        reader = next((writers[b] for b in writes(nest) if b in writers), None)
        if reader is None:
            nest = independent_outside(s, nest)
        width = _width(nest, reader, writers, machine, choose)
        inner = bind_elements(s, nest, threads, width)
        if inner and reader is not None:
            s = _with_operands(s, reader, inner, writers)
    return s


def _width(
    nest: For,
    c: Computation | None,
    writers: Mapping[Buffer, Computation],
    machine: SimtMachine,
    choose: Choices,
) -> int:
    """Elements that a thread computes together; one if it may have to compute others first.

    c: the nest's Computation, None for a nest that an operator gives.
    """
    if c is not None and (not c.is_map or any(b in writers for b in c.inputs)):
        return 1
    widths = element_widths(nest, machine)
    if len(widths) == 1:
        return 1
    name = nest.var.name if c is None else c.name
    return choose(f"{name}.width", widths, usual_width(nest, widths, machine))


def _with_operands(
    s: Schedule, reader: Computation, inner: str, writers: Mapping[Buffer, Computation]
) -> Schedule:
    """The reductions whose results only this loop reads, each element once, computed in it."""
    for tensor in reader.inputs:
        c = writers.get(tensor)
        if c is None or tensor in s.kernel.params or not _read_once(reader, tensor):
            continue
        trial = s.fork()
        try:
            trial.compute_at(tensor.name, inner)
            trial.set_scope(tensor.name, "register")
        except ScheduleError:
            continue  # it is its own launch
        s = trial
    return s


def _read_once(reader: Computation, tensor: Buffer) -> bool:
    """Whether each element is read at one point only, and no other tensor decides which."""
    reads = [a for a in reader.accesses if a.buffer is tensor]
    wide = [d.var for d in reader.dims if d.extent > 1]
    return len(reads) == 1 and all(
        any(uses(i, v) for i in reads[0].index) for v in wide
    )


def _is_bound(nest: For) -> bool:
    return any(f.kind in GPU_AXES for f in loops_of(nest))


def _roots(s: Schedule) -> list[For]:
    return [n for n in nests(s.kernel.body) if isinstance(n, For)]
