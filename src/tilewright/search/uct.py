"""Monte Carlo tree search: the tree grows where outcomes are good or unknown."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from math import inf, log, sqrt
from random import Random
from typing import Final, Generic

from tilewright.base.dataclass import dataclass
from tilewright.search.result import (
    Result,
    S,
    SearchCheckpoint,
    SearchLimits,
    at_least_one,
    itself,
)
from tilewright.search.run import Run


@dataclass(eq=False, slots=True)
class _Node(Generic[S]):
    """A node of the tree, with statistics of the outcomes below it.

    children: None until it is expanded. best, total, finite: of the finite costs. closed: every
    outcome below is known.
    """

    state: S
    children: list[_Node[S]] | None = None
    visits: int = 0
    finite: int = 0
    total: float = 0.0
    best: float = inf
    closed: bool = False

    def add(self, cost: float) -> None:
        self.visits += 1
        if cost < inf:
            self.finite += 1
            self.total += cost
            self.best = min(self.best, cost)


def tree_search(
    root: S,
    expand: Callable[[S], Iterable[S] | None],
    rollout: Callable[[S, Random], S],
    costs: Callable[[Sequence[S]], Sequence[float]],
    *,
    iterations: int = 1000,
    rollouts: int = 4,
    exploration: float = 0.3,
    key: Callable[[S], Hashable] | None = None,
    seed: int = 0,
    limits: SearchLimits | None = None,
    lower: float = -inf,
    resume: SearchCheckpoint[S, float] | None = None,
) -> Result[S, float]:
    """The cheapest complete state below `root`, by upper confidence bounds applied to trees.

    expand: as for `branch_and_bound`. rollout: returns a complete state below another one, with
    randomness only from the given generator. An iteration descends to an unvisited state, and
    evaluates `rollouts` complete states below it at once. The descent prefers children with a high
    value plus `exploration * sqrt(log(visits of the parent) / visits)`; the value is the mean of
    the node's best and average outcome, each normalized from the worst (0) to the best (1) outcome
    of all. A state with only known outcomes is not entered again; if that is the root, the result
    is exact. (Kocsis and Szepesvari, ECML 2006; using the best outcome as well: Haj-Ali et al.,
    ProTuner, 2020.)

    key: of complete states; those with equal keys are evaluated once. Deterministic for equal
    arguments. The checkpoint resumes a search that a limit ended, with all other arguments
    unchanged: it repeats the same descents with the known costs. Raises InputError for iterations
    or rollouts below 1, if no complete state was reached, and as `Run.evaluate_all`.
    """
    at_least_one(iterations=iterations, rollouts=rollouts)
    run: Run[S, float] = Run("tree_search", costs, limits, lower)
    _, _, known = run.resume(resume)
    tree = _Tree(run, root, key or itself, known, exploration)
    done = 0
    with run:
        while done < iterations and not tree.root.closed:
            run.check()
            random = Random(f"{seed}:{done}")
            path = tree.descend(expand, random)
            leaf = path[-1]
            if leaf.closed:
                states = [] if leaf.children == [] else [leaf.state]
            else:
                states = [rollout(leaf.state, random) for _ in range(rollouts)]
            tree.learn(path, states)
            done += 1
    if run.best is None:
        return run.result()
    bound = run.incumbent if tree.root.closed else -inf
    return run.result(bound, SearchCheckpoint(done, (), run.best, known))


class _Tree(Generic[S]):
    """The visited states, and the costs they are all compared with."""

    def __init__(
        self,
        run: Run[S, float],
        root: S,
        key: Callable[[S], Hashable],
        known: dict[Hashable, float],
        exploration: float,
    ) -> None:
        self.root: Final[_Node[S]] = _Node(root)
        self._run: Final = run
        self._key: Final = key
        self._known: Final = known
        self._exploration: Final = exploration
        self._worst = -inf

    def descend(
        self, expand: Callable[[S], Iterable[S] | None], random: Random
    ) -> list[_Node[S]]:
        """The nodes from the root to one that is unvisited, complete, or a dead end; the latter two
        are closed."""
        path = [self.root]
        while True:
            node = path[-1]
            if node.children is None:
                below = expand(node.state)
                node.children = None if below is None else [_Node(s) for s in below]
                node.closed = not node.children
                if node.closed or (node.visits == 0 and node is not self.root):
                    return path
            assert node.children is not None
            path.append(self._choice(node, node.children, random))

    def learn(self, path: Sequence[_Node[S]], states: Sequence[S]) -> None:
        """Add the costs of the states to all nodes of the path, and close the fully known ones."""
        fresh = {at: s for s in states if (at := self._key(s)) not in self._known}
        if fresh:
            found = self._run.evaluate_all(list(fresh.values()))
            self._known.update(zip(fresh, found, strict=True))
        outcomes = [self._known[self._key(s)] for s in states] or [inf]
        self._worst = max([self._worst, *(c for c in outcomes if c < inf)])
        for node in path:
            for cost in outcomes:
                node.add(cost)
        for node in reversed(path[:-1]):
            node.closed = all(c.closed for c in node.children or ())

    def _choice(
        self, parent: _Node[S], children: Sequence[_Node[S]], random: Random
    ) -> _Node[S]:
        opened = [c for c in children if not c.closed]
        unvisited = [c for c in opened if c.visits == 0]
        if unvisited:
            return random.choice(unvisited)
        return max(opened, key=lambda c: self._promise(c, parent.visits))

    def _promise(self, node: _Node[S], visits: int) -> float:
        unknown = self._exploration * sqrt(log(visits) / node.visits)
        if not node.finite:
            return unknown
        best = self.root.best
        width = self._worst - best
        mean = node.total / node.finite
        if width <= 0:
            return unknown + node.finite / node.visits
        average = (self._worst - mean) / width * node.finite / node.visits
        return unknown + (average + (self._worst - node.best) / width) / 2
