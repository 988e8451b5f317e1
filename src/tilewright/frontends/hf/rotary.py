"""Rotary positions: tables of cosines and sines, for each method of scaling them.

Sources: Su et al. 2021 (RoFormer); Chen et al. 2023 (linear); Peng et al. 2023 (YaRN); Ding et al.
2024 (LongRoPE); the frequencies of Llama 3.1 follow Transformers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ModelError, UnsupportedError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Rotary:
    """size: rotated elements of a head. kind, more: how positions are scaled.

    trained: positions of the model. most: positions of the executable.
    """

    size: int
    theta: float
    kind: str = "default"
    more: Mapping[str, Any] = field(default_factory=dict)
    trained: int = 0
    most: int = 0

    def tables(self) -> tuple[Array, Array]:
        """Cosines and sines, float32[most, size / 2].

        Raises UnsupportedError for another kind, ModelError if the kind lacks a number.
        """
        if self.kind not in _KINDS:
            raise UnsupportedError(
                f"rotary positions of the kind {self.kind!r}",
                where="config.json, rope_parameters",
                hint=f"supported are {', '.join(_KINDS)}",
            )
        # By 2k of the size, in float32 as in training.
        share = np.arange(0, self.size, 2, dtype=np.float32) / np.float32(self.size)
        rates = (1 / np.float32(self.theta) ** share).astype(np.float32)
        rates, factor = _KINDS[self.kind](self, rates)
        angles = np.outer(np.arange(self.most, dtype=np.float32), rates)
        return (
            (np.cos(angles) * np.float32(factor)).astype(np.float32),
            (np.sin(angles) * np.float32(factor)).astype(np.float32),
        )

    def number(self, name: str, default: float | None = None) -> float:
        """A parameter of the kind, or the default. Raises ModelError unless it is above 0."""
        found = self.more.get(name) or default
        number = isinstance(found, int | float) and not isinstance(found, bool)
        if found is None or not number or not 0 < found < math.inf:
            raise ModelError(
                f"{self.kind!r} needs a number {name!r}, found {found!r}",
                where="config.json, rope_parameters",
            )
        return float(found)

    @property
    def original(self) -> float:
        """The number of positions before scaling."""
        return self.number("original_max_position_embeddings", self.trained)


# (settings, rates per pair) -> rates, and the factor of the tables
Stretch = Callable[[Rotary, Array], tuple[Array, float]]


def _as_they_are(r: Rotary, rates: Array) -> tuple[Array, float]:
    return rates, 1.0


def _linear(r: Rotary, rates: Array) -> tuple[Array, float]:
    return rates / np.float32(r.number("factor")), 1.0


def _llama3(r: Rotary, rates: Array) -> tuple[Array, float]:
    """Divide low rates by the factor, keep high ones, and interpolate between them."""
    low = r.number("low_freq_factor")
    high = r.number("high_freq_factor")
    if low >= high:
        raise ModelError(
            f"low_freq_factor {low} is not below high_freq_factor {high}",
            where="config.json, rope_parameters",
        )
    turns = r.original * rates / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    stretched = rates / np.float32(r.number("factor"))
    return ((1 - kept) * stretched + kept * rates).astype(np.float32), 1.0


def _yarn(r: Rotary, rates: Array) -> tuple[Array, float]:
    factor = r.number("factor")

    def pair(turns: float) -> float:
        """The pair that makes this many turns over the original positions."""
        share = math.log(r.original / (turns * 2 * math.pi))
        return r.size * share / (2 * math.log(r.theta))

    ends = [pair(r.number(k, n)) for k, n in (("beta_fast", 32), ("beta_slow", 1))]
    if r.more.get("truncate", True):
        ends = [math.floor(ends[0]), math.ceil(ends[1])]
    low = max(ends[0], 0)
    high = min(ends[1], r.size - 1)
    width = max(high - low, 0.001)
    ramp = np.clip((np.arange(len(rates), dtype=np.float32) - low) / width, 0, 1)
    mixed = rates / np.float32(factor) * ramp + rates * (1 - ramp)
    return mixed.astype(np.float32), _yarn_factor(r, factor)


def _yarn_factor(r: Rotary, factor: float) -> float:
    """A factor that preserves the entropy of attention: 0.1 log(factor) + 1, unless it is given."""
    if r.more.get("attention_factor") is not None:
        return r.number("attention_factor")

    def scale(weight: float) -> float:
        if factor > 1:
            return 0.1 * weight * math.log(factor) + 1
        return 1.0

    if r.more.get("mscale") and r.more.get("mscale_all_dim"):
        return scale(r.number("mscale")) / scale(r.number("mscale_all_dim"))
    return scale(1.0)


def _longrope(r: Rotary, rates: Array) -> tuple[Array, float]:
    """A divisor per pair: those for short texts if the context is not longer than that."""
    name = "long_factor" if r.most > r.original else "short_factor"
    given = r.more.get(name)
    right = isinstance(given, list) and len(given) == len(rates)
    if not right or any(type(x) not in (int, float) or x <= 0 for x in given or []):
        raise ModelError(
            f"{name} is not a list of {len(rates)} numbers above 0",
            where="config.json, rope_parameters",
        )
    divisors = np.asarray(given, np.float32)
    if r.more.get("attention_factor") is not None:
        return rates / divisors, r.number("attention_factor")
    default = r.trained / r.original
    factor = r.number("factor", default)
    if factor <= 1:
        return rates / divisors, 1.0
    return rates / divisors, math.sqrt(1 + math.log(factor) / math.log(r.original))


# "dynamic" differs from the default only beyond the positions that a model was trained with.
_KINDS: Final[dict[str, Stretch]] = {
    "default": _as_they_are,
    "dynamic": _as_they_are,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
