"""Choosing the memory of results that no rule has placed."""

from __future__ import annotations

from collections import Counter

from tilewright.targets.npu.order import ordered
from tilewright.targets.npu.tasks import Evaluated, values_in


def place(made: Evaluated, chip: int) -> None:
    """Results of the program to "output", others to "chip" while it has room, or to "dram".

    chip: elements for results that are still to be read.
    """
    tasks = ordered(made)
    uses = Counter(v for task in tasks for v in task.reads)
    results = {v for out in made.outputs for v in values_in(out)}
    left = chip
    for task in tasks:
        value = task.result
        if value.number in results and not uses[value.number]:
            value.space = "output"
        elif value.size <= left:
            value.space = "chip"
            left -= value.size
        else:
            value.space = "dram"
        for number in task.reads:
            uses[number] -= 1
            read = made.values[number]
            if not uses[number] and read.space == "chip" and number not in results:
                left += read.size
