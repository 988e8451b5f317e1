"""The digest of everything in a graph, names included, by which the cache finds its model.

Equal digests mean equal compiled models, down to the names of kernels in a profile. What a graph
computes, whatever its names, is the subject of `graph.substitute.identity`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.runtime import digest
from tilewright.runtime.conditions import ExtentCondition
from tilewright.runtime.nesting import ArgumentNesting


def digest_of(graph: Graph) -> str:
    """The digest of a graph, in hexadecimal; the same in every process."""
    found = hashlib.sha256()
    for part in _parts(graph):
        found.update(b"%d:" % len(part))
        found.update(part)
    return found.hexdigest()


def _parts(part: Any) -> Iterator[bytes]:
    """Each kind of part begins with its name, and collections with their lengths."""
    yield type(part).__name__.encode()
    match part:
        case Value():
            yield f"{part.name}: {part.type_text}".encode()
        case Graph() | Operation():
            for known in fields(part):
                yield from _parts(getattr(part, known.name))
        case ArgumentNesting() | ExtentCondition():
            yield repr(part.to_json()).encode()
        case np.ndarray():
            yield f"{part.dtype.str} {part.shape}".encode()
            yield _contents(part)
        case Mapping():
            yield str(len(part)).encode()
            for key, value in part.items():
                yield from _parts(key)
                yield from _parts(value)
        case tuple() | list():
            yield str(len(part)).encode()
            for value in part:
                yield from _parts(value)
        case _:
            yield repr(part).encode()


def _contents(array: np.ndarray[Any, Any]) -> bytes:
    if array.dtype.hasobject:
        return repr(array.tolist()).encode()
    plain = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return digest.of_bytes(plain.data).encode()
