"""The trees of a space: the valid values of every decision, and the number of candidates below.

A tree is grown once per context (the earlier decisions that matter to it) and shared by all
candidates with that context. So the cost of a space is its number of contexts, not of candidates.
(ATF's chain of trees, Rasch et al., TACO 2021, has a node for each prefix of a candidate.)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import prod
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.tune.space.parameter import Parameter, SpaceLevel

Forest = tuple["SpaceNode", ...]


@dataclass(frozen=True, slots=True, eq=False)
class SpaceNode:
    """The valid values of one parameter; only those with candidates below.

    below: the independent trees under each value; empty for a leaf. ends: running count of
    candidates up to and including each value. count: of all values together.
    """

    parameter: Parameter
    values: Sequence[Any]
    below: Sequence[Forest] = ()
    ends: Sequence[int] = ()

    @property
    def count(self) -> int:
        """The number of candidates of this parameter and those below."""
        return self.ends[-1] if self.below else len(self.values)

    def forest(self, place: int) -> Forest:
        """The trees under the value at this index."""
        return self.below[place] if self.below else ()

    def start(self, place: int) -> int:
        """The number of candidates before the first with the value at this index."""
        if not self.below:
            return place
        return self.ends[place - 1] if place else 0

    def find(self, index: int) -> int:
        """The index of the value of the candidate with this number."""
        return bisect_right(self.ends, index) if self.below else index


def size(forest: Forest) -> int:
    """The number of candidates of a forest: the product over its trees."""
    return prod([node.count for node in forest])


class TreeGrower:
    """Grows the trees of levels, each once per context."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}
        self.values: dict[tuple[Any, ...], Sequence[Any]] = {}
        self.nodes: dict[tuple[Any, ...], SpaceNode] = {}

    def node(self, level: SpaceLevel) -> SpaceNode:
        """The tree of a level, given the decisions so far."""
        given = self.given
        key = (level.parameter.name, *[given[name] for name in level.context])
        found = self.nodes.get(key)
        if found is None:
            found = self.nodes[key] = self._grown(level)
        return found

    def _grown(self, level: SpaceLevel) -> SpaceNode:
        values = self._possible(level)
        if not level.below:
            return SpaceNode(level.parameter, values)
        kept: list[Any] = []
        below: list[Forest] = []
        ends: list[int] = []
        total = 0
        name = level.parameter.name
        for value in values:
            self.given[name] = value
            forest = [self.node(part) for part in level.below]
            count = size(tuple(forest))
            if count:
                total += count
                kept.append(value)
                below.append(tuple(forest))
                ends.append(total)
        self.given.pop(name, None)
        return SpaceNode(level.parameter, kept, below, ends)

    def _possible(self, level: SpaceLevel) -> Sequence[Any]:
        read = [self.given[name] for name in level.reads]
        key = (level.parameter.name, *read)
        found = self.values.get(key)
        if found is None:
            given = dict(zip(level.reads, read, strict=True))
            found = self.values[key] = level.parameter.values(given)
        return found
