"""Artifacts of models for ranges of shapes: one archive as `runtime.bundle` makes it.

The models have the same constants, and code that several of them have is in it once. A model is in
the manifest as in that of an artifact of one shape, with the numbers of its code; a model for all
sizes has formulas besides.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

from tilewright.base.errors import ArtifactError
from tilewright.base.files import write_whole
from tilewright.runtime import (
    abi,
    bundle,
    manifest,
    open_model,
    packed,
    ranged_model,
    schema,
)
from tilewright.runtime.bundle import FOLDERS, FORMAT, RANGED
from tilewright.runtime.conditions import ExtentCondition
from tilewright.runtime.model import CompiledModel, SymbolicType
from tilewright.runtime.model import check as check_model
from tilewright.runtime.open_model import OpenModel
from tilewright.runtime.packed import Constants
from tilewright.runtime.ranged_model import Cover, RangedModel, SharedModel

Json = Any

_MODEL: Final[Mapping[str, schema.Shape]] = {
    **{name: shape for name, shape in manifest.MODEL.items() if name != "constants"},
    **{folder: [schema.Count] for folder in FOLDERS},
}
_VALUE: Final = (schema.Text, manifest.DTYPE, schema.Nullable([schema.Anything]))
_EXTENTS: Final = (schema.OneOf("set of extents", "range", "list"), [schema.Count])
_FORMULAS: Final = [[schema.Anything]]
_OPENED: Final[Mapping[str, schema.Shape]] = {
    "model": schema.Object,
    "sizes": [schema.Anything],
    "inputs": _FORMULAS,
    "outputs": _FORMULAS,
    "values": _FORMULAS,
    "lives": [(schema.Count, schema.Count, schema.Count)],
    "touched": [[schema.Count]],
    "flops": [schema.Anything],
    "workspace": [schema.Anything],
    "thread_workspace": [schema.Anything],
    "covers": {"extents": [_EXTENTS], "without": [[schema.Count]]},
}
_SHAPE: Final[Mapping[str, schema.Shape]] = {
    **manifest.ARCHIVE,
    "abi": schema.Count,
    "inputs": [_VALUE],
    "outputs": [_VALUE],
    "allowed": [(schema.Text, _EXTENTS)],
    "conditions": [schema.Anything],
    "single": [([schema.Count], schema.Object)],
    "shared": [_OPENED],
    "constants": packed.CONSTANTS,
    "meta": schema.Object,
}


def save(model: RangedModel, path: str | os.PathLike[str]) -> None:
    """Write the artifact, whole or not at all; errors as of `bundle.save`."""
    bundle.written(path, partial(write, model))


def write(
    model: CompiledModel | RangedModel,
    path: Path,
    *,
    durable: bool = False,
    private: bool = False,
    pause: bundle.Pause = bundle.no_pause,
) -> None:
    """`save` for a cache, of a model of either kind; arguments and errors as of `bundle.write`."""
    if isinstance(model, CompiledModel):
        bundle.write(model, path, durable=durable, private=private, pause=pause)
        return
    ranged_model.check(model)
    for m in model.models:
        check_model(m)
    codes: _Codes = {folder: {} for folder in FOLDERS}
    try:
        encoded = _encode(model, codes, private)
        head = {"format": RANGED, "abi": abi.ABI_VERSION, **encoded}
        members = {folder: list(found) for folder, found in codes.items()}
        write_whole(
            path,
            lambda file: bundle.pack(
                file, model.held.stored(private), members, head, pause
            ),
            durable=durable,
            private=private,
        )
    except TypeError as error:
        raise ArtifactError(
            f"the model cannot be saved: {error}", where=str(path)
        ) from error


def load(
    path: str | os.PathLike[str], *, verify: bool = False
) -> CompiledModel | RangedModel:
    """The model in an artifact of either kind; arguments and errors as of `bundle.load`."""
    return bundle.opened(path, lambda file: _read(file, verify))


def _read(file: BinaryIO, verify: bool) -> CompiledModel | RangedModel:
    checks: dict[int, Callable[[Any], None]] = {FORMAT: manifest.check, RANGED: _check}
    head, codes, constants = bundle.contents(file, verify, checks)
    held = manifest.read_constants(head, constants)
    if head["format"] == FORMAT:
        fixed = manifest.decode(head, constants=held, **codes)
        check_model(fixed)
        return fixed
    try:
        model = _decode(head, codes, held)
        ranged_model.check(model)
    except manifest.MALFORMED as error:
        raise manifest.malformed(error) from error
    for m in model.models:
        check_model(m)
    return model


def _check(head: Json) -> None:
    """Raise ArtifactError unless everything in the manifest is where it belongs."""
    try:
        schema.check(head, _SHAPE)
    except manifest.MALFORMED as error:
        raise manifest.malformed(error) from error
    shared = (data["model"] for data in head["shared"])
    for data in (*(m for _, m in head["single"]), *shared):
        manifest.check(data, _MODEL)


# By folder, each distinct code with its number.
_Codes = dict[str, dict[bytes, int]]


def _encode(model: RangedModel, codes: _Codes, whole: bool) -> dict[str, Json]:
    return {
        "inputs": [_value(v) for v in model.inputs],
        "outputs": [_value(v) for v in model.outputs],
        "allowed": [[name, _extents(e)] for name, e in model.allowed.items()],
        "conditions": [c.to_json() for c in model.conditions],
        "single": [[list(k), _model(m, codes)] for k, m in model.single.items()],
        "shared": [_shared(s, codes) for s in model.shared],
        "constants": model.held.to_json(whole),
        "meta": manifest.encode_value(model.meta),
    }


def _value(v: SymbolicType) -> Json:
    return [v.name, v.dtype, None if v.shape is None else list(v.shape)]


def _extents(extents: Collection[int]) -> Json:
    if isinstance(extents, range):
        step = [extents.step] if extents.step != 1 else []
        return ["range", [extents[0], extents[-1], *step]]
    return ["list", list(extents)]


def _model(model: CompiledModel, codes: _Codes) -> Json:
    data = manifest.encode(model)
    del data["constants"]
    for folder, known in codes.items():
        parts = getattr(model, folder)
        data[folder] = [known.setdefault(code, len(known)) for code in parts]
    return data


def _shared(shared: SharedModel, codes: _Codes) -> Json:
    opened, covers = shared.opened, shared.covers
    return {
        "model": _model(opened.model, codes),
        "sizes": list(opened.sizes),
        "inputs": list(map(list, opened.inputs)),
        "outputs": list(map(list, opened.outputs)),
        "values": list(map(list, opened.values)),
        "lives": [[n, *ends] for n, ends in opened.lives.items()],
        "touched": list(map(list, opened.touched)),
        "flops": list(opened.flops),
        "workspace": list(opened.workspace),
        "thread_workspace": list(opened.thread_workspace),
        "covers": {
            "extents": [_extents(e) for e in covers.extents],
            "without": sorted(map(list, covers.without)),
        },
    }


def _decode(
    head: Json, codes: Mapping[str, Sequence[bytes]], constants: Constants
) -> RangedModel:
    def model_of(data: Json) -> CompiledModel:
        code = {f: [codes[f][n] for n in data[f]] for f in FOLDERS}
        return manifest.decode(data, constants=constants, **code)

    found = RangedModel(
        inputs=tuple(map(_decode_value, head["inputs"])),
        outputs=tuple(map(_decode_value, head["outputs"])),
        allowed={name: _decode_extents(e) for name, e in head["allowed"]},
        single={tuple(key): model_of(data) for key, data in head["single"]},
        shared=tuple(
            _decode_shared(d, model_of(d["model"]), [n for n, _ in head["allowed"]])
            for d in head["shared"]
        ),
        meta=manifest.decode_mapping(head["meta"]),
        conditions=tuple(map(ExtentCondition.of_json, head["conditions"])),
    )
    return found.with_constants(constants)


def _decode_shared(
    data: Json, model: CompiledModel, names: Collection[str]
) -> SharedModel:
    made = OpenModel(
        model=model,
        sizes=tuple(data["sizes"]),
        inputs=tuple(map(tuple, data["inputs"])),
        outputs=tuple(map(tuple, data["outputs"])),
        values=tuple(map(tuple, data["values"])),
        lives={n: (first, last) for n, first, last in data["lives"]},
        touched=tuple(map(tuple, data["touched"])),
        flops=tuple(data["flops"]),
        workspace=tuple(data["workspace"]),
        thread_workspace=tuple(data["thread_workspace"]),
    )
    open_model.check(made, names)
    covers = data["covers"]
    extents = tuple(map(_decode_extents, covers["extents"]))
    return SharedModel(made, Cover(extents, frozenset(map(tuple, covers["without"]))))


def _decode_value(data: Json) -> SymbolicType:
    name, dtype, shape = data
    if any(type(d) not in (int, str, type(None)) for d in shape or ()):
        raise ValueError(f"{name} has the shape {shape}")
    return SymbolicType(name, dtype, None if shape is None else tuple(shape))


def _decode_extents(data: Json) -> Collection[int]:
    kind, numbers = data
    if kind == "list":
        return tuple(numbers)
    least, most, *step = numbers
    return range(least, most + 1, *step)
