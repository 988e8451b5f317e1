"""An open plan as a function on arrays: one piece of code for all sizes within its bounds.

Each group is one kernel with every size of the plan, in the plan's order, so that all kernels read
one block of sizes. A segment calls them; it finds every tensor through the table of pointers, so
that offsets may differ between calls. For each set of sizes, shapes and offsets are worked out,
which compiles nothing; the last sets are kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

import numpy as np

from tilewright.base import events, flags
from tilewright.base.errors import ArtifactError, InputError, UnsupportedError
from tilewright.base.names import fresh
from tilewright.base.text import listing
from tilewright.driver.constants import ConstantPool
from tilewright.driver.once import Once
from tilewright.expr.nodes import Buffer, Var
from tilewright.graph.nodes import Value
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel, for_sizes
from tilewright.loops.sizes import at as extent_at
from tilewright.loops.sizes import statement
from tilewright.loops.verify import verify as verify_kernel
from tilewright.plan.arena import Lifetime, assign_offsets
from tilewright.plan.lifetimes import lifetimes
from tilewright.plan.nodes import HOST, FusionGroup, Plan
from tilewright.plan.open_extents import Resized, input_sizes
from tilewright.plan.passes.memory import in_arena
from tilewright.plan.verify import verify
from tilewright.runtime import abi
from tilewright.runtime.executable import Executable
from tilewright.runtime.model import (
    CompiledModel,
    KernelRecord,
    NativeStep,
    Slot,
    Tensor,
)
from tilewright.schedule.full_tiles import full_tiles
from tilewright.targets.base import Argument, Artifact, Call, Target

KEPT: Final = 64  # sets of sizes, least recently used out
_SYMBOL: Final = "segment_0"


@dataclass(frozen=True, eq=False, slots=True)
class _Code:
    """What is compiled once. operands: tensors in the order of the segment's table."""

    kernels: tuple[Artifact, ...]
    segment: bytes
    operands: tuple[Buffer, ...]
    constants: Any
    places: Mapping[Buffer, int]


class OpenExecutable:
    """A plan with open extents as a function on arrays, whose shapes say what the sizes are.

    Raises VerifyError for a broken invariant, and UnsupportedError naming the step or tensor that
    has no code for all sizes: a step that is no kernel, a size that is a count, a result that is
    an input or a constant.
    """

    def __init__(
        self,
        plan: Plan,
        target: Target,
        threads: int | None = None,
        sanitize: bool = False,
    ) -> None:
        verify(plan)
        check_supported(plan)
        self.plan: Final = plan
        self._target = target
        self._threads = threads
        self._lives = lifetimes(plan)
        with events.span("kernels", total=len(plan.steps)):
            self._code = _compiled(plan, target, sanitize)
        self._kept: Once[Executable] = Once(lambda kept: max(0, len(kept) - KEPT))
        least = {e.size: e.least for e in plan.open}
        self._first = Executable(self._model(least), threads=threads)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Name, dtype and shape of each input; None for an extent known only at a call."""
        return tuple(map(self._tensor, self.plan.graph.inputs))

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Name, dtype and shape of each output."""
        return tuple(map(self._tensor, self.plan.graph.outputs))

    def __call__(self, *args: Any, out: Any = None) -> Any:
        """As `Executable.__call__`, with inputs in order; compiles nothing.

        Raises InputError (TW-SIZE) naming a size outside of its bounds.
        """
        names = [v.name for v in self.plan.graph.inputs]
        if len(args) != len(names):
            raise InputError(
                f"{len(args)} inputs given, {len(names)} expected: {listing(names)}",
                where=self.plan.graph.name,
            )
        shapes = dict(zip(names, map(np.shape, args), strict=True))
        return self.at(input_sizes(self.plan, shapes))(*args, out=out)

    def at(self, sizes: Mapping[Var, int]) -> Executable:
        """What runs at these sizes, which are within their bounds."""
        key = tuple(sizes[e.size] for e in self.plan.open)
        return self._kept.get(
            key,
            lambda: Executable(
                self._model(sizes), threads=self._threads, code=self._first
            ),
        )

    def release(self) -> None:
        """Give back the memory kept between calls."""
        self._kept.clear()
        self._first.release()

    def save(self, path: str | os.PathLike[str]) -> NoReturn:
        """Refused: an artifact has fixed shapes. Raises ArtifactError."""
        raise ArtifactError(
            f"the sizes of {self.plan.graph.name} are not known, so {os.fspath(path)!r} "
            "cannot hold it",
            hint="save what at(sizes) gives",
        )

    def _tensor(self, v: Value) -> Tensor:
        b = self.plan.buffers[v]
        shape = tuple(n if isinstance(n, int) else None for n in b.extents)
        return Tensor(v.name, b.dtype.name, shape)

    def _model(self, sizes: Mapping[Var, int]) -> CompiledModel:
        """The model at these sizes: shapes, offsets and bytes of workspace; the code is given."""
        plan, code = self.plan, self._code
        resized = Resized(dict(sizes), {})
        held = [b for b in self._lives if in_arena(plan, b)]
        lives = [Lifetime(_bytes(resized.buffer(b)), *self._lives[b]) for b in held]
        arena = assign_offsets(lives)
        places = dict(zip(held, arena.offsets, strict=True))
        scratch = Slot("arena", arena.total, Tensor("workspace", "uint8", (0,)))
        slots = [self._slot(b, resized.buffer(b), places) for b in code.operands]
        inputs, outputs = (
            tuple(_as_tensor(v, resized.buffer(plan.buffers[v])) for v in ends)
            for ends in (plan.graph.inputs, plan.graph.outputs)
        )
        made = code.kernels
        workspace = max((extent_at(a.workspace, sizes) for a in made), default=0)
        per_thread = [extent_at(a.thread_workspace, sizes) for a in made]
        step = NativeStep(_SYMBOL, (scratch, *slots), tuple(self._records(resized)))
        return CompiledModel(
            inputs=inputs,
            outputs=outputs,
            steps=(step,),
            objects=(*(a.code for a in made), code.segment),
            support=tuple(self._target.support()),
            constants=code.constants,
            arena_bytes=arena.total,
            workspace=-(-workspace // abi.ALIGNMENT) * abi.ALIGNMENT,
            thread_workspace=max(per_thread, default=0),
            sizes=tuple(sizes[e.size] for e in plan.open),
            requirements=self._target.requirements,
            meta={"name": plan.graph.name, "target": self._target.name},
        )

    def _slot(self, b: Buffer, here: Buffer, places: Mapping[Buffer, int]) -> Slot:
        tensor = Tensor(b.name, b.dtype.name, here.shape)
        if b in self._code.places:
            return Slot("constant", self._code.places[b], tensor)
        if b in places:
            return Slot("arena", places[b], tensor)
        graph = self.plan.graph
        for n, v in enumerate(graph.inputs):
            if self.plan.buffers[v] is b:
                return Slot("input", n, _as_tensor(v, here))
        for n, v in enumerate(graph.outputs):
            if self.plan.buffers[v] is b:
                return Slot("output", n, _as_tensor(v, here))
        raise AssertionError(f"{b!r} is nowhere")

    def _records(self, resized: Resized) -> Iterator[KernelRecord]:
        pairs = zip(self.plan.groups, self._code.kernels, strict=True)
        for n, (group, made) in enumerate(pairs):
            moved = sum(_bytes(resized.buffer(b)) for b in self.plan.touched(group))
            yield KernelRecord(
                n, group.name, group.sources, group.flops, moved, made.symbol
            )


def check_supported(plan: Plan) -> None:
    """Raise UnsupportedError for the first thing that has no code for all sizes."""
    for step in plan.steps:
        if not isinstance(step, FusionGroup) or step.device != HOST:
            raise _refused(f"{step.name} is no kernel of the host", plan)
    for e in plan.open:
        if isinstance(e.source, Buffer):
            raise _refused(f"{e.size.name} is a count, which a step makes", plan)
    written = [b for step in plan.steps for b in step.writes]
    results = plan.results
    for v, b in zip(plan.graph.outputs, results, strict=True):
        if b not in written or results.count(b) > 1:
            raise _refused(f"the result {v.name!r} is also another tensor", plan)


def _refused(why: str, plan: Plan) -> UnsupportedError:
    return UnsupportedError(
        f"{why}: there is no code for all sizes",
        where=f"plan {plan.graph.name}",
        hint="give the sizes values: plan.open_extents.at",
    )


def _compiled(plan: Plan, target: Target, sanitize: bool) -> _Code:
    pool = ConstantPool()
    places = {b: pool.place_array(b, array) for b, array in plan.data.items()}
    operands = tuple(dict.fromkeys(b for s in plan.steps for b in plan.touched(s)))
    slot = {b: abi.TABLE_FIRST_VALUE + 1 + n for n, b in enumerate(operands)}
    scratch = Argument(abi.TABLE_FIRST_VALUE)
    made: list[Artifact] = []
    calls: list[Call] = []
    for n, group in enumerate(plan.groups):
        kernel = kernel_of(plan, group)
        artifact = _emitted(kernel, group, target, f"{kernel.name}_{n}", sanitize)
        arguments = tuple(Argument(slot[b]) for b in kernel.params)
        calls.append(Call(artifact.symbol, arguments, scratch, n))
        made.append(artifact)
    segment = target.segment(_SYMBOL, calls)
    return _Code(tuple(made), segment, operands, pool.block(), places)


def kernel_of(plan: Plan, group: FusionGroup) -> Kernel:
    """The group before any schedule, with all sizes of the plan in their order."""
    if group.kernel is None:
        params = plan.touched(group)
        outputs = params[len(group.reads) :]
        kernel = lower(_word(group.name), unique(group).computations, params, outputs)
    else:
        kernel = group.kernel
    return replace(
        kernel, body=for_sizes((e.size for e in plan.open), statement(kernel))
    )


def unique(group: FusionGroup) -> FusionGroup:
    """The group with a name for each Computation, which the names of loops begin with."""
    taken: set[str] = set()
    named = (replace(c, name=fresh(taken, c.name)) for c in group.computations)
    return replace(group, computations=tuple(named))


def _emitted(
    kernel: Kernel, group: FusionGroup, target: Target, symbol: str, sanitize: bool
) -> Artifact:
    verify_kernel(kernel)
    computations = unique(group).computations
    scheduled = target.default_schedule(kernel, computations, ()).kernel
    parted = full_tiles(scheduled)
    if flags.DEBUG.get():
        verify_kernel(parted)
    return target.emit(parted, symbol, {} if sanitize else None)


def _as_tensor(v: Value, b: Buffer) -> Tensor:
    return Tensor(v.name, b.dtype.name, b.shape)


def _bytes(b: Buffer) -> int:
    return b.size * b.dtype.itemsize


def _word(name: str) -> str:
    return "k_" + "".join(c if c.isalnum() else "_" for c in name)[:48]
