"""Derivations: programs rewritten rule by rule, recorded, printed, saved, replayed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import field, replace

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.base.numbers import whole
from tilewright.base.text import indent
from tilewright.lift.lambdas import applied
from tilewright.lift.nodes import Fun, Lambda, expect_program
from tilewright.lift.patterns import parse
from tilewright.lift.printer import show_lines
from tilewright.lift.rule import Given, Rule, RuleError
from tilewright.lift.sites import (
    Path,
    Site,
    parse_path,
    root_site,
    show_path,
    site,
    walk,
)

Rules = Mapping[str, Rule]
WIDTH = 96


@dataclass(frozen=True, slots=True)
class Application:
    """One application: which rule, where, with which parameters."""

    rule: str
    path: Path
    sizes: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        sizes = "".join(f", {name}={size}" for name, size in self.sizes)
        return f"{self.rule}{sizes} at {show_path(self.path)}"


@dataclass(frozen=True, eq=False, slots=True)
class Derivation:
    """A program, the rules applied to it in order, and the program after each step.

    rules: those that a step may name. given: conditions on lengths that are assumed.
    """

    programs: tuple[Lambda, ...]
    rules: Rules = field(repr=False)
    steps: tuple[Application, ...] = ()
    given: Given = ()

    @property
    def start(self) -> Lambda:
        """The program before the first step."""
        return self.programs[0]

    @property
    def program(self) -> Lambda:
        """The program after the last step."""
        return self.programs[-1]

    def apply(self, rule: str, at: Path | None = None, **sizes: int) -> Derivation:
        """After `rule` at the place `at`, or at the first place where it applies.

        Raises RuleError naming the side condition that fails (at the first place of the rule's
        shape, where no place is given), InputError for an unknown rule or place.
        """
        if at is not None:
            return self.at(site(self.program, at), rule, sizes)
        refusal: RuleError | None = None
        for place in places(self.program):
            try:
                return self.at(place, rule, sizes)
            except RuleError as error:
                if refusal is None or (error.matched and not refusal.matched):
                    refusal = error
        if refusal is not None and refusal.matched:
            raise refusal
        raise RuleError(
            f"no place has the form {self._rule(rule).cells[1]}", where=f"rule {rule}"
        )

    def at(
        self,
        place: Site,
        rule: str,
        sizes: Mapping[str, int],
    ) -> Derivation:
        """After `rule` at a site of the program. Raises RuleError if it is refused."""
        return self._after(
            self._rule(rule).apply(place, sizes, self.given), place, rule, sizes
        )

    def attempt(
        self, place: Site, rule: str, sizes: Mapping[str, int]
    ) -> Derivation | None:
        """As `at`, None where the rule does not apply."""
        after = self._rule(rule).attempt(place, sizes, self.given)
        if after is None:
            return None
        return self._after(after, place, rule, sizes)

    def _after(
        self, program: Fun, place: Site, rule: str, sizes: Mapping[str, int]
    ) -> Derivation:
        assert isinstance(program, Lambda)
        step = Application(rule, place.path, tuple(sizes.items()))
        return replace(
            self, programs=(*self.programs, program), steps=(*self.steps, step)
        )

    def _rule(self, name: str) -> Rule:
        if name not in self.rules:
            raise InputError(
                f"there is no rule {name!r}",
                hint=f"known: {', '.join(self.rules)}",
                where="derivation",
            )
        return self.rules[name]

    def __str__(self) -> str:
        lines = [_shown(self.start)]
        for step, program in zip(self.steps, self.programs[1:], strict=True):
            lines += [f"= {step}", _shown(program)]
        return "\n".join(lines)

    def to_json(self) -> str:
        """The derivation without its programs, which `replay` makes again."""
        steps = [
            {"rule": s.rule, "at": show_path(s.path), **dict(s.sizes)}
            for s in self.steps
        ]
        return json.dumps({"start": repr(self.start), "steps": steps}, indent=1)


def _shown(program: Lambda) -> str:
    return indent(show_lines(program, WIDTH))


def derive(program: Lambda, rules: Rules, given: Given = ()) -> Derivation:
    """A derivation without steps. Raises InputError if the program is none, or ill-typed."""
    expect_program(program, "derive")
    start = Lambda(program.params, applied(program.body))
    root_site(start)
    return Derivation((start,), rules, (), given)


def replay(
    text: str, rules: Rules, program: Lambda | None = None, given: Given = ()
) -> Derivation:
    """The steps of `Derivation.to_json`, on the program they were recorded on or on another.

    Raises InputError if the text is not a derivation, RuleError if a step is refused.
    """
    start, steps = _read(text)
    if program is None:
        program = expect_program(parse(start), "replay")
    now = derive(program, rules, given)
    for n, (rule, path, sizes) in enumerate(steps):
        try:
            now = now.apply(rule, path, **sizes)
        except (RuleError, InputError) as error:
            raise error.at(f"step {n + 1}") from error
    return now


def _read(text: str) -> tuple[str, list[tuple[str, Path, dict[str, int]]]]:
    """The first program as text, and the steps."""
    steps = []
    try:
        saved = json.loads(text)
        for step in saved["steps"]:
            sizes = {k: v for k, v in step.items() if k not in ("rule", "at")}
            if any(whole(v) is None for v in sizes.values()):
                raise ValueError(f"parameters {sizes}")
            steps.append((str(step["rule"]), parse_path(step["at"]), sizes))
        return str(saved["start"]), steps
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"this is not a derivation: {error}",
            where="replay",
            hint="give the text of Derivation.to_json()",
        ) from None


def places(program: Fun) -> Iterator[Site]:
    """Where rules may apply: outermost first, left to right."""
    return (place for place in walk(root_site(program)) if place.is_place)
