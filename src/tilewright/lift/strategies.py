"""Strategies: where and how often rules apply (Hagedorn et al., ELEVATE, ICFP 2020).

A strategy takes a Focus, a derivation and a place in its program, and returns the Focus after its
steps, or None if it does not apply. Sequence, choice, attempt and repetition are in `ir.strategy`;
this file has the traversals.

A path changes with the program: `Map(f)` becomes `Map(lambda x: ...)` when a rule rewrites f. A
strategy that has to be right after any steps before it names places by what is there instead:
`outermost(MapWrg, below(innermost(Reduce, ...)))`, or by the part that they are of a pattern
(`argument`, `body`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.ir.strategy import Strategy, attempt, otherwise, repeat, then
from tilewright.lift.derive import Derivation
from tilewright.lift.match import Bindings, PatternMismatch, match
from tilewright.lift.nodes import Apply, Fun, Part, Term
from tilewright.lift.patterns import kind_of
from tilewright.lift.rule import RuleError
from tilewright.lift.sites import Path, Site, root_site, same_place

__all__ = [
    "Focus", "all_places", "argument", "at", "attempt", "below", "body", "bottom_up", "innermost",
    "matches", "normalize", "once", "otherwise", "outermost", "repeat", "rule", "run", "then",
    "top_down", "try_all",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Focus:
    """A derivation, and the place in its program to look at."""

    derivation: Derivation
    place: Site

    def children(self) -> list[Focus]:
        """The places one step below."""
        return [Focus(self.derivation, child) for child in self.place.children]

    def moved(self, derivation: Derivation) -> Focus:
        """The same place after more steps."""
        return Focus(derivation, same_place(self.place, derivation.program))


def run(strategy: Strategy, derivation: Derivation) -> Derivation:
    """The derivation after the strategy, from the root of its program.

    Raises RuleError if the strategy does not apply.
    """
    after = strategy(Focus(derivation, root_site(derivation.program)))
    if after is None:
        raise RuleError("the strategy applies nowhere")
    return after.derivation  # type: ignore[no-any-return]


def rule(name: str, **sizes: int) -> Strategy:
    """One rule, here."""

    def apply(focus: Focus) -> Focus | None:
        if not focus.place.is_place:
            return None
        after = focus.derivation.attempt(focus.place, name, sizes)
        return None if after is None else focus.moved(after)

    return apply


def at(path: Path, strategy: Strategy) -> Strategy:
    """There: `path` starts at the focus. Does not apply where there is no such place."""

    def apply(focus: Focus) -> Focus | None:
        place: Site | None = focus.place
        for n in path:
            if place is not None:
                place = next((c for c in place.children if c.path[-1] == n), None)
        after = None if place is None else strategy(Focus(focus.derivation, place))
        if after is None:
            return None
        return focus.moved(after.derivation)

    return apply


def argument(strategy: Strategy) -> Strategy:
    """At what the function here is applied to, its first argument."""
    return at((1,), strategy)


def body(strategy: Strategy) -> Strategy:
    """At what the pattern here does with each element: its function, inside of a lambda."""

    def apply(focus: Focus) -> Focus | None:
        place = focus.place
        pattern = place.children[0] if isinstance(place.node, Apply) else place
        if not isinstance(getattr(pattern.node, "f", None), Fun):
            return None
        inside = [function.inside for function in pattern.children[:1]]
        return _first_of(inside, strategy, focus)

    return apply


def matches(form: Any) -> Strategy:
    """No step; applies where the place has a form.

    form: a pattern of any function and sizes (`Reduce`), one pattern (`Join`, `Split(2)`), or a
    term with holes, as the left side of a rule. Raises InputError for anything else.
    """
    kind = kind_of(form)
    if kind is not None:
        return _where(lambda term: isinstance(getattr(term, "fun", None), kind))
    if isinstance(form, Fun):
        return _where(lambda term: getattr(term, "fun", None) is form)
    if isinstance(form, Term):
        return _where(partial(_matched, form))
    raise InputError(
        f"{form!r} is not the form of a place",
        where="strategy",
        hint="give a pattern such as Reduce, or a term with holes",
    )


def _matched(pattern: Term, term: Part) -> bool:
    try:
        match(pattern, term, Bindings())
    except PatternMismatch:
        return False
    return True


def _where(holds: Callable[[Part], bool]) -> Strategy:
    """No step; applies at a term, or a function as a term over its arguments, that holds."""

    def apply(focus: Focus) -> Focus | None:
        place = focus.place
        return focus if place.is_place and holds(place.opened.node) else None

    return apply


def outermost(form: Any, strategy: Strategy) -> Strategy:
    """At the first place of a form (see `matches`) where it applies, in preorder."""
    return top_down(then(matches(form), strategy))


def innermost(form: Any, strategy: Strategy) -> Strategy:
    """At the first place of a form (see `matches`) where it applies, in postorder."""
    return bottom_up(then(matches(form), strategy))


def below(strategy: Strategy) -> Strategy:
    """At the first part of the place where it applies, and not at the place itself."""
    return partial(_first, strategy)


def top_down(strategy: Strategy) -> Strategy:
    """At the first place where it applies, in preorder."""

    def apply(focus: Focus) -> Focus | None:
        after = strategy(focus)
        return _first(apply, focus) if after is None else after

    return apply


def bottom_up(strategy: Strategy) -> Strategy:
    """At the first place where it applies, in postorder."""

    def apply(focus: Focus) -> Focus | None:
        after = _first(apply, focus)
        return strategy(focus) if after is None else after

    return apply


def _first(strategy: Strategy, focus: Focus) -> Focus | None:
    """At the first child where it applies."""
    return _first_of(focus.place.children, strategy, focus)


def _first_of(places: Sequence[Site], strategy: Strategy, focus: Focus) -> Focus | None:
    """At the first of these places below where it applies."""
    for place in places:
        after = strategy(Focus(focus.derivation, place))
        if after is not None:
            return focus.moved(after.derivation)
    return None


once = top_down


def all_places(strategy: Strategy) -> Strategy:
    """Once at every place below and here, inner ones first; None if it applies at none."""

    def apply(focus: Focus) -> Focus | None:
        now = focus
        count = len(focus.children())
        for n in range(count):
            child = now.children()[n]
            after = apply(child)
            now = now if after is None else now.moved(after.derivation)
        after = strategy(now)
        now = now if after is None else after
        return None if now is focus else now

    return apply


def try_all(strategy: Strategy) -> Strategy:
    """Once at every place where it applies; always applies."""
    return attempt(all_places(strategy))


def normalize(strategy: Strategy, limit: int = 200) -> Strategy:
    """At the outermost place, again and again until it applies nowhere; always applies.

    Raises RewriteLoopError after `limit` times.
    """
    return repeat(top_down(strategy), limit)
