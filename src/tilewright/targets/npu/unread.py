"""Elements that are never read may have any value.

An operator on a vector that was made longer computes more elements than are taken. Where such an
operand is the first part of a value with more elements, those are read instead of what it was made
longer with: a chain that brings the whole value need not end.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.npu.evaluate import SHIFT, Addresses, Evaluated, Task
from tilewright.targets.npu.machine import BINARY, UNARY

_OFFSET = (1 << SHIFT) - 1
_ELEMENTWISE = frozenset((*BINARY, *UNARY))


def simplified(made: Evaluated) -> None:
    """Read elements in the place of constants wherever the result is the same."""
    starts = np.cumsum([0, *(v.size for v in made.values)])
    needed = np.zeros(starts[-1], bool)

    def places(addresses: Addresses) -> Addresses:
        return np.asarray(starts[addresses >> SHIFT] + (addresses & _OFFSET))

    for out in made.outputs:
        needed[places(out)] = True
    for i in reversed(range(len(made.tasks))):
        task = made.tasks[i]
        if task.operator not in _ELEMENTWISE:
            for operand in task.operands:
                needed[places(operand)] = True
            continue
        wanted = needed[places(task.result.addresses)]
        made.tasks[i] = task = _longer(made, task, wanted)
        for operand in task.operands:
            needed[places(operand[wanted])] = True


def extents(made: Evaluated) -> NDArray[np.int64]:
    """For each value: how many of its elements, from the first on, hold all that are read."""
    found = np.zeros(len(made.values), np.int64)
    for addresses in (
        *made.outputs,
        *(x for task in made.tasks for x in task.operands),
    ):
        np.maximum.at(
            found, addresses.ravel() >> SHIFT, (addresses.ravel() & _OFFSET) + 1
        )
    return found


def _longer(made: Evaluated, task: Task, wanted: NDArray[np.bool_]) -> Task:
    """The task with operands that are whole where only their first elements are wanted."""
    count = int(np.flatnonzero(wanted)[-1]) + 1 if wanted.any() else 0
    if count in (0, wanted.size):
        return task
    return replace(task, operands=tuple(_whole(made, x, count) for x in task.operands))


def _whole(made: Evaluated, operand: Addresses, count: int) -> Addresses:
    start = int(operand[0])
    value = made.values[start >> SHIFT]
    run = start + np.arange(operand.size)
    inside = (start & _OFFSET) + operand.size <= value.size
    return run if inside and np.array_equal(operand[:count], run[:count]) else operand
