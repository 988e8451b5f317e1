"""A parallel digest: SHA-256 over the SHA-256 of each chunk of 1 MiB."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from threading import local
from typing import Final

from tilewright.runtime.threads import available

CHUNK: Final = 1 << 20
_MOST_THREADS: Final = 8  # what memory can feed


class GrowingDigest:
    """The digest of chunks that come one by one, in the thread that writes them."""

    def __init__(self) -> None:
        self._whole = hashlib.sha256()

    def add(self, chunk: memoryview) -> None:
        """Go on with the next CHUNK bytes; only the last chunk may have fewer."""
        self._whole.update(hashlib.sha256(chunk).digest())

    @property
    def text(self) -> str:
        """The digest of all chunks so far, as of `of_bytes`."""
        return self._whole.hexdigest()


def chunks(pieces: Iterable[memoryview]) -> Iterator[memoryview]:
    """The bytes of all pieces in chunks of CHUNK bytes, of which only the last may have fewer.

    Only a chunk that lies in several pieces is a copy.
    """
    rest = bytearray()
    for piece in pieces:
        at = min(-len(rest) % CHUNK, len(piece))
        rest += piece[:at]
        if len(rest) == CHUNK:
            yield memoryview(rest)
            rest = bytearray()
        whole = at + (len(piece) - at) // CHUNK * CHUNK
        for begin in range(at, whole, CHUNK):
            yield piece[begin : begin + CHUNK]
        rest += piece[whole:]
    if rest:
        yield memoryview(rest)


def of_bytes(data: bytes | memoryview) -> str:
    """The digest of contiguous bytes."""
    view = memoryview(data).cast("B")
    return _tree(lambda at: hashlib.sha256(view[at : at + CHUNK]).digest(), len(view))


def of_file(file: int, start: int, size: int) -> str:
    """The digest of `size` bytes of an open file, or of those that it has. Raises OSError."""
    own = local()

    def piece(at: int) -> bytes:
        if not hasattr(own, "buffer"):
            own.buffer = memoryview(bytearray(CHUNK))
        wanted, have = min(CHUNK, size - at), 0
        while have < wanted and (
            n := os.preadv(file, [own.buffer[have:wanted]], start + at + have)
        ):
            have += n
        return hashlib.sha256(own.buffer[:have]).digest()

    return _tree(piece, size)


def _tree(piece: Callable[[int], bytes], size: int) -> str:
    starts = range(0, size, CHUNK)
    if len(starts) < 2:
        return hashlib.sha256(b"".join(map(piece, starts))).hexdigest()
    from concurrent.futures import (
        ThreadPoolExecutor,  # not for small models: it takes a while
    )

    with ThreadPoolExecutor(min(len(starts), available(), _MOST_THREADS)) as pool:
        return hashlib.sha256(b"".join(pool.map(piece, starts))).hexdigest()
