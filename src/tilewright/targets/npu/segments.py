"""Addresses as instructions name them: evenly spaced runs, and blocks of rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dataclass import dataclass

Addresses = NDArray[np.int64]
# Steps beyond this lead into another memory.
_FAR = 1 << 40


@dataclass(frozen=True, slots=True)
class Address:
    """An address in a memory, and how far elements are apart."""

    memory: str
    address: int
    step: int = 1


@dataclass(frozen=True, slots=True)
class StridedRun:
    """`count` elements, `step` apart."""

    start: int
    count: int
    step: int


@dataclass(frozen=True, slots=True)
class StridedRows:
    """Rows `step` apart of elements `across` apart."""

    start: int
    rows: int
    columns: int
    step: int
    across: int


def runs(addresses: Addresses) -> Iterator[StridedRun]:
    """A vector as few runs, in order; greedily the longest."""
    at = 0
    steps = addresses[1:] - addresses[:-1]
    if addresses.size > 2 and abs(steps[0]) < _FAR and (steps == steps[0]).all():
        yield StridedRun(int(addresses[0]), addresses.size, int(steps[0]))
        return
    while at < addresses.size:
        count, step = 1, 1
        if at < steps.size and abs(steps[at]) < _FAR:
            step = int(steps[at])
            other = np.flatnonzero(steps[at:] != step)
            count += int(other[0]) if other.size else steps.size - at
        if count == 2 and step not in (0, 1):
            count, step = (
                1,
                1,
            )  # two elements far apart: the second may begin a longer run
        yield StridedRun(int(addresses[at]), count, step)
        at += count


def rows(addresses: Addresses) -> Iterator[StridedRows]:
    """A matrix as blocks of rows, in order. Every row must be one run."""
    _, columns = addresses.shape
    across = (
        np.diff(addresses[:, :2], axis=1).ravel()
        if columns > 1
        else np.ones(len(addresses))
    )
    at = 0
    while at < len(addresses):
        same = np.flatnonzero(across[at:] != across[at])
        if same.size:
            most = int(same[0])
        else:
            most = len(addresses) - at
        run = next(runs(addresses[at : at + most, 0]))
        yield StridedRows(
            int(addresses[at, 0]), run.count, columns, run.step, int(across[at])
        )
        at += run.count
