"""TreeEnsemble, natively, on random trees against a walk in Python."""

import numpy as np
import pytest
from onnx import numpy_helper

from tests.graph.one_operator import agree, model_of
from tilewright.base.errors import ModelError, UnsupportedError
from tilewright.frontends.onnx import load

RNG = np.random.default_rng(11)
COMPARE = [np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal]


class Forest:
    """Random trees, in the operator's attributes."""

    def __init__(
        self, trees, depth, features, targets, dtype, modes=range(7), missing=False
    ):
        self.features, self.targets, self.dtype, self.modes = (
            features,
            targets,
            dtype,
            [*modes],
        )
        self.rows, self.leaves, self.sets = [], [], {}
        self.roots = [self.grow(depth) for _ in range(trees)]
        self.missing = [int(missing and RNG.random() < 0.5) for _ in self.rows]

    def grow(self, depth):
        n = len(self.rows)
        self.rows.append(None)
        mode = int(RNG.choice(self.modes))
        if mode == 6:
            self.sets[n] = [
                float(v) for v in RNG.choice(np.arange(1, 5), 2, replace=False)
            ]
        ways = [self.way(depth) for _ in range(2)]
        self.rows[n] = (
            int(RNG.integers(self.features)),
            float(RNG.integers(5)),
            mode,
            *ways,
        )
        return n

    def way(self, depth):
        if depth > 1 and RNG.random() < 0.7:
            return 0, self.grow(depth - 1)
        self.leaves.append((int(RNG.integers(self.targets)), float(RNG.normal())))
        return 1, len(self.leaves) - 1

    def attributes(self):
        def tensor(values, dtype):
            return numpy_helper.from_array(np.array(values, dtype))

        feature, split, mode, yes, no = zip(*self.rows)
        found = {
            "nodes_featureids": feature,
            "nodes_splits": tensor(split, self.dtype),
            "nodes_modes": tensor(mode, np.uint8),
            "nodes_trueleafs": [w[0] for w in yes],
            "nodes_truenodeids": [w[1] for w in yes],
            "nodes_falseleafs": [w[0] for w in no],
            "nodes_falsenodeids": [w[1] for w in no],
            "nodes_missing_value_tracks_true": self.missing,
            "leaf_targetids": [t for t, _ in self.leaves],
            "leaf_weights": tensor([w for _, w in self.leaves], self.dtype),
            "tree_roots": self.roots,
            "n_targets": self.targets,
        }
        if self.sets:
            members = [v for n in sorted(self.sets) for v in (*self.sets[n], np.nan)]
            found["membership_values"] = tensor(members, self.dtype)
        return found

    def votes(self, row):
        """Target and weight per tree."""
        for n in self.roots:
            leaf = 0
            while not leaf:
                feature, split, mode, yes, no = self.rows[n]
                x = row[feature]
                taken = x in self.sets[n] if mode == 6 else COMPARE[mode](x, split)
                leaf, n = yes if taken or (np.isnan(x) and self.missing[n]) else no
            yield self.leaves[n]

    def sums(self, x):
        found = np.zeros((len(x), self.targets))
        for out, row in zip(found, x):
            for target, weight in self.votes(row):
                out[target] += weight
        return found


@pytest.mark.covering(1)
@pytest.mark.parametrize("modes", [[0], [3], [4, 5], [6], range(7)])
@pytest.mark.parametrize(
    ("dtype", "missing"), [(np.float32, False), (np.float64, True)]
)
def test_sum(modes, dtype, missing):
    forest = Forest(5, 4, 3, 2, dtype, modes, missing)
    x = RNG.integers(0, 5, (20, 3)).astype(dtype)
    x[RNG.random(x.shape) < 0.2] = np.nan
    want = forest.sums(x).astype(dtype)
    agree(
        "TreeEnsemble",
        [x],
        domain="ai.onnx.ml",
        opset=5,
        expected=[want],
        **forest.attributes(),
    )


@pytest.mark.parametrize("how", range(4))
def test_ways_to_aggregate(how):
    forest = Forest(4, 3, 2, 1, np.float32, [0])
    x = RNG.integers(0, 5, (9, 2)).astype(np.float32)
    votes = np.array([[w for _, w in forest.votes(row)] for row in x])
    want = [votes.mean(1), votes.sum(1), votes.min(1), votes.max(1)][how][:, None]
    options = {**forest.attributes(), "aggregate_function": how}
    expected = [want.astype(np.float32)]
    agree(
        "TreeEnsemble", [x], domain="ai.onnx.ml", opset=5, expected=expected, **options
    )


@pytest.mark.parametrize("post", [1, 2, 3])
def test_transforms(post):
    forest = Forest(3, 2, 2, 4, np.float32, [0])
    x = RNG.integers(0, 5, (9, 2)).astype(np.float32)
    y = forest.sums(x)
    e = np.exp(y - y.max(1, keepdims=True)) * (1 if post == 1 else y != 0)
    want = 1 / (1 + np.exp(-y)) if post == 2 else e / e.sum(1, keepdims=True)
    options = {**forest.attributes(), "post_transform": post}
    expected = [want.astype(np.float32)]
    agree(
        "TreeEnsemble", [x], domain="ai.onnx.ml", opset=5, expected=expected, **options
    )


def test_trees_that_are_none():
    forest = Forest(1, 3, 2, 1, np.float32, [0])
    x = np.zeros((2, 2), np.float32)
    options = {**forest.attributes(), "nodes_trueleafs": [0] * len(forest.rows)}
    options["nodes_truenodeids"] = [0] * len(forest.rows)
    with pytest.raises(ModelError, match="two parents"):
        load(model_of("TreeEnsemble", [x], domain="ai.onnx.ml", opset=5, **options))
    options = {**forest.attributes(), "post_transform": 5}
    with pytest.raises(UnsupportedError, match="post_transform 5"):
        load(model_of("TreeEnsemble", [x], domain="ai.onnx.ml", opset=5, **options))
