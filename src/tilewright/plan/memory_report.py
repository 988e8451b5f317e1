"""The memory contents at a plan's peak, computed before compilation."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.base.text import columns, human_bytes
from tilewright.expr.nodes import Buffer
from tilewright.plan.lifetimes import lifetimes
from tilewright.plan.nodes import HOST, Plan
from tilewright.plan.passes.memory import PlanMemory, in_arena
from tilewright.runtime.arena import Lifetime, live_bytes

_SHOWN: Final = 20  # number of tensors listed at the peak


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes between the kernels of a plan: alive at each step, and of the arena that holds them."""

    profile: tuple[int, ...]
    arena: int

    @property
    def peak(self) -> int:
        """The most bytes alive at once: no arena is smaller."""
        return max(self.profile, default=0)


def memory_use(plan: Plan) -> MemoryUse:
    """The memory of the host's buffers, if no kernel writes a result over an operand."""
    lives = _lives(plan).values()
    profile = live_bytes(lives)
    placed = PlanMemory(lambda group: ()).run(replace(plan, memory=None))
    assert placed.memory is not None
    return MemoryUse(tuple(profile), placed.memory.total)


def _lives(plan: Plan) -> dict[Buffer, Lifetime]:
    return {
        b: Lifetime(_bytes(b), *life)
        for b, life in lifetimes(plan).items()
        if in_arena(plan, b) and plan.device_of(b) == HOST
    }


def memory_report(plan: Plan) -> str:
    """The peak, the arena, and the live buffers at the peak, largest first.

    Kernels that write a result over an operand are only known later and reduce it.
    """
    lives = _lives(plan)
    use = memory_use(plan)
    profile, peak = use.profile, use.peak
    full = profile.index(peak) if profile else 0
    ends = {*plan.given, *plan.results}.difference(plan.data)
    totals = [
        ("constants", human_bytes(sum(a.nbytes for a in plan.data.values()))),
        ("inputs and results", human_bytes(sum(map(_bytes, ends)))),
        ("alive between kernels, at most", human_bytes(peak)),
        ("their arena", human_bytes(use.arena)),
    ]
    text = columns(totals, "<>")
    if not peak:
        return text
    at = plan.steps[full].name
    title = f"step {full} of {len(plan.steps)}, {at}, has the peak:"
    alive = [b for b, life in lives.items() if life.first <= full <= life.last]
    alive.sort(key=_bytes, reverse=True)
    rows = [_row(plan, b, lives[b]) for b in alive[:_SHOWN]]
    if len(alive) > _SHOWN:
        rows.append((f"and {len(alive) - _SHOWN} more",))
    return f"{text}\n\n{title}\n{columns(rows, '<>')}"


def _row(plan: Plan, b: Buffer, life: Lifetime) -> tuple[str, ...]:
    shape = ", ".join(map(str, b.shape))
    steps = f"from step {life.first}, {plan.steps[life.first].name}, to {life.last}"
    return f"  {b.name}: {b.dtype}[{shape}]", human_bytes(_bytes(b)), steps


def _bytes(b: Buffer) -> int:
    return b.size * b.dtype.itemsize
