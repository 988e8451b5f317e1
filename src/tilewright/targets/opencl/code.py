"""What the device loads: a line of JSON that says how kernels are launched, then their source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from tilewright.base.errors import ArtifactError
from tilewright.runtime import schema

VERSION: Final = 1
_AXES: Final = (schema.Count, schema.Count, schema.Count)
_SHAPE: Final = {
    "version": schema.Count,
    "params": schema.Count,
    "workspace": [schema.Count],
    "checks": [schema.Text],
    "kernels": [
        {
            "name": schema.Text,
            "grid": _AXES,
            "threads": _AXES,
            "shared": schema.Count,
            "params": [schema.Count],
            "checked": schema.Count,
        }
    ],
}


@dataclass(frozen=True, slots=True)
class KernelCode:
    """One launch.

    grid, threads: on the axes x, y, z. shared: bytes of a block. params: numbers of the program's
    parameters, then of its workspace. checked: 1 if it tells wrong indices, else 0.
    """

    name: str
    grid: tuple[int, ...]
    threads: tuple[int, ...]
    shared: int
    params: tuple[int, ...]
    checked: int


@dataclass(frozen=True, slots=True)
class OpenclProgram:
    """A program: launches in order.

    params: how many it has. workspace: bytes of each further buffer. checks: what the number
    means, from 1 on, that a kernel tells. source: OpenCL C.
    """

    params: int
    workspace: tuple[int, ...]
    checks: tuple[str, ...]
    kernels: tuple[KernelCode, ...]
    source: str

    def to_bytes(self) -> bytes:
        """The line of JSON and the source."""
        head: dict[str, Any] = {"version": VERSION, **asdict(self)}
        source = head.pop("source")
        return f"{json.dumps(head)}\n{source}".encode()

    @staticmethod
    def from_bytes(code: bytes) -> OpenclProgram:
        """The inverse of `to_bytes`. Raises ArtifactError for other bytes."""
        line, _, source = code.partition(b"\n")
        try:
            head = json.loads(line)
            schema.check(head, _SHAPE)
            kernels = tuple(map(_kernel, head["kernels"]))
            made = OpenclProgram(
                params=head["params"],
                workspace=tuple(head["workspace"]),
                checks=tuple(head["checks"]),
                kernels=kernels,
                source=source.decode(),
            )
            made._check(head["version"])
        except (ValueError, TypeError, RecursionError) as error:
            raise ArtifactError(
                f"the program is not an OpenCL program: {error}"
            ) from error
        return made

    def _check(self, version: int) -> None:
        """Raise ValueError for what no compiler makes."""
        if version != VERSION:
            raise ValueError(f"version {version}, expected {VERSION}")
        count = self.params + len(self.workspace)
        for k in self.kernels:
            if any(n >= count for n in k.params):
                raise ValueError(f"kernel {k.name} has a parameter that is not there")
            if 0 in (*k.grid, *k.threads):
                raise ValueError(f"kernel {k.name} has a grid without threads")


def _kernel(row: Mapping[str, Any]) -> KernelCode:
    return KernelCode(
        name=row["name"],
        grid=tuple(row["grid"]),
        threads=tuple(row["threads"]),
        shared=row["shared"],
        params=tuple(row["params"]),
        checked=row["checked"],
    )
