"""The invariants of a plan: which steps may write and read which elements, and on which device.

    TW-PLAN-DEVICE     a step uses only buffers of its device
    TW-PLAN-COPY       a copy goes from the host to a device or back, between equal tensors
    TW-PLAN-GIVEN      no step writes an input or a constant of the model
    TW-PLAN-TWICE      no element is written twice, by one Computation or by two
    TW-PLAN-UNWRITTEN  an element that is read has been written before, or is given
    TW-PLAN-RESULT     every element of a result has been written in the end
    TW-PLAN-INSIDE     a plan inside takes and gives what its step does, and each result of a loop's
                       body has its own memory, or stays unchanged
    TW-PLAN-OPEN       sizes of an open plan have bounds and a source, and are known where used

An open plan is verified at several of its sizes, the least among them (`open_extents.points`).

In addition, each Computation must be well formed and stay inside its tensors (`compute/check.py`).
A halo's border, a part of a concatenation and a tensor stored inside another one are ordinary
elements here: overwriting them, omitting them, or accessing them too early breaks a rule. No rule
depends on names: tensors are compared by identity, and tensors inside two softmaxes may share a
name; the text of a plan makes names unique (`naming`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import VerifyError, placed
from tilewright.compute.check import check
from tilewright.compute.nodes import PW, Computation
from tilewright.compute.regions import read, written
from tilewright.compute.transforms import identity_dims
from tilewright.expr.nodes import Buffer
from tilewright.plan.nodes import (
    HOST,
    Branch,
    DeviceCopy,
    FusionGroup,
    Loop,
    Plan,
    Step,
)
from tilewright.plan.open_extents import at, points, verify_open
from tilewright.plan.verify_inside import verify_inside

Mask = np.ndarray[Any, np.dtype[np.bool_]]


def verify(plan: Plan, checked: set[Computation] | None = None) -> None:
    """Raise VerifyError naming the step and the tensor of the first broken rule.

    checked: as for `verify_steps`.
    """
    if plan.open:
        verify_open(plan)
        for sizes in points(plan):
            verify(at(plan, sizes))
        return
    for step in plan.steps:
        if isinstance(step, DeviceCopy):
            _verify_copy(plan, step)
            continue
        if isinstance(step, Loop | Branch):
            verify_inside(step)
            for body in step.bodies:
                verify(body, checked)
        for b in (*step.reads, *step.writes):
            if plan.device_of(b) != step.device:
                where = f"{step.name}, on {step.device}"
                _broken(
                    "TW-PLAN-DEVICE",
                    f"uses {b!r}, which is on {plan.device_of(b)}",
                    where,
                )
    verify_steps(plan.steps, plan.given, plan.results, checked)


def _verify_copy(plan: Plan, step: DeviceCopy) -> None:
    source, target = step.source, step.target
    ends = [plan.device_of(source), plan.device_of(target)]
    if ends.count(HOST) != 1:
        _broken("TW-PLAN-COPY", f"goes from {ends[0]} to {ends[1]}", step.name)
    if (source.shape, source.dtype) != (target.shape, target.dtype):
        _broken("TW-PLAN-COPY", f"makes {target!r} of {source!r}", step.name)


def verify_steps(
    steps: Sequence[Step],
    given: Collection[Buffer],
    results: Iterable[Buffer],
    checked: set[Computation] | None = None,
) -> None:
    """Raise VerifyError naming the group and the tensor of the first broken rule.

    given: inputs and constants of the model. results: tensors that must exist in the end. checked:
    Computations known to be well formed; newly checked ones are added.
    """
    known = set() if checked is None else checked
    memory = _WrittenElements(frozenset(given))
    for step in steps:
        if isinstance(step, FusionGroup) and step.kernel is None:
            for c in step.computations:
                where = f"group {step.name}, computation {c.name}"
                if c not in known:
                    _check(c, where)
                    known.add(c)
                memory.compute(c, where)
            continue
        for b in step.reads:
            memory.read(b, None, step.name)
        for b in step.writes:
            memory.write(b, None, step.name)
    for b in results:
        if memory.missing(b) is not None:
            _broken(
                "TW-PLAN-RESULT",
                f"nothing writes {_at(b, memory.missing(b))}",
                "the end",
            )


def _check(c: Computation, where: str) -> None:
    with placed(where):
        check(c)


@dataclass(slots=True)
class _WrittenElements:
    """The elements written so far: None for all of a buffer."""

    given: frozenset[Buffer]
    done: dict[Buffer, Mask | None] = field(default_factory=dict)

    def compute(self, c: Computation, where: str) -> None:
        """Check one Computation: all its reads, then all its writes."""
        for b in c.inputs:
            if self.missing(b) is not None:
                self.read(
                    b,
                    read(c, b),
                    where,
                )
        for b in dict.fromkeys(o.tensor for o in c.outputs):
            self.write(
                b,
                None if _writes_all(c) else written(c, b),
                where,
            )

    def missing(self, b: Buffer) -> tuple[int, ...] | None:
        """The first element not yet written."""
        if b in self.given:
            return None
        if b not in self.done:
            return _first(np.ones(b.shape, np.bool_))
        mask = self.done[b]
        return None if mask is None else _first(~mask)

    def read(self, b: Buffer, elements: Mask | None, where: str) -> None:
        """Record a read of these elements; None: of all."""
        if self.missing(b) is None:
            return
        mask = self.done.get(b)
        if mask is None:
            ready = np.zeros(b.shape, np.bool_)
        else:
            ready = mask
        early = _first(~ready if elements is None else elements & ~ready)
        if early is not None:
            _broken(
                "TW-PLAN-UNWRITTEN",
                f"reads {_at(b, early)}, not written before",
                where,
            )

    def write(self, b: Buffer, counts: Any, where: str) -> None:
        """Record how often each element is written; None: every element once."""
        if b in self.given:
            _broken("TW-PLAN-GIVEN", f"writes {b!r}, an input or a constant", where)
        if counts is None and b not in self.done:
            self.done[b] = None
            return
        before = self.done.get(b, np.zeros(b.shape, np.bool_))
        if counts is None:
            now = np.ones(b.shape, np.int64)
        else:
            now = counts
        earlier = 1 if before is None else before
        again = _first(now + earlier > 1)
        if again is not None:
            _broken(
                "TW-PLAN-TWICE",
                f"writes {_at(b, again)}, written before",
                where,
            )
        if before is not None:
            whole = before | (now > 0)
            self.done[b] = None if whole.all() else whole


def _writes_all(c: Computation) -> bool:
    """Whether the only output is indexed by one dimension per axis, and written whole."""
    axes = identity_dims(c)
    if axes is None:
        return False
    free = {d for d in c.dims if d.combine != PW and d.extent > 1}
    return free <= set(axes)


def _first(mask: Mask) -> tuple[int, ...] | None:
    found = np.argwhere(mask)
    if not len(found):
        return None
    return tuple(int(i) for i in found[0])


def _at(b: Buffer, place: tuple[int, ...] | None) -> str:
    return f"{b.name}[{', '.join(map(str, place or ()))}] of {list(b.shape)}"


def _broken(code: str, message: str, where: str) -> None:
    raise VerifyError(message, code=code, where=where)
