"""A task graph that can be executed: what each task reads, computes and writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.compute.interp import evaluate
from tilewright.compute.nodes import Computation
from tilewright.dataflow.graph import TaskGraph
from tilewright.dataflow.parts import (
    Cuts,
    places,
    reads_in_order,
    restrict,
    writes_in_order,
)
from tilewright.expr.nodes import Buffer
from tilewright.graph.interp import run_on
from tilewright.graph.nodes import Operation
from tilewright.loops import interp as kernels
from tilewright.loops.nodes import Kernel

Array = np.ndarray[Any, Any]
Held = dict[Buffer, Array]


@dataclass(frozen=True, eq=False)
class Opaque:
    """An operator that is not divided: run by its reference, on whole tensors.

    operands: a tensor for each of the operator's inputs, None for an omitted one, then the tensors
    that its subgraphs capture.
    """

    operation: Operation
    operands: tuple[Buffer | None, ...]
    outputs: tuple[Buffer, ...]

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        """The tensors read, without duplicates."""
        return tuple(dict.fromkeys(b for b in self.operands if b is not None))

    def run(self, held: Held) -> None:
        """Compute the outputs."""
        given = [None if b is None else held[b] for b in self.operands]
        results = zip(
            self.operation.outputs, run_on(self.operation, given, None), strict=False
        )
        made = (array for value, array in results if value is not None)
        for b, array in zip(self.outputs, made, strict=True):
            held[b] = np.asarray(array, b.dtype.numpy).reshape(b.shape)


@dataclass(frozen=True, eq=False)
class FusedTask:
    """An operator of several Computations as one task: run in order, on whole tensors.

    outputs: the tensors read elsewhere; intermediate ones stay inside the task.
    """

    computations: tuple[Computation, ...]
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]

    def run(self, held: Held) -> None:
        """Compute the outputs."""
        for c in self.computations:
            _compute(c, held)


@dataclass(frozen=True, eq=False)
class TaskGroup:
    """Equal tasks: the same work on different parts of a Computation; or one task, a loop program
    or a whole operator.

    work: the whole of which the tasks are parts. cuts: each task's part, as ranges of the
    Computation's variables. reads, writes: lengths of the streams on each of a task's in-edges and
    out-edges. unique: for each tensor read, the number of different elements among them. joins:
    whether a task reads the tensor's writers in parallel, one element of each at a time. stores:
    whether the results are stored completely before they are read. origin: operator and loops.
    """

    name: str
    origin: str
    work: Computation | Kernel | Opaque | FusedTask
    reads: int
    writes: int
    unique: Mapping[Buffer, int]
    cuts: Sequence[Cuts] = ({},)
    joins: bool = False
    stores: bool = False

    @property
    def count(self) -> int:
        """The number of tasks."""
        return len(self.cuts)

    @cached_property
    def inputs(self) -> tuple[Buffer, ...]:
        """The tensors read."""
        return tuple(self.work.inputs)

    @cached_property
    def outputs(self) -> tuple[Buffer, ...]:
        """The tensors written."""
        if isinstance(self.work, Computation):
            return tuple(dict.fromkeys(o.tensor for o in self.work.outputs))
        return tuple(self.work.outputs)

    @cached_property
    def part(self) -> Computation | None:
        """The Computation of the first task; None if the work is not a Computation."""
        if not isinstance(self.work, Computation):
            return None
        return restrict(self.work, self.cuts[0], self.name)

    @cached_property
    def flows_out(self) -> bool:
        """Whether its result is written element by element and has no other writer."""
        alone = self.count == 1 and not self.stores
        return alone and self.part is not None and writes_in_order(self.part)

    def flows_into(self, tensor: Buffer) -> bool:
        """Whether it reads `tensor` element by element, each once."""
        if tensor not in self._order:
            part = None if self.joins else self.part
            self._order[tensor] = part is not None and reads_in_order(part, tensor)
        return self._order[tensor]

    @cached_property
    def _order(self) -> dict[Buffer, bool]:
        return {}

    def run(self, held: Held) -> None:
        """Run all tasks on the tensors in `held`; other elements of the outputs are unchanged."""
        if isinstance(self.work, Opaque | FusedTask):
            self.work.run(held)
            return
        if isinstance(self.work, Kernel):
            for b in self.work.outputs:
                held[b] = np.zeros(b.shape, b.dtype.numpy)
            kernels.run(self.work, held)
            return
        for cut in self.cuts:
            _compute(restrict(self.work, cut, self.name), held)


def _compute(c: Computation, held: Held) -> None:
    for tensor, array in evaluate(c, held).items():
        whole = held.setdefault(tensor, np.zeros_like(array))
        for o in c.outputs:
            if o.tensor is tensor:
                where = places(c, o)
                whole[where] = array[where]


@dataclass(frozen=True, eq=False)
class StreamProgram:
    """A task graph with the work of its tasks, in an executable order.

    free: the sources whose reads do not count as I/O: the network's inputs, which arrive anyway.
    same: tensors that alias others under a different shape.
    """

    graph: TaskGraph
    tasks: Sequence[TaskGroup]
    inputs: Sequence[Buffer]
    outputs: Mapping[str, Buffer]
    constants: Mapping[Buffer, Array]
    free: frozenset[str]
    same: Mapping[Buffer, Buffer]

    @property
    def io(self) -> int:
        """Elements that all tasks read and write; see `TaskGraph.io`."""
        return self.graph.io(self.free)

    def run(self, arrays: Mapping[str, Any]) -> dict[str, Array]:
        """Compute the outputs by name, task by task; slow, to check the tasks.

        arrays: one per input, with its shape. Raises InputError for a missing one.
        """
        held: Held = dict(self.constants)
        for b in self.inputs:
            if b.name not in arrays:
                raise InputError(f"input {b.name!r} is missing", where=self.graph.name)
            held[b] = np.asarray(arrays[b.name], b.dtype.numpy)
        for task in self.tasks:
            for b in task.inputs:
                self._shape(b, held)
            task.run(held)
        for b in self.outputs.values():
            self._shape(b, held)
        return {name: held[b] for name, b in self.outputs.items()}

    def _shape(self, b: Buffer, held: Held) -> None:
        """Add the tensor to `held` if it aliases another one."""
        if b in self.same:
            held[b] = held[self.same[b]].reshape(b.shape)
