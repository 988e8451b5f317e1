"""External tensor data: which files a model may read, and reading them.

With symbolic links resolved, a location must be inside one of these folders: that of the model
file; that of the file which the model's path links to (the Hugging Face cache keeps both files as
links into one folder); or a root that the caller names. A model given as bytes has no folder, so it
may read nothing unless the caller names a root. A file with several hard links may also be in other
folders, which cannot be found, so it is rejected outside the caller's roots, as in ONNX's own
checker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ModelError
from tilewright.base.text import reason
from tilewright.runtime import digest

MAX_LOCATION = 4096
_NAMED = "--external-data-root, or external_data_roots=[...]"
_DIGITS = 30  # longest number of a size; Python itself rejects some thousand digits


@dataclass(frozen=True)
class ExternalData:
    """Where external data may be. base: the folder of the model's path, with links not resolved.

    roots: folders that it may be in, with links resolved. trusted: those that the caller named.
    named: the locations found so far, in order. digests: of the data read, in order, if requested.
    """

    base: Path | None
    roots: tuple[Path, ...]
    trusted: tuple[Path, ...] = ()
    named: dict[str, None] = field(default_factory=dict, compare=False)
    digests: list[str] | None = field(default=None, compare=False)

    @staticmethod
    def of(model: Path | None, roots: Sequence[str | Path] = ()) -> ExternalData:
        """The rules for a model at that path (None: given as bytes) and additional roots."""
        extra = [Path(r).resolve() for r in roots]
        if model is None:
            return ExternalData(extra[0] if extra else None, tuple(extra), tuple(extra))
        base = model.absolute().parent
        return ExternalData(
            base, (base.resolve(), model.resolve().parent, *extra), tuple(extra)
        )

    def find(self, location: str, where: str) -> Path:
        """The file that `location` names. Raises ModelError if reading it is forbidden or fails."""
        if self.base is None:
            raise ModelError(
                f"its data is in the file {location[:200]!r}, but the model was given as bytes, "
                "which have no folder",
                where=where,
                hint=f"Load the model by its path, or name the folder: {_NAMED}",
            )
        self._check_text(location, where)
        path = self.base / location
        try:
            real = path.resolve()
            inside = any(real.is_relative_to(root) for root in self.roots)
        except (
            OSError,
            RuntimeError,
            ValueError,
        ) as error:  # a loop of links, or a NUL character
            raise ModelError(
                f"cannot resolve {location!r}: {reason(error)}", where=where
            ) from None
        if not inside:
            raise ModelError(
                f"external data {location!r} points outside the model's folder",
                where=where,
                hint=f"If you trust the model, name that folder: {_NAMED}",
            )
        if not real.is_file():
            raise ModelError(
                f"external data file {location!r} does not exist",
                where=where,
                hint=f"Put it next to the model, in {self.base}",
            )
        if real.stat().st_nlink > 1 and not any(
            real.is_relative_to(t) for t in self.trusted
        ):
            raise ModelError(
                f"external data file {location!r} has several hard links, "
                "so it may also be in another folder",
                where=where,
                hint=f"Copy it, or if you trust the model, name its folder: {_NAMED}",
            )
        self.named[location] = None
        return real

    @staticmethod
    def _check_text(location: str, where: str) -> None:
        posix = PurePosixPath(location)
        windows = PureWindowsPath(location)
        if not location:
            bad = "is empty"
        elif len(location) > MAX_LOCATION:
            bad = "is too long"
        elif posix.is_absolute() or windows.drive or windows.root:
            bad = "is absolute"
        elif ".." in posix.parts or ".." in windows.parts:
            bad = "leaves the model's folder"
        elif "\0" in location:
            bad = "holds a NUL character"
        else:
            bad = ""
        if bad:
            raise ModelError(
                f"external data location {location[:200]!r} {bad}: not allowed",
                where=where,
                hint="A location must be a relative path inside the model's folder",
            )


def read(
    tensor: Any, size: int, rules: ExternalData, where: str
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The `size` bytes of a TensorProto's external data, mapped from the file (not copied).

    Raises ModelError if the location is not allowed, or the file is missing, short or changed.
    """
    info = {e.key: e.value for e in tensor.external_data}
    location = info.get("location", "")
    path = rules.find(location, where)
    offset = _number(info, "offset", 0, where)
    length = _number(info, "length", size, where)
    if length < size:
        raise ModelError(
            f"its external data has {length} bytes, it needs {size}", where=where
        )
    available = path.stat().st_size
    if offset + size > available:
        raise ModelError(
            f"external data file {path.name!r} is short: it has {available} bytes, the tensor "
            f"needs {offset} to {offset + size}",
            where=where,
            hint="The file is incomplete; fetch it again",
        )
    if size == 0:
        return np.zeros(0, np.uint8)
    data = np.memmap(path, np.uint8, "r", offset, (size,))
    checksum = info.get("checksum")
    if checksum and hashlib.sha1(np.asarray(data).data).hexdigest() != checksum.lower():
        raise ModelError(
            f"external data file {path.name!r} does not have the checksum stated in the model",
            where=where,
            hint="The file was changed or belongs to another model; fetch both again",
        )
    if rules.digests is not None:
        rules.digests.append(digest.of_bytes(np.asarray(data).data))
    return data


def _number(info: dict[str, str], key: str, default: int, where: str) -> int:
    text = info.get(key, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        raise ModelError(
            f"external data {key} {text[:40]!r} is not a size in bytes", where=where
        )
    return int(text)
