"""Memory planning: nothing alive overlaps, and the arena is close to the peak."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tilewright.plan.passes.memory import Lifetime, assign_offsets

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


def test_a_chain_needs_two_buffers() -> None:
    chain = [Lifetime(640, n, n + 1) for n in range(10)]
    assert assign_offsets(chain).total == 1280
