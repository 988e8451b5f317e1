"""Schedule verbs of one definition, recorded: split, fuse, tile, reorder, vectorize, ...

A verb only writes down what is wanted, and checks that the Vars it names exist; `replay.py` does
it. Vars are known by name; a `Plan` keeps which loops there are, the innermost first.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Self

from tilewright.base.errors import ScheduleError
from tilewright.lang.halide.absent import Absent
from tilewright.notation.halide.domain import RDom, RVar, Var
from tilewright.notation.halide.expr import (
    Expr,
    as_expr,
    constant,
)
from tilewright.notation.halide.func import Func as Defined

_PACKAGE = str(Path(__file__).resolve().parents[2])


class TailStrategy(Enum):
    """What a split does where its factor does not divide the loop.

    Auto: ShiftInwards of pure definitions where it is possible, else GuardWithIf. RoundUp: the
    factor must divide the loop, since nothing outside of a region is computed.
    """

    Auto = "auto"
    GuardWithIf = "guard"
    ShiftInwards = "overlap"
    RoundUp = "exact"


@dataclass(frozen=True, slots=True)
class Split:
    """`old` as tiles: loops `outer` over them and `inner` inside."""

    old: str
    outer: str
    inner: str
    factor: int
    tail: TailStrategy


@dataclass(frozen=True, slots=True)
class Fuse:
    """Two loops as one."""

    inner: str
    outer: str
    fused: str


@dataclass(frozen=True, slots=True)
class Reorder:
    """Loops in another order, innermost first."""

    vars: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kind:
    """How the iterations of a loop run: a kind of loop of the IR."""

    var: str
    kind: str


@dataclass(frozen=True, slots=True)
class Rename:
    """Another name for a loop."""

    old: str
    new: str


Directive = Split | Fuse | Reorder | Kind | Rename


@dataclass(slots=True)
class Plan:
    """What was said about one definition. vars: its loops now, innermost first.

    special: what was said for when a condition holds, with how many directives hold for both.
    """

    func: Defined
    stage: int
    vars: list[str]
    directives: list[tuple[Directive, str]] = field(default_factory=list)
    special: list[Special] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The definition as the user writes it."""
        name = self.func.name()
        return name if self.stage == 0 else f"{name}.update({self.stage - 1})"

    def at(self, name: str, verb: str) -> int:
        """Where a loop stands. Raises ScheduleError with the loops there are."""
        if name not in self.vars:
            raise ScheduleError(
                f"{verb}: there is no loop {name}",
                where=f"{self.title}, {line()}",
                hint=f"its loops, innermost first: {', '.join(self.vars) or '(none)'}",
            )
        return self.vars.index(name)

    def add(self, directive: Directive) -> None:
        """Record a directive with the user's line."""
        self.directives.append((directive, line()))

    def said(self) -> tuple[Any, ...]:
        """All that was said, as a key: equal while nothing new is said."""
        return (*self.directives, *((s, s.plan.said()) for s in self.special))


@dataclass(frozen=True, eq=False, slots=True)
class Special:
    """A condition, the plan of the copy for it, and how many directives came before."""

    condition: Expr
    plan: Plan
    shared: int
    line: str


def plan_of(func: Defined, stage: int) -> Plan:
    """The plan of a definition nothing was said about."""
    definition = func.definitions[stage]
    reduced = [] if definition.domain is None else [v.name() for v in definition.domain.vars]
    pure = [
        v.name()
        for v, arg in zip(func.args, reversed(definition.args), strict=True)
        if v.node is arg
    ]
    return Plan(func, stage, reduced + pure)


def line() -> str:
    """The place in the user's program: the innermost frame outside of this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def var_name(var: Any) -> str:
    """The name of a Var or RVar (or of the one variable of an RDom)."""
    if isinstance(var, Var | RVar):
        return var.name()
    if isinstance(var, RDom) and len(var.vars) == 1:
        return var.vars[0].name()
    raise ScheduleError(f"{var!r} is no Var", where=line(), hint="loops are named by Vars")


class Verbs:
    """The verbs that a Func (its pure definition) and a Stage (an update) have in common.

    Each returns the object itself, so that verbs chain. Each raises ScheduleError for a Var that
    is no loop of the definition.
    """

    def _plan(self) -> Plan:
        raise NotImplementedError

    def split(
        self, old: Any, outer: Any, inner: Any, factor: Any, tail: TailStrategy = TailStrategy.Auto
    ) -> Self:
        """Tiles of `factor` iterations: `outer` over them, `inner` inside; names may be reused."""
        plan, size = self._plan(), constant(factor)
        names = var_name(old), var_name(outer), var_name(inner)
        at = plan.at(names[0], "split")
        if size < 1:
            raise ScheduleError(f"split: the factor is {size}", where=f"{plan.title}, {line()}")
        plan.vars[at : at + 1] = [names[2], names[1]]
        plan.add(Split(*names, size, tail))
        return self

    def fuse(self, inner: Any, outer: Any, fused: Any) -> Self:
        """The loop `inner` directly inside `outer` as one loop over all their iterations."""
        plan = self._plan()
        names = var_name(inner), var_name(outer), var_name(fused)
        plan.at(names[0], "fuse")
        at = plan.at(names[1], "fuse")
        plan.vars[at] = names[2]
        plan.vars.remove(names[0])
        plan.add(Fuse(*names))
        return self

    def reorder(self, *vars: Any) -> Self:
        """The loops in the order given, innermost first; loops not named stay at their depth."""
        plan, names = self._plan(), tuple(map(var_name, vars))
        places = sorted(plan.at(n, "reorder") for n in names)
        for place, name in zip(places, names, strict=True):
            plan.vars[place] = name
        plan.add(Reorder(names))
        return self

    def tile(self, x: Any, y: Any, *rest: Any, tail: TailStrategy = TailStrategy.Auto) -> Self:
        """`tile(x, y, xo, yo, xi, yi, xfactor, yfactor)`; without xo, yo the outer loops keep x, y.

        The order afterwards, innermost first: xi, yi, xo, yo.
        """
        if len(rest) == 4:
            rest = (x, y, *rest)
        if len(rest) != 6:
            raise ScheduleError(
                f"tile takes 6 or 8 arguments, not {2 + len(rest)}",
                where=f"{self._plan().title}, {line()}",
                hint="tile(x, y, [xo, yo,] xi, yi, xfactor, yfactor)",
            )
        xo, yo, xi, yi, xfactor, yfactor = rest
        self.split(x, xo, xi, xfactor, tail)
        self.split(y, yo, yi, yfactor, tail)
        return self.reorder(xi, yi, xo, yo)

    def vectorize(
        self, var: Any, factor: Any = None, tail: TailStrategy = TailStrategy.Auto
    ) -> Self:
        """The loop as vector lanes; with a factor, the inner loop of a split by it."""
        return self._kind("vector", var, factor, tail)

    def unroll(self, var: Any, factor: Any = None, tail: TailStrategy = TailStrategy.Auto) -> Self:
        """The loop written out; with a factor, the inner loop of a split by it."""
        return self._kind("unroll", var, factor, tail)

    def parallel(
        self, var: Any, factor: Any = None, tail: TailStrategy = TailStrategy.Auto
    ) -> Self:
        """The loop on several threads; with a factor, that many iterations at a time."""
        if factor is None:
            return self._kind("parallel", var, None, tail)
        self.split(var, var, Var(f"{var_name(var)}.task"), factor, tail)
        return self._kind("parallel", var, None, tail)

    def serial(self, var: Any) -> Self:
        """The loop in order (which it is until something else is said)."""
        return self._kind("serial", var, None, TailStrategy.Auto)

    def rename(self, old: Any, new: Any) -> Self:
        """Another name for a loop."""
        plan, names = self._plan(), (var_name(old), var_name(new))
        plan.vars[plan.at(names[0], "rename")] = names[1]
        plan.add(Rename(*names))
        return self

    def specialize(self, condition: Any) -> Stage:
        """A copy of the loops for when `condition` (of Params) holds; it is scheduled by itself.

        What was said before holds for both; what is said later on either holds for that one.
        """
        plan = self._plan()
        copy = Plan(plan.func, plan.stage, list(plan.vars))
        plan.special.append(Special(as_expr(condition), copy, len(plan.directives), line()))
        return Stage(copy)

    def allow_race_conditions(self) -> Self:
        """Nothing: a schedule that races is refused, whatever is allowed."""
        return self

    def prefetch(self, *what: Any) -> Self:
        """Nothing: memory is fetched ahead by the processor."""
        return self

    def _kind(self, kind: str, var: Any, factor: Any, tail: TailStrategy) -> Self:
        plan = self._plan()
        if factor is not None:
            inner = Var(f"{var_name(var)}.{kind}")
            self.split(var, var, inner, factor, tail)
            var = inner
        plan.at(var_name(var), kind)
        plan.add(Kind(var_name(var), kind))
        return self


class Stage(Verbs, Absent):
    """An update definition, or a specialization, for its schedule."""

    def __init__(self, plan: Plan) -> None:
        self._held = plan

    def _plan(self) -> Plan:
        return self._held
