"""Recording where a Func is computed and stored: compute_at, store_at and so on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

from tilewright.base.errors import ScheduleError
from tilewright.lang.halide.plan import Plan, line, plan_of
from tilewright.lang.halide.syntax import func as notation
from tilewright.lang.halide.syntax.expr import Expr, constant
from tilewright.lang.halide.verbs import Verbs, var_name


class MemoryType(Enum):
    """Where a Func is stored: `Auto` chooses the stack for what is small and inside a loop."""

    Auto = None
    Heap = "global"
    Stack = "stack"
    Register = "register"


@dataclass(frozen=True, eq=False, slots=True)
class Level:
    """A place in a loop nest: the loop `var` of `func`, or the root (None).

    line: of the directive.
    """

    func: Scheduled | None
    var: str | None
    line: str


class Scheduled(Verbs, notation.Func):
    """A Func with all directives about how to compute it.

    By default it is computed inline; one with updates, or an output, is at root.
    """

    def __init__(self, name: str | Expr | None = None) -> None:
        self._plans: dict[int, Plan] = {}
        self.compute: Level | None = None
        self.store: Level | None = None
        self.memory = MemoryType.Auto
        self.folds: dict[str, tuple[int, str]] = {}
        self.layout: tuple[str, ...] | None = None
        self.estimates: dict[str, tuple[int, int]] = {}
        super().__init__(name)

    def _plan(self) -> Plan:
        return self.plan(0)

    def plan(self, stage: int) -> Plan:
        """The directives for a definition. Raises ScheduleError where there is none."""
        if stage >= len(self.definitions):
            raise ScheduleError(
                f"it has no definition {stage}" if stage else "it is not defined",
                where=f"Func {self.name()}, {line()}",
                hint="define it before it is scheduled",
            )
        if stage not in self._plans:
            self._plans[stage] = plan_of(self, stage)
        return self._plans[stage]

    def schedule_key(self) -> tuple[Any, ...]:
        """The definitions and all their directives, as a key."""
        plans = []
        for n, plan in sorted(self._plans.items()):
            if plan.schedule_key():
                plans.append((n, plan.schedule_key()))
        return (
            self,
            tuple(self.definitions),
            tuple(plans),
            (self.compute, self.store, self.memory, self.layout),
            tuple(self.folds.items()),
            tuple(self.promised.items()),
        )

    def compute_root(self) -> Self:
        """Compute all of it before anything that uses it."""
        self.compute = self.store = Level(None, None, line())
        return self

    def compute_inline(self) -> Self:
        """Compute it again wherever it is used (the default)."""
        self.compute = self.store = None
        return self

    def compute_at(self, func: Scheduled, var: Any) -> Self:
        """Compute, in each iteration of the loop `var` of a consumer, what is needed there."""
        self.compute = self._level("compute_at", func, var)
        return self

    def store_at(self, func: Scheduled, var: Any) -> Self:
        """Keep its memory through all iterations of a loop that is further out.

        Where the regions of neighboring iterations overlap, each one computes only what is new,
        and only the rows that are alive are stored, as a ring.
        """
        self.store = self._level("store_at", func, var)
        return self

    def store_root(self) -> Self:
        """Keep its memory through the whole pipeline, as `store_at`."""
        self.store = Level(None, None, line())
        return self

    def store_in(self, memory: MemoryType) -> Self:
        """Choose the memory it is stored in."""
        if not isinstance(memory, MemoryType):
            raise ScheduleError(
                f"store_in({memory!r})",
                where=f"{self.name()}, {line()}",
                hint=f"one of {', '.join(map(str, MemoryType))}",
            )
        self.memory = memory
        return self

    def reorder_storage(self, *vars: Any) -> Self:
        """Store it with its dimensions in this order, innermost first; all of them are named."""
        names = tuple(map(var_name, vars))
        if sorted(names) != sorted(v.name() for v in self.args):
            raise ScheduleError(
                f"reorder_storage of {', '.join(names)}",
                where=f"{self.name()}, {line()}",
                hint=f"name each dimension once: {self._dimensions()}",
            )
        self.layout = names
        return self

    def fold_storage(self, var: Any, extent: Any) -> Self:
        """Store only `extent` rows of the dimension `var`, as a ring."""
        size = constant(extent)
        self.folds[self._dimension("fold_storage", var)] = size, line()
        return self

    def set_estimate(self, var: Any, min: Any, extent: Any) -> Self:
        """What `var` is likely to run over: the region that `print_loop_nest()` shows."""
        found = constant(min), constant(extent)
        self.estimates[self._dimension("set_estimate", var)] = found
        return self

    def set_estimates(self, ranges: Sequence[tuple[Any, Any]]) -> Self:
        """`set_estimate` of each argument, x first."""
        found = [(constant(low), constant(extent)) for low, extent in ranges]
        if len(found) != len(self.args):
            raise ScheduleError(
                f"set_estimates of {len(found)} dimensions",
                where=f"{self.name()}, {line()}",
                hint=f"give one (min, extent) for each: {self._dimensions()}",
            )
        self.estimates |= zip((v.name() for v in self.args), found, strict=True)
        return self

    def bound(self, var: Any, min: Any, extent: Any) -> Self:
        """Compute exactly these coordinates of `var`; what is needed must be among them."""
        found = constant(min), constant(extent)
        self.promised[self._dimension("bound", var)] = found
        return self

    def _level(self, verb: str, func: Any, var: Any) -> Level:
        if not isinstance(func, Scheduled):
            raise ScheduleError(
                f"{verb}({func!r}, {var!r})",
                where=f"{self.name()}, {line()}",
                hint="name a Func that uses this one, and one of its loops",
            )
        return Level(func, var_name(var), line())

    def _dimensions(self) -> str:
        return ", ".join(v.name() for v in self.args) or "(none)"

    def _dimension(self, verb: str, var: Any) -> str:
        """The name of a dimension. Raises ScheduleError for another."""
        name = var_name(var)
        if name not in [v.name() for v in self.args]:
            raise ScheduleError(
                f"{verb}: there is no dimension {name}",
                where=f"{self.name()}, {line()}",
                hint=f"its dimensions: {self._dimensions()}",
            )
        return name
