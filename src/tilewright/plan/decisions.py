"""The decisions of a plan that `tune` measures, and who makes them: one table.

A pass that has several ways to compute a site, one group or several, chooses by the target's
estimates, unless a `PlanChoice` names an alternative: a tuning record, or a comparison of all
alternatives. A named alternative takes the place of the estimate, never of a pass's other
conditions. Passes ask only where these hold; for forms, whose conditions depend on the form, one
that they refuse is told to the PlanChoice and not used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.compute.contraction import is_contraction
from tilewright.compute.split_window import split_window
from tilewright.compute.toom_cook import STRIDES
from tilewright.compute.winograd import WINDOW
from tilewright.expr.nodes import Buffer
from tilewright.plan.nodes import FusionGroup, Plan

DIRECT: Final = "direct"  # one sum over the window and the channels
WINDOWS: Final = "windows"  # a product for each position of the window, and their total
TOGETHER: Final = "together"  # one kernel
APART: Final = "apart"
STORED: Final = "stored"  # around the tensor
GUARDED: Final = "guarded"  # where it is read
IN_PLACE: Final = "in place"  # inside another tensor
COPIED: Final = "copied"  # into it


def of_tile(tile: int) -> str:
    """Winograd's method, with `tile` x `tile` results at a time."""
    return f"F({tile})"


@dataclass(frozen=True, slots=True)
class Decision:
    """A question about sites of a plan.

    name: what is decided, as in `form of conv1`; part of the keys of records. alternatives: the
    answers, by name. version: increase it when what an alternative stands for changes, so that
    older records are ignored.
    """

    name: str
    alternatives: tuple[str, ...]
    version: int = 1


FORM: Final = Decision("form", (DIRECT, WINDOWS, *map(of_tile, STRIDES)))
SIBLINGS: Final = Decision("merging", (TOGETHER, APART))
POOLING: Final = Decision("pooling", (TOGETHER, APART))
CONCAT: Final = Decision("concatenation", (IN_PLACE, COPIED))
HALO: Final = Decision("padding", (STORED, GUARDED))

# In the order in which passes ask; the first that is named decides what later ones are asked.
DECISIONS: Final = (CONCAT, SIBLINGS, FORM, POOLING, HALO)


SitePlace = tuple[tuple[FusionGroup, ...], Buffer | None]


@dataclass(frozen=True, eq=False, slots=True)
class PlanSite:
    """Where a pass decides. groups: in order. live: their results that others use. data: the plan's
    constants. tensor: the one of their tensors that is decided about, if it is one of several."""

    groups: tuple[FusionGroup, ...]
    live: Collection[Buffer]
    data: Mapping[Buffer, np.ndarray[Any, Any]]
    tensor: Buffer | None = None

    @property
    def place(self) -> SitePlace:
        """What tells the sites of a plan about which the same is decided apart."""
        return self.groups, self.tensor

    @property
    def whole(self) -> FusionGroup:
        """All groups as one."""
        if len(self.groups) == 1:
            return self.groups[0]
        return FusionGroup(
            " and ".join(g.name for g in self.groups),
            tuple(c for g in self.groups for c in g.computations),
            tuple(dict.fromkeys(s for g in self.groups for s in g.sources)),
            sum(g.flops for g in self.groups),
        )


class PlanChoice(Protocol):
    """Names alternatives for some sites of a plan. asks: False if for none."""

    @property
    def asks(self) -> bool: ...

    def named(self, decision: Decision, site: PlanSite) -> str | None:
        """The alternative for a site that has one named."""
        ...

    def refused(self, decision: Decision, site: PlanSite, alternative: str) -> None:
        """The site cannot be computed as was named."""
        ...


class ByEstimate:
    """No site has an alternative named."""

    asks: Final = False

    def named(self, decision: Decision, site: PlanSite) -> str | None:
        """Nothing."""
        return None

    def refused(self, decision: Decision, site: PlanSite, alternative: str) -> None:
        """Never called."""


BY_ESTIMATE: Final = ByEstimate()


class OneAlternative:
    """An alternative for one site of a decision. possible: whether it was not refused."""

    def __init__(self, decision: Decision, site: PlanSite, alternative: str) -> None:
        self.asks: Final = True
        self._about: Final = decision, site.place
        self._alternative: Final = alternative
        self.possible = True

    def named(self, decision: Decision, site: PlanSite) -> str | None:
        """The alternative."""
        return self._alternative if (decision, site.place) == self._about else None

    def refused(self, decision: Decision, site: PlanSite, alternative: str) -> None:
        """Remember it."""
        self.possible = False


class SiteSurvey:
    """No site has an alternative named. asked: every question, in order."""

    def __init__(self) -> None:
        self.asks: Final = True
        self.asked: Final[list[tuple[Decision, PlanSite]]] = []

    def named(self, decision: Decision, site: PlanSite) -> str | None:
        """Nothing; remembers the question."""
        self.asked.append((decision, site))
        return None

    def refused(self, decision: Decision, site: PlanSite, alternative: str) -> None:
        """Never called."""


# Called with a group that cannot have the form that is named.
Refused = Callable[[FusionGroup, str], None]


class Choose(Protocol):
    """Of groups, the estimate's alternative, and a tensor as of a PlanSite: the one to use."""

    def __call__(
        self, groups: Sequence[FusionGroup], usual: str, tensor: Buffer | None = None
    ) -> str: ...


def estimated(
    groups: Sequence[FusionGroup], usual: str, tensor: Buffer | None = None
) -> str:
    """As the target's estimate says."""
    return usual


def ignored(group: FusionGroup, form: str) -> None:
    """Nobody has named a form."""


def site_of(
    plan: Plan, groups: Sequence[FusionGroup], tensor: Buffer | None = None
) -> PlanSite:
    """The groups as a site. plan: with these groups, or with those that the pass merged to them."""
    own = {b for g in groups for b in g.writes}
    sources = {s for g in groups for s in g.sources}
    live = own.intersection(plan.results)
    for step in plan.steps:
        inside = isinstance(step, FusionGroup) and sources.issuperset(step.sources)
        if not (inside and own.issuperset(step.writes)):
            live |= own.intersection((*step.reads, *step.writes))
    return PlanSite(tuple(groups), frozenset(live), plan.data, tensor)


def chooses(choice: PlanChoice, decision: Decision, plan: Plan) -> Choose:
    """What a pass over the plan asks about sites."""
    if not choice.asks:
        return estimated

    def choose(
        groups: Sequence[FusionGroup], usual: str, tensor: Buffer | None = None
    ) -> str:
        return choice.named(decision, site_of(plan, groups, tensor)) or usual

    return choose


def reason_now(choose: Choose, groups: Sequence[FusionGroup], reason: str) -> str:
    """Why groups do not become one, empty if they do. reason: the same by the estimate."""
    usual = APART if reason else TOGETHER
    named = choose(groups, usual)
    if named == usual:
        return reason
    return "" if named == TOGETHER else "they were measured to be faster apart"


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
