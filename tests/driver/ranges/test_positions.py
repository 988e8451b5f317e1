"""Convolutions over open images, some positions at a time; poolings, which share no weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.base import events
from tilewright.driver.options import Options
from tilewright.driver.ranges import open_code, position_blocks
from tilewright.driver.ranges import positions as driver_positions
from tilewright.driver.ranges.block_counts import BlockCounts
from tilewright.driver.ranges.part_assembly import PartedWork
from tilewright.driver.ranges.positions import PositionKernels, by_positions
from tilewright.driver.sources import import_model
from tilewright.graph.interp import evaluate
from tilewright.graph.specialize import specialize
from tilewright.loops.nodes import For, Kernel
from tilewright.loops.walk import loops_of
from tilewright.targets.cpu.cost import CostModel

Layer = tuple[str, dict[str, Any], tuple[int, ...]]
MODELS: dict[str, list[Layer]] = {
    "Winograd": [
        ("Conv", {"strides": [2, 2]}, (64, 4, 2, 2)),
        ("Conv", {"pads": [1] * 4}, (64, 64, 3, 3)),
        ("GlobalAveragePool", {}, ()),
    ],
    "strides": [("Conv", {"pads": [1] * 4, "strides": [2, 3]}, (24, 16, 3, 3))],
    "dilated": [("Conv", {"dilations": [2, 1]}, (16, 16, 3, 3))],
    "borders": [("Conv", {"pads": [2, 0, 1, 1]}, (16, 16, 3, 2))],
    "groups": [("Conv", {"pads": [2, 0, 1, 1], "group": 4}, (16, 4, 3, 2))],
    "a pooling": [
        ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}, ())
    ],
    "a stem": [
        ("Conv", {"pads": [3] * 4, "strides": [2, 2]}, (32, 16, 7, 7)),
        ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}, ()),
        ("Conv", {"pads": [1] * 4}, (32, 32, 3, 3)),
    ],
    "depthwise": [
        ("Conv", {"pads": [2, 0, 1, 1], "strides": [2, 1], "group": 32}, (32, 1, 5, 3)),
        ("Conv", {}, (16, 32, 1, 1)),
        ("Conv", {"pads": [1] * 4, "group": 16}, (16, 1, 3, 3)),
        ("Conv", {"dilations": [1, 2], "group": 16}, (16, 1, 3, 3)),
    ],
    "one border": [("Conv", {"pads": [1, 0, 0, 0]}, (16, 16, 3, 3))],
}


def channels(layers: list[Layer]) -> int:
    """Those of the image."""
    _, attributes, shape = layers[0]
    return int(shape[1]) * int(attributes.get("group", 1)) if shape else 16


def model(layers: list[Layer]) -> Any:
    """The layers in a row, on an image with the channels of the first one's weights."""
    rng = np.random.default_rng(2)
    nodes, weights, x = [], [], "x"
    for n, (kind, attributes, shape) in enumerate(layers):
        inputs = [x]
        if shape:
            scale = np.sqrt(np.prod(shape[1:]))
            array = (rng.standard_normal(shape) / scale).astype(np.float32)
            weights.append(numpy_helper.from_array(array, f"w{n}"))
            inputs.append(f"w{n}")
        x = f"t{n}"
        nodes.append(helper.make_node(kind, inputs, [x], **attributes))
    given = helper.make_tensor_value_info(
        "x", TensorProto.FLOAT, ["n", channels(layers), "h", "w"]
    )
    made = helper.make_tensor_value_info(x, TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "net", [given], [made], weights)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8
    )


# squares of tiles, rectangles of positions, windows without weights
@pytest.mark.representatives("Winograd", "borders", "a pooling", "depthwise")
@pytest.mark.parametrize("name", MODELS)
def test_results_are_right_at_all_sizes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images have their channels first, so that positions of the first layer are rectangles."""
    told = right_at_all_sizes(name, monkeypatch)
    # Positions of a pooling share nothing that would be read less often.
    assert any("rectangle" in t for t in told) == (name != "a pooling"), name
    if name == "Winograd":
        assert any(t["points"] == 4 for t in told)


@pytest.mark.representatives("dilated")
@pytest.mark.parametrize(
    "name", ["strides", "dilated", "borders", "a stem", "one border"]
)
def test_windows_that_are_moved_apart_are_right_at_all_sizes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_positions, "TOGETHER", 1)  # no piece is short
    told = right_at_all_sizes(name, monkeypatch)
    assert told and not any("rectangle" in t for t in told), name


def right_at_all_sizes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, Any]]:
    """What is told of the model's kernels of positions.

    Verified kernels, at the ends of the ranges and at odd sizes, on one and two threads.
    """
    monkeypatch.setenv("TILEWRIGHT_DEBUG", "1")
    source = model(MODELS[name])
    dims = {"n": (1, 2), "h": (17, 22), "w": (18, 21)}
    how: Any = {"jit": False, "cache": False, "threads": 2}
    with events.record() as log:
        exe: Any = tw.compile(source, dims=dims, **how)
    assert not any(e.kind == "kept-whole" for e in log), name
    graph = import_model(source, (), Options.of({}))
    for n, h, w in ((1, 17, 18), (2, 22, 21), (1, 19, 21), (2, 17, 19), (1, 22, 18)):
        sized = specialize(graph, {"n": n, "h": h, "w": w})
        rng = np.random.default_rng(h * w)
        x = rng.standard_normal((n, channels(MODELS[name]), h, w)).astype(np.float32)
        (want,) = evaluate(sized, {"x": x}, float64=True).values()
        found = exe(x)
        assert found.shape == want.shape, (n, h, w)
        np.testing.assert_allclose(found, want, rtol=2e-4, atol=2e-4)
    return [e.fields for e in log if e.kind == "positions"]


@pytest.mark.parametrize(
    "dims", [{"n": (2, 6)}, {"h": (12, 15), "w": (11, 13)}], ids=["batches", "images"]
)
def test_windows_are_parted_where_a_range_is_of_batches_alone(
    dims: dict[str, tuple[int, int]],
) -> None:
    """Winograd's form of each group, and window positions apart, or positions of the image."""
    layers: list[Layer] = [
        ("Conv", {}, (96, 16, 1, 1)),
        ("Conv", {"pads": [1] * 4, "group": 2}, (96, 48, 3, 3)),
        ("Conv", {"pads": [9] * 4, "dilations": [9, 9]}, (16, 96, 3, 3)),
    ]
    sizes = {"n": 1, "h": 14, "w": 13}
    source = model(layers)
    for d in source.graph.input[0].type.tensor_type.shape.dim:
        if d.dim_param and d.dim_param not in dims:
            d.dim_value = sizes[d.dim_param]
    with events.record() as log:
        exe: Any = tw.compile(source, dims=dims, jit=False, cache=False, threads=1)
    kinds = {e.kind for e in log}
    parted = {"winograd", "split-window"}
    assert kinds & {*parted, "positions"} == ({"positions"} if "h" in dims else parted)
    assert exe.model.shared
    graph = import_model(source, (), Options.of({}))
    rng = np.random.default_rng(3)
    for end in (0, 1):
        here = {name: ends[end] for name, ends in dims.items()}
        n, h, w = (sizes | here).values()
        x = rng.standard_normal((n, 16, h, w)).astype(np.float32)
        sized = specialize(graph, here)
        (want,) = evaluate(sized, {"x": x}, float64=True).values()
        np.testing.assert_allclose(exe(x), want, rtol=2e-4, atol=2e-4)


def of_one_image(layers: list[Layer]) -> Any:
    """The layers on one image."""
    source = model(layers)
    source.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    return source


def first(source: Any, kind: str, more: list[str], **attributes: Any) -> None:
    """Put a node before the first one, on the same tensor."""
    graph = source.graph
    read = graph.node[0].input[0]
    node = helper.make_node(kind, [read, *more], [kind], **attributes)
    graph.node[0].input[0] = kind
    graph.node.insert(0, node)


def agree(exe: Any, source: Any, *sizes: tuple[int, int]) -> None:
    """Results at these heights and widths are those of the interpreter."""
    graph = import_model(source, (), Options.of({}))
    for h, w in sizes:
        x = np.random.default_rng(h).standard_normal((1, 16, h, w)).astype(np.float32)
        sized = specialize(graph, {"h": h, "w": w})
        (want,) = evaluate(sized, {"x": x}, float64=True).values()
        np.testing.assert_allclose(exe(x), want, rtol=2e-4, atol=2e-4)


@pytest.fixture(scope="module")
def in_tiles() -> tuple[Any, Any, dict[str, Any]]:
    """A model with one convolution in Winograd's form, its code, and how that counts positions."""
    source = of_one_image(
        [
            ("Conv", {}, (64, 16, 1, 1)),
            ("Conv", {"pads": [1] * 4}, (64, 64, 3, 3)),
            ("GlobalAveragePool", {}, ()),
        ]
    )
    how: Any = {"jit": False, "cache": False, "threads": 1}
    with events.record() as log:
        exe: Any = tw.compile(source, dims={"h": (2, 11), "w": (2, 8)}, **how)
    (counts,) = (
        e.fields for e in log if e.kind == "positions" and e.fields["points"] > 1
    )
    return source, exe, counts


def test_few_positions_are_computed_without_tiles(
    in_tiles: tuple[Any, Any, dict[str, Any]],
) -> None:
    """A tile of Winograd's takes longer than a few direct sums: both are in the code."""
    source, exe, counts = in_tiles
    few = counts["few"]
    assert 4 <= few < 88
    ends = [(h, w) for h in range(2, 12) for w in range(2, 9)]
    last = max((h * w, h, w) for h, w in ends if h * w <= few)[1:]
    first = min((h * w, h, w) for h, w in ends if h * w > few)[1:]
    agree(exe, source, (2, 2), last, first, (3, 7), (11, 8))


def test_few_positions_may_be_a_rectangle() -> None:
    """A mask with its rows last is read in short pieces, beside an image with its channels last."""
    source = of_one_image(
        [("Conv", {}, (64, 16, 1, 1)), ("Conv", {"pads": [1] * 4}, (64, 64, 3, 3))]
    )
    graph = source.graph
    shape = [1, 1, "h", "w"]
    graph.input.append(helper.make_tensor_value_info("m", TensorProto.FLOAT, shape))
    pooled = helper.make_node("GlobalAveragePool", ["masked"], ["y"])
    graph.node.extend([helper.make_node("Mul", ["t1", "m"], ["masked"]), pooled])
    graph.output[0].name = "y"
    how: Any = {"jit": False, "cache": False, "threads": 2, "mcpu": "x86-64-v3"}
    with events.record() as log:
        exe: Any = tw.compile(source, dims={"h": (2, 11), "w": (2, 8)}, **how)
    found = [e.fields for e in log if e.kind == "positions"]
    assert any("few" in f and f["points"] > 1 for f in found)
    imported = import_model(source, (), Options.of({}))
    rng = np.random.default_rng(5)
    for h, w in ((2, 2), (2, 3), (5, 4), (11, 8)):
        x = rng.standard_normal((1, 16, h, w)).astype(np.float32)
        mask = rng.standard_normal((1, 1, h, w)).astype(np.float32)
        sized = specialize(imported, {"h": h, "w": w})
        (want,) = evaluate(sized, {"x": x, "m": mask}, float64=True).values()
        np.testing.assert_allclose(exe(x, mask), want, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("group", [1, 4], ids=["first layer", "groups"])
def test_what_is_around_an_image_is_gathered_with_it(group: int) -> None:
    """Rectangles at the edges read the padding, whatever it is."""
    source = of_one_image([("Conv", {"group": group}, (16, 16 // group, 3, 3))])
    graph = source.graph
    sides = numpy_helper.from_array(np.array([0, 0, 1, 2, 0, 0, 2, 1]), "sides")
    value = numpy_helper.from_array(np.array(1.5, np.float32), "value")
    graph.initializer.extend([sides, value])
    graph.node[0].input[0] = "padded"
    graph.node.insert(0, helper.make_node("Pad", ["x", "sides", "value"], ["padded"]))
    how: Any = {"jit": False, "cache": False, "threads": 2, "mcpu": "x86-64-v3"}
    with events.record() as log:
        exe: Any = tw.compile(source, dims={"h": (3, 9), "w": (2, 8)}, **how)
    assert any("rectangle" in e.fields for e in log if e.kind == "positions")
    agree(exe, source, (3, 2), (4, 7), (9, 8))


# layers, whether the image has its channels last, and whether some windows are read where they are
BORDERS: dict[str, tuple[list[Layer], bool, bool]] = {
    # That rows 2 * k are inside is no part of the guard, and follows from the extents.
    "guarded in part": (
        [("Conv", {"pads": [0, 1, 0, 1], "strides": [2, 1]}, (8, 16, 1, 3))],
        False,
        False,
    ),
    "guarded in part, in rectangles": (
        [("Conv", {"pads": [0, 1] * 2, "strides": [2, 1], "group": 16}, (16, 1, 1, 3))],
        True,
        False,
    ),
    "guarded, in rectangles": (
        [("Conv", {"pads": [1] * 4, "group": 16}, (16, 1, 3, 3))],
        True,
        False,
    ),
    # Columns of the image that the layer does not see are guarded, too: no guard of the image.
    "of a part": (
        [("Conv", {"pads": [0, 1, 0, 1], "strides": [2, 1]}, (8, 16, 1, 3))],
        False,
        False,
    ),
    "of a part, in rectangles": (
        [("Conv", {"pads": [0, 1] * 2, "strides": [2, 1], "group": 16}, (16, 1, 1, 3))],
        True,
        True,
    ),
    "none, in rectangles": (
        [("Conv", {"pads": [1, 0, 1, 0], "group": 16}, (16, 1, 3, 1))],
        True,
        True,
    ),
}


@pytest.mark.parametrize("mcpu", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("name", BORDERS)
def test_windows_that_leave_an_axis_of_known_size(
    name: str, mcpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All positions see the same columns, some of which are beside the image."""
    monkeypatch.setenv("TILEWRIGHT_DEBUG", "1")
    layers, last, stays = BORDERS[name]
    source = of_one_image(layers)
    if name.startswith("of a part"):
        ends = {"first": [0], "end": [7], "axis": [3]}
        arrays = {n: np.array(e) for n, e in ends.items()}
        source.graph.initializer.extend(
            map(numpy_helper.from_array, arrays.values(), arrays)
        )
        first(source, "Slice", list(arrays))
    shape = [1, 16, "h", 9]
    if last:
        shape = [1, "h", 9, 16]
        first(source, "Transpose", [], perm=[0, 3, 1, 2])
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    source.graph.input[0].CopyFrom(given)
    found: list[str] = []

    def kept(kernel: Kernel, *more: Any) -> PartedWork | None:
        made = by_positions(kernel, *more)
        assert made is not None
        found.extend(f.var.name for f in loops_of(made.kernel.body))
        return made

    monkeypatch.setattr(open_code, "by_positions", kept)
    monkeypatch.setattr(open_code, "workers", lambda *_: 1)
    how: Any = {"jit": False, "cache": False, "threads": 2, "mcpu": mcpu}
    exe: Any = tw.compile(source, dims={"h": (7, 12)}, **how)
    assert found and any(".in_place" in v for v in found) == stays
    graph = import_model(source, (), Options.of({}))
    for h in range(7, 13):
        sized = specialize(graph, {"h": h})
        own = [int(d) for d in sized.inputs[0].extents]
        x = np.random.default_rng(h).standard_normal(own).astype(np.float32)
        (want,) = evaluate(sized, {"x": x}, float64=True).values()
        np.testing.assert_allclose(exe(x), want, rtol=2e-4, atol=2e-4)


def test_weights_of_parts_without_sizes_are_packed() -> None:
    source = of_one_image(
        [
            ("Conv", {"pads": [1] * 4}, (16, 16, 3, 3)),
            ("GlobalAveragePool", {}, ()),
            ("Conv", {}, (48, 16, 1, 1)),
        ]
    )
    how: Any = {"jit": False, "cache": False, "threads": 1}
    exe: Any = tw.compile(source, dims={"h": (4, 9), "w": (4, 6)}, **how)
    values = exe.model.shared[0].opened.step.values
    constants = [s.tensor for s in values if s.kind == "constant"]
    packed = [t for t in constants if t.name.startswith(("packing_", "prepare_"))]
    assert any(t.nbytes == 48 * 16 * 4 for t in packed)
    agree(exe, source, (4, 4), (9, 5))


def test_all_numbers_of_positions_read_weights_as_the_first_one_packs_them(
    in_tiles: tuple[Any, Any, dict[str, Any]],
) -> None:
    """In Winograd's form there is one copy of the transformed weights."""
    _, exe, counts = in_tiles
    assert len(counts["at_a_time"]) > 2
    values = exe.model.shared[0].opened.step.values
    transformed = [
        s.at
        for s in values
        if s.kind == "constant" and s.tensor.nbytes == 16 * 64 * 64 * 4
    ]
    assert len(transformed) > 2 and len(set(transformed)) == 1


def loops_of_kernels(
    monkeypatch: pytest.MonkeyPatch, source: Any, dims: dict[str, Any], threads: int
) -> tuple[Any, dict[str, list[For]]]:
    """The executable of a range, and the loops of each of its kernels that has positions."""
    found: dict[str, list[For]] = {}

    def kept(kernel: Kernel, *more: Any) -> PartedWork | None:
        made = by_positions(kernel, *more)
        if made is not None:
            found[kernel.name] = list(loops_of(made.kernel.body))
        return made

    monkeypatch.setattr(open_code, "by_positions", kept)
    monkeypatch.setattr(open_code, "workers", lambda *_: 1)
    how: Any = {"jit": False, "cache": False, "threads": threads}
    return tw.compile(source, dims=dims, **how), found


def test_threads_share_the_work_of_a_block_that_has_no_second_one_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Blocks in pairs, each on a thread; the last of an odd number of blocks on both."""
    source = of_one_image(
        [("Conv", {}, (96, 16, 1, 1)), ("Conv", {"pads": [1] * 4}, (256, 96, 3, 3))]
    )
    monkeypatch.setenv("TILEWRIGHT_DEBUG", "1")
    for dims in ({"h": (3, 24), "w": (3, 24)}, {"h": (3, 4), "w": (3, 5)}):
        exe, found = loops_of_kernels(monkeypatch, source, dims, 2)
        *_, loops = found.values()
        blocks = [f for f in loops if f.var.name.startswith("positions")]
        each = [f for f in blocks if ".each" in f.var.name]
        assert each and all(f.kind == "serial" for f in each)
        assert all(f.kind == "parallel" for f in blocks if f not in each)
        # A few positions never fill two of the largest blocks.
        wide = dims["h"][1] > 4
        assert (blocks[0] in each) != wide
        sizes = [(3, 3), (4, 4), (3, 4)]
        if wide:
            sizes += [(24, 24), (24, 23), (17, 13), (9, 7), (8, 8), (12, 11)]
        agree(exe, source, *sizes)
    _, found = loops_of_kernels(monkeypatch, source, {"h": (3, 24), "w": (3, 24)}, 1)
    assert not [f for own in found.values() for f in own if ".each" in f.var.name]


def min_of_two(cores: int, trips: Sequence[int | None]) -> int:
    """A speedup: whatever there is to do, two cores share it."""
    return min(2, cores)


def test_more_cores_than_a_block_has_work_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three cores two share a block: rounds of three blocks, and two or more that are left."""
    monkeypatch.setattr(position_blocks, "speedup", min_of_two)
    source = of_one_image(
        [("Conv", {}, (96, 16, 1, 1)), ("Conv", {"pads": [1] * 4}, (256, 96, 3, 3))]
    )
    dims = {"h": (3, 24), "w": (3, 24)}
    exe, found = loops_of_kernels(monkeypatch, source, dims, 3)
    assert any(".each" in f.var.name for own in found.values() for f in own)
    agree(exe, source, *((h, h + 1) for h in range(3, 24)))


@pytest.mark.representatives("n-each", "h-each", "h-blocks")
@pytest.mark.parametrize("each", [False, True], ids=["blocks", "each"])
@pytest.mark.parametrize("axes", ["n", "h", "w", ""])
def test_rectangles_read_what_not_all_dimensions_have(
    axes: str, each: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A factor of each image, row, or column, or one: a tensor of a row of them, or of channels.

    each: threads share the work of each block, and the copies before it.
    """
    monkeypatch.setenv("TILEWRIGHT_DEBUG", "1")
    if each:
        monkeypatch.setattr(position_blocks, "speedup", min_of_two)
    source = model([("Conv", {"pads": [1] * 4, "group": 4}, (16, 4, 3, 3))])
    shape = [d if d in axes else 1 for d in ("n", "c", "h", "w")]
    c = 16 if axes == "n" else 1
    shape[1] = c
    graph = source.graph
    graph.input.append(helper.make_tensor_value_info("s", TensorProto.FLOAT, shape))
    graph.node.append(helper.make_node("Mul", ["t0", "s"], ["y"]))
    graph.output[0].name = "y"
    dims = {"n": (1, 3), "h": (7, 12), "w": (8, 11)}
    how: Any = {"jit": False, "cache": False, "threads": 2, "mcpu": "x86-64-v3"}
    with events.record() as log:
        exe: Any = tw.compile(source, dims=dims, **how)
    assert any("rectangle" in e.fields for e in log if e.kind == "positions")
    assert not [e.fields["reason"] for e in log if e.kind == "kept-whole"]
    imported = import_model(source, (), Options.of({}))
    rng = np.random.default_rng(5)
    for n, h, w in ((1, 7, 8), (3, 12, 11), (2, 9, 9)):
        sizes: dict[Any, int] = {"n": n, "h": h, "w": w}
        own = [sizes[d] if d in axes else 1 for d in "nhw"]
        shapes = [own[0], c, *own[1:]], [n, 16, h, w]
        s, x = (rng.standard_normal(d).astype(np.float32) for d in shapes)
        sized = specialize(imported, sizes)
        (want,) = evaluate(sized, {"x": x, "s": s}, float64=True).values()
        np.testing.assert_allclose(exe(x, s), want, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    ("least", "most", "rectangle"), [(2, 4, (4, 4)), (3, 5, (4, 6))]
)
def test_rectangles_are_as_large_as_sizes_gain_by(
    least: int, most: int, rectangle: tuple[int, int]
) -> None:
    """What is outside of the image is computed for nothing, but few blocks are the fastest."""
    layers: list[Layer] = [("Conv", {"pads": [1] * 4, "group": 32}, (32, 1, 3, 3))]
    dims = {"n": (1, 1), "h": (least, most), "w": (least, most)}
    how: Any = {"jit": False, "cache": False, "threads": 1, "mcpu": "x86-64-v3"}
    with events.record() as log:
        tw.compile(model(layers), dims=dims, **how)
    (found,) = (e.fields["rectangle"] for e in log if e.kind == "positions")
    assert found == rectangle


STEM: list[Layer] = [("Conv", {"pads": [1] * 4, "strides": [2, 2]}, (32, 3, 3, 3))]


class _ChosenError(Exception):
    """A rectangle was chosen: what makes its kernels, and the number of positions."""


def rectangle_of_stem(
    monkeypatch: pytest.MonkeyPatch, **costs: float
) -> tuple[PositionKernels, int]:
    """What makes the rectangles of a stem over large images, and how many positions each has.

    costs: other than the target's, of a machine with registers of 64 bytes.
    """
    choose, own = PositionKernels.one_box, CostModel.open.fget  # type: ignore[attr-defined]

    def told(maker: PositionKernels, counts: Sequence[int]) -> BlockCounts:
        raise _ChosenError(maker, choose(maker, counts).counts[0])

    with monkeypatch.context() as m:
        m.setattr(PositionKernels, "one_box", told)
        m.setattr(CostModel, "open", property(lambda at: replace(own(at), **costs)))
        m.setattr(open_code, "workers", lambda *_: 1)
        dims = {"h": (64, 256), "w": (64, 256)}
        how: Any = {"jit": False, "cache": False, "threads": 1, "mcpu": "x86-64-v4"}
        with pytest.raises(_ChosenError) as error:
            tw.compile(of_one_image(STEM), dims=dims, **how)
    maker, count = error.value.args
    return maker, count


def test_each_rectangle_begins_as_a_kernel_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, few = rectangle_of_stem(monkeypatch)
    _, many = rectangle_of_stem(monkeypatch, call_ns=0.0)
    assert few > many


def test_numbers_of_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Powers of two and those between; a rectangle has several along each dimension."""
    maker, _ = rectangle_of_stem(monkeypatch)
    assert maker.counts(4096) == [64, 48, 32, 24, 16, 12, 8, 4]
    assert maker.counts(13) == [16, 12, 8, 4]
    assert all(min(maker.grid(n)) > 1 for n in maker.counts(4096))
    fits = replace(maker.target.open_costs, gathered=maker.gathered(32))
    monkeypatch.setattr(CostModel, "open", property(lambda _: fits))
    assert maker.counts(4096) == [32, 24, 16, 12, 8, 4]


def test_what_it_takes_to_move_a_rectangle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 17 and 8 elements as whole pieces of 16, and bytes beyond the first cache."""
    maker, _ = rectangle_of_stem(monkeypatch)
    shapes = [b.shape for b in maker.parts(64).values()]
    assert shapes == [(1, 3, 17, 17), (1, 32, 8, 8)]
    costs = maker.target.open_costs
    pieces = (3 * 17 * 32 + 32 * 8 * 16) * costs.passed_ns
    size = (3 * 17 * 17 + 32 * 8 * 8) * 4
    assert size < costs.nearest and maker.moving(64) == pytest.approx(pieces)
    small = replace(costs, nearest=size - 1000)
    monkeypatch.setattr(CostModel, "open", property(lambda _: small))
    moved = pieces + 1000 * costs.near_ns
    assert maker.moving(64) == pytest.approx(moved)
