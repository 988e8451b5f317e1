"""How one graph was derived from another: the steps, as text and as a replayable file.

A stage is a part of the graph, named by the first results of its operations, with the steps taken
in it. The file contains the digests of the graph before and after, so that a different model or
changed rules are detected.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.base.text import listing
from tilewright.graph.infer import FallbackProvider
from tilewright.graph.nodes import Graph
from tilewright.graph.rules.rule import Rule
from tilewright.graph.substitute.identity import digest, names_of
from tilewright.graph.substitute.parts import extract, splice
from tilewright.graph.substitute.steps import Substitution, taken

VERSION: Final = 1
_WHERE: Final = "derivation"
# Exceptions when reading a file with other contents.
_MALFORMED: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True)
class PartDerivation:
    """Steps in one part of a graph. part: its operations by their first results."""

    part: tuple[str, ...]
    steps: tuple[Substitution, ...]


@dataclass(frozen=True)
class GraphDerivation:
    """All steps. start, end: digests of the graph before and after."""

    start: str
    end: str
    stages: tuple[PartDerivation, ...]

    @property
    def steps(self) -> tuple[Substitution, ...]:
        """The steps of all stages, in order."""
        return tuple(step for stage in self.stages for step in stage.steps)

    def to_json(self) -> str:
        """The text of a file."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> GraphDerivation:
        """Read what `to_json` wrote. Raises InputError for anything else."""
        try:
            data = json.loads(text)
            if data["version"] != VERSION:
                raise InputError(
                    f"it has version {data['version']!r}, this reads {VERSION}",
                    where=_WHERE,
                    hint="Write it again: tilewright optimize --derivation",
                )
            return GraphDerivation(
                _word(data["start"]),
                _word(data["end"]),
                tuple(_stage(s) for s in data["stages"]),
            )
        except _MALFORMED as error:
            raise InputError(
                f"it is not a derivation: {type(error).__name__}: {error}",
                where=_WHERE,
                hint="Give a file that tilewright optimize --derivation wrote",
            ) from None


def _word(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, found {value!r}")
    return value


def _stage(data: Any) -> PartDerivation:
    steps = (
        Substitution(
            _word(s["rule"]),
            _word(s["node"]),
            int(s["place"]),
            float(s["before"]),
            float(s["after"]),
        )
        for s in data["steps"]
    )
    return PartDerivation(tuple(map(_word, data["part"])), tuple(steps))


def replay(
    graph: Graph,
    derivation: GraphDerivation,
    rules: Sequence[Rule],
    fallback: FallbackProvider | None = None,
) -> Graph:
    """The graph after the steps of a derivation.

    Raises InputError for a derivation of another graph, an unknown rule, an impossible step, or a
    result that differs from the recorded one.
    """
    if digest(graph) != derivation.start:
        raise InputError(
            "it was made for another graph",
            where=_WHERE,
            hint="Give the model, the dimensions and the version that it was made with",
        )
    known = {rule.name: rule for rule in rules}
    for stage in derivation.stages:
        graph = _replayed(graph, stage, known, fallback)
    if digest(graph) != derivation.end:
        raise InputError(
            "the same steps now make another graph",
            where=_WHERE,
            hint="Its rules changed: search again",
        )
    return graph


def _replayed(
    graph: Graph,
    stage: PartDerivation,
    known: dict[str, Rule],
    fallback: FallbackProvider | None,
) -> Graph:
    named = dict(zip(names_of(graph.operations), graph.operations, strict=True))
    if lost := [name for name in stage.part if name not in named]:
        raise InputError(
            f"the graph has no operations that make {listing([repr(name) for name in lost[:3]])}",
            where=_WHERE,
            hint="Search again",
        )
    inside = [named[name] for name in stage.part]
    part = extract(graph, inside)
    for n, step in enumerate(stage.steps):
        rule = known.get(step.rule)
        if rule is None:
            raise InputError(
                f"there is no rule {step.rule!r}",
                where=f"{_WHERE}: step {n}",
                hint="Register it first, or search again",
            )
        after = taken(part, step, rule, fallback)
        if after is None:
            raise InputError(
                f"rule {step.rule!r} does not apply at {step.node!r}",
                where=f"{_WHERE}: step {n}",
                hint="The rule changed: search again",
            )
        part = after
    return splice(graph, inside, part)
