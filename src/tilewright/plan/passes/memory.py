"""Memory planning: assign every buffer between two steps a place in its device's arena."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace

from tilewright.base.dataclass import dataclass
from tilewright.expr.nodes import Buffer
from tilewright.ir.passes import Pass
from tilewright.plan.lifetimes import lifetimes
from tilewright.plan.nodes import (
    HOST,
    Branch,
    Control,
    FusionGroup,
    Loop,
    MemoryPlan,
    Plan,
)
from tilewright.runtime import abi
from tilewright.runtime.arena import Lifetime, assign_offsets

# Operands of a group that its last result may overwrite.
Over = Callable[[FusionGroup], tuple[Buffer, ...]]


@dataclass(frozen=True)
class PlanMemory(Pass[Plan]):
    """Assigns every buffer between two steps a place in its device's arena.

    over: the operands that a group's kernel may overwrite with its last result. staying: inputs and
    results of a nested plan, which stay in its arena throughout. Nested plans already have their
    places.
    """

    over: Over = field(repr=False)
    alignment: int = abi.ALIGNMENT
    staying: tuple[Buffer, ...] = ()

    def run(self, program: Plan) -> Plan:
        over = {}
        for group in program.groups:
            found = self.over(group)
            if found:
                over[group] = found
        lives = dict(lifetimes(program))
        lives |= dict.fromkeys(self.staying, (0, max(len(program.steps) - 1, 0)))
        home = _shared(program, over, lives)
        held = [b for b in lives if in_arena(program, b) and b not in home]
        held += self.staying
        devices = dict.fromkeys((HOST, *map(program.device_of, held)))
        places: dict[Buffer, int] = {}
        totals = {}
        inside: dict[Control, int] = {}
        for device in devices:
            mine = [b for b in held if program.device_of(b) == device]
            sized = [Lifetime(_bytes(b), *lives[b]) for b in mine]
            inner = _inside(program) if device == HOST else {}
            arena = assign_offsets([*sized, *inner.values()], self.alignment)
            places |= dict(zip(mine, arena.offsets, strict=False))
            inside |= dict(zip(inner, arena.offsets[len(mine) :], strict=True))
            totals[device] = arena.total
        for b, root in home.items():
            places[b] = places[root]
        of_host = totals.pop(HOST)
        memory = MemoryPlan(places, of_host, over, totals, inside)
        return replace(program, memory=memory)


def _inside(plan: Plan) -> dict[Control, Lifetime]:
    """The arenas of nested plans; a step uses one at a time."""
    found: dict[Control, Lifetime] = {}
    for n, step in enumerate(plan.steps):
        if isinstance(step, Loop | Branch):
            most = max(p.memory.total if p.memory else 0 for p in step.bodies)
            found[step] = Lifetime(most, n, n)
    return found


def in_arena(plan: Plan, b: Buffer) -> bool:
    """Whether a buffer lives only between steps: no input, constant or result."""
    return b not in plan.given and b not in plan.results


def _shared(
    plan: Plan,
    over: Mapping[FusionGroup, tuple[Buffer, ...]],
    lives: dict[Buffer, tuple[int, int]],
) -> dict[Buffer, Buffer]:
    """Results that take the place of an operand that dies in their kernel.

    lives: the operands' lifetimes are extended to those of the results.
    """
    home: dict[Buffer, Buffer] = {}
    for n, step in enumerate(plan.steps):
        if not isinstance(step, FusionGroup) or step not in over:
            continue
        out = plan.touched(step)[-1]
        if not in_arena(plan, out):
            continue
        if lives[out][0] != n:
            continue
        for source in over[step]:
            dies = lives[source][1] == n
            fits = in_arena(plan, source) and _bytes(source) == _bytes(out)
            if dies and fits:
                root = home.get(source, source)
                home[out] = root
                lives[root] = (lives[root][0], lives[out][1])
                break
    return home


def _bytes(b: Buffer) -> int:
    return b.size * b.dtype.itemsize
