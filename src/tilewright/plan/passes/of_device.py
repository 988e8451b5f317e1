"""Rewriting the groups of one device while those of others stay where they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilewright.plan.nodes import HOST, FusionGroup, Plan, Step

Rewrite = Callable[[Sequence[Step]], Sequence[Step]]


def of_device(plan: Plan, device: str, rewrite: Rewrite) -> Plan:
    """The plan with `rewrite` applied to the steps that are not groups of other devices.

    requires: `rewrite` keeps all steps that are not groups, in order. A group elsewhere shares no
    buffer with the others except through copies, so it only has to stay after its predecessor.
    """
    mine: list[Step] = []
    behind: dict[Step | None, list[Step]] = {}
    last: Step | None = None
    for step in plan.steps:
        if isinstance(step, FusionGroup) and step.device != device:
            behind.setdefault(last, []).append(step)
            continue
        mine.append(step)
        last = last if isinstance(step, FusionGroup) else step
    found: list[Step] = behind.get(None, [])
    for step in rewrite(mine):
        if isinstance(step, FusionGroup):
            found.append(
                step if step.device == device else replace(step, device=device)
            )
        else:
            found += [step, *behind.get(step, ())]
    return _placed(plan.with_steps(found), device)


def _placed(plan: Plan, device: str) -> Plan:
    """The plan with everything that a device's groups write placed there, including new buffers."""
    groups = (s for s in plan.steps if isinstance(s, FusionGroup))
    there = {b: device for s in groups if s.device == device for b in s.writes}
    if device == HOST or there.keys() <= plan.devices.keys():
        return plan
    return replace(plan, devices={**plan.devices, **there})
