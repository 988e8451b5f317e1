"""lower and build: from a schedule to a Kernel, and to a function on arrays."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tilewright.base.errors import InputError, ScheduleError
from tilewright.expr.nodes import Var
from tilewright.lang.function import Function
from tilewright.lang.te.parts import Calling, has_calls
from tilewright.lang.te.schedule import Schedule
from tilewright.lang.te.syntax.nodes import Compute, Placeholder, Tensor
from tilewright.lang.te.syntax.program import Scope
from tilewright.loops.lower import lower as plain_nests
from tilewright.loops.nodes import Kernel
from tilewright.plan.nodes import FusionGroup
from tilewright.plan.passes.fuse import fuse
from tilewright.schedule import Schedule as Primitives
from tilewright.targets import registry
from tilewright.targets.base import Target

SPECIALIZED: Final = (
    64  # functions kept for values of symbolic sizes, least recently used out
)


def lower(
    s: Schedule,
    args: Sequence[Tensor],
    name: str | None = None,
    *,
    sizes: Mapping[Var, int] | None = None,
) -> Kernel:
    """The program of a schedule: a Kernel whose parameters are `args`, inputs first, outputs last.

    sizes: values of the sizes made by `var`. Raises InputError for a tensor that is missing or a
    size without a value, ScheduleError for a line that cannot be applied.
    """
    if sizes is not None and not isinstance(sizes, Mapping):
        raise InputError(
            f"the sizes are {sizes!r}", where="lower", hint="as in sizes={n: 64}"
        )
    return primitives(s, args, name, sizes=sizes).kernel


def primitives(
    s: Schedule,
    args: Sequence[Tensor],
    name: str | None = None,
    *,
    sizes: Mapping[Var, int] | None = None,
) -> Primitives:
    """The primitives that a schedule is, applied to the plain program; as `lower` otherwise."""
    return s.replay(_inputs_first(_arguments(s, args)), sizes, name).schedule


def build(
    s: Schedule,
    args: Sequence[Tensor],
    target: str = "cpu",
    name: str | None = None,
    *,
    threads: int | None = None,
    auto: bool = False,
    description: Mapping[str, Any] | None = None,
    sizes: Mapping[Var, int] | None = None,
    specialize: bool = False,
) -> Function | Specializing | Calling | Arranged:
    """The schedule as a function on NumPy arrays, one per tensor of `args`, outputs written.

    target: "cpu", "vdla", "vta" or "interp". auto: let the target's sketches schedule; nothing may
    be recorded then. description: what is otherwise than usual about a simulated machine, in its
    own fields. Where sizes were made by `var`, one function is for all values of those that `sizes`
    gives none; specialize: instead it compiles for each value that it meets.
    Raises what `lower` does, and UnsupportedError for an unknown target.
    """
    given = _arguments(s, args)
    params = _inputs_first(given)
    if auto and any(stage.touched or stage.attach for stage in s.stages):
        raise ScheduleError(
            "auto=True schedules everything, but this schedule already has lines",
            hint="build a fresh create_schedule(...)",
            where="build",
        )

    fixed = dict(sizes or {})

    def make(known: Mapping[Var, int]) -> Function:
        if auto:
            machine = registry.target(target, description=description)
            kernel = _by_sketches(s, params, machine, name, fixed | dict(known))
        else:
            kernel = lower(s, params, name, sizes=fixed | dict(known))
        return Function(kernel, target, threads, description)

    if has_calls(s.stages):
        if auto:
            raise ScheduleError(
                "auto=True schedules one kernel, but this program calls functions",
                hint="schedule the stages",
                where="build",
            )
        return Calling(
            s.parts(), given, lambda k: Function(k, target, threads, description)
        )
    left = [v for v in s.sizes if v not in fixed]
    found = Specializing(left, params, make) if specialize and left else make({})
    if given != params:
        return Arranged(found, [given.index(t) for t in params])
    return found


def _by_sketches(
    s: Schedule,
    params: Sequence[Tensor],
    machine: Target,
    name: str | None,
    sizes: Mapping[Var, int],
) -> Kernel:
    """The target's default schedule; of fewer Computations where it has none for all as written.

    Maps that only move data then go into what reads them, and maps that follow a reduction take
    its dimensions, as in a model's operators; not where sizes are open.
    """
    program = s.program(params, sizes, name)
    plain = program.kernel
    computations = program.computations
    recurs = any(not isinstance(stage.op, Compute) for stage in s.stages)
    if not recurs and not plain.sizes:
        stages = [FusionGroup(c.name, (c,)) for c in computations]
        steps = fuse(stages, frozenset(plain.outputs), machine.plan_costs.repeated)
        computations = tuple(
            c for x in steps if isinstance(x, FusionGroup) for c in x.computations
        )
        plain = plain_nests(plain.name, computations, plain.params, plain.outputs)
    return machine.default_schedule(plain, computations, ()).kernel


def _arguments(s: Schedule, args: Sequence[Tensor]) -> tuple[Tensor, ...]:
    if not isinstance(s, Schedule):
        raise InputError(
            f"{s!r} is not a schedule",
            hint="make one with create_schedule(C.op)",
            where="schedule",
        )
    if not isinstance(args, Sequence):
        raise InputError(
            f"the arguments are {args!r}",
            where="args",
            hint="a list of tensors: [A, B, C]",
        )
    given = tuple(args)
    for t in given:
        if not isinstance(t, Tensor):
            raise InputError(
                f"the argument {t!r} is not a tensor",
                where="args",
                hint="a list of tensors: [A, B, C]",
            )
    missing = [t.name for t in (*s.inputs, *s.outputs) if t not in given]
    if missing:
        raise InputError(
            f"{', '.join(missing)} is not among the arguments",
            where="args",
            hint="give every input and every output",
        )
    return given


def _inputs_first(given: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The arguments as a kernel has them."""
    return tuple(sorted(given, key=lambda t: not isinstance(t.op, Placeholder)))


class Arranged:
    """A function whose arrays come in another order than its kernel's: outputs before inputs.

    order: where each of the kernel's parameters is among the arrays.
    """

    def __init__(self, function: Function | Specializing, order: Sequence[int]) -> None:
        self.function: Final = function
        self._order: Final = tuple(order)

    def __call__(self, *arrays: Any) -> None:
        """Run on one array per argument of `build`. Raises InputError as the function does."""
        if len(arrays) != len(self._order):
            raise InputError(
                f"{len(arrays)} arrays given, {len(self._order)} expected",
                where="call",
                hint="one for each argument of build, in its order",
            )
        self.function(*(arrays[n] for n in self._order))

    def __repr__(self) -> str:
        return f"Arranged({self.function!r})"


class Specializing:
    """A function that compiles itself for each value of its symbolic sizes, on first use."""

    def __init__(
        self,
        sizes: Sequence[Var],
        params: Sequence[Tensor],
        make: Any,
    ) -> None:
        self.params: Final = tuple(params)
        self._make: Final = make
        self._made: Final[OrderedDict[tuple[int, ...], Function]] = OrderedDict()
        self._sizes: Final = tuple(sizes)
        found = {e for t in params for e in t.shape if isinstance(e, Var)}
        for v in self._sizes:
            if v not in found:
                raise InputError(
                    f"no argument has {v.name} as an extent by itself, so it cannot be known",
                    where="args",
                    hint="give some placeholder this extent, or lower with sizes={n: 64}",
                )

    def __call__(self, *arrays: Any) -> None:
        """Run on one array per parameter. Raises InputError for shapes that do not fit."""
        if len(arrays) != len(self.params):
            names = ", ".join(t.name for t in self.params)
            raise InputError(
                f"{len(arrays)} arrays given, {len(self.params)} expected: {names}",
                where="call",
                hint="inputs come first, outputs last",
            )
        self.at(self._values(arrays))(*arrays)

    def at(self, sizes: Mapping[Var, int]) -> Function:
        """The function for these sizes."""
        key = tuple(sizes[v] for v in self._sizes)
        if key not in self._made:
            self._made[key] = self._make(sizes)
            if len(self._made) > SPECIALIZED:
                self._made.popitem(last=False)
        self._made.move_to_end(key)
        return self._made[key]

    def _values(self, arrays: Sequence[Any]) -> dict[Var, int]:
        sizes: dict[Var, int] = {}
        for t, a in zip(self.params, arrays, strict=True):
            shape = getattr(a, "shape", ())
            if len(shape) != t.ndim:
                raise InputError(
                    f"{t!r} was given an array of shape {tuple(shape)}",
                    where=t.name,
                    hint=f"it has {t.ndim} dimension(s)",
                )
            for e, n in zip(t.shape, shape, strict=True):
                if isinstance(e, Var):
                    sizes.setdefault(e, int(n))
        scope = Scope(sizes)
        for t, a in zip(self.params, arrays, strict=True):
            expected = tuple(scope.extent(e) for e in t.shape)
            if tuple(a.shape) != expected:
                values = ", ".join(f"{v.name} = {n}" for v, n in sizes.items())
                raise InputError(
                    f"expected shape {expected} where {values}, got {tuple(a.shape)}",
                    where=t.name,
                    hint="one size has one value in all arguments",
                )
        return sizes

    def __repr__(self) -> str:
        return f"Specializing({', '.join(map(repr, self.params))})"
