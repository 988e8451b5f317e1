"""The outcomes of damaged files: each has to be used, or rejected with a TilewrightError."""

from __future__ import annotations

from tilewright.base.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class MutantFailure:
    """A mutant that ended in neither success nor a TilewrightError.

    base, damage: its origin and the change; empty if it crashed the process: then only the seed is
    known.
    """

    seed: int
    base: str
    damage: str
    error: str

    def __str__(self) -> str:
        return f"{self.base}: {self.damage}\n{self.error}"
