"""Feature sets: named columns, and rows of numbers for a Kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.loops.nodes import Kernel

Matrix = np.ndarray[Any, np.dtype[np.float32]]
# The subject of a row: the whole kernel, a tensor that it stores to, or one of its loops.
Per = Literal["kernel", "store", "loop"]

LOG = "log2(1+x)"  # of a quantity whose unit is in the description


@dataclass(frozen=True, slots=True)
class Column:
    """One feature. unit: of the stored number; doc: a short description."""

    name: str
    unit: str
    doc: str


class FeatureSet(Protocol):
    """Numbers that describe a Kernel before code generation.

    name, version: identify what a model was trained on; the version changes when a column's meaning
    does. per: what a row describes. source: who defined the set.
    """

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def per(self) -> Per: ...
    @property
    def source(self) -> str: ...
    @property
    def columns(self) -> Sequence[Column]: ...

    def extract(self, kernel: Kernel) -> Matrix:
        """float32 [rows, columns], all finite; one row if `per` is the kernel."""
        ...


def names(features: FeatureSet) -> tuple[str, ...]:
    """The names of the columns, in order."""
    return tuple(c.name for c in features.columns)


def matrix(rows: Sequence[Sequence[float]], columns: int) -> Matrix:
    """float32 [rows, columns], even without rows."""
    made: Matrix = np.array(rows, np.float32).reshape(len(rows), columns)
    return made


def log2p(x: float) -> float:
    """`sign(x) * log2(|x| + 1)`: 0 for 0, and comparable for all magnitudes."""
    if x < 0:
        return -math.log2(1 - x)
    return math.log2(1 + x)
