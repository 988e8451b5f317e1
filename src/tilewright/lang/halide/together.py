"""compute_with: sharing the loops of two definitions, by `merge`."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.errors import ScheduleError
from tilewright.lang.halide.placing import Nest, Replay, at_line
from tilewright.lang.halide.plan import LoopKind, PipelinePlan, SharedLoops
from tilewright.loops.walk import loops_of
from tilewright.schedule import tree


def share_loops(nests: Sequence[Nest], state: Replay) -> None:
    """Merge the loops of every nest with those that its definition is computed with."""
    for nest in nests:
        if nest.plan is None or nest.plan.together is None:
            continue
        with at_line(nest.plan.title, nest.plan.together.line):
            _share(
                nest,
                _partner(nest, nest.plan.together, state),
                nest.plan.together,
                state,
            )


def _partner(nest: Nest, wanted: SharedLoops, state: Replay) -> Nest:
    """The nest of the other definition: the only one, or the one in the same copy."""
    mine, other = (
        [n for n in state.nests if n.plan is plan] for plan in (nest.plan, wanted.plan)
    )
    if len(mine) != len(other):
        raise ScheduleError(
            f"compute_with: {wanted.plan.title} is computed in {len(other)} places, "
            f"this in {len(mine)}",
            hint="compute both at one loop, or both at root; specialize neither",
        )
    return other[mine.index(nest)]


def _share(
    nest: Nest,
    other: Nest,
    wanted: SharedLoops,
    state: Replay,
) -> None:
    s = state.schedule
    mine, theirs = (_down_to(wanted.var, n, state) for n in (nest, other))
    if list(mine) != list(theirs):
        raise ScheduleError(
            f"compute_with: its loops down to {wanted.var} are {', '.join(mine)}, "
            f"those of {wanted.plan.title} are {', '.join(theirs)}",
            hint="give both the same loops in the same order",
        )
    order = [f.var.name for f in loops_of(s.kernel.body)]
    first, second = sorted(
        (mine, theirs), key=lambda loops: order.index(loops[wanted.var])
    )
    late = nest if second is mine else other
    for var in mine:
        _expect_one_kind(var, nest.plan, other.plan)
        s.merge(first[var], second[var])
        del late.loops[var]


def _down_to(var: str, nest: Nest, state: Replay) -> dict[str, str]:
    """The loops of a nest down to that of `var`, outermost first, by the user's names."""
    names = {loop: v for v, loop in nest.loops.items()}
    if var not in nest.loops:
        raise ScheduleError(
            f"compute_with: its loop {var} is shared already",
            hint="share the loops of both once",
        )
    _, place = tree.find_loop(state.schedule.kernel, nest.loops[var], "compute_with")
    path = [*(f.var.name for f in place.loops), nest.loops[var]]
    return {names[loop]: loop for loop in path if loop in names}


def _expect_one_kind(
    var: str, one: PipelinePlan | None, other: PipelinePlan | None
) -> None:
    kinds = [_kind(var, plan) for plan in (one, other)]
    if kinds[0] != kinds[1]:
        raise ScheduleError(
            f"compute_with: loop {var} is {kinds[0]} here and {kinds[1]} there",
            hint="say the same of both",
        )


def _kind(var: str, plan: PipelinePlan | None) -> str:
    directives = () if plan is None else plan.directives
    return {d.var: d.kind for d, _ in directives if isinstance(d, LoopKind)}.get(
        var, "serial"
    )
