"""Static libraries: a Unix `ar` archive of one object file, with an index of its functions."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

_MAGIC: Final = b"!<arch>\n"
_HEADER: Final = struct.Struct("16s12s6s6s8s10s2s")


def archive(name: str, code: bytes, functions: Sequence[str]) -> bytes:
    """Build an archive of one object file, called `name` (at most 15 ASCII characters).

    The symbol index has System V's format, which the linkers of GNU and LLVM read. Times and owners
    are 0, so that equal objects give equal bytes.
    """
    names = b"".join(f.encode() + b"\0" for f in functions)
    size = 4 + 4 * len(functions) + len(names)
    names += bytes(size % 2)
    at = len(_MAGIC) + _HEADER.size + size + size % 2
    places = struct.pack(
        f">{len(functions) + 1}I", len(functions), *[at] * len(functions)
    )
    index = _member("/", places + names, "0")
    return _MAGIC + index + _member(f"{name}/", code, "644")


def _member(name: str, data: bytes, mode: str) -> bytes:
    fields = (name, "0", "0", "0", mode, str(len(data)))
    widths = (16, 12, 6, 6, 8, 10)
    texts = (f.ljust(w).encode() for f, w in zip(fields, widths, strict=True))
    return _HEADER.pack(*texts, b"`\n") + data + b"\n" * (len(data) % 2)
