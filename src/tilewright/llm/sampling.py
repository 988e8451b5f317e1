"""The choice of the next token from its logits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ArgumentError, ExecutionError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Sampling:
    """temperature: the divisor of logits; 0 takes the likeliest token, the first of equal ones.

    top_k: sample from this many of the likeliest tokens; 0 for all. top_p: of these, from the
    fewest whose probabilities sum to it. seed: the same seed chooses the same tokens.

    Raises InputError for numbers out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        checks = (
            ("temperature", 0 <= self.temperature < math.inf, "a number of at least 0"),
            ("top_k", type(self.top_k) is int and self.top_k >= 0, "a count, or 0"),
            ("top_p", 0 < self.top_p <= 1, "a number above 0 and up to 1"),
            (
                "seed",
                type(self.seed) is int and self.seed >= 0,
                "an integer, 0 or more",
            ),
        )
        for name, right, expected in checks:
            if not right:
                raise ArgumentError(
                    f"{name}={getattr(self, name)!r}", hint=f"give {expected}"
                )

    def generator(self) -> np.random.Generator:
        """The random generator of one text."""
        return np.random.default_rng(self.seed)

    def choose(self, logits: Array, generator: np.random.Generator) -> int:
        """A token by its logits, float[vocabulary]; minus infinity is for one that cannot be.

        Raises ExecutionError for logits that have a NaN, or no finite largest one.
        """
        best = int(np.argmax(logits))
        if not np.isfinite(logits[best]):
            raise ExecutionError(
                f"the logits are not finite: token {best} has {logits[best]}",
                hint="check the weights, or use a higher precision",
            )
        if self.temperature == 0:
            return best
        ids, shares = self.candidates(logits)
        # By hand, as Generator.choice may draw differently in another version of NumPy.
        place = np.searchsorted(np.cumsum(shares), generator.random(), side="right")
        return int(ids[min(int(place), len(ids) - 1)])

    def candidates(self, logits: Array) -> tuple[Array, Array]:
        """The tokens that may be drawn, the likeliest first, and their probabilities (float64)."""
        ids = np.argsort(-logits, kind="stable")
        if self.top_k:
            ids = ids[: self.top_k]
        wide = logits[ids].astype(np.float64)
        shares = np.exp((wide - wide[0]) / self.temperature)
        shares /= shares.sum()
        if self.top_p < 1:
            # A token counts while those before it do not reach the bound: the first one always.
            kept = int(np.searchsorted(np.cumsum(shares), self.top_p, side="left")) + 1
            ids, shares = ids[:kept], shares[:kept] / shares[:kept].sum()
        return ids, shares
