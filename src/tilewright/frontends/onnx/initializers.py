"""Reads the large initializers of a model's file straight into arrays.

Parsing the whole file would hold its weights three times: as the bytes of the file, in the parsed
message, and as arrays. A scan of the message's wire format copies everything but the data of large
initializers, which is read into aligned memory:

    ModelProto.graph = 7, GraphProto.initializer = 5, TensorProto.raw_data = 9
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final

import numpy as np

from tilewright.runtime.buffer import empty
from tilewright.runtime.halves import in_halves

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Data = Mapping[int, Bytes]  # of initializers that lack them, by number
NO_DATA: Final[Data] = MappingProxyType({})

_GRAPH: Final = 7
_INITIALIZER: Final = 5
_RAW_DATA: Final = 9
LEAST: Final = 16 << 10  # bytes of data that are worth a read of their own
_LONGEST: Final = 10  # bytes of a number
_NUMBER, _BYTES = 0, 2  # wire types; values of the others have a fixed size
_FIXED: Final = {1: 8, 5: 4}


def scan(path: Path, mapped: bool = False) -> tuple[bytes, Data]:
    """A model's file without the data of its large initializers, and these data by number.

    mapped: leave them in the file, where they may begin at any byte. Raises ValueError for what is
    not such a message, or has the data of an initializer twice, and OSError.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        scanner = _Scanner(file)
        message = scanner.model(size)
        if mapped:
            whole = np.memmap(file, np.uint8, "r")
            return message, {n: whole[a : a + s] for n, a, s in scanner.missing}
        data = {n: empty((s,), np.dtype(np.uint8)) for n, _, s in scanner.missing}
        places = [(at, data[n]) for n, at, _ in scanner.missing]
        _fill(places, file.fileno())
        return message, data


def _fill(missing: Sequence[tuple[int, Bytes]], file: int) -> None:
    """Read arrays from their places in a file, about half of the bytes in another thread.

    Most of the time, the system gets memory for them.
    """

    def read(first: int, end: int) -> None:
        for place, array in missing[first:end]:
            left = array.data
            while left:
                done = os.preadv(file, [left], place)
                if not done:
                    raise ValueError("the file ends early")
                left = left[done:]
                place += done

    ends = list(accumulate(len(array) for _, array in missing))
    if ends:
        in_halves(read, len(ends), bisect_left(ends, ends[-1] // 2))


class _Scanner:
    """Copies messages from a file, field by field."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._at = 0
        self._initializers = 0
        self.missing: list[tuple[int, int, int]] = []  # initializer, place, bytes

    def model(self, size: int) -> bytes:
        """A ModelProto of `size` bytes."""
        return self._message(size, _GRAPH, self._graph)

    def _graph(self, size: int) -> bytes:
        return self._message(size, _INITIALIZER, self._initializer)

    def _initializer(self, size: int) -> bytes:
        if size < LEAST:
            made = self._taken(size)
        else:
            made = self._message(size, _RAW_DATA, self._raw_data)
        self._initializers += 1
        return made

    def _raw_data(self, size: int) -> bytes | None:
        if self.missing and self.missing[-1][0] == self._initializers:
            raise ValueError("an initializer has its data twice")
        if size < LEAST:
            return self._taken(size)
        self.missing.append((self._initializers, self._at, size))
        self._at = self._file.seek(size, 1)
        return None

    def _message(
        self, size: int, changing: int, changed: Callable[[int], bytes | None]
    ) -> bytes:
        """The fields of a message of `size` bytes.

        changed: what the bytes of a field with the number `changing` become, told how many there
        are; None leaves the field out.
        """
        end = self._at + size
        parts: list[bytes] = []
        while self._at < end:
            tag = self._number()
            field, kind = divmod(tag, 8)
            if kind == _NUMBER:
                parts += (_varint(tag), _varint(self._number()))
                continue
            length = self._number() if kind == _BYTES else _FIXED.get(kind)
            if length is None or self._at + length > end:
                raise ValueError(f"field {field} is damaged")
            inside = kind == _BYTES and field == changing
            value = changed(length) if inside else self._taken(length)
            if value is not None:
                head = _varint(len(value)) if kind == _BYTES else b""
                parts += (_varint(tag), head, value)
        if self._at > end:
            raise ValueError("a message ends inside of a field")
        return b"".join(parts)

    def _taken(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise ValueError("the file ends early")
        self._at += size
        return data

    def _number(self) -> int:
        found = 0
        for n in range(_LONGEST):
            (byte,) = self._taken(1)
            found |= (byte & 127) << (7 * n)
            if byte < 128:
                return found
        raise ValueError("a number is too long")


def _varint(number: int) -> bytes:
    """A number as the wire format has it."""
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)
