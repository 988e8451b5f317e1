"""The timing simulator: cycles worked out by hand, and what must hold of every program."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings

from tests.targets.vta.programs import programs
from tilewright.targets.vta import (
    TimingParameters,
    TimingSimulator,
    VTAConfig,
    assemble,
)
from tilewright.targets.vta.isa import Transfer, decode_stream
from tilewright.targets.vta.sram import dram_bytes
from tilewright.targets.vta.stages import VtaModule, pops, pushes


def timed(text: str, dram: int = 1 << 20, **parameters: int):
    simulator = TimingSimulator(VTAConfig(), timing=TimingParameters(**parameters))
    return simulator.run(assemble(text), bytearray(dram))


CYCLES = {
    # 10 to start each, 64 of latency, 64 bytes at 8 a cycle; GEMM and ALU a step a cycle.
    "the end": ("FINISH", 10),
    "a token passed on": ("LOAD INP[0-] push(EX)\nFINISH pop(LD)", 20),
    "a load": ("LOAD INP[0-3] y=1 x=4 push(EX)\nFINISH pop(LD)", 10 + 64 + 8 + 10),
    "a part of a beat": ("LOAD UOP[0-0] y=1 x=1\nFINISH", 10 + 64 + 1 + 10),
    "padding is free": (
        "LOAD INP[0-15] y=1 x=4 ypad=1,0 xpad=4,0 push(EX)\nFINISH pop(LD)",
        92,
    ),
    "padding alone": ("LOAD ACC[0-15] x=4 ypad=1,0 xpad=12,0\nFINISH", 20),
    "bytes in accumulators": ("LOAD ACC_8BIT[0-3] y=1 x=4\nFINISH", 10 + 64 + 8 + 10),
    "accumulators": ("LOAD ACC[0-3] y=1 x=4\nFINISH", 10 + 64 + 32 + 10),
    "a store": ("STORE OUT[0-3] y=1 x=4 push(EX)\nFINISH pop(ST)", 10 + 64 + 8 + 10),
    "products": ("GEMM UOP[0-8] iter=5,4\nFINISH", 10 + 180 + 10),
    "a reset": ("GEMM UOP[0-8] iter=5,4 reset\nFINISH", 10 + 180 + 10),
    "lanes": ("ALU.ADD UOP[0-1] iter=5,4 imm=0\nFINISH", 10 + 40 + 10),
    "side by side": (
        "GEMM UOP[0-0] iter=100,1\nLOAD INP[0-3] y=1 x=4 push(EX)\nFINISH pop(LD)",
        110 + 10,
    ),
    "one after another": (
        "GEMM UOP[0-0] iter=100,1 push(LD)\nLOAD INP[0-3] y=1 x=4 pop(EX) push(EX)\nFINISH pop(LD)",
        110 + 82 + 10,
    ),
    # 100 and 50 cycles of bus: shared until the store has its 50 at half the speed.
    "a shared bus": (
        "LOAD INP[0-49] y=1 x=50 push(EX)\nSTORE OUT[0-24] y=1 x=25 push(EX)\n"
        "FINISH pop(LD) pop(ST)",
        10 + 64 + 150 + 10,
    ),
}


@pytest.mark.parametrize("name", CYCLES, ids=str)
def test_cycles(name):
    text, cycles = CYCLES[name]
    assert timed(text).cycles == cycles


def test_parameters():
    text = "LOAD UOP[0-3] y=1 x=4\nGEMM UOP[0-3] iter=1,1\nALU.MAX UOP[0-3] iter=1,1 imm=0\nFINISH"
    found = timed(
        text,
        start=3,
        dram_latency=5,
        dram_bytes_per_cycle=2,
        gemm_interval=2,
        alu_interval=4,
    )
    assert found.cycles == (3 + 5 + 8) + (3 + 8) + (3 + 16) + 3


def test_what_the_modules_did():
    found = timed(CYCLES["a shared bus"][0])
    load, compute, store = (found.modules[s] for s in VtaModule)
    assert load.parts == {
        "start": 10,
        "work": 0,
        "dram latency": 64,
        "dram transfer": 100,
        "dram contention": 50,
    }
    assert store.parts["dram contention"] == 50
    assert store.stalls == {"ended": 234 - 174}
    assert compute.stalls == {"l2g": 224, "ended": 0}
    assert compute.utilization == 10 / 234
    assert "COMPUTE    4.3% busy: start 10\n                idle: l2g 224" in str(found)


def test_a_wait_is_put_down_to_the_token_that_came_last():
    text = (
        "LOAD INP[0-] push(EX)\nSTORE OUT[0-3] y=1 x=4 push(EX)\nFINISH pop(LD) pop(ST)"
    )
    assert timed(text).modules[VtaModule.COMPUTE].stalls == {"s2g": 82, "ended": 0}


def _loop(times: int, buffers: int) -> str:
    """Loads of 1,024 bytes and 200 steps each, `buffers` of them in flight."""
    text = buffers * "LOAD UOP[0-] push(LD)\n"
    for n in range(times):
        text += (
            f"LOAD INP[{64 * (n % buffers)}-] y=1 x=64 stride=64 pop(EX) push(EX)\n"
            "GEMM UOP[0-0] iter=200,1 pop(LD) push(LD)\n"
        )
    return text + "FINISH"


def test_a_second_buffer_hides_the_latency_of_the_first():
    load, gemm = 10 + 64 + 128, 10 + 200
    alone, hidden = timed(_loop(50, 1)), timed(_loop(50, 2))
    assert alone.macs == hidden.macs == 50 * 200 * 256
    assert alone.cycles == 10 + 50 * (load + gemm) + 10
    assert hidden.cycles == 20 - 10 + load + 50 * gemm + 10
    assert alone.utilization < 0.5
    assert hidden.utilization > 0.9


@given(programs())
@settings(max_examples=40, deadline=None)
def test_what_holds_of_every_program(case):
    stream, dram = case
    config = VTAConfig()
    found = TimingSimulator(config).run(stream, bytearray(dram))
    program = decode_stream(stream)
    assert sorted(s.index for s in found.spans) == list(range(len(program)))
    for stage, module in found.modules.items():
        spans = sorted(
            (s for s in found.spans if s.stage is stage), key=lambda s: s.index
        )
        for one, next_ in pairwise(spans):
            assert one.end + next_.waited == next_.start
        assert all(s.start + sum(s.parts.values()) == s.end for s in spans)
        assert all(min(s.parts.values()) >= 0 for s in spans)
        assert module.busy + sum(module.stalls.values()) == found.cycles
    spans = {s.index: s for s in found.spans}
    for queue in ("l2g", "g2l", "g2s", "s2g"):
        given_ = [spans[n].end for n, i in enumerate(program) if queue in pushes(i)]
        taken = [spans[n].start for n, i in enumerate(program) if queue in pops(i)]
        assert all(push <= pop for push, pop in zip(given_, taken))
    moved = sum(dram_bytes(i, config) for i in program if isinstance(i, Transfer))
    assert moved <= 8 * found.cycles


def test_the_timeline_as_a_chrome_trace():
    found = timed(CYCLES["one after another"][0])
    events = json.loads(json.dumps(found.timeline))["traceEvents"]
    names = {e["args"]["name"] for e in events if e["ph"] == "M"}
    assert names == {"VTA", "load", "compute", "store"}
    spans = [(e["tid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert spans == [
        (1, "GEMM", 0, 110),
        (0, "wait g2l", 0, 110),
        (0, "LOAD", 110, 82),
        (1, "wait l2g", 110, 82),
        (1, "FINISH", 192, 10),
    ]
    load = next(e for e in events if e.get("name") == "LOAD")
    assert load["args"]["text"] == "LOAD INP[0-3] pop(EX) push(EX) y=1 x=4"
    assert load["args"]["dram transfer"] == 8
