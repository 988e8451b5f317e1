"""The order of tasks, and their grouping into chains."""

from __future__ import annotations

from collections import Counter

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.targets.npu.machine import MATRICES
from tilewright.targets.npu.tasks import Evaluated, NpuTask, values_in

# Opcodes take the chain's value first; these do not mind which operand that is.
COMMUTES = frozenset(("VVAdd", "VVMul", "VVMax"))
FLOWS = {"MVMul": 1}


def ordered(made: Evaluated) -> list[NpuTask]:
    """Tasks as the outputs need them, operands just before: intermediates live shortly.

    Tasks whose results are not read are left out.
    """
    makers = {task.result.number: task for task in made.tasks}
    done: dict[int, None] = {}
    stack = [
        (v, False) for out in reversed(made.outputs) for v in reversed(values_in(out))
    ]
    while stack:
        value, ready = stack.pop()
        if value in done or value not in makers:
            continue
        if ready:
            done[value] = None
            continue
        stack.append((value, True))
        stack += [(v, False) for v in reversed(makers[value].reads)]
    return [makers[value] for value in done]


@dataclass(frozen=True, slots=True)
class Link:
    """A task in a chain. flow: which of its operands the chain carries."""

    task: NpuTask
    flow: int


def linked(made: Evaluated, tasks: list[NpuTask]) -> list[list[Link]]:
    """Chains: a task joins the one before if it alone reads its result, all of it, on the chip."""
    readers = Counter(v for task in tasks for v in task.reads)
    readers.update(v for out in made.outputs for v in values_in(out))
    chains: list[list[Link]] = []
    for task in tasks:
        flow = None
        if chains:
            last = chains[-1][-1].task
            if last.result.space == "chip" and readers[last.result.number] == 1:
                flow = _flow(last, task)
        if flow is None:
            chains.append([Link(task, FLOWS.get(task.operator, 0))])
        else:
            chains[-1].append(Link(task, flow))
    return chains


def _flow(last: NpuTask, task: NpuTask) -> int | None:
    """The operand of a task that the chain may bring; matrix products begin chains of vectors."""
    if task.operator == "MVMul":
        return None
    choices = (0, 1) if task.operator in COMMUTES else (0,)
    made = last.result.addresses
    for i in choices:
        operand = task.operands[i].addresses
        if operand.shape == made.shape and np.array_equal(operand, made):
            return i
    return None


def is_matrix(task: NpuTask) -> bool:
    """Whether its chain carries a matrix."""
    return task.operator in MATRICES and task.operator != "MVMul"


def by_level(chains: list[list[Link]]) -> list[list[Link]]:
    """Chains that wait for nothing first, then those that wait for them, and so on.

    Independent parts of a program so overlap; more of their results wait in registers.
    """
    maker = {
        link.task.result.number: i for i, chain in enumerate(chains) for link in chain
    }
    level: list[int] = []
    for i, chain in enumerate(chains):
        reads = {maker[v] for link in chain for v in link.task.reads if v in maker}
        level.append(1 + max((level[j] for j in reads if j != i), default=0))
    return [chain for _, chain in sorted(zip(level, chains), key=lambda pair: pair[0])]
