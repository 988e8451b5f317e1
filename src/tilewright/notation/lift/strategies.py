"""Where and how often: strategies over Lift programs (Hagedorn et al., ELEVATE, ICFP 2020).

A strategy takes a Focus, a derivation and a place in its program, and gives the Focus after its
steps, or None if it does not apply. Sequence, choice, attempt and repetition are those of
`ir.strategy`; here are the ones that walk through a program.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.strategy import Strategy, attempt, otherwise, repeat, then
from tilewright.notation.lift.derive import Derivation
from tilewright.notation.lift.rule import RuleError
from tilewright.notation.lift.sites import Path, Site, site

__all__ = [
    "Focus", "all_places", "at", "attempt", "bottom_up", "normalize", "once", "otherwise",
    "repeat", "rule", "run", "then", "top_down", "try_all",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Focus:
    """A derivation, and where in its program to look."""

    derivation: Derivation
    path: Path = ()

    @property
    def site(self) -> Site:
        """The place."""
        return site(self.derivation.program, self.path)

    def children(self) -> list[Focus]:
        """The places one step below."""
        return [Focus(self.derivation, child.path) for child in self.site.children]


def run(strategy: Strategy, derivation: Derivation) -> Derivation:
    """The derivation after the strategy, from the root of its program.

    Raises RuleError if the strategy does not apply.
    """
    after = strategy(Focus(derivation))
    if after is None:
        raise RuleError("the strategy applies nowhere")
    return after.derivation  # type: ignore[no-any-return]


def rule(name: str, **sizes: int) -> Strategy:
    """One rule, here."""

    def apply(focus: Focus) -> Focus | None:
        place = focus.site
        if not place.is_place:
            return None
        try:
            return Focus(focus.derivation.at(place, name, sizes), focus.path)
        except RuleError:
            return None

    return apply


def at(path: Path, strategy: Strategy) -> Strategy:
    """There: `path` starts at the focus."""

    def apply(focus: Focus) -> Focus | None:
        after = strategy(Focus(focus.derivation, focus.path + path))
        return None if after is None else Focus(after.derivation, focus.path)

    return apply


def top_down(strategy: Strategy) -> Strategy:
    """At the first place where it applies, a place before what is in it."""

    def apply(focus: Focus) -> Focus | None:
        after = strategy(focus)
        return _first(apply, focus) if after is None else after

    return apply


def bottom_up(strategy: Strategy) -> Strategy:
    """At the first place where it applies, what is in a place before the place."""

    def apply(focus: Focus) -> Focus | None:
        after = _first(apply, focus)
        return strategy(focus) if after is None else after

    return apply


def _first(strategy: Strategy, focus: Focus) -> Focus | None:
    """At the first child where it applies."""
    for child in focus.children():
        after = strategy(child)
        if after is not None:
            return Focus(after.derivation, focus.path)
    return None


once = top_down


def all_places(strategy: Strategy) -> Strategy:
    """Once at every place below and here, inner ones first; None if it applies at none."""

    def apply(focus: Focus) -> Focus | None:
        now, count = focus, len(focus.children())
        for n in range(count):
            child = now.children()[n]
            after = apply(child)
            now = now if after is None else Focus(after.derivation, focus.path)
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
