"""Programs as numbers: what is learned from, and what is predicted for.

A program is some rows of features: one of the kernel, or one for each store, stage or node of its
loop tree. What it costs is what a learner makes of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from tilewright.base.errors import InputError
from tilewright.loops.nodes import Kernel
from tilewright.tune.base import Vector

Rows = np.ndarray[Any, np.dtype[np.float32]]
Numbers = np.ndarray[Any, np.dtype[np.int64]]

# A failed trial counts as one that took so many times what the slowest of its task took.
FAILED = 2.0


class FeatureExtractor(Protocol):
    """What is read from a kernel. name, version: what a saved model was made for."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int: ...
    def extract(self, kernel: Kernel) -> Rows:
        """The rows of a kernel: float32 [rows, columns]."""
        ...


@dataclass(frozen=True, eq=False)
class ProgramRows:
    """Several programs: those of number p are `rows[ends[p - 1]:ends[p]]`.

    rows: float32 [rows, columns]. ends: int64 [programs].
    """

    rows: Rows
    ends: Numbers

    @staticmethod
    def of(matrices: Sequence[Rows]) -> ProgramRows:
        """Each matrix is a program; all have the same columns."""
        if not matrices:
            return ProgramRows(np.zeros((0, 0), np.float32), np.zeros(0, np.int64))
        ends = np.cumsum([len(m) for m in matrices], dtype=np.int64)
        return ProgramRows(np.concatenate(matrices).astype(np.float32), ends)

    def __len__(self) -> int:
        return len(self.ends)

    @cached_property
    def counts(self) -> Numbers:
        """How many rows each program has: [programs]."""
        return np.diff(self.ends, prepend=0)

    @cached_property
    def owner(self) -> Numbers:
        """The program of each row: [rows]."""
        return np.repeat(np.arange(len(self)), self.counts)

    def sums(self, values: Vector) -> Vector:
        """What values of rows, [rows], add up to: [programs]."""
        found: Vector = np.zeros(len(self))
        np.add.at(found, self.owner, values)
        return found

    def log_sums(self, values: Vector) -> tuple[Vector, Vector]:
        """Logarithms of what the exponentials of rows' values add up to: [programs].

        And the share of each row in its program's sum: [rows]. Minus infinity without rows.
        """
        top = np.full(len(self), -np.inf)
        np.maximum.at(top, self.owner, values)
        parts = np.exp(values - top[self.owner])
        whole = self.sums(parts)
        some = self.counts > 0
        logs = np.log(whole, out=np.full(len(self), -np.inf), where=some)
        return logs + np.where(some, top, 0.0), parts / whole[self.owner]

    def rows_of(self, chosen: Numbers) -> Numbers:
        """The numbers of the rows of some programs, in the order given."""
        counts = self.counts[chosen]
        ends = np.cumsum(counts, dtype=np.int64)
        # The first row of a chosen program here, less its first row among the chosen ones.
        moved = (self.ends - self.counts)[chosen] - (ends - counts)
        found: Numbers = np.arange(int(counts.sum())) + np.repeat(moved, counts)
        return found

    def take(self, chosen: Numbers) -> ProgramRows:
        """Some of the programs, in the order given; one may come several times."""
        ends = np.cumsum(self.counts[chosen], dtype=np.int64)
        return ProgramRows(self.rows[self.rows_of(chosen)], ends)


@dataclass(frozen=True, eq=False)
class Examples:
    """Programs with what they took.

    group: the number of each one's task; only those of one task are compared. seconds: infinite
    for what failed. prior: a cost that is known of each already; what is learned is the rest.
    """

    programs: ProgramRows
    group: Numbers
    seconds: Vector
    prior: Vector

    def __post_init__(self) -> None:
        bad = ~(self.seconds > 0)
        if bad.any():
            first = int(np.flatnonzero(bad)[0])
            raise InputError(
                f"sample {first} took {self.seconds[first]} seconds",
                hint="give seconds above 0, and infinity for a trial that failed",
            )

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, chosen: Numbers) -> Examples:
        """Some of them, in the order given."""
        return Examples(
            self.programs.take(chosen),
            self.group[chosen],
            self.seconds[chosen],
            self.prior[chosen],
        )

    def useful(self) -> Examples:
        """Those of the tasks in which something succeeded: a task of failures teaches nothing."""
        return self.take(np.flatnonzero(np.isfinite(self.fastest())))

    def costs(self) -> Vector:
        """Logarithms of seconds; of a failed trial those of FAILED times its task's slowest."""
        finite = np.isfinite(self.seconds)
        least = np.where(finite, self.seconds, 0.0)
        worst = _by_group(np.maximum, least, self.group, 0.0) * FAILED
        return np.log(np.where(finite, self.seconds, worst))

    def throughput(self) -> Vector:
        """The task's shortest seconds by each one's: 1 for the fastest, 0 for what failed."""
        ok = np.isfinite(self.seconds)
        return np.divide(
            self.fastest(), self.seconds, out=np.zeros(len(self)), where=ok
        )

    def fastest(self) -> Vector:
        """The shortest seconds of each one's task."""
        return _by_group(np.minimum, self.seconds, self.group, np.inf)


def _by_group(
    combine: np.ufunc, values: Vector, group: Numbers, start: float
) -> Vector:
    """The values of each one's group combined: [programs]."""
    size = int(group.max()) + 1 if len(group) else 0
    found = np.full(size, start)
    combine.at(found, group, values)
    return found[group]


def numbered(names: Sequence[str]) -> Numbers:
    """Equal names as equal numbers, from 0 on, in the order in which they first come."""
    known: dict[str, int] = {}
    return np.array([known.setdefault(n, len(known)) for n in names], np.int64)
