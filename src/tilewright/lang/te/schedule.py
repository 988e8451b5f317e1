"""A schedule of tensor expressions: stages, and their current program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError, ScheduleError
from tilewright.base.names import identifier
from tilewright.base.refused import refusing
from tilewright.driver.compile_lock import exclusive
from tilewright.lang.te import dataflow
from tilewright.lang.te.parts import KernelStages, has_calls, parts, show
from tilewright.lang.te.records import Handle, Line, scope_of
from tilewright.lang.te.replay import Replayed, replay
from tilewright.lang.te.stage import Stage
from tilewright.lang.te.staging import Cache, begin
from tilewright.lang.te.syntax.naming import assigned, caller_line
from tilewright.lang.te.syntax.nodes import (
    Compute,
    HostCall,
    Op,
    Placeholder,
    Recurrence,
    Tensor,
)
from tilewright.lang.te.syntax.program import (
    PlainProgram,
    Sizes,
    check_sizes,
    lower,
    order,
    sizes_of_ops,
)
from tilewright.loops.nodes import Kernel
from tilewright.loops.scopes import Scope
from tilewright.schedule import Schedule as Primitives
from tilewright.schedule import Trace
from tilewright.tune.space.program_space import ProgramSpace


@dataclass(frozen=True, eq=False, slots=True)
class Group:
    """Stages that are placed together."""

    members: tuple[Stage, ...]

    def compute_at(self, stage: Stage, loop: Handle) -> None:
        """Compute its stages, but those with their own place, in a loop of another stage."""
        if stage in self.members:
            raise ScheduleError(
                f"{stage.name} belongs to the group",
                where=f"group.compute_at(s[{stage.name}], {loop})",
                hint="name a stage that reads what the group computes",
            )
        for member in self.members:
            if member.attach is None:
                member.compute_at(stage, loop)

    def compute_root(self) -> None:
        """Compute its stages, except those with their own place, before all their readers."""


class Schedule:
    """The record of how to compute some tensors; made by `create_schedule`.

    `s[C]` is the stage of a tensor. Nothing is applied until the program is needed: `print(s)`,
    `s.schedule`, `lower` and `build` each replay all that is recorded (`replay.py` says in which
    order) and raise ScheduleError, naming the line that cannot be applied. `template`: the space of
    the template that has made it with its defaults.
    """

    def __init__(self, outputs: Sequence[Tensor]) -> None:
        self.outputs = tuple(outputs)
        self.stages: list[Stage] = []
        for op in order(outputs):
            if isinstance(op, Recurrence):
                self.stages += [Stage(step, step.outputs, op) for step in op.steps]
            if not isinstance(op, Placeholder):
                self.stages.append(Stage(op, op.outputs))
        self.inputs = tuple(
            op.tensor for op in order(outputs) if isinstance(op, Placeholder)
        )
        self._plain = self._ops()  # what the steps of a trace begin with
        self._caches: list[Cache] = []
        self._groups: list[Group] = []
        self.template: ProgramSpace | None = None

    def __getitem__(self, of: Tensor | Op) -> Stage:
        """The stage of a tensor. Raises InputError for one that it does not compute."""
        for stage in self.stages:
            if stage.op is of or any(t is of for t in stage.tensors):
                return stage
            if any(t.op is of for t in stage.tensors):
                return stage
        names = ", ".join(stage.name for stage in self.stages)
        raise InputError(
            f"{of!r} is not a stage", where="schedule", hint=f"the stages are {names}"
        )

    __getattr__ = refusing("TVM", {"stage_map": "s[C] is the stage of C"})

    @property
    def groups(self) -> list[Group]:
        """The groups made so far."""
        return list(self._groups)

    def normalize(self) -> Schedule:
        """The schedule: nothing needs it, since `lower` and `build` find all bounds."""
        return self

    def create_group(
        self,
        outputs: Tensor | Sequence[Tensor],
        inputs: Tensor | Sequence[Tensor],
        include_inputs: bool = False,
    ) -> Group:
        """The stages between `inputs`, which do not belong to it, and `outputs`, which do.

        include_inputs: whether `inputs` belong to it too. `compute_at` of the group places all of
        its stages that have no place yet. Raises ScheduleError where no stage is in between.
        """
        line = _line("create_group", _listed(outputs), _listed(inputs))
        ends = set(_listed(inputs))
        members: dict[Stage, None] = {}
        stack = [self[t] for t in _listed(outputs)]
        while stack:
            stage = stack.pop()
            first = not ends.isdisjoint(stage.tensors)
            if stage in members or (first and not include_inputs):
                continue
            members[stage] = None
            if not first:
                reads = [t for t in stage.op.inputs if t in self]
                stack += [self[t] for t in reads]
        if not members:
            raise ScheduleError(
                "no stage is between these tensors",
                where=str(line),
                hint="name outputs that are computed by way of the inputs",
            )
        made = Group(tuple(s for s in self.stages if s in members))
        self._groups.append(made)
        return made

    def __contains__(self, tensor: object) -> bool:
        return any(tensor in stage.tensors for stage in self.stages)

    # -- stages made of stages

    def cache_read(
        self,
        tensor: Tensor,
        scope: Scope,
        readers: Sequence[Tensor | Op] | Tensor | None = None,
        name: str | None = None,
    ) -> Tensor:
        """A copy of `tensor` in another memory, which `readers` (default: all) read instead."""
        given = [readers] if isinstance(readers, Tensor) else readers
        line = _line("cache_read", tensor, scope, readers)
        if not isinstance(tensor, Tensor):
            raise ScheduleError(
                f"{tensor!r} is not a tensor",
                where=str(line),
                hint="give the tensor itself",
            )
        memory = scope_of(scope, line)
        stages = [s for s in self.stages if dataflow.reads(s.op, tensor)]
        if given is not None:
            stages = [self[r] for r in given]
        if not stages:
            raise ScheduleError(
                f"nothing reads {tensor.name}",
                where=str(line),
                hint="read it in a compute, or cache what is read",
            )
        label = name or (assigned() or [f"{tensor.name}.{scope}"])[0]
        made, op = dataflow.cached(tensor, label, memory)
        for stage in stages:
            found = _rewritable(stage, line)
            if not dataflow.reads(found, tensor):
                raise ScheduleError(
                    f"{stage.name} does not read {tensor.name}",
                    where=str(line),
                    hint="name stages that do",
                )
            stage.op = dataflow.reading(found, tensor, made)
        self.stages.insert(min(map(self.stages.index, stages)), Stage(op, (made,)))
        self._caches.append(Cache("cache_read", tensor, made))
        return made

    def cache_write(
        self, tensor: Tensor, scope: Scope, name: str | None = None
    ) -> Tensor | tuple[Tensor, ...]:
        """`tensor` computed in another memory, and then copied; the new tensor.

        What was recorded about the loops before stays with the computation, so is the new stage's.
        Where nothing was, the axes of `tensor.op` are the copy's, as in TVM.
        """
        line = _line("cache_write", tensor, scope)
        memory = scope_of(scope, line)
        stage, op = self._compute(tensor, line)
        found = [name] if name else assigned()
        if len(found) == len(op.outputs):
            names = found
        else:
            names = [f"{t.name}.{scope}" for t in op.outputs]
        inner, made, outer = dataflow.split_output(
            op, names, memory, keep=stage.touched
        )
        self.stages.insert(self.stages.index(stage), stage.moved(inner, made))
        stage.restart(outer)
        self._caches += [
            Cache("cache_write", t, m) for t, m in zip(op.outputs, made, strict=True)
        ]
        if len(made) == 1:
            return made[0]
        return made

    def rfactor(
        self, tensor: Tensor, loop: Handle, name: str | None = None
    ) -> Tensor | tuple[Tensor, ...]:
        """Compute partial results of a reduction, one per iteration of one of its loops, as a new
        stage.

        The new stage's axis 0 is that loop; `tensor` then only reduces over it.
        """
        line = _line("rfactor", tensor, loop)
        stage, op = self._compute(tensor, line)
        found = [name] if name else assigned() or [f"{tensor.name}.rf"]
        partial, parts, total = dataflow.factored(stage, op, loop, found[0], line)
        self.stages.insert(self.stages.index(stage), Stage(partial, parts))
        stage.reduced_anew(total)
        self._plain, self._caches = self._ops(), []
        if len(parts) == 1:
            return parts[0]
        return parts

    def _compute(self, tensor: Tensor, line: Line) -> tuple[Stage, Compute]:
        stage = self[tensor]
        return stage, _rewritable(stage, line)

    # -- the program

    @property
    def sizes(self) -> list[Any]:
        """The sizes made by `var` that the program depends on."""
        return sizes_of_ops(
            [*(t.op for t in self.inputs), *(s.op for s in self.stages)]
        )

    def program(
        self,
        params: Sequence[Tensor] | None = None,
        sizes: Sizes | None = None,
        name: str | None = None,
    ) -> PlainProgram:
        """The plain nests of the stages; params: the caller's tensors, inputs first."""
        return self._program(self._ops(), params, sizes, name)

    def _ops(self) -> list[Op]:
        return [s.op for s in self.stages if s.within is None]

    def _program(
        self,
        ops: Sequence[Op],
        params: Sequence[Tensor] | None,
        sizes: Sizes | None,
        name: str | None,
    ) -> PlainProgram:
        if params is None:
            given = (*self.inputs, *self.outputs)
        else:
            given = tuple(params)
        outputs = [t for t in given if not isinstance(t.op, Placeholder)]
        label = name or "_".join(t.name for t in outputs)
        return lower(identifier(label, "main_"), ops, given, outputs, sizes)

    def replay(
        self,
        params: Sequence[Tensor] | None = None,
        sizes: Sizes | None = None,
        name: str | None = None,
    ) -> Replayed:
        """The program with everything applied that is recorded so far."""
        for stage in self.stages:
            if isinstance(stage.op, HostCall):
                raise InputError(
                    f"{stage.name} is made by a call, so the program is not one kernel",
                    where="lower",
                    hint="build makes a function of all; s.parts() has the kernels",
                )
        with exclusive():
            program = self._program(self._ops(), params, sizes, name)
            if self._caches:
                plain = self._program(self._plain, params, sizes, name)
                steps = begin(program, plain.kernel, self._caches)
            else:
                steps = Primitives(program.kernel)
            return replay(self.stages, program, steps)

    @property
    def schedule(self) -> Primitives:
        """The primitives so far; `.original` is the plain program that they begin with."""
        return self.replay().schedule

    @property
    def trace(self) -> Trace:
        """The steps of `schedule`: they make `kernel` of its `.original`."""
        return self.schedule.trace

    @property
    def kernel(self) -> Kernel:
        """The program so far."""
        return self.schedule.kernel

    def parts(self) -> list[KernelStages | HostCall]:
        """The kernels, and the calls of functions between them."""
        return parts(self.stages, self.outputs)

    def __str__(self) -> str:
        if has_calls(self.stages):
            return show(self.parts())
        return repr(self.kernel)

    def __repr__(self) -> str:
        return str(self)


def create_schedule(ops: Any) -> Schedule:
    """The schedule of some tensors (or their `.op`s) without any records: the plain nests.

    Raises InputError for a tensor without a `compute`, and for accesses outside a tensor.
    """
    given = ops if isinstance(ops, list | tuple) else (ops,)
    outputs: dict[Tensor, None] = {}
    for o in given:
        if not isinstance(o, Tensor) and not hasattr(o, "outputs"):
            raise InputError(
                f"{o!r} is not a tensor",
                where="create_schedule",
                hint="give C.op or C, or a list of them",
            )
        outputs |= dict.fromkeys((o,) if isinstance(o, Tensor) else o.outputs)
    if not outputs:
        raise InputError(
            "there is nothing to compute",
            where="create_schedule",
            hint="as create_schedule(C.op)",
        )
    for t in outputs:
        if isinstance(t.op, Placeholder):
            raise InputError(
                f"{t.name} is given by the caller",
                where="create_schedule",
                hint="schedule what is computed: the tensor of a compute",
            )
    for op in order(outputs):
        if isinstance(op, Compute):
            check_sizes(op)
    return Schedule(list(outputs))


def _listed(tensors: Tensor | Sequence[Tensor]) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _rewritable(stage: Stage, line: Line) -> Compute:
    """The operation of a stage that may be given another one."""
    if stage.within is not None or not isinstance(stage.op, Compute):
        what = "is made by statements or calls, which"
        if stage.within is not None or isinstance(stage.op, Recurrence):
            what = "belongs to a recurrence, whose operations"
        raise ScheduleError(
            f"{stage.name} {what} must not change",
            where=str(line),
            hint="compute its operands before, in a separate stage",
        )
    return stage.op


def _line(verb: str, *args: Any) -> Line:
    parts = []
    for a in args:
        if isinstance(a, list | tuple):
            parts.append(f"[{', '.join(str(getattr(x, 'name', x)) for x in a)}]")
        elif a is not None:
            parts.append(repr(a) if isinstance(a, str) else str(getattr(a, "name", a)))
    return Line(f"s.{verb}({', '.join(parts)})", caller_line())
