"""The schedules that are chosen on other machines, validated for the kernels of the networks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.networks.elsewhere import HERE, Validation, interpreted, signatures
from tests.targets.cpu import tiles
from tilewright.driver.compilation import optimize
from tilewright.driver.kernels import KernelCompiler
from tilewright.driver.options import Options
from tilewright.driver.planning import make_plan
from tilewright.loops.nodes import Block, Kernel
from tilewright.schedule import Schedule
from tilewright.testing.machines import MACHINES
from tilewright.testing.networks import NETWORKS

# Each machine meets a small network of another kind in the fast tests, all in the slow ones.
SMALL = (
    "attention_then_convolution centernet poolformer linear_attention edsr dcgan_generator siamese "
    "lstm crnn spatial_transformer segnet c3d mobilenet_v2"
).split()


def test_the_machines_are_of_many_kinds() -> None:
    found = MACHINES.values()
    assert len(MACHINES) >= 8
    assert {1, 64} <= {d.cores for d in found} and min(d.l1 for d in found) == 16 << 10
    made = [d.target() for d in found]
    assert {t.machine.vector_bits for t in made} == {128, 256, 512}
    assert len({t.key for t in made}) == len(made)
    features = [set(t.machine.features) for t in made]
    assert any("amx-int8" in f for f in features)
    assert any("avx512vnni" in f and "avx512bf16" not in f for f in features)


@pytest.mark.sampled(7)  # small caches, and large ones
@pytest.mark.parametrize("machine", MACHINES)
def test_kernels_are_right_as_another_machine_has_them(machine: str) -> None:
    name = dict(zip(MACHINES, SMALL, strict=True))[machine]
    found = Validation()
    found.network(NETWORKS[name]().graph, MACHINES[machine].target())
    assert not found.wrong
    assert sum(found.judged.values()) > 2


# Each network on one machine in each arithmetic, and each machine with one in thirteen.
TURNS = [
    pytest.param(name, machine, math, id=f"{name}-{machine}-{math}")
    for n, name in enumerate(NETWORKS)
    for k, math in enumerate(("default", "exact", "fast"))
    for machine in [list(MACHINES)[(n + 5 * k) % len(MACHINES)]]
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "machine", "math"), TURNS)
def test_all_kernels_are_right_on_machines_in_turn(
    name: str, machine: str, math: str
) -> None:
    found = Validation()
    target = MACHINES[machine].target(math == "exact")
    found.network(NETWORKS[name]().graph, target, math)
    assert not found.wrong


def test_a_recurrence_is_judged_on_data_on_which_it_is_stable() -> None:
    """With weights of several units, a rounding error grows beyond any tolerance."""
    found = Validation()
    graph = NETWORKS["rnn_bidirectional"]().graph
    found.network(graph, MACHINES["haswell"].target())
    assert not found.wrong and found.judged["native"] > 3


def test_bytes_on_a_machine_with_tiles_are_native_or_simulated() -> None:
    found = Validation()
    graph = NETWORKS["operator_oriented"]().graph
    found.network(graph, MACHINES["sapphirerapids"].target())
    assert not found.wrong
    assert found.tiles["native" if tiles.are_here() else "simulated"]


def test_a_schedule_without_its_instructions_here_is_interpreted() -> None:
    """So are all schedules of a processor that has none of what this one lacks; here a few."""
    decides = MACHINES["znver4"].target()
    graph = NETWORKS["siamese"]().graph
    plan = make_plan(optimize(graph, Options(), decides), decides)
    compiler = KernelCompiler(decides, HERE, None)
    for face, fixed in list(signatures(plan))[-3:]:
        assert not interpreted(face, compiler.schedule(face, fixed).kernel)


@dataclass(frozen=True)
class Idle:
    """A machine whose schedules do nothing."""

    real: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def default_schedule(self, kernel: Kernel, *rest: Any) -> Schedule:
        return Schedule(replace(kernel, body=Block(())))


def test_a_schedule_that_is_wrong_is_found_natively_and_interpreted() -> None:
    real = MACHINES["haswell"].target()
    graph = NETWORKS["dlrm"]().graph
    found = Validation()
    found.network(graph, Idle(real))
    assert len(found.wrong) == found.judged["native"] > 3
    face, _ = next(signatures(make_plan(optimize(graph, Options(), real), real)))
    (line,) = interpreted(face, replace(face.plain(), body=Block(())))
    assert "differ" in line
