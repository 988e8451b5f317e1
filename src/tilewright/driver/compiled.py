"""A fusion group as object code: how to call it, and how the kernel cache holds it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import ALL, dtype_of
from tilewright.runtime import packing, schema
from tilewright.runtime.packing import Packing

# The schema of the line of JSON that begins a cache entry.
_SHAPE: Final = {
    "symbol": schema.Text,
    "arguments": [schema.Integer],
    "workspace": schema.Count,
    "thread_workspace": schema.Count,
    "preparations": [
        {
            "symbol": schema.Text,
            "inputs": [schema.Integer],
            "shape": [schema.Count],
            "dtype": schema.OneOf("dtype", *(dtype.name for dtype in ALL)),
            "workspace": schema.Count,
            "packing": schema.Nullable(packing.SHAPE),
        }
    ],
    "in_place": [schema.Integer],
    "sizes": [schema.Count],
}


@dataclass(frozen=True, slots=True)
class Preparation:
    """Work on constants at compile time: `symbol(inputs..., result)`.

    inputs: indices into the interface, or -1 - n for the result of preparation n. packing: the
    packing that it performs, if it is one; it then has no code.
    """

    symbol: str
    inputs: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    workspace: int
    packing: Packing | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the result."""
        return math.prod(self.shape) * dtype_of(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class CompiledGroup:
    """A kernel and how to call it.

    arguments: per parameter its index in the interface, or -1 - n for the result of preparation n.
    code, prepare_code: object files; prepare_code is for the machine that compiles. in_place:
    indices in the interface of inputs whose memory the last output may take (see `overwritable`).
    """

    symbol: str
    arguments: tuple[int, ...]
    workspace: int
    thread_workspace: int
    preparations: tuple[Preparation, ...]
    code: bytes
    prepare_code: tuple[bytes, ...]
    in_place: tuple[int, ...] = ()

    @property
    def kept(self) -> tuple[int, ...]:
        """The preparations whose results the kernel reads; the others are intermediate."""
        return tuple(sorted({-1 - k for k in self.arguments if k < 0}))

    def to_bytes(self) -> bytes:
        """For the cache: a line of JSON, then the object files."""
        header = {
            "symbol": self.symbol,
            "arguments": self.arguments,
            "workspace": self.workspace,
            "thread_workspace": self.thread_workspace,
            "preparations": [_encode(p) for p in self.preparations],
            "in_place": self.in_place,
            "sizes": [len(c) for c in (self.code, *self.prepare_code)],
        }
        return b"\n".join(
            [json.dumps(header).encode(), self.code + b"".join(self.prepare_code)]
        )

    @staticmethod
    def from_bytes(data: bytes) -> CompiledGroup:
        """The inverse of `to_bytes`. Raises ValueError or RecursionError for other data."""
        line, _, blobs = data.partition(b"\n")
        h = json.loads(line)
        schema.check(h, _SHAPE)
        sizes = h["sizes"]
        if len(sizes) != 1 + len(h["preparations"]) or sum(sizes) != len(blobs):
            raise ValueError(f"{len(blobs)} bytes of code, expected {sizes}")
        codes, at = [], 0
        for size in sizes:
            codes.append(blobs[at : at + size])
            at += size
        preparations = tuple(map(_decode, h["preparations"]))
        return CompiledGroup(
            h["symbol"],
            tuple(h["arguments"]),
            h["workspace"],
            h["thread_workspace"],
            preparations,
            codes[0],
            tuple(codes[1:]),
            tuple(h["in_place"]),
        )


def _encode(p: Preparation) -> dict[str, Any]:
    data = {f.name: getattr(p, f.name) for f in fields(p)}
    return {**data, "packing": p.packing and p.packing.to_json()}


def _decode(data: Mapping[str, Any]) -> Preparation:
    """Raises ValueError for a packing that is none."""
    given = data["packing"]
    return Preparation(
        data["symbol"],
        tuple(data["inputs"]),
        tuple(data["shape"]),
        data["dtype"],
        data["workspace"],
        None if given is None else Packing.from_json(given),
    )
