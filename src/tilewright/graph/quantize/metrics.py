"""How closely one model's outputs match another's: top-1 agreement and cosine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.base.text import plural

Array = NDArray[Any]
Outputs = Mapping[str, Array]
METRICS = ("both", "cosine")


def check_metric(metric: str) -> None:
    """Raise InputError for an unknown one."""
    if metric not in METRICS:
        raise InputError(
            f"agreement is not measured by {metric!r}",
            hint=f"one of {', '.join(METRICS)}",
        )


@dataclass(frozen=True, slots=True)
class Agreement:
    """How closely outputs match.

    top1: share of rows whose largest number is at the same position, over outputs [rows, classes];
    None if there are none. cosine: the mean over outputs. rows: the number of rows compared.
    """

    top1: float | None
    cosine: float
    rows: int = 0

    @property
    def drop(self) -> float:
        """The larger of the two losses, at least 0."""
        lost = 0.0 if self.top1 is None else 1 - self.top1
        return max(lost, 1 - self.cosine)

    def __str__(self) -> str:
        cosine = f"cosine {self.cosine:.6f}"
        if self.top1 is None:
            return cosine
        return (
            f"top-1 agreement {self.top1:.2%} of {plural(self.rows, 'row')}, {cosine}"
        )


def of_outputs(
    names: Iterable[str],
    found: Outputs,
) -> Outputs:
    """Copies of these outputs, without others that a model has."""
    return {name: np.array(found[name]) for name in names}


def compare(
    pairs: Iterable[tuple[Outputs, Outputs]],
    metric: str = "both",
) -> Agreement:
    """The agreement of outputs by name, in pairs: the reference's and the other model's.

    metric: one of METRICS; use "cosine" if the outputs are not class scores.
    """
    cosines: list[float] = []
    same = rows = 0
    for reference, found in pairs:
        for name, want in reference.items():
            if want.dtype.kind != "f" or not want.size:
                continue
            got = found[name]
            cosines.append(cosine(want, got))
            if metric == "both" and want.ndim == 2 and want.shape[1] > 1:
                equal = want.argmax(1) == got.argmax(1)
                same += int(equal.sum())
                rows += len(want)
    mean = float(np.mean(cosines)) if cosines else 1.0
    return Agreement(same / rows if rows else None, mean, rows)


def cosine(
    a: Array,
    b: Array,
) -> float:
    """The cosine between two tensors; 0 if only one of them is zero, or one is not finite."""
    x = a.reshape(-1).astype(np.float64)
    y = b.reshape(-1).astype(np.float64)
    if not np.array_equal(np.isfinite(x), np.isfinite(y)):
        return 0.0
    fine = np.isfinite(x)
    x, y = x[fine], y[fine]
    if not x.any() and not y.any():
        return 1.0
    lengths = np.linalg.norm(x) * np.linalg.norm(y)
    return float(np.clip(x @ y / lengths, -1, 1)) if lengths > 0 else 0.0
