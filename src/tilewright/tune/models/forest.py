"""Fitted trees as arrays: LightGBM's model, evaluated by NumPy alone.

Prediction needs neither LightGBM nor text parsing: a file has a few hundred kilobytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.tune.base import Vector
from tilewright.tune.models.programs import Rows
from tilewright.tune.models.stored import State

Array = np.ndarray[Any, Any]
# The decision type of a numeric split without missing values in LightGBM's text.
PLAIN = 2
_ARRAYS = ("leaves", "feature", "threshold", "left", "right", "value")


@dataclass(frozen=True, eq=False)
class TreeEnsemble:
    """Trees whose values are summed, plus `start`.

    leaves: int16 [trees], the number of leaves; a tree has one split fewer. For all trees
    concatenated, feature: int16 [splits], the column to compare; threshold: float32 [splits],
    values up to it go left; left, right: int16 [splits], a split of the same tree, or -1 - n for
    its leaf n; value: float32 [leaves].
    """

    start: float
    leaves: Array
    feature: Array
    threshold: Array
    left: Array
    right: Array
    value: Array

    @staticmethod
    def of(state: State) -> TreeEnsemble:
        """Convert a state of `models.trees.Trees`.

        Raises InputError for trees with other than plain numeric splits.
        """
        trees = list(_trees(state["trees"] or ""))
        splits = [t for t in trees if len(t["leaf_value"]) > 1]

        def joined(name: str, dtype: type, of: Sequence[Mapping[str, Array]]) -> Array:
            parts = [t[name] for t in of]
            return np.concatenate(parts or [np.zeros(0)]).astype(dtype)

        leaves = [len(t["leaf_value"]) for t in trees]
        return TreeEnsemble(
            float(state["start"]),
            np.array(leaves, np.int16),
            joined("split_feature", np.int16, splits),
            _rounded_down(joined("threshold", np.float64, splits)),
            joined("left_child", np.int16, splits),
            joined("right_child", np.int16, splits),
            joined("leaf_value", np.float32, trees),
        )

    def values(self, rows: Rows) -> Vector:
        """The sum of the trees for each row: float64 [rows]."""
        leaves = self.leaves.astype(np.int64)
        first_leaf = np.cumsum(leaves) - leaves
        first_split = np.cumsum(leaves - 1) - (leaves - 1)
        shape = len(rows), len(leaves)
        # A tree with one leaf is already there.
        at = np.broadcast_to(np.where(leaves > 1, 0, -1), shape).copy()
        row, tree = np.nonzero(at >= 0)
        while len(row):
            split = first_split[tree] + at[row, tree]
            less = rows[row, self.feature[split]] <= self.threshold[split]
            at[row, tree] = np.where(less, self.left[split], self.right[split])
            further = at[row, tree] >= 0
            row, tree = row[further], tree[further]
        found = self.value[first_leaf - 1 - at]
        summed: Vector = found.sum(axis=1, dtype=np.float64)
        return self.start + summed

    def state(self) -> State:
        """The state that a file stores."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        return {"start": self.start, **arrays}

    @staticmethod
    def restore(state: State) -> TreeEnsemble:
        """Restore a result of `state`."""
        arrays = [state[name] for name in _ARRAYS]
        return TreeEnsemble(float(state["start"]), *arrays)


def _rounded_down(thresholds: Array) -> Array:
    """Round to float32 such that every float32 stays on its side of the threshold."""
    near = thresholds.astype(np.float32)
    above = near > thresholds
    return np.where(above, np.nextafter(near, np.float32(-np.inf)), near)


def _trees(text: str) -> Iterator[Mapping[str, Array]]:
    """Yield the numbers of each tree in LightGBM's text, by their names there."""
    whole, _, _ = text.partition("\nend of trees")
    for part in whole.split("\nTree=")[1:]:
        lines = [line.partition("=") for line in part.splitlines()]
        found = {name: np.array(value.split(), np.float64) for name, _, value in lines}
        kinds = found.get("decision_type", np.zeros(0))
        if found["num_cat"][0] or (kinds != PLAIN).any():
            raise InputError(
                "a tree has splits that are not plain comparisons of numbers",
                where="trees of a cost model",
                hint="fit them to finite features",
            )
        yield found
