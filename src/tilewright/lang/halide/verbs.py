"""The schedule methods of one definition, recorded: split, fuse, tile, reorder, vectorize, ...

A verb only records a request, and checks that the Vars it names exist; `replay.py` applies it. Vars
are identified by name; a `Plan` tracks the current loops, innermost first. A verb that raises
records nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from tilewright.base.errors import ScheduleError
from tilewright.base.numbers import whole
from tilewright.lang.halide.gpu import GpuVerbs
from tilewright.lang.halide.plan import (
    Fuse,
    LoopAlignStrategy,
    LoopKind,
    Partition,
    PipelinePlan,
    PrefetchBoundStrategy,
    Rename,
    Reorder,
    RingBuffer,
    SharedLoops,
    SpecializedCopy,
    Split,
    TailStrategy,
    line,
)
from tilewright.lang.halide.syntax.absent import absent
from tilewright.lang.halide.syntax.domain import RDom, RVar, Var
from tilewright.lang.halide.syntax.expr import as_expr, constant


def var_name(var: Any) -> str:
    """The name of a Var or RVar (or of the one variable of an RDom)."""
    if isinstance(var, Var | RVar):
        return var.name()
    if isinstance(var, RDom) and len(var.vars) == 1:
        return var.vars[0].name()
    raise ScheduleError(
        f"{var!r} is not a Var", where=line(), hint="loops are named by Vars"
    )


class Verbs(GpuVerbs):
    """The verbs that a Func (its pure definition) and a Stage (an update) have in common.

    Each returns the object itself, so that verbs chain. Each raises ScheduleError for a Var that
    is not a loop of the definition.
    """

    def _plan(self) -> PipelinePlan:
        raise NotImplementedError

    def split(
        self,
        old: Any,
        outer: Any,
        inner: Any,
        factor: Any,
        tail: TailStrategy = TailStrategy.Auto,
    ) -> Self:
        """Tiles of `factor` iterations: `outer` over them, `inner` inside; names may be reused."""
        plan = self._plan()
        size = constant(factor)
        names = var_name(old), var_name(outer), var_name(inner)
        at = plan.at(names[0], "split")
        if size < 1:
            raise ScheduleError(
                f"split: the factor is {size}", where=f"{plan.title}, {line()}"
            )
        plan.expect_new(names[1:], "split", names[:1])
        plan.vars[at : at + 1] = [names[2], names[1]]
        plan.add(Split(*names, size, tail))
        return self

    def fuse(self, inner: Any, outer: Any, fused: Any) -> Self:
        """The loop `inner` inside `outer` as one over all their iterations, where `inner` is."""
        plan = self._plan()
        names = var_name(inner), var_name(outer), var_name(fused)
        plan.at(names[0], "fuse")
        plan.at(names[1], "fuse")
        plan.expect_new(names[:2], "fuse", names[:2])
        plan.expect_new(names[2:], "fuse", names[:2])
        around = [v for v in plan.vars if v != names[1]]
        around.insert(around.index(names[0]) + 1, names[1])
        if around != plan.vars:
            plan.vars[:] = around
            plan.add(Reorder(tuple(around)))
        plan.vars.remove(names[1])
        plan.vars[plan.vars.index(names[0])] = names[2]
        plan.add(Fuse(*names))
        return self

    def reorder(self, *vars: Any) -> Self:
        """The loops in the order given, innermost first; loops not named stay at their depth."""
        plan = self._plan()
        names = tuple(map(var_name, vars))
        places = sorted(plan.at(n, "reorder") for n in names)
        plan.expect_new(names, "reorder", names)
        for place, name in zip(places, names, strict=True):
            plan.vars[place] = name
        plan.add(Reorder(names))
        return self

    def tile(
        self, x: Any, y: Any, *rest: Any, tail: TailStrategy = TailStrategy.Auto
    ) -> Self:
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
        with self._plan().whole():
            self.split(x, xo, xi, xfactor, tail)
            self.split(y, yo, yi, yfactor, tail)
            return self.reorder(xi, yi, xo, yo)

    def vectorize(
        self, var: Any, factor: Any = None, tail: TailStrategy = TailStrategy.Auto
    ) -> Self:
        """The loop as vector lanes; with a factor, the inner loop of a split by it."""
        return self._kind("vector", var, factor, tail)

    def unroll(
        self, var: Any, factor: Any = None, tail: TailStrategy = TailStrategy.Auto
    ) -> Self:
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
        """The loop in order (the default)."""
        return self._kind("serial", var, None, TailStrategy.Auto)

    def rename(self, old: Any, new: Any) -> Self:
        """Another name for a loop."""
        plan = self._plan()
        names = (var_name(old), var_name(new))
        at = plan.at(names[0], "rename")
        plan.expect_new(names[1:], "rename", names[:1])
        plan.vars[at] = names[1]
        plan.add(Rename(*names))
        return self

    def specialize(self, condition: Any) -> Stage:
        """A separately scheduled copy of the loops for when `condition` (of Params) holds.

        Directives before it hold for both; later ones on either hold for that one.
        """
        plan = self._plan()
        copy = PipelinePlan(plan.func, plan.stage, list(plan.vars))
        plan.special.append(
            SpecializedCopy(as_expr(condition), copy, len(plan.directives), line())
        )
        return Stage(copy)

    def specialize_fail(self, message: str) -> None:
        """`realize` raises an ExecutionError where no condition of `specialize` before holds."""
        plan = self._plan()
        if not plan.special or not isinstance(message, str):
            raise ScheduleError(
                f"specialize_fail({message!r})",
                where=f"{plan.title}, {line()}",
                hint="a text, after specialize(condition)",
            )
        plan.fails = message

    def compute_with(
        self,
        other: Any,
        var: Any,
        align: LoopAlignStrategy = LoopAlignStrategy.Auto,
    ) -> Self:
        """Share the loops of another definition, from the outermost to `var`: both bodies in turn.

        other: a Func, or an update. Both have these loops under the same names, in the same order
        and of the same kinds. align: must be AlignStart, which aligns the first iterations.
        """
        plan = self._plan()
        if align not in (LoopAlignStrategy.Auto, LoopAlignStrategy.AlignStart):
            raise ScheduleError(
                f"compute_with: {align}",
                where=f"{plan.title}, {line()}",
                hint="the first iterations are aligned: AlignStart",
            )
        name = var_name(var)
        if not isinstance(other, Verbs) or other._plan() is plan:
            raise ScheduleError(
                f"compute_with({other!r}, {name})",
                where=f"{plan.title}, {line()}",
                hint="name another Func or update, and a loop that both have",
            )
        plan.at(name, "compute_with")
        other._plan().at(name, "compute_with")
        plan.together = SharedLoops(other._plan(), name, line())
        return self

    def atomic(self, override_associativity_test: bool = False) -> Self:
        """Allow iterations that update the same elements to run concurrently, in vectors and on
        threads.

        Each lane or thread gets partial results, which are combined afterwards; the update must be
        a step of a commutative operator, even with the override. Blocks of a GPU update elements
        one by one instead.
        """
        self._plan().atomic = True
        return self

    def partition(self, var: Any, policy: Partition) -> Self:
        """Whether to partition the loop where its bounds decide its conditions."""
        plan = self._plan()
        plan.at(var_name(var), "partition")
        plan.parted[var_name(var)] = policy, line()
        return self

    def always_partition(self, *vars: Any) -> Self:
        """Partition these loops where their bounds decide the conditions in each iteration."""
        return self._partition(vars, Partition.Always, "always_partition")

    def always_partition_all(self) -> Self:
        """`always_partition` of all loops."""
        return self.always_partition(self._plan().vars)

    def never_partition(self, *vars: Any) -> Self:
        """Keep these loops in one part: conditions on their bounds are tested in each iteration."""
        return self._partition(vars, Partition.Never, "never_partition")

    def never_partition_all(self) -> Self:
        """`never_partition` of all loops."""
        return self.never_partition(self._plan().vars)

    def _partition(self, vars: tuple[Any, ...], policy: Partition, verb: str) -> Self:
        plan = self._plan()
        names = [v if isinstance(v, str) else var_name(v) for v in _listed(vars)]
        for name in names:
            plan.at(name, verb)
        plan.parted |= dict.fromkeys(names, (policy, line()))
        return self

    def prefetch(
        self,
        source: Any,
        at: Any,
        from_: Any = None,
        offset: int = 1,
        strategy: PrefetchBoundStrategy = PrefetchBoundStrategy.GuardWithIf,
    ) -> Self:
        """Fetch what a Func or image holds for `offset` iterations of `from_` later into the cache.

        at: the loop where Halide fetches it; here that is each vector that is loaded. strategy:
        changes nothing. Where no vector of the source is loaded, building raises ScheduleError.
        """
        plan = self._plan()
        for v in (at, at if from_ is None else from_):
            plan.at(var_name(v), "prefetch")
        iterations = whole(offset, 1)
        if iterations is None:
            raise ScheduleError(
                f"prefetch: the offset {offset!r}",
                where=f"{plan.title}, {line()}",
                hint="a number of iterations, 1 or more",
            )
        var = var_name(at if from_ is None else from_)
        plan.ahead.append(RingBuffer(source, var, iterations, line()))
        return self

    def allow_race_conditions(self) -> Self:
        """No effect: a schedule with a race is always rejected."""
        return self

    def _kind(
        self,
        kind: str,
        var: Any,
        factor: Any,
        tail: TailStrategy,
    ) -> Self:
        plan = self._plan()
        if factor is not None:
            inner = Var(f"{var_name(var)}.{kind}")
            self.split(var, var, inner, factor, tail)
            var = inner
        plan.at(var_name(var), kind)
        plan.add(LoopKind(var_name(var), kind))
        return self


def _listed(vars: tuple[Any, ...]) -> Sequence[Any]:
    """The arguments, or the list that is the only one."""
    if len(vars) == 1 and isinstance(vars[0], list | tuple):
        return vars[0]
    return vars


class Stage(Verbs):
    """An update definition, or a specialization, for its schedule."""

    __getattr__ = absent("Stage")

    def __init__(self, plan: PipelinePlan) -> None:
        self._held = plan

    def _plan(self) -> PipelinePlan:
        return self._held

    def name(self) -> str:
        """The definition as the user writes it."""
        return self._held.title

    def dump_argument_list(self) -> str:
        """Its loops as text, innermost first."""
        return ", ".join(self._held.vars)
