"""Searching for the choice of sizes with the fastest program, according to the simulator.

It starts from the choices with the least sum of costs over operators (`sizes`). One choice of the
best known candidate is then changed, or the choice of all operators on vectors of one length at
once (which then can share chains), and the result is simulated; until the best few candidates have
no better neighbors. Choices that make the same tasks are one candidate. A candidate whose operators
alone keep one unit busy longer than the best program takes is not simulated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import NoReturn

from tilewright.search import best_first
from tilewright.targets.npu.candidate import NpuCandidate
from tilewright.targets.npu.errors import NPUError
from tilewright.targets.npu.expansion import OperatorForm
from tilewright.targets.npu.machine import BINARY, UNARY, NpuMachine
from tilewright.targets.npu.operator import Key
from tilewright.targets.npu.sizes import Choices, SizeChoices, SizedRule

# Candidates that are changed one after the other without finding a better one.
PATIENCE = 2


def search(forms: Sequence[OperatorForm], machine: NpuMachine) -> NpuCandidate:
    """The best candidate that is found.

    forms: the program in operators of any size, in several ways. Raises NPUError for operators that
    the machine has no way for, and (CAPACITY) if nothing fits on it.
    """
    starts = [
        NpuCandidate(form, choices)
        for form in forms
        if (choices := completed(form.operators, SizeChoices(machine))) is not None
    ]
    if not starts:
        _refuse(forms, machine)
    found = best_first(
        starts,
        lambda candidate: neighbors(candidate, machine),
        lambda candidate: candidate.cycles(machine),
        key=lambda candidate: candidate.key,
        bound=lambda candidate: busy(candidate, machine),
        patience=PATIENCE,
    )
    if found.cost == inf:
        _refuse(forms, machine)
    return found.state


def _refuse(forms: Sequence[OperatorForm], machine: NpuMachine) -> NoReturn:
    """Why there is no candidate."""
    for form in forms:
        sizes = SizeChoices(machine)
        choices = completed(form.operators, sizes)
        if choices is not None:
            NpuCandidate(form, choices).assembled(machine)
        for name, size in form.operators:
            if sizes.best(name, size).cost == inf:
                raise NPUError(
                    f"{machine.name} has no operators for {name}{size}",
                    where="npu.map_onto",
                    hint="describe one, or write the program with others",
                )
    raise AssertionError("a candidate fits")


def neighbors(candidate: NpuCandidate, machine: NpuMachine) -> Iterator[NpuCandidate]:
    """Candidates that differ in one choice, or in those for all vectors of one length."""
    keys = candidate.form.operators
    changes: list[Choices] = [
        {key: option}
        for key, chosen in candidate.choices.items()
        for option in options(key, machine)
        if option != chosen
    ]
    for change in (*changes, *_together(candidate.choices, machine)):
        choices = completed(keys, SizeChoices(machine, {**candidate.choices, **change}))
        if choices is not None:
            yield NpuCandidate(candidate.form, choices)


def _together(keys: Iterable[Key], machine: NpuMachine) -> Iterator[Choices]:
    """The same part of all vectors of one length, or the same larger length for them."""
    rows: dict[int, list[Key]] = {}
    for key in keys:
        if key[0] in (*BINARY, *UNARY, "MVMul"):
            rows.setdefault(key[1][0], []).append(key)
    for length, group in rows.items():
        for p in sorted({p for key in group for p, *_ in machine.sizes(key[0])}):
            change = {key: _first(key, length, p, machine) for key in group}
            yield {key: option[0] for key, option in change.items() if option}


def _first(
    key: Key, length: int, p: int, machine: NpuMachine
) -> Sequence[SizedRule | None]:
    """The way, if there is one, to make the results of an operator p long, or p and others."""
    if p == length:
        if machine.find(*key):
            return [None]
        return []
    return [c for c in options(key, machine) if c is not None and c.first == p][:1]


def options(key: Key, machine: NpuMachine) -> list[SizedRule | None]:
    """All that can be done with an operator."""
    own: list[SizedRule | None] = [] if machine.find(*key) is None else [None]
    return [*own, *SizeChoices(machine).choices(*key)]


def completed(keys: Iterable[Key], sizes: SizeChoices) -> Choices | None:
    """The choices for these operators and the operators that remain after them; None if there are
    none.

    Operators of one size share one choice; those that result from padding are used unchanged.
    """
    made: dict[Key, SizedRule | None] = {}
    pending = list(keys)
    whole = set[Key]()
    while pending:
        key = pending.pop()
        if key in made:
            continue
        best = sizes.best(*key)
        if best.cost == inf:
            return None
        made[key] = choice = best.choice
        if choice is not None:
            leaves = [leaf for leaf, _ in choice.leaves]
            pending += leaves
            whole.update(leaves if choice.pads else ())
    if all(made[key] is None for key in whole):
        return made
    return None


def busy(candidate: NpuCandidate, machine: NpuMachine) -> int:
    """Cycles that the operators keep the unit that has most to do, or that issuing them takes."""
    takes = dict.fromkeys(("issue", "vector", "matrix"), 0)
    pending = Counter(candidate.form.operators)
    while pending:
        key, count = pending.popitem()
        choice = candidate.choices[key]
        if choice is not None:
            for leaf, times in choice.leaves:
                pending[leaf] += count * times
            continue
        op = machine.find(*key)
        assert op is not None
        takes["issue"] += count * op.issue
        takes[op.unit] += count * op.interval
    return max(takes.values())
