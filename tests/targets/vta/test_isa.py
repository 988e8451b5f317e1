"""The instruction set: the published vectors, every bit once, bytes and text there and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.targets.vta import reference
from tests.targets.vta.programs import any_instruction
from tilewright.targets.vta import (
    Alu,
    AluOp,
    Finish,
    Gemm,
    Instruction,
    Load,
    MemoryId,
    Store,
    VTAConfig,
    VTAError,
    assemble,
    disassemble,
)
from tilewright.targets.vta.fields import Opcode, layout
from tilewright.targets.vta.isa import encode_stream
from tilewright.targets.vta.uops import pack_uops, unpack_uops

VECTORS = {
    "501500148d040000030004000e002103": Load(
        memory_type=MemoryId.INP,
        sram_base=5,
        dram_base=0x12345,
        y_size=3,
        x_size=4,
        x_stride=14,
        y_pad_0=1,
        y_pad_1=2,
        x_pad_0=3,
        pop_next=True,
        push_next=True,
    ),
    "081c0000100000000100090009000000": Load(
        memory_type=MemoryId.UOP,
        sram_base=7,
        dram_base=1024,
        y_size=1,
        x_size=9,
        x_stride=9,
        pop_prev=True,
    ),
    "290a0008001000000200080010000000": Store(
        memory_type=MemoryId.OUT,
        sram_base=2,
        dram_base=0x40002,
        y_size=2,
        x_size=8,
        x_stride=16,
        pop_prev=True,
        push_prev=True,
    ),
    "2a03600170000e000708000704004002": Gemm(
        uop_bgn=3,
        uop_end=11,
        iter_out=14,
        iter_in=7,
        dst_factor_out=7,
        dst_factor_in=1,
        src_factor_out=28,
        src_factor_in=2,
        wgt_factor_in=9,
        pop_prev=True,
        push_prev=True,
    ),
    "820000000c0002000000000000000000": Gemm(
        reset_reg=True, uop_end=8192, iter_out=1, iter_in=1
    ),
    "4401400010000a000508400102b0fdff": Alu(
        alu_opcode=AluOp.SHR,
        use_imm=True,
        imm=-3,
        uop_bgn=1,
        uop_end=2,
        iter_out=2,
        iter_in=5,
        dst_factor_out=5,
        dst_factor_in=1,
        src_factor_out=5,
        src_factor_in=1,
        push_next=True,
    ),
    "0404c000080020000008000004200000": Alu(
        alu_opcode=AluOp.ADD,
        uop_bgn=4,
        uop_end=6,
        iter_out=1,
        iter_in=16,
        dst_factor_in=1,
        src_factor_in=2,
    ),
    "03000000000000000000000000000000": Finish(),
}

LISTING = """\
LOAD INP[5-46] pop(EX) push(EX) dram=0x12345 y=3 x=4 stride=14 ypad=1,2 xpad=3,0
LOAD UOP[7-15] pop(LD) dram=0x400 y=1 x=9 stride=9
STORE OUT[2-17] pop(EX) push(EX) dram=0x40002 y=2 x=8 stride=16
GEMM UOP[3-10] pop(LD) push(LD) iter=14,7 dst=7,1 src=28,2 wgt=0,9
GEMM UOP[0-8191] reset iter=1,1
ALU.SHR UOP[1-1] push(ST) iter=2,5 dst=5,1 src=5,1 imm=-3
ALU.ADD UOP[4-5] iter=1,16 dst=0,1 src=0,2
FINISH
"""


@pytest.mark.parametrize("data", VECTORS, ids=str)
def test_published_vectors(data):
    assert VECTORS[data].encode().hex() == data
    assert Instruction.decode(bytes.fromhex(data)) == VECTORS[data]


def test_listing():
    assert disassemble(encode_stream(list(VECTORS.values()))) == LISTING


def test_micro_ops():
    words = pack_uops(
        *np.array([[1, 2, 3], [2047, 2047, 1023], [100, 7, 0]]).T, VTAConfig()
    )
    assert words.tobytes().hex() == "0110c000" + "ffffffff" + "64380000"
    dst, src, wgt = unpack_uops(words, VTAConfig())
    assert (dst[1], src[1], wgt[1]) == (2047, 2047, 1023)
    with pytest.raises(VTAError, match="wgt is 1024, expected 0 to 1023"):
        pack_uops(*np.array([[0], [0], [1024]]), VTAConfig())


@pytest.mark.parametrize("opcode", Opcode, ids=lambda o: o.name)
def test_the_table_of_fields_is_the_published_one(opcode):
    table = [(f.name, f.offset, f.offset + f.width - 1) for f in layout()[opcode]]
    assert table == reference.FIELDS[opcode]


@given(any_instruction())
@settings(deadline=None)
def test_bytes_there_and_back(instruction):
    assert Instruction.decode(instruction.encode()) == instruction


@given(st.lists(any_instruction(), max_size=6))
@settings(deadline=None)
def test_text_there_and_back(program):
    data = encode_stream(program)
    assert assemble(disassemble(data)) == data


@given(st.binary(min_size=16, max_size=16))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_an_instruction_or_an_error(data):
    if data[0] & 7 > 4:
        with pytest.raises(VTAError, match="unknown opcode"):
            Instruction.decode(data)
        return
    instruction = Instruction.decode(data)
    used = sum(
        (1 << last + 1) - (1 << at) for _, at, last in reference.FIELDS[data[0] & 7]
    )
    masked = int.from_bytes(data, "little") & (used | 7)  # no field has the other bits
    assert instruction.encode() == masked.to_bytes(16, "little")
    assert assemble(disassemble(data)) == instruction.encode()
    assert reference.fields(data) == reference.fields(instruction.encode())


@given(st.binary(max_size=60))
@settings(deadline=None)
def test_disassembly_of_anything_is_text_or_an_error(data):
    try:
        text = disassemble(data)
    except VTAError:
        return
    assert disassemble(assemble(text)) == text


@given(st.text(alphabet="LOADSTREGMINP UXC.[]()=-,0123456789xyadpoush\n/", max_size=60))
@settings(deadline=None)
def test_assembly_of_anything_is_bytes_or_an_error(text):
    try:
        assemble(text)
    except VTAError:
        pass


@pytest.mark.parametrize("value", [1.5, "4", None], ids=repr)
def test_a_field_holds_whole_numbers(value):
    with pytest.raises(VTAError, match=r"x_size is .*, expected a whole number"):
        Load(memory_type=2, x_size=value).encode()


def test_another_configuration_moves_the_fields():
    config = VTAConfig(LOG_BATCH=1, LOG_INP_BUFF_SIZE=16, LOG_ACC_BUFF_SIZE=18)
    assert (config.LOG_INP_DEPTH, config.LOG_ACC_DEPTH, config.LOG_WGT_DEPTH) == (
        11,
        11,
        10,
    )
    smaller = VTAConfig(
        LOG_ACC_BUFF_SIZE=16, LOG_INP_BUFF_SIZE=15, LOG_WGT_BUFF_SIZE=19
    )
    gemm = Gemm(uop_end=1, wgt_factor_in=2047)
    assert Instruction.decode(gemm.encode(smaller), smaller) == gemm
    with pytest.raises(VTAError, match="wgt_factor_in is 2047, expected 0 to 1023"):
        gemm.encode()


@pytest.mark.parametrize(
    ("name", "case"),
    {
        "width": ({"LOG_INP_WIDTH": 4}, "LOG_INP_WIDTH is 4, .* from 1 to 3"),
        "sums": ({"LOG_ACC_WIDTH": 4}, "LOG_ACC_WIDTH is 4, .* from 5 to 5"),
        "no tile": ({"LOG_BLOCK": 0}, "LOG_BLOCK is 0, .* from 1 to 10"),
        "micro-op": ({"LOG_WGT_BUFF_SIZE": 19}, "make micro-ops of 33, .* most 32"),
        "too small": ({"LOG_INP_BUFF_SIZE": 3}, r"the INP buffer holds 2\^-1 elements"),
        "too many accumulators": (
            {"LOG_BLOCK": 3, "LOG_WGT_BUFF_SIZE": 14},
            r"the ACC buffer holds 2\^12 elements, expected 2\^0 to 2\^11",
        ),
        "too many micro-ops": ({"LOG_UOP_BUFF_SIZE": 16}, r"UOP buffer holds 2\^14"),
        "half a byte": (
            {
                "LOG_BLOCK": 1,
                "LOG_INP_WIDTH": 1,
                "LOG_INP_BUFF_SIZE": 10,
                "LOG_WGT_BUFF_SIZE": 10,
                "LOG_ACC_BUFF_SIZE": 10,
            },
            "an element of INP has 4 bits, expected whole bytes",
        ),
        "no number": ({"LOG_BATCH": "1"}, "LOG_BATCH is '1', expected a logarithm"),
    }.items(),
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_impossible_configurations(name, case):
    change, message = case
    with pytest.raises(VTAError, match=message):
        VTAConfig(**change)


@pytest.mark.parametrize(
    "config", [VTAConfig(LOG_WGT_BUFF_SIZE=17), VTAConfig(LOG_BLOCK=5)]
)
def test_micro_ops_may_have_bits_to_spare(config):
    """The published run time asks for 32 bits altogether, which narrower indices leave in part."""
    assert sum(config.uop_widths) < 32
    indices = np.array([[(1 << bits) - 1, 1] for bits in config.uop_widths])
    words = pack_uops(*indices, config)
    assert words.nbytes == 8
    assert np.array_equal(unpack_uops(words, config), indices)


@pytest.mark.parametrize(
    ("name", "log"), [("LOG_UOP_BUFF_SIZE", 15), ("LOG_ACC_BUFF_SIZE", 17)]
)
def test_the_largest_depths_are_those_that_instructions_have_fields_for(
    monkeypatch, name, log
):
    smaller = {"LOG_WGT_BUFF_SIZE": 15}  # so that micro-ops have bits to spare
    layout(VTAConfig(**smaller, **{name: log}))
    monkeypatch.setattr("tilewright.targets.vta.config._DEPTHS", {})
    with pytest.raises(VTAError, match="bits, of 128"):
        layout(VTAConfig(**smaller, **{name: log + 1}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("JUMP", "line 1: 'JUMP' is not an instruction; known: LOAD"),
        ("FINISH\nLOAD", "line 2: LOAD is followed by a range"),
        ("LOAD INP[0-3] y=1 x=5", r"the range ends at 3, and its sizes give \[0-4\]"),
        ("LOAD INP[0-] y=1 x=65536", "x_size is 65536, expected 0 to 65535"),
        ("LOAD INP[0-] pop(ST)", "ST is not a neighbor of LD"),
        ("GEMM INP[0-3]", "GEMM has a range of UOP"),
        ("GEMM UOP[0-3] iter=1", "expected 2 numbers, found 1"),
        ("GEMM UOP[0-3] imm=1", "'imm=1' is not a part of GEMM"),
        ("ALU UOP[0-3]", "an operation is given for ALU"),
        ("ALU.DIV UOP[0-3]", "'DIV' is unknown; known: MIN, MAX"),
        ("LOAD INP[" + 5000 * "9" + "-]", "LOAD is followed by a range"),
        ("LOAD INP[0-] y=0x" + 5000 * "f", "is not a part of LOAD"),
        ("LOAD INP[0-] y=one", "'one' is not a number"),
        ("GEMM UOP[0-3] iter=1,2 iter=3,4", "'iter' is given 2 times"),
        ("FINISH pop(LD) pop(LD)", r"'pop\(LD\)' is given 2 times"),
    ],
    ids=lambda v: v[:30],
)
def test_what_the_assembler_refuses(text, message):
    with pytest.raises(VTAError, match=message):
        assemble(text)


@pytest.mark.parametrize("value", [None, 16, "FINISH", [0] * 16], ids=str)
def test_what_is_no_program_at_all(value):
    for read in (Instruction.decode, disassemble, assemble):
        if read is not assemble or not isinstance(value, str):
            with pytest.raises(
                VTAError, match=f"expected (bytes|text), found {type(value).__name__}"
            ):
                read(value)


def test_the_assembler_reads_what_people_write():
    text = """
    // two rows of an image, below one of zeros
    LOAD INP[0-] push(EX) dram=0x10 y=2 x=4 stride=8 ypad=1,0  // LD@TID0

    FINISH pop(LD)
    """
    assert disassemble(assemble(text)) == (
        "LOAD INP[0-11] push(EX) dram=0x10 y=2 x=4 stride=8 ypad=1,0\nFINISH pop(LD)\n"
    )
