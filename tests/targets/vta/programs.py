"""Random legal programs: small rectangles and nests over few elements, so that they conflict."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from tilewright.targets.vta import (
    Alu,
    AluOp,
    Finish,
    Gemm,
    Instruction,
    Load,
    MemoryId,
    Store,
)
from tilewright.targets.vta.commands import Commands
from tilewright.targets.vta.config import VTAConfig
from tilewright.targets.vta.dram import Dram
from tilewright.targets.vta.fields import DEFAULT, Field, Opcode, layout
from tilewright.targets.vta.isa import encode_stream
from tilewright.targets.vta.stages import POPS, PUSHES, VtaModule, stage
from tilewright.targets.vta.uops import pack_uops

UOPS = 64  # at the beginning of DRAM
CLASSES = {Opcode.LOAD: Load, Opcode.STORE: Store, Opcode.GEMM: Gemm, Opcode.ALU: Alu}
SHOWN = 48  # accumulators that the end of a program writes out


def _value(field: Field) -> st.SearchStrategy[int]:
    low = -(1 << field.width - 1) if field.signed else 0
    return st.integers(low, low + (1 << field.width) - 1)


@st.composite
def any_instruction(draw: st.DrawFn) -> Instruction:
    """Any values in the fields, whether the machine can execute them or not."""
    cls = draw(st.sampled_from([Load, Store, Gemm, Alu, Finish]))
    values = {f.name: draw(_value(f)) for f in layout(VTAConfig())[cls.opcode]}
    return cls(**values)


def small(most: int) -> st.SearchStrategy[int]:
    return st.integers(0, most)


_SIZES = {"y_size": small(3), "x_size": small(4), "x_stride": small(6)}
_PADS = {name: small(2) for name in ("y_pad_0", "y_pad_1", "x_pad_0", "x_pad_1")}
_NEST = {
    "uop_bgn": small(20),
    "uop_end": small(24),
    "iter_out": small(3),
    "iter_in": small(3),
    **{
        f"{name}_factor_{loop}": small(3)
        for name in ("dst", "src")
        for loop in ("out", "in")
    },
}

# What is read of DRAM may have been stored.
LEGAL: dict[str, st.SearchStrategy[Instruction]] = {
    "load uop": st.builds(
        Load,
        memory_type=st.just(MemoryId.UOP),
        sram_base=small(12),
        dram_base=small(40),
        **_SIZES,
    ),
    "gemm": st.builds(
        Gemm,
        reset_reg=st.booleans(),
        wgt_factor_out=small(3),
        wgt_factor_in=small(3),
        **_NEST,
    ),
    "alu": st.builds(
        Alu,
        alu_opcode=st.sampled_from([o for o in AluOp if o is not AluOp.SHR]),
        use_imm=st.booleans(),
        imm=st.integers(-(1 << 15), (1 << 15) - 1),
        **_NEST,
    ),
    "shift": st.builds(
        Alu,
        alu_opcode=st.just(AluOp.SHR),
        use_imm=st.booleans(),
        imm=st.integers(-31, 31),
        **_NEST,
    ),
}


def legal(config: VTAConfig) -> list[st.SearchStrategy[Instruction]]:
    """All kinds of instructions. Stores come after the micro-ops."""
    size = config.spaces[MemoryId.OUT].dram_bytes
    behind = -(-4 * (UOPS + 1) // size)
    store = st.builds(
        Store,
        memory_type=st.just(MemoryId.OUT),
        sram_base=small(20),
        dram_base=st.integers(behind, 3000),
        **_SIZES,
    )
    loads = [MemoryId.WGT, MemoryId.INP, MemoryId.ACC]
    loads += [MemoryId.ACC_8BIT] if config.loads_bytes else []
    load = st.builds(
        Load,
        memory_type=st.sampled_from(loads),
        sram_base=small(12),
        dram_base=small(200),
        **_SIZES,
        **_PADS,
    )
    return [*LEGAL.values(), load, store]


def dram_size(config: VTAConfig) -> int:
    """Bytes that all legal programs stay within."""
    spaces = config.spaces
    used = {MemoryId.OUT: 4096, MemoryId.WGT: 256, MemoryId.ACC: 256}
    return max(count * spaces[m].dram_bytes for m, count in used.items())


@st.composite
def tokens(draw: st.DrawFn, program: list[Instruction]) -> list[Instruction]:
    """The program with dependence flags that do not block it in its order."""
    there = dict.fromkeys(("l2g", "g2l", "g2s", "s2g"), 0)
    found = []
    for i in program:
        flags = {}
        for flag, queue in POPS[stage(i)].items():
            flags[flag] = there[queue] > 0 and draw(st.booleans())
            there[queue] -= flags[flag]
        for flag, queue in PUSHES[stage(i)].items():
            flags[flag] = draw(st.booleans())
            there[queue] += flags[flag]
        values = {f.name: getattr(i, f.name) for f in layout(VTAConfig())[i.opcode]}
        found.append(type(i)(**values | flags))
    return found


def show_all() -> list[Instruction]:
    """Write out the first accumulators byte by byte."""
    found: list[Instruction] = [
        Load(
            memory_type=MemoryId.UOP,
            sram_base=0,
            dram_base=UOPS,
            y_size=1,
            x_size=1,
            x_stride=1,
        )
    ]
    for part in range(4):
        found.append(
            Store(
                memory_type=MemoryId.OUT,
                sram_base=0,
                dram_base=3200 + SHOWN * part,
                y_size=1,
                x_size=SHOWN,
                x_stride=SHOWN,
            )
        )
        nest = {
            "uop_bgn": 0,
            "uop_end": 1,
            "iter_out": 1,
            "iter_in": SHOWN,
            "dst_factor_in": 1,
        }
        found.append(Alu(alu_opcode=AluOp.SHR, use_imm=True, imm=8, **nest))
    return found


@st.composite
def images(draw: st.DrawFn, config: VTAConfig = DEFAULT) -> bytes:
    """A DRAM image that begins with micro-ops, followed by one of zeros."""
    rng = np.random.default_rng(draw(small(1 << 30)))
    dram = rng.integers(0, 256, dram_size(config), np.uint8)
    indices = rng.integers(0, 12, (3, UOPS))
    uops = pack_uops(*indices, config).tobytes() + bytes(4)
    dram[: len(uops)] = np.frombuffer(uops, np.uint8)
    return dram.tobytes()


FIRST = Load(memory_type=MemoryId.UOP, dram_base=0, y_size=1, x_size=32, x_stride=32)


@st.composite
def partly_ordered(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A program in which some stages wait for the previous one, and the end for everything."""
    c, before = Commands(Dram()), VtaModule.COMPUTE
    body = draw(st.lists(st.one_of(*legal(DEFAULT)), min_size=1, max_size=8))
    for memory in (
        MemoryId.INP,
        MemoryId.WGT,
        MemoryId.ACC,
    ):  # so that nothing is read unwritten
        c.record(Load(memory_type=memory, y_size=1, x_size=SHOWN))
    c.record(FIRST)
    order(c, VtaModule.LOAD, VtaModule.COMPUTE)
    for i in body:
        now = stage(i)
        if now is not before and draw(st.booleans()):
            order(c, before, now)
        before = now
        c.record(i)
    order(c, before, VtaModule.COMPUTE)
    order(c, VtaModule.LOAD, VtaModule.COMPUTE)
    order(c, VtaModule.STORE, VtaModule.COMPUTE)
    for i in show_all():
        c.record(i)
        other = VtaModule.COMPUTE if stage(i) is VtaModule.STORE else VtaModule.STORE
        order(c, stage(i), other)
    return c.finish(), draw(images())


def order(c: Commands, before: VtaModule, now: VtaModule) -> None:
    """The next commands of one stage wait for the recorded ones of the other."""
    apart = {before, now} == {VtaModule.LOAD, VtaModule.STORE}
    path = [before, VtaModule.COMPUTE, now] if apart else [before, now]
    for giver, taker in pairwise(path):
        if giver is not taker:
            c.push(giver, taker)
            c.pop(giver, taker)


@st.composite
def programs(draw: st.DrawFn, config: VTAConfig = DEFAULT) -> tuple[bytes, bytes]:
    """A stream that runs to its end, and a DRAM image for it."""
    body = draw(st.lists(st.one_of(*legal(config)), min_size=1, max_size=12))
    program = draw(tokens([FIRST, *body]))
    stream = encode_stream([*program, *show_all(), Finish()], config)
    return stream, draw(images(config))
