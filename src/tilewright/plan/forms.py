"""The forms in which a convolution can be computed, by name, and who chooses among them.

Passes choose by the target's estimates, unless a `FormChoice` names the form of a group: a tuning
record, or a comparison of all forms. A named form takes the place of the estimate, never of a
pass's other conditions: a form that these refuse is told to the FormChoice and not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from tilewright.compute.contraction import is_contraction
from tilewright.compute.split_window import split_window
from tilewright.compute.winograd import WINDOW
from tilewright.plan.nodes import FusionGroup, Plan

DIRECT: Final = "direct"  # one sum over the window and the channels
WINDOWS: Final = "windows"  # a product for each position of the window, and their total


def of_tile(tile: int) -> str:
    """Winograd's method, with `tile` x `tile` results at a time."""
    return f"F({tile})"


class FormChoice(Protocol):
    """Names the forms of some groups of a plan."""

    def named(self, plan: Plan) -> Mapping[FusionGroup, str]:
        """The forms of the groups that have one named."""
        ...

    def refused(self, group: FusionGroup, form: str) -> None:
        """The group cannot have the form that was named."""
        ...


class ByEstimate:
    """No group has a form named."""

    def named(self, plan: Plan) -> Mapping[FusionGroup, str]:
        """Nothing."""
        return {}

    def refused(self, group: FusionGroup, form: str) -> None:
        """Never called."""


BY_ESTIMATE: Final = ByEstimate()


class OneForm:
    """The same form for all groups. possible: whether no group has refused it."""

    def __init__(self, form: str) -> None:
        self.form: Final = form
        self.possible = True

    def named(self, plan: Plan) -> Mapping[FusionGroup, str]:
        """The form, for each group."""
        return dict.fromkeys(plan.groups, self.form)

    def refused(self, group: FusionGroup, form: str) -> None:
        """Remember it."""
        self.possible = False


def has_window(group: FusionGroup) -> bool:
    """Whether `winograd` has the window it takes: two axes or more of WINDOW elements."""
    if not 1 <= len(group.computations) <= 2:
        return False
    combined = group.computations[0].combined_dims
    return len([d for d in combined if d.static and d.extent == WINDOW]) >= 2


def may_differ(group: FusionGroup) -> bool:
    """Whether a group may have a form other than DIRECT; its weights may still forbid that."""
    if not group.computations:  # a hand-written Kernel
        return False
    first = group.computations[0]
    if not is_contraction(first):
        return False
    return has_window(group) or split_window(first) is not None
