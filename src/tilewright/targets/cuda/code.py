"""A program as the device takes it: a line of JSON, then PTX, then code for one architecture.

It needs no part of the compiler, since a deployed model has none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from tilewright.base.errors import ArtifactError
from tilewright.runtime import schema

_EXTENTS: Final = (schema.Count, schema.Count, schema.Count)
_SHAPE: Final = {
    "arch": schema.Text,
    "params": schema.Count,
    "workspace": [schema.Count],
    "launches": [
        {
            "name": schema.Text,
            "grid": _EXTENTS,
            "threads": _EXTENTS,
            "shared": schema.Count,
            "dynamic": schema.Count,
            "arguments": [schema.Count],
        }
    ],
    "ptx": schema.Count,
    "cubin": schema.Count,
}


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """One launch of a kernel.

    shared: bytes of a block, of which the launch asks for `dynamic`. arguments: numbers of buffers:
    parameters first, then the workspace.
    """

    name: str
    grid: tuple[int, int, int]
    threads: tuple[int, int, int]
    shared: int
    dynamic: int
    arguments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CudaProgram:
    """Launches in order, and their kernels.

    arch: what they are made for. params: how many operands there are. workspace: bytes of each
    further buffer. cubin: code that needs no compiling by the driver; empty for none.
    """

    arch: str
    params: int
    workspace: tuple[int, ...]
    launches: tuple[KernelLaunch, ...]
    ptx: str
    cubin: bytes = b""

    def to_bytes(self) -> bytes:
        """The inverse of `from_bytes`."""
        text = self.ptx.encode()
        head = {
            "arch": self.arch,
            "params": self.params,
            "workspace": list(self.workspace),
            "launches": [asdict(c) for c in self.launches],
            "ptx": len(text),
            "cubin": len(self.cubin),
        }
        return b"".join([json.dumps(head).encode(), b"\n", text, self.cubin])

    @staticmethod
    def from_bytes(code: bytes) -> CudaProgram:
        """A program from its bytes. Raises ArtifactError for others."""
        line, _, rest = code.partition(b"\n")
        try:
            head = json.loads(line)
            schema.check(head, _SHAPE)
            if head["ptx"] + head["cubin"] != len(rest):
                raise ValueError(f"{len(rest)} bytes follow, expected another number")
            text = rest[: head["ptx"]].decode()
        except (ValueError, TypeError, RecursionError) as error:
            raise ArtifactError(
                f"the program is not a CUDA program: {error}"
            ) from error
        made = CudaProgram(
            arch=head["arch"],
            params=head["params"],
            workspace=tuple(head["workspace"]),
            launches=tuple(_call(c) for c in head["launches"]),
            ptx=text,
            cubin=rest[head["ptx"] :],
        )
        count = made.params + len(made.workspace)
        if any(n >= count for c in made.launches for n in c.arguments):
            raise ArtifactError(
                f"the program has launches on more than {count} buffers"
            )
        return made


def _call(found: Mapping[str, Any]) -> KernelLaunch:
    tuples = {k: tuple(found[k]) for k in ("grid", "threads", "arguments")}
    return KernelLaunch(**{**found, **tuples})
