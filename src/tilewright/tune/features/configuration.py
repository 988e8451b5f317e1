"""Baselines: the chosen configuration as numbers, and a kernel without its loops.

A model of the flattened configuration knows only the values of a program's parameters, so it must
be trained anew for each space. A model without loop features knows the computation, but not its
schedule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.expr.nodes import Expr
from tilewright.loops.nodes import Kernel
from tilewright.tune.base import Candidate
from tilewright.tune.features.base import LOG, Column, Matrix, Per, log2p, matrix
from tilewright.tune.features.per_store import operation_group
from tilewright.tune.features.per_store_columns import ARITHMETIC
from tilewright.tune.features.program import program

_SKETCH = "sketch"


@dataclass(frozen=True, slots=True)
class Flattened:
    """The values of a candidate in a fixed order, sorted by the names seen in `fit`.

    columns: a number for a numeric parameter, one per element of a tuple of numbers, and a 0-or-1
    column for each other value. Unseen parameters, and missing elements of a shorter tuple, are 0;
    an unseen value sets none of the 0-or-1 columns.
    """

    columns: Sequence[Column]
    name: ClassVar[str] = "configuration"
    version: ClassVar[int] = 1
    source: ClassVar[str] = "the flattened configuration of Chen et al. 2018"

    @staticmethod
    def fit(candidates: Sequence[Candidate]) -> Flattened:
        """The columns that distinguish these candidates; independent of their order."""
        met: dict[str, set[Any]] = {}
        for candidate in candidates:
            for key, value in _items(candidate).items():
                met.setdefault(key, set()).add(value)
        found: list[Column] = []
        for key in sorted(met):
            numbers = [_number(v) for v in met[key]]
            others = sorted({str(v) for v in met[key] if _number(v) is None})
            if any(n is not None for n in numbers):
                found.append(Column(key, "as chosen", f"the number of {key}"))
            for text in others:
                doc = f"whether {key} is {text}"
                found.append(Column(f"{key}={text}", "0 or 1", doc))
        return Flattened(tuple(found))

    def extract(self, candidates: Sequence[Candidate]) -> Matrix:
        """float32 [candidates, columns]."""
        rows = [self._row(_items(c)) for c in candidates]
        return matrix(rows, len(self.columns))

    def _row(self, items: Mapping[str, Any]) -> list[float]:
        row = []
        for column in self.columns:
            key, is_text, text = column.name.partition("=")
            value = items.get(key)
            number = _number(value)
            if is_text:
                given = key in items and number is None
                row.append(float(given and str(value) == text))
            else:
                row.append(number or 0.0)
        return row


def _items(candidate: Candidate) -> dict[str, Any]:
    found: dict[str, Any] = {_SKETCH: candidate.sketch}
    for name, value in candidate.values.items():
        _flatten(name, value, found)
    return found


def _flatten(name: str, value: Any, found: dict[str, Any]) -> None:
    if isinstance(value, list | tuple):
        for n, part in enumerate(value):
            _flatten(f"{name}.{n}", part, found)
    else:
        found[name] = value


def _number(value: Any) -> float | None:
    """A value as a finite number; None if it is not one."""
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return None


@dataclass(frozen=True, slots=True)
class WithoutLoops:
    """The kinds of operations of a kernel, each at its maximum count per statement, and the sizes
    of its tensors; nothing about loops or order."""

    tensors: int = 6
    name: ClassVar[str] = "without-loops"
    version: ClassVar[int] = 1
    per: ClassVar[Per] = "kernel"
    source: ClassVar[str] = "a baseline without loop features"

    @property
    def columns(self) -> Sequence[Column]:
        """Arithmetic by kind, then the parameters, largest first."""
        kinds = [
            Column(f"{name}_kinds", "count", f"in the code: {doc}")
            for name, doc in ARITHMETIC.items()
        ]
        sizes = [
            Column(f"tensor_{n}", LOG, f"bytes of parameter {n}, largest first")
            for n in range(self.tensors)
        ]
        whole = Column("tensors", "count", "parameters")
        return (*kinds, *sizes, whole)

    def extract(self, kernel: Kernel) -> Matrix:
        """float32 [1, columns]."""
        found = program(kernel)
        kinds = dict.fromkeys(ARITHMETIC, 0.0)
        met: dict[tuple[type[Expr], DType], int] = {}
        for line in found.lines:
            for operation, n in line.operations.items():
                met[operation] = max(met.get(operation, 0), n)
        for (kind, dtype), n in met.items():
            name = operation_group(kind, dtype)
            if name is not None:
                kinds[name] += n
        sizes = sorted((s.size for s in found.parameters), reverse=True)
        kept = [log2p(n) for n in sizes[: self.tensors]]
        kept += [0.0] * (self.tensors - len(kept))
        row = [*kinds.values(), *kept, float(len(sizes))]
        return matrix([row], len(self.columns))
