"""TreeEnsemble of ai.onnx.ml: all trees go down one level at a time, by looking up node tables.

Leaves are nodes that lead to themselves, so every tree may go as deep as the deepest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.base.dtypes import int64
from tilewright.base.errors import UnsupportedError
from tilewright.graph.nodes import Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register

MAX_DEPTH = 128

# Comparisons of a feature with the split, by number: the operator, and whether it is negated.
_MODES = {
    0: ("LessOrEqual", False),
    1: ("Less", False),
    2: ("GreaterOrEqual", False),
    3: ("Greater", False),
    4: ("Equal", False),
    5: ("Equal", True),
}
_EQUAL, _MEMBER = 4, 6
_AVERAGE, _SUM, _MIN, _MAX = range(4)
_NONE, _SOFTMAX, _LOGISTIC, _SOFTMAX_ZERO = range(4)  # PROBIT, 4, is not supported

# A column of the node tables, looked up at the present node of each row and tree.
Column = Callable[[Sequence[float]], Value]


@dataclass
class _Nodes:
    """The nodes as columns; a leaf leads to itself."""

    feature: list[int] = field(default_factory=list)
    split: list[float] = field(default_factory=list)
    mode: list[int] = field(default_factory=list)
    missing: list[bool] = field(default_factory=list)
    yes: list[int] = field(default_factory=list)
    no: list[int] = field(default_factory=list)
    weight: list[float] = field(default_factory=list)
    target: list[int] = field(default_factory=list)

    def add(
        self,
        feature: int,
        split: float,
        mode: int,
        missing: bool,
    ) -> int:
        """A node that leads to itself so far."""
        at = len(self.feature)
        row = (feature, split, mode, missing, at, at, 0.0, 0)
        for column, entry in zip(vars(self).values(), row, strict=True):
            column.append(entry)
        return at


class _Builder:
    """The nodes of the trees, in the order of a walk from each root."""

    def __init__(self, op: OpCall) -> None:
        self.op = op
        self.nodes = _Nodes()
        self.depth = 0
        self.seen: set[int] = set()
        self.sets = _member_sets(op)
        modes = np.asarray(op.attr("nodes_modes")).reshape(-1)
        self.modes = [int(m) for m in modes.tolist()]
        self.nth = np.cumsum([m == _MEMBER for m in self.modes]) - 1
        tracks = op.attr("nodes_missing_value_tracks_true")
        self.missing = tracks or [0] * len(self.modes)
        splits = np.asarray(op.attr("nodes_splits"))
        self.splits = splits.reshape(-1).tolist()

    def root(self, n: int) -> int:
        """The place of the tree that begins at node `n`; a tree may be one leaf."""
        op = self.op
        leaf = op.attr("nodes_trueleafs")[n] and op.attr("nodes_falseleafs")[n]
        same = op.attr("nodes_truenodeids")[n] == op.attr("nodes_falsenodeids")[n]
        if leaf and same:
            return self.leaf(op.attr("nodes_truenodeids")[n])
        return self.node(n, 0)

    def leaf(self, n: int) -> int:
        at = self.nodes.add(
            0, 0.0, self.nodes.mode[0] if self.nodes.mode else _EQUAL, False
        )
        self.nodes.weight[at] = float(
            np.asarray(self.op.attr("leaf_weights")).reshape(-1)[n]
        )
        self.nodes.target[at] = self.op.attr("leaf_targetids")[n]
        return at

    def node(self, n: int, above: int) -> int:
        """One comparison; a membership is a chain of them."""
        nodes = self.nodes
        feature = self.op.attr("nodes_featureids")[n]
        splits = [self.splits[n]]
        mode = self.modes[n]
        if mode == _MEMBER:
            splits = self.sets[self.nth[n]] or [np.nan]
            mode = _EQUAL
        if n in self.seen:
            raise self.op.error(f"node {n} of the trees is in two branches")
        self.seen.add(n)
        if above + len(splits) > MAX_DEPTH:
            raise UnsupportedError(
                f"a tree with more than {MAX_DEPTH} comparisons on a way down"
            )
        chain = [nodes.add(feature, s, mode, bool(self.missing[n])) for s in splits]
        self.depth = max(self.depth, above + len(chain))
        yes = self.child("true", n, above + len(chain))
        no = self.child("false", n, above + len(chain))
        for at, after in zip(chain, [*chain[1:], no], strict=True):
            nodes.yes[at], nodes.no[at] = yes, after
        return chain[0]

    def child(
        self,
        way: str,
        n: int,
        above: int,
    ) -> int:
        to = self.op.attr(f"nodes_{way}nodeids")[n]
        if self.op.attr(f"nodes_{way}leafs")[n]:
            return self.leaf(to)
        return self.node(to, above)


def _type(op: OpCall) -> Sequence[Type]:
    if op.rank(0) != 2:
        raise op.error(f"expected a matrix, got {list(op.shape(0))}")
    return [(op.dtype(0), (op.shape(0)[0], int(op.attr("n_targets"))))]


def _member_sets(op: OpCall) -> list[list[float]]:
    """The values of membership_values, which a NaN ends for each node that asks for members."""
    members = op.attr("membership_values")
    if members is None:
        return []
    found: list[list[float]] = [[]]
    for value in np.asarray(members).reshape(-1).tolist():
        if np.isnan(value):
            found.append([])
        else:
            found[-1].append(value)
    return found[:-1]


def _ensemble(op: OpCall, f: Fragment) -> list[Value]:
    builder = _Builder(op)
    roots = [builder.root(n) for n in op.attr("tree_roots")]
    nodes = builder.nodes
    x = op.value(0)
    rows = f.ints(op.shape(0)[0], len(roots))
    at = f.op("Expand", f.constant([roots], int64), rows)

    def column(entries: Sequence[float]) -> Value:
        is_real = np.asarray(entries).dtype.kind == "f"
        table = f.constant(entries, x.dtype if is_real else int64)
        return f.op("Gather", table, at)

    for _ in range(builder.depth):
        value = f.op("GatherElements", x, column(nodes.feature), axis=1)
        taken = _compared(f, value, column(nodes.split), nodes, column)
        at = f.op("Where", taken, column(nodes.yes), column(nodes.no))
    weight = column(nodes.weight)
    target = column(nodes.target)
    return [_transformed(op, f, _voted(op, f, weight, target))]


def _compared(
    f: Fragment,
    value: Value,
    split: Value,
    nodes: _Nodes,
    column: Column,
) -> Value:
    """Whether each row takes the true branch at its node."""
    found: Value | None = None
    for mode in sorted(set(nodes.mode)):
        name, turned = _MODES[mode]
        result = f.op(name, value, split)
        result = f.op("Not", result) if turned else result
        if found is None:
            found = result
        else:
            here = f.op(
                "Equal",
                column(nodes.mode),
                f.constant(mode, int64),
            )
            found = f.op("Where", here, result, found)
    assert found is not None
    if any(nodes.missing):
        tracks = f.op(
            "Equal",
            column(nodes.missing),
            f.constant(1, int64),
        )
        missing = f.op("And", f.op("IsNaN", value), tracks)
        found = f.op("Or", found, missing)
    return found


def _voted(
    op: OpCall,
    f: Fragment,
    weight: Value,
    target: Value,
) -> Value:
    """Per row and target, what the trees say together."""
    how = op.attr("aggregate_function", _SUM)
    if weight.dtype is not None:
        limits = np.finfo(weight.dtype.numpy)
    else:
        limits = np.finfo(np.float32)
    reducer, start = {
        _AVERAGE: ("ReduceSum", 0.0),
        _SUM: ("ReduceSum", 0.0),
        _MIN: ("ReduceMin", limits.max),
        _MAX: ("ReduceMax", limits.min),
    }[how]
    last = f.ints(2)
    mine = f.op(
        "Equal",
        f.op("Unsqueeze", target, last),
        f.constant(np.arange(int(op.attr("n_targets"))), int64),
    )
    votes = f.op(
        "Where", mine, f.op("Unsqueeze", weight, last), f.constant(start, weight.dtype)
    )
    found = f.op(reducer, votes, f.ints(1), keepdims=0)
    if how == _AVERAGE:
        trees = f.constant(len(op.attr("tree_roots")), weight.dtype)
        found = f.op("Div", found, trees)
    return found


def _transformed(op: OpCall, f: Fragment, y: Value) -> Value:
    how = op.attr("post_transform", _NONE)
    if how == _NONE:
        return y
    if how == _SOFTMAX:
        return f.op("Softmax", y, axis=1)
    if how == _LOGISTIC:
        return f.op("Sigmoid", y)
    if how != _SOFTMAX_ZERO:
        raise UnsupportedError(f"post_transform {how} of TreeEnsemble")
    zero = f.constant(0, y.dtype)
    axis = f.ints(1)
    none = f.op("Equal", y, zero)  # zeros stay zeros
    e = f.op("Exp", f.op("Sub", y, f.op("ReduceMax", y, axis, keepdims=1)))
    e = f.op("Where", none, zero, e)
    return f.op(
        "Where", none, zero, f.op("Div", e, f.op("ReduceSum", e, axis, keepdims=1))
    )


register(
    OpDef(
        "TreeEnsemble",
        _type,
        domain="ai.onnx.ml",
        since=5,
        decompose=_ensemble,
    )
)
