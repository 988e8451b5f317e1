"""Checks on a model file before it is read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from tilewright.base import flags, limits
from tilewright.base.errors import MemoryLimitError, ModelError
from tilewright.base.text import nearest, reason

_PIECE: Final = 1 << 20


def checked(path: Path, limit: int) -> None:
    """Raise ModelError for a missing file, folder or device; MemoryLimitError if it is too large.

    limit: bytes that the model may need.
    """
    where = str(path)
    try:
        if path.is_dir():
            raise ModelError(
                "it is a folder", where=where, hint="Name the model's file in it"
            )
        if path.is_char_device() or path.is_block_device():
            raise ModelError("it is a device", where=where, hint="Name a file")
        size = path.stat().st_size
    except FileNotFoundError:
        raise ModelError("no such file", where=where, hint=near_file(path)) from None
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None
    check_bytes(size, limit, where)


def near_file(path: Path) -> str:
    """A hint for a missing file: that of its folder with the nearest name, if any is near."""
    try:
        found = nearest(path.name, sorted(os.listdir(path.parent)))
    except OSError:
        return f"The folder {str(path.parent)!r} cannot be listed"
    return "Check the path" if found is None else f"Did you mean {found!r}?"


def check_bytes(size: int, limit: int, where: str) -> None:
    """Raise MemoryLimitError if a file of `size` bytes exceeds the limits."""
    if size > limits.file_bytes(limit):
        raise _too_large(f"{size:,}", limit, where)


def read(path: Path, limit: int) -> bytes:
    """The contents of a file or pipe. Raises ModelError, MemoryLimitError."""
    checked(path, limit)
    most = limits.file_bytes(limit)
    try:
        with path.open("rb") as file:
            # A pipe has no size, and a file may grow.
            pieces = [file.read(os.fstat(file.fileno()).st_size + 1)]
            have = len(pieces[0])
            while have <= most and (more := file.read(_PIECE)):
                pieces.append(more)
                have += len(more)
    except OSError as error:
        raise unreadable(path, error) from None
    if have > most:
        raise _too_large("more", limit, str(path))
    if len(pieces) == 1:
        return pieces[0]
    return b"".join(pieces)


def _too_large(size: str, limit: int, where: str) -> MemoryLimitError:
    most = limits.file_bytes(limit)
    what, hint = (
        ("memory limit", limits.MORE_MEMORY)
        if most == limit
        else ("limit for files", f"Raise {flags.FILE_LIMIT.name}")
    )
    return MemoryLimitError(
        f"the file has {size} bytes, over the {what} of {most:,}",
        where=where,
        hint=hint,
    )


def unreadable(path: Path, error: Exception) -> ModelError:
    """The error to raise if the system does not allow reading the file."""
    return ModelError(f"cannot be read: {reason(error)}", where=str(path))
