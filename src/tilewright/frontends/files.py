"""Checks on a model file before it is read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from tilewright.base import flags, limits
from tilewright.base.errors import MemoryLimitError, ModelError

_PIECE: Final = 1 << 20


def checked(path: Path, limit: int) -> None:
    """Raise ModelError if there is no such file, or a folder or device; MemoryLimitError for one of
    more bytes than a model of `limit` bytes may have."""
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
        raise ModelError("no such file", where=where, hint="Check the path") from None
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None
    check_bytes(size, limit, where)


def check_bytes(size: int, limit: int, where: str) -> None:
    """Raise MemoryLimitError for a file of `size` bytes that is over the limits."""
    if size > limits.file_bytes(limit):
        raise _too_large(f"{size:,}", limit, where)


def read(path: Path, limit: int) -> bytes:
    """What is in the file, or comes out of the pipe. Raises ModelError, MemoryLimitError."""
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
    what, raised = (
        ("memory limit", "--memory-limit if the machine has the memory")
        if most == limit
        else ("limit for files", flags.FILE_LIMIT.name)
    )
    return MemoryLimitError(
        f"the file has {size} bytes, over the {what} of {most:,}",
        where=where,
        hint=f"Raise {raised}",
    )


def unreadable(path: Path, error: Exception) -> ModelError:
    """What to raise where the system does not let the file be read."""
    reason = getattr(error, "strerror", None) or str(error)
    return ModelError(f"cannot be read: {reason}", where=str(path))
