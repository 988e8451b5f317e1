"""The forms of convolutions that tuning records ask for.

As `chosen_schedules`, for a decision of the plan: a record applies only to a convolution with the
same key. If its form is no longer possible, a warning says so, and the target's estimate decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tilewright.base import events
from tilewright.base.errors import ScheduleError
from tilewright.driver.chosen_schedules import refuse
from tilewright.driver.options import Options
from tilewright.plan.forms import may_differ
from tilewright.plan.nodes import HOST, FusionGroup, Plan
from tilewright.plan.normalize import kernel_signature
from tilewright.runtime.threads import thread_count
from tilewright.targets.base import Target

if TYPE_CHECKING:
    from tilewright.tune.records.key import Key
    from tilewright.tune.records.published import PublishedChoice


class ChosenForms:
    """The records of forms, as the `FormChoice` of one plan."""

    def __init__(self, target: Target, options: Options) -> None:
        self._target: Final = target
        self._options: Final = options
        self._records: Final = dict(options.published.choices)
        self._keys: dict[FusionGroup, str] = {}
        self._named: dict[FusionGroup, PublishedChoice] = {}

    def named(self, plan: Plan) -> Mapping[FusionGroup, str]:
        """The forms of the groups that have a record."""
        if not self._records:
            return {}
        found = {}
        for group in filter(may_differ, plan.groups_on(HOST)):
            record = self._record(plan, group)
            if record is not None:
                found[group] = _form(record)
        return found

    def refused(self, group: FusionGroup, form: str) -> None:
        """Forget the record, with one warning for all equal convolutions."""
        record = self._named.pop(group)
        if self._records.pop(self._keys[group], None) is None:
            return
        error = ScheduleError(f"the convolution cannot be computed as {form}")
        refuse(group.name, record, error)

    @property
    def used(self) -> list[dict[str, Any]]:
        """The convolutions whose forms come from records: names, forms, gains and times."""
        return [
            {"kernel": g.name, "form": _form(r), "gain": r.gain, "time": r.time}
            for g, r in self._named.items()
        ]

    def _record(self, plan: Plan, group: FusionGroup) -> PublishedChoice | None:
        if group not in self._keys:
            key = key_of_forms(plan, group, self._target, self._options)
            self._keys[group] = key.digest
            found = self._records.get(key.digest)
            if found is not None:
                self._named[group] = found
                events.emit(
                    "form-used",
                    sources=group.sources,
                    form=_form(found),
                    gain=found.gain,
                    time=found.time,
                )
        return self._records.get(self._keys[group])


def _form(record: PublishedChoice) -> str:
    from tilewright.tune.base import Candidate

    return Candidate.parse(record.candidate).sketch


def key_of_forms(
    plan: Plan, group: FusionGroup, target: Target, options: Options
) -> Key:
    """The key of the records of a convolution's form. plan: before the convolution has a form."""
    from tilewright.tune.records.key import key_of, of_forms

    signature = kernel_signature(group, plan.live[group])
    fixed = [b in plan.data for b in signature.values]
    threads = thread_count(options.threads)
    return of_forms(key_of(signature, fixed, target, threads, options.math))
