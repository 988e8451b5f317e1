"""Integer convolutions and products of ONNX on tensor cores by default, with exact sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tests.targets.cuda.running import SM80, load_counted
from tests.targets.simt.products import expected, interpreted
from tilewright.base.dtypes import DType, int8, int32, uint8
from tilewright.compute.build import cast, map_, reduce_
from tilewright.driver.compile import text
from tilewright.expr.nodes import Buffer, Select, const
from tilewright.runtime import devices
from tilewright.schedule.space.patterns import classify
from tilewright.targets.cuda import report
from tilewright.targets.cuda.cost import arrive_later, factor_rows
from tilewright.targets.cuda.emit import ptx
from tilewright.targets.cuda.machine import machine
from tilewright.targets.cuda.target import Cuda
from tilewright.targets.cuda.tensor_tiles import TensorCores, with_one_column
from tilewright.targets.cuda.tensor_tiling import TensorTile, tensor_tiling
from tilewright.targets.simt.code import PTX, DeviceProgram
from tilewright.targets.simt.products import product_of
from tilewright.testing.ptx import device
from tilewright.testing.random_kernels import plain

CORES = TensorCores(SM80, exact=False)
SIGNED, UNSIGNED = TensorProto.INT8, TensorProto.UINT8
TYPES = {SIGNED: np.int8, UNSIGNED: np.uint8}


def _model(
    nodes: list[Any], shape: list[int], of: int, made: list[int], **init: Any
) -> onnx.ModelProto:
    held = [numpy_helper.from_array(np.asarray(a), n) for n, a in init.items()]
    ends = (("x", shape), ("y", made))
    (x,), (y,) = ([helper.make_tensor_value_info(n, of, s)] for n, s in ends)
    graph = helper.make_graph(nodes, "g", [x], [y], held)
    opset = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opset, ir_version=10)


def _quantization(of: int, filters: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    zero = TYPES[of]
    return {
        "xs": np.float32(0.02),
        "xz": zero(3),
        "ws": rng.uniform(0.001, 0.01, filters).astype(np.float32),
        "wz": np.zeros(filters, np.int8),
        "ys": np.float32(0.5),
        "yz": zero(7),
    }


def convolution(of: int, size: int = 28, channels: int = 64) -> onnx.ModelProto:
    """QLinearConv with padding, whose zero point is not 0."""
    rng = np.random.default_rng(1)
    init = _quantization(of, channels)
    init["w"] = rng.integers(-127, 128, (channels, channels, 3, 3)).astype(np.int8)
    init["b"] = rng.integers(-1000, 1000, channels).astype(np.int32)
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"]
    node = helper.make_node("QLinearConv", names, ["y"], pads=[1, 1, 1, 1])
    shape = [1, channels, size, size]
    return _model([node], shape, of, shape, **init)


def with_quantizers(of: int, size: int = 28, channels: int = 64) -> onnx.ModelProto:
    """The same between DequantizeLinear and QuantizeLinear."""
    rng = np.random.default_rng(1)
    init = _quantization(of, channels)
    init["w"] = rng.integers(-127, 128, (channels, channels, 3, 3)).astype(np.int8)
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["real"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["taps"], axis=0),
        helper.make_node("Conv", ["real", "taps"], ["sums"], pads=[1, 1, 1, 1]),
        helper.make_node("QuantizeLinear", ["sums", "ys", "yz"], ["y"]),
    ]
    shape = [1, channels, size, size]
    return _model(nodes, shape, of, shape, **init)


def matrices(of: int) -> onnx.ModelProto:
    """QLinearMatMul."""
    rng = np.random.default_rng(1)
    init = _quantization(of, 1)
    init |= {"ws": np.float32(0.003), "wz": np.int8(0)}
    init["w"] = rng.integers(-127, 128, (256, 256)).astype(np.int8)
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"]
    node = helper.make_node("QLinearMatMul", names, ["y"])
    return _model([node], [256, 256], of, [256, 256], **init)


MODELS = {
    f"{make.__name__}-{name}": (make, of)
    for make in (matrices, convolution, with_quantizers)
    for of, name in ((SIGNED, "int8"), (UNSIGNED, "uint8"))
}


@pytest.mark.sampled(5)  # a product of converted bytes; unsigned bytes with quantizers
@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_bytes_is_on_tensor_cores_and_exact(monkeypatch, name):
    make, of = MODELS[name]
    model = make(of)
    monkeypatch.setattr(devices, "_makers", {"cuda": device.make})
    devices.find.cache_clear()
    exe = tw.compile(model, target="cuda", cache=False)
    programs = [DeviceProgram.from_bytes(p, PTX) for p in exe.model.programs]
    assert any("mma.sync" in p.text for p in programs)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    info = np.iinfo(TYPES[of])
    x = np.random.default_rng(2).integers(info.min, info.max + 1, shape)
    x = x.astype(TYPES[of])
    (want,) = ReferenceEvaluator(model).run(None, {"x": x})
    found = np.asarray(exe(x))
    devices.find.cache_clear()
    # Sums are exact; the reference multiplies by the scales one by one, and rounds each time.
    assert np.abs(found.astype(int) - want.astype(int)).max() <= 1
    assert (found != want).mean() < 0.001


def sums(op: str, shape: list[int], taps: list[int], **attributes: Any) -> Any:
    """An integer product of int8 in int32, with zero points other than 0."""
    w = np.random.default_rng(1).integers(-128, 128, taps).astype(np.int8)
    node = helper.make_node(op, ["x", "w", "xz", "wz"], ["y"], **attributes)
    made = _model([node], shape, SIGNED, [], w=w, xz=np.int8(-5), wz=np.int8(3))
    result = helper.make_tensor_value_info("y", TensorProto.INT32, None)
    made.graph.output[0].CopyFrom(result)
    return made


@pytest.mark.parametrize(
    "model",
    [
        sums("MatMulInteger", [256, 256], [256, 256]),
        pytest.param(
            sums("ConvInteger", [1, 64, 28, 28], [64, 64, 3, 3], pads=[1, 1, 1, 1]),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["product", "convolution"],
)
def test_int8_stays_signed_and_sums_have_the_bits_of_the_reference(monkeypatch, model):
    monkeypatch.setattr(devices, "_makers", {"cuda": device.make})
    devices.find.cache_clear()
    exe = tw.compile(model, target="cuda", cache=False)
    programs = [DeviceProgram.from_bytes(p, PTX).text for p in exe.model.programs]
    assert any("s32.s8.s8.s32" in text for text in programs)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(2).integers(-128, 128, shape).astype(np.int8)
    (want,) = ReferenceEvaluator(model).run(None, {"x": x})
    found = np.asarray(exe(x))
    devices.find.cache_clear()
    assert found.dtype == np.int32 and np.array_equal(found, want)


@pytest.mark.parametrize(
    ("target", "mcpu", "signed"),
    [
        ("cuda", "sm_80", True),
        ("cuda", "sm_75", False),  # no instruction for either
        ("cpu", "sapphirerapids", False),  # fewer for int8 by int8
        ("cpu", "x86-64-v3", False),
    ],
)
def test_the_target_decides_whether_data_stay_signed(target, mcpu, signed):
    model = convolution(SIGNED, 6, 8)
    graph = text(model, "graph", target=target, mcpu=mcpu)
    assert ("BitwiseXor" in graph) is not signed
    # The terms of both zero points are in the bias.
    assert graph.count("= Add(") == 1


# -- one product


def padded(left: DType, right: DType, outside: int, columns: int = 24) -> Any:
    """Rows beside one another, padded by a constant: y[i, c] = sum x[i + t, k] w[c, t, k]."""
    x, w = Buffer("X", (20, 32), left), Buffer("W", (columns, 3, 32), right)
    y = Buffer("Y", (20, columns), int32)

    def value(i: Any, c: Any, t: Any, k: Any) -> Any:
        at = i + t - 1
        read = Select((at >= 0) & (at < 20), x[at, k], const(outside, left))
        return cast(read, int32) * cast(w[c, t, k], int32)

    return [reduce_("mm", y, (3, 32), "add", value)]


CASES = {
    "uint8 by int8": padded(uint8, int8, 131),
    "int8 by uint8": padded(int8, uint8, -7),
    "int8": padded(int8, int8, 5),
    "zeros": padded(uint8, int8, 0),
}
SMALL = (16, 32, 32, 1, 1)


def scheduled(case: Any, **values: Any) -> Any:
    (sketch,) = CORES.with_sketch([], plain(case), case)
    return sketch.at({f"mm.{k}": v for k, v in values.items()}).schedule.kernel


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_factors_of_any_sign_and_padding_by_any_constant_are_exact(name):
    case = CASES[name]
    p = Cuda(SM80).launches(scheduled(case, tensor_tile=SMALL, stages=2))
    rng = np.random.default_rng(0)
    given = {}
    for b in p.params:
        info = np.iinfo(b.dtype.numpy)
        numbers = rng.integers(info.min, info.max, b.shape, endpoint=True)
        given[b] = numbers.astype(b.dtype.numpy)
    want = expected(case, given)
    traffic, (made,) = load_counted(p, SM80, given)
    assert traffic.products and np.array_equal(made, want)


def test_only_padding_by_zeros_is_copied_asynchronously():
    texts = {}
    for name in ("uint8 by int8", "zeros"):
        kernel = scheduled(CASES[name], tensor_tile=SMALL, stages=2)
        texts[name] = ptx(Cuda(SM80).launches(kernel), SM80)
    filled = texts["uint8 by int8"].count("cp.async.cg")
    assert 0 < filled < texts["zeros"].count("cp.async.cg")


def test_the_model_knows_which_copies_are_asynchronous():
    for name, later in (("uint8 by int8", False), ("zeros", True)):
        p = with_one_column(product_of(classify(CASES[name])))
        t = tensor_tiling(p, TensorTile(*SMALL))
        reads = dict.fromkeys((p.left, p.right), t)
        assert arrive_later(reads, factor_rows(t, SM80), SM80) is later


def test_unsigned_by_unsigned_has_no_instruction():
    refused = CORES.refusal(product_of(classify(padded(uint8, uint8, 0))))
    assert refused == "there is no instruction for uint8 with sums in int32"


def transposed(rows: int = 36, columns: int = 40) -> Any:
    """Sums by rows, of which the results are by columns."""
    a, b = Buffer("A", (rows, 32), uint8), Buffer("B", (columns, 32), int8)
    t, y = Buffer("T", (rows, columns), int32), Buffer("Y", (columns, rows), int32)
    return [
        reduce_(
            "mm",
            t,
            (32,),
            "add",
            lambda i, j, k: cast(a[i, k], int32) * cast(b[j, k], int32),
        ),
        map_("turn", y, lambda j, i: t[i, j] + 1),
    ]


def test_sums_are_stored_in_the_order_of_the_results():
    case = transposed()
    p = Cuda(SM80).launches(scheduled(case, tensor_tile=SMALL))
    given = {b: np.ones(b.shape, b.dtype.numpy) for b in p.params}
    for b in given:
        given[b][...] = np.arange(given[b].size).reshape(b.shape) % 100
    want = expected(case, given)
    _, (made,) = load_counted(p, SM80, given)
    assert np.array_equal(made, want)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_threads_do_not_race(name):
    p = Cuda(SM80).launches(scheduled(CASES[name], tensor_tile=SMALL, stages=2))
    given = {b: np.ones(b.shape, b.dtype.numpy) for b in p.params}
    want = expected(CASES[name], given)
    assert np.array_equal(interpreted(p, given), want)


@pytest.mark.skipif(report.ptxas() is None, reason="there is no ptxas")
@pytest.mark.parametrize(
    "arch", ["sm_80", pytest.param("sm_90a", marks=pytest.mark.slow)]
)
def test_ptxas_spills_nothing(arch):
    of = machine(arch)
    p = Cuda(of).launches(scheduled(padded(uint8, int8, 131, 64)))
    _, used = report.assemble(ptx(p, of), of)
    (kernel,) = used.values()
    assert kernel.spill_stores == kernel.stack == 0
