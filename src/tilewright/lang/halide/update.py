"""An update definition as it is scheduled: the verbs of a stage, and rfactor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilewright.base.errors import ScheduleError
from tilewright.lang.halide.plan import PipelinePlan, Reorder, Split, line, plan_of
from tilewright.lang.halide.syntax import factor
from tilewright.lang.halide.syntax.definition import Definition
from tilewright.lang.halide.syntax.domain import Var
from tilewright.lang.halide.verbs import Stage, var_name

if TYPE_CHECKING:
    from tilewright.lang.halide.func import Func


class Update(Stage):
    """An update definition, for its schedule."""

    def rfactor(self, *kept: Any) -> Func:
        """A Func of partial results, one for each point of some RVars: `rfactor(r.y, v)`.

        kept: an RVar and a new Var, or a list of such pairs. The update becomes the combination of
        the partial results, which can be computed in parallel. RVars may have been split, tiled and
        reordered before. Raises InputError unless the update is a step of a commutative operator,
        and ScheduleError if it has been scheduled in another way before.
        """
        plan = self._plan()
        several = len(kept) == 1 and isinstance(kept[0], Sequence)
        named = [_pair(pair, plan) for pair in (kept[0] if several else [kept])]
        definition = _reshaped(plan)
        make: Any = type(plan.func)
        partial: Func = factor.factored(plan.func, plan.stage, definition, named, make)
        plan.directives.clear()
        plan.vars[:] = plan_of(plan.func, plan.stage).vars
        return partial


def _pair(given: Any, plan: PipelinePlan) -> tuple[str, Var]:
    """An RVar by name and the Var of the partial results. Raises ScheduleError for others."""
    if (
        not isinstance(given, Sequence)
        or len(given) != 2
        or not isinstance(given[1], Var)
    ):
        raise ScheduleError(
            f"rfactor: {given!r} is not an RVar and a Var",
            where=f"{plan.title}, {line()}",
            hint="rfactor(r.y, v), or a list of such pairs",
        )
    return var_name(given[0]), given[1]


def _reshaped(plan: PipelinePlan) -> Definition:
    """The update with an RDom of the loops that were made of its RVars."""
    definition = plan.func.definitions[plan.stage]
    for directive, said_at in plan.directives:
        if definition.domain is None:
            known = set()
        else:
            known = {v.name() for v in definition.domain.vars}
        match directive:
            case Split(old, outer, inner, size, _) if old in known:
                definition = factor.split(definition, old, (outer, inner), size)
            case Reorder(names) if known.issuperset(names) and _commutes(definition):
                definition = factor.reorder(definition, names)
            case _:
                raise ScheduleError(
                    "rfactor: the update has been scheduled already",
                    where=f"{plan.title}, {said_at}",
                    hint="rfactor before all verbs but split, tile and reorder of its RVars",
                )
    return definition


def _commutes(definition: Definition) -> bool:
    return definition.reducer is not None and definition.reducer.commutative
