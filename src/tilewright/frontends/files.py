"""What is asked of a model's file before it is read."""

from __future__ import annotations

from pathlib import Path

from tilewright.base.errors import MemoryLimitError, ModelError


def checked(path: Path, limit: int) -> None:
    """Raise ModelError if there is no such file, or a folder or device; MemoryLimitError for one of
    more than `limit` bytes."""
    where = str(path)
    try:
        if path.is_dir():
            raise ModelError("this is a folder", where=where, hint="Name the model's file in it")
        if path.is_char_device():
            raise ModelError("this is a device", where=where, hint="Name a file")
        size = path.stat().st_size
    except FileNotFoundError:
        raise ModelError("no such file", where=where, hint="Check the path") from None
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None
    if size > limit:
        raise MemoryLimitError(
            f"the file has {size:,} bytes, over the memory limit of {limit:,}", where=where
        )


def unreadable(path: Path, error: Exception) -> ModelError:
    """What to raise where the system does not let the file be read."""
    reason = getattr(error, "strerror", None) or str(error)
    return ModelError(f"cannot be read: {reason}", where=str(path))
