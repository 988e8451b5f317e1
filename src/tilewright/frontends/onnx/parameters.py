"""The weights of an ONNX model as inputs, and writing new values into the model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import numpy_helper

from tilewright.base.errors import InputError, ModelError
from tilewright.base.memory import memory_limit
from tilewright.base.text import listing
from tilewright.frontends.files import checked

Array = np.ndarray[Any, Any]
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16)
# Floats that are read for their values, or kept as statistics: operator -> its inputs.
_SETTINGS = {
    ("", "BatchNormalization"): (3, 4),
    ("", "Resize"): (1, 2),
    ("", "Upsample"): (1,),
}


def read(source: Any) -> onnx.ModelProto:
    """The model from a path or from a file's bytes, or the model itself.

    Raises ModelError if there is no ONNX file at the path, InputError for anything else.
    """
    if isinstance(source, onnx.ModelProto):
        return source
    if not isinstance(source, bytes | str | os.PathLike):
        raise InputError(
            f"cannot train a {type(source).__name__}",
            hint="give a path, bytes, an onnx.ModelProto, a torch.nn.Module or a tw.Graph",
        )
    try:
        if isinstance(source, bytes):
            return onnx.load_model_from_string(source)
        checked(Path(source), memory_limit())
        return onnx.load(str(source))
    except DecodeError:
        raise ModelError(
            "not an ONNX model, or a truncated one",
            where="the model" if isinstance(source, bytes) else str(source),
            hint="Fetch or export the file again",
        ) from None


def weights(model: onnx.ModelProto) -> list[str]:
    """The names of the initializers that are float tensors, except statistics and settings."""
    settings = {
        name
        for node in model.graph.node
        for n in _SETTINGS.get((node.domain.removeprefix("ai.onnx"), node.op_type), ())
        for name in node.input[n : n + 1]
    }
    return [
        t.name
        for t in model.graph.initializer
        if t.data_type in _FLOATS and t.dims and t.name not in settings
    ]


def free(
    model: onnx.ModelProto,
    names: Sequence[str],
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model with the named initializers turned into inputs, and their values.

    They become inputs before any pass runs, so nothing is computed from them in advance. Raises
    InputError for a name that is not an initializer's.
    """
    by_name = {t.name: t for t in model.graph.initializer}
    for name in names:
        if name not in by_name:
            raise InputError(
                f"the model has no parameter {name!r}",
                hint=f"it has {listing(sorted(by_name))}",
            )
    arrays = {n: numpy_helper.to_array(by_name[n]) for n in names}
    found = onnx.ModelProto()
    found.CopyFrom(model)
    kept = [t for t in found.graph.initializer if t.name not in arrays]
    del found.graph.initializer[:]
    found.graph.initializer.extend(kept)
    given = [v for v in found.graph.input if v.name not in arrays]
    del found.graph.input[:]
    found.graph.input.extend(given)
    for n in names:
        t = by_name[n]
        info = onnx.helper.make_tensor_value_info(n, t.data_type, list(t.dims))
        found.graph.input.append(info)
    return found, arrays


def with_values(model: onnx.ModelProto, arrays: Mapping[str, Array]) -> onnx.ModelProto:
    """The model with new values for some initializers."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    for t in found.graph.initializer:
        if t.name in arrays:
            t.CopyFrom(numpy_helper.from_array(arrays[t.name], t.name))
    return found
