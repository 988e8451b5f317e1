"""Machines of other shapes: instructions, kernels and layers, bit for bit."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import tilewright as tw
from tests.targets.vta import reference
from tests.targets.vta.configurations import CONFIGURATIONS, shape
from tests.targets.vta.layer_formulas import (
    convolved,
    depthwise_convolved,
    pooled,
    random_arrays,
)
from tests.targets.vta.products import product, written
from tests.targets.vta.programs import SHOWN, programs
from tilewright.base.errors import CompileError, InputError
from tilewright.compute import interp
from tilewright.loops.interp import run as interpret
from tilewright.targets.vta import (
    ACC,
    INP,
    Convolution,
    FunctionalSimulator,
    LayerProgram,
    MemoryId,
    Requantize,
    TimingSimulator,
    VTAConfig,
    VTAError,
    VtaProgram,
    assemble,
    convolution,
    depthwise,
    pooling,
    schedule,
)
from tilewright.targets.vta.fields import Opcode, layout
from tilewright.targets.vta.intrinsics import elements
from tilewright.targets.vta.packing import from_bytes, pack, to_bytes, unpack

t = tw.te
NAMED = [pytest.param(c, id=name) for name, c in CONFIGURATIONS.items()]
configurations = pytest.mark.parametrize("config", NAMED)
WIDENING = [p for p in NAMED if p.values[0].loads_bytes]


# ---------------------------------------------------------------------------------- instructions


@configurations
def test_fields_are_laid_out_as_c_does(config: VTAConfig) -> None:
    for opcode in Opcode:
        table = [
            (f.name, f.offset, f.offset + f.width - 1) for f in layout(config)[opcode]
        ]
        assert table == shape(config).fields[opcode]


@pytest.mark.parametrize(
    "config", [p for p in NAMED if p.values[0].spaces[MemoryId.ACC].depth > SHOWN]
)
@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_random_programs_do_what_the_reference_does(
    config: VTAConfig, data: st.DataObject
) -> None:
    stream, dram = data.draw(programs(config))
    expected, found, timed = bytearray(dram), bytearray(dram), bytearray(dram)
    reference.Machine(expected, shape(config)).run(stream)
    FunctionalSimulator(config).run(stream, found)
    assert found == expected
    TimingSimulator(config).run(stream, timed)
    assert timed == expected


def test_bytes_are_widened_only_by_machines_of_bytes() -> None:
    config = CONFIGURATIONS["1x16 i4w4"]
    stream = assemble("LOAD ACC_8BIT[0-0] y=1 x=1\nFINISH", config)
    with pytest.raises(VTAError, match=r"ACC_8BIT needs data of 8 bits, .* has 4"):
        FunctionalSimulator(config).run(stream, bytearray(1 << 12))


@given(st.sampled_from([2, 4, 8]), st.binary(min_size=1, max_size=9))
def test_numbers_of_less_than_a_byte(bits: int, data: bytes) -> None:
    numbers = unpack(np.frombuffer(data, np.uint8), bits)
    word = int.from_bytes(data, "little")
    expected = [
        reference.signed(word >> at, bits) for at in range(0, 8 * len(data), bits)
    ]
    assert numbers.tolist() == expected
    assert pack(numbers, bits).tobytes() == data


@pytest.mark.parametrize("dtype", ["int2", "int4", "int8", "int32"])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_arrays_to_bytes_and_back(dtype: str, count: int) -> None:
    kind = tw.base.dtypes.dtype_of(dtype).numpy
    array = np.random.default_rng(count).integers(-2, 2, count).astype(kind)
    np.testing.assert_array_equal(from_bytes(to_bytes(array), count, kind), array)


# ---------------------------------------------------------------------------------- layers


def requantized(c: Convolution, config: VTAConfig, **more: object) -> Requantize:
    """A shift after which results take most of their range."""
    _, weights = config.operand_bits
    terms = c.kernel[0] * c.kernel[1] * c.inputs
    bits = weights - 2 + math.log2(terms) / 2
    return Requantize(max(0, round(bits)), **more)  # type: ignore[arg-type]


def check(layer: LayerProgram, formula: Callable[[Sequence[NDArray]], NDArray]) -> None:
    """One and two virtual threads, strictly; the interpreter of the Computations; NumPy."""
    arrays = random_arrays(layer)
    expected = formula(arrays[:-1])
    assert len(np.unique(expected)) > 1
    for threads in (1, 2):
        arrays[-1][...] = 0
        program = VtaProgram(schedule(layer, threads).kernel, layer.config)
        program.check(arrays)
        np.testing.assert_array_equal(arrays[-1], expected)
    memory = dict(zip(layer.params, arrays, strict=True))
    meant = interp.evaluate(layer.computations, memory)[layer.params[-1]]
    np.testing.assert_array_equal(meant, expected)


SHAPES: dict[str, Callable[[int], Convolution]] = {
    "product": lambda b: Convolution(3 * b, 2 * b, (7, 1)),
    "1x1": lambda b: Convolution(2 * b, b, (5, 6)),
    "1x1 strided": lambda b: Convolution(b, 2 * b, (7, 7), stride=(2, 2)),
    "3x3": lambda b: Convolution(2 * b, 2 * b, (6, 5), (3, 3), pads=(1, 1)),
    "3x3 strided": lambda b: Convolution(b, 2 * b, (8, 7), (3, 3), (2, 2), (1, 1)),
    "dilated": lambda b: Convolution(
        b, b, (7, 6), (2, 2), pads=(1, 0), ends=(1, 2), dilation=(2, 2)
    ),
}


@pytest.mark.sampled(7)
@configurations
@pytest.mark.parametrize("name", SHAPES)
def test_convolutions(config: VTAConfig, name: str) -> None:
    c = SHAPES[name](config.BLOCK)
    q = requantized(c, config, relu="strided" in name)
    check(
        convolution(c, q, config=config), lambda given: convolved(c, q, config, given)
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("config", WIDENING)
def test_all_of_what_follows_a_convolution(config: VTAConfig) -> None:
    b = config.BLOCK
    c = Convolution(b, 2 * b, (5, 4), (3, 3), pads=(1, 1))
    q = Requantize(16, residual=300, factor=None, before=1, high=90)
    layer = convolution(c, q, config=config)
    check(layer, lambda given: convolved(c, q, config, given))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("config", WIDENING)
def test_pooling_and_depthwise_convolutions(config: VTAConfig) -> None:
    b = config.BLOCK
    c = Convolution(2 * b, 2 * b, (7, 6), (2, 3), (2, 1), (1, 1))
    check(pooling(c, config=config), lambda given: pooled(c, config, given))
    q = Requantize(8)
    check(
        depthwise(c, q, config=config),
        lambda given: depthwise_convolved(c, q, config, given),
    )


@configurations
def test_channels_are_whole_tiles(config: VTAConfig) -> None:
    b = config.BLOCK
    for inputs, outputs in ((b + 1, b), (b, b + 1)):
        with pytest.raises(InputError, match=f"{b + 1} channels are not whole tiles"):
            convolution(
                Convolution(inputs, outputs, (2, 2)), Requantize(4), config=config
            )


@st.composite
def any_configuration(draw: st.DrawFn) -> VTAConfig:
    """One that a machine can have, down to memories of a single element."""
    batch, block = draw(st.integers(0, 2)), draw(st.integers(1, 4))
    data, weights = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    least = {  # logarithms of an element's bytes
        "UOP": 2,
        "INP": batch + block + data - 3,
        "WGT": 2 * block + weights - 3,
        "ACC": batch + block + 2,
    }
    assume(min(least.values()) >= 0)
    most = {"UOP": 8, "INP": 8, "WGT": 8, "ACC": 8}
    logs = {
        f"LOG_{name}_BUFF_SIZE": size + draw(st.integers(0, most[name]))
        for name, size in least.items()
    }
    widths = {"LOG_INP_WIDTH": data, "LOG_WGT_WIDTH": weights}
    return VTAConfig(LOG_BATCH=batch, LOG_BLOCK=block, **widths, **logs)


@st.composite
def any_convolution(draw: st.DrawFn, block: int) -> Convolution:
    kernel, stride, dilation = (draw(_pairs(1, 2)) for _ in range(3))
    pads, ends = draw(_pairs(0, 2)), draw(_pairs(0, 2))
    rows, columns = (
        max(draw(st.integers(1, 7)), (k - 1) * d + 1)
        for k, d in zip(kernel, dilation, strict=True)
    )
    channels = block * draw(st.integers(1, 2)), block * draw(st.integers(1, 2))
    return Convolution(*channels, (rows, columns), kernel, stride, pads, ends, dilation)


def _pairs(low: int, high: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(low, high), st.integers(low, high))


def exact_or_too_large(config: VTAConfig, data: st.DataObject) -> None:
    c = data.draw(any_convolution(config.BLOCK))
    q = Requantize(
        data.draw(st.integers(0, 9)),
        relu=data.draw(st.booleans()),
        bias=data.draw(st.booleans()),
        residual=data.draw(
            st.sampled_from([None, 3] if config.loads_bytes else [None])
        ),
    )
    layer = convolution(c, q, config=config)
    arrays = random_arrays(layer)
    try:
        program = VtaProgram(schedule(layer).kernel, config)
    except CompileError as error:
        event("refused")
        assert error.code == "TW-VTA-MEMORY"
        assert re.search(
            r"elements of vta\.(inp|wgt|acc) for .*the machine has", str(error)
        )
        return
    event("computed")
    program.check(arrays)
    np.testing.assert_array_equal(arrays[-1], convolved(c, q, config, arrays[:-1]))


@settings(max_examples=12, deadline=None)
@given(any_configuration(), st.data())
def test_any_configuration(config: VTAConfig, data: st.DataObject) -> None:
    exact_or_too_large(config, data)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(any_configuration(), st.data())
def test_many_configurations(config: VTAConfig, data: st.DataObject) -> None:
    exact_or_too_large(config, data)


# ---------------------------------------------------------------------------------- te


@pytest.mark.sampled(3)
@configurations
def test_a_product_scheduled_by_hand(config: VTAConfig) -> None:
    s, args = product(config)
    kernel = t.lower(s, args)
    rng = np.random.default_rng(0)
    a, b, c = (
        rng.integers(int(x.dtype.min), int(x.dtype.max) + 1, x.shape).astype(
            x.dtype.numpy
        )
        for x in kernel.params
    )
    VtaProgram(kernel, config).check([a, b, c])
    same = np.zeros_like(c)
    interpret(kernel, dict(zip(kernel.params, (a, b, same), strict=True)))
    np.testing.assert_array_equal(c, same)
    rows = "n" * (config.BATCH > 1)
    total = np.einsum(f"ik{rows}d,jkod->ij{rows}o", a.astype(int), b.astype(int)) >> 5
    kind = elements(config)[INP].dtype
    np.testing.assert_array_equal(c, np.clip(total, kind.min, kind.max))


def test_te_builds_for_a_described_machine() -> None:
    config = CONFIGURATIONS["1x8"]
    s, args = product(config)
    f = t.build(s, args, target="vta", description=asdict(config))
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-128, 128, x.shape, np.int8) for x in f.kernel.params[:2])
    c = np.zeros((3, 4, 8), np.int8)
    f(a, b, c)
    total = np.einsum("ikd,jkod->ijo", a.astype(int), b.astype(int)) >> 5
    np.testing.assert_array_equal(c, np.clip(total, -128, 127))
    with pytest.raises(CompileError, match="is not this machine's matrix unit"):
        t.build(s, args, target="vta")
    with pytest.raises(InputError, match="LOG_BLOCK is 0"):
        t.build(s, args, target="vta", description={"LOG_BLOCK": 0})
    for target in ("cpu", "interp"):
        with pytest.raises(InputError, match="not a simulated machine"):
            t.build(s, args, target=target, description=asdict(config))


def test_te_schedules_for_a_described_machine() -> None:
    """In blocks that fit its memories, which are smaller than the default machine's."""
    config = CONFIGURATIONS["1x16 small"]
    A, B, _, C = written(config, 100)
    s, args = t.create_schedule(C.op), [A, B, C]
    f = t.build(s, args, target="vta", auto=True, description=asdict(config))
    arrays = [np.ones(b.shape, np.int8) for b in f.kernel.params]
    f(*arrays)
    assert (arrays[-1] == 4 * 16 >> 5).all()
    usual = t.build(t.create_schedule(C.op), args, target="vta", auto=True)
    with pytest.raises(CompileError, match=r"elements of vta\.\w+, where"):
        VtaProgram(usual.kernel, config)


def test_a_kernel_for_another_machine() -> None:
    kernel = t.lower(*product(CONFIGURATIONS["1x8"]))
    with pytest.raises(
        CompileError, match=r"gemm_1x8_i8w8 is not this machine's matrix unit"
    ):
        VtaProgram(kernel, VTAConfig())


def test_results_have_the_width_of_the_data() -> None:
    X = t.placeholder((4, 16), "int32", name="X")
    XL = t.compute(X.shape, lambda *v: X[v], name="XL")
    Y = t.compute(X.shape, lambda *v: (XL[v] >> 2).astype("int8"), name="Y")
    s = t.create_schedule(Y.op)
    s[XL].set_scope(ACC)
    kernel = t.lower(s, [X, Y])
    VtaProgram(kernel)
    with pytest.raises(CompileError, match="done by no instruction") as error:
        VtaProgram(kernel, CONFIGURATIONS["1x16 i4w4"])
    assert error.value.code == "TW-VTA-SCALAR"


LANES: dict[str, Callable] = {
    "add": lambda x, r: x + r,
    "subtract": lambda x, r: x - r - 5,
    "multiply": lambda x, r: x * r,
    "max and min": lambda x, r: t.max(t.min(x, 100), r),
    "shift": lambda x, r: ((x << 3) + r) >> 2,
    "negate": lambda x, r: -x + r,
}


@pytest.mark.covering(1)
@configurations
@pytest.mark.parametrize("name", LANES)
def test_lane_operations(config: VTAConfig, name: str) -> None:
    """Of accumulators that are loaded as such, which all machines do."""
    extents = 5, *config.tile
    X, R = (t.placeholder(extents, "int32", name=n) for n in "XR")
    kind = elements(config)[INP].dtype
    low, high = int(kind.min), int(kind.max)

    def stored(*v: tw.te.Expr) -> tw.te.Expr:
        value = LANES[name](XL[v], RL[v])
        return t.max(t.min(value, high), low).astype(kind.name)

    XL, RL = (
        t.compute(extents, lambda *v, x=x: x[v], name=f"{x.name}L") for x in (X, R)
    )
    Y = t.compute(extents, stored, name="Y")
    s = t.create_schedule(Y.op)
    s[XL].set_scope(ACC)
    s[RL].set_scope(ACC)
    kernel = t.lower(s, [X, R, Y])
    rng = np.random.default_rng(0)
    x, r = (rng.integers(2 * low, 2 * high, extents).astype(np.int32) for _ in "XR")
    y, same = np.zeros(extents, kind.numpy), np.zeros(extents, kind.numpy)
    VtaProgram(kernel, config).check([x, r, y])
    interpret(kernel, dict(zip(kernel.params, (x, r, same), strict=True)))
    np.testing.assert_array_equal(y, same)
    assert len(np.unique(y)) > 2
