"""Reading and writing the numbers of WebAssembly: LEB128, and what consists of them."""

from __future__ import annotations


class Reader:
    """Reads a module from a place on. Raises ValueError at its end."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    @property
    def ended(self) -> bool:
        """Whether all is read."""
        return self.at >= len(self.data)

    def bytes(self, count: int) -> bytes:
        """The next bytes."""
        found = self.data[self.at : self.at + count]
        if len(found) < count:
            raise ValueError(f"{count} bytes wanted at {self.at} of {len(self.data)}")
        self.at += count
        return found

    def byte(self) -> int:
        """The next byte."""
        return self.bytes(1)[0]

    def unsigned(self) -> int:
        """A number of at least 0."""
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def signed(self) -> int:
        """Any whole number."""
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value - (1 << shift) if byte & 64 else value

    def name(self) -> str:
        """A text with its length before it."""
        return self.bytes(self.unsigned()).decode()


def unsigned(value: int) -> bytes:
    """A number of at least 0, in as few bytes as it takes."""
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


def signed(value: int) -> bytes:
    """Any whole number, in as few bytes as it takes."""
    made = bytearray()
    while not -64 <= value < 64:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value & 127])


def padded(value: int) -> bytes:
    """The low 32 bits of a number in five bytes, as a place that is patched has them."""
    value &= 0xFFFFFFFF
    return bytes([*(value >> 7 * n & 127 | 128 for n in range(4)), value >> 28])


def padded_signed(value: int) -> bytes:
    """A number of 32 bits with its sign in five bytes."""
    return bytes([*(value >> 7 * n & 127 | 128 for n in range(4)), value >> 28 & 127])


def name(text: str) -> bytes:
    """A text with its length before it."""
    data = text.encode()
    return unsigned(len(data)) + data
