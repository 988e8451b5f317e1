"""Strict runs: what a program leaves to chance is an error, what tokens order is none."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings

from tests.targets.vta.programs import partly_ordered
from tests.targets.vta.reference import Machine
from tilewright.targets.vta import (
    FunctionalSimulator,
    TimingSimulator,
    VTAError,
    assemble,
)

TILE = "y=1 x=1 stride=1"
UOP = f"LOAD UOP[0-0] dram=64 {TILE}\n"
ACC = f"LOAD ACC[0-0] {TILE}\n"
WGT = f"LOAD WGT[0-0] {TILE}\n"
INP = f"LOAD INP[0-0] {TILE} "
STORE = f"STORE OUT[0-0] dram=32 {TILE} "
GEMM = "GEMM UOP[0-0] iter=1,1 "


def strict(program: str) -> None:
    """Run in both simulators; the same message of both if it is refused."""
    outcomes = []
    for simulator in (FunctionalSimulator, TimingSimulator):
        try:
            simulator(strict=True).run(assemble(program), bytearray(1 << 12))
            outcomes.append(None)
        except VTAError as e:
            outcomes.append(str(e))
    assert outcomes[0] == outcomes[1]
    if outcomes[0]:
        raise VTAError(outcomes[0])


SOUND = UOP + ACC + WGT + INP + "push(EX)\n" + GEMM + "pop(LD) push(LD) push(ST)\n"


def test_a_program_that_tokens_order():
    again = INP + "pop(EX) push(EX)\n" + GEMM + "pop(LD) pop(ST)\n"
    strict(SOUND + STORE + "pop(EX) push(EX)\n" + again + "FINISH")


UNWRITTEN = {
    "micro-op": ("ALU.ADD UOP[3-3] iter=1,1 imm=1\nFINISH", "element 3 of UOP is read"),
    "accumulator": (
        UOP + "ALU.ADD UOP[0-0] iter=1,1 imm=1\nFINISH",
        "element 0 of ACC is read",
    ),
    "operand": (
        UOP + ACC + "ALU.ADD UOP[0-0] iter=1,2 src=0,1\nFINISH",
        "element 1 of ACC",
    ),
    "sum": (
        UOP + WGT + INP + "push(EX)\n" + GEMM + "pop(LD)\nFINISH",
        "element 0 of ACC is read",
    ),
    "input": (UOP + ACC + WGT + GEMM + "\nFINISH", "element 0 of INP is read"),
    "weight": (
        UOP + ACC + INP + "push(EX)\n" + GEMM + "pop(LD)\nFINISH",
        "element 0 of WGT is read, and nothing has written it",
    ),
    "result": (STORE + "push(EX)\nFINISH pop(ST)", "element 0 of ACC is read"),
}


@pytest.mark.parametrize("name", UNWRITTEN, ids=str)
def test_memory_that_nothing_has_written(name):
    program, message = UNWRITTEN[name]
    with pytest.raises(VTAError, match=message):
        strict(program)


def test_a_reset_and_padding_write():
    strict(
        UOP
        + "GEMM UOP[0-0] reset iter=1,1 push(ST)\n"
        + STORE
        + "pop(EX) push(EX)\nFINISH pop(ST)"
    )
    strict(
        "LOAD ACC[0-2] y=1 x=1 xpad=1,1 push(ST)\n"
        + STORE
        + "pop(EX) push(EX)\nFINISH pop(ST)"
    )


RACES = {
    "read before the load": (
        UOP + ACC + WGT + INP + "\n" + GEMM + "\nFINISH",
        r"instruction 4 \(GEMM .*no token orders it after instruction 3 \(LOAD INP\[0-0\]",
    ),
    "load over what is being read": (
        SOUND + STORE + "pop(EX) push(EX)\n" + INP + "push(EX)\nFINISH pop(LD) pop(ST)",
        r"no token orders it after instruction 4 \(GEMM .*which reads element 0 of INP too",
    ),
    "compute over what is being stored": (
        SOUND + STORE + "pop(EX) push(EX)\n" + GEMM + "\nFINISH pop(ST)",
        r"no token orders it after instruction 5 \(STORE .*which reads element 0 of ACC too",
    ),
    "load of what is being stored": (
        SOUND + STORE + f"pop(EX) push(EX)\nLOAD INP[1-1] dram=32 {TILE} push(EX)\n"
        "FINISH pop(LD) pop(ST)",
        r"no token orders it after instruction 5 \(STORE .*which writes byte 0x200 of DRAM too",
    ),
    "the end before the last store": (
        SOUND + STORE + "pop(EX)\nFINISH",
        r"no token makes FINISH wait for instruction 5 \(STORE",
    ),
    "a token of another time": (
        SOUND
        + STORE
        + "pop(EX) push(EX)\n"
        + GEMM
        + "pop(ST) push(ST)\n"
        # The load takes the token of the first GEMM, and writes what the second reads.
        + INP
        + "pop(EX) push(EX)\nFINISH pop(LD)",
        r"no token orders it after instruction 6 \(GEMM",
    ),
}


@pytest.mark.parametrize("name", RACES, ids=str)
def test_what_no_token_orders(name):
    program, message = RACES[name]
    FunctionalSimulator().run(
        assemble(program), bytearray(1 << 12)
    )  # it happens to work
    with pytest.raises(VTAError, match=message):
        strict(program)


@given(partly_ordered())
@settings(max_examples=100, deadline=None)
def test_what_is_not_refused_does_not_depend_on_the_order(case):
    stream, dram = case
    found = bytearray(dram)
    try:
        FunctionalSimulator(strict=True).run(stream, found)
    except VTAError as e:
        assert e.code == "TW-VTA-RACE"
        assume(False)
    other = bytearray(dram)
    Machine(other).run(stream, last=True)
    assert found == other


def test_a_shift_that_c_does_not_define():
    with pytest.raises(VTAError, match="a shift by 32, which is undefined beyond 31"):
        strict(UOP + ACC + "ALU.SHR UOP[0-0] iter=1,1 imm=32\nFINISH")
