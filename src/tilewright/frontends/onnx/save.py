"""Writing a Graph as an ONNX file, with large weights in a separate file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import onnx

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.base.files import write_whole
from tilewright.base.text import reason
from tilewright.frontends.onnx.export import to_onnx
from tilewright.frontends.onnx.opsets import every_operation
from tilewright.frontends.onnx.protos import tensor_to_onnx
from tilewright.graph.nodes import Graph

Array = np.ndarray[Any, Any]

# Protobuf messages are limited to 2 GiB; the nodes need part of that.
LARGEST: Final = 1_900_000_000
# Alignment of tensors in the separate file, so that readers can map them without copying.
ALIGNMENT: Final = 4096
# Smaller ones stay in the model, where shape inference can read them.
SMALLEST: Final = 1024


def save_onnx(
    graph: Graph, path: str | Path, *, name: str | None = None, largest: int = LARGEST
) -> tuple[Path, ...]:
    """Write a graph as a standard ONNX model (`to_onnx`); returns the files, the model last.

    path: of the model, whose folder exists. name: of the ONNX graph; by default the graph's own.
    Weights of more than `largest` bytes go to a file next to the model, whose name contains their
    digest, so a replaced model keeps its own. Either everything is written or nothing.

    Raises what `to_onnx` raises, and InputError if the files cannot be written.
    """
    path = Path(path)
    if sum(a.nbytes for a in _constants(graph)) <= largest:
        model = to_onnx(graph, name=name)
        content = model.SerializeToString()
        _write(path, content)
        return (path,)
    outside = _Outside(f"{path.stem}.{_digest(graph)}.data")
    model = to_onnx(graph, name=name, store=outside.store)
    beside = path.with_name(outside.location)
    is_new = not beside.exists()
    try:
        if is_new:
            _write(beside, outside)
        content = model.SerializeToString()
        _write(path, content)
    except BaseException:
        if is_new:
            beside.unlink(missing_ok=True)
        raise
    return beside, path


@dataclass
class _Outside:
    """Weights that go to the file `location`, in storage order."""

    location: str
    placed: list[tuple[int, Array]] = field(default_factory=list)
    size: int = 0

    def store(self, array: Array, name: str) -> Any:
        """A TensorProto that refers to the file; small arrays and strings stay in the model."""
        if array.nbytes < SMALLEST or array.dtype == object:
            return tensor_to_onnx(array, name)
        start = -(-self.size // ALIGNMENT) * ALIGNMENT
        length = len(_raw(array))
        self.placed.append((start, array))
        self.size = start + length
        proto = onnx.TensorProto(name=name, dims=array.shape)
        proto.data_type = tensor_to_onnx(array.reshape(-1)[:1]).data_type
        proto.data_location = onnx.TensorProto.EXTERNAL
        places = {"location": self.location, "offset": start, "length": length}
        for key, value in places.items():
            proto.external_data.add(key=key, value=str(value))
        return proto

    def __call__(self, file: BinaryIO) -> None:
        for start, array in self.placed:
            file.seek(start)
            file.write(_raw(array))


def _raw(array: Array) -> bytes:
    """The bytes of a tensor in ONNX's layout; elements narrower than a byte are packed."""
    return bytes(tensor_to_onnx(array).raw_data)


def _write(path: Path, content: bytes | _Outside) -> None:
    try:
        write_whole(
            path,
            content if isinstance(content, _Outside) else lambda f: f.write(content),
        )
    except OSError as error:
        raise InputError(
            f"the model cannot be written: {reason(error)}",
            where=str(path),
            hint="Name a file in a folder that exists and has room",
        ) from None


def _constants(graph: Graph) -> Iterator[Array]:
    yield from graph.constants.values()
    for op in every_operation(graph):
        for inner in op.subgraphs:
            yield from inner.constants.values()


def _digest(graph: Graph) -> str:
    found = hashlib.blake2b(digest_size=6)
    for array in _constants(graph):
        found.update(f"{array.dtype}{array.shape}".encode())
        if array.dtype != object:
            found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()
