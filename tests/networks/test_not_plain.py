"""No product, convolution or attention of the networks is left to the schedule `plain`.

What a primitive refuses is told by events, `sketch-refused` and `kept-plain`, and in the reasons of
a kernel's record; that it happens to none of these on any described machine is shown here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.networks.elsewhere import HERE, signatures
from tests.networks.test_machines import SMALL
from tilewright.base import events
from tilewright.compute.contraction import is_contraction
from tilewright.compute.nodes import Computation
from tilewright.driver.compilation import optimize
from tilewright.driver.kernels import KernelCompiler
from tilewright.driver.options import Options
from tilewright.driver.planning import make_plan
from tilewright.schedule import Schedule
from tilewright.schedule.space.patterns import uses
from tilewright.targets.cpu.sketches import rules
from tilewright.testing.machines import MACHINES
from tilewright.testing.networks import NETWORKS

# Columns that are two axes of the result, not whole vectors: tiles that overlap there may not be
# reordered, since two of them may seem to write one element.
REFUSED = {"pixel_shuffle": "conv_depthtospace", "capsules": "conv_reshape"}


def left_plain(network: str, machine: str) -> Iterator[tuple[str, str]]:
    """The kernels of products, convolutions or attention that are scheduled as `plain`, as a whole
    or a part that is one, each with the reason."""
    target = MACHINES[machine].target()
    graph = optimize(NETWORKS[network]().graph, Options(), target)
    plan = make_plan(graph, target, "default")
    compiler = KernelCompiler(target, HERE, None)
    for signature, fixed in signatures(plan):
        heavy = [c for c in signature.computations if is_product(c)]
        if not heavy:
            continue
        with events.record() as found:
            compiler.schedule(signature, fixed)
        for e in found:
            plain = e.kind == "sketch-chosen" and e.fields["sketch"] == "plain"
            if plain or e.kind == "kept-plain":
                yield signature.name, str(e.fields.get("reason", ""))


def is_product(c: Computation) -> bool:
    """Whether it sums products of several tensors: not the squares of a normalization."""
    along = {d.var for d in c.combined_dims}
    read = {
        a.buffer for a in c.accesses if any(uses(i, v) for i in a.index for v in along)
    }
    return is_contraction(c) and len(read) > 1


@pytest.mark.sampled(7)
@pytest.mark.parametrize("machine", MACHINES)
def test_none_is_left_plain(machine: str) -> None:
    network = dict(zip(MACHINES, SMALL, strict=True))[machine]
    assert not list(left_plain(network, machine))


@pytest.mark.parametrize("network", ["resnet_basic", "densenet", "unet", "vit"])
def test_none_is_left_plain_with_wide_vectors(network: str) -> None:
    assert not list(left_plain(network, "znver5"))


@pytest.mark.parametrize("network", REFUSED)
def test_those_that_are_have_a_reason(network: str) -> None:
    found = list(left_plain(network, "haswell"))
    assert {name for name, _ in found} == {REFUSED[network]}
    assert all("reorder: exchanging" in reason for _, reason in found)


def test_a_refusal_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(s: Schedule, *rest: Any) -> Schedule:
        s.split("nowhere", 4)
        return s

    rule = replace(rules.RULES["tiled"], schedule=refused)
    monkeypatch.setitem(rules.RULES, "tiled", rule)
    found = list(left_plain("mobilenet_v2", "znver4"))
    assert found and any("nowhere" in reason for _, reason in found)


TURNS = [
    pytest.param(name, list(MACHINES)[(5 * n + k) % len(MACHINES)], id=f"{name}-{k}")
    for n, name in enumerate(NETWORKS)
    for k in (0, 7)
]


@pytest.mark.slow
@pytest.mark.parametrize(("network", "machine"), TURNS)
def test_none_is_left_plain_on_machines_in_turn(network: str, machine: str) -> None:
    assert {name for name, _ in left_plain(network, machine)} <= {REFUSED.get(network)}
