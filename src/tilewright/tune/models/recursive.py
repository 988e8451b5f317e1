"""A recursive network over loop trees: the contents of a loop are summed up before the loop.

Each node is embedded by a gated recurrent unit (Cho et al., 2014) whose input is the node's row and
whose state is the sum of its children's embeddings:

    s = sum of h over the children          z = sigmoid(Wz x + Uz s + bz)
    r = sigmoid(Wr x + Ur s + br)           n = tanh(Wn x + Un (r * s) + bn)
    h = (1 - z) * n + z * s

The cost is linear in the root's embedding. Nodes of the same height, of all programs, are computed
together.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.tune.base import Vector
from tilewright.tune.models.adam import Array, Arrays, train
from tilewright.tune.models.objectives import Objective
from tilewright.tune.models.programs import Examples, Numbers, ProgramRows
from tilewright.tune.models.stored import State

GATES = ("z", "r", "n")


@dataclass(frozen=True, eq=False, slots=True)
class ProgramTrees:
    """The trees of programs. x: [nodes, columns], standardized. parent: of each node; -1: none.

    levels: node indices by height, leaves first. roots: of each program.
    """

    x: Array
    parent: Numbers
    levels: tuple[Numbers, ...]
    roots: Numbers

    @staticmethod
    def of(programs: ProgramRows, mean: Array, scale: Array) -> ProgramTrees:
        """Build trees from rows whose first column is the offset of the parent's row."""
        rows: Array = programs.rows.astype(np.float64)
        up = rows[:, 0].astype(np.int64)
        number = np.arange(len(rows))
        parent = np.where(up > 0, number + up, -1)
        held = np.flatnonzero(parent >= 0)
        height = np.zeros(len(rows), np.int64)
        lower = np.full(len(rows), -1)
        while not np.array_equal(height, lower):
            lower = height.copy()
            np.maximum.at(height, parent[held], lower[held] + 1)
        top = int(height.max(initial=-1))
        levels = tuple(np.flatnonzero(height == h) for h in range(top + 1))
        x = (rows[:, 1:] - mean) / scale
        return ProgramTrees(x, parent, levels, programs.ends - 1)


def initial(columns: int, size: int, random: np.random.Generator) -> Arrays:
    """Small random weights; gates start half open, costs at 0."""
    values: Arrays = {}
    for g in GATES:
        values[f"W{g}"] = random.standard_normal((columns, size)) / np.sqrt(columns)
        values[f"U{g}"] = random.standard_normal((size, size)) / np.sqrt(size)
        values[f"b{g}"] = np.zeros(size)
    values["v"] = random.standard_normal(size) * 0.1
    values["c"] = np.zeros(1)
    return values


@dataclass(slots=True)
class ForwardPass:
    """The activations of a forward pass, as the backward pass needs them: arrays over all nodes."""

    h: Array
    s: Array
    z: Array
    r: Array
    n: Array


def forward(
    values: Mapping[str, Array], forest: ProgramTrees
) -> tuple[Vector, ForwardPass]:
    """The costs of programs, [programs], and the activations."""
    shape = (len(forest.x), len(values["v"]))
    p = ForwardPass(*(np.zeros(shape) for _ in range(5)))
    given = {g: forest.x @ values[f"W{g}"] + values[f"b{g}"] for g in GATES}
    for level in forest.levels:
        s = p.s[level]
        z = _sigmoid(given["z"][level] + s @ values["Uz"])
        r = _sigmoid(given["r"][level] + s @ values["Ur"])
        n = np.tanh(given["n"][level] + (r * s) @ values["Un"])
        h = (1 - z) * n + z * s
        p.z[level], p.r[level], p.n[level], p.h[level] = z, r, n, h
        held = forest.parent[level] >= 0
        np.add.at(p.s, forest.parent[level][held], h[held])
    return p.h[forest.roots] @ values["v"] + values["c"][0], p


def backward(
    values: Mapping[str, Array], forest: ProgramTrees, p: ForwardPass, by_cost: Vector
) -> Arrays:
    """The gradient of the weights, for a loss with gradient `by_cost`."""
    by_h = np.zeros_like(p.h)
    by_h[forest.roots] = np.outer(by_cost, values["v"])
    by_s = np.zeros_like(p.s)
    found = {name: np.zeros_like(value) for name, value in values.items()}
    found["v"] = p.h[forest.roots].T @ by_cost
    found["c"] = np.array([by_cost.sum()])
    for level in reversed(forest.levels):
        # An embedding is a term of its parent's sum, so it also gets that sum's gradient.
        held = level[forest.parent[level] >= 0]
        by_h[held] += by_s[forest.parent[held]]
        s, z, r, n = p.s[level], p.z[level], p.r[level], p.n[level]
        dh = by_h[level]
        dz = dh * (s - n) * z * (1 - z)
        dn = dh * (1 - z) * (1 - n * n)
        through = dn @ values["Un"].T
        dr = through * s * r * (1 - r)
        gates = dz @ values["Uz"].T + dr @ values["Ur"].T
        by_s[level] = dh * z + through * r + gates
        x = forest.x[level]
        for g, d, state in (("z", dz, s), ("r", dr, s), ("n", dn, r * s)):
            found[f"W{g}"] += x.T @ d
            found[f"U{g}"] += state.T @ d
            found[f"b{g}"] += d.sum(axis=0)
    return found


class Recursive:
    """A Learner over the rows of `LoopTree`. size: of an embedding; steps: of training, each on a
    batch of `batch` programs."""

    def __init__(
        self,
        objective: Objective,
        seed: int = 0,
        size: int = 24,
        steps: int = 200,
        batch: int = 64,
    ) -> None:
        self._objective = objective
        self._seed = seed
        self._size = size
        self._steps = steps
        self._batch = batch
        self._mean = np.zeros(0)
        self._scale = np.ones(0)
        self._values: Arrays = {}

    @property
    def name(self) -> str:
        """The network with its objective."""
        return f"recursive network ({self._objective.name})"

    @property
    def unit(self) -> str:
        """The unit of its costs."""
        return self._objective.unit

    def fit(self, examples: Examples) -> None:
        """Train from random weights."""
        random = np.random.default_rng(self._seed)
        rows: Array = examples.programs.rows[:, 1:].astype(np.float64)
        self._mean = rows.mean(axis=0)
        # A constant column carries no information and is not scaled.
        scale = rows.std(axis=0)
        self._scale = np.where(scale > 0, scale, 1.0)
        self._values = initial(rows.shape[1], self._size, random)
        self._values["c"][0] = self._objective.start(examples)

        def gradient(step: int) -> Arrays:
            size = min(self._batch, len(examples))
            chosen = random.permutation(len(examples))[:size]
            batch = examples.take(chosen)
            forest = self._forest(batch.programs)
            costs, kept = forward(self._values, forest)
            _, by_cost, _ = self._objective.loss(batch, random)(costs + batch.prior)
            return backward(self._values, forest, kept, by_cost / size)

        train(self._values, gradient, self._steps, rate=5e-3)

    def costs(self, programs: ProgramRows) -> Vector:
        """Predict with the network."""
        return forward(self._values, self._forest(programs))[0]

    def state(self) -> State:
        """The weights."""
        return {"mean": self._mean, "scale": self._scale, "values": self._values}

    def restore(self, state: State) -> None:
        """Restore a result of `state`."""
        self._mean, self._scale = state["mean"], state["scale"]
        self._values = dict(state["values"])

    def _forest(self, programs: ProgramRows) -> ProgramTrees:
        return ProgramTrees.of(programs, self._mean, self._scale)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-np.clip(x, -60, 60)))
