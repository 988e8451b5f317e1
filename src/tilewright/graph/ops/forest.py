"""Decision trees: the common form of all tree operators, and the kernel that runs it.

A node tests `x[feature] <= split` and has three successors: if it holds, if it does not, and if the
feature is NaN. Every comparison of ONNX is one or two such nodes. A leaf is its own successor, so a
walk may take extra steps and needs no branch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from functools import cached_property

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType, float64
from tilewright.compute.build import cast
from tilewright.expr.nodes import INDEX, Buffer, Expr, Max, Min, Select, const
from tilewright.expr.nodes import call as apply
from tilewright.graph.nodes import Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.open_extents import DOMAIN
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register
from tilewright.loops.nests import LoopNests, kernel
from tilewright.loops.nodes import If, Kernel, Stmt, Store, While, block
from tilewright.loops.sorting import CounterCell, allocated

# Whether a comparison holds if the feature is less than, equal to, greater than its split.
COMPARISONS = {
    "BRANCH_LEQ": (True, True, False),
    "BRANCH_LT": (True, False, False),
    "BRANCH_GTE": (False, True, True),
    "BRANCH_GT": (False, False, True),
    "BRANCH_EQ": (False, True, False),
    "BRANCH_NEQ": (True, False, True),
}
# How votes for the same target are combined, and the identity of that.
NEUTRAL = {"SUM": 0.0, "AVERAGE": 0.0, "MIN": math.inf, "MAX": -math.inf}

# Walks that run in parallel to hide the latency of loads.
LANES = 8
# Bytes of the rows that pass through a tree before the next one: half of a first-level cache.
ROWS_BYTES = 16384
# Cost of a walk in loop steps, for dividing work among threads.
STEPS_PER_WALK = 64
# Columns of the node table: the successors (comparison fails, holds, NaN) and the feature.
FAILS, HOLDS, NAN, FEATURE = range(4)


@dataclass(frozen=True)
class TreeNode:
    """A node or a leaf, by number, and the most comparisons that may follow."""

    number: int
    is_leaf: bool
    depth: int


@dataclass
class Forest:
    """A forest under construction, from the leaves up.

    dtype: of features and splits in comparisons. targets: the number of sums.
    """

    dtype: DType
    targets: int
    combine: str = "SUM"
    nodes: list[tuple[int, TreeNode, TreeNode, TreeNode]] = field(default_factory=list)
    splits: list[float] = field(default_factory=list)
    leaves: list[dict[int, float]] = field(default_factory=list)
    roots: list[TreeNode] = field(default_factory=list)

    def leaf(
        self,
        votes: Sequence[tuple[int, float]],
    ) -> TreeNode:
        """Add a leaf with its votes: (target, weight)."""
        found: dict[int, float] = {}
        ways = {"MIN": np.minimum, "MAX": np.maximum}
        combine = ways.get(self.combine, np.add)
        for target, weight in votes:
            found[target] = (
                float(combine(found[target], weight)) if target in found else weight
            )
        self.leaves.append(found)
        return TreeNode(len(self.leaves) - 1, True, 0)

    def node(
        self,
        feature: int,
        split: float,
        comparison: str,
        yes: TreeNode,
        no: TreeNode,
        missing_is_yes: bool = False,
    ) -> TreeNode:
        """Add a comparison; NaN goes the same way as a true one if `missing_is_yes`."""
        ways = [yes if taken else no for taken in COMPARISONS[comparison]]
        other = yes if comparison == "BRANCH_NEQ" else no
        nan = yes if missing_is_yes else other
        if math.isnan(split):
            ways = [other] * 3
        less, equal, greater = ways
        if less == equal:
            return self._add(feature, split, less, greater, nan)
        below = self._below(split)
        first = self._add(feature, below, less, equal, nan)
        if equal == greater:
            return first
        return self._add(feature, split, first, greater, nan)

    def _below(
        self,
        split: float,
    ) -> float:
        """The bound that makes `x <= bound` the same as `x < split`; NaN if the split is -inf."""
        if split == -math.inf:
            return math.nan
        exact = self.dtype.numpy.type
        return float(np.nextafter(exact(split), exact(-math.inf)))

    def _add(
        self,
        feature: int,
        split: float,
        holds: TreeNode,
        fails: TreeNode,
        nan: TreeNode,
    ) -> TreeNode:
        self.nodes.append((feature, fails, holds, nan))
        self.splits.append(split)
        depth = 1 + max(p.depth for p in (holds, fails, nan))
        return TreeNode(len(self.nodes) - 1, False, depth)

    def number(
        self,
        place: TreeNode,
    ) -> int:
        """The row of a node in the tables: leaves follow the nodes."""
        return place.number + len(self.nodes) * place.is_leaf

    def tables(self) -> dict[str, Array]:
        """The tables that the kernel reads."""
        count = len(self.nodes) + len(self.leaves)
        steps = np.zeros((count, 4), np.int32)
        steps[:, :FEATURE] = np.arange(count)[:, None]
        splits = np.zeros(count, self.dtype.numpy)
        for n, (feature, *ways) in enumerate(self.nodes):
            steps[n] = (*map(self.number, ways), feature)
        splits[: len(self.nodes)] = self.splits
        roots = [(self.number(p), p.depth) for p in self.roots]
        trees = np.array(roots, np.int32).reshape(-1, 2)
        return {"steps": steps, "splits": splits, "trees": trees, **self._votes()}

    def _votes(self) -> dict[str, Array]:
        """Per leaf, the weights of targets side by side, and the first target."""
        spans = [max(v) - min(v) + 1 for v in self.leaves if v]
        width = max(spans, default=1)
        weights = np.full((len(self.leaves), width), NEUTRAL[self.combine])
        first = np.zeros(len(self.leaves), np.int32)
        for n, votes in enumerate(self.leaves):
            first[n] = min(min(votes, default=0), self.targets - width)
            for target, weight in votes.items():
                weights[n, target - first[n]] = weight
        return {"weights": weights, "first": first}

    def run(
        self,
        f: Fragment,
        x: Value,
    ) -> Value:
        """The combined votes: float64, one row per row of `x`, one column per target."""
        none = self.leaf(())
        self.roots += [none] * (-len(self.roots) % _beside(x.extents[0]))
        tables = [f.constant(t) for t in self.tables().values()]
        settings = {"targets": self.targets, "combine": self.combine}
        missing = any(nan != fails for _, fails, _, nan in self.nodes)
        (found,) = f.ops(
            "Trees",
            x,
            *tables,
            domain=DOMAIN,
            version=1,
            count=1,
            missing=int(missing),
            **settings,
        )
        return found


@dataclass(frozen=True)
class _ForestWalk:
    """The parts of the kernel: `rows` x `trees` walks run in parallel."""

    call: OpCall
    inputs: Sequence[Buffer]
    output: Buffer

    @cached_property
    def rows(self) -> int:
        """The number of rows that are walked in parallel."""
        return min(LANES, self.output.shape[0])

    @cached_property
    def trees(self) -> int:
        """The number of trees that each of these rows walks in parallel."""
        return _beside(self.output.shape[0])

    @cached_property
    def chunk(self) -> int:
        """The number of rows that pass through a tree before the next one."""
        row = max(1, self.inputs[0].shape[1]) * self.inputs[0].dtype.itemsize
        fit = max(ROWS_BYTES // row, 1)
        most = -(-self.output.shape[0] // self.rows) * self.rows
        return min(most, -(-fit // self.rows) * self.rows)

    @cached_property
    def at(self) -> Buffer:
        """The current node of each walk."""
        return Buffer("at", (self.rows * self.trees,), INDEX, "stack")

    @cached_property
    def sums(self) -> Buffer:
        """The votes so far of the rows of a chunk."""
        return Buffer("sums", (self.chunk, self.output.shape[1]), float64)

    def row(
        self,
        r: Expr,
    ) -> Expr:
        """A row of x; past the end the last row is read, and the results are dropped."""
        return Min(r, const(self.output.shape[0] - 1))

    def step(
        self,
        row: Expr,
        lane: Expr,
    ) -> Stmt:
        """One comparison of one walk."""
        x, steps, splits = self.inputs[:3]
        at = self.at[lane]
        value = x[row, cast(steps[at, FEATURE], INDEX)]
        fails: Expr = const(FAILS)
        if self.call.attr("missing"):
            fails = Select(apply("isnan", value), const(NAN), const(FAILS))
        way = Select(value <= splits[at], const(HOLDS), fails)
        return Store(self.at, (lane,), cast(steps[at, way], INDEX))

    def vote(
        self,
        row: Expr,
        lane: Expr,
        k: Expr,
    ) -> Stmt:
        """Add one weight of the leaf that a walk has reached."""
        steps = self.inputs[1]
        weights = self.inputs[4]
        first = self.inputs[5]
        leaf = self.at[lane] - const(steps.shape[0] - weights.shape[0])
        target = cast(first[leaf], INDEX) + k
        so_far = self.sums[row, target]
        weight = weights[leaf, k]
        combine = {"MIN": Min, "MAX": Max}.get(self.call.attr("combine"))
        found = so_far + weight if combine is None else combine(so_far, weight)
        return Store(self.sums, (row, target), found)

    def of_trees(
        self,
        nests: LoopNests,
        start: Expr,
        tree: Expr,
        group: Expr,
    ) -> Stmt:
        """Walk a group of rows down a group of trees."""
        trees = self.inputs[3]
        weights = self.inputs[4]
        level, depth = CounterCell("level"), CounterCell("depth")
        lanes = (self.rows, self.trees)

        def lane(r: Expr, t: Expr) -> Expr:
            return r * self.trees + t

        def begin(r: Expr, t: Expr) -> Stmt:
            number = tree + t
            deepest = Max(depth.value, cast(trees[number, 1], INDEX))
            root = cast(trees[number, 0], INDEX)
            return block(Store(self.at, (lane(r, t),), root), depth.set(deepest))

        def step(r: Expr, t: Expr) -> Stmt:
            return self.step(self.row(start + group + r), lane(r, t))

        def vote(r: Expr, t: Expr, k: Expr) -> Stmt:
            return self.vote(group + r, lane(r, t), k)

        down = block(nests.over(lanes, step, unroll=True), level.add())
        walk = block(
            depth.set(0),
            level.set(0),
            nests.over(lanes, begin, unroll=True),
            While(level.value < depth.value, down),
            nests.over((*lanes, weights.shape[1]), vote),
        )
        return allocated([level, depth], walk)

    def of_chunk(
        self,
        nests: LoopNests,
        chunk: Expr,
    ) -> Stmt:
        """Walk the rows of a chunk down all trees."""
        start, room = chunk * self.chunk, self.chunk // self.rows
        count, targets = self.output.shape
        neutral = const(NEUTRAL[self.call.attr("combine")], float64)

        def trees(n: Expr) -> Stmt:
            tree = n * self.trees
            return nests.loop(
                room, lambda g: self.of_trees(nests, start, tree, g * self.rows)
            )

        def keep(r: Expr, k: Expr) -> Stmt:
            stored = Store(
                self.output,
                (start + r, k),
                self.sums[r, k],
            )
            return If(start + r < count, stored, None)

        clear = nests.copy(
            self.sums,
            lambda *_: neutral,
        )
        down = nests.loop(
            self.inputs[3].shape[0] // self.trees,
            trees,
        )
        body = block(clear, down, nests.over((self.chunk, targets), keep))
        return allocated([self.at, self.sums], body)


def _beside(rows: int) -> int:
    """The number of trees that each row walks in parallel."""
    return max(1, LANES // max(1, min(LANES, rows)))


def _type(call: OpCall) -> Sequence[Type]:
    return [(float64, (call.shape(0)[0], call.attr("targets")))]


def _walked(
    call: OpCall,
    inputs: Sequence[Buffer],
    outputs: Sequence[Buffer],
) -> list[Kernel]:
    nests, out = LoopNests(), outputs[0]
    if not out.size:
        return [kernel(call.name, inputs, outputs, block())]
    walk = _ForestWalk(call, inputs, out)
    chunks = -(-out.shape[0] // walk.chunk)
    steps = walk.chunk * inputs[3].shape[0] * STEPS_PER_WALK
    body = nests.rows(
        (chunks,),
        steps,
        lambda c: walk.of_chunk(nests, c),
    )
    return [kernel(call.name, inputs, outputs, body, nests.notes)]


register(OpDef("Trees", _type, domain=DOMAIN, compute=_walked))
