"""Recording where a Func is computed and stored: compute_at, store_at and so on."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final, Self

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError, UnsupportedError
from tilewright.lang.halide.extern import Extern
from tilewright.lang.halide.plan import PipelinePlan, line, plan_of
from tilewright.lang.halide.storage import Storage
from tilewright.lang.halide.syntax import func as notation
from tilewright.lang.halide.syntax.expr import Expr, constant
from tilewright.lang.halide.verbs import Verbs, var_name


class MemoryType(Enum):
    """The memory of a Func: `Auto` chooses the stack for small Funcs inside a loop."""

    Auto = None
    Heap = "global"
    Stack = "stack"
    Register = "register"
    GPUShared = "shared"
    GPUTexture = "gpu texture"
    LockedCache = "locked cache"
    VTCM = "vtcm"


_ABSENT: Final = (
    MemoryType.GPUTexture,
    MemoryType.LockedCache,
    MemoryType.VTCM,
)


@dataclass(frozen=True, eq=False, slots=True)
class Level:
    """A place in a loop nest: the loop `var` of `func`, or the root (None).

    line: of the directive. stage: of that Func's definitions the one meant; None: all.
    """

    func: Scheduled | None
    var: str | None
    line: str
    stage: int | None = None


class LoopLevel:
    """A place to compute or store Funcs at, which can be set later than it is used.

    `LoopLevel(f, x)`, of one definition of f with its number; `root()`; `inlined()`; or none yet.
    """

    def __init__(
        self, func: Scheduled | None = None, var: Any = None, stage_index: int = -1
    ) -> None:
        self._set = func is not None
        self._stage = stage_index
        self._level: Level | None = None
        if func is not None:
            stage = None if stage_index < 0 else stage_index
            self._level = Level(func, var_name(var), line(), stage)

    @staticmethod
    def root() -> LoopLevel:
        """Outside all loops."""
        return _level(Level(None, None, line()))

    @staticmethod
    def inlined() -> LoopLevel:
        """In the expressions that use it."""
        return _level(None)

    def set(self, other: LoopLevel) -> None:
        """Be the same place as another, wherever this one has been given."""
        self._level = other.level()
        self._set = True

    def stage_index(self) -> int:
        """The number of the definition meant; -1: all."""
        return self._stage

    def level(self) -> Level | None:
        """The place; None for inlined. Raises ScheduleError where it is not set."""
        if not self._set:
            raise ScheduleError(
                "a LoopLevel is used that is not set",
                where=line(),
                hint="set(LoopLevel(f, x)) before the Func is realized",
            )
        return self._level


def _level(found: Level | None) -> LoopLevel:
    made = LoopLevel()
    made._set, made._level = True, found
    return made


class Scheduled(Verbs, Storage, notation.Func):
    """A Func with all directives about how to compute it.

    By default it is computed inline; one with updates, or an output, is at root.
    """

    def __init__(self, *declared: Any) -> None:
        self._plans: dict[int, PipelinePlan] = {}
        self._compute: LoopLevel = LoopLevel.inlined()
        self._store: LoopLevel = LoopLevel.inlined()
        self.memory = MemoryType.Auto
        self.remembers = False
        self.is_async = False
        self.tags: list[str] = []
        self.file: str | None = None  # that is written with its values
        self.folds: dict[str, tuple[int, str]] = {}
        self.ring: tuple[int, str] | None = None
        self.extern: Extern | None = None
        self.layout: tuple[str, ...] | None = None
        Storage.__init__(self)
        notation.Func.__init__(self, *declared)

    @property
    def compute(self) -> Level | None:
        """Where it is computed; None: where it is used."""
        return self._compute.level()

    @property
    def is_whole(self) -> bool:
        """Whether it is computed outside all loops."""
        level = self.compute
        return level is None or level.func is None

    @property
    def store(self) -> Level | None:
        """Where its memory is; None: where it is computed."""
        return self._store.level()

    def _plan(self) -> PipelinePlan:
        return self.plan(0)

    def plan(self, stage: int) -> PipelinePlan:
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

    @property
    def plans(self) -> list[PipelinePlan]:
        """The directives of all definitions that have some."""
        return list(self._plans.values())

    @property
    def touched(self) -> bool:
        """Whether some directive says how or where it is computed."""
        said = [self.compute, self.store, self.layout, self.folds, self.padded]
        other = self.memory is not MemoryType.Auto or self.limited or self.traced
        return any(said) or bool(other) or any(p.schedule_key() for p in self.plans)

    def conditions(self) -> list[Expr]:
        """Those of its specializations."""
        return [s.condition for p in self._plans.values() for s in p.special]

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
            (self.remembers, self.is_async, self.file),
            (*sorted(self.traced), *self.tags),
            (*self.folds.items(), self.ring),
            self.storage_key(),
        )

    def compute_root(self) -> Self:
        """Compute all of it before anything that uses it."""
        self._compute = self._store = LoopLevel.root()
        return self

    def compute_inline(self) -> Self:
        """Compute it again wherever it is used (the default)."""
        self._compute = self._store = LoopLevel.inlined()
        return self

    def compute_at(self, func: Scheduled | LoopLevel, var: Any = None) -> Self:
        """Compute, in each iteration of a consumer's loop `var`, the region that the iteration
        needs."""
        self._compute = self._level("compute_at", func, var)
        return self

    def store_at(self, func: Scheduled | LoopLevel, var: Any = None) -> Self:
        """Keep its memory through all iterations of an outer loop.

        If the regions of neighboring iterations overlap, each iteration computes only new elements,
        and only live rows are stored, in a ring.
        """
        self._store = self._level("store_at", func, var)
        return self

    def store_root(self) -> Self:
        """Keep its memory through the whole pipeline, as `store_at`."""
        self._store = LoopLevel.root()
        return self

    def memoize(self, eviction_key: Any = None) -> Self:
        """Remember its values for the same inputs, Params and region.

        Inputs are the same where all their elements are. At a loop, all that its iterations need is
        computed before it and remembered together. Raises UnsupportedError for a key.
        """
        if eviction_key is not None:
            raise UnsupportedError(
                "memoize with an eviction key",
                where=f"{self.name()}, {line()}",
                hint="drop the key: the results that are used least go first",
            )
        self.remembers = True
        return self

    def async_(self) -> Self:
        """Compute it on its own thread, at root, while other such Funcs are computed.

        At a loop it has the same values, and the thread that runs the loop computes them.
        """
        self.is_async = True
        return self

    def debug_to_file(self, filename: str) -> None:
        """Write its values to a file when `realize` computes them, at root: `numpy.load` reads it.

        Raises UnsupportedError for other names than of a .npy file, and for a Func of a Tuple.
        """
        if not str(filename).endswith(".npy") or len(self.symbols) > 1:
            raise UnsupportedError(
                f"debug_to_file({filename!r}) of {len(self.symbols)} values",
                where=f"{self.name()}, {line()}",
                hint="a name that ends with .npy, of a Func with one value",
            )
        self.file = str(filename)

    def trace_stores(self) -> Self:
        """Print each value that is stored, unless it is inlined; interpreted, as `print` is."""
        self.traced.add("Store")
        return self

    def trace_loads(self) -> Self:
        """Print each value that is read of it; the pipeline runs in the interpreter."""
        self.traced.add("Load")
        return self

    def trace_realizations(self) -> Self:
        """Print where it is realized, produced and consumed, and over which regions."""
        self.traced.add("Realization")
        return self

    def add_trace_tag(self, trace_tag: str) -> Self:
        """Print a text with its type and region where a traced pipeline begins."""
        self.tags.append(str(trace_tag))
        return self

    def hoist_storage(self, func: Scheduled | LoopLevel, var: Any = None) -> Self:
        """Take its memory outside a loop: all memory is taken once, before the first loop."""
        self._level("hoist_storage", func, var)
        return self

    def hoist_storage_root(self) -> Self:
        """Take its memory once: all memory is."""
        return self

    def store_in(self, memory: MemoryType) -> Self:
        """Choose the memory it is stored in."""
        if not isinstance(memory, MemoryType):
            raise ScheduleError(
                f"store_in({memory!r})",
                where=f"{self.name()}, {line()}",
                hint=f"one of {', '.join(map(str, MemoryType))}",
            )
        if memory in _ABSENT:
            raise UnsupportedError(
                f"this machine has no {memory}",
                where=f"{self.name()}, {line()}",
                hint="Auto, Heap, Stack, Register or GPUShared",
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
                hint=f"name each dimension once: {self.dimension_names()}",
            )
        self.layout = names
        return self

    def fold_storage(self, var: Any, extent: Any) -> Self:
        """Store only `extent` rows of the dimension `var`, as a ring."""
        size = constant(extent)
        self.folds[self.dimension_name("fold_storage", var)] = size, line()
        return self

    def ring_buffer(self, extent: Any) -> Self:
        """Keep it for `extent` iterations of the loop it is computed at, and compute it ahead.

        Each iteration computes it for the one `extent` - 1 later, together with its producers
        there.
        """
        self.ring = self._positive("ring_buffer", extent), line()
        return self

    def set_estimate(self, var: Any, min: Any, extent: Any) -> Self:
        """What `var` is likely to run over: the region that `print_loop_nest()` shows."""
        found = constant(min), constant(extent)
        self.estimates[self.dimension_name("set_estimate", var)] = found
        return self

    def set_estimates(self, ranges: Sequence[tuple[Any, Any]]) -> Self:
        """`set_estimate` of each argument, x first."""
        found = [(constant(low), constant(extent)) for low, extent in ranges]
        if len(found) != len(self.args):
            raise ScheduleError(
                f"set_estimates of {len(found)} dimensions",
                where=f"{self.name()}, {line()}",
                hint=f"give one (min, extent) for each: {self.dimension_names()}",
            )
        self.estimates |= zip((v.name() for v in self.args), found, strict=True)
        return self

    def _level(self, verb: str, func: Any, var: Any) -> LoopLevel:
        if isinstance(func, LoopLevel):
            return func
        if not isinstance(func, Scheduled):
            raise ScheduleError(
                f"{verb}({func!r}, {var!r})",
                where=f"{self.name()}, {line()}",
                hint="name a Func that uses this one, and one of its loops",
            )
        return LoopLevel(func, var)
