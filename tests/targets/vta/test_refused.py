"""What the machine refuses: a clear error with the instruction, never a hang, never a traceback."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.targets.vta.programs import any_instruction, programs
from tilewright.targets.vta import (
    Alu,
    DeadlockError,
    Finish,
    FunctionalSimulator,
    Gemm,
    Load,
    Store,
    TimingParameters,
    TimingSimulator,
    VTAError,
    assemble,
)
from tilewright.targets.vta.isa import encode_stream

SIMULATORS = (FunctionalSimulator, TimingSimulator)
DRAM = 1 << 14
UOP = "LOAD UOP[0-0] dram=0x200 y=1 x=1 stride=1\n"


def refused(
    program: str | list, error: type[VTAError] = VTAError, size: int = DRAM, **options
):
    """The message, the same of both simulators; nothing is executed if it is found by reading."""
    stream = assemble(program) if isinstance(program, str) else encode_stream(program)
    messages = []
    for simulator in SIMULATORS:
        with pytest.raises(error) as caught:
            simulator(**options).run(stream, bytearray(size))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    return messages[0]


ILLEGAL = {
    "load pops from nothing": (
        [Load(memory_type=2, pop_prev=True), Finish()],
        "instruction 0 (LOAD INP[0-] pop(prev)): pop_prev is set, and LOAD has no neighbor",
    ),
    "store pushes to nothing": (
        [Store(memory_type=4, push_next=True), Finish()],
        "push_next is set, and STORE has no neighbor on that side",
    ),
    "unknown memory": ([Load(memory_type=6, x_size=1), Finish()], "unknown memory 6"),
    "load of OUT": ([Load(memory_type=4), Finish()], "OUT can be stored only"),
    "store of ACC": (
        [Store(memory_type=3, x_size=1, y_size=1), Finish()],
        "memory 3 cannot be stored, expected 4 (OUT)",
    ),
    "padded store": (
        [Store(memory_type=4, x_size=1, y_size=1, x_pad_1=1), Finish()],
        "a store has no padding",
    ),
    "unknown ALU operation": ([Alu(alu_opcode=5), Finish()], "unknown ALU operation 5"),
    "beyond the chip": (
        "LOAD INP[2040-2048] y=1 x=9 stride=9\nFINISH",
        "element 2048 of INP is accessed, which has 2048",
    ),
    "padding beyond the chip": (
        "LOAD WGT[1000-1024] y=1 x=10 stride=10 xpad=15,0\nFINISH",
        "element 1024 of WGT is accessed, which has 1024",
    ),
    "store beyond the chip": (
        "STORE OUT[2000-2099] y=10 x=10 stride=10\nFINISH",
        "element 2099 of OUT is accessed, which has 2048",
    ),
    "beyond DRAM": (
        "LOAD ACC[0-1] dram=0xff y=1 x=2 stride=2\nFINISH",
        "bytes 0x4000 to 0x403f of DRAM are accessed, which has 0x4000",
    ),
    "far beyond DRAM": (
        "STORE OUT[0-1] dram=0xffffffff y=2 x=1 stride=65535\nFINISH",
        "of DRAM are accessed, which has 0x4000",
    ),
    "micro-op beyond the chip": (
        "GEMM UOP[8000-8192] iter=1,1\nFINISH",
        "micro-op 8192 is read of 8192",
    ),
    "accumulator beyond the chip": (
        "GEMM UOP[0-0] reset iter=2,3 dst=2047,1\nFINISH",
        "element 2049 of ACC is accessed, which has 2048",
    ),
    "input beyond the chip": (
        "GEMM UOP[0-0] iter=3,1 src=1024,0\nFINISH",
        "element 2048 of INP is accessed, which has 2048",
    ),
    "weight beyond the chip": (
        "GEMM UOP[0-0] iter=1,3 wgt=0,1000\nFINISH",
        "element 2000 of WGT is accessed, which has 1024",
    ),
    "operand of the ALU beyond the chip": (
        "ALU.MAX UOP[0-0] iter=1,3 src=0,2000\nFINISH",
        "element 4000 of ACC is accessed, which has 2048",
    ),
    "no FINISH": ("LOAD INP[0-]", "the stream ends without FINISH"),
    "nothing at all": ("", "the stream ends without FINISH"),
    "work behind FINISH": (
        "FINISH\nSTORE OUT[0-0] y=1 x=1 stride=1",
        "instruction 1 (STORE OUT[0-0] y=1 x=1 stride=1): 1 instructions are left when FINISH",
    ),
    "FINISH twice": (
        "FINISH\nFINISH",
        "1 instructions are left when FINISH (instruction 0)",
    ),
}


@pytest.mark.parametrize("name", ILLEGAL, ids=str)
def test_illegal(name):
    program, message = ILLEGAL[name]
    assert message in refused(program)


def test_what_is_found_by_reading_leaves_dram_alone():
    image = bytearray(b"\x01" * DRAM)
    program = (
        "LOAD ACC[0-0] y=1 x=1\nSTORE OUT[0-0] dram=4 y=1 x=1\nLOAD OUT[0-]\nFINISH"
    )
    with pytest.raises(VTAError, match="instruction 2"):
        FunctionalSimulator().run(assemble(program), image)
    assert image == b"\x01" * DRAM


@pytest.mark.parametrize("cut", [1, 15, 17], ids=str)
def test_a_stream_cut_off(cut):
    stream = assemble("FINISH\nFINISH")[:cut]
    with pytest.raises(VTAError, match="the stream ends within an instruction"):
        FunctionalSimulator().run(stream, bytearray())


@pytest.mark.parametrize("size", [64, 63], ids=str)
def test_an_element_lies_in_dram_as_a_whole(size):
    stream = assemble("LOAD ACC[0-0] y=1 x=1\nFINISH")
    if size == 64:
        FunctionalSimulator().run(stream, bytearray(size))
        return
    with pytest.raises(
        VTAError, match="bytes 0x0 to 0x3f of DRAM are accessed, which has 0x3f"
    ):
        FunctionalSimulator().run(stream, bytearray(size))


def test_an_unknown_opcode():
    with pytest.raises(VTAError, match="instruction 1: unknown opcode 7 in 07"):
        FunctionalSimulator().run(assemble("FINISH") + b"\x07" + bytes(15), bytearray())


@pytest.mark.parametrize("dram", [b"read only", 5, None], ids=repr)
def test_dram_that_is_none(dram):
    with pytest.raises(VTAError, match="expected a bytearray"):
        FunctionalSimulator().run(assemble("FINISH"), dram)


def test_a_stream_that_is_none():
    with pytest.raises(VTAError, match="expected bytes, found str"):
        FunctionalSimulator().run("FINISH", bytearray())


DEADLOCKS = {
    "never pushed": (
        "LOAD UOP[0-] pop(LD)\nFINISH",
        "COMPUTE waits at instruction 0 for l2g from LOAD (none is pushed any more)",
    ),
    "pushed too late": (
        "LOAD INP[0-] pop(EX) push(EX)\nLOAD UOP[0-] pop(LD) push(LD)\nFINISH",
        "LOAD waits at instruction 0 for g2l from COMPUTE (the next is pushed by instruction 1, "
        "which waits itself); COMPUTE waits at instruction 1 for l2g from LOAD (the next is "
        "pushed by instruction 0, which waits itself)",
    ),
    "one of two": (
        "STORE OUT[0-] push(EX)\nFINISH pop(LD) pop(ST)",
        "COMPUTE waits at instruction 1 for l2g from LOAD (none is pushed any more)",
    ),
    "left behind FINISH": (
        "STORE OUT[0-] pop(EX)\nFINISH",
        "STORE waits at instruction 0 for g2s from COMPUTE (none is pushed any more)",
    ),
    "behind another": (
        "LOAD INP[0-] pop(EX)\nLOAD INP[0-] push(EX)\nLOAD UOP[0-] pop(LD)\nFINISH push(LD)",
        "for l2g from LOAD (the next is pushed by instruction 1, which comes after instruction 0)",
    ),
}


@pytest.mark.parametrize("name", DEADLOCKS, ids=str)
def test_deadlock(name):
    program, message = DEADLOCKS[name]
    assert message in refused(program, DeadlockError)


def test_tokens_may_be_left_over():
    for simulator in SIMULATORS:
        simulator().run(assemble("LOAD INP[0-] push(EX)\nFINISH push(LD)"), bytearray())


@pytest.mark.parametrize(
    "program",
    [
        UOP + "GEMM UOP[0-0] iter=16383,16383\nFINISH",
        UOP + "ALU.ADD UOP[0-0] iter=16383,16383 imm=1\nFINISH",
        UOP + 300 * "GEMM UOP[0-0] reset iter=16383,4096\n" + "FINISH",
        # Fewer than the limit, but each waits for the one before.
        UOP + "ALU.SHR UOP[0-0] iter=2047,8192\nFINISH",
    ],
    ids=["gemm", "alu", "many", "one by one"],
)
def test_a_step_limit_stops_what_would_take_for_ever(program):
    options = {"step_limit": 1 << 20} if "reset" in program else {}
    assert "steps" in refused(program, **options)


def test_the_step_limit_is_the_user_s():
    refused("LOAD INP[0-63] y=1 x=64\nFINISH", step_limit=64)
    FunctionalSimulator(step_limit=66).run(
        assemble("LOAD INP[0-63] y=1 x=64\nFINISH"), bytearray(DRAM)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step_limit": None}, "step_limit is None, expected a whole number"),
        ({"step_limit": 1.5}, "step_limit is 1.5"),
        ({"config": None}, "None is not a VTAConfig"),
    ],
    ids=["no limit", "half a step", "no configuration"],
)
def test_impossible_simulators(options, message):
    for simulator in SIMULATORS:
        with pytest.raises(VTAError, match=message):
            simulator(**options)
    with pytest.raises(VTAError, match="8 is not TimingParameters"):
        TimingSimulator(timing=8)


def test_loops_of_nothing_access_nothing():
    stream = [
        Gemm(uop_bgn=5, uop_end=16383, iter_out=0, iter_in=16383, dst_factor_in=2047),
        Gemm(uop_bgn=8191, uop_end=3, iter_out=9, iter_in=9),
        Finish(),
    ]
    for simulator in SIMULATORS:
        simulator().run(encode_stream(stream), bytearray())


@given(st.lists(any_instruction(), max_size=5), st.integers(0, 3000))
@settings(max_examples=200, deadline=None)
def test_any_instructions_run_or_are_refused(body, size):
    stream = encode_stream([*body, Finish()])
    one, other = bytearray(b"\x07" * size), bytearray(b"\x07" * size)
    outcomes = []
    for simulator, image in zip(SIMULATORS, (one, other)):
        try:
            simulator(step_limit=1 << 16).run(stream, image)
            outcomes.append(None)
        except VTAError as e:
            outcomes.append(str(e))
    assert outcomes[0] == outcomes[1]
    assert one == other


@given(programs(), st.data())
@settings(max_examples=40, deadline=None)
def test_damaged_programs_run_or_are_refused(case, data):
    stream, dram = bytearray(case[0]), bytearray(case[1])
    for _ in range(data.draw(st.integers(1, 4))):
        bit = data.draw(st.integers(0, 8 * len(stream) - 1))
        stream[bit // 8] ^= 1 << bit % 8
    try:
        FunctionalSimulator(step_limit=1 << 18).run(bytes(stream), dram)
    except VTAError as e:
        assert e.where


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"gemm_interval": 0}, "gemm_interval is 0, expected a whole number from 1 on"),
        (
            {"dram_bytes_per_cycle": 0.5},
            "dram_bytes_per_cycle is 0.5, expected a whole number",
        ),
        ({"start": -1}, "start is -1, expected a whole number from 0 on"),
    ],
    ids=["no time", "half a byte", "before"],
)
def test_impossible_timing(parameters, message):
    with pytest.raises(VTAError, match=message):
        TimingParameters(**parameters)
