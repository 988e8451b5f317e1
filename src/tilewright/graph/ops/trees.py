"""TreeEnsemble of ai.onnx.ml, and the operators that it replaces.

The attributes are read into a Forest (`graph/ops/forest.py`), whose sums are turned into scores
here. For two classes the classifier follows ONNX Runtime, as the standard does not define the
result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType, float32, float64
from tilewright.base.errors import UnsupportedError
from tilewright.graph.nodes import Value
from tilewright.graph.ops.dtype_numbers import number_of
from tilewright.graph.ops.forest import NEUTRAL, Forest, TreeNode
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register
from tilewright.graph.ops.scores import (
    DOMAIN,
    above,
    best,
    class_labels,
    classified,
    rows_of,
    single,
    transformed,
    two_sided,
)

MAX_DEPTH = 512

# TreeEnsemble's numbers for modes, aggregates and transforms.
MODES = (
    "BRANCH_LEQ",
    "BRANCH_LT",
    "BRANCH_GTE",
    "BRANCH_GT",
    "BRANCH_EQ",
    "BRANCH_NEQ",
    "BRANCH_MEMBER",
)
COMBINE = ("AVERAGE", "SUM", "MIN", "MAX")


@dataclass(frozen=True)
class _ModelNode:
    """A node as a model has it. members: the values that its feature is compared with, in order."""

    feature: int
    splits: Sequence[float]
    mode: str
    missing: bool
    yes: Any
    no: Any


@dataclass
class _Reader:
    """Reads trees from nodes and leaves by key: `nodes(key)` is None if the key is a leaf's."""

    op: OpCall
    forest: Forest
    nodes: Callable[[Any], _ModelNode | None]
    votes: Callable[[Any], Sequence[tuple[int, float]]]

    def __post_init__(self) -> None:
        self.seen: set[Any] = set()

    def read(
        self,
        key: Any,
        above: int = 0,
    ) -> TreeNode:
        """The tree with that root."""
        node = self.nodes(key)
        if node is None:
            return self.forest.leaf(self.votes(key))
        if key in self.seen:
            raise self.op.error(f"node {key} of the trees has two parents")
        self.seen.add(key)
        if above >= MAX_DEPTH:
            raise UnsupportedError(
                f"a tree with more than {MAX_DEPTH} comparisons on a way down"
            )
        if not 0 <= node.feature < self.op.shape(0)[1]:
            raise self.op.error(
                f"node {key} of the trees tests feature {node.feature} of "
                f"{self.op.shape(0)[1]}"
            )
        yes = self.read(node.yes, above + 1)
        no = self.read(node.no, above + 1)
        for split in reversed(node.splits):
            no = self.forest.node(node.feature, split, node.mode, yes, no, node.missing)
        return no


def _floats(
    op: OpCall,
    name: str,
) -> list[float]:
    """A list of numbers, which may be a tensor for the sake of precision."""
    found = op.attr(f"{name}_as_tensor")
    if found is None:
        found = op.attr(name)
    return [] if found is None else [float(v) for v in np.ravel(found)]


def _dtype(
    op: OpCall,
    *tensors: Any,
) -> DType:
    """The dtype of comparisons: float64 if the features or a table have it, else float32."""
    double = [np.asarray(t).dtype == np.float64 for t in tensors if t is not None]
    return float64 if any(double) or op.dtype(0) == float64 else float32


def _said(
    f: Fragment,
    op: OpCall,
    forest: Forest,
) -> Value:
    """The combined votes of the trees for each row; 0 if no tree votes for a target."""
    x = op.value(0)
    if x.dtype != forest.dtype:
        x = f.op(
            "Cast",
            x,
            to=number_of(forest.dtype.name),
        )
    found = forest.run(f, x)
    neutral = NEUTRAL[forest.combine]
    if neutral:
        silent = f.op(
            "Equal",
            found,
            f.constant(neutral, float64),
        )
        found = f.op(
            "Where",
            silent,
            f.constant(0, float64),
            found,
        )
    return found


# TreeEnsemble


def _members(op: OpCall) -> list[list[float]]:
    """The values of membership_values, split at NaNs into one group per membership node."""
    members = op.attr("membership_values")
    found: list[list[float]] = [[]]
    for value in [] if members is None else np.ravel(members).tolist():
        if np.isnan(value):
            found.append([])
        else:
            found[-1].append(value)
    return found


def _ensemble_nodes(op: OpCall) -> Callable[[Any], _ModelNode | None]:
    """The nodes by (is a leaf, number)."""
    modes = [MODES[m] for m in np.ravel(op.attr("nodes_modes")).tolist()]
    splits = np.ravel(op.attr("nodes_splits")).tolist()
    tracks = op.attr("nodes_missing_value_tracks_true") or [0] * len(modes)
    members = _members(op)
    nth = np.cumsum([m == "BRANCH_MEMBER" for m in modes]) - 1
    names = ("true", "false")
    leafs, ids = (
        [op.attr(f"nodes_{n}{k}") for n in names] for k in ("leafs", "nodeids")
    )

    def node(
        key: tuple[int, int],
    ) -> _ModelNode | None:
        is_leaf, n = key
        if is_leaf:
            return None
        mode = modes[n]
        choices = [splits[n]]
        if mode == "BRANCH_MEMBER":
            mode = "BRANCH_EQ"
            choices = members[nth[n]] or [np.nan]
        ways = [(side[n], place[n]) for side, place in zip(leafs, ids, strict=True)]
        feature = op.attr("nodes_featureids")[n]
        return _ModelNode(feature, choices, mode, bool(tracks[n]), *ways)

    return node


def _ensemble(
    op: OpCall,
    f: Fragment,
) -> list[Value]:
    combine = COMBINE[op.attr("aggregate_function", 1)]
    forest = Forest(_dtype(op, op.attr("nodes_splits")), op.attr("n_targets"), combine)
    weights = np.ravel(op.attr("leaf_weights")).tolist()
    targets = op.attr("leaf_targetids")
    nodes = _ensemble_nodes(op)
    reader = _Reader(op, forest, nodes, lambda k: [(targets[k[1]], weights[k[1]])])
    for n in op.attr("tree_roots"):
        node = nodes((0, n))
        assert node is not None
        alone = node.yes == node.no and node.yes[0]  # a tree that is a single leaf
        forest.roots.append(reader.read(node.yes if alone else (0, n)))
    trees = len(forest.roots)
    found = _said(f, op, forest)
    if combine == "AVERAGE":
        found = f.op(
            "Div",
            found,
            f.constant(trees, float64),
        )
    found = f.op(
        "Cast",
        found,
        to=number_of(op.dtype(0).name),
    )
    return [transformed(op, f, found)]


def _ensemble_type(op: OpCall) -> Sequence[Type]:
    return op.result((rows_of(op), int(op.attr("n_targets"))))


register(
    OpDef("TreeEnsemble", _ensemble_type, domain=DOMAIN, since=5, decompose=_ensemble)
)


# TreeEnsembleClassifier, TreeEnsembleRegressor


def _grow(
    op: OpCall,
    forest: Forest,
    votes_of: str,
    targets: Sequence[int],
) -> None:
    """Add the trees. votes_of: prefix of the vote attributes. targets: of each vote."""
    keys = [*zip(op.attr("nodes_treeids"), op.attr("nodes_nodeids"), strict=True)]
    row = {key: n for n, key in enumerate(keys)}
    if len(row) < len(keys):
        raise op.error("two nodes of a tree have the same number")
    votes: dict[Any, list[tuple[int, float]]] = defaultdict(list)
    places = zip(
        op.attr(f"{votes_of}_treeids"), op.attr(f"{votes_of}_nodeids"), strict=True
    )
    weights = _floats(op, f"{votes_of}_weights")
    for place, target, weight in zip(places, targets, weights, strict=True):
        votes[place].append((target, weight))
    nodes = _nodes(op, row)
    reader = _Reader(op, forest, nodes, lambda key: votes[key])
    inner = [n for key in keys if (n := nodes(key)) is not None]
    below = {way for n in inner for way in (n.yes, n.no)}
    forest.roots += [reader.read(key) for key in keys if key not in below]


def _nodes(
    op: OpCall,
    row: dict[Any, int],
) -> Callable[[Any], _ModelNode | None]:
    """The nodes by (tree, number)."""
    modes = op.attr("nodes_modes")
    splits = _floats(op, "nodes_values")
    tracks = op.attr("nodes_missing_value_tracks_true") or [0] * len(modes)
    features = op.attr("nodes_featureids")
    ways = [op.attr(f"nodes_{way}nodeids") for way in ("true", "false")]

    def node(
        key: tuple[int, int],
    ) -> _ModelNode | None:
        n = row.get(key)
        if n is None:
            raise op.error(f"tree {key[0]} has no node {key[1]}, which a node leads to")
        if modes[n] == "LEAF":
            return None
        if modes[n] not in MODES[:-1]:
            raise op.error(f"node {key} of the trees has the mode {modes[n]!r}")
        yes, no = ((key[0], way[n]) for way in ways)
        return _ModelNode(features[n], [splits[n]], modes[n], bool(tracks[n]), yes, no)

    return node


def _regressed(
    op: OpCall,
    f: Fragment,
) -> list[Value]:
    combine = op.attr("aggregate_function", "SUM")
    if combine not in NEUTRAL:
        raise op.error(f"aggregate_function {combine!r} is not one of {[*NEUTRAL]}")
    tables = [op.attr(f"{n}_as_tensor") for n in ("nodes_values", "target_weights")]
    forest = Forest(_dtype(op, *tables), op.attr("n_targets", 1), combine)
    _grow(op, forest, "target", op.attr("target_ids"))
    trees = len(forest.roots)
    found = _said(f, op, forest)
    if combine == "AVERAGE":
        found = f.op(
            "Div",
            found,
            f.constant(trees, float64),
        )
    base = _floats(op, "base_values")
    if base:
        found = f.op(
            "Add",
            found,
            f.constant(base, float64),
        )
    return [transformed(op, f, single(f, found))]


def _regression_type(op: OpCall) -> Sequence[Type]:
    return [(float32, (rows_of(op), int(op.attr("n_targets", 1))))]


def _classified(
    op: OpCall,
    f: Fragment,
) -> list[Value]:
    tables = [op.attr(f"{n}_as_tensor") for n in ("nodes_values", "class_weights")]
    ids = op.attr("class_ids")
    classes = len(class_labels(op))
    one = classes == 2 and len(set(ids)) == 1
    forest = Forest(_dtype(op, *tables), 1 if one else classes)
    _grow(op, forest, "class", [0] * len(ids) if one else ids)
    found = _said(f, op, forest)
    base = _floats(op, "base_values")
    if base:
        given = base[-1:] if one else base
        found = f.op(
            "Add",
            found,
            f.constant(given, float64),
        )
    scores = single(f, found)
    if not one:
        return [best(op, f, found), transformed(op, f, scores)]
    positive = min(_floats(op, "class_weights")) >= 0
    label = above(op, f, scores, 0.5 if positive else 0.0)
    return [label, two_sided(op, f, scores, positive)]


def _classification_type(op: OpCall) -> Sequence[Type]:
    return classified(op, len(class_labels(op)))


for _name, _infer, _decompose in (
    ("TreeEnsembleRegressor", _regression_type, _regressed),
    ("TreeEnsembleClassifier", _classification_type, _classified),
):
    register(OpDef(_name, _infer, domain=DOMAIN, decompose=_decompose))
