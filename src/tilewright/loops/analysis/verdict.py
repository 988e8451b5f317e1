"""The answers to dependence questions: legal, illegal with a witness, or unknown."""

from __future__ import annotations

from typing import Literal

from tilewright.base.dataclass import dataclass
from tilewright.loops.analysis.access import Access

Pair = tuple[Access, Access]


@dataclass(frozen=True, slots=True)
class Witness:
    """Two iterations (loop name to value) that touch `place`, an element of a buffer."""

    first: dict[str, int]
    second: dict[str, int]
    place: str


@dataclass(frozen=True, slots=True)
class Legal:
    """No two iterations conflict: proven. True as a condition."""

    reason: str = "no two iterations conflict"

    def __bool__(self) -> Literal[True]:
        return True


@dataclass(frozen=True, slots=True)
class Illegal:
    """Two iterations conflict, for certain. pair: through which accesses."""

    reason: str
    witness: Witness
    pair: Pair

    def __bool__(self) -> Literal[False]:
        return False


@dataclass(frozen=True, slots=True)
class Unknown:
    """Not proven, so not permitted. limit: what stopped the proof; pair: at which accesses.

    lemma: the arithmetic of `lemmas` does not decide it, and nothing else was asked. operations:
    isl's operation limit. affine: the accesses, or the guards around, are more than isl can say.
    """

    reason: str
    limit: Literal["lemma", "operations", "affine"]
    pair: Pair

    def __bool__(self) -> Literal[False]:
        return False


Verdict = Legal | Illegal | Unknown

LEGAL = Legal()
