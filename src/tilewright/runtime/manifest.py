"""The manifest of an artifact: a compiled model as JSON and back, without its bulk data."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from tilewright.base.dtypes import ALL, dtype_of
from tilewright.base.errors import ArtifactError
from tilewright.runtime import packed, schema
from tilewright.runtime.model import (
    OBJECT,
    CompiledModel,
    CopyStep,
    DeviceCopyStep,
    HostFallbackStep,
    KernelRecord,
    LaunchStep,
    NativeStep,
    Step,
    Tensor,
    ValueSlot,
)
from tilewright.runtime.packed import Constants, StoredConstants

Json = Any

DTYPE: Final = schema.OneOf("dtype", OBJECT, *(dtype.name for dtype in ALL))
_TENSOR: Final = (
    schema.Text,
    DTYPE,
    schema.Nullable([schema.Nullable(schema.Count)]),
)
_SLOT: Final = (
    schema.OneOf("place", "arena", "constant", "input", "output", "object", "device"),
    schema.Count,
    schema.Count,
)
_SLOTS: Final = [schema.Nullable(_SLOT)]
_KERNEL: Final = (
    schema.Count,
    schema.Text,
    [schema.Text],
    schema.Count,
    schema.Count,
    schema.Text,
)
_STEP: Final = schema.TaggedUnion(
    "kind",
    "step",
    {
        "native": {"symbol": schema.Text, "values": [_SLOT], "kernels": [_KERNEL]},
        "host": {
            "provider": schema.Text,
            "op": schema.Text,
            "attributes": schema.Object,
            "inputs": _SLOTS,
            "outputs": _SLOTS,
            "node": schema.Text,
        },
        "copy": {"places": (_SLOT, _SLOT)},
        "device-copy": {"device": schema.Text, "places": (_SLOT, _SLOT)},
        "launch": {
            "device": schema.Text,
            "program": schema.Count,
            "arguments": [_SLOT],
            "name": schema.Text,
            "nodes": [schema.Text],
            "flops": schema.Count,
            "bytes": schema.Count,
        },
    },
)
# What `encode` makes.
MODEL: Final[Mapping[str, schema.Shape]] = {
    "abi": schema.Count,
    "requirements": schema.Object,
    "inputs": [_TENSOR],
    "outputs": [_TENSOR],
    "arena_bytes": schema.Count,
    "workspace": schema.Count,
    "thread_workspace": schema.Count,
    "object_slots": schema.Count,
    "sizes": [schema.Count],
    "aliases": [(schema.Count, schema.Count)],
    "devices": schema.ObjectSchema(schema.Count),
    "tensors": [_TENSOR],
    "constants": packed.CONSTANTS,
    "steps": [_STEP],
    "meta": schema.Object,
}
# What `bundle` adds to it.
ARCHIVE: Final[Mapping[str, schema.Shape]] = {
    "format": schema.Count,
    "members": schema.ObjectSchema({"size": schema.Count, "digest": schema.Text}),
    "constants_offset": schema.Count,
}
_SHAPE: Final[Mapping[str, schema.Shape]] = {**ARCHIVE, **MODEL}
_REQUIREMENTS: Final[Mapping[str, schema.Shape]] = {
    "arch": schema.Text,
    "features": [schema.Text],
}
# Values that have their types and make no sense all the same.
MALFORMED: Final = (
    KeyError,
    TypeError,
    ValueError,
    IndexError,
    OverflowError,
    RecursionError,
)


def encode(model: CompiledModel, whole: bool = False) -> dict[str, Json]:
    """Everything but objects and constants. Raises TypeError for an attribute JSON cannot hold.

    whole: the file has all of the block of constants, as of `Constants.stored`.
    """
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
        "sizes": list(model.sizes),
        "aliases": [list(pair) for pair in model.aliases],
        "devices": dict(model.devices),
        "tensors": [_encode_tensor(t) for t in tensors],
        "constants": model.held.to_json(whole),
        "steps": steps,
        "meta": encode_value(model.meta),
    }


def parse(text: bytes) -> dict[str, Json]:
    """A manifest's JSON as a mapping, of whatever members. Raises ArtifactError."""
    try:
        found = json.loads(text)
        schema.check(found, schema.Object)
        return dict(found)
    except MALFORMED as error:
        raise malformed(error) from error


def check(data: Json, shape: schema.Shape = _SHAPE) -> None:
    """Raise ArtifactError unless everything in a manifest is where it belongs, with its type.

    shape: of the manifest, or of a part of it that is a model.
    """
    try:
        schema.check(data, shape)
        given = dict(data["requirements"])
        schema.check(
            given, {name: _REQUIREMENTS.get(name, schema.Anything) for name in given}
        )
    except MALFORMED as error:
        raise malformed(error) from error


def read_constants(data: Json, stored: StoredConstants) -> Constants:
    """The constants of a manifest that `check` let pass. Raises ArtifactError."""
    try:
        return stored.read(data["constants"])
    except MALFORMED as error:
        raise malformed(error) from error


def decode(
    data: Json,
    objects: Sequence[bytes],
    support: Sequence[bytes],
    programs: Sequence[bytes],
    constants: Constants,
) -> CompiledModel:
    """The model of a manifest that `check` let pass, and its bulk data. Raises ArtifactError."""
    try:
        tensors = [_decode_tensor(t) for t in data["tensors"]]
        return CompiledModel(
            inputs=tuple(map(_decode_tensor, data["inputs"])),
            outputs=tuple(map(_decode_tensor, data["outputs"])),
            steps=tuple(_decode_step(s, tensors) for s in data["steps"]),
            objects=tuple(objects),
            support=tuple(support),
            constants=constants.block,
            packed=constants.packed,
            weights=constants.weights,
            arena_bytes=data["arena_bytes"],
            workspace=data["workspace"],
            thread_workspace=data["thread_workspace"],
            object_slots=data["object_slots"],
            sizes=tuple(data["sizes"]),
            aliases=tuple((out, given) for out, given in data["aliases"]),
            requirements=decode_mapping(data["requirements"]),
            programs=tuple(programs),
            devices=data["devices"],
            meta=decode_mapping(data["meta"]),
            abi=data["abi"],
        )
    except MALFORMED as error:
        raise malformed(error) from error


def malformed(error: BaseException) -> ArtifactError:
    """The error for a manifest that does not have the expected shape."""
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return ArtifactError(
        f"the manifest is malformed: {kind}{error}", code="TW-MANIFEST"
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
            raise TypeError(
                f"an attribute of type {type(value).__name__} cannot be stored"
            )


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


def decode_mapping(value: Json) -> dict[str, Any]:
    """The inverse of `encode_value` of a mapping. Raises ValueError for anything else."""
    found = decode_value(value)
    schema.check(found, schema.Object)
    return dict(found)


def _decode_array(value: Json) -> Any:
    name, shape, data = value
    schema.check(shape, [schema.Count])
    extents = tuple(shape)
    if name == "string":
        schema.check(data, [schema.Anything])
        array = np.empty(len(data), object)
        array[:] = decode_value(data)
        return array.reshape(extents)
    schema.check(value, (DTYPE, [schema.Count], schema.Text))
    raw = base64.b64decode(data, validate=True)
    return np.frombuffer(raw, dtype_of(name).numpy).reshape(extents)


def _decode_float(value: Json) -> float:
    schema.check(value, schema.Text)
    return float(value)


def _decode_bytes(value: Json) -> bytes:
    schema.check(value, schema.Text)
    return base64.b64decode(value, validate=True)


_TAGS: Final[Mapping[str, Callable[[Json], Any]]] = {
    "$float": _decode_float,
    "$bytes": _decode_bytes,
    "$array": _decode_array,
}


def _encode_tensor(tensor: Tensor) -> Json:
    return [
        tensor.name,
        tensor.dtype,
        None if tensor.shape is None else list(tensor.shape),
    ]


def _decode_tensor(value: Json) -> Tensor:
    name, dtype, shape = value
    return Tensor(name, dtype, None if shape is None else tuple(shape))


def _encode_slot(slot: ValueSlot | None, tensors: dict[Tensor, int]) -> Json:
    if slot is None:
        return None
    return [slot.kind, slot.at, tensors.setdefault(slot.tensor, len(tensors))]


def _decode_slot(value: Json, tensors: Sequence[Tensor]) -> ValueSlot:
    kind, at, number = value
    return ValueSlot(kind, at, tensors[number])


def _decode_slots(
    values: Json, tensors: Sequence[Tensor]
) -> tuple[ValueSlot | None, ...]:
    return tuple(None if v is None else _decode_slot(v, tensors) for v in values)


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
        case HostFallbackStep():
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
            return {"kind": "copy", "places": _encode_places(step, tensors)}
        case DeviceCopyStep():
            places = _encode_places(step, tensors)
            return {"kind": "device-copy", "device": step.device, "places": places}
        case LaunchStep():
            return {
                "kind": "launch",
                "device": step.device,
                "program": step.program,
                "arguments": [_encode_slot(s, tensors) for s in step.arguments],
                "name": step.name,
                "nodes": list(step.nodes),
                "flops": step.flops,
                "bytes": step.bytes,
            }


def _encode_places(
    step: CopyStep | DeviceCopyStep, tensors: dict[Tensor, int]
) -> list[Json]:
    return [_encode_slot(s, tensors) for s in (step.source, step.target)]


def _decode_step(value: Json, tensors: Sequence[Tensor]) -> Step:
    match value["kind"]:
        case "native":
            return NativeStep(
                value["symbol"],
                tuple(_decode_slot(v, tensors) for v in value["values"]),
                tuple(map(_decode_kernel, value["kernels"])),
            )
        case "host":
            return HostFallbackStep(
                value["provider"],
                value["op"],
                decode_mapping(value["attributes"]),
                _decode_slots(value["inputs"], tensors),
                _decode_slots(value["outputs"], tensors),
                value["node"],
            )
        case "launch":
            return LaunchStep(
                value["device"],
                value["program"],
                tuple(_decode_slot(s, tensors) for s in value["arguments"]),
                value["name"],
                tuple(value["nodes"]),
                value["flops"],
                value["bytes"],
            )
        case kind:
            source, target = (_decode_slot(s, tensors) for s in value["places"])
            if kind == "copy":
                return CopyStep(source, target)
            return DeviceCopyStep(value["device"], source, target)


def _decode_kernel(value: Json) -> KernelRecord:
    number, name, nodes, flops, nbytes, symbol = value
    return KernelRecord(number, name, tuple(nodes), flops, nbytes, symbol)
