"""What does not fit a described VTA is refused by name, in kernels and in networks."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx.numpy_helper
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import tilewright as tw
from tests.targets.vta.configurations import CONFIGURATIONS
from tests.targets.vta.layer_formulas import (
    random_arrays,
)
from tests.targets.vta.products import product
from tilewright.base.errors import CompileError
from tilewright.frontends.onnx import load
from tilewright.graph.nodes import Graph
from tilewright.targets.vta import (
    Convolution,
    LayerProgram,
    Requantize,
    Store,
    VTAConfig,
    VtaProgram,
    convolution,
    depthwise,
    pooling,
    schedule,
)
from tilewright.targets.vta.partition import partition, refused
from tilewright.targets.vta.scales import (
    dequantize,
    quantize,
    unit_by,
    units_of_weights,
)

t = tw.te
NAMED = [pytest.param(c, id=name) for name, c in CONFIGURATIONS.items()]
configurations = pytest.mark.parametrize("config", NAMED)
WIDENING = [p for p in NAMED if p.values[0].loads_bytes]


def tiny(**logs: int) -> VTAConfig:
    sizes = {"INP_BUFF_SIZE": 12, "WGT_BUFF_SIZE": 13, "ACC_BUFF_SIZE": 12} | logs
    return VTAConfig(**{f"LOG_{name}": log for name, log in sizes.items()})


WINDOW = Convolution(16, 16, (9, 9), (3, 3), pads=(1, 1), dilation=(2, 2))
REFUSED: dict[str, tuple[VTAConfig, Callable[[VTAConfig], LayerProgram], str]] = {
    "weights": (
        tiny(WGT_BUFF_SIZE=11),
        lambda m: convolution(WINDOW, Requantize(8), config=m),
        r"smallest block needs 9 elements of vta\.wgt for w, and the machine has 8",
    ),
    "data": (
        tiny(INP_BUFF_SIZE=8),
        lambda m: convolution(WINDOW, Requantize(8), config=m),
        r"needs 25 elements of vta\.inp for x, and the machine has 16",
    ),
    "accumulators": (
        tiny(ACC_BUFF_SIZE=7),
        lambda m: convolution(WINDOW, Requantize(8, residual=1), config=m),
        r"needs 3 elements of vta\.acc for acc, bias, wide, and the machine has 2",
    ),
    "a window's accumulators": (
        tiny(ACC_BUFF_SIZE=10),
        lambda m: pooling(WINDOW, config=m),
        r"needs 26 elements of vta\.acc for .*image.*, and the machine has 16",
    ),
    "a depthwise window's": (
        tiny(ACC_BUFF_SIZE=11),
        lambda m: depthwise(WINDOW, Requantize(8), config=m),
        r"needs 37 elements of vta\.acc for .*, and the machine has 32",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("threads", [1, 2])
def test_what_does_not_fit_is_refused(name: str, threads: int) -> None:
    config, make, message = REFUSED[name]
    with pytest.raises(CompileError, match=message) as error:
        schedule(make(config), threads)
    assert error.value.code == "TW-VTA-MEMORY"
    assert "kernel" in error.value.where


@pytest.mark.representatives("weights", "data", "accumulators")
@pytest.mark.parametrize("name", REFUSED)
def test_what_fits_to_the_last_element(name: str) -> None:
    """Twice the memory is enough."""
    config, make, message = REFUSED[name]
    scope = next(s for s in ("inp", "wgt", "acc") if f"vta\\.{s}" in message)
    log = f"LOG_{scope.upper()}_BUFF_SIZE"
    larger = replace(config, **{log: getattr(config, log) + 1})
    layer = make(larger)
    arrays = random_arrays(layer)
    VtaProgram(schedule(layer).kernel, larger).check(arrays)


def test_a_kernel_that_does_not_fit_names_its_buffer() -> None:
    with pytest.raises(
        CompileError, match=r"AL needs 12 elements of vta\.inp, where 0 of 8"
    ):
        VtaProgram(t.lower(*product(VTAConfig())), tiny(INP_BUFF_SIZE=7))


def test_data_of_four_bits_is_not_widened() -> None:
    config = CONFIGURATIONS["1x16 i4w4"]
    c = Convolution(16, 16, (4, 4), (2, 2))
    layers = (
        pooling(c, config=config),
        depthwise(c, Requantize(4), config=config),
        convolution(c, Requantize(4, residual=1), config=config),
    )
    for layer in layers:
        with pytest.raises(
            CompileError, match=r"widened to accumulators, .* of int4 data"
        ) as e:
            VtaProgram(schedule(layer).kernel, config)
        assert e.value.code == "TW-VTA-WIDEN"


@pytest.mark.parametrize(("log", "blocks"), [(11, 4), (12, 2), (13, 1)])
def test_blocks_of_the_alu_are_as_large_as_the_memory_allows(
    log: int, blocks: int
) -> None:
    """A row of four windows takes 16 + 4 accumulators, of 32, 64 or 128."""
    config = tiny(ACC_BUFF_SIZE=log)
    layer = pooling(Convolution(16, 16, (8, 8), (2, 2), (2, 2)), config=config)
    program = VtaProgram(schedule(layer, 1).kernel, config)
    stores = [i for i in program.instructions if isinstance(i, Store) and i.x_size]
    assert len(stores) == blocks


# ---------------------------------------------------------------------------------- networks


def graph_of(call: str, size: int, **weights: NDArray) -> Graph:
    """A model of one operation on an image of two channels."""
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
    one (float[1, 2, {size}, {size}] x, float[1, 2, {size}, {size}] z)
    => (float[1, 2, ?, ?] y) {{ {call} }}"""
    model = onnx.parser.parse_model(text)
    for name, array in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return load(model)


CALLS = {
    "y = Conv<dilations=[2,2]>(x, w)": lambda c, m: convolution(c, WORST, config=m),
    "y = Conv<group=2, dilations=[2,2]>(x, u)": lambda c, m: depthwise(
        c, WORST, config=m
    ),
    "y = MaxPool<kernel_shape=[3,3], dilations=[2,2]>(x)": lambda c, m: pooling(
        c, config=m
    ),
}
WORST = Requantize(4, residual=1, factor=None)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("memory", ["INP", "WGT", "ACC"])
def test_partitions_refuse_what_schedules_do(call: str, memory: str) -> None:
    """From the smallest memory to one that is large enough, with all that can follow a layer."""
    rng = np.random.default_rng(0)
    shapes = {"w": (2, 2, 3, 3), "u": (2, 1, 3, 3)}
    graph = graph_of(
        call, 7, **{n: rng.random(s, np.float32) for n, s in shapes.items()}
    )
    c = Convolution(16, 16, (7, 7), (3, 3), dilation=(2, 2))
    answers = set()
    for log in range(10, 14):
        config = tiny(
            **{f"{memory}_BUFF_SIZE": log - {"INP": 3, "WGT": 0, "ACC": 0}[memory]}
        )
        why = refused(graph, graph.operations[0], config)
        try:
            schedule(CALLS[call](c, config))
        except CompileError as error:
            assert why, config
            needed = rf"needs (\d+) elements of vta\.{memory.lower()}"
            (count,) = re.findall(needed, error.message)
            assert re.findall(needed, why) == [count]
        else:
            assert not why, config
        answers.add(bool(why))
    limited = ("INP", "WGT") if "(x, w)" in call else ("ACC",)
    assert answers == ({True, False} if memory in limited else {False})


def test_the_alu_has_no_part_in_networks_of_four_bits() -> None:
    config = CONFIGURATIONS["1x16 i4w4"]
    rng = np.random.default_rng(0)
    weights = {
        n: rng.random(s, np.float32)
        for n, s in {"w": (2, 2, 3, 3), "u": (2, 1, 3, 3)}.items()
    }
    why = "the ALU takes data of 8 bits, and the machine's has 4"
    calls = {
        "y = Conv(x, w)": "",
        "y = Conv<group=2>(x, u)": why,
        "y = MaxPool<kernel_shape=[3,3]>(x)": why,
    }
    for call, expected in calls.items():
        graph = graph_of(call, 7, **weights)
        assert refused(graph, graph.operations[0], config) == expected
    graph = graph_of("a = Conv<pads=[1,1,1,1]>(x, w)\ny = Add(a, z)", 7, **weights)
    assert [part.name for part in partition(graph, config)] == ["Conv", "Add"]
    assert [part.name for part in partition(graph)] == ["Conv+Add"]


@pytest.mark.parametrize(("bits", "largest_number"), [(2, 1), (4, 7), (8, 127)])
@given(st.floats(1e-20, 1e20))
@settings(max_examples=30)
def test_numbers_of_few_bits_come_back_from_any_unit(
    bits: int, largest_number: int, largest: float
) -> None:
    every = np.arange(-largest_number - 1, largest_number + 1).astype(np.int8)
    for name in ("shift", "multiplier"):
        unit = unit_by(name, bits)(largest)
        np.testing.assert_array_equal(
            quantize(dequantize(every, unit), unit, bits), every
        )
        assert round(largest / unit) <= largest_number
    weights = np.array([[largest], [-largest / 3]])
    units = units_of_weights(weights, "channel", bits)
    assert (
        np.abs(quantize(weights, units[:, None], bits)).tolist()
        == [[largest_number]] * 2
    )
