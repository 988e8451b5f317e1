"""Plan: the directives recorded for one definition, with the user's lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from enum import Enum
from pathlib import Path
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError, TilewrightError
from tilewright.lang.halide.syntax.expr import Expr
from tilewright.lang.halide.syntax.func import Func

_PACKAGE = str(Path(__file__).resolve().parents[2])


class TailStrategy(Enum):
    """What a split does where its factor does not divide the loop.

    Auto: ShiftInwards of pure definitions where it is possible, else GuardWithIf. RoundUp: the
    factor must divide the loop, since nothing outside a region is computed. The predicated and
    blending ones say how vectors keep to the region; here each is a guard, which becomes a mask.
    """

    Auto = "auto"
    GuardWithIf = "guard"
    ShiftInwards = "overlap"
    RoundUp = "exact"
    Predicate = "predicate"
    PredicateLoads = "predicate loads"
    PredicateStores = "predicate stores"
    RoundUpAndBlend = "round up and blend"
    ShiftInwardsAndBlend = "shift inwards and blend"


class LoopAlignStrategy(Enum):
    """How `compute_with` aligns the iterations of two loops: here, at their first iterations."""

    AlignStart = 0
    AlignEnd = 1
    NoAlign = 2
    Auto = 3


class Partition(Enum):
    """Whether a loop is parted so that what its bounds decide is not asked in each iteration."""

    Auto = 0
    Never = 1
    Always = 2


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
class LoopKind:
    """How the iterations of a loop run: a kind of loop of the IR."""

    var: str
    kind: str


@dataclass(frozen=True, slots=True)
class Rename:
    """Another name for a loop."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class RingBuffer:
    """Memory of a Func or image that is fetched some iterations of a loop ahead."""

    owner: Any
    var: str
    iterations: int
    line: str


class PrefetchBoundStrategy(Enum):
    """How Halide treats prefetches outside a buffer; here they are issued, which is harmless."""

    Clamp = 0
    GuardWithIf = 1
    NonFaulting = 2


Directive = Split | Fuse | Reorder | LoopKind | Rename


@dataclass(eq=False, slots=True)
class PipelinePlan:
    """The directives for one definition. vars: its loops now, innermost first.

    special: the directives for the case that a condition holds, with the number of shared ones.
    together: the other definition that it shares loops with. atomic: whether iterations that update
    the same elements may run concurrently. parted: the loops to partition or not, with the user's
    lines. ahead: what is fetched ahead. fails: the error if no special condition holds.
    """

    func: Func
    stage: int
    vars: list[str]
    directives: list[tuple[Directive, str]] = field(default_factory=list)
    special: list[SpecializedCopy] = field(default_factory=list)
    together: SharedLoops | None = None
    atomic: bool = False
    parted: dict[str, tuple[Partition, str]] = field(default_factory=dict)
    ahead: list[RingBuffer] = field(default_factory=list)
    fails: str | None = None

    @property
    def title(self) -> str:
        """The definition as the user writes it."""
        name = self.func.name()
        return name if self.stage == 0 else f"{name}.update({self.stage - 1})"

    def at(self, name: str, verb: str) -> int:
        """The position of a loop. Raises ScheduleError that lists the existing loops."""
        if name not in self.vars:
            raise ScheduleError(
                f"{verb}: there is no loop {name}",
                where=f"{self.title}, {line()}",
                hint=f"its loops, innermost first: {', '.join(self.vars) or '(none)'}",
            )
        return self.vars.index(name)

    def expect_new(
        self,
        names: Sequence[str],
        verb: str,
        gone: Sequence[str],
    ) -> None:
        """Raise ScheduleError for a name given twice, or of a loop that is not among the gone."""
        kept = [v for v in self.vars if v not in gone]
        for n, name in enumerate(names):
            if name in kept or name in names[:n]:
                raise ScheduleError(
                    f"{verb}: there would be two loops {name}",
                    where=f"{self.title}, {line()}",
                    hint=f"take a new name; its loops: {', '.join(self.vars)}",
                )

    @contextmanager
    def whole(self) -> Iterator[None]:
        """All directives inside are recorded, or none on an error."""
        vars = list(self.vars)
        count = len(self.directives)
        try:
            yield
        except TilewrightError:
            self.vars[:] = vars
            del self.directives[count:]
            raise

    def add(self, directive: Directive) -> None:
        """Record a directive with the user's line."""
        self.directives.append((directive, line()))

    def schedule_key(self) -> tuple[Any, ...]:
        """All directives, as a key: equal while there is no new one."""
        special = ((s, s.plan.schedule_key()) for s in self.special)
        said = filter(
            None,
            [
                self.together,
                self.atomic,
                tuple((v, policy) for v, (policy, _) in self.parted.items()),
                tuple(self.ahead),
            ],
        )
        return (*self.directives, *said, *special)


@dataclass(frozen=True, eq=False, slots=True)
class SharedLoops:
    """Another definition, and the innermost of the loops that are shared with it."""

    plan: PipelinePlan
    var: str
    line: str


@dataclass(frozen=True, eq=False, slots=True)
class SpecializedCopy:
    """A condition, the plan of the copy for it, and how many directives came before."""

    condition: Expr
    plan: PipelinePlan
    shared: int
    line: str


def plan_of(func: Func, stage: int) -> PipelinePlan:
    """The plan of a definition without directives."""
    definition = func.definitions[stage]
    if definition.domain is None:
        reduced = []
    else:
        reduced = [v.name() for v in definition.domain.vars]
    pure = [
        v.name()
        for v, arg in zip(func.args, reversed(definition.args), strict=True)
        if v.node is arg
    ]
    return PipelinePlan(func, stage, reduced + pure)


def line() -> str:
    """The place in the user's program: the innermost frame outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
