"""Strategies: where and how often rules apply (Hagedorn et al., ELEVATE, ICFP 2020).

A strategy takes a Focus, a derivation and a place in its program, and returns the Focus after its
steps, or None if it does not apply. Sequence, choice, attempt and repetition are in `ir.strategy`;
this file has the traversals.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.strategy import Strategy, attempt, otherwise, repeat, then
from tilewright.lift.derive import Derivation
from tilewright.lift.rule import RuleError
from tilewright.lift.sites import Path, Site, root_site, site

__all__ = [
    "Focus", "all_places", "at", "attempt", "bottom_up", "normalize", "once", "otherwise",
    "repeat", "rule", "run", "then", "top_down", "try_all",
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
        return Focus(derivation, site(derivation.program, self.place.path))


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
    for child in focus.children():
        after = strategy(child)
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
