"""Trained models as text files: JSON with a digest, arrays in base64. Nothing is executed."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from tilewright.base.errors import InputError
from tilewright.base.files import write_whole

FORMAT: Final = "tilewright cost model"
VERSION: Final = 1

# JSON values, possibly with arrays among them.
State = Mapping[str, Any]

_ARRAY: Final = "array"
_DTYPES: Final = ("<f4", "<f8", "<i2", "<i8")


def write(path: Path, model: str, state: State) -> None:
    """Write the state of a model with this name."""
    content = json.dumps({"model": model, "state": _plain(state)}, sort_keys=True)
    whole = {
        "format": FORMAT,
        "version": VERSION,
        "digest": _digest(content),
        "content": content,
    }
    text = json.dumps(whole, indent=1) + "\n"
    write_whole(path, lambda file: file.write(text.encode()))


def read(path: Path, model: str) -> State:
    """Read a state that `write` stored for a model with this name.

    Raises InputError for a file of another format, version or model, and for a damaged one.
    """
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _refused(path, f"it cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise _refused(path, "it is not a cost model file, or it is damaged") from error
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        raise _refused(path, "it is not a cost model file")
    if whole.get("version") != VERSION:
        found = whole.get("version")
        raise _refused(path, f"its version is {found!r}, expected {VERSION}")
    content = whole.get("content")
    if not isinstance(content, str) or _digest(content) != whole.get("digest"):
        raise _refused(path, "it is damaged: its digest does not match its content")
    kept = json.loads(content)
    if kept["model"] != model:
        raise _refused(path, f"it is for {kept['model']!r}, not {model!r}")
    state: State = _with_arrays(kept["state"])
    return state


def _refused(path: Path, why: str) -> InputError:
    return InputError(
        f"the cost model cannot be loaded: {why}",
        where=str(path),
        hint="fit it again and save it",
    )


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        portable = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
        assert portable.dtype.str in _DTYPES, portable.dtype
        data = base64.b64encode(portable.tobytes()).decode()
        return {_ARRAY: portable.dtype.str, "shape": list(value.shape), "data": data}
    if isinstance(value, Mapping):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def _with_arrays(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_arrays(v) for v in value]
    if not isinstance(value, dict):
        return value
    if _ARRAY in value:
        return _array(value)
    return {key: _with_arrays(v) for key, v in value.items()}


def _array(value: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    try:
        data = base64.b64decode(value["data"], validate=True)
    except binascii.Error as error:
        raise InputError("an array of the cost model is damaged") from error
    flat = np.frombuffer(data, np.dtype(value[_ARRAY]))
    native = flat.astype(flat.dtype.newbyteorder("="))
    return native.reshape(value["shape"])
