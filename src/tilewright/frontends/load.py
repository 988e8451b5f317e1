"""Loading a model in any supported format, chosen by the suffix of its file."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tilewright.base.errors import ArgumentError, ModelError
from tilewright.base.memory import memory_limit as memory_limit_of
from tilewright.frontends import onnx, torch
from tilewright.frontends.files import checked
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.frontends.torch.nesting import nesting_of
from tilewright.graph.nodes import Graph

_EXPORTED: Final = "torch.export.save(torch.export.export(module, inputs), 'model.pt2')"
_WEIGHTS: Final = f"It has weights and no graph. In PyTorch: {_EXPORTED}"
_CONVERT: Final = "Convert it to ONNX, for example by tf2onnx"
# Common formats that cannot be loaded, and how to make a model from them.
_OTHERS: Final = {
    ".pt": _WEIGHTS,
    ".pth": _WEIGHTS,
    ".ckpt": _WEIGHTS,
    ".safetensors": _WEIGHTS,
    ".tflite": _CONVERT,
    ".pb": _CONVERT,
    ".h5": _CONVERT,
    ".keras": _CONVERT,
    ".tw": "It is a compiled model: tilewright.load(path) runs it",
}


def is_onnx_name(path: Path) -> bool:
    """Whether a file of this name is read as an ONNX model: no other format has its suffix."""
    return path.suffix != torch.SUFFIX and path.suffix not in _OTHERS


def load(
    source: Any,
    *,
    memory_limit: int | None = None,
    trust: bool = False,
    inputs: Collection[str] = (),
    external_data_roots: Sequence[str | Path] = (),
    standard: bool = False,
    mapped: bool = False,
) -> Graph:
    """The Graph of a model.

    source: a path to an ONNX file or to a program that torch.export.save wrote (.pt2); the bytes of
    an ONNX file; an `onnx.ModelProto`. memory_limit: bytes (default: TILEWRIGHT_MEMORY_LIMIT, else
    what the machine has). trust: read a .pt2 as PyTorch does, which runs code from the file.
    inputs: names of inputs that have default values but should remain inputs. external_data_roots:
    folders besides the model's own from which an ONNX model's weights may be read. standard: keep
    operators as the model has them, for `to_onnx`. mapped: leave the weights of an ONNX model in
    its files, where they take no memory until they are read.

    Raises InputError for other `inputs`, ModelError for a broken file, MemoryLimitError for one
    that needs too much memory, UnsupportedError listing all operators that cannot be run.
    """
    if isinstance(source, str | Path):
        path = Path(source)
    else:
        path = None
    if path is not None and path.suffix in _OTHERS and path.is_file():
        raise ModelError(
            f"a {path.suffix} file is not a model that can be read",
            where=str(path),
            hint=_OTHERS[path.suffix],
        )
    if path is None or path.suffix != torch.SUFFIX:
        return onnx.load(
            source,
            memory_limit=memory_limit,
            external_data_roots=external_data_roots,
            inputs=inputs,
            standard=standard,
            mapped=mapped,
        )
    limit = memory_limit_of(memory_limit)
    checked(path, limit)
    program = torch.load(path, memory_limit=limit, trust=trust)
    return of_torch(program, limit=limit, inputs=inputs, standard=standard)


def of_torch(
    source: Any,
    example_inputs: Any = (),
    *,
    dynamic_shapes: Any = None,
    limit: int,
    inputs: Collection[str] = (),
    standard: bool = False,
    trained: Collection[str] = (),
) -> Graph:
    """The Graph of a PyTorch module or program; like `torch.to_graph`, with the same errors."""
    found, program = torch.to_graph(
        source,
        example_inputs,
        dynamic_shapes=dynamic_shapes,
        limit=limit,
        fallback=OnnxFallback(),
        standard=standard,
        trained=trained,
    )
    for name in inputs:
        raise ArgumentError(
            f"inputs: there is no input with a default named {name!r}",
            hint="a PyTorch program has none",
        )
    nesting = nesting_of(program, found)
    return replace(found, nesting=nesting)
