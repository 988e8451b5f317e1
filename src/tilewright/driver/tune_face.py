"""`tilewright.tune`: a callable that tunes models, with names for custom spaces and searches."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

from tilewright.driver.tuned import KernelTuned, TunedModel
from tilewright.driver.tuning import How, tune
from tilewright.tune.minimize import CostError, minimize
from tilewright.tune.space import (
    AtLeast,
    AtMost,
    Divides,
    Divisors,
    Interval,
    MultipleOf,
    Multiples,
    Parameter,
    Powers,
    Predicate,
    Set,
)
from tilewright.tune.space import ParameterSpace as Space

__all__ = [
    "AtLeast",
    "AtMost",
    "CostError",
    "Divides",
    "Divisors",
    "How",
    "Interval",
    "KernelTuned",
    "MultipleOf",
    "Multiples",
    "Parameter",
    "Powers",
    "Predicate",
    "Set",
    "Space",
    "TunedModel",
    "minimize",
]


class _Tune(ModuleType):
    __call__ = staticmethod(tune)


sys.modules[__name__].__class__ = _Tune


def __getattr__(name: str) -> ModuleType:
    """Import a module of the package `tilewright.tune`, whose name this module takes for users."""
    try:
        return import_module(f"tilewright.tune.{name}")
    except ModuleNotFoundError:
        raise AttributeError(f"tilewright.tune has no {name!r}") from None
