"""Addresses in swizzled buffers, which `expr/swizzle.py` defines: three instructions each."""

from __future__ import annotations

from tilewright.base.errors import CompileError
from tilewright.expr.nodes import Buffer
from tilewright.expr.swizzle import CHUNK, CHUNKS
from tilewright.targets.llvm.emit_places import AddressEmitter, LaneAccess, Terms
from tilewright.targets.llvm.emit_text import LlvmValue, integer


def offset_in(x: AddressEmitter, buffer: Buffer, terms: Terms, const: int) -> LlvmValue:
    """Bytes from the start of a shared buffer to an element: terms in elements, const in bytes."""
    size = buffer.dtype.itemsize
    total = integer(const, "i32")
    for atom, c in terms:
        part = x.convert("trunc", x.value(atom), "i32")
        part = x.binary("mul nsw", part, integer(c * size, "i32"))
        total = x.binary("add nsw", total, part)
    return total


def swizzled_pointer(x: AddressEmitter, buffer: Buffer, offset: LlvmValue) -> LlvmValue:
    """The pointer to where the byte at an offset in a swizzled buffer is stored."""
    shift = (buffer.swizzle // CHUNK).bit_length() - 1
    row = x.binary("lshr", offset, integer(shift, "i32"))
    bits = x.binary("and", row, integer((CHUNKS - 1) * CHUNK, "i32"))
    stored = x.convert("zext nneg", x.binary("xor", offset, bits), "i64")
    base = x.pointers[buffer]
    return x.ins(f"getelementptr i8, {base.typed}, {stored.typed}", "ptr")


def check_chunks(buffer: Buffer, place: LaneAccess, alignment: int) -> None:
    """Raise CompileError (TW-LAUNCH) if lanes may be in several chunks of a swizzled buffer.

    alignment: of the first lane, in bytes, at most the size of all.
    """
    size = place.lanes * buffer.dtype.itemsize
    if place.is_uniform or (place.is_dense and alignment >= size):
        return
    raise CompileError(
        f"{buffer.name} is swizzled, and accessed across its chunks of {CHUNK} bytes",
        code="TW-LAUNCH",
        hint="access as many adjacent elements, from a multiple of their size on",
    )
