"""A space of interdependent parameters: counted, indexed and sampled exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from random import Random
from typing import Any

from tilewright.base.errors import InputError
from tilewright.base.numbers import whole
from tilewright.base.text import listing
from tilewright.tune.base import Candidate
from tilewright.tune.space.closeness import nearest, place_of
from tilewright.tune.space.parameter import Parameter, SpaceLevel, levels
from tilewright.tune.space.tree import Forest, SpaceNode, TreeGrower, size

Choose = Callable[[SpaceNode], int]  # the index of a value of a node


class ParameterSpace:
    """All values of the parameters that satisfy all constraints.

        Space(Parameter("WPT", Divisors(1024)), Parameter("LS", Divisors(lambda WPT: 1024 // WPT)))

    A candidate has a value for every parameter, and an index among all candidates. The order of the
    parameters does not matter: each is decided after those that it reads. Raises InputError for
    unknown names, for cycles, and if no candidate satisfies the constraints.
    """

    def __init__(self, *parameters: Parameter) -> None:
        self.parameters = parameters
        self.levels: tuple[SpaceLevel, ...] = levels(parameters)

    @cached_property
    def _forest(self) -> Forest:
        growing = TreeGrower()
        forest = tuple(growing.node(level) for level in self.levels)
        if not size(forest):
            empty = next(n.parameter.name for n in forest if not n.count)
            raise InputError(
                "no candidate satisfies the constraints",
                where=f"the space of {listing([p.name for p in self.parameters])}",
                hint=f"check those of {empty} and of the parameters that depend on it",
            )
        self._contexts = len(growing.nodes)
        return forest

    @property
    def size(self) -> int:
        """The number of candidates."""
        return size(self._forest)

    @property
    def unconstrained_size(self) -> int | None:
        """The number of candidates without constraints; None if a range depends on parameters."""
        total = 1
        for p in self.parameters:
            if p.range.names:
                return None
            total *= len(p.range.values({}))
        return total

    @property
    def contexts(self) -> int:
        """The number of trees grown: the cost of the space in time and memory."""
        assert self._forest is not None
        return self._contexts

    def __len__(self) -> int:
        return self.size

    # ------------------------------------------------------------------------------ indices

    def __getitem__(self, index: int) -> Candidate:
        """The candidate at an index. Raises IndexError past the last."""
        number = whole(index)
        if number is None:
            raise TypeError(f"{index!r} is not an index")
        if number < 0:
            number += self.size
        if not 0 <= number < self.size:
            raise IndexError(f"{index} of {self.size} candidates")
        values: dict[str, Any] = {}
        _at(self._forest, number, values)
        return self._candidate(values)

    def index(self, candidate: Candidate) -> int:
        """The index of a candidate. Raises InputError if it is not in the space."""
        self._check_names(candidate)
        return _index(self._forest, candidate.values)

    def __contains__(self, candidate: object) -> bool:
        if not isinstance(candidate, Candidate):
            return False
        try:
            self.index(candidate)
        except InputError:
            return False
        return True

    def __iter__(self) -> Iterator[Candidate]:
        return (self[n] for n in range(self.size))

    # ------------------------------------------------------------------------------ choices

    def default(self) -> Candidate:
        """The parameters' defaults, as far as they are valid together."""
        wanted = {p.name: p.default for p in self.parameters if p.default is not None}
        return self._walk(_towards(wanted))

    def sample(self, random: Random) -> Candidate:
        """A candidate drawn uniformly."""
        return self[random.randrange(self.size)]

    def nearest(self, candidate: Candidate) -> Candidate:
        """The candidate of this space closest to one of another space, parameter by parameter.

        Each takes its value there, or the nearest that earlier choices permit; parameters missing
        there take their defaults.
        """
        defaults = {p.name: p.default for p in self.parameters if p.default is not None}
        return self._walk(_towards({**defaults, **candidate.values}))

    def neighbor(self, candidate: Candidate, random: Random) -> Candidate:
        """The candidate with one parameter, drawn uniformly, changed to any other of its values.

        Parameters that depend on it keep their values, or take the nearest. Returns the candidate
        itself if nothing can be changed.
        """
        free = [node for node, _ in self.path(candidate) if len(node.values) > 1]
        if not free:
            return candidate
        node = random.choice(free)
        old = place_of(node.values, candidate.values[node.parameter.name])
        place = random.randrange(len(node.values) - 1)
        place += old is not None and place >= old
        return self._changed(candidate, node, place)

    def neighbors(self, candidate: Candidate) -> Iterator[Candidate]:
        """Yield every candidate that differs in one parameter."""
        for node, old in self.path(candidate):
            for place in range(len(node.values)):
                if place != old:
                    yield self._changed(candidate, node, place)

    def cross(self, a: Candidate, b: Candidate, random: Random) -> Candidate:
        """Each parameter from a random parent, or from the other if that value is not possible."""

        def choose(node: SpaceNode) -> int:
            first, second = (a, b) if random.random() < 0.5 else (b, a)
            name = node.parameter.name
            for parent in (first, second):
                place = place_of(node.values, parent.values.get(name))
                if place is not None:
                    return place
            return nearest(node.values, first.values.get(name)) or 0

        return self._walk(choose)

    # ------------------------------------------------------------------------------ walks

    def _changed(self, candidate: Candidate, node: SpaceNode, place: int) -> Candidate:
        keep = _towards(candidate.values)
        return self._walk(lambda n: place if n is node else keep(n))

    def path(self, candidate: Candidate) -> list[tuple[SpaceNode, int]]:
        """The nodes of a candidate with the indices of its values."""
        self._check_names(candidate)
        path: list[tuple[SpaceNode, int]] = []
        keep = _towards(candidate.values)

        def choose(node: SpaceNode) -> int:
            path.append((node, keep(node)))
            return path[-1][1]

        self._walk(choose)
        return path

    def _walk(self, choose: Choose) -> Candidate:
        values: dict[str, Any] = {}
        pending = list(reversed(self._forest))
        while pending:
            node = pending.pop()
            place = choose(node)
            values[node.parameter.name] = node.values[place]
            pending += reversed(node.forest(place))
        return self._candidate(values)

    def _candidate(self, values: Mapping[str, Any]) -> Candidate:
        return Candidate("", {p.name: values[p.name] for p in self.parameters})

    def _check_names(self, candidate: Candidate) -> None:
        names = {p.name for p in self.parameters}
        wrong = sorted(names ^ candidate.values.keys())
        if candidate.sketch or wrong:
            raise InputError(
                "the candidate has other parameters: "
                f"{listing(sorted(candidate.values)) or 'none'}",
                where=f"the space of {listing(sorted(names))}",
                hint="`nearest` finds the closest one",
            )

    def __repr__(self) -> str:
        return f"Space({', '.join(p.name for p in self.parameters)})"


def _towards(wanted: Mapping[str, Any]) -> Choose:
    """Choose each parameter's wanted value or the nearest; the first if none is near."""

    def choose(node: SpaceNode) -> int:
        name = node.parameter.name
        if name not in wanted:
            return 0
        return nearest(node.values, wanted[name]) or 0

    return choose


def _at(forest: Forest, index: int, values: dict[str, Any]) -> None:
    """Fill in the values of one candidate; the last tree of a forest varies fastest."""
    for node in reversed(forest):
        index, within = divmod(index, node.count)
        place = node.find(within)
        values[node.parameter.name] = node.values[place]
        if node.below:
            _at(node.below[place], within - node.start(place), values)


def _index(forest: Forest, values: Mapping[str, Any]) -> int:
    index = 0
    for node in forest:
        name = node.parameter.name
        place = place_of(node.values, values[name])
        if place is None:
            shown = listing([repr(v) for v in node.values[:12]])
            raise InputError(
                f"{values[name]!r} is not possible here",
                where=f"parameter {name}",
                hint=f"take one of {shown}",
            )
        within = node.start(place) + _index(node.forest(place), values)
        index = index * node.count + within
    return index
