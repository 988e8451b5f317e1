"""A task graph that can be run: what each task reads, does and writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.base.errors import InputError
from tilewright.compute.interp import evaluate
from tilewright.compute.nodes import Computation
from tilewright.dataflow.graph import TaskGraph, Volume
from tilewright.dataflow.parts import places
from tilewright.expr.nodes import Buffer

Array = np.ndarray[Any, Any]
Held = dict[Buffer, Array]


@dataclass(frozen=True, eq=False)
class Task:
    """One task.

    reads, writes: lengths of the streams on each of its in-edges and out-edges. unique: for each
    tensor read, how many different elements among them. joins: whether it reads the tensor's
    writers side by side, an element of each at a time. part: what it computes, where that is a
    part of a Computation; `run` does it on the tensors held. stores: whether its results are stored
    whole before they are read. origin: operator and loops.
    """

    name: str
    origin: str
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    reads: int
    writes: int
    unique: Mapping[Buffer, int]
    run: Callable[[Held], None]
    part: Computation | None = None
    joins: bool = False
    stores: bool = False


def computing(c: Computation) -> Callable[[Held], None]:
    """What a task does that computes `c`: the elements that it writes, the others left alone."""

    def run(held: Held) -> None:
        for tensor, array in evaluate(c, held).items():
            whole = held.setdefault(tensor, np.zeros_like(array))
            for o in c.outputs:
                if o.tensor is tensor:
                    where = places(c, o)
                    whole[where] = array[where]

    return run


@dataclass(frozen=True, eq=False)
class Program:
    """A task graph with what its tasks do, in an order in which they can run.

    free: the sources whose reads do not count as I/O: the network's inputs, which arrive anyhow.
    """

    graph: TaskGraph
    tasks: Sequence[Task]
    inputs: Sequence[Buffer]
    outputs: Mapping[str, Buffer]
    constants: Mapping[Buffer, Array]
    free: frozenset[str]

    @property
    def io(self) -> int:
        """Elements that all tasks read and write; see `TaskGraph.io`."""
        return self.graph.io(self.free)

    def reading(self, volume: Volume | str) -> Program:
        """The same program with its graph under another reading of volumes."""
        return replace(self, graph=self.graph.reading(volume))

    def run(self, arrays: Mapping[str, Any]) -> dict[str, Array]:
        """The outputs by name, task after task; slow, to check what the tasks do.

        arrays: one per input, of its shape. Raises InputError for one that is missing.
        """
        held: Held = dict(self.constants)
        for b in self.inputs:
            if b.name not in arrays:
                raise InputError(f"input {b.name!r} is missing", where=self.graph.name)
            held[b] = np.asarray(arrays[b.name], b.dtype.numpy)
        for task in self.tasks:
            task.run(held)
        return {name: held[b] for name, b in self.outputs.items()}
