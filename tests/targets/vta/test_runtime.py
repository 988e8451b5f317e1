"""The run time: two layers by hand, right and with their latency hidden; each of its rules."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.targets.vta import layers
from tests.targets.vta.layers import Convolution
from tests.targets.vta.reference import Machine
from tilewright.targets.vta import (
    AluOp,
    FunctionalSimulator,
    MemoryId,
    TimingSimulator,
    VTAConfig,
    VTAError,
    assemble,
    disassemble,
)
from tilewright.targets.vta.commands import Commands
from tilewright.targets.vta.dram import Dram
from tilewright.targets.vta.isa import encode_stream
from tilewright.targets.vta.kernel import (
    GEMM,
    RESET,
    IndexLoop,
    VtaKernel,
    VtaOperation,
    kernels,
)
from tilewright.targets.vta.listings import listing
from tilewright.targets.vta.stages import VtaModule

LD, EX, ST = VtaModule.LOAD, VtaModule.COMPUTE, VtaModule.STORE


def bytes_of(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(-128, 128, shape, np.int8)


def operands(m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(m + n + k)
    a, b = bytes_of(rng, m, k), bytes_of(rng, n, k)
    return a, b, layers.quantized(a.astype(np.int32) @ b.T.astype(np.int32))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_matrix_product_by_hand(threads):
    a, b, expected = operands(64, 48, 64)
    layer = layers.matmul(a, b, rows=16, depth=2, threads=threads)
    counters = layer.commands.synchronize(FunctionalSimulator(strict=True))
    np.testing.assert_array_equal(layer.out.read(layer.shape, np.int8), expected)
    assert counters.gemm_counter * 256 == layer.macs


def operands_of(s: Convolution) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    weights = bytes_of(rng, s.outputs, s.inputs, s.kernel, s.kernel)
    return bytes_of(rng, s.inputs, s.size, s.size), weights


SHAPES = {
    "same": Convolution(14, 32, 32, kernel=3, stride=1, rows=7, channels=2),
    "strided": Convolution(14, 32, 48, kernel=3, stride=2, rows=7, channels=1),
    "projection": Convolution(14, 64, 32, kernel=1, stride=2, rows=7, channels=2),
    "wide": Convolution(8, 16, 16, kernel=5, stride=1, rows=4, channels=1),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", SHAPES, ids=str)
def test_a_convolution_by_hand(name, threads):
    s = SHAPES[name]
    rng = np.random.default_rng(0)
    x, w = (
        bytes_of(rng, s.inputs, s.size, s.size),
        bytes_of(rng, s.outputs, s.inputs, s.kernel, s.kernel),
    )
    layer = layers.convolution(s, x, w, threads)
    timing = layer.commands.synchronize(TimingSimulator(strict=True))
    np.testing.assert_array_equal(
        layer.out.read(layer.shape, np.int8), layers.convolved(s, x, w)
    )
    assert timing.macs == layer.macs


def test_virtual_threads_hide_the_latency():
    """C9 of ResNet-18: 14x14, 256 -> 256 channels, 3x3."""
    s = Convolution(14, 256, 256, kernel=3, stride=1, rows=14, channels=4)
    x, w = operands_of(s)
    found = {}
    for threads in (1, 2):
        layer = layers.convolution(s, x, w, threads)
        found[threads] = layer.commands.synchronize(TimingSimulator())
        np.testing.assert_array_equal(
            layer.out.read(layer.shape, np.int8), layers.convolved(s, x, w)
        )
    assert found[1].utilization < 0.8
    assert found[2].utilization > 0.95
    waits = [found[n].modules[EX].stalls["l2g"] / found[n].cycles for n in (1, 2)]
    assert waits[0] > 0.15
    assert waits[1] < 0.02


def test_a_layer_takes_few_steps_of_python():
    """A call for five hundred multiply-accumulates at least: that is what makes it fast."""
    s = Convolution(14, 256, 256, kernel=3, stride=1, rows=14, channels=4)
    layer = layers.convolution(s, *operands_of(s), threads=2)
    steps = 0

    def count(*_):
        nonlocal steps
        steps += 1

    sys.setprofile(count)
    try:
        layer.commands.synchronize(FunctionalSimulator())
    finally:
        sys.setprofile(None)
    assert layer.macs / steps > 500


def test_the_steady_state_has_no_instruction_but_the_layer_s():
    """As VTA's own run time has it: LOAD pops, the last LOAD pushes, GEMM does both."""
    a, b, _ = operands(64, 48, 64)
    layer = layers.matmul(a, b, rows=16, depth=2, threads=2)
    text = disassemble(layer.commands.finish()).splitlines()
    heads = [line.split(" dram")[0].split(" iter")[0] for line in text]
    steady = [
        "LOAD INP[0-31] pop(EX)",
        "LOAD WGT[0-5] push(EX)",
        "LOAD INP[32-63] pop(EX)",
        "LOAD WGT[6-11] push(EX)",
        "GEMM UOP[2-4] pop(LD) push(LD)",
        "GEMM UOP[5-7] pop(LD) push(LD)",
    ]
    first = heads.index(steady[-1]) + 1
    assert heads[first : first + 6] == steady


def test_a_listing_says_whose_an_instruction_is_and_what_it_touches(golden):
    a, b, _ = operands(32, 32, 32)
    layer = layers.matmul(a, b, rows=16, depth=1, threads=2)
    stream = layer.commands.finish()
    found = listing(stream, layer.commands.dram.image, layer.commands.threads)
    assert assemble(found) == stream
    golden("vta_matmul", found.rstrip("\n"))


def test_programs_that_the_run_time_records_do_what_the_reference_does():
    a, b, expected = operands(8, 16, 32)
    layer = layers.matmul(a, b, rows=4, depth=1, threads=2)
    stream, image = layer.commands.finish(), bytearray(layer.commands.dram.image)
    Machine(image).run(stream)
    at = layer.out.address
    found = np.frombuffer(image, np.int8)[at : at + expected.size]
    np.testing.assert_array_equal(found.reshape(expected.shape), expected)


# ------------------------------------------------------------------------------ dependences


def recorded(actions) -> str:
    c = Commands(Dram())
    actions(c, c.dram.allocate(16))
    return disassemble(c.finish())


def test_a_pop_is_taken_by_the_next_instruction_and_a_push_given_by_the_last():
    def actions(c, buffer):
        c.load(MemoryId.INP, 0, buffer, 0, (1, 1))
        c.push(LD, EX)
        c.pop(LD, EX)
        c.launch([VtaKernel(RESET, ((0, 0, 0),))])

    assert recorded(actions) == (
        "LOAD INP[0-0] push(EX) dram=0x100 y=1 x=1 stride=1\n"
        "LOAD UOP[0-0] dram=0x800 y=1 x=1 stride=1\n"
        "GEMM UOP[0-0] pop(LD) reset iter=1,1\n"
        "LOAD INP[0-] push(EX)\n"
        "FINISH pop(LD)\n"
    )


def test_what_no_instruction_can_take_is_taken_by_one_that_does_nothing():
    def actions(c, buffer):
        for _ in range(2):
            c.push(EX, LD)
            c.pop(EX, LD)
        c.push(LD, EX)
        c.pop(LD, EX)

    assert recorded(actions) == (
        "LOAD UOP[0-] push(LD)\n"
        "LOAD UOP[0-] push(LD)\n"
        "LOAD INP[0-] pop(EX)\n"
        "LOAD INP[0-] pop(EX) push(EX)\n"
        "LOAD INP[0-] push(EX)\n"
        "LOAD UOP[0-] pop(LD)\n"
        "FINISH pop(LD)\n"
    )


def test_nothing_is_recorded_behind_the_end():
    c = Commands(Dram())
    assert c.finish() == c.finish() == assemble("FINISH")
    with pytest.raises(VTAError, match="recorded after FINISH"):
        c.push(LD, EX)
    c.synchronize(FunctionalSimulator())
    c.push(LD, EX)


def test_only_neighbors_have_a_queue():
    with pytest.raises(VTAError, match="LOAD and STORE are not neighbors"):
        recorded(lambda c, _: c.push(LD, ST))


# ------------------------------------------------------------------------------ micro-kernels


def _kernel(n: int, first: int = 0) -> VtaKernel:
    return VtaKernel(RESET, tuple((first, k % 1024, k // 1024) for k in range(n)))


def uop_loads(*launches: VtaKernel) -> list[str]:
    text = recorded(lambda c, _: [c.launch([k]) for k in launches])
    return [
        line.split()[1] for line in text.splitlines() if line.startswith("LOAD UOP")
    ]


def test_a_kernel_that_is_on_the_chip_is_not_sent_again():
    one, other = _kernel(3), _kernel(2, first=1)
    assert uop_loads(one, other, one, other) == ["UOP[0-2]", "UOP[3-4]"]


def test_when_the_chip_is_full_the_first_kernels_go():
    one, two, three = (_kernel(4000, first=n) for n in range(3))
    assert uop_loads(one, two, three, two, one, three) == [
        "UOP[0-3999]",
        "UOP[4000-7999]",
        "UOP[0-3999]",
        "UOP[4000-7999]",
    ]


def test_results_stay_right_when_kernels_are_loaded_over_one_another():
    dram = Dram()
    out, c = dram.allocate(16 * 16), Commands(dram)
    for _ in range(2):
        for n in range(12):  # 12,000 micro-ops, of 8,192
            add = VtaOperation(alu=AluOp.ADD, imm=n + 1)
            c.launch([VtaKernel(add, ((n, 0, 0), *((15, 0, k) for k in range(999))))])
    c.push(EX, ST)
    c.pop(EX, ST)
    c.store(0, out, 0, (1, 16))
    c.synchronize(FunctionalSimulator())
    found = out.read((16, 16), np.int8)[:12, 0]
    assert found.tolist() == [2 * (n + 1) for n in range(12)]


def test_kernels_are_generated_once_and_stay_in_dram():
    dram, made = Dram(), []
    c = Commands(dram)

    def generate():
        made.append(1)
        return [_kernel(3)]

    streams = []
    for _ in range(2):
        c.launch_once("k", generate)
        size = len(dram.image)
        streams.append(disassemble(encode_stream(c.instructions)))
        c.synchronize(FunctionalSimulator())
    assert made == [1]
    assert streams[0] == streams[1]
    assert len(dram.image) == size


@st.composite
def nests(draw):
    extent = st.integers(1, 4)
    return draw(
        st.lists(
            st.builds(
                IndexLoop, extent, *(st.sampled_from([0, 0, 1, 3, 5]) for _ in range(3))
            ),
            max_size=5,
        )
    )


@given(nests(), st.tuples(*(st.integers(0, 3) for _ in range(3))))
@settings(max_examples=200, deadline=None)
def test_a_nest_has_the_steps_of_its_kernels(loops, first):
    expected = [first]
    for loop in loops:
        expected = [
            (d + n * loop.dst, s + n * loop.src, w + n * loop.wgt)
            for d, s, w in expected
            for n in range(loop.extent)
        ]
    found = []
    for kernel in kernels(GEMM, loops, first):
        i = kernel.instruction(0)
        found += [
            (
                d + outer * i.dst_factor_out + inner * i.dst_factor_in,
                s + outer * i.src_factor_out + inner * i.src_factor_in,
                w + outer * i.wgt_factor_out + inner * i.wgt_factor_in,
            )
            for outer in range(i.iter_out)
            for inner in range(i.iter_in)
            for d, s, w in kernel.uops
        ]
    assert sorted(found) == sorted(expected)


def test_the_two_largest_loops_are_the_instruction_s():
    loops = [
        IndexLoop(14, dst=14, src=16),
        IndexLoop(9, dst=1, wgt=9),
        IndexLoop(3, src=1),
        IndexLoop(3, dst=300),
    ]
    (kernel,) = kernels(GEMM, loops)
    assert [loop.extent for loop in kernel.loops] == [14, 9]
    assert len(kernel.uops) == 9


def test_sums_are_kept_apart():
    """Over 8 accumulators and 16 terms: the accumulators are innermost."""
    (kernel,) = kernels(
        GEMM, [IndexLoop(32, src=1, wgt=1), IndexLoop(16, src=40), IndexLoop(8, dst=1)]
    )
    assert [dst for dst, _, _ in kernel.uops] == list(range(8))
    with pytest.raises(
        VTAError, match="micro-op 2 sums into accumulator 0 as one of the two"
    ):
        VtaKernel(GEMM, ((0, 0, 0), (1, 0, 0), (0, 1, 0)))


def test_what_cannot_be_kept_apart_becomes_several_kernels():
    loops = [IndexLoop(3, src=1), IndexLoop(4, src=3), IndexLoop(5, src=12)]
    found = kernels(GEMM, loops)
    assert [len(k.uops) for k in found] == [1, 1, 1]


REFUSED = {
    "three loops": (
        lambda: VtaKernel(GEMM, ((0, 0, 0),), (IndexLoop(2),) * 3),
        "3 loops",
    ),
    "index": (
        lambda: VtaKernel(RESET, ((2048, 0, 0),)).words,
        "dst is 2048, expected 0 to 2047",
    ),
    "extent": (
        lambda: (
            VtaKernel(RESET, ((0, 0, 0),), (IndexLoop(20000),)).instruction(0).encode()
        ),
        "iter_in is 20000, expected 0 to 16383",
    ),
    "micro-ops": (lambda: uop_loads(_kernel(8193)), "8193 micro-ops, and 8192 fit"),
    "buffer": (lambda: Dram().allocate(0), "a buffer of 0 bytes"),
    "element": (
        lambda: recorded(
            lambda c, buffer: c.load(MemoryId.INP, 0, buffer, 0, (2, 1), 0x10000)
        ),
        "elements 0 to 65536 of INP, in a buffer of 1",
    ),
    "before": (
        lambda: recorded(lambda c, buffer: c.store(0, buffer, -1, (1, 1))),
        "elements -1 to -1 of OUT, in a buffer of 1",
    ),
    "full": (lambda: Dram(limit=1 << 14).allocate(1 << 14), "16384 bytes do not fit"),
}


@pytest.mark.parametrize("name", REFUSED, ids=str)
def test_what_the_run_time_refuses(name):
    action, message = REFUSED[name]
    with pytest.raises(VTAError, match=message):
        action()


# ------------------------------------------------------------------------------ DRAM


def test_buffers_begin_at_pages_and_freed_ones_are_used_again():
    dram = Dram()
    sizes = [1, 5000, 4096, 9000]
    buffers = [dram.allocate(n) for n in sizes]
    assert [b.address for b in buffers] == [0x1000, 0x2000, 0x4000, 0x5000]
    dram.free(buffers[1])
    dram.free(buffers[2])
    assert dram.allocate(100).address == 0x4000
    assert dram.allocate(100).address == 0x2000
    with pytest.raises(VTAError, match="is not allocated"):
        dram.free(Dram().allocate(1))


def test_a_buffer_gives_back_what_was_written():
    buffer = Dram().allocate(100)
    values = np.arange(20, dtype=np.int32).reshape(4, 5)
    buffer.write(values)
    np.testing.assert_array_equal(buffer.read((4, 5), np.int32), values)
    assert buffer.element(MemoryId.ACC) == 0x1000 // 64
    with pytest.raises(VTAError, match="8192 bytes, in a buffer of 100"):
        buffer.write(np.zeros(8192, np.int8))
    with pytest.raises(VTAError, match="5000 bytes, in a buffer of 100"):
        buffer.read((5000,), np.int8)


def test_another_configuration():
    """Two rows in a tile: the batch of a step."""
    config = VTAConfig(LOG_BATCH=1, LOG_INP_BUFF_SIZE=16, LOG_ACC_BUFF_SIZE=18)
    rng = np.random.default_rng(0)
    x, w = bytes_of(rng, 2, 16), bytes_of(rng, 16, 16)
    dram = Dram(config)
    inp, wgt, out = dram.upload(x), dram.upload(w), dram.allocate(32)
    c = Commands(dram)
    c.load(MemoryId.INP, 0, inp, 0, (1, 1))
    c.load(MemoryId.WGT, 0, wgt, 0, (1, 1))
    c.push(LD, EX)
    c.pop(LD, EX)
    c.launch([VtaKernel(GEMM, ((0, 0, 0),), config=config)])
    c.push(EX, ST)
    c.pop(EX, ST)
    c.store(0, out, 0, (1, 1))
    timing = c.synchronize(TimingSimulator(config))
    expected = (x.astype(np.int32) @ w.T.astype(np.int32)).astype(np.int8)
    np.testing.assert_array_equal(out.read((2, 16), np.int8), expected)
    assert timing.macs == 512
