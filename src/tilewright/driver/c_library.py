"""A scheduled kernel for C programs: an object file, and the header that declares its functions."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from tilewright import __version__
from tilewright.base.dtypes import (
    DType,
    bool_,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.base.files import write_whole
from tilewright.expr.nodes import Buffer
from tilewright.loops.nodes import Kernel
from tilewright.loops.verify import verify
from tilewright.runtime import abi
from tilewright.targets.base import Target

C_TYPES: Final[dict[DType, str]] = {
    float32: "float",
    float64: "double",
    bool_: "bool",
    int8: "int8_t",
    int16: "int16_t",
    int32: "int32_t",
    int64: "int64_t",
    uint8: "uint8_t",
    uint16: "uint16_t",
    uint32: "uint32_t",
    uint64: "uint64_t",
}
# Keywords of C and C++, macros of compilers, and names that the headers themselves use.
KEYWORDS: Final = frozenset(
    "auto bool break case char const continue default do double else enum extern float for goto "
    "if inline int long register restrict return short signed sizeof static struct switch "
    "typedef union unsigned void volatile while run threads alignas alignof and and_eq asm bitand "
    "bitor catch char8_t char16_t char32_t class co_await co_return co_yield compl concept "
    "consteval constexpr constinit const_cast decltype delete dynamic_cast explicit export false "
    "friend mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected "
    "public reinterpret_cast requires static_assert static_cast template this thread_local throw "
    "true try typeid typename typeof typeof_unqual using virtual wchar_t xor xor_eq NULL linux "
    "unix size_t int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t "
    "tilewright_parallel tilewright_task".split()
)
_RESERVED: Final = re.compile(r"_[A-Z_]")  # prefixes that compilers and systems reserve


def export_c(
    kernel: Kernel, target: Target, path: Path, name: str | None = None
) -> tuple[Path, Path]:
    """Write `path`.h and `path`.o, which define the function `name`, and return their paths.

    name: by default the last part of `path`. Raises InputError for a name that C does not allow,
    UnsupportedError for a dtype that C does not have, for sizes known only at run time, and for a
    target without C functions.
    """
    name = path.name if name is None else name
    text = header(kernel, target, name)
    code = object_file(kernel, target, name)
    files = path.with_name(f"{path.name}.h"), path.with_name(f"{path.name}.o")
    for file, data in zip(files, (text.encode(), code), strict=True):
        write_whole(file, partial(_put, data))
    return files


def _put(data: bytes, out: BinaryIO) -> None:
    out.write(data)


def object_file(kernel: Kernel, target: Target, name: str) -> bytes:
    """The object code of the functions `name` and `name_parallel`. Raises as `export_c`."""
    _check_name(kernel, name)
    verify(kernel)
    return target.c_function(kernel, name)


def _check_name(kernel: Kernel, name: str) -> None:
    check_name(name, kernel.name)


def check_name(name: str, where: str) -> None:
    """Raise InputError for a name that a C function cannot have."""
    if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) or name in KEYWORDS:
        raise InputError(
            f"{name!r} is not a name in C", where=where, hint="give name=..."
        )


def c_name(name: str, taken: Collection[str]) -> str:
    """A C name for a tensor that differs from all taken ones, ignoring case."""
    plain = re.sub(r"\W|^(?=\d)", "_", name, flags=re.ASCII) or "_"
    if _RESERVED.match(plain):
        plain = f"v{plain}"
    held = {n.upper() for n in taken}
    while plain.upper() in held or plain in KEYWORDS:
        plain += "_"
    return plain


def header(kernel: Kernel, target: Target, name: str) -> str:
    """The header of the functions `name` and `name_parallel`. Raises as `export_c`."""
    _check_name(kernel, name)
    needs = target.requirements
    arguments = ",\n    ".join(_declared(kernel))
    return _HEADER.format(
        version=__version__,
        guard=f"{name.upper()}_H",
        name=name,
        arguments=arguments,
        features=" ".join([needs.get("arch", ""), *needs.get("features", ())]),
        index=abi.STATUS_INDEX,
        tiles=abi.STATUS_TILES,
        no_memory=abi.NO_MEMORY,
        parallel=PARALLEL,
    )


def _declared(kernel: Kernel) -> list[str]:
    """One parameter per buffer, with its shape in a comment; names are distinct in C."""
    found: dict[str, str] = {}
    for b in kernel.params:
        plain = c_name(b.name, found)
        const = "" if b in kernel.outputs else "const "
        extents = "".join(f"[{n}]" for n in b.shape)
        found[plain] = f"{const}{_type(kernel, b)} *{plain} /* {extents or 'one'} */"
    return list(found.values())


def _type(kernel: Kernel, b: Buffer) -> str:
    if b.dtype not in C_TYPES:
        raise UnsupportedError(
            f"{b!r} has a type that C does not have",
            where=kernel.name,
            hint="cast it to another type inside the program, or save() the function",
        )
    return C_TYPES[b.dtype]


# The declarations for parallel loops; guarded, since a program may include several headers.
PARALLEL: Final = """\
#ifndef TILEWRIGHT_PARALLEL
#define TILEWRIGHT_PARALLEL
/* The first fields of the context of a parallel loop. It may use `threads` threads. */
typedef struct {
    void *run;
    int64_t threads;
    int64_t rest[REST];
} tilewright_context;
/* Runs the iterations from `begin` to `end` - 1. `thread` is at least 0 and less than `threads`,
 * and differs between concurrent calls. */
typedef void tilewright_task(void *closure, int64_t thread, int64_t begin, int64_t end);
/* Runs each of the iterations 0 to count - 1 once, in any order and in parts of any size, and
 * returns when all have ended. */
typedef void tilewright_parallel(
    tilewright_context *context, tilewright_task *task, void *closure, int64_t count);
#endif""".replace("REST", str(abi.CTX_SLOTS - abi.CTX_THREADS - 1))
_HEADER: Final = """\
/* Generated by Tilewright {version}. */
#ifndef {guard}
#define {guard}

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

{parallel}

/* Arrays are in row-major order. An array that is written must not overlap another array.
 * The processor must have: {features}.
 * Returns 0, or: {index} an index in the data is out of range; {tiles} the system does not permit
 * the tiles (AMX) that the code uses; {no_memory} out of memory.
 */
int {name}(
    {arguments});

/* Like {name}; `run` distributes parallel loops over `threads` threads. */
int {name}_parallel(
    tilewright_parallel *run,
    int threads,
    {arguments});

#ifdef __cplusplus
}}
#endif
#endif
"""
