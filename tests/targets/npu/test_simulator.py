"""The simulator refuses what the machine cannot do, and names the instruction."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.targets.npu.programs import chain
from tilewright.base.errors import InputError
from tilewright.targets import npu

FULL = npu.MACHINES["full"]
HEAD = ".input x dram[0] 32\n.output y dram[32] 32\n"
GOOD = HEAD + "v_rd dram[0] n=32\n  v_relu\n  v_wr dram[32] n=32\nend_chain\n"


def run(text: str, limit: int = 1000) -> np.ndarray:
    x = np.linspace(-1, 1, 32, dtype=np.float32)
    (y,) = npu.run(npu.parse(text), FULL, [x], limit=limit)
    return y


def test_a_program() -> None:
    np.testing.assert_array_equal(
        run(GOOD), np.maximum(np.linspace(-1, 1, 32, dtype="f4"), 0)
    )
    assert npu.show(npu.parse(GOOD)) == GOOD


BODIES = {
    "unknown": ("v_sin", "line 3: v_sin: unknown opcode 'v_sin'"),
    "field": ("v_rd dram[0] n=32 m=4", "unexpected 'm=4'"),
    "missing": ("v_rd dram[0]", "v_rd needs n"),
    "place": ("v_rd 17 n=32", "'17' is not a place in memory"),
    "memory": ("vv_add dram[0] n=32", "vv_add cannot use dram"),
    "start": ("v_relu", "instruction 0: v_relu: a chain begins with what it reads"),
    "no write": ("v_rd dram[0] n=32\nend_chain", "1: end_chain: the chain writes nothing"),
    "order": ("v_rd dram[0] n=32\nv_wr vrf[0] n=32\nv_relu", "v_relu cannot follow a write"),
    "end": ("v_rd dram[0] n=32\nv_wr vrf[0] n=32", "the last chain does not end"),
    "size": ("v_rd dram[0] n=31\nv_relu", "full has no VVRelu of 31; sizes: 128, 64, 32"),
    "operand": ("v_rd dram[0] n=32\nvv_add vrf[0] n=64", "expected a value of 64, found 32"),
    "unwritten": (
        "v_rd dram[0] n=32\nvv_add vrf[4] n=32\nv_wr dram[32] n=32\nend_chain",
        "instruction 1: vv_add vrf[4] n=32: element 4 is read before it is written",
    ),
    "capacity": (
        "v_rd dram[0] n=32\nv_wr vrf[8180] n=32\nend_chain",
        "instruction 1: v_wr vrf[8180] n=32: vrf has 8192 elements; 8180 to 8211 are used",
    ),
    "negative": ("v_rd dram[0] n=32 step=-1\nv_relu", "dram has 16777216 elements; -31 to 0"),
    "far": (f"v_rd dram[0] n={10**25}\nv_relu", f"dram has 16777216 elements; 0 to {10**25 - 1}"),
    "step": (f"v_rd dram[0] n=2 step={10**20}", f"0 to {10**20} are used"),
    "repeated": (
        "v_rd dram[0] n=1000000000 step=0", "1000000000 elements of dram, which has 16777216",
    ),
    "wide": (
        f"m_rd dram[0] rows=2 columns={10**12} step=1",
        f"dram has 16777216 elements; 0 to {10**12} are used",
    ),
    "empty": ("v_rd dram[0] n=0\nv_relu", "a size below 1"),
    "rank": ("v_rd dram[0] n=32\nmm_mul mrf[0] rows=64 columns=64", "64 rows"),
    "tile": (
        "m_rd dram[0] rows=2 columns=4\nm_wr mrf[0] rows=1 columns=4",
        "a value of 2x4 is written as 1x4",
    ),
    "mixed": ("v_rd dram[0] n=4\nm_rd dram[0] rows=2 columns=5", "rows of 5 cannot follow"),
    "output": ("v_rd dram[0] n=32\nv_wr vrf[0] n=32\nend_chain", "output y: element 32 is read"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "message"), BODIES.values(), ids=BODIES)
def test_refused(body: str, message: str) -> None:
    with pytest.raises(npu.NPUError) as error:
        run(HEAD + body)
    assert message in str(error.value)


def test_limits() -> None:
    with pytest.raises(
        npu.NPUError, match="instruction 3: end_chain: more than 3 instructions"
    ):
        run(GOOD, limit=3)
    with pytest.raises(InputError, match=r"expected arrays of the shapes \[\(32,\)\]"):
        npu.run(npu.parse(GOOD), FULL, [])
    for line in (
        ".input x vrf[0] 4",
        ".output y dram[0] 4xb",
        ".const dram[0] one",
        ".input x",
    ):
        with pytest.raises(npu.NPUError, match="line 1"):
            npu.parse(line)


@settings(deadline=None)
@given(st.data())
def test_mutilated_programs_are_refused_or_run(data: st.DataObject) -> None:
    """Words of a program exchanged: a clear error or a result, nothing else."""
    words = [line.split(" ") for line in GOOD.splitlines()[2:]]
    row = data.draw(st.integers(0, len(words) - 1))
    column = data.draw(st.integers(0, len(words[row]) - 1))
    pieces = [
        "v_rd",
        "m_wr",
        "mv_mul",
        "mrf[0]",
        "vrf[-1]",
        "n=64",
        "step=0",
        "",
        "rows=3",
        "#",
        "=",
    ]
    words[row][column] = data.draw(st.sampled_from(pieces))
    try:
        assert run(HEAD + "\n".join(map(" ".join, words))).shape == (32,)
    except npu.NPUError as error:
        assert (
            "line" in str(error)
            or "instruction" in str(error)
            or "output" in str(error)
        )


def test_parts_of_a_chain_overlap() -> None:
    """Two chains on different data: the second one's reads overlap the first one's work."""
    one = GOOD.splitlines()[2:]
    apart = [line.replace("dram[32]", "dram[64]") for line in one]
    single = npu.time(npu.parse(HEAD + "\n".join(one)), FULL)
    double = npu.time(npu.parse(HEAD + "\n".join(one + apart)), FULL)
    behind = [
        line.replace("dram[32]", "dram[64]").replace("dram[0]", "dram[32]")
        for line in one
    ]
    serial = npu.time(npu.parse(HEAD + "\n".join(one + behind)), FULL)
    assert single.cycles < double.cycles < 2 * single.cycles <= serial.cycles + 8
    assert double.energy == 2 * single.energy and double.dram_bytes == 4 * 32 * 4
    assert single.busy["dram"] == 2 * 32 * 4 // 32 and single.busy["vector"] == 1


def test_chains_do_not_change_results() -> None:
    """Each operator in its own chain, in half precision: the same bits."""
    machine = npu.MACHINES["wide"]
    mapped = npu.map_onto(chain(128), machine)
    code = []
    for i in mapped.program.instructions:
        code.append(i)
        if i.op in ("vv_mul", "vv_add"):
            place = ("vrf", 4096)
            code += [npu.NpuInstruction("v_wr", *place, n=128), npu.NpuInstruction("end_chain"),
                     npu.NpuInstruction("v_rd", *place, n=128)]  # fmt: skip
    whole = mapped.program
    apart = npu.NpuProgram(tuple(code), whole.inputs, whole.outputs, whole.constants)
    inputs = list(np.random.default_rng(0).standard_normal((3, 128)).astype(np.float32))
    np.testing.assert_array_equal(
        *(npu.run(p, machine, inputs)[0] for p in (whole, apart))
    )
    assert npu.time(apart, machine).cycles > npu.time(whole, machine).cycles


def test_listings_are_read_back() -> None:
    for machine in npu.MACHINES.values():
        program = npu.map_onto(chain(100), machine).program
        assert npu.parse(npu.show(program)) == program


def test_regions_of_nothing_and_of_too_much() -> None:
    text = ".input x dram[0] 0\n.output y dram[0] 0x4\n"
    (y,) = npu.run(npu.parse(text), FULL, [np.zeros(0, np.float32)])
    assert y.shape == (0, 4)
    for line in (f".output y dram[0] {10**12}x{10**12}", f".const dram[{10**18}] 1.0"):
        with pytest.raises(npu.NPUError, match="dram"):
            npu.run(npu.parse(line), FULL, [])
