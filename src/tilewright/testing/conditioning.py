"""Keeps random graphs well conditioned: rounding errors must not decide their results."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.testing.graphs import OperatorRejected


def far(distance: Any, dtype: DType | None) -> None:
    """Raise Rejected where some distance from a jump is within what rounding could bridge."""
    if dtype is dtypes.float16:
        limit = 0.05
    else:
        limit = 1e-3
    if distance.size and np.abs(distance).min() < limit:
        raise OperatorRejected


def varied(array: Any, axes: tuple[int, ...]) -> None:
    """Raise Rejected where values to normalize hardly differ: only rounding would be left."""
    if array.size and (np.ptp(array, axis=axes) < 0.05).any():
        raise OperatorRejected
