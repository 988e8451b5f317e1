"""The clock, against one that keeps a time for every element of every memory."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.targets.npu.programs import chain, example, layer
from tilewright.lift.nodes import Lambda
from tilewright.targets import npu
from tilewright.targets.npu.chains import steps
from tilewright.targets.npu.isa import NpuInstruction
from tilewright.targets.npu.timing import UNITS, _Clock

FULL = npu.MACHINES["full"]

# Reads of parts of a write, of several writes, strided, transposed and repeated.
OVERLAPPING = """
.input x dram[0] 64x64
.output y dram[4096] 256
v_rd dram[0] n=128
  v_wr vrf[0] n=128
end_chain
v_rd dram[128] n=128
  v_wr vrf[128] n=128
end_chain
v_rd vrf[96] n=64
  vv_add vrf[0] n=64 step=0
  v_wr vrf[64] n=64
end_chain
m_rd dram[0] rows=64 columns=64 step=64
  m_wr mrf[0] rows=64 columns=64
end_chain
v_rd vrf[64] n=32
v_rd vrf[1] n=32 step=3
  mv_mul mrf[0] rows=64 columns=64
  v_relu
  v_wr dram[4096] n=64
end_chain
m_rd dram[4096] rows=4 columns=16 step=1 across=4
m_rd vrf[0] rows=60 columns=16 step=4
  m_wr mrf[64] rows=64 columns=16
end_chain
m_rd mrf[80] rows=8 columns=8 step=16
  m_wr dram[4192] rows=8 columns=8
end_chain
v_rd dram[4160] n=64
  v_tanh
  v_wr dram[4128] n=64
end_chain
v_rd vrf[0] n=128
  vv_mul vrf[64] n=128
  v_wr dram[4224] n=128
end_chain
"""


class _Elements:
    """Times of single elements; a stand-in for `AccessTimes`."""

    def __init__(self, chains) -> None:  # type: ignore[no-untyped-def]
        self.accesses = [step for c in chains for step in c if step.instruction.memory]
        self.written: dict[object, int] = defaultdict(int)
        self.read: dict[object, int] = defaultdict(int)

    @staticmethod
    def _elements(step):  # type: ignore[no-untyped-def]
        memory = step.instruction.memory
        return [(memory, int(at)) for at in step.addresses.ravel()]

    def ready(self, step) -> int:  # type: ignore[no-untyped-def]
        writes = step.instruction.op.endswith("_wr")
        kinds = [self.written, self.read] if writes else [self.written]
        return max(times[e] for times in kinds for e in self._elements(step))

    def done(self, step, time: int) -> None:  # type: ignore[no-untyped-def]
        writes = step.instruction.op.endswith("_wr")
        times = self.written if writes else self.read
        for e in self._elements(step):
            times[e] = max(times[e], time)


def elementwise(
    program: npu.NpuProgram, machine: npu.NpuMachine
) -> tuple[int, list[int]]:
    """Cycles, and how long each unit is busy."""
    chains = [[]]  # type: ignore[var-annotated]
    for step in steps(program, machine):
        chains[-1].append(step)
        if step.instruction.op == "end_chain":
            chains.append([])
    clock = _Clock(machine, _Elements(chains))  # type: ignore[arg-type]
    for links in chains[:-1]:
        clock.run(links)
    return clock.cycles, [clock.busy[unit] for unit in UNITS]


def test_reads_of_parts_wait_as_element_by_element() -> None:
    program = npu.parse(OVERLAPPING)
    timing = npu.time(program, FULL)
    assert (timing.cycles, [timing.busy[u] for u in UNITS]) == elementwise(
        program, FULL
    )


@pytest.mark.parametrize("gap", [*range(0, 160, 16), 33, 95])
def test_only_what_overlaps_waits(gap: int) -> None:
    """A read of 32 elements that starts at `gap`, after a write of elements 64 to 95.

    Reads from 33 and from 95 share one element with it, the first or the last; those from 32 and
    from 96 share none.
    """
    text = f"""
.input x dram[0] 256
.output y dram[256] 32
v_rd dram[0] n=32
  v_tanh
  v_wr vrf[64] n=32
end_chain
v_rd vrf[{gap}] n=32
  v_relu
  v_wr dram[256] n=32
end_chain
"""
    program = npu.parse(text)
    cycles = npu.time(program, FULL).cycles
    assert cycles == elementwise(program, FULL)[0]
    far = text.replace(f"v_rd vrf[{gap}]", "v_rd vrf[512]")
    apart = npu.time(npu.parse(far), FULL).cycles
    assert (cycles > apart) == (32 < gap < 96)


def _vector_read(memory: str) -> st.SearchStrategy[NpuInstruction]:
    at = st.integers(0, 40)
    step = st.sampled_from((0, 1, 1, 2, 3))
    return st.builds(
        NpuInstruction, st.just("v_rd"), st.just(memory), at, st.just(8), step
    )


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(("dram", "vrf")).flatmap(_vector_read),
            st.sampled_from(("dram", "vrf")),
            st.integers(0, 40),
            st.integers(1, 8),
        ),
        max_size=8,
    )
)
def test_random_copies_take_what_they_take_element_by_element(
    copies: list[tuple[NpuInstruction, str, int, int]],
) -> None:
    """Vectors read and written at any distance, so that they share any number of elements."""
    code = [
        part
        for read, memory, at, n in copies
        for part in (
            read,
            NpuInstruction("v_wr", memory, at, n),
            NpuInstruction("end_chain"),
        )
    ]
    program = npu.NpuProgram(tuple(code), (), ())
    timing = npu.time(program, FULL)
    assert (timing.cycles, [timing.busy[u] for u in UNITS]) == elementwise(
        program, FULL
    )


@pytest.mark.parametrize(
    ("program", "machine"),
    [
        pytest.param(layer(40, 100), "bytes", marks=pytest.mark.slow),
        (layer(160, 64), "full"),
        (chain(100), "small"),
        (example().conv_stencil(4, 2, 5), "full"),
        (example().attention(2, 40), "small"),
    ],
    ids=["layer-bytes", "layer-full", "chain-small", "stencil-full", "attention-small"],
)
def test_mapped_programs_take_what_they_take_element_by_element(
    program: Lambda, machine: str
) -> None:
    on = npu.MACHINES[machine]
    mapped = npu.map_onto(program, on)
    assert mapped.timing.cycles == elementwise(mapped.program, on)[0]
