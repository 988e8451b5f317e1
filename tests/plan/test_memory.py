"""Memory planning: nothing alive overlaps, and the arena is close to the peak."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.base.dtypes import float32
from tilewright.driver.options import Options
from tilewright.driver.stages import planned
from tilewright.expr.nodes import Buffer, var
from tilewright.graph.nodes import Graph, Value
from tilewright.loops.nodes import Kernel, Store, block, loop
from tilewright.plan.memory_report import memory_use
from tilewright.plan.nodes import FusionGroup, Plan
from tilewright.plan.passes.memory import PlanMemory
from tilewright.runtime.arena import Lifetime, assign_offsets, live_bytes
from tilewright.testing.networks import NETWORKS

lifetimes = st.lists(
    st.builds(
        lambda size, first, length: Lifetime(size, first, first + length),
        st.integers(0, 1000),
        st.integers(0, 20),
        st.integers(0, 10),
    ),
    max_size=30,
)


@given(lifetimes)
def test_buffers_alive_together_do_not_overlap(lives: list[Lifetime]) -> None:
    found = assign_offsets(lives)
    for n, a in enumerate(lives):
        assert found.offsets[n] % 64 == 0
        assert found.offsets[n] + a.size <= found.total
        for m in range(n):
            b = lives[m]
            together = a.first <= b.last and b.first <= a.last
            apart = (
                found.offsets[n] + a.size <= found.offsets[m]
                or found.offsets[m] + b.size <= found.offsets[n]
            )
            assert apart or not together or not (a.size and b.size)


def test_what_a_kernel_writes_has_a_place_even_where_nobody_reads_it() -> None:
    x, y, z = (Buffer(n, (16,), float32) for n in "xyz")
    i = var("i")
    body = loop(i, 16, block(Store(y, (i,), x[i]), Store(z, (i,), x[i])))
    values = {Value(b.name, b.dtype, b.shape): b for b in (x, y)}
    graph = Graph("g", *((v,) for v in values), ())
    group = FusionGroup("k", (), kernel=Kernel("k", (x, y, z), (y, z), body))
    plan = PlanMemory(lambda group: ()).run(Plan(graph, (group,), values))
    assert plan.memory is not None and plan.memory.places == {z: 0}
    assert plan.memory.total == 64


def test_what_lives_before_or_after_another_shares_its_place() -> None:
    """The larger one is placed first, whichever lives first."""
    for first, second in ((Lifetime(128, 5, 6), Lifetime(64, 0, 4)),
                          (Lifetime(128, 0, 1), Lifetime(64, 2, 4))):  # fmt: skip
        assert assign_offsets([first, second]).total == 128


@given(lifetimes)
def test_the_arena_is_no_smaller_than_what_is_alive(lives: list[Lifetime]) -> None:
    found = assign_offsets(lives)
    alive = [
        sum(-(-v.size // 64) * 64 for v in lives if v.first <= n <= v.last)
        for n in range(32)
    ]
    assert max(live_bytes(lives), default=0) == max(alive)
    assert found.total >= max(alive)


def test_another_order_where_the_largest_first_wastes() -> None:
    """Largest first leaves gaps that the rest does not fit into: 640 bytes."""
    sizes = [128, 192, 64, 256, 128, 256]
    steps = [(4, 5), (4, 7), (4, 4), (2, 3), (3, 6), (1, 2)]
    lives = [Lifetime(n, *at) for n, at in zip(sizes, steps, strict=True)]
    assert assign_offsets(lives).total == max(live_bytes(lives)) == 512


def test_orders_are_climbed_where_neither_reaches_the_bound() -> None:
    """By size, 31,296 bytes; by breadth, 36,736."""
    sizes = [12416, 6976, 6592, 5312, 12416, 10496, 5312, 12416]
    steps = [(0, 7), (2, 5), (4, 6), (6, 7), (7, 11), (8, 10), (10, 11), (11, 12)]
    lives = [Lifetime(n, *at) for n, at in zip(sizes, steps, strict=True)]
    found = assign_offsets(lives)
    assert found.total == max(live_bytes(lives)) == 30144
    assert assign_offsets(lives) == found


@pytest.mark.representatives("resnet_preact", "gmlp")
@pytest.mark.parametrize("name", ["resnet_preact", "gmlp", "retinanet"])
def test_networks_need_no_more_than_is_alive(name: str) -> None:
    """Neither order reaches it: they need 1.16 to 1.29 of it."""
    plan, _ = planned(NETWORKS[name]().graph, (), None, Options(optimize="off"))
    use = memory_use(plan)
    assert use.arena == use.peak > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_needs_no_more_than_a_twentieth_more(name: str) -> None:
    plan, _ = planned(NETWORKS[name]().graph, (), None, Options())
    use = memory_use(plan)
    assert use.arena <= 1.05 * use.peak


def test_a_chain_needs_two_buffers() -> None:
    chain = [Lifetime(640, n, n + 1) for n in range(10)]
    assert assign_offsets(chain).total == 1280
