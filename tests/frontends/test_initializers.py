"""A file's large initializers, read straight into arrays: as the parser reads them."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.base.errors import (
    MemoryLimitError,
    TilewrightError,
    TilewrightWarning,
)
from tilewright.frontends.onnx import initializers
from tilewright.frontends.onnx.load import load

WIDE = 600  # its square has over 1 MiB of float32


def tensors() -> list[TensorProto]:
    """Two that are large, one small one, and one whose data is not raw."""
    rng = np.random.default_rng(0)
    square = rng.standard_normal((WIDE, WIDE), np.float32)
    made = [
        numpy_helper.from_array(square, "w"),
        numpy_helper.from_array(square[0], "small"),
        helper.make_tensor("typed", TensorProto.FLOAT, (WIDE,), square[1]),
        numpy_helper.from_array(square[::-1].astype(np.float16), "half"),
    ]
    return made


def model(given: bool = False) -> onnx.ModelProto:
    """A model of them all; given: the first is an input with a default."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, WIDE))
    w = helper.make_tensor_value_info("w", TensorProto.FLOAT, (WIDE, WIDE))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, WIDE))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "small"], ["b"]),
        helper.make_node("Mul", ["b", "typed"], ["c"]),
        helper.make_node("Cast", ["half"], ["d"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["c", "d"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [x, w] if given else [x], [y], tensors())
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


def outcome(source: Path | bytes, where: str) -> object:
    """The graph and its constants, or the error or warning without the file's name."""
    try:
        graph = load(source)
    except (TilewrightError, TilewrightWarning) as error:
        return type(error), str(error).replace(where, "the model")
    known = [(v.name, a.dtype, a.tobytes()) for v, a in graph.constants.items()]
    return str(graph), graph.origin, known


@pytest.mark.parametrize("given", [False, True])
def test_a_file_gives_what_its_bytes_do(path: Path, given: bool) -> None:
    onnx.save(model(given), path)
    assert outcome(path, str(path)) == outcome(path.read_bytes(), str(path))
    origin = load(path).origin
    assert bool(origin) == given


def test_large_data_is_aligned_and_not_in_the_message(path: Path) -> None:
    onnx.save(model(), path)
    message, data = initializers.scan(path)
    assert sorted(data) == [0, 3]
    assert len(message) < 10_000
    assert all(raw.ctypes.data % 64 == 0 for raw in data.values())
    left = onnx.ModelProto.FromString(message)
    assert [t.HasField("raw_data") for t in left.graph.initializer] == [0, 1, 0, 0]
    assert data[0].tobytes() == tensors()[0].raw_data


def test_parts_of_a_graph_and_what_is_unknown_are_kept(path: Path) -> None:
    first, second = model(), onnx.ModelProto()
    second.graph.initializer.append(tensors()[0])
    second.graph.initializer[0].name = "more"
    unknown = b"\xc0\x3e\x07"  # field 1000, a number
    path.write_bytes(first.SerializeToString() + second.SerializeToString() + unknown)
    message, data = initializers.scan(path)
    assert sorted(data) == [0, 3, 4]
    assert message.endswith(unknown)
    assert outcome(path, str(path)) == outcome(path.read_bytes(), str(path))


def test_data_that_occurs_twice_is_left_to_the_parser(path: Path) -> None:
    twice = tensors()[0].SerializeToString() + b"\x4a\x04abcd"
    large = onnx.ModelProto.FromString(model().SerializeToString())
    graph = large.graph.SerializeToString()
    graph += b"\x2a" + _varint(len(twice)) + twice
    path.write_bytes(b"\x3a" + _varint(len(graph)) + graph)
    with pytest.raises(ValueError, match="twice"):
        initializers.scan(path)
    assert outcome(path, str(path)) == outcome(path.read_bytes(), str(path))


def test_a_length_beyond_the_file_takes_no_memory(path: Path) -> None:
    for tag in (b"\x3a", b"\x3a\xff\xff\x3f\x2a\xff\xff\x3f\x4a"):
        path.write_bytes(tag + _varint(1 << 62) + bytes(1 << 20))
        with pytest.raises(ValueError, match="damaged"):
            initializers.scan(path)


def test_damaged_files_have_the_errors_of_their_bytes(path: Path) -> None:
    whole = model().SerializeToString()
    spots = [n for n in range(len(whole)) if whole[n : n + 1] in (b"\x2a", b"\x4a")]
    heads = [*range(64), *spots[:3], *range(len(whole) - 80, len(whole))]
    r = random.Random(0)
    for _ in range(25):
        damaged = bytearray(whole)
        damaged[r.choice(heads)] = r.randrange(256)
        if r.random() < 0.3:
            del damaged[r.randrange(len(damaged) - 100_000, len(damaged)) :]
        path.write_bytes(damaged)
        assert outcome(path, str(path)) == outcome(bytes(damaged), str(path))


def _varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])


@pytest.mark.parametrize("most", [1 << 30, 100_000])
def test_large_data_is_read_in_halves(
    path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """most: bytes that the system gives at once."""
    onnx.save(model(), path)
    whole = os.preadv

    def some(file: int, buffers: list[memoryview], place: int) -> int:
        return whole(file, [buffers[0][:most]], place)

    monkeypatch.setattr(os, "preadv", some)
    _, data = initializers.scan(path)
    assert [raw.tobytes() for raw in data.values()] == [
        tensors()[n].raw_data for n in (0, 3)
    ]
    monkeypatch.setattr(os, "preadv", lambda *_: 0)
    with pytest.raises(ValueError, match="ends early"):
        initializers.scan(path)


def test_mapped_weights_are_those_that_are_read(path: Path) -> None:
    onnx.save(model(), path)
    read, mapped = load(path), load(path, mapped=True)
    assert str(read) == str(mapped)
    for a, b in zip(read.constants.values(), mapped.constants.values(), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    assert {np.memmap} < {type(array) for array in mapped.constants.values()}


@pytest.mark.parametrize("outside", [False, True])
def test_the_memory_limit_does_not_count_mapped_weights(
    path: Path, outside: bool
) -> None:
    onnx.save(model(), path, save_as_external_data=outside, size_threshold=1024)
    with pytest.raises(MemoryLimitError):
        load(path, memory_limit=2_000_000)
    graph = load(path, memory_limit=2_000_000, mapped=True)
    assert str(graph) == str(load(path))


def test_what_is_not_mapped_counts_still(path: Path) -> None:
    """Numbers of the message itself, and values narrower than a byte, take memory."""
    narrow = onnx.TensorProto(name="w", data_type=TensorProto.INT4, dims=[4 << 20])
    narrow.raw_data = bytes(2 << 20)
    graph = helper.make_graph(
        [helper.make_node("Shape", ["w"], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [1])],
        [narrow],
    )
    onnx.save(helper.make_model(graph), path)
    with pytest.raises(MemoryLimitError, match=r"its shape \[4194304\] of int4 needs"):
        load(path, memory_limit=1 << 20, mapped=True)


def test_what_is_not_mapped_counts_together(path: Path) -> None:
    narrow = [
        onnx.TensorProto(
            name=name,
            data_type=TensorProto.INT4,
            dims=[40_000],
            raw_data=bytes(20_000),
        )
        for name in ("v", "w")
    ]
    graph = helper.make_graph(
        [helper.make_node("Shape", ["w"], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [1])],
        narrow,
    )
    onnx.save(helper.make_model(graph), path)
    with pytest.raises(MemoryLimitError, match="initializer 'w'"):
        load(path, memory_limit=60_000, mapped=True)
