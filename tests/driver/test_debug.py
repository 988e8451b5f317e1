"""TILEWRIGHT_DEBUG finds a fault planted into a pass over each IR, and names the pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

import tilewright as tw
from tests.driver.kinds import SMALL, Small
from tilewright.base.errors import TilewrightError
from tilewright.compute.nodes import Computation
from tilewright.driver import kernels
from tilewright.graph.nodes import Graph
from tilewright.graph.passes import simplify
from tilewright.ir.node import transform
from tilewright.loops.nodes import SIZE, For, Kernel
from tilewright.loops.passes.hoist import HoistedKernel
from tilewright.plan import normalize, pipeline
from tilewright.plan.nodes import HostFallback, Step
from tilewright.plan.passes import memory
from tilewright.runtime.arena import Arena, Lifetime
from tilewright.schedule import Schedule
from tilewright.targets.cpu.target import CpuTarget

MODEL = SMALL["packed"].model()


def without_operations(graph: Graph) -> Graph:
    return graph.with_operations([])


def without_steps(steps: Iterable[Step]) -> list[Step]:
    return []


def shifted(computations: Iterable[Computation]) -> tuple[Computation, ...]:
    """Each writes the element behind its own."""
    made = []
    for c in computations:
        outputs = [
            replace(o, index=(*o.index[:-1], o.index[-1] + 1)) for o in c.outputs
        ]
        made.append(replace(c, outputs=tuple(outputs)))
    return tuple(made)


def with_shifted(steps: Iterable[Step]) -> list[Step]:
    return [
        s
        if isinstance(s, HostFallback)
        else replace(s, computations=shifted(s.computations))
        for s in steps
    ]


def longer(kernel: Kernel) -> Kernel:
    """Each loop runs once more, except those of sizes."""

    def more(node: Any) -> Any:
        return (
            node.replace(extent=node.extent + 1)
            if isinstance(node, For) and node.kind != SIZE
            else node
        )

    return kernel.with_body(transform(kernel.body, more))


def longer_schedule(s: Schedule) -> Schedule:
    return Schedule(longer(s.kernel))


def longer_work(work: HoistedKernel) -> HoistedKernel:
    return replace(work, prepare=tuple(map(longer, work.prepare)))


@dataclass(frozen=True)
class Fault:
    """What a function of a pass gives is spoilt; the error has the code and names the pass."""

    holder: Any
    function: str
    spoil: Callable[[Any], Any]
    code: str
    where: str


FAULTS = {
    "graph": Fault(
        simplify, "merge_repeated", without_operations, "TW-MODEL", "after pass merge-repeated"
    ),
    "plan": Fault(
        pipeline, "add_halos", without_steps, "TW-PLAN-RESULT", "after pass add-halos"
    ),
    "computation of a stage": Fault(
        pipeline, "concat_in_place", with_shifted, "TW-BOUNDS", "after pass concat-in-place"
    ),
    "computation of a kernel": Fault(
        normalize, "local_results", shifted, "TW-BOUNDS", "computation"
    ),
    "kernel": Fault(normalize, "lower", longer, "TW-BOUNDS", "after lower"),
    "scheduled kernel": Fault(
        CpuTarget, "default_schedule", longer_schedule, "TW-BOUNDS", "after schedule"
    ),
    "work on constants": Fault(kernels, "hoist", longer_work, "TW-BOUNDS", "after hoist"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    right = getattr(fault.holder, fault.function)
    wrong = lambda *given, **named: fault.spoil(right(*given, **named))  # noqa: E731
    monkeypatch.setattr(fault.holder, fault.function, wrong)
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
    monkeypatch.setenv("TILEWRIGHT_DEBUG", "1")
    with pytest.raises(TilewrightError) as error:
        tw.compile(MODEL, threads=1)
    assert (error.value.code, fault.where in str(error.value)) == (fault.code, True), (
        error.value
    )


@pytest.mark.parametrize(
    "name", ["packed", "convolution", "rows", "scan", "pieces", "halves"]
)
def test_nothing_is_found_in_what_passes_make(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
    monkeypatch.setenv("TILEWRIGHT_DEBUG", "1")
    tw.compile(SMALL[name].model(), threads=1, math=SMALL[name].math)


def test_a_fault_of_the_memory_planner_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All buffers in one place: a kernel writes over what it reads."""
    chain = Small(
        "(float[8,8] x, float[8,8] w) => (float[8,8] y) "
        "{ a = MatMul(x, w) b = MatMul(a, w) y = MatMul(b, w) }"
    )

    def in_one_place(lifetimes: Sequence[Lifetime], alignment: int) -> Arena:
        return Arena((0,) * len(lifetimes), 4096)

    monkeypatch.setattr(memory, "assign_offsets", in_one_place)
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
    monkeypatch.setenv("TILEWRIGHT_DEBUG", "1")
    with pytest.raises(
        TilewrightError, match=r"after pass plan-memory: .* over a"
    ) as error:
        tw.compile(chain.model(), threads=1)
    assert error.value.code == "TW-MEMORY-SHARED"
