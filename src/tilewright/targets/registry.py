"""The targets by name; everybody but a target itself goes through here."""

from __future__ import annotations

import importlib

from tilewright.base.errors import UnsupportedError
from tilewright.targets.base import Target

_FACTORIES = {"cpu": "tilewright.targets.cpu.target:make"}


def names() -> tuple[str, ...]:
    """The targets this build knows."""
    return tuple(sorted(_FACTORIES))


def register(name: str, factory: str) -> None:
    """Add a target: `factory` is "module:function", called with `mcpu` and `exact`."""
    _FACTORIES[name] = factory


def target(name: str = "cpu", mcpu: str = "native", exact: bool = False) -> Target:
    """The target `name` for the processor `mcpu`; `exact` forbids fused multiply-adds.

    Raises UnsupportedError for an unknown one.
    """
    if name not in _FACTORIES:
        raise UnsupportedError(
            f"unknown target {name!r}", code="TW-TARGET", hint=f"known: {', '.join(names())}"
        )
    module, function = _FACTORIES[name].split(":")
    made: Target = getattr(importlib.import_module(module), function)(mcpu, exact)
    return made
