"""Random plans through every pass after lowering, compared after each, then run.

A random model is lowered; after every pass the list is verified and interpreted, and its results
are compared with NumPy's. The target's decisions, which steer the passes, are often replaced by
random ones. Then every kernel is compared with its group, as the plain nest and as native code in
guarded memory, for a machine chosen by the seed, and the whole model is run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import TilewrightError
from tilewright.compute.nodes import Computation
from tilewright.driver.assemble import Assembler
from tilewright.driver.built import BuiltGroup
from tilewright.driver.compiled import CompiledGroup
from tilewright.driver.kernels import KernelCompiler
from tilewright.driver.planning import place_buffers, questions
from tilewright.expr.nodes import Buffer
from tilewright.frontends.onnx import reference
from tilewright.graph import interp
from tilewright.loops import interp as loops
from tilewright.plan.interp import PlanState, start
from tilewright.plan.lower import lower
from tilewright.plan.nodes import FusionGroup, HostFallback, Plan
from tilewright.plan.normalize import KernelSignature, kernel_signature
from tilewright.plan.pipeline import plan_pipeline
from tilewright.plan.questions import PlanCosts
from tilewright.plan.verify import verify
from tilewright.plan.verify_memory import verify_arena
from tilewright.plan.verify_signature import verify_signature
from tilewright.runtime.executable import Executable
from tilewright.targets.base import Target
from tilewright.testing import guarded
from tilewright.testing.graphs import Case
from tilewright.testing.machines import MACHINES, Description
from tilewright.testing.stage_models import random_model

Array = np.ndarray[Any, Any]
TOLERANCE = 2e-4  # of the largest value of a tensor

# Usual machines, and one whose caches hold nothing: there everything is cut up.
TINY = Description(
    mcpu="x86-64-v3",
    l1=2 << 10,
    l2=8 << 10,
    l3=32 << 10,
    cores=64,
)
DESCRIPTIONS = (*MACHINES.values(), TINY)

# What keeps passes from what would not pay for small tensors.
WHIMS = PlanCosts(
    repeated=100,
    side_by_side=1,
    moved_ns=0.0,
    near=0,
    group_ns=0.0,
    deep_sum=2,
    window_gain=2.0,
    halo=100.0,
    key_block=16,
    few_keys=4,
    results=100,
    row_results=100,
    long_row=1 << 20,
    constant_byte_ns=0.0,
)


@dataclass(frozen=True, slots=True)
class StageFailure:
    """A failure. where: the first pass, kernel or run that shows it."""

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
    return run_case(seed, case_of(seed), native=native)


def case_of(seed: int) -> Case:
    """Model number `seed`: a larger one if its memory is limited, so that tensors are live
    longer."""
    return random_model(seed, None if _asked(seed)["limit"] is None else 20)


def run_case(
    seed: int,
    case: Case,
    *,
    native: bool = True,
) -> StageFailure | None:
    """As `run`, for this model, with the decisions of `seed`."""
    try:
        _through(seed, case, native)
    except _Wrong as wrong:
        where, message = wrong.args
        return StageFailure(seed, where, message)
    return None


def _through(
    seed: int,
    case: Case,
    native: bool,
) -> None:
    rng = random.Random(seed)
    truth = _truth(case)
    few = 4 * (seed % 2)
    plan: Plan = _attempt(
        "lower", lambda: lower(case.graph, channel_last=rng.random() < 0.8, few=few)
    )
    target = _machine(rng)
    whim: Any = _Whim(target, rng if rng.random() < 0.7 else None)
    checked: set[Computation] = set()
    _check(plan, "lower", case, truth, checked)
    math = rng.choice(("default", "default", "exact", "fast"))
    for step in plan_pipeline(questions(whim), math, **_asked(seed)).passes:
        before = plan
        plan = _attempt(str(step), partial(step.run, before))
        if plan is not before:
            _check(plan, step.name, case, truth, checked)
    _Kernels(plan, case, target, rng, native).check(truth)


def _asked(seed: int) -> dict[str, Any]:
    """Options of a plan: for some seeds the least possible memory, or no fusion."""
    rng = random.Random(f"asked {seed}")
    if rng.random() < 0.15:
        limit = 0
    else:
        limit = None
    return {"limit": limit, "fusion": rng.random() < 0.85}


def _attempt(where: str, what: Callable[[], Any]) -> Any:
    """The result; an error of ours is a fault of that place."""
    try:
        return what()
    except (TilewrightError, AssertionError, ValueError, KeyError, IndexError) as error:
        raise _Wrong(where, f"{type(error).__name__}: {error}") from error


def _truth(case: Case) -> list[Array]:
    fallback = reference.OnnxFallback()
    found = interp.evaluate(case.graph, case.inputs, float64=True, fallback=fallback)
    return [np.asarray(found[v.name]) for v in case.graph.outputs]


def _machine(rng: random.Random) -> Any:
    """A target that this processor can run."""
    while True:
        level = rng.choice(
            (0, 0, 0, 2)
        )  # what LLVM does is not on trial, and takes time
        target = rng.choice(DESCRIPTIONS).target(exact=rng.random() < 0.2, level=level)
        if target.runs_here:
            return target


class _Whim:
    """A target with random decisions, if there is a coin: every form is correct, if slow."""

    def __init__(self, target: Target, coin: random.Random | None) -> None:
        self.target = target
        self.coin = coin

    @property
    def plan_costs(self) -> PlanCosts:
        if self.coin is None:
            return self.target.plan_costs
        return WHIMS

    def is_profitable(self, group: Sequence[Computation]) -> bool:
        if self.coin is None:
            return self.target.is_profitable(group)
        return self.coin.random() < 0.6

    def estimated_cost(
        self, group: Sequence[Computation], constants: Collection[Buffer] = ()
    ) -> float | None:
        if self.coin is None:
            return self.target.estimated_cost(group, constants)
        if self.coin.random() < 0.2:
            return None
        return self.coin.random()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)


def _check(
    plan: Plan,
    name: str,
    case: Case,
    truth: Sequence[Array],
    checked: set[Computation],
) -> None:
    """Verify and interpret the list after a pass."""
    _attempt(f"after {name}", lambda: verify(plan, checked))
    state = _start(plan, case)
    for step in plan.steps:
        what = partial(state.step, step)
        _attempt(f"after {name}", what)
    for n, (v, want) in enumerate(zip(plan.graph.outputs, truth, strict=True)):
        got = state.value(v)
        line = difference(got, want)
        if line:
            raise _Wrong(f"after {name}", f"output {n}: {line}")


def _start(plan: Plan, case: Case) -> PlanState:
    fallback = reference.OnnxFallback()
    return start(plan, case.inputs, fallback)


def difference(got: Array, want: Array) -> str:
    """How a tensor differs from the expected one; empty if it does not."""
    a = np.asarray(got).astype(np.float64)
    b = np.asarray(want).astype(np.float64)
    if a.size != b.size:
        return f"{a.size} elements, expected {b.size}"
    a = a.reshape(-1)
    b = b.reshape(-1)
    finite = np.isfinite(b)
    scale = float(np.abs(b[finite]).max(initial=1.0))
    with np.errstate(invalid="ignore"):
        wrong = ~(
            (np.abs(a - b) <= TOLERANCE * scale)
            | (a == b)
            | (np.isnan(a) & np.isnan(b))
        )
    if not wrong.any():
        return ""
    n = int(np.flatnonzero(wrong)[0])
    return f"{int(wrong.sum())} of {a.size} wrong, first element {n}: {a[n]}, expected {b[n]}"


class _Kernels:
    """The kernels of a list, one after another on the interpreter's memory, then all together."""

    def __init__(
        self,
        plan: Plan,
        case: Case,
        target: Any,
        rng: random.Random,
        native: bool,
    ) -> None:
        self.plan = plan
        self.case = case
        self.target = target
        self.rng = rng
        self.native = native
        self.compiler = KernelCompiler(target, target, None)
        self.state = _start(plan, case)

    def check(self, truth: Sequence[Array]) -> None:
        """Every kernel, then the model."""
        steps: list[BuiltGroup | HostFallback] = []
        for step in self.plan.steps:
            if isinstance(step, HostFallback):
                self.state.step(step)
                steps.append(step)
                continue
            assert isinstance(step, FusionGroup), "all of it is for the host"
            built = self._kernel(step)
            if built is not None:
                steps.append(built)
        if self.native:
            self._whole(steps, truth)

    def _kernel(self, group: FusionGroup) -> BuiltGroup | None:
        where = f"kernel {group.name}"
        signature = _attempt(
            where, lambda: kernel_signature(group, self.plan.live[group])
        )
        _attempt(where, lambda: verify_signature(group, signature))
        before = {b: self.state.memory[b].copy() for b in signature.values}
        self.state.step(group)
        plain = {p: before[v].reshape(p.shape).copy() for v, p in _pairs(signature)}
        if not any(signature.offsets):
            _attempt(f"{where}, plain", lambda: loops.run(signature.plain(), plain))
            after = {v: plain[p] for v, p in _pairs(signature)}
            self._compare(
                f"{where}, plain",
                signature,
                after,
            )
        if not self.native:
            return None
        code = _attempt(where, lambda: self.compiler.compile(signature, self.plan.data))
        self._native(where, signature, code, before)
        return BuiltGroup(group, signature, code)

    def _native(
        self,
        where: str,
        signature: KernelSignature,
        code: CompiledGroup,
        before: Mapping[Buffer, Array],
    ) -> None:
        fixed = [b in self.plan.data for b in signature.values]
        ways: list[tuple[int, int | None]] = [(self.rng.choice((1, 1, 2, 3)), None)]
        ways += [
            (1, k)
            for k in code.in_place[:1]
            if not any(signature.offsets) and not fixed[k]
        ]
        for threads, shared in ways:
            after, wrong = guarded.call(
                signature, code, before, fixed, threads=threads, shared=shared
            )
            place = f"{where}, {threads} threads" + (
                ", in place" if shared is not None else ""
            )
            if wrong:
                raise _Wrong(place, "; ".join(wrong))
            self._compare(place, signature, after)

    def _compare(
        self,
        where: str,
        signature: KernelSignature,
        after: Mapping[Buffer, Array],
    ) -> None:
        for b in signature.values[len(signature.values) - len(signature.outputs) :]:
            want = self.state.memory[b]
            line = difference(after[b], want)
            if line:
                raise _Wrong(where, f"{b!r}: {line}")

    def _whole(
        self, steps: Sequence[BuiltGroup | HostFallback], truth: Sequence[Array]
    ) -> None:
        placed = _attempt("memory", lambda: place_buffers(self.plan, steps))
        _attempt("memory", lambda: verify_arena(placed))
        made = Assembler(
            plan=placed,
            steps=steps,
            target=self.target,
            host=_describe,
        )
        model = _attempt("assemble", lambda: made.model({}))
        arrays = [self.case.inputs[v.name] for v in self.plan.graph.inputs]
        exe = _attempt(
            "load", lambda: Executable(model, threads=self.rng.choice((1, 2)))
        )
        for run in ("first", "second"):
            found = _attempt(f"the {run} run", lambda: exe(*arrays))
            if isinstance(found, tuple | list):
                outputs = found
            else:
                outputs = [found]
            for n, (got, want) in enumerate(zip(outputs, truth, strict=True)):
                line = difference(got, want)
                if line:
                    raise _Wrong(f"the {run} run", f"output {n}: {line}")


def _pairs(signature: KernelSignature) -> Sequence[tuple[Buffer, Buffer]]:
    return list(zip(signature.values, signature.params, strict=True))


def _describe(op: Any) -> tuple[str, Mapping[str, Any], Sequence[Any]]:
    return reference.PROVIDER, reference.serialize(op), reference.captured(op)
