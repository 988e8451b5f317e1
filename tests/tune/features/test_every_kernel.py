"""Every kernel has features: those of networks on many machines, and random ones."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from tilewright.driver.compilation import optimize
from tilewright.driver.kernels import KernelCompiler
from tilewright.driver.options import Options
from tilewright.driver.planning import make_plan
from tilewright.expr.nodes import Const, Expr, Load, Var
from tilewright.loops.nodes import Kernel, Stmt
from tilewright.plan.normalize import kernel_signature
from tilewright.testing.machines import MACHINES
from tilewright.testing.networks import NETWORKS
from tilewright.testing.random_kernels import random_kernel
from tilewright.testing.random_programs import random_program
from tilewright.testing.random_schedules import random_schedule
from tilewright.tune.features import Facts, feature_sets
from tilewright.tune.features.halide_pipeline import _NAMES
from tilewright.tune.features.program import _STATEMENTS

# Another network for each machine, which has kernels of another kind.
SMALL = (
    "maxout_chain centernet poolformer linear_attention qdq_transformer autoencoder siamese lstm "
    "faster_rcnn_head spatial_transformer segnet c3d dcgan_generator"
).split()


def scheduled(network: str, machine: str) -> Iterator[Kernel]:
    """The kernels of a network as they are scheduled by default, weights known."""
    decides = MACHINES[machine].target()
    graph = NETWORKS[network]().graph
    plan = make_plan(optimize(graph, Options(), decides), decides)
    compiler = KernelCompiler(decides, decides, None)
    for stage in plan.groups:
        signature = kernel_signature(stage, plan.live[stage])
        fixed = tuple(b in plan.data for b in signature.values)
        yield compiler.hoisted(signature, fixed).kernel


def check(kernel: Kernel, facts: Facts) -> None:
    for features in feature_sets(facts):
        made = features.extract(kernel)
        assert made.dtype == np.float32
        assert made.shape[1] == len(features.columns)
        assert made.shape[0] == 1 or features.per != "kernel"
        assert np.isfinite(made).all(), f"{features.name} of {kernel!r}"


def check_network(network: str, machine: str) -> int:
    facts = Facts.of(MACHINES[machine].target())
    found = list(scheduled(network, machine))
    for kernel in found:
        check(kernel, facts)
    return len(found)


@pytest.mark.sampled(7)  # small caches, and large ones
@pytest.mark.parametrize("machine", MACHINES)
def test_kernels_of_a_network_have_features(machine):
    network = dict(zip(MACHINES, SMALL, strict=True))[machine]
    assert check_network(network, machine) > 2


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_kernels_of_all_networks_have_features(network):
    """Each on one of the machines in turn."""
    turn = list(NETWORKS).index(network) % 3
    machine = ("nehalem", "zen2", "sapphirerapids")[turn]
    assert check_network(network, machine) > 0


@pytest.mark.sampled(8)  # each seed draws of all kinds
@pytest.mark.parametrize("first", range(0, 160, 20))
def test_random_kernels_have_features(first):
    for seed in range(first, first + 20):
        r = random.Random(seed)
        kernel = random_program(r) if seed % 3 else random_kernel(r)
        check(kernel, Facts())
        check(random_schedule(r, kernel, 20).kernel, Facts(cores=7))


def classes(of: type) -> Iterator[type]:
    for made in of.__subclasses__():
        yield from classes(made)
        if made.__module__ in ("tilewright.expr.nodes", "tilewright.loops.nodes"):
            yield made


def test_every_kind_of_node_is_known():
    """A new node must say what it counts as, in both tables."""
    abstract = {"Binary", "Bitwise", "Shift", "Compare"}
    operations = {
        c
        for c in classes(Expr)
        if c not in (Const, Var, Load) and c.__name__ not in abstract
    }
    counted = {c for c in operations if c.__name__ != "Overlap"}  # as a minimum
    assert counted == set(_NAMES)
    assert set(classes(Stmt)) == set(_STATEMENTS)
