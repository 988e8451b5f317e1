"""The decisions of a plan that tuning records make.

As `chosen_schedules`, for `plan.decisions`: a record applies only to a site with the same key. If
its alternative is no longer possible, a warning says so, and the target's estimate decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tilewright.base import events
from tilewright.base.errors import ScheduleError
from tilewright.driver.chosen_schedules import refuse
from tilewright.driver.options import Options
from tilewright.plan.decisions import DECISIONS, Decision, PlanSite, SitePlace
from tilewright.plan.normalize import kernel_signature
from tilewright.runtime.threads import thread_count
from tilewright.targets.base import Target

if TYPE_CHECKING:
    from tilewright.tune.records.key import Key
    from tilewright.tune.records.published import PublishedChoice

_Place = tuple[Decision, SitePlace]


class ChosenDecisions:
    """The records of decisions, as the `PlanChoice` of one plan."""

    def __init__(self, target: Target, options: Options) -> None:
        self._target: Final = target
        self._options: Final = options
        self._records: Final = dict(options.published.choices)
        self._keys: dict[_Place, str] = {}
        self._named: dict[_Place, PublishedChoice] = {}
        # Most records are of schedules: no key is made for a decision that no record can be of.
        self._recorded: Final = {d for d in DECISIONS if self._records and self._any(d)}

    @property
    def asks(self) -> bool:
        """Whether there are records of decisions."""
        return bool(self._recorded)

    def named(self, decision: Decision, site: PlanSite) -> str | None:
        """The alternative of the site's record."""
        if decision not in self._recorded:
            return None
        place = decision, site.place
        if place not in self._keys:  # passes ask again
            key = key_of_decision(decision, site, self._target, self._options)
            self._keys[place] = key.digest
            if key.digest in self._records:
                self._use(decision, site, self._records[key.digest])
        record = self._records.get(self._keys[place])
        if record is None:
            return None
        alternative = _alternative(record)
        if alternative in decision.alternatives:
            return alternative
        self.refused(decision, site, alternative)
        return None

    def refused(self, decision: Decision, site: PlanSite, alternative: str) -> None:
        """Forget the record, with one warning for all equal sites."""
        record = self._named.pop((decision, site.place))
        if self._records.pop(self._keys[decision, site.place], None) is None:
            return
        error = ScheduleError(f"it cannot be computed as {alternative}")
        refuse(site.whole.name, record, error)

    @property
    def used(self) -> list[dict[str, Any]]:
        """The sites that records decide: names, decisions, alternatives, gains and times."""
        return [
            {
                "kernel": " and ".join(g.name for g in groups),
                "decision": decision.name,
                "alternative": _alternative(r),
                "gain": r.gain,
                "time": r.time,
            }
            for (decision, (groups, _)), r in self._named.items()
        ]

    def _any(self, decision: Decision) -> bool:
        from tilewright.tune.base import Candidate

        known = {Candidate(name, {}).key for name in decision.alternatives}
        return any(r.candidate in known for r in self._records.values())

    def _use(self, decision: Decision, site: PlanSite, record: PublishedChoice) -> None:
        self._named[decision, site.place] = record
        events.emit(
            "decision-used",
            sources=site.whole.sources,
            decision=decision.name,
            alternative=_alternative(record),
            gain=record.gain,
            time=record.time,
        )


def _alternative(record: PublishedChoice) -> str:
    from tilewright.tune.base import Candidate

    return Candidate.parse(record.candidate).sketch


def key_of_decision(
    decision: Decision, site: PlanSite, target: Target, options: Options
) -> Key:
    """The key of the records of a decision about a site, before it is decided."""
    from tilewright.tune.records.key import key_of, of_decision

    signature = kernel_signature(site.whole, site.live)
    fixed = [b in site.data for b in signature.values]
    key = key_of(signature, fixed, target, thread_count(options.threads), options.math)
    groups = [len(g.computations) for g in site.groups]
    written = site.whole.writes
    tensor = None if site.tensor is None else written.index(site.tensor)
    return of_decision(key, decision, groups, tensor)
