"""Recomputing tensors instead of keeping them, if memory is short.

At the peak, some live tensors only wait for a later reader. A tensor that is recomputed right
before that reader need not be alive in between. Its operands must then live until there, or be
recomputed as well, so whole chains of groups are tried.

Each change is the one that frees most per time, until the limit is met. Chen et al., "Training Deep
Nets with Sublinear Memory Cost" (2016), do this for training, by segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Final

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.base.names import fresh
from tilewright.compute.transforms import map_loads, map_outputs
from tilewright.expr.nodes import Buffer, Expr, Load
from tilewright.ir.passes import Pass
from tilewright.plan.lifetimes import lifetimes
from tilewright.plan.nodes import HOST, FusionGroup, Plan
from tilewright.plan.passes.fuse import without_unused
from tilewright.plan.questions import Cost
from tilewright.runtime.arena import Lifetime, live_bytes

_CHAIN: Final = 6  # most groups that are recomputed for one tensor


@dataclass(frozen=True)
class Recompute(Pass[Plan]):
    """Reruns groups if a call would need more than `limit` bytes.

    Constants, inputs, results and tensors alive between steps count; kernels' own memory is known
    only later. If the limit cannot be met, the plan that comes closest is returned.
    """

    cost: Cost = field(repr=False)
    limit: int

    def run(self, program: Plan) -> Plan:
        plan = program
        limit = max(0, self.limit - given_bytes(plan))
        while _excess(plan, limit):  # each change reduces the excess
            best = max(_changes(plan, limit, self.cost), default=None)
            if best is None:
                break
            plan = best.plan
            events.emit("recompute", tensor=best.tensor, before=best.reader)
        return plan


def peak_bytes(plan: Plan) -> int:
    """The most bytes alive at one step of the host, between kernels."""
    return max(live_bytes(_held(plan)), default=0)


def given_bytes(plan: Plan) -> int:
    """The bytes of constants, inputs and results, which live for an entire call."""
    constants = sum(a.nbytes for a in plan.data.values())
    ends = {*plan.given, *plan.results}.difference(plan.data)
    return constants + sum(b.size * b.dtype.itemsize for b in ends)


@dataclass(frozen=True, slots=True)
class _Change:
    """A plan with less memory alive at its peak steps. rate: excess bytes times steps freed per
    nanosecond."""

    rate: float
    tensor: str
    reader: str
    plan: Plan

    def __lt__(self, other: _Change) -> bool:
        return self.rate < other.rate


def _held(plan: Plan) -> list[Lifetime]:
    lives = lifetimes(plan)
    return [
        Lifetime(b.size * b.dtype.itemsize, *lives[b])
        for b in lives
        if _between_steps(plan, b)
    ]


def _between_steps(
    plan: Plan,
    b: Buffer,
) -> bool:
    inside = b not in plan.given and b not in plan.results
    return inside and plan.device_of(b) == HOST


def _excess(
    plan: Plan,
    limit: int,
) -> int:
    """The bytes above the limit, summed over all steps: 0 if the plan fits."""
    return sum(max(0, now - limit) for now in live_bytes(_held(plan)))


def _changes(
    plan: Plan,
    limit: int,
    cost: Cost,
) -> Iterator[_Change]:
    """Every change that reduces the excess."""
    profile = live_bytes(_held(plan))
    before = sum(max(0, now - limit) for now in profile)
    full = max(range(len(profile)), key=profile.__getitem__)
    writers = rerunnable(plan)
    for b, uses in _uses(plan).items():
        if b not in writers or not _between_steps(plan, b):
            continue
        late = next((n for n in uses if n > full), None)
        if late is None or full in uses or uses[0] > full:
            continue
        for chain in _chains(plan, b, late, writers):
            spent = [cost(g.computations, plan.data) for g in chain]
            if any(s is None for s in spent):
                continue
            made = _again(plan, chain, b, late)
            freed = before - _excess(made, limit)
            if freed > 0:
                time = sum(s for s in spent if s is not None)
                reader = plan.steps[late].name
                yield _Change(
                    freed / max(time, 1.0),
                    b.name,
                    reader,
                    made,
                )


def _uses(plan: Plan) -> Mapping[Buffer, list[int]]:
    """The steps that use each buffer, in order."""
    found: dict[Buffer, list[int]] = {}
    for n, step in enumerate(plan.steps):
        for b in dict.fromkeys(plan.touched(step)):
            found.setdefault(b, []).append(n)
    return found


def rerunnable(plan: Plan) -> Mapping[Buffer, FusionGroup]:
    """For each tensor, the group that makes it, if it may run again.

    It consists of Computations on the host, makes the whole tensor, and makes nothing else that
    others read: a second result would be rewritten where its readers may not expect it.
    """
    found: dict[Buffer, FusionGroup] = {}
    several: set[Buffer] = set()
    for step in plan.steps:
        for b in step.writes:
            if b in found:
                several.add(b)
            elif isinstance(step, FusionGroup):
                found[b] = step
            else:
                several.add(b)
    return {
        b: g
        for b, g in found.items()
        if b not in several
        and g.kernel is None
        and g.device == HOST
        and plan.live[g] == {b}
    }


def _chains(
    plan: Plan, b: Buffer, late: int, writers: Mapping[Buffer, FusionGroup]
) -> Iterator[tuple[FusionGroup, ...]]:
    """The groups that make `b`; these with those that make operands dead by `late`; and so on."""
    lives = lifetimes(plan)
    chain: tuple[FusionGroup, ...] = (writers[b],)
    while len(chain) <= _CHAIN:
        yield chain
        dead = [
            r
            for g in chain
            for r in g.reads
            if _between_steps(plan, r) and lives[r][1] < late
        ]
        more = [writers[r] for r in dict.fromkeys(dead) if r in writers]
        more = [g for g in more if g not in chain]
        if not more:
            return
        place = {step: n for n, step in enumerate(plan.steps)}
        chain = tuple(sorted((*more, *chain), key=place.__getitem__))


def _again(
    plan: Plan,
    chain: Sequence[FusionGroup],
    b: Buffer,
    late: int,
) -> Plan:
    """Rerun the chain before step `late`; later readers read its copy of `b`.

    requires: every group of the chain makes one live tensor whole, from tensors that live until
    there or that the chain makes; so the copies are equal bit by bit. Groups whose results were not
    read in between run only there.
    """
    names = {t.name for step in plan.steps for t in (*step.reads, *step.writes)}
    swap = {t: _copy(t, names) for g in chain for t in g.writes}
    steps = {step.name for step in plan.steps}
    copies = [
        replace(_reading(g, swap), name=fresh(steps, f"{g.name}.again")) for g in chain
    ]
    later = {b: swap[b]}
    rest = [
        _reading(s, later) if isinstance(s, FusionGroup) else s
        for s in plan.steps[late:]
    ]
    made = plan.with_steps((*plan.steps[:late], *copies, *rest))
    return made.with_steps(without_unused(made.steps, made.kept))


def _copy(
    t: Buffer,
    taken: set[str],
) -> Buffer:
    return Buffer(
        fresh(taken, f"{t.name}.again"),
        t.shape,
        t.dtype,
    )


def _reading(
    group: FusionGroup,
    swap: Mapping[Buffer, Buffer],
) -> FusionGroup:
    """The group on other buffers, both read and written."""
    if swap.keys().isdisjoint((*group.reads, *group.writes)):
        return group
    loads = {old: _load_of(new) for old, new in swap.items()}

    def moved(e: Expr) -> Expr:
        return map_loads(e, loads)

    found = []
    for c in group.computations:
        outputs = [
            replace(o, tensor=swap.get(o.tensor, o.tensor))
            for o in map_outputs(c, moved)
        ]
        found.append(replace(c, outputs=tuple(outputs)))
    return replace(group, computations=tuple(found))


def _load_of(new: Buffer) -> Callable[[Load], Expr]:
    return lambda load: Load(new, load.index)
