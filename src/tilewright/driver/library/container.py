"""Wraps the object code of a library in the requested file format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tilewright.base.errors import UnsupportedError
from tilewright.base.text import listing
from tilewright.driver.library.archive import archive
from tilewright.driver.library.interface import LibraryDescription
from tilewright.driver.library.shared import shared_library
from tilewright.driver.library.wasm import module

_Make = Callable[[bytes, str, LibraryDescription], bytes]


def _object(code: bytes, file: str, library: LibraryDescription) -> bytes:
    return code


def _archive(code: bytes, file: str, library: LibraryDescription) -> bytes:
    return archive("model.o", code, _functions(library))


def _shared(code: bytes, file: str, library: LibraryDescription) -> bytes:
    return shared_library([code], file, _functions(library))


def _module(code: bytes, file: str, library: LibraryDescription) -> bytes:
    return module(code, _functions(library))


def _functions(library: LibraryDescription) -> list[str]:
    return [f"{library.name}_run", f"{library.name}_run_parallel"]


# By suffix: the function that makes the file, and the object formats that it accepts.
_MAKERS: Final[Mapping[str, tuple[_Make, Sequence[str]]]] = {
    ".o": (_object, ("elf", "elf32", "wasm", "")),
    ".a": (_archive, ("elf", "elf32", "wasm")),
    ".so": (_shared, ("elf",)),
    ".wasm": (_module, ("wasm",)),
}
SUFFIXES: Final = tuple(_MAKERS)
_MARKS: Final = {
    b"\x7fELF\x02": "elf",
    b"\x7fELF\x01": "elf32",  # microcontrollers, which load no libraries
    b"\0asm\x01": "wasm",
}


def check_format(code: bytes, file: str, triple: str) -> None:
    """Raise UnsupportedError if a system, with object code like this, has no such format."""
    suffix = file[file.rindex(".") :]
    found = _MARKS.get(code[:5], "")
    if found not in _MAKERS[suffix][1]:
        able = [s for s, (_, formats) in _MAKERS.items() if found in formats]
        raise UnsupportedError(
            f"{suffix} files are not supported for {triple}",
            code="TW-LIBRARY",
            where=file,
            hint=f"write {listing(able)}",
        )


def contained(code: bytes, file: str, library: LibraryDescription) -> bytes:
    """The contents of a file whose format the system has: see `check_format`."""
    make, _ = _MAKERS[file[file.rindex(".") :]]
    return make(code, file, library)
