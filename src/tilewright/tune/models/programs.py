"""Programs as arrays, for training and prediction.

A program is one or more rows of features: one per kernel, or one per store, stage or node of its
loop tree. A learner predicts one cost from all its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.loops.nodes import Kernel
from tilewright.tune.base import Vector

Rows = np.ndarray[Any, np.dtype[np.float32]]
Numbers = np.ndarray[Any, np.dtype[np.int64]]

# A failed trial counts as this many times the slowest time of its task.
FAILED = 2.0


class FeatureExtractor(Protocol):
    """Extracts features from a kernel. name, version: identify a saved model's features."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int: ...
    def extract(self, kernel: Kernel) -> Rows:
        """The rows of a kernel: float32 [rows, columns]."""
        ...


@dataclass(frozen=True, eq=False)
class ProgramRows:
    """Several programs: the rows of program p are `rows[ends[p - 1]:ends[p]]`.

    rows: float32 [rows, columns]. ends: int64 [programs].
    """

    rows: Rows
    ends: Numbers

    @staticmethod
    def of(matrices: Sequence[Rows]) -> ProgramRows:
        """Concatenate matrices, one per program, with the same columns."""
        if not matrices:
            return ProgramRows(np.zeros((0, 0), np.float32), np.zeros(0, np.int64))
        ends = np.cumsum([len(m) for m in matrices], dtype=np.int64)
        return ProgramRows(np.concatenate(matrices).astype(np.float32), ends)

    def __len__(self) -> int:
        return len(self.ends)

    @cached_property
    def counts(self) -> Numbers:
        """The number of rows of each program: [programs]."""
        return np.diff(self.ends, prepend=0)

    @cached_property
    def owner(self) -> Numbers:
        """The program of each row: [rows]."""
        return np.repeat(np.arange(len(self)), self.counts)

    def sums(self, values: Vector) -> Vector:
        """Sum values of rows, [rows], per program: [programs]."""
        found: Vector = np.zeros(len(self))
        np.add.at(found, self.owner, values)
        return found

    def log_sums(self, values: Vector) -> tuple[Vector, Vector]:
        """Log-sum-exp of the rows' values per program, [programs], and the share of each row in its
        program's sum, [rows]. Minus infinity for programs without rows."""
        top = np.full(len(self), -np.inf)
        np.maximum.at(top, self.owner, values)
        parts = np.exp(values - top[self.owner])
        whole = self.sums(parts)
        some = self.counts > 0
        logs = np.log(whole, out=np.full(len(self), -np.inf), where=some)
        return logs + np.where(some, top, 0.0), parts / whole[self.owner]

    def rows_of(self, chosen: Numbers) -> Numbers:
        """The indices of the rows of selected programs, in the given order."""
        counts = self.counts[chosen]
        ends = np.cumsum(counts, dtype=np.int64)
        # First row of each chosen program here, minus its first row in the result.
        moved = (self.ends - self.counts)[chosen] - (ends - counts)
        found: Numbers = np.arange(int(counts.sum())) + np.repeat(moved, counts)
        return found

    def take(self, chosen: Numbers) -> ProgramRows:
        """Selected programs, in the given order; repetitions are allowed."""
        ends = np.cumsum(self.counts[chosen], dtype=np.int64)
        return ProgramRows(self.rows[self.rows_of(chosen)], ends)


@dataclass(frozen=True, eq=False)
class Examples:
    """Programs with their measured times.

    group: the number of each program's task; only programs of one task are compared. seconds:
    infinite for failures. prior: a known cost of each program; the learner fits the residual.
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
                hint="give positive seconds, and infinity for a failed trial",
            )

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, chosen: Numbers) -> Examples:
        """Selected examples, in the given order."""
        return Examples(
            self.programs.take(chosen),
            self.group[chosen],
            self.seconds[chosen],
            self.prior[chosen],
        )

    def useful(self) -> Examples:
        """The examples of tasks with a success; a task with only failures teaches nothing."""
        return self.take(np.flatnonzero(np.isfinite(self.fastest())))

    def costs(self) -> Vector:
        """Log seconds; a failed trial counts as FAILED times its task's slowest."""
        finite = np.isfinite(self.seconds)
        least = np.where(finite, self.seconds, 0.0)
        worst = _by_group(np.maximum, least, self.group, 0.0) * FAILED
        return np.log(np.where(finite, self.seconds, worst))

    def throughput(self) -> Vector:
        """The task's shortest time divided by each program's: 1 for the fastest, 0 for failures."""
        ok = np.isfinite(self.seconds)
        return np.divide(
            self.fastest(), self.seconds, out=np.zeros(len(self)), where=ok
        )

    def fastest(self) -> Vector:
        """The shortest time of each example's task."""
        return _by_group(np.minimum, self.seconds, self.group, np.inf)


def _by_group(
    combine: np.ufunc, values: Vector, group: Numbers, start: float
) -> Vector:
    """Combine the values of each one's group: [programs]."""
    size = int(group.max()) + 1 if len(group) else 0
    found = np.full(size, start)
    combine.at(found, group, values)
    return found[group]


def numbered(names: Sequence[str]) -> Numbers:
    """Number names consecutively from 0, in order of first occurrence."""
    known: dict[str, int] = {}
    return np.array([known.setdefault(n, len(known)) for n in names], np.int64)
