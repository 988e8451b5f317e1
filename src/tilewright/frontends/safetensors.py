"""Tensors by name from .safetensors files, memory-mapped: tensors that are not read cost nothing.

This is a separate reader because the NumPy interface of the `safetensors` package lacks bfloat16,
and the required checks are short. Source of the format: github.com/huggingface/safetensors: 8
bytes, the length n of the header; n bytes of JSON; the bytes of the tensors, little-endian, one
after the other.
"""

from __future__ import annotations

import json
import math
import mmap
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeGuard

import numpy as np

from tilewright.base.dtypes import dtype_of
from tilewright.base.errors import ModelError
from tilewright.frontends.files import checked, unreadable

SUFFIX: Final = ".safetensors"
LONGEST_HEADER: Final = 100_000_000  # bytes, as in the format's own readers
DTYPES: Final = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}
_START: Final = 8
_METADATA: Final = "__metadata__"
_BROKEN: Final = "The file is broken: download it again"

Array = np.ndarray[Any, Any]


def read(path: Path, limit: int) -> dict[str, Array]:
    """The tensors of a file, read-only, in the file's dtypes. limit: bytes a model may need.

    Raises ModelError naming the invalid tensor, or MemoryLimitError.
    """
    checked(path, limit)
    if sys.byteorder != "little":
        raise ModelError("this machine's numbers are big-endian", where=str(path))
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if size < _START:
                raise _broken(path, f"it has {size} bytes")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None
    length = int.from_bytes(data[:_START], "little")
    if length > min(size - _START, LONGEST_HEADER):
        raise _broken(path, f"a header of {length:,} bytes in a file of {size:,}")
    header = _header(path, data[_START : _START + length])
    begin = _START + length
    _check_cover(path, header, size - begin)
    return {name: _tensor(data, begin, entry) for name, entry in header.items()}


def _header(path: Path, text: bytes) -> dict[str, Mapping[str, Any]]:
    """The entries by name, each checked separately."""
    try:
        found = json.loads(text.decode(), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise _broken(path, f"the header cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise _broken(path, "the header is not an object")
    found.pop(_METADATA, None)
    for name, entry in found.items():
        why = _fault(entry)
        if why:
            raise _broken(path, f"tensor {name!r}: {why}")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _fault(entry: Any) -> str:
    """The error in one tensor's entry; empty if there is none."""
    if not isinstance(entry, dict):
        return "its entry is not an object"
    kind = entry.get("dtype")
    shape = entry.get("shape")
    ends = entry.get("data_offsets")
    if not isinstance(kind, str) or kind not in DTYPES:
        return f"dtype {kind!r}; known are {', '.join(DTYPES)}"
    if not _are_counts(shape):
        return f"shape {shape!r}"
    if not _are_counts(ends) or len(ends) != 2 or ends[0] > ends[1]:
        return f"data_offsets {ends!r}"
    expected = math.prod(shape) * _itemsize(kind)
    if ends[1] - ends[0] != expected:
        return f"{kind}{shape} needs {expected:,} bytes, but has {ends[1] - ends[0]:,}"
    return ""


def _are_counts(found: Any) -> TypeGuard[list[int]]:
    return isinstance(found, list) and all(type(n) is int and n >= 0 for n in found)


def _itemsize(kind: str) -> int:
    return dtype_of(DTYPES[kind]).numpy.itemsize


def _check_cover(path: Path, header: Mapping[str, Any], size: int) -> None:
    """Raise ModelError unless the tensors cover every byte of the data exactly once."""
    place = 0
    ordered = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
    for name, entry in ordered:
        begin, end = entry["data_offsets"]
        if end > size:
            raise _broken(path, f"tensor {name!r} ends at {end:,} of {size:,} bytes")
        if begin != place:
            what = "overlaps the one before" if begin < place else "leaves a gap before"
            raise _broken(path, f"tensor {name!r} {what}: at {begin:,}, not {place:,}")
        place = end
    if place != size:
        raise _broken(path, f"{size - place:,} bytes after the last tensor")


def _tensor(data: mmap.mmap, begin: int, entry: Mapping[str, Any]) -> Array:
    dtype = dtype_of(DTYPES[entry["dtype"]]).numpy
    shape = tuple(entry["shape"])
    count = math.prod(shape)
    if not count:
        return np.zeros(shape, dtype)
    offset = begin + entry["data_offsets"][0]
    return np.frombuffer(data, dtype, count, offset).reshape(shape)


def _broken(path: Path, what: str) -> ModelError:
    return ModelError(f"not a safetensors file: {what}", where=str(path), hint=_BROKEN)
