"""Files that are written completely or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final

# What a writer that was killed leaves after has a name that begins with it.
UNFINISHED: Final = ".writing-"


def write_whole(
    path: Path,
    write: Callable[[BinaryIO], object],
    *,
    durable: bool = False,
    private: bool = False,
) -> None:
    """Create or replace ``path`` atomically with the content that ``write`` produces.

    If it fails or is interrupted at any moment, no partial file is left; readers see the old file
    or the new one. A device or a pipe is not replaced but written to. durable: the file is on disk
    on return. private: only the owner may read it, and a device in its place is replaced too.
    Raises OSError, which names ``path``, and the errors of ``write``.
    """
    if not private and path.exists() and not path.is_file():
        # Formats such as zip seek back to fill in headers at the end, which devices cannot.
        whole = BytesIO()
        write(whole)
        try:
            with open(path, "wb") as device:
                device.write(whole.getbuffer())
        except OSError as error:
            error.filename = str(path)  # a full device is reported without a name
            raise
        return
    # Named before it exists: an interrupt between making a file and learning its name would
    # leave it behind.
    temporary = _temporary(path)
    mode = 0o600 if private else 0o666
    try:
        with open(
            temporary, "xb", opener=lambda name, how: os.open(name, how, mode)
        ) as file:
            write(file)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        # A full disk is reported without a name, other failures with one that nobody gave.
        if isinstance(error, OSError):
            if str(error.filename or temporary) == str(temporary):
                error.filename = str(path)
                del error.filename2  # None would be shown as a second path
        raise


def check_writable(path: Path) -> None:
    """Raise OSError, which names ``path``, if `write_whole` cannot write it: before long work.

    A full disk is noticed only when it is written to. A pipe is not opened, as its reader would
    take that for all.
    """
    if path.is_fifo() or path.is_socket():
        return
    if path.exists() and not path.is_file():
        try:
            with open(path, "wb", buffering=0) as device:
                device.write(b"")  # /dev/full refuses even that
        except OSError as error:
            error.filename = str(path)
            raise
        return
    temporary = _temporary(path)
    try:
        temporary.touch(exist_ok=False)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        with suppress(OSError):
            temporary.unlink()


def _temporary(path: Path) -> Path:
    """A name in the same folder that no other file has."""
    return path.with_name(f"{UNFINISHED}{secrets.token_hex(8)}")
