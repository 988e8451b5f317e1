"""What the arguments of public functions may be: one table, and one form of error.

It holds types and bounds that need no model. What a name or a path refers to is checked where it is
used. An argument means the same in every function that has it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ArgumentError
from tilewright.base.numbers import whole

_LONGEST: Final = 80  # characters of a value in an error


@dataclass(frozen=True, slots=True)
class ArgumentKind:
    """expected: completes "give ...". holds: whether a value is of the kind."""

    expected: str
    holds: Callable[[Any], bool]

    @property
    def optional(self) -> ArgumentKind:
        """As well None, for what is left out."""
        return ArgumentKind(
            f"{self.expected}, or None", lambda v: v is None or self.holds(v)
        )


def one_of(*types: Any, expected: str) -> ArgumentKind:
    """An instance of one of the types."""
    return ArgumentKind(expected, lambda v: isinstance(v, types))


def at_least(least: int) -> ArgumentKind:
    """A whole number from `least`; no truth value, and no float."""
    return ArgumentKind(
        f"an integer of at least {least}", lambda v: whole(v, least) is not None
    )


def number(expected: str, within: Callable[[float], bool]) -> ArgumentKind:
    """A number within bounds. A NaN is within none: write them as comparisons that hold."""
    return ArgumentKind(
        expected,
        lambda v: not isinstance(v, bool) and isinstance(v, Real) and within(float(v)),
    )


def _are_names(value: Any) -> bool:
    """Whether a value is a collection of names; a single name is one of letters, and is none."""
    several = isinstance(value, Collection) and not isinstance(value, str)
    return several and all(isinstance(name, str) for name in value)


def _are_samples(value: Any) -> bool:
    """Whether a value is a sequence of inputs by name."""
    return isinstance(value, Sequence) and all(
        isinstance(sample, Mapping) and all(isinstance(name, str) for name in sample)
        for sample in value
    )


def _are_arguments(value: Any) -> bool:
    """Whether a value holds inputs: several, by name, or a single array."""
    return isinstance(value, Iterable) or hasattr(value, "__dlpack__")


SWITCH: Final = one_of(bool, expected="True or False")
TEXT: Final = one_of(str, expected="a text")
PATH: Final = one_of(str, os.PathLike, expected="a path")
NAMES: Final = ArgumentKind("a list of names", _are_names)
MAPPING: Final = one_of(Mapping, expected="a mapping by name")
COUNT: Final = at_least(1)
POSITIVE: Final = number("a number above 0", lambda v: v > 0)
SHARE: Final = number("a number from 0 to 1", lambda v: 0 <= v <= 1)
NOT_NEGATIVE: Final = number(
    "a finite number of at least 0", lambda v: 0 <= v < math.inf
)
NAME_OR_NAMES: Final = ArgumentKind(
    "a name or a list of names", lambda v: isinstance(v, str) or _are_names(v)
)

# Those of a fixed set of texts are in `base.modes` and beside what they choose.
ARGUMENTS: Final[Mapping[str, ArgumentKind]] = {
    # of a compilation
    "target": TEXT,
    "mcpu": TEXT,
    "triple": TEXT.optional,
    "machine": PATH.optional,
    "threads": COUNT.optional,
    "cache": SWITCH.optional,
    "memory_limit": COUNT.optional,
    "trust": SWITCH,
    "sanitize": SWITCH,
    "fusion": SWITCH,
    "jit": SWITCH,
    "tiered": SWITCH,
    "inputs": NAMES,
    "samples": ArgumentKind("a list of inputs by name", _are_samples),
    "example_inputs": ArgumentKind(
        "a tensor, a list of inputs, or inputs by name", _are_arguments
    ),
    "dims": ArgumentKind(
        "a mapping, as in {'batch': 1}", lambda v: v is None or isinstance(v, Mapping)
    ),
    # of a library, and of what is loaded
    "path": PATH,
    "header": PATH.optional,
    "verify": SWITCH,
    "device": at_least(0),
    # of tuning and of searches
    "trials": COUNT.optional,
    "seconds": POSITIVE.optional,
    "expected_gain": NOT_NEGATIVE,
    "kernels": NAMES,
    "name": TEXT.optional,
    "until": ArgumentKind("a function", callable).optional,
    "cost": one_of(str, Mapping, expected="a cost, or weights by cost"),
    "alpha": number("a finite number of at least 1", lambda v: 1 <= v < math.inf),
    "budget": COUNT,
    "patience": COUNT.optional,
    # of quantization
    "max_drop": SHARE.optional,
    "keep": NAMES,
    "reading": MAPPING.optional,
    "smooth": SHARE.optional,
    "equalize": SWITCH,
    "search": SWITCH,
    "correct_bias": SWITCH,
    # of derivatives and training; `by` is also how sums of bytes are rescaled
    "by": NAME_OR_NAMES.optional,
    "loss": ArgumentKind(
        "the name of an output or of a loss",
        lambda v: isinstance(v, str) or callable(v),
    ),
    "parameters": NAME_OR_NAMES.optional,
    "remat": ArgumentKind(
        "True, False or a number of bytes",
        lambda v: isinstance(v, bool) or whole(v, 0) is not None,
    ),
    # of a call
    "feeds": MAPPING.optional,
    "repeat": COUNT,
    "peak_gflops": POSITIVE.optional,
    "peak_gbs": POSITIVE.optional,
    "device_peaks": MAPPING.optional,
}


def expect(**given: Any) -> None:
    """Raise ArgumentError for the first of the arguments that is not of its kind in the table."""
    for name, value in given.items():
        kind = ARGUMENTS[name]
        if not kind.holds(value):
            raise ArgumentError(f"{name}={shown(value)}", hint=f"give {kind.expected}")


def expect_choice(name: str, value: Any, known: Iterable[str], hint: str = "") -> None:
    """Raise ArgumentError for a value that is none of the texts `known`.

    hint: in place of the one that lists them.
    """
    texts = tuple(known)
    if not isinstance(value, str) or value not in texts:
        listed = f"choose one of {', '.join(texts)}"
        raise ArgumentError(f"{name}={shown(value)}", hint=hint or listed)


def shown(value: Any) -> str:
    """A value on one line of an error, however large it is."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
