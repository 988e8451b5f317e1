"""The manifest of an artifact: a compiled model as JSON and back, without its bulk data."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np

from tilewright.base.dtypes import dtype_of
from tilewright.base.errors import ArtifactError, InputError
from tilewright.runtime.model import (
    OBJECT,
    CompiledModel,
    CopyStep,
    HostStep,
    KernelRecord,
    NativeStep,
    Slot,
    Step,
    Tensor,
)

T = TypeVar("T")
Json = Any

_KINDS: Final = ("arena", "constant", "input", "output", "object")
_MALFORMED: Final = (
    KeyError,
    TypeError,
    ValueError,
    IndexError,
    AttributeError,
    OverflowError,
    RecursionError,
    InputError,
)


def _typed(kind: type[T]) -> Callable[[Json], T]:
    def check(value: Json) -> T:
        if not isinstance(value, kind) or isinstance(value, bool):
            raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")
        return value

    return check


_text = _typed(str)
_items = _typed(list)
_mapping = _typed(dict)


def encode(model: CompiledModel) -> dict[str, Json]:
    """Everything but objects and constants. Raises TypeError for an attribute JSON cannot hold."""
    tensors: dict[Tensor, int] = {}
    steps = [_encode_step(step, tensors) for step in model.steps]
    return {
        "abi": model.abi,
        "requirements": encode_value(model.requirements),
        "inputs": [_encode_tensor(t) for t in model.inputs],
        "outputs": [_encode_tensor(t) for t in model.outputs],
        "arena_bytes": model.arena_bytes,
        "workspace": model.workspace,
        "thread_workspace": model.thread_workspace,
        "object_slots": model.object_slots,
        "tensors": [_encode_tensor(t) for t in tensors],
        "steps": steps,
        "meta": encode_value(model.meta),
    }


def decode(
    data: Json, objects: Sequence[bytes], support: Sequence[bytes], constants: Any
) -> CompiledModel:
    """The model of a manifest and its bulk data. Raises ArtifactError for any malformed one."""
    try:
        tensors = [_decode_tensor(t) for t in _items(data["tensors"])]
        return CompiledModel(
            inputs=tuple(map(_decode_tensor, _items(data["inputs"]))),
            outputs=tuple(map(_decode_tensor, _items(data["outputs"]))),
            steps=tuple(_decode_step(s, tensors) for s in _items(data["steps"])),
            objects=tuple(objects),
            support=tuple(support),
            constants=constants,
            arena_bytes=_natural(data["arena_bytes"]),
            workspace=_natural(data["workspace"]),
            thread_workspace=_natural(data["thread_workspace"]),
            object_slots=_natural(data["object_slots"]),
            requirements=_mapping(decode_value(data["requirements"])),
            meta=_mapping(decode_value(data["meta"])),
            abi=_natural(data["abi"]),
        )
    except _MALFORMED as error:
        raise malformed(error) from error


def parse(text: bytes) -> dict[str, Json]:
    """JSON text as a mapping. Raises ArtifactError."""
    try:
        return dict(_mapping(json.loads(text)))
    except _MALFORMED as error:
        raise malformed(error) from error


def malformed(error: BaseException) -> ArtifactError:
    """The error for a manifest that does not have the expected shape."""
    return ArtifactError(
        f"the manifest is malformed: {type(error).__name__}: {error}", code="TW-MANIFEST"
    )


def encode_value(value: Any) -> Json:
    """A value of attributes as JSON: bytes, arrays and special floats become tagged objects."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"$float": repr(value)}
        case bytes():
            return {"$bytes": base64.b64encode(value).decode()}
        case np.bool_() | np.integer():
            return value.item()
        case np.generic():
            return encode_value(np.asarray(value))
        case np.ndarray():
            return {"$array": _encode_array(value)}
        case Mapping():
            if any(not isinstance(k, str) or k.startswith("$") for k in value):
                raise TypeError("keys must be strings that do not begin with $")
            return {k: encode_value(v) for k, v in value.items()}
        case list() | tuple():
            return [encode_value(v) for v in value]
        case _:
            raise TypeError(f"an attribute of type {type(value).__name__} cannot be stored")


def decode_value(value: Json) -> Any:
    """The inverse of `encode_value`; tuples come back as lists."""
    if isinstance(value, list):
        return [decode_value(v) for v in value]
    if not isinstance(value, dict):
        return value
    for tag, decoder in _TAGS.items():
        if tag in value:
            return decoder(value[tag])
    return {k: decode_value(v) for k, v in value.items()}


def _encode_array(array: np.ndarray[Any, Any]) -> Json:
    shape = list(array.shape)
    if array.dtype == object:
        return ["string", shape, encode_value(array.ravel().tolist())]
    name = dtype_of(array.dtype).name
    data = np.ascontiguousarray(array, dtype_of(name).numpy).tobytes()
    return [name, shape, base64.b64encode(data).decode()]


def _decode_array(value: Json) -> Any:
    name, shape, data = value
    extents = tuple(map(_natural, _items(shape)))
    if name == "string":
        array = np.empty(len(data), object)
        array[:] = decode_value(data)
        return array.reshape(extents)
    raw = base64.b64decode(data, validate=True)
    return np.frombuffer(raw, dtype_of(_text(name)).numpy).reshape(extents)


_TAGS: Final[Mapping[str, Callable[[Json], Any]]] = {
    "$float": lambda text: float(_text(text)),
    "$bytes": lambda text: base64.b64decode(text, validate=True),
    "$array": _decode_array,
}


def _encode_tensor(tensor: Tensor) -> Json:
    return [tensor.name, tensor.dtype, None if tensor.shape is None else list(tensor.shape)]


def _decode_tensor(value: Json) -> Tensor:
    name, dtype, shape = value
    if dtype != OBJECT:
        dtype_of(_text(dtype))
    if shape is not None:
        shape = tuple(None if n is None else _natural(n) for n in _items(shape))
    return Tensor(_text(name), dtype, shape)


def _encode_slot(slot: Slot | None, tensors: dict[Tensor, int]) -> Json:
    if slot is None:
        return None
    return [slot.kind, slot.at, tensors.setdefault(slot.tensor, len(tensors))]


def _decode_slot(value: Json, tensors: Sequence[Tensor]) -> Slot:
    kind, at, number = value
    if kind not in _KINDS:
        raise ValueError(f"unknown place {kind!r}")
    return Slot(kind, _natural(at), tensors[_natural(number)])


def _decode_slots(values: Json, tensors: Sequence[Tensor]) -> tuple[Slot | None, ...]:
    return tuple(None if v is None else _decode_slot(v, tensors) for v in _items(values))


def _encode_step(step: Step, tensors: dict[Tensor, int]) -> Json:
    match step:
        case NativeStep():
            return {
                "kind": "native",
                "symbol": step.symbol,
                "values": [_encode_slot(s, tensors) for s in step.values],
                "kernels": [
                    [k.number, k.name, list(k.nodes), k.flops, k.bytes, k.symbol]
                    for k in step.kernels
                ],
            }
        case HostStep():
            return {
                "kind": "host",
                "provider": step.provider,
                "op": step.op,
                "attributes": encode_value(step.attributes),
                "inputs": [_encode_slot(s, tensors) for s in step.inputs],
                "outputs": [_encode_slot(s, tensors) for s in step.outputs],
                "node": step.node,
            }
        case CopyStep():
            places = [_encode_slot(s, tensors) for s in (step.source, step.target)]
            return {"kind": "copy", "places": places}


def _decode_step(value: Json, tensors: Sequence[Tensor]) -> Step:
    match value["kind"]:
        case "native":
            return NativeStep(
                _text(value["symbol"]),
                tuple(_decode_slot(v, tensors) for v in _items(value["values"])),
                tuple(map(_decode_kernel, _items(value["kernels"]))),
            )
        case "host":
            return HostStep(
                _text(value["provider"]),
                _text(value["op"]),
                _mapping(decode_value(value["attributes"])),
                _decode_slots(value["inputs"], tensors),
                _decode_slots(value["outputs"], tensors),
                _text(value["node"]),
            )
        case "copy":
            source, target = value["places"]
            return CopyStep(_decode_slot(source, tensors), _decode_slot(target, tensors))
        case kind:
            raise ValueError(f"unknown step {kind!r}")


def _decode_kernel(value: Json) -> KernelRecord:
    number, name, nodes, flops, nbytes, symbol = value
    counts = _natural(flops), _natural(nbytes)
    names = tuple(map(_text, _items(nodes)))
    return KernelRecord(_natural(number), _text(name), names, *counts, _text(symbol))


def _natural(value: Json) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"expected a count, got {value!r}")
    return value
