"""Compiles the groups of an open plan, each to one kernel for all sizes, in several processes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial, reduce
from operator import and_

from tilewright.base import events, flags
from tilewright.base.dataclass import dataclass
from tilewright.base.dims_hint import FEWER, DimsHint
from tilewright.base.errors import UnsupportedError, VerifyError
from tilewright.compute.canonical import canonical
from tilewright.compute.nodes import Computation
from tilewright.driver.compiled import CompiledGroup
from tilewright.driver.prepare import PreparationCompiler
from tilewright.driver.processes import share, workers
from tilewright.driver.ranges.open_work import flops_formula
from tilewright.driver.ranges.part_assembly import (
    PartedWork,
    of_one_size,
    tell_fault,
)
from tilewright.driver.ranges.positions import by_positions
from tilewright.driver.ranges.row_blocks import by_rows
from tilewright.driver.ranges.units import by_units
from tilewright.ir.node import Node
from tilewright.loops.lower import lower
from tilewright.loops.nodes import SIZE, If, Kernel, Stmt, loop
from tilewright.loops.sizes import formula, statement
from tilewright.loops.verify import verify
from tilewright.plan.joined_sizes import join_sizes
from tilewright.plan.nodes import FusionGroup, Plan
from tilewright.plan.normalize import with_own_names
from tilewright.plan.passes.winograd import open_forms, product_flops
from tilewright.runtime.formulas import Formula
from tilewright.runtime.threads import thread_count
from tilewright.schedule.full_tiles import full_tiles
from tilewright.targets.base import Target


@dataclass(frozen=True, slots=True)
class OpenCode:
    """A group's kernel and how to call it, as data.

    arguments: for each parameter, the number of a tensor that the group touches, or -1 - n for the
    n-th packed constant. packs: the independent preparations of packed constants; their inputs are
    numbers of tensors. flops: at any sizes. form: as of PartedWork, among `forms_of`.
    """

    symbol: str
    code: bytes
    workspace: Formula
    thread_workspace: Formula
    arguments: tuple[int, ...]
    packs: tuple[CompiledGroup, ...]
    flops: Formula
    form: int = -1


def open_codes(
    plan: Plan, target: Target, sanitize: bool, tiles: Sequence[int] = ()
) -> list[OpenCode]:
    """The code of each group, in order. Raises the error of `refused` if a group has none.

    Groups that are equal but for the names of tensors, such as those of equal layers, share it.

    tiles: of Winograd's forms that convolutions may take.
    """
    groups = list(plan.groups)
    forms = [forms_of(plan, group, tiles) for group in groups]
    firsts = list(range(len(groups)))
    if not sanitize:  # such code names tensors, those of the first group that it is for
        firsts = _firsts(
            [_key(plan, *each) for each in zip(groups, forms, strict=True)]
        )
    jobs = {
        n: partial(_code, plan, groups[n], forms[n], n, target, sanitize)
        for n in sorted(set(firsts))
    }
    # The longest first, so that no process starts it last.
    order = sorted(jobs, key=lambda n: -groups[n].flops)
    count = workers(len(jobs), thread_count())
    found: dict[int, bytes | None] = {}
    if count > 1:
        made = share([partial(_bytes, jobs[n]) for n in order], count)
        found = dict(zip(order, made, strict=True))
    codes: dict[int, OpenCode] = {}
    for n, job in jobs.items():
        data = found.get(n)
        codes[n] = job() if data is None else pickle.loads(data)
    for n, first in enumerate(firsts):
        if n != first:
            names = {"kernel": groups[n].name, "first": groups[first].name}
            events.emit("equal-kernel", sources=list(groups[n].sources), **names)
    return [codes[first] for first in firsts]


def _firsts(keys: Sequence[Hashable]) -> list[int]:
    """For each key, the place of the first one that equals it."""
    known: dict[Hashable, int] = {}
    return [known.setdefault(key, n) for n, key in enumerate(keys)]


def _key(plan: Plan, group: FusionGroup, forms: Sequence[FusionGroup]) -> Hashable:
    """Equal for groups of a plan that run the same code on other tensors.

    The code knows the tensors that a group touches by their places: first those that it reads.
    forms: in which it may be computed.
    """
    if group.kernel is not None:
        return group.name, id(group)
    tensors = plan.touched(group)
    # First the sizes: two groups may be equal but for their order.
    nodes: list[Computation | Node] = [e.size for e in plan.open]
    nodes += [c for form in forms for c in form.computations]
    return (
        *(group.flops, len(group.reads), tuple(len(f.computations) for f in forms)),
        tuple(b in plan.data for b in tensors),
        canonical(nodes, tensors),
    )


def refused(why: str, plan: Plan) -> UnsupportedError:
    """The error for a plan in which some part cannot be compiled for all sizes."""
    return UnsupportedError(
        f"{why}: there is no code for all sizes",
        where=f"plan {plan.graph.name}",
        code="TW-JIT",
        hint=DimsHint(FEWER),
    )


def _bytes(job: partial[OpenCode]) -> bytes:
    return pickle.dumps(job())


def _code(
    plan: Plan,
    group: FusionGroup,
    forms: Sequence[FusionGroup],
    number: int,
    target: Target,
    sanitize: bool,
) -> OpenCode:
    unscheduled, joined = kernel_of(plan, group, len(forms) == 1)
    try:
        kernel = _proven(unscheduled, plan)
    except VerifyError as error:  # the plan holds at some sizes alone
        raise refused(f"{group.name}: {error}", plan) from error
    try:
        work = _scheduled(kernel, [*forms[:-1], joined], plan, target)
        if flags.DEBUG.get():
            verify(work.kernel)
        symbol = f"{kernel.name}_{number}"
        made = target.emit(work.kernel, symbol, {} if sanitize else None)
    except VerifyError as error:
        tell_fault(error)
        raise refused(f"{group.name}: {error}", plan) from error
    # By name: a schedule may reshape a tensor and back.
    position = {b.name: n for n, b in enumerate(kernel.params)}
    compiler = PreparationCompiler(target, sanitize)
    packs: list[CompiledGroup] = []
    packed: list[str] = []
    for kernels in work.prepare:
        pack, names = _pack(kernels, dict(position), work.kernel, compiler)
        packs.append(pack)
        packed += names
    position |= {name: -1 - n for n, name in enumerate(packed)}
    return OpenCode(
        symbol,
        made.code,
        formula(made.workspace),
        formula(made.thread_workspace),
        tuple(position[b.name] for b in work.kernel.params),
        tuple(packs),
        _flops(kernel, forms, plan, work.form),
        work.form,
    )


def _flops(
    kernel: Kernel, forms: Sequence[FusionGroup], plan: Plan, form: int
) -> Formula:
    """The flops at any sizes; those of its products in Winograd's form."""
    if form == -1:
        return flops_formula(kernel, forms[-1].flops, plan.open)
    return formula(product_flops(forms[form].computations))


def _pack(
    kernels: Sequence[Kernel],
    position: dict[str, int],
    reader: Kernel,
    compiler: PreparationCompiler,
) -> tuple[CompiledGroup, list[str]]:
    """The preparation of constants, and the names of those that `reader` reads."""
    preparations, codes = compiler.compile(kernels, position, reader.params)
    read = {b.name for b in reader.params}
    names = [k.outputs[0].name for k in kernels if k.outputs[0].name in read]
    kept = tuple(position[name] for name in names)
    return CompiledGroup("", kept, 0, 0, preparations, b"", codes), names


def kernel_of(
    plan: Plan, group: FusionGroup, join: bool = True
) -> tuple[Kernel, FusionGroup]:
    """The unscheduled kernel of a group, with all sizes of the plan, in order, and what it lowers.

    join: sizes may be joined, and tensors have other shapes in the same memory.
    """
    if group.kernel is not None:
        return _around(plan, group.kernel, statement(group.kernel)), group
    named = unique(group)
    computations, views = (
        join_sizes(named.computations) if join else (named.computations, {})
    )
    params = [views.get(b, b) for b in plan.touched(group)]
    outputs = params[len(group.reads) :]
    kernel = lower(_word(group.name), computations, params, outputs)
    joined = replace(named, computations=computations)
    return _around(plan, kernel, statement(kernel)), joined


def _around(plan: Plan, kernel: Kernel, body: Stmt) -> Kernel:
    """The kernel with another body, for all sizes of the plan up to their upper bounds."""
    for e in reversed(plan.open):
        body = loop(e.size, e.most + 1, body, SIZE)
    return replace(kernel, body=body)


def _proven(kernel: Kernel, plan: Plan) -> Kernel:
    """The kernel itself if it is valid for all sizes, else guarded by the plan's lower bounds.

    The guard tests the sizes, which hides the loops from some schedules. Raises VerifyError.
    """
    try:
        verify(kernel)
    except VerifyError:
        enough = reduce(and_, (e.size >= e.least for e in plan.open))
        kernel = _around(plan, kernel, If(enough, statement(kernel), None))
        verify(kernel)
    return kernel


def unique(group: FusionGroup) -> FusionGroup:
    """The group with a unique name for each Computation."""
    return replace(group, computations=with_own_names(group.computations))


def _scheduled(
    kernel: Kernel, forms: Sequence[FusionGroup], plan: Plan, target: Target
) -> PartedWork:
    """As for one size if none changes the group; by units if all units of the sizes are alike, else
    by positions or rows, else at once."""
    *others, group = forms
    data = plan.data

    def positions() -> PartedWork | None:
        found = [*map(unique, others), group]
        return by_positions(kernel, found, data, target, plan.open)

    def rows() -> PartedWork | None:
        found = by_rows(kernel, group, target)
        return None if found is None else PartedWork(full_tiles(found))

    ways: dict[str, Callable[[], PartedWork | None]] = {
        "one size": lambda: of_one_size(kernel, group, data, target),
        "units": lambda: by_units(kernel, group, data, target),
        "positions": positions,
        "rows": rows,
    }
    sources = list(group.sources)
    with events.span("shared-kernel", kernel=group.name, sources=sources) as told:
        for way, make in ways.items() if group.kernel is None else ():
            found = make()
            if found is not None:
                told.set(way=way)
                return found
        told.set(way="whole")
        made = target.default_schedule(kernel, group.computations, ()).kernel
        return PartedWork(full_tiles(made))


def forms_of(plan: Plan, group: FusionGroup, tiles: Sequence[int]) -> list[FusionGroup]:
    """The forms in which a group may be computed; the last is the group itself."""
    return [*open_forms(plan.steps, group, tiles, plan.data, plan.kept), group]


def _word(name: str) -> str:
    return "k_" + "".join(c if c.isalnum() else "_" for c in name)[:48]
