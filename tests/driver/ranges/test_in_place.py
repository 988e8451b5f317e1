"""Rectangles of an image whose kernels read tensors where they are: which do, and the results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

import tilewright as tw
from tests.driver.ranges.test_positions import (
    Layer,
    agree,
    loops_of_kernels,
    of_one_image,
)
from tilewright.base import events
from tilewright.driver.ranges import position_blocks
from tilewright.expr.nodes import Buffer
from tilewright.loops.nodes import Unit

DIMS = {"h": (9, 41), "w": (8, 37)}


def around(*layers: Layer) -> list[Layer]:
    """The layers between two of one position each, so that images have their channels last."""
    given = int(layers[0][2][1]) * int(layers[0][1].get("group", 1))
    made = int(layers[-1][2][0])
    first: Layer = ("Conv", {}, (given, 16, 1, 1))
    return [first, *layers, ("Conv", {}, (16, made, 1, 1))]


def depthwise(channels: int = 32, kernel: int = 3, **more: Any) -> Layer:
    return (
        "Conv",
        {"pads": [kernel // 2] * 4, "group": channels, **more},
        (channels, 1, kernel, kernel),
    )


STAY: dict[str, list[Layer]] = {
    "a window": around(depthwise()),
    "strides": around(depthwise(strides=[2, 2])),
    "wide": around(depthwise(kernel=5)),
    "rows apart": around(depthwise(dilations=[2, 1], pads=[2, 1, 2, 1])),
    "without a border": around(depthwise(pads=[0, 0, 0, 0])),
    "two": around(depthwise(), depthwise(strides=[1, 2])),
}
MOVED: dict[str, list[Layer]] = {
    "channels first": [("Conv", {"pads": [1] * 4}, (32, 16, 3, 3))],
    "few channels": around(depthwise(channels=8)),
}


def in_place(loops: dict[str, Any], what: str = "in_place") -> int:
    """How many kernels have loops that read tensors where they are."""
    return sum(any(f".{what}" in f.var.name for f in ls) for ls in loops.values())


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", STAY)
def test_rectangles_inside_are_read_where_they_are(
    name: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Smaller images than a rectangle, sizes that it divides and others, and borders."""
    source = of_one_image(STAY[name])
    with events.record() as log:
        exe, loops = loops_of_kernels(monkeypatch, source, DIMS, threads)
    assert not any(e.kind == "kept-whole" for e in log)
    assert in_place(loops) == len(STAY[name]) - 2
    agree(exe, source, (9, 8), (16, 16), (17, 33), (32, 32), (41, 37), (40, 9))


@pytest.mark.parametrize("name", MOVED)
def test_short_pieces_are_moved(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = of_one_image(MOVED[name])
    exe, loops = loops_of_kernels(monkeypatch, source, DIMS, 1)
    assert loops and not in_place(loops)
    agree(exe, source, (9, 8), (41, 37))


def test_kernels_that_need_known_strides_are_given_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[Any, Any, int]] = []
    may_stay = position_blocks._PositionBlocks._may_stay

    def noted(self: Any, kernel: Any, count: int) -> bool:
        asked.append((self, kernel, count))
        return may_stay(self, kernel, count)

    monkeypatch.setattr(position_blocks._PositionBlocks, "_may_stay", noted)
    loops_of_kernels(monkeypatch, of_one_image(STAY["a window"]), DIMS, 1)
    given = [a for a in asked if may_stay(*a)]
    assert given
    for blocks, kernel, count in given:
        unit = Unit("one", None, kernel.body, ())
        assert not may_stay(blocks, replace(kernel, body=unit), count)
        (window,) = blocks.positions.windows
        part = blocks._maker.parts(count)[window]
        flat = [
            Buffer(b.name, (b.size,), b.dtype) if b.name == part.name else b
            for b in kernel.params
        ]
        assert not may_stay(blocks, replace(kernel, params=tuple(flat)), count)
        turned = [
            Buffer(b.name, b.shape[::-1], b.dtype) if b.name == part.name else b
            for b in kernel.params
        ]
        assert not may_stay(blocks, replace(kernel, params=tuple(turned)), count)


@pytest.mark.parametrize("begin", [0, 16])
def test_channels_that_begin_later_are_read_there(
    begin: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A depthwise convolution reads some channels of a wider tensor."""
    source = of_one_image(around(depthwise()))
    graph = source.graph
    first, window = graph.node[0], graph.node[1]
    wide = np.random.default_rng(2).standard_normal((64, 16, 1, 1)).astype(np.float32)
    for name, array in (
        ("wide", wide),
        ("begin", np.array([begin])),
        ("end", np.array([begin + 32])),
        ("axis", np.array([1])),
    ):
        graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    del graph.value_info[:]
    first.input[1] = "wide"
    some = onnx.helper.make_node(
        "Slice", [first.output[0], "begin", "end", "axis"], ["some"]
    )
    window.input[0] = "some"
    graph.node.insert(1, some)
    exe, loops = loops_of_kernels(monkeypatch, source, DIMS, 1)
    assert in_place(loops) == 1
    agree(exe, source, (9, 8), (32, 32), (41, 37))


# Of the last layer, images have their channels first, so that it reads in place and writes parts.
ROWS: dict[str, tuple[list[Layer], dict[str, int]]] = {
    "few channels": (
        [("Conv", {}, (8, 32, 1, 1)), ("Conv", {}, (32, 8, 1, 1))],
        {"k_conv_2": 1},
    ),
    "strides": (
        [("Conv", {"strides": [2, 2]}, (32, 32, 1, 1))],
        {"k_conv_2": 0, "k_conv_3": 1},
    ),
    "a border": (
        [("Conv", {}, (32, 32, 1, 1)), depthwise()],
        {"k_conv_2": 0, "k_conv_3": 0},
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_positions_in_a_row_stay_where_they_are(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_DEBUG", "1")
    layers, rows = ROWS[name]
    source = of_one_image(around(*layers))
    exe, loops = loops_of_kernels(monkeypatch, source, DIMS, 2)
    assert {n: in_place({n: loops[n]}, "in_row") for n in rows} == rows
    agree(exe, source, (9, 8), (16, 16), (17, 33), (41, 37), (40, 9))


@pytest.mark.parametrize("joined", [False, True])
def test_a_result_with_elements_of_others_is_not_written_where_it_is(
    joined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block that reaches beyond the last position would overwrite them."""
    monkeypatch.setenv("TILEWRIGHT_DEBUG", "1")
    layer: Layer = ("Conv", {}, (32, 32, 1, 1))
    source = of_one_image(around(layer, layer))
    graph = source.graph
    del graph.value_info[:]
    if joined:
        both = onnx.helper.make_node("Concat", ["t2", "t1"], ["both"], axis=2)
        graph.node[3].input[0] = "both"
        graph.node.insert(3, both)
    told: dict[str, bool] = {}
    is_written = position_blocks._PositionBlocks._is_written

    def noted(self: Any, window: Any, *more: Any) -> bool:
        found = is_written(self, window, *more)
        told[window.tensor.name] = found
        return found

    monkeypatch.setattr(position_blocks._PositionBlocks, "_is_written", noted)
    dims: Any = {"h": (9, 150), "w": 1}
    exe, _ = loops_of_kernels(monkeypatch, source, dims, 1)
    assert told["both" if joined else "t1"] is not joined, told
    agree(exe, source, *((h, 1) for h in (9, 31, 40, 65, 127, 150)))


def test_all_sizes_of_a_short_range_are_right() -> None:
    source = of_one_image(STAY["strides"])
    how: Any = {"jit": False, "cache": False, "threads": 2}
    dims = {"h": (15, 19), "w": (31, 35)}
    exe: Any = tw.compile(source, dims=dims, **how)
    agree(exe, source, *((h, w) for h in range(15, 20) for w in range(31, 36)))
    assert isinstance(exe(np.zeros((1, 16, 15, 31), np.float32)), np.ndarray)
