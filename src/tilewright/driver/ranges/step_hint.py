"""The step of a range that a model needs, such as a U-Net that is valid only at multiples of 16, or
that pads at all others."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Final

from tilewright.base.dims_hint import DimsHint, Values
from tilewright.base.errors import TilewrightError
from tilewright.driver.ranges.sample_points import pattern
from tilewright.runtime.dispatch import Allowed

STEPS: Final = tuple(
    1 << n for n in range(7)
)  # that are tried, up to the longest period
Extents = Mapping[str, int]
VALID: Final = "the model is valid at multiples, so give a step"
ALIKE: Final = "plans are alike at multiples, so give a step"


def any_step(
    typing: Callable[[Extents], object],
    form_at: Callable[[Extents], Hashable] | None,
    allowed: Allowed,
) -> DimsHint | None:
    """The step at which a refused model is valid, or else at which its plans have one form.

    form_at: of the plan at extents; None if plans share no code.
    """
    valid = step_hint(valid_where(typing), allowed, VALID)
    if valid is not None or form_at is None:
        return valid
    # First, as no two of its sizes are equal, and forms are those by the answers about the first.
    if not valid_where(form_at)(pattern(allowed)):
        return None
    return step_hint(alike_where(form_at), allowed, ALIKE)


def step_hint(
    is_valid: Callable[[Extents], bool],
    allowed: Allowed,
    why: str = VALID,
) -> DimsHint | None:
    """What to give as `dims` if the model is valid only at multiples of some number.

    is_valid: whether it is at extents by name. why: what the hint says. None if it is valid at
    others too, or at no multiples, or if the ranges have no others.
    """
    wide = {n: e for n, e in allowed.items() if isinstance(e, range) and len(e) > 2}
    whole = {n: max(e) for n, e in allowed.items()}
    for name, extents in wide.items():
        whole[name] = max(extents) // STEPS[-1] * STEPS[-1] or STEPS[-1]
    if not wide or not is_valid(whole):
        return None
    steps = {name: _step(is_valid, whole, name) for name in wide}
    if set(steps.values()) <= {None, 1}:
        return None
    shown: dict[str, Values] = {}
    for name, step in steps.items():
        least = min(wide[name])
        most = max(wide[name])
        if step is not None and step > 1:
            shown[name] = (-(-least // step) * step, most, step)
    others = (n % (steps[name] or 1) for name, e in wide.items() for n in e)
    if not any(others):
        return None
    return DimsHint(why).of(shown)


def _step(
    is_valid: Callable[[Extents], bool],
    whole: Extents,
    name: str,
) -> int | None:
    """The least step at whose multiples, an odd one and an even one, the model is valid."""
    for step in STEPS:
        beside = [whole[name] + step, whole[name] + 2 * step]
        if all(is_valid({**whole, name: n}) for n in beside):
            return step
    return None


def valid_where(
    typing: Callable[[Extents], object],
) -> Callable[[Extents], bool]:
    """Whether the types of a graph, or something else of it, can be inferred at extents."""

    def found(
        extents: Extents,
    ) -> bool:
        try:
            typing(extents)
        except TilewrightError:
            return False
        return True

    return found


def alike_where(form_at: Callable[[Extents], Hashable]) -> Callable[[Extents], bool]:
    """Whether a plan has the form of the one that is asked about first, which is made there."""
    forms: list[Hashable] = []

    def found(extents: Extents) -> bool:
        try:
            forms.append(form_at(extents))
        except TilewrightError:
            return False
        return forms[-1] == forms[0]

    return found
