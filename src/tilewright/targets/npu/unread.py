"""Elements that are never read may have any value.

An operator on a padded vector computes more elements than are used. If such an operand is the first
part of a longer value, that value's elements are read instead of the padding: a chain that produces
the whole value need not end.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.npu.machine import BINARY, UNARY
from tilewright.targets.npu.tasks import (
    OFFSET,
    SHIFT,
    Addresses,
    Evaluated,
    NpuTask,
    TaskOperand,
)

_ELEMENTWISE = frozenset((*BINARY, *UNARY))


def simplified(made: Evaluated) -> None:
    """Read elements in the place of constants wherever the result is the same."""
    starts = np.cumsum([0, *(v.size for v in made.values)])
    needed = np.zeros(starts[-1], bool)

    def places(addresses: Addresses) -> Addresses:
        return np.asarray(starts[addresses >> SHIFT] + (addresses & OFFSET))

    def need(addresses: Addresses) -> None:
        needed[places(addresses)] = True

    for out in made.outputs:
        need(out)
    for i in reversed(range(len(made.tasks))):
        task = made.tasks[i]
        if task.operator not in _ELEMENTWISE:
            for operand in _unfixed(task):
                need(operand.addresses)
            continue
        wanted = needed[places(task.result.addresses)]
        made.tasks[i] = task = _longer(made, task, wanted)
        for operand in _unfixed(task):
            need(operand.addresses[wanted])


def _unfixed(task: NpuTask) -> list[TaskOperand]:
    """Operands that hold results; the analysis only concerns these."""
    return [operand for operand in task.operands if not operand.fixed]


def extents(made: Evaluated) -> NDArray[np.int64]:
    """For each result: the length of the prefix that contains all elements that are read."""
    found = np.zeros(len(made.values), np.int64)
    read = [x.addresses for task in made.tasks for x in _unfixed(task)]
    for addresses in (*made.outputs, *read):
        np.maximum.at(
            found, addresses.ravel() >> SHIFT, (addresses.ravel() & OFFSET) + 1
        )
    return found


def _longer(made: Evaluated, task: NpuTask, wanted: NDArray[np.bool_]) -> NpuTask:
    """The task with operands that are whole where only their first elements are wanted."""
    if wanted.any():
        count = int(np.flatnonzero(wanted)[-1]) + 1
    else:
        count = 0
    if count in (0, wanted.size):
        return task
    return replace(task, operands=tuple(_whole(made, x, count) for x in task.operands))


def _whole(made: Evaluated, operand: TaskOperand, count: int) -> TaskOperand:
    given = operand.addresses
    start = int(given[0])
    value = made.values[start >> SHIFT]
    run = start + np.arange(given.size)
    inside = (start & OFFSET) + given.size <= value.size
    if not (inside and np.array_equal(given[:count], run[:count])):
        return operand
    return TaskOperand(run, fixed=not value.made)
