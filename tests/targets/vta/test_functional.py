"""The functional simulator: against the scalar reference, and each rule of the machine by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.targets.vta.programs import programs
from tests.targets.vta.reference import Machine
from tilewright.targets.vta import (
    FunctionalSimulator,
    TimingSimulator,
    VTAConfig,
    assemble,
)
from tilewright.targets.vta.uops import pack_uops

CONFIG = VTAConfig()
INT32 = np.iinfo(np.int32)


def uops(*indices: tuple[int, int, int]) -> bytes:
    return pack_uops(*np.array(indices).T, CONFIG).tobytes()


def run(text: str, dram: bytes = b"", size: int = 1 << 14, **options) -> bytearray:
    """A program on an image that begins with `dram`; what the image is then."""
    image = bytearray(dram) + bytearray(size - len(dram))
    FunctionalSimulator(CONFIG, **options).run(assemble(text), image)
    return image


@given(programs())
@settings(max_examples=60, deadline=None)
def test_random_programs_do_what_the_reference_does(case):
    stream, dram = case
    expected, found, timed = bytearray(dram), bytearray(dram), bytearray(dram)
    Machine(expected).run(stream)
    counters = FunctionalSimulator(CONFIG).run(stream, found)
    assert found == expected
    timing = TimingSimulator(CONFIG).run(stream, timed)
    assert timed == expected
    assert timing.counters == counters


def _lanes(values: np.ndarray) -> bytes:
    return values.astype("<i4").tobytes()


@pytest.mark.parametrize(
    ("operation", "expected"),
    {
        "MIN": lambda x, y: np.minimum(x, y),
        "MAX": lambda x, y: np.maximum(x, y),
        "ADD": lambda x, y: x + y,
        "MUL": lambda x, y: x * y,
        "SHR": lambda x, y: np.array(
            [a >> min(b, 31) if b >= 0 else a << min(-b, 32) for a, b in zip(x, y)]
        ),
    }.items(),
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_lanes_wrap_around(operation, expected):
    """acc[0] = op(acc[0], acc[1]), all 32 bits of it seen through four stores."""
    ends = [INT32.min, INT32.max, -1, 0, 1, 31, -31, 32, -32, 40, -40, 7, 8, 9, 10, 11]
    rng = np.random.default_rng(1)
    x = np.array(
        [*rng.choice(ends, 8), *1 | rng.integers(INT32.min, INT32.max, 8)], np.int64
    )
    y = np.array([*ends], np.int64)
    dram = _lanes(x) + _lanes(y) + uops((0, 1, 0), (0, 0, 0))
    shows = "".join(
        f"STORE OUT[0-0] dram={64 + part} y=1 x=1 stride=1\nALU.SHR UOP[1-1] iter=1,1 imm=8\n"
        for part in range(4)
    )
    image = run(
        "LOAD ACC[0-1] y=1 x=2 stride=2\n"
        "LOAD UOP[0-1] dram=32 y=1 x=2 stride=2\n"
        f"ALU.{operation} UOP[0-0] iter=1,1\n{shows}FINISH",
        dram,
    )
    parts = np.frombuffer(image, np.uint8)[1024 : 1024 + 64].reshape(4, 16)
    found = np.ascontiguousarray(parts.T).view("<i4").reshape(-1)
    wrapped = (
        [int(v) & 0xFFFFFFFF for v in expected(x.tolist(), y.tolist())]
        if (operation == "SHR")
        else [int(v) & 0xFFFFFFFF for v in expected(x, y)]
    )
    assert (found.astype(np.int64) & 0xFFFFFFFF).tolist() == wrapped


def test_a_padded_load_writes_zeros_around():
    tile = np.arange(1, 7, dtype=np.int8).repeat(16)
    image = run(
        "LOAD ACC_8BIT[0-19] y=2 x=3 stride=3 ypad=1,1 xpad=1,1\n"
        "STORE OUT[0-19] dram=64 y=1 x=20 stride=20\n"
        "FINISH",
        tile.tobytes(),
    )
    found = np.frombuffer(image, np.int8)[1024 : 1024 + 320].reshape(4, 5, 16)
    expected = np.pad(tile.reshape(2, 3, 16), ((1, 1), (1, 1), (0, 0)))
    np.testing.assert_array_equal(found, expected)


def test_a_load_of_no_columns_does_nothing_but_pass_tokens():
    run(
        "LOAD INP[0-] push(EX) y=7 ypad=3,3 dram=0xffffffff\n"
        "STORE UOP[0-] push(EX) y=9\n"
        "LOAD UOP[0-] pop(LD) pop(ST)\n"
        "FINISH"
    )


def test_a_store_cuts_off_the_high_bits():
    values = np.array([127, 128, 255, 256, -128, -129, *[0] * 10])
    image = run(
        "LOAD ACC[0-0] y=1 x=1 stride=1\nSTORE OUT[0-0] dram=64 y=1 x=1 stride=1\nFINISH",
        _lanes(values),
    )
    found = np.frombuffer(image, np.int8)[1024:1030]
    assert found.tolist() == [127, -128, -1, 0, -128, 127]


def test_rows_of_a_store_that_overlap_are_written_in_order():
    values = np.arange(6).repeat(16)
    image = run(
        "LOAD ACC[0-5] y=1 x=6 stride=6\nSTORE OUT[0-5] dram=64 y=3 x=2 stride=1\nFINISH",
        _lanes(values),
    )
    assert image[1024 : 1024 + 64 : 16] == bytes([0, 2, 4, 5])


def test_gemm_multiplies_by_the_transposed_weights():
    rng = np.random.default_rng(0)
    inp = rng.integers(-128, 128, (3, 16), np.int8)
    wgt = rng.integers(-128, 128, (16, 16), np.int8)
    dram = wgt.tobytes() + inp.tobytes() + uops((0, 0, 0))
    image = run(
        "LOAD WGT[0-0] y=1 x=1 stride=1\n"
        "LOAD INP[0-2] dram=16 y=1 x=3 stride=3 push(EX)\n"
        "LOAD UOP[0-0] dram=76 y=1 x=1 stride=1\n"
        "GEMM UOP[0-0] iter=3,1 dst=1,0 src=1,0 pop(LD) push(ST)\n"
        "STORE OUT[0-2] dram=64 y=1 x=3 stride=3 pop(EX) push(EX)\n"
        "FINISH pop(ST)",
        dram,
        strict=False,
    )
    expected = (inp.astype(np.int32) @ wgt.T.astype(np.int32)).astype(np.int8)
    found = np.frombuffer(image, np.int8)[1024 : 1024 + 48].reshape(3, 16)
    np.testing.assert_array_equal(found, expected)


def test_sums_wrap_around_at_32_bits():
    """16383 times -128 * -128 * 16 is more than 2^31; one accumulator gets it all."""
    dram = bytes([128]) * 272 + uops((0, 0, 0))
    image = run(
        "LOAD WGT[0-0] y=1 x=1 stride=1\n"
        "LOAD INP[0-0] dram=16 y=1 x=1 stride=1 push(EX)\n"
        "LOAD UOP[0-0] dram=68 y=1 x=1 stride=1\n"
        "GEMM UOP[0-0] iter=16383,1 pop(LD)\n"
        "ALU.SHR UOP[0-0] iter=1,1 imm=24\n"
        "STORE OUT[0-0] dram=64 y=1 x=1 stride=1\n"
        "FINISH",
        dram,
    )
    total = (16383 << 18) & 0xFFFFFFFF
    assert image[1024] == total >> 24


def test_counters_are_the_profiler_s():
    text = (
        "LOAD INP[0-11] y=2 x=3 stride=3 ypad=1,1\n"
        "LOAD WGT[0-1] y=1 x=2 stride=2 push(EX)\n"
        "LOAD ACC[0-3] y=2 x=2 stride=2\n"
        "LOAD ACC_8BIT[0-3] y=2 x=2 stride=2\n"
        "LOAD UOP[0-3] dram=0x100 y=1 x=4 stride=4\n"
        "GEMM UOP[0-3] iter=5,2 pop(LD)\n"
        "GEMM UOP[0-3] reset iter=5,2\n"
        "ALU.ADD UOP[0-1] iter=3,2 imm=0\n"
        "STORE OUT[0-5] dram=0x100 y=2 x=3 stride=3\n"
        "FINISH"
    )
    counters = FunctionalSimulator(CONFIG).run(assemble(text), bytearray(1 << 14))
    assert (counters.inp_load_nbytes, counters.wgt_load_nbytes) == (6 * 16, 2 * 256)
    assert (counters.acc_load_nbytes, counters.uop_load_nbytes) == (8 * 64, 4 * 4)
    assert counters.out_store_nbytes == 6 * 16
    assert (counters.gemm_counter, counters.alu_counter) == (40, 12)
    assert counters.instructions == 10


@pytest.mark.parametrize("operation", ["MIN", "MAX", "ADD", "MUL", "SHR"])
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_one_step_sees_what_the_one_before_has_written(operation, data):
    """Micro-ops over six accumulators, so that they meet in all ways."""
    index = st.integers(0, 5)
    pairs = data.draw(st.lists(st.tuples(index, index), min_size=1, max_size=12))
    imm = data.draw(st.sampled_from(["", " imm=3", " imm=-2"]))
    turns = data.draw(st.integers(1, 2))
    values = data.draw(st.lists(st.integers(-40, 40), min_size=6, max_size=6))
    dram = _lanes(np.array(values).repeat(16)) + uops(*((d, s, 0) for d, s in pairs))
    program = (
        "LOAD ACC[0-5] y=1 x=6 stride=6\n"
        f"LOAD UOP[0-{len(pairs) - 1}] dram=96 y=1 x={len(pairs)}\n"
        f"ALU.{operation} UOP[0-{len(pairs) - 1}] iter={turns},2 dst=0,1 src=1,0{imm}\n"
        "STORE OUT[0-6] dram=64 y=1 x=7 stride=7\nFINISH"
    )
    expected = bytearray(dram) + bytearray((1 << 12) - len(dram))
    Machine(expected).run(assemble(program))
    assert run(program, dram, len(expected)) == expected


@pytest.mark.parametrize(
    ("step", "expected"),
    [("SHR", -1), ("MUL", 3**200_000), ("ADD", 600_000 - 5), ("MAX", 3), ("MIN", -5)],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_constant_is_applied_as_often_as_a_loop_turns(step, expected):
    dram = _lanes(np.full(16, -5)) + uops((0, 0, 0))
    text = f"""
    LOAD ACC[0-0] y=1 x=1
    LOAD UOP[0-0] dram=16 y=1 x=1
    ALU.{step} UOP[0-0] iter=200,1000 imm=3
    STORE OUT[0-0] dram=64 y=1 x=1
    FINISH
    """
    if step == "MUL":
        expected *= -5
    assert run(text, dram)[1024] == expected % 256


def test_every_run_begins_with_zeroed_memories_and_empty_queues():
    simulator = FunctionalSimulator(CONFIG)
    first = "LOAD ACC_8BIT[0-0] y=1 x=1 stride=1 push(ST)\nFINISH push(LD)"
    image = bytearray(b"\x05" * 2048)
    simulator.run(assemble(first), image)
    simulator.run(assemble("STORE OUT[0-0] dram=64 y=1 x=1 stride=1\nFINISH"), image)
    assert image[1024:1040] == bytes(16)
