"""The table of our own decompositions, by the operators' names."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

_HERE: Final = __name__.rpartition(".")[0]
_TABLE: Final[dict[str, Callable[..., Any]]] = {}


def decomposes(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function of tensors for operators such as `aten.frexp.Tensor`."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _TABLE.update(dict.fromkeys(names, function))
        return function

    return register


@cache
def own_decompositions() -> Mapping[str, Callable[..., Any]]:
    """Those of all files of this package."""
    package = importlib.import_module(_HERE)
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{_HERE}.{module.name}")
    return _TABLE
