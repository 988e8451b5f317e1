"""A Hugging Face folder: its JSON files, and its tensors by name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from tilewright.base.errors import ModelError, UnsupportedError
from tilewright.base.memory import memory_limit as memory_limit_of
from tilewright.base.text import listing
from tilewright.frontends import safetensors
from tilewright.frontends.files import read

CONFIG: Final = "config.json"
_WHOLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_SAVED: Final = "model.save_pretrained(folder) of Transformers writes such a folder"
_FLOATS: Final = ("float32", "float16", "bfloat16", "float64")

Array = np.ndarray[Any, Any]


def load_json(folder: Path, name: str, *, optional: bool = False) -> dict[str, Any]:
    """An object from a JSON file of the folder. optional: return {} if there is no such file.

    Raises ModelError for a file that is missing or not a JSON object.
    """
    path = folder / name
    if optional and not path.exists():
        return {}
    if not folder.is_dir():
        raise ModelError("there is no such folder", where=str(folder), hint=_SAVED)
    if not path.exists():
        raise ModelError(f"{name} is missing", where=str(folder), hint=_SAVED)
    try:
        found = json.loads(read(path, memory_limit_of(None)))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"it is not JSON: {error}", where=str(path)) from None
    if not isinstance(found, dict):
        raise ModelError("it is not a JSON object", where=str(path))
    return found


class Checkpoint:
    """Tensors by name, each read with the shape that the architecture expects.

    prefix: of the model without its head; a checkpoint without a head omits it.
    """

    def __init__(self, folder: Path, prefix: str = "") -> None:
        self.folder = folder
        self._tensors = _tensors(folder)
        self._prefix = prefix
        if any(name.startswith(prefix) for name in self._tensors):
            self._prefix = ""
        self._taken: set[str] = set()

    def named(self, name: str) -> str:
        """The checkpoint's name of a tensor."""
        return name.removeprefix(self._prefix)

    def __contains__(self, name: str) -> bool:
        return self.named(name) in self._tensors

    def take(self, name: str, shape: Sequence[int]) -> Array:
        """A tensor in float32. Raises ModelError if it is missing or has another shape."""
        name = self.named(name)
        where = f"{self.folder}, tensor {name!r}"
        found = self._tensors.get(name)
        if found is None:
            raise ModelError(
                f"it is missing; expected {list(shape)}",
                where=where,
                hint=f"check that {CONFIG} belongs to these weights",
            )
        if found.shape != tuple(shape):
            raise ModelError(
                f"its shape is {list(found.shape)}, but {CONFIG} implies {list(shape)}",
                where=where,
                hint=f"check that {CONFIG} belongs to these weights",
            )
        if found.dtype.name not in _FLOATS:
            raise UnsupportedError(
                f"weights in {found.dtype.name}",
                where=where,
                hint="use a checkpoint of floats; precision= makes it smaller",
            )
        self._taken.add(name)
        return found.astype(np.float32)

    def ignore(self, name: str) -> None:
        """Mark a tensor as used, if it exists."""
        self._taken.add(self.named(name))

    def check_all_taken(self, ignored: Sequence[str] = ()) -> None:
        """Raise UnsupportedError for tensors that the graph does not use.

        ignored: suffixes of the names of tensors that are not weights.
        """
        names = self._tensors.keys() - self._taken
        left = sorted(n for n in names if not n.endswith(tuple(ignored)))
        if left:
            raise UnsupportedError(
                f"it has tensors that its architecture does not use: {listing(left)}",
                items=left,
                where=str(self.folder),
                hint=f"check that {CONFIG} belongs to these weights",
            )


def files(folder: Path) -> tuple[Path, ...]:
    """The files with the tensors: the single file, or the index and the files that it names.

    Raises ModelError if neither exists, or if the index is invalid.
    """
    whole = folder / _WHOLE
    if whole.exists():
        return (whole,)
    if not (folder / _INDEX).exists():
        raise ModelError(
            f"it has neither {_WHOLE} nor {_INDEX}",
            where=str(folder),
            hint=f"{_SAVED}; .bin files are not read, as that would run code from them",
        )
    names = sorted(set(_places(folder).values()))
    return (folder / _INDEX, *(folder / name for name in names))


def _places(folder: Path) -> dict[str, str]:
    """For each tensor, the file that the index names."""
    places = load_json(folder, _INDEX).get("weight_map")
    if not isinstance(places, dict) or not all(map(_plain, places.values())):
        raise ModelError(
            "weight_map must name a file of the folder for each tensor",
            where=str(folder / _INDEX),
        )
    return places


def _tensors(folder: Path) -> Mapping[str, Array]:
    """The tensors of the single file, or of the files that the index names."""
    limit = memory_limit_of(None)
    first, *others = files(folder)
    if not others and first.name == _WHOLE:
        return safetensors.read(first, limit)
    held = {path.name: safetensors.read(path, limit) for path in others}
    places = _places(folder)
    for tensor, name in places.items():
        if tensor not in held[name]:
            raise ModelError(
                f"tensor {tensor!r} is missing, but {_INDEX} says it is in this file",
                where=str(folder / name),
            )
    return {tensor: held[name][tensor] for tensor, name in places.items()}


def _plain(name: Any) -> bool:
    """Whether it is a plain file name, not a path that leads elsewhere."""
    return isinstance(name, str) and bool(name) and Path(name).name == name
