"""What becomes of damaged files: each is to be used, or refused by name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MutantFailure:
    """A mutant that ended in something else than success or a TilewrightError.

    base, damage: what it was made from, and how; empty where it took the process with it, and only
    the seed says it.
    """

    seed: int
    base: str
    damage: str
    error: str

    def __str__(self) -> str:
        return f"{self.base}: {self.damage}\n{self.error}"
