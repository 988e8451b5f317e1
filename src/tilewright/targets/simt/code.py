"""A program as a device with blocks of threads takes it: how it is launched, and its kernels.

A line of JSON, then the kernels as text, then code for one architecture. It needs no part of the
compiler, since a deployed model has none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ArtifactError
from tilewright.runtime import schema

VERSION: Final = 6
# The languages of programs, as messages call them.
PTX: Final = "PTX"
OPENCL_C: Final = "OpenCL C"
_EXTENTS: Final = (schema.Count, schema.Count, schema.Count)
_SHAPE: Final = {
    "version": schema.Count,
    "language": schema.Text,
    "arch": schema.Text,
    "params": schema.Count,
    "workspace": [schema.Count],
    "checks": [schema.Text],
    "extensions": [schema.Text],
    "launches": [
        {
            "name": schema.Text,
            "grid": _EXTENTS,
            "threads": _EXTENTS,
            "shared": schema.Count,
            "dynamic": schema.Count,
            "arguments": [schema.Count],
            "constants": [schema.Count],
            "checked": schema.Count,
            "maps": [
                {
                    "argument": schema.Count,
                    "dtype": schema.Text,
                    "extents": [schema.Count],
                    "sides": [schema.Count],
                }
            ],
        }
    ],
    "text": schema.Count,
    "binary": schema.Count,
}


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A box of a tensor that a kernel copies at a time, in rows of 128 swizzled bytes.

    argument: which of the launch's arguments is the tensor; extents: of it; sides: of the box.
    """

    argument: int
    dtype: str
    extents: tuple[int, ...]
    sides: tuple[int, ...]


# What a kernel reports whose threads would exchange registers with others than it expects.
NO_SUBGROUPS: Final = (
    "subgroups of the device are not the neighboring threads described"
)


def constant_symbol(number: int) -> str:
    """The array in constant memory of a program's buffer, in PTX."""
    return f"constant_{number}"


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """One launch of a kernel.

    grid, threads: on the axes x, y, z. shared: shared memory of a block in bytes, `dynamic` of
    which the launch allocates. arguments: numbers of buffers: parameters first, then the workspace.
    constants: those that it reads in constant memory. In OpenCL C they are arguments too; PTX has
    an array for each, `constant_symbol`, which has to be filled before the program runs.
    checked: 1 if it reports wrong indices by a number of `DeviceProgram.checks`, else 0. maps: what
    it takes behind its buffers.
    """

    name: str
    grid: tuple[int, int, int]
    threads: tuple[int, int, int]
    shared: int
    arguments: tuple[int, ...]
    dynamic: int = 0
    checked: int = 0
    maps: tuple[TensorMap, ...] = ()
    constants: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceProgram:
    """Launches in order, and their kernels.

    language: the text's language, for messages. params: the number of operands. workspace: bytes of
    each further buffer, which the caller passes behind them. arch: the architecture of the text;
    empty for any device. checks: the meanings of the numbers, from 1 on, that a kernel reports.
    extensions: of OpenCL C, which the device has to have.
    binary: code that the driver need not compile; empty for none.
    """

    language: str
    params: int
    workspace: tuple[int, ...]
    launches: tuple[KernelLaunch, ...]
    text: str
    arch: str = ""
    checks: tuple[str, ...] = ()
    binary: bytes = b""
    extensions: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """The inverse of `from_bytes`."""
        text = self.text.encode()
        head = {"version": VERSION, **asdict(self)}
        head |= {"text": len(text), "binary": len(self.binary)}
        return b"".join([json.dumps(head).encode(), b"\n", text, self.binary])

    @property
    def constants(self) -> tuple[int, ...]:
        """The buffers that its launches read in constant memory."""
        return tuple(dict.fromkeys(n for c in self.launches for n in c.constants))

    @staticmethod
    def from_bytes(code: bytes, language: str) -> DeviceProgram:
        """A program from its bytes. Raises ArtifactError for malformed bytes or another
        language."""
        line, _, rest = code.partition(b"\n")
        try:
            head = json.loads(line)
            schema.check(head, _SHAPE)
            made = _made(head, rest)
            made._check(head["version"], language)
        except (ValueError, TypeError, RecursionError) as error:
            raise ArtifactError(f"the program is not in {language}: {error}") from error
        return made

    def _check(self, version: int, language: str) -> None:
        """Raise ValueError for a program that no compiler generates."""
        if version != VERSION:
            raise ValueError(f"version {version}, expected {VERSION}")
        if self.language != language:
            raise ValueError(f"it is in {self.language}")
        count = self.params + len(self.workspace)
        for c in self.launches:
            if any(n >= count for n in (*c.arguments, *c.constants)):
                raise ValueError(f"launch {c.name} has more than {count} buffers")
            for m in c.maps:
                if m.argument >= len(c.arguments) or len(m.extents) != len(m.sides):
                    raise ValueError(f"launch {c.name} has a box of no tensor")
            if 0 in (*c.grid, *c.threads):
                raise ValueError(f"launch {c.name} has a grid without threads")


def _made(head: Mapping[str, Any], rest: bytes) -> DeviceProgram:
    size = head["text"]
    if size + head["binary"] != len(rest):
        raise ValueError(f"{len(rest)} bytes follow, not the expected number")
    return DeviceProgram(
        language=head["language"],
        params=head["params"],
        workspace=tuple(head["workspace"]),
        launches=tuple(_call(c) for c in head["launches"]),
        text=rest[:size].decode(),
        arch=head["arch"],
        checks=tuple(head["checks"]),
        extensions=tuple(head["extensions"]),
        binary=rest[size:],
    )


def _call(found: Mapping[str, Any]) -> KernelLaunch:
    lists = ("grid", "threads", "arguments", "constants")
    tuples = {k: tuple(found[k]) for k in lists}
    maps = tuple(
        TensorMap(m["argument"], m["dtype"], tuple(m["extents"]), tuple(m["sides"]))
        for m in found["maps"]
    )
    return KernelLaunch(**{**found, **tuples, "maps": maps})
