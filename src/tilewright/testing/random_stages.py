"""Random lists of Stages through every pass behind lowering, compared after each, then run.

A random model is lowered; after every pass the list is verified and interpreted, and its results
are compared with NumPy's. The target's opinions, which decide what passes do, are often replaced by
a coin. Then every kernel is compared with its Stage, as the plain nest and as native code in
guarded memory, for a machine that goes with the seed, and the whole model is run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np

from tilewright.base.dtypes import DType
from tilewright.base.errors import TilewrightError
from tilewright.compute import interp as computations
from tilewright.compute.nodes import Computation
from tilewright.driver.assemble import Assembler, Built
from tilewright.driver.compiled import CompiledStage
from tilewright.driver.kernels import Interface, KernelCompiler, interface
from tilewright.driver.stage_passes import stage_passes, verify_lowered
from tilewright.driver.verify_interface import verify_interface
from tilewright.expr.nodes import Buffer
from tilewright.frontends.onnx import reference
from tilewright.graph import interp
from tilewright.graph.lower import Lowered, live_buffers, lower
from tilewright.graph.passes import depth, halo, place, winograd
from tilewright.graph.stages import HostCall, Stage
from tilewright.loops import interp as loops
from tilewright.runtime.executable import Executable
from tilewright.targets.base import Target
from tilewright.testing import guarded
from tilewright.testing.graphs import Case
from tilewright.testing.machines import MACHINES, Description
from tilewright.testing.stage_models import random_model

Array = np.ndarray[Any, Any]
Memory = dict[Buffer, Any]
TOLERANCE = 2e-4  # of the largest value of a tensor
POISON = 12345.0  # what memory holds that nobody has written

# Usual machines, and one whose caches hold nothing: there everything is cut up.
TINY = Description("x86-64-v3", 2 << 10, 8 << 10, 32 << 10, 64)
DESCRIPTIONS = (*MACHINES.values(), TINY)

# What keeps passes from what would not pay for small tensors.
LIMITS: tuple[tuple[ModuleType, str, float], ...] = (
    (depth, "DEPTH", 2),
    (halo, "GROWTH", 100.0),
    (place, "RUN", 1),
    (winograd, "MOVED", 0),
)


@dataclass(frozen=True, slots=True)
class StageFailure:
    """What went wrong. where: the first pass, kernel or run that shows it."""

    seed: int
    where: str
    message: str

    def __str__(self) -> str:
        return f"seed {self.seed}, {self.where}: {self.message}"


class _Wrong(Exception):
    """Carries the place and the message out."""


def run(seed: int, *, native: bool = True) -> StageFailure | None:
    """Model number `seed` through all passes, as kernels, and whole; the first fault, or None.

    native: compile and run, too. A fault of the whole model that kills the process is not caught.
    """
    return run_case(seed, random_model(seed), native=native)


def run_case(seed: int, case: Case, *, native: bool = True) -> StageFailure | None:
    """As `run`, for this model, decided as `seed` says."""
    try:
        _through(random.Random(seed), case, native)
    except _Wrong as wrong:
        where, message = wrong.args
        return StageFailure(seed, where, message)
    return None


def _through(rng: random.Random, case: Case, native: bool) -> None:
    truth = _truth(case)
    lowered = _attempt("lower", lambda: lower(case.graph, channel_last=rng.random() < 0.8))
    target = _machine(rng)
    whim: Any = _Whim(target, rng if rng.random() < 0.7 else None)
    checked: set[Computation] = set()
    _check(lowered, "lower", case, truth, checked)
    math = rng.choice(("strict", "strict", "exact", "fast"))
    with ExitStack() as stack:
        if whim.coin is not None:
            for module, name, value in LIMITS:
                stack.enter_context(patch.object(module, name, value))
        for name, step in stage_passes(lowered, whim, math).items():
            before = lowered.steps
            lowered.steps = _attempt(name, partial(step, before))
            if lowered.steps != before:
                _check(lowered, name, case, truth, checked)
    _Kernels(lowered, case, target, rng, native).check(truth)


def _attempt(where: str, what: Callable[[], Any]) -> Any:
    """The result; an error of ours is a fault of that place."""
    try:
        return what()
    except (TilewrightError, AssertionError, ValueError, KeyError, IndexError) as error:
        raise _Wrong(where, f"{type(error).__name__}: {error}") from error


def _truth(case: Case) -> list[Array]:
    found = interp.evaluate(
        case.graph, case.inputs, float64=True, fallback=reference.OnnxFallback()
    )
    return [np.asarray(found[v.name]) for v in case.graph.outputs]


def _machine(rng: random.Random) -> Any:
    """A target that this processor can run."""
    while True:
        level = rng.choice((0, 0, 0, 2))  # what LLVM does is not on trial, and takes time
        target = rng.choice(DESCRIPTIONS).target(exact=rng.random() < 0.2, level=level)
        if target.runs_here:
            return target


class _Whim:
    """A target whose opinions are tossed, where there is a coin: every form is right, if slow."""

    def __init__(self, target: Target, coin: random.Random | None) -> None:
        self.target = target
        self.coin = coin

    def is_profitable(self, group: Sequence[Computation]) -> bool:
        return self.target.is_profitable(group) if self.coin is None else self.coin.random() < 0.6

    def estimated_cost(
        self, group: Sequence[Computation], constants: Collection[Buffer] = ()
    ) -> float | None:
        if self.coin is None:
            return self.target.estimated_cost(group, constants)
        return None if self.coin.random() < 0.2 else self.coin.random()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)


def _check(
    lowered: Lowered, name: str, case: Case, truth: Sequence[Array], checked: set[Computation]
) -> None:
    """Verify and interpret the list after a pass."""
    _attempt(f"after {name}", lambda: verify_lowered(lowered, name, checked))
    memory = _memory(lowered, case)
    for step in lowered.steps:
        _attempt(f"after {name}", partial(_interpret, step, lowered, memory))
    for n, (v, want) in enumerate(zip(lowered.graph.outputs, truth, strict=True)):
        line = difference(memory[lowered.buffers[v]], want)
        if line:
            raise _Wrong(f"after {name}", f"output {n}: {line}")


def _memory(lowered: Lowered, case: Case) -> Memory:
    """Every buffer of the list: inputs, constants, and poison."""
    memory: Memory = {b: np.asarray(a).reshape(b.shape) for b, a in lowered.data.items()}
    for v in lowered.graph.inputs:
        if v in lowered.buffers:
            b = lowered.buffers[v]
            memory[b] = np.ascontiguousarray(case.inputs[v.name], b.dtype.numpy).reshape(b.shape)
    used = [b for step in lowered.steps for b in _buffers(step, lowered)]
    results = [lowered.buffers[v] for v in lowered.graph.outputs if v in lowered.buffers]
    for b in (*used, *results):
        if b not in memory:
            memory[b] = _poisoned(b)
    return memory


def _poisoned(b: Buffer) -> Array:
    return np.full(b.shape, _poison(b.dtype), b.dtype.numpy)


def _poison(dtype: DType) -> Any:
    if dtype.is_float:
        return POISON
    return True if dtype.is_bool else min(int(POISON), int(dtype.max))


def _buffers(step: Stage | HostCall, lowered: Lowered) -> Sequence[Buffer]:
    if isinstance(step, Stage):
        return (*step.reads, *step.writes)
    values = (*step.operation.reads, *step.operation.writes)
    return [lowered.buffers[v] for v in values if v in lowered.buffers]


def _interpret(step: Stage | HostCall, lowered: Lowered, memory: Memory) -> None:
    """What a step does to memory."""
    if isinstance(step, Stage):
        if step.kernel is None:
            computations.run(step.computations, memory)
        else:
            loops.run(step.kernel, memory)
        return
    op = step.operation
    values = {
        v: memory[lowered.buffers[v]].reshape(v.extents) if v in lowered.buffers else a
        for v, a in [*((v, None) for v in op.reads), *lowered.graph.constants.items()]
    }
    results = interp.run(op, values, reference.OnnxFallback())
    for v, array in zip(op.outputs, results, strict=False):
        if v is not None and v in lowered.buffers:
            memory[lowered.buffers[v]][...] = np.asarray(array)


def difference(got: Array, want: Array) -> str:
    """How a tensor differs from what is expected; empty if it does not."""
    a, b = np.asarray(got).astype(np.float64), np.asarray(want).astype(np.float64)
    if a.size != b.size:
        return f"{a.size} elements, expected {b.size}"
    a, b = a.reshape(-1), b.reshape(-1)
    finite = np.isfinite(b)
    scale = float(np.abs(b[finite]).max(initial=1.0))
    with np.errstate(invalid="ignore"):
        wrong = ~((np.abs(a - b) <= TOLERANCE * scale) | (a == b) | (np.isnan(a) & np.isnan(b)))
    if not wrong.any():
        return ""
    n = int(np.flatnonzero(wrong)[0])
    return f"{int(wrong.sum())} of {a.size} wrong, first element {n}: {a[n]}, expected {b[n]}"


class _Kernels:
    """The kernels of a list, one after another on the interpreter's memory, then all together."""

    def __init__(
        self, lowered: Lowered, case: Case, target: Any, rng: random.Random, native: bool
    ) -> None:
        self.lowered, self.case, self.target, self.rng = lowered, case, target, rng
        self.native = native
        self.compiler = KernelCompiler(target, target, None)
        self.live = live_buffers(lowered)
        self.memory = _memory(lowered, case)

    def check(self, truth: Sequence[Array]) -> None:
        """Every kernel, then the model."""
        steps: list[Built | HostCall] = []
        for step in self.lowered.steps:
            if isinstance(step, HostCall):
                _interpret(step, self.lowered, self.memory)
                steps.append(step)
                continue
            built = self._kernel(step)
            if built is not None:
                steps.append(built)
        if self.native:
            self._whole(steps, truth)

    def _kernel(self, stage: Stage) -> Built | None:
        where = f"kernel {stage.name}"
        face = _attempt(where, lambda: interface(stage, self.live[stage]))
        _attempt(where, lambda: verify_interface(stage, face))
        before = {b: self.memory[b].copy() for b in face.values}
        _interpret(stage, self.lowered, self.memory)
        plain = {p: before[v].reshape(p.shape).copy() for v, p in _pairs(face)}
        if not any(face.offsets):
            _attempt(f"{where}, plain", lambda: loops.run(face.plain(), plain))
            self._compare(f"{where}, plain", face, {v: plain[p] for v, p in _pairs(face)})
        if not self.native:
            return None
        code = _attempt(where, lambda: self.compiler.compile(face, self.lowered.data))
        self._native(where, face, code, before)
        return Built(stage, face, code)

    def _native(
        self, where: str, face: Interface, code: CompiledStage, before: Mapping[Buffer, Array]
    ) -> None:
        fixed = [b in self.lowered.data for b in face.values]
        ways: list[tuple[int, int | None]] = [(self.rng.choice((1, 1, 2, 3)), None)]
        ways += [(1, k) for k in code.in_place[:1] if not any(face.offsets) and not fixed[k]]
        for threads, shared in ways:
            after, wrong = guarded.call(face, code, before, fixed, threads=threads, shared=shared)
            place = f"{where}, {threads} threads" + (", in place" if shared is not None else "")
            if wrong:
                raise _Wrong(place, "; ".join(wrong))
            self._compare(place, face, after)

    def _compare(self, where: str, face: Interface, after: Mapping[Buffer, Array]) -> None:
        for b in face.values[len(face.values) - len(face.outputs) :]:
            line = difference(after[b], self.memory[b])
            if line:
                raise _Wrong(where, f"{b!r}: {line}")

    def _whole(self, steps: Sequence[Built | HostCall], truth: Sequence[Array]) -> None:
        made = Assembler(self.lowered, steps, self.target, _describe)
        model = _attempt("assemble", lambda: made.model({}))
        _attempt("memory", lambda: made.verify(model.arena_bytes))
        arrays = [self.case.inputs[v.name] for v in self.lowered.graph.inputs]
        exe = _attempt("load", lambda: Executable(model, threads=self.rng.choice((1, 2))))
        for run in ("first", "second"):
            found = _attempt(f"the {run} run", lambda: exe(*arrays))
            outputs = found if isinstance(found, tuple | list) else [found]
            for n, (got, want) in enumerate(zip(outputs, truth, strict=True)):
                line = difference(got, want)
                if line:
                    raise _Wrong(f"the {run} run", f"output {n}: {line}")


def _pairs(face: Interface) -> Sequence[tuple[Buffer, Buffer]]:
    return list(zip(face.values, face.params, strict=True))


def _describe(op: Any) -> tuple[str, Mapping[str, Any], Sequence[Any]]:
    return reference.PROVIDER, reference.serialise(op), reference.captured(op)
