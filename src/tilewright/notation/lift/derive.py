"""Derivations: programs rewritten rule by rule, recorded, printed, saved, replayed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from tilewright.base.errors import InputError
from tilewright.expr.printer import show
from tilewright.notation.lift.lambdas import applied
from tilewright.notation.lift.nodes import Fun, Lambda
from tilewright.notation.lift.rule import Given, Rule, RuleError
from tilewright.notation.lift.sites import Path, Site, parse_path, root_site, show_path, site, walk

Rules = Mapping[str, Rule]


@dataclass(frozen=True, slots=True)
class Step:
    """One application: which rule, where, with which parameters."""

    rule: str
    path: Path
    sizes: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        sizes = "".join(f", {name}={size}" for name, size in self.sizes)
        return f"{self.rule}{sizes} at {show_path(self.path)}"


@dataclass(frozen=True, eq=False, slots=True)
class Derivation:
    """A program, the rules applied to it one after the other, and what it became each time.

    rules: what a step may name. given: conditions on lengths that are taken as known.
    """

    programs: tuple[Fun, ...]
    rules: Rules
    steps: tuple[Step, ...] = ()
    given: Given = ()

    @property
    def start(self) -> Fun:
        """The program before the first step."""
        return self.programs[0]

    @property
    def program(self) -> Fun:
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
        raise RuleError(f"no place has the form {self._rule(rule).cells[1]}", where=f"rule {rule}")

    def at(self, place: Site, rule: str, sizes: Mapping[str, int]) -> Derivation:
        """After `rule` at a site of the program. Raises RuleError if it is refused."""
        after = self._rule(rule).apply(place, sizes, self.given)
        step = Step(rule, place.path, tuple(sizes.items()))
        return replace(self, programs=(*self.programs, after), steps=(*self.steps, step))

    def _rule(self, name: str) -> Rule:
        if name not in self.rules:
            raise InputError(f"there is no rule {name!r}", hint=f"Known: {', '.join(self.rules)}")
        return self.rules[name]

    def __str__(self) -> str:
        lines = [laid_out(repr(self.start))]
        for step, program in zip(self.steps, self.programs[1:], strict=True):
            lines += [f"= {step}", laid_out(repr(program))]
        return "\n".join(lines)

    def to_json(self) -> str:
        """The derivation without its programs, which `replay` makes again."""
        steps = [{"rule": s.rule, "at": show_path(s.path), **dict(s.sizes)} for s in self.steps]
        given = [[c.kind, show(c.left), show(c.right)] for c in self.given]
        whole = {"start": repr(self.start), "given": given, "steps": steps}
        return json.dumps(whole, indent=1)


def derive(program: Lambda, rules: Rules, given: Given = ()) -> Derivation:
    """A derivation without steps. Raises InputError if the program is ill-typed."""
    start = applied(program)
    root_site(start)
    return Derivation((start,), rules, (), given)


def replay(text: str, program: Lambda, rules: Rules, given: Given = ()) -> Derivation:
    """The steps of `Derivation.to_json` on the program they were recorded on, or one of its form.

    Raises InputError if the text is no derivation, RuleError if a step is refused.
    """
    now = derive(program, rules, given)
    for n, (rule, path, sizes) in enumerate(_steps(text)):
        try:
            now = now.apply(rule, path, **sizes)
        except (RuleError, InputError) as error:
            raise error.at(f"step {n + 1}") from error
    return now


def _steps(text: str) -> Iterator[tuple[str, Path, dict[str, int]]]:
    try:
        for step in json.loads(text)["steps"]:
            sizes = {k: v for k, v in step.items() if k not in ("rule", "at")}
            if not all(isinstance(v, int) for v in sizes.values()):
                raise ValueError(f"parameters {sizes}")
            yield str(step["rule"]), parse_path(step["at"]), sizes
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"this is no derivation: {error}") from None


def places(program: Fun) -> Iterator[Site]:
    """Where rules may apply: outermost first, left to right."""
    return (place for place in walk(root_site(program)) if place.is_place)


def laid_out(text: str, width: int = 96) -> str:
    """A pipeline over several lines, one pattern on each, if it is too long for one."""
    if len(text) <= width:
        return f"  {text}"
    head, *rest = _pipeline(text)
    lines = [f"  {head}"]
    for part in rest:
        if len(lines[-1]) + len(part) + 3 <= width:
            lines[-1] += f" | {part}"
        else:
            lines.append(f"    | {part}")
    return "\n".join(lines)


def _pipeline(text: str) -> Iterable[str]:
    """The text cut at every ` | ` that is inside no more than the outermost parentheses."""
    least = 1 if text.endswith(")") and text.startswith("fun(") else 0
    depth, start = 0, 0
    parts: list[str] = []
    for n, c in enumerate(text):
        depth += (c in "([") - (c in ")]")
        if depth <= least and text.startswith(" | ", n):
            parts.append(text[start:n])
            start = n + 3
    return [*parts, text[start:]]
