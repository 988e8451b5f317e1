"""The table of primitives: name -> rewrite `(kernel, arguments...) -> (kernel, new names)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tilewright.loops.nodes import Kernel

Primitive = Callable[..., tuple[Kernel, Any]]

PRIMITIVES: dict[str, Primitive] = {}

_F = TypeVar("_F", bound=Primitive)


def primitive(f: _F) -> _F:
    """Register a rewrite under its own name."""
    PRIMITIVES[f.__name__] = f
    return f
