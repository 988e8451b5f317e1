"""Swizzled buffers: where the bytes of a buffer are whose chunks are in another order in each row.

    chunk of a byte   = byte // 16 % 8              in its block of 128 bytes
    row of a byte     = byte // row
    stored in chunk   = chunk ^ (row % 8)

row, at least a block, is `Buffer.swizzle`. Eight rows that follow one another store the same chunk
in different ones, so in different banks of a memory with 32 banks of 4 bytes.
"""

from __future__ import annotations

from typing import Final

CHUNK: Final = 16  # bytes that stay together
BLOCK: Final = 128  # bytes within which chunks change places: one word of each bank
CHUNKS: Final = BLOCK // CHUNK
PATTERN: Final = BLOCK * CHUNKS  # bytes after which rows of a block repeat their order


def swizzled(byte: int, row: int) -> int:
    """Where a byte of a buffer is stored. row: bytes of a row, 0 if it is not swizzled."""
    return byte ^ (byte // row % CHUNKS * CHUNK) if row else byte
