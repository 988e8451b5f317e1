"""Kernels as they are scheduled for machines that are described, each validated once here.

A kernel's code is made for the machine itself where this processor has its instructions, else for
this processor from the same schedule. A product of tiles (AMX) that is missing here is simulated,
and a kernel of other missing instructions is interpreted loop by loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.targets.cpu import tiles
from tilewright.compute.canonical import canonical, canonical_tree
from tilewright.compute.nodes import Computation
from tilewright.driver.compilation import optimize
from tilewright.driver.kernels import KernelCompiler
from tilewright.driver.options import Options
from tilewright.driver.planning import make_plan
from tilewright.driver.validate import kind_of, validate
from tilewright.expr.nodes import Buffer
from tilewright.graph.nodes import Graph
from tilewright.ir.node import postorder
from tilewright.loops.interp import run as interpret
from tilewright.loops.intrinsic import intrinsic
from tilewright.loops.nodes import Kernel, Unit
from tilewright.plan.nodes import Plan
from tilewright.plan.normalize import KernelSignature, kernel_signature
from tilewright.schedule import Schedule
from tilewright.targets.base import Artifact, Target
from tilewright.targets.registry import target

HERE: Any = target("cpu")
EFFORT = 100_000  # expression nodes that the values of one kernel may take


@dataclass(frozen=True)
class Decided:
    """Decides as one target does and makes code as another."""

    decides: Target
    makes: Any
    made: dict[tuple[int, ...], Schedule] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.makes, name)

    def default_schedule(
        self,
        kernel: Kernel,
        computations: Sequence[Computation],
        constants: Collection[Buffer],
    ) -> Schedule:
        key = tuple(map(id, (*computations, *kernel.params)))
        if key not in self.made:
            found = self.decides.default_schedule(kernel, computations, constants)
            self.made.clear()
            self.made[key] = found
        return self.made[key]

    def emit(self, kernel: Kernel, symbol: str, *limits: Any) -> Artifact:
        return self.makes.emit(kernel, symbol, *limits)


@dataclass
class Validation:
    """How many kernels were met, how the distinct ones were judged, and what is wrong.

    tiles: how those with products of tiles were, natively on a processor that has them.
    """

    met: int = 0
    judged: Counter[str] = field(default_factory=Counter)
    tiles: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    seen: set[object] = field(default_factory=set)

    def network(self, graph: Graph, decides: Any, math: str = "default") -> None:
        """Validate the kernels of a network that were not seen before."""
        plan = make_plan(optimize(graph, Options(math=math), decides), decides, math)
        makes = decides if decides.runs_here else HERE
        compiler = KernelCompiler(Decided(decides, makes), HERE, None)
        for signature, fixed in signatures(plan):
            self.met += 1
            program = (
                canonical(signature.computations, signature.params)
                if signature.computations
                else signature.name
            )
            if not self._new((decides.key, fixed, program, len(signature.outputs))):
                continue
            work = compiler.hoisted(signature, fixed)
            scheduled = canonical_tree(work.kernel.body, work.kernel.params)
            if self._new((makes.machine.features, scheduled)):
                self._judge(signature, fixed, work.kernel, compiler, plan)

    def _new(self, key: object) -> bool:
        new = key not in self.seen
        self.seen.add(key)
        return new

    def _judge(
        self, signature: KernelSignature, fixed: tuple[bool, ...], kernel: Kernel, compiler: Any,
        plan: Plan,
    ) -> None:  # fmt: skip
        machine = compiler.target.decides.machine
        needed = {f for name in _used(kernel) for f in intrinsic(name).features}
        lacking = needed - set(HERE.machine.features)
        how = _judge_of(lacking)
        self.judged[how] += 1
        self.tiles[how] += any(f.startswith("amx") for f in needed)
        if how == "native":
            code = compiler.compile(signature, plan.data)
            found = validate(
                signature, code, fixed, kind=kind_of(signature.computations), known=plan.data,
                effort=EFFORT,
            )  # fmt: skip
            self.wrong += [] if found.ok else [str(found)]
            return
        schedule = compiler.schedule(signature, fixed).kernel
        if how == "simulated":
            self.wrong += simulated(signature, schedule, machine)
        else:
            self.wrong += interpreted(signature, schedule)


def signatures(plan: Plan) -> Iterator[tuple[KernelSignature, tuple[bool, ...]]]:
    for stage in plan.groups:
        signature = kernel_signature(stage, plan.live[stage])
        yield signature, tuple(b in plan.data for b in signature.values)


def _judge_of(lacking: Collection[str]) -> str:
    """How a kernel is judged whose intrinsics need features that this processor lacks."""
    if not lacking:
        return "native"
    return "simulated" if all(f.startswith("amx") for f in lacking) else "interpreted"


def _used(kernel: Kernel) -> set[str]:
    """The intrinsics of a kernel."""
    units = (n for n in postorder(kernel.body) if isinstance(n, Unit))
    return {u.intrinsic.intrinsic.name for u in units if u.intrinsic is not None}


def interpreted(signature: KernelSignature, scheduled: Kernel) -> list[str]:
    """What differs between a schedule and the plain nest, both interpreted."""
    arrays = _arrays(signature)
    want, got = arrays, {b: a.copy() for b, a in arrays.items()}
    interpret(signature.plain(), want)
    interpret(scheduled, got)
    return _compare(signature, want, got)


def simulated(signature: KernelSignature, scheduled: Kernel, machine: Any) -> list[str]:
    """What differs between a schedule with simulated tiles and the plain nest."""
    arrays = _arrays(signature)
    want, got = arrays, {b: a.copy() for b, a in arrays.items()}
    interpret(signature.plain(), want)
    status = tiles.run(
        scheduled, machine, [got[b] for b in scheduled.params], refuse=False
    )
    return (
        _compare(signature, want, got)
        if status == 0
        else [f"{signature.name}: status {status}"]
    )


def _arrays(signature: KernelSignature) -> dict[Buffer, Any]:
    """Small whole numbers, so that float sums are exact in any order; outputs as nothing computes
    them."""
    rng = np.random.default_rng(0)
    arrays = {}
    for b in signature.params:
        low = 0 if b.dtype.is_int and not b.dtype.is_signed else -3
        arrays[b] = np.asarray(rng.integers(low, 4, b.shape)).astype(b.dtype.numpy)
    for b in signature.outputs:
        arrays[b] = np.full(b.shape, 77, b.dtype.numpy)
    return arrays


def _compare(
    signature: KernelSignature, want: dict[Buffer, Any], got: dict[Buffer, Any]
) -> list[str]:
    found = []
    for b in signature.outputs:
        a, e = (x[b].astype(np.float64) for x in (got, want))
        bound = 1e-5 * np.abs(e).max(initial=1.0) if b.dtype.is_float else 0
        with np.errstate(invalid="ignore"):
            near = np.abs(a - e) <= bound
        off = ~(near | (a == e) | (np.isnan(a) & np.isnan(e)))
        if off.any():
            found.append(
                f"{signature.name}: {int(off.sum())} of {off.size} elements of {b.name} differ"
            )
    return found
