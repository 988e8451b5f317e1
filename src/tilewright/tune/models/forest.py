"""Fitted trees as arrays: what LightGBM learned, evaluated by NumPy alone.

Whoever only predicts needs no LightGBM, and no text to read: a file is a few hundred kilobytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.base.errors import InputError
from tilewright.tune.base import Vector
from tilewright.tune.models.programs import Rows
from tilewright.tune.models.stored import State

Array = np.ndarray[Any, Any]
# What a tree of LightGBM's text says of its splits: numbers, and none of them missing.
PLAIN = 2
_ARRAYS = ("leaves", "feature", "threshold", "left", "right", "value")


@dataclass(frozen=True, eq=False)
class TreeEnsemble:
    """Trees, whose values add up to `start`.

    leaves: int16 [trees], how many each has, and one split less. Of all trees one after another,
    feature: int16 [splits], the column that is compared; threshold: float32 [splits], the left is
    for what is at most that; left, right: int16 [splits], a split of the same tree, or -1 - n for
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
        """The trees of what `models.trees.Trees.state` gave.

        Raises InputError for trees with other than plain splits of numbers.
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
        """What the trees add up to for each row: float64 [rows]."""
        leaves = self.leaves.astype(np.int64)
        first_leaf = np.cumsum(leaves) - leaves
        first_split = np.cumsum(leaves - 1) - (leaves - 1)
        shape = len(rows), len(leaves)
        # A tree of one leaf is there at once.
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
        """What a file keeps."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        return {"start": self.start, **arrays}

    @staticmethod
    def restore(state: State) -> TreeEnsemble:
        """What `state` gave."""
        arrays = [state[name] for name in _ARRAYS]
        return TreeEnsemble(float(state["start"]), *arrays)


def _rounded_down(thresholds: Array) -> Array:
    """To float32, so that each float32 is on the side on which it was."""
    near = thresholds.astype(np.float32)
    above = near > thresholds
    return np.where(above, np.nextafter(near, np.float32(-np.inf)), near)


def _trees(text: str) -> Iterator[Mapping[str, Array]]:
    """The numbers of each tree of LightGBM's text, by their names in it."""
    whole, _, _ = text.partition("\nend of trees")
    for part in whole.split("\nTree=")[1:]:
        lines = [line.partition("=") for line in part.splitlines()]
        found = {name: np.array(value.split(), np.float64) for name, _, value in lines}
        kinds = found.get("decision_type", np.zeros(0))
        if found["num_cat"][0] or (kinds != PLAIN).any():
            raise InputError(
                "a tree has splits that are not plain comparisons of numbers",
                where="trees of a cost model",
                hint="fit them to features that are finite numbers",
            )
        yield found
