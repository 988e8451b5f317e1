"""The interface of a library to C programs: the header, and the same facts as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tilewright import __version__
from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import bfloat16, dtype_of, float16
from tilewright.base.errors import UnsupportedError
from tilewright.driver.c_library import C_TYPES, PARALLEL, c_name
from tilewright.runtime import abi
from tilewright.runtime.model import CompiledModel, Tensor

# C has no such types: programs pass the bits.
_BITS: Final = {float16: "uint16_t", bfloat16: "uint16_t"}
_OWN: Final = ("run", "threads", "workspace")  # names of other parameters


@dataclass(frozen=True, slots=True)
class LibraryParameter:
    """A tensor as a C parameter. An input that is overwritten is an output, too."""

    name: str
    tensor: Tensor
    written: bool

    @property
    def declared(self) -> str:
        """Its declaration in C."""
        extents = "".join(f"[{n}]" for n in self.tensor.extents) or "one"
        const = "" if self.written else "const "
        dtype = dtype_of(self.tensor.dtype)
        bits = f" {dtype.name}" if dtype in _BITS else ""
        return f"{const}{_type(self.tensor)} *{self.name} /* {extents}{bits} */"


@dataclass(frozen=True, slots=True)
class LibraryDescription:
    """The facts about a library that its header and its manifest state.

    processors: required features by name; the first processor that fits is selected. workspace:
    bytes shared by all threads, and additional bytes per thread. constants: bytes.
    """

    name: str
    triple: str
    processors: Mapping[str, Sequence[str]]
    parameters: Sequence[LibraryParameter]
    workspace: tuple[int, int]
    constants: int


def parameters(model: CompiledModel) -> list[LibraryParameter]:
    """The inputs, then the outputs that do not share the memory of an input.

    Raises UnsupportedError for a tensor whose type C does not have.
    """
    over = {given: out for out, given in model.aliases}
    inside = set(over.values())
    found: dict[str, LibraryParameter] = {}
    tensors = [(t, n in over) for n, t in enumerate(model.inputs)]
    tensors += [(t, True) for n, t in enumerate(model.outputs) if n not in inside]
    for tensor, written in tensors:
        name = c_name(tensor.name, {*found, *_OWN})
        _type(tensor)
        found[name] = LibraryParameter(name, tensor, written)
    return list(found.values())


def _type(tensor: Tensor) -> str:
    dtype = dtype_of(tensor.dtype) if tensor.is_static else None
    known = {**C_TYPES, **_BITS}
    if dtype not in known:
        raise UnsupportedError(
            f"{tensor} has a type that C does not have",
            code="TW-LIBRARY",
            where=tensor.name,
            hint="cast it to another type inside the model, or save an artifact (.tw)",
        )
    return known[dtype]


def manifest(library: LibraryDescription) -> str:
    """The facts of the header as JSON."""
    shared, thread = library.workspace

    def facts(p: LibraryParameter) -> dict[str, Any]:
        t = p.tensor
        names = {"name": t.name, "parameter": p.name, "dtype": t.dtype}
        return {
            **names,
            "shape": list(t.extents),
            "bytes": t.nbytes,
            "written": p.written,
        }

    found = {
        "format": 1,
        "version": __version__,
        "name": library.name,
        "functions": [f"{library.name}_run", f"{library.name}_run_parallel"],
        "triple": library.triple,
        "processors": {name: list(f) for name, f in library.processors.items()},
        "parameters": [facts(p) for p in library.parameters],
        "workspace": {"bytes": shared, "bytes_per_thread": thread},
        "alignment": abi.ALIGNMENT,
        "constant_bytes": library.constants,
        "errors": {name.lower(): code for name, (code, _) in _ERRORS.items()},
    }
    return json.dumps(found, indent=1) + "\n"


def header(library: LibraryDescription) -> str:
    """The C header that declares the library's functions."""
    upper = library.name.upper()
    shared, thread = library.workspace
    macros = [
        f"#define {upper}_WORKSPACE({'threads'}) ((size_t){shared} + "
        f"(size_t){thread} * (threads))",
        f"#define {upper}_ALIGNMENT {abi.ALIGNMENT}",
    ]
    for p in library.parameters:
        count = p.tensor.nbytes // dtype_of(p.tensor.dtype).itemsize
        macros.append(f"#define {upper}_{p.name.upper()}_COUNT {count}")
    errors = [
        f"    TILEWRIGHT_{n} = {code}, /* {t} */" for n, (code, t) in _ERRORS.items()
    ]
    return _HEADER.format(
        version=__version__,
        triple=library.triple,
        processors=", ".join(library.processors),
        guard=f"{upper}_H",
        name=library.name,
        upper=upper,
        parallel=PARALLEL,
        errors="\n".join(errors),
        macros="\n".join(macros),
        arguments=",\n    ".join(p.declared for p in library.parameters),
    )


_ERRORS: Final = {
    "OK": (0, "all outputs are written"),
    "INDEX": (abi.STATUS_INDEX, "an index in the data is out of range"),
    "NO_MEMORY": (abi.NO_MEMORY, "the workspace is NULL"),
    "NO_PROCESSOR": (abi.NO_PROCESSOR, "the library has no code for this processor"),
    "NOT_ALIGNED": (abi.NOT_ALIGNED, "the workspace is not aligned"),
}
_HEADER: Final = """\
/* Generated by Tilewright {version} for {triple}: {processors}. */
#ifndef {guard}
#define {guard}

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

{parallel}

#ifndef TILEWRIGHT_ERRORS
#define TILEWRIGHT_ERRORS
enum {{
{errors}
}};
#endif

/* Workspace bytes for a number of threads, alignment of its address, numbers of elements. */
{macros}

/* Arrays are in row-major order. An array that is written must not overlap another array.
 * Concurrent calls are safe if each has its own workspace. The workspace needs no initialization,
 * and a call keeps nothing in it. Returns TILEWRIGHT_OK or another code of the enumeration.
 */
int {name}_run(
    {arguments},
    void *workspace /* {upper}_WORKSPACE(1) bytes */);

/* Like {name}_run; `run` distributes parallel loops over `threads` threads. */
int {name}_run_parallel(
    tilewright_parallel *run,
    int threads,
    {arguments},
    void *workspace /* {upper}_WORKSPACE(threads) bytes */);

#ifdef __cplusplus
}}
#endif
#endif
"""
