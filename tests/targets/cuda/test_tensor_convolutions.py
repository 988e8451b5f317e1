"""Convolutions on tensor cores, as implicit products: right at odd sizes, and counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tilewright as tw
from tests.targets.cuda.running import SM80, load_counted
from tests.targets.cuda.test_tensor_tiles import (
    CORES,
    check_counted,
    gpu,  # noqa: F401
    launches,
    scheduled,
)
from tests.targets.simt.products import Case, arrays, expected, interpreted
from tilewright.base.dtypes import DType, bfloat16, float16, float32, int8, int32
from tilewright.compute.build import map_, reduce_
from tilewright.expr.nodes import And, Buffer, Cast, Expr, Select, const
from tilewright.schedule.space.patterns import classify
from tilewright.targets.cuda import report
from tilewright.targets.cuda.cost import row_layouts
from tilewright.targets.cuda.emit import ptx
from tilewright.targets.cuda.machine import machine
from tilewright.targets.cuda.target import Cuda
from tilewright.targets.cuda.tensor_choice import tensor_tiles
from tilewright.targets.cuda.tensor_tiles import NAME, TensorCores, with_one_column
from tilewright.targets.cuda.tensor_tiling import TensorTile, row_sides, tensor_tiling
from tilewright.targets.simt.products import product_of
from tilewright.testing.random_kernels import plain


def convolution(
    size: int,
    channels: int,
    filters: int,
    window: int,
    stride: int = 1,
    dtype: DType = float16,
    *images: int,
    first: bool = False,
    dilation: int = 1,
) -> Case:
    """Padded by half a window, with a rectifier that rounds floats back.

    images: how many there are, if there is such a dimension. first: channels are before places,
    otherwise last. dilation: places from an element of the window to the next.
    """
    span, wide = dilation * (window - 1), int32 if dtype is int8 else float32
    pad = span // 2
    out = (size + 2 * pad - span - 1) // stride + 1

    def axes(*shape: Any) -> tuple[Any, ...]:
        *n, i, j, c = shape
        return (*n, c, i, j) if first else shape

    def weights(u: Any, v: Any, c: Any, f: Any) -> tuple[Any, ...]:
        return (f, c, u, v) if first else (u, v, c, f)

    a = Buffer("A", axes(*images, size, size, channels), dtype)
    b = Buffer("B", weights(window, window, channels, filters), dtype)
    t = Buffer("T", axes(*images, out, out, filters), wide)
    y = Buffer("Y", t.shape, int32 if dtype is int8 else dtype)

    def value(*at: Expr) -> Expr:
        *n, u, v, c = at
        *n, i, j, f = (*n[:-3], n[-2], n[-1], n[-3]) if first else n
        row = i * stride + u * dilation - pad
        column = j * stride + v * dilation - pad
        inside = And(And(row >= 0, row < size), And(column >= 0, column < size))
        x: Expr = a[axes(*n, row, column, c)]
        if pad:
            x = Select(inside, x, const(0, dtype))
        return Cast(x, wide) * Cast(b[weights(u, v, c, f)], wide)

    def relu(*at: Expr) -> Expr:
        x = t[at]
        return Cast(Select(x > const(0, wide), x, const(0, wide)), y.dtype)

    sums = (window, window, channels)
    return [reduce_("mm", t, sums, "add", value), map_("relu", y, relu)]


def grouped(channels: int, filters: int, rounds: bool = True) -> Case:
    """Two groups of channels, behind the places as in a network whose channels are last."""
    a = Buffer("A", (6, 6, 2, channels), float16)
    b = Buffer("B", (3, 3, channels, 2, filters), float16)
    t = Buffer("T", (4, 4, 2, filters), float32)
    sums = reduce_(
        "mm",
        t,
        (3, 3, channels),
        "add",
        lambda i, j, g, f, u, v, c: (
            Cast(a[i + u, j + v, g, c], float32) * Cast(b[u, v, c, g, f], float32)
        ),
    )
    y = Buffer("Y", t.shape, float16)
    return [sums, map_("round", y, lambda *at: Cast(t[at], float16))][: 1 + rounds]


CASES = {
    "groups": (grouped(20, 9), (16, 32, 16, 1, 1), 2),
    "two dimensions of rows": (convolution(9, 16, 9, 3), (64, 32, 16, 4, 1), 3),
    "bfloat16": (convolution(7, 7, 33, 3, 1, bfloat16, 2), (32, 64, 16, 1, 4), 1),
    "int8": (convolution(9, 19, 8, 3, 1, int8), (32, 32, 32, 2, 1), 1),
    "strided": (convolution(13, 16, 24, 3, 2), (64, 32, 16, 4, 1), 2),
    "pointwise": (convolution(6, 40, 17, 1), (16, 64, 32, 1, 2), 2),
    "two rows": (convolution(17, 8, 9, 1), (64, 64, 16, 2, 2), 1),
    "even": (convolution(14, 16, 24, 3, 2), (64, 32, 16, 4, 1), 2),
    "first": (convolution(9, 16, 9, 3, first=True), (64, 32, 16, 4, 1), 3),
    "first, images": (
        convolution(7, 7, 33, 3, 1, bfloat16, 2, first=True),
        (32, 64, 16, 1, 4),
        1,
    ),
    "first, int8": (
        convolution(9, 19, 8, 3, 1, int8, first=True),
        (32, 32, 32, 2, 1),
        1,
    ),
    "first, strided": (
        convolution(14, 16, 24, 3, 2, first=True),
        (64, 32, 16, 4, 1),
        2,
    ),
    "first, pointwise": (convolution(6, 40, 17, 1, first=True), (16, 64, 32, 1, 2), 2),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", CASES)
def test_a_convolution_is_right_as_ptx(name):
    case, tile, stages = CASES[name]
    p = launches(scheduled(case, tensor_tile=tile, stages=stages))
    given = arrays(p)
    traffic, (made,) = load_counted(p, SM80, given)
    assert traffic.products
    assert np.array_equal(made, expected(case, given))


def test_groups_behind_the_places_need_what_follows_to_be_in_front():
    """The sums have another order only where nobody but the next Computation reads them."""
    for case, why in ((grouped(20, 9), ""), (grouped(20, 9, False), "not stored row")):
        p = product_of(classify(case))
        assert p is not None and CORES.refusal(p).find(why) >= 0
        assert bool(CORES.refusal(p)) == bool(why)


def test_a_network_of_convolutions_with_groups_is_compiled(monkeypatch):
    """Its first convolution has channels last, and groups behind the places."""
    monkeypatch.setattr(TensorCores, "pays", lambda self, p: True)
    programs = tw.compile(
        network(onnx.TensorProto.FLOAT16, 1, 8, 2), target="cuda"
    ).model.programs
    assert [b"mma.sync" in p for p in programs] == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize("first", [False, True])
def test_threads_do_not_race(first):
    case = convolution(2, 8, 9, 3, first=first)
    p = launches(scheduled(case, tensor_tile=(16, 32, 16, 1, 1), stages=3))
    assert np.array_equal(interpreted(p, arrays(p)), expected(case, arrays(p)))


COUNTED = {
    "padded": (convolution(16, 16, 32, 3), (64, 32, 16, 4, 1)),
    "strided": (convolution(32, 32, 32, 1, 2), (32, 32, 16, 2, 1)),
    "first": (convolution(16, 32, 32, 1, first=True), (64, 32, 16, 4, 1)),
    "first, a row": (convolution(32, 32, 32, 1, first=True), (32, 32, 16, 2, 1)),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", COUNTED)
def test_requests_turns_and_products_are_those_of_the_closed_forms(name):
    case, tile = COUNTED[name]
    check_counted(case, tile, {"stages": 2}, is_whole=False)


@pytest.mark.parametrize(
    ("size", "sides"), [(56, (2, 64)), (112, (8, 16)), (28, (4, 32)), (7, (8, 16))]
)
def test_rows_of_a_tile_are_those_that_need_the_least_padding(size, sides):
    p = product_of(classify(convolution(size, 16, 64, 3)))
    tile = TensorTile(128, 64, 32, 4, 2)
    assert tuple(row_sides(p, tile).values())[-2:] == sides
    shares = tensor_tiling(p, tile).plan.shares
    assert np.prod([shares[d].threads for d in p.rows]) == 4


@pytest.mark.representatives("28-True")  # rows along images, in several warps
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("size", [7, 14, 17, 28, 56])
def test_each_possible_tile_has_code(size, first):
    """Its warps are along one dimension, so that all accumulators are a thread's own."""
    case = convolution(size, 16, 32, 1, first=first)
    p = with_one_column(product_of(classify(case)))
    shapes = {t._replace(depth=16) for t in tensor_tiles(p, SM80)}
    for tile in shapes:
        assert launches(scheduled(case, tensor_tile=tuple(tile), stages=1))


def test_rows_of_single_elements_are_not_swizzled():
    """Weights with windows last have such rows, where `swizzle` is refused."""
    p = with_one_column(product_of(classify(convolution(56, 64, 64, 3, first=True))))
    t = tensor_tiling(p, TensorTile(64, 64, 64, 2, 2))
    assert (0, True) in row_layouts(t, p.left)
    assert (0, True) not in row_layouts(t, p.right)


def test_they_are_chosen_where_they_are_expected_to_be_faster():
    def first(size: int, channels: int, of: str = "sm_80", **form: bool) -> str:
        case = convolution(size, channels, channels, 3, **form)
        return Cuda(machine(of)).sketches(plain(case), case, ())[0].name

    assert first(56, 64) == first(14, 256, "sm_90a") == NAME
    assert first(56, 64, first=True) == NAME
    assert first(14, 256, "sm_75") != NAME
    assert first(5, 3) != NAME


@pytest.mark.slow
@pytest.mark.skipif(report.ptxas() is None, reason="there is no ptxas")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_ptxas_spills_nothing(arch):
    of = machine(arch)
    case = convolution(56, 64, 128, 3)
    p = launches(scheduled(case, CORES, tensor_tile=(128, 128, 32, 2, 4)), of)
    (used,) = report.assemble(ptx(p, of), of)[1].values()
    assert used.registers <= 168
    assert used.stack == used.spill_stores == used.spill_loads == 0


def network(dtype: int, images: int, size: int, groups: int = 1) -> onnx.ModelProto:
    """Two convolutions with channels first, in groups of them, the second one strided."""
    rng = np.random.default_rng(0)

    def weights(name: str, *shape: int) -> onnx.TensorProto:
        values = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        return helper.make_tensor(name, dtype, shape, values.ravel().tolist())

    channels = 5 * groups
    given = [weights("w1", 2 * channels, 5, 3, 3), weights("b1", 2 * channels)]
    given.append(weights("w2", 12 * groups, 10, 3, 3))
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["a"], pads=[1] * 4, group=groups),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node(
            "Conv", ["r", "w2"], ["y"], pads=[1] * 4, strides=[2, 2], group=groups
        ),
    ]
    x = helper.make_tensor_value_info("x", dtype, [images, channels, size, size])
    y = helper.make_tensor_value_info("y", dtype, None)
    graph = helper.make_graph(nodes, "two", [x], [y], given)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])


@pytest.mark.representatives("10-1-9")  # bfloat16: as PTX above
@pytest.mark.parametrize(
    ("dtype", "images", "size"),
    [
        (onnx.TensorProto.FLOAT16, 1, 9),
        (onnx.TensorProto.FLOAT16, 2, 8),
        (onnx.TensorProto.BFLOAT16, 1, 7),
    ],
)
def test_a_network_with_channels_first(gpu, monkeypatch, dtype, images, size):  # noqa: F811
    monkeypatch.setattr(TensorCores, "pays", lambda self, p: True)
    model = network(dtype, images, size)
    half = helper.tensor_dtype_to_np_dtype(dtype)
    x = np.random.default_rng(1).standard_normal((images, 5, size, size)).astype(half)
    exe = tw.compile(model, target="cuda", cache=False)
    found = exe({"x": x}).astype(np.float64)
    want = tw.compile(model)({"x": x}).astype(np.float64)
    step = 2.0 ** (-10 if dtype == onnx.TensorProto.FLOAT16 else -7)
    assert np.abs(found - want).max() <= step * np.abs(want).max()
    assert [b"mma.sync" in p for p in exe.model.programs] == [True, True]


def test_a_network_s_convolution_is_on_tensor_cores_where_that_pays():
    rng = np.random.default_rng(0)
    w = rng.standard_normal((64, 64, 3, 3)).astype(np.float16)
    half = onnx.TensorProto.FLOAT16
    x = helper.make_tensor_value_info("x", half, [1, 64, 56, 56])
    y = helper.make_tensor_value_info("y", half, None)
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)
    graph = helper.make_graph(
        [node], "one", [x], [y], [numpy_helper.from_array(w, "w")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    default = tw.compile(model, target="cuda")
    assert all(b"mma.sync" in p for p in default.model.programs)
    exact = tw.compile(model, target="cuda", math="exact")
    assert not any(b"mma.sync" in p for p in exact.model.programs)
