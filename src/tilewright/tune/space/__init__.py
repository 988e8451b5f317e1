"""Spaces: the candidates of sketches, and of parameters declared by users.

`ParameterSpace` is counted, indexed and sampled exactly; `SketchSpace` discovers its parameters by
running sketches. For users, see `docs/tuning-spaces.md`.
"""

from __future__ import annotations

from tilewright.tune.space.constraints import (
    AtLeast,
    AtMost,
    Divides,
    MultipleOf,
    Predicate,
)
from tilewright.tune.space.parameter import Parameter
from tilewright.tune.space.parameter_space import ParameterSpace
from tilewright.tune.space.program_space import ProgramSpace
from tilewright.tune.space.ranges import Divisors, Interval, Multiples, Powers, Set
from tilewright.tune.space.sketch_space import SketchSpace

__all__ = [
    "AtLeast",
    "AtMost",
    "Divides",
    "Divisors",
    "Interval",
    "MultipleOf",
    "Multiples",
    "Parameter",
    "ParameterSpace",
    "Powers",
    "Predicate",
    "ProgramSpace",
    "Set",
    "SketchSpace",
]
