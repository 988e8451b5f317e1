"""Stages: a model between operators and kernels, as groups of Computations.

Lowering gives one Stage per operator; fusion merges Stages; each Stage that is left becomes one
Kernel. A tensor is a Buffer; it may be written by several Stages on disjoint parts (concat).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tilewright.compute.nodes import Computation
from tilewright.compute.reducer import is_sum
from tilewright.expr.nodes import Buffer, Load, Mul
from tilewright.graph.nodes import Operation
from tilewright.ir.node import postorder
from tilewright.loops.nodes import Kernel

SOURCES = 256  # operators that a Stage names: a list of Stages grows as the model does


class Effort(Protocol):
    """What a target expects of Computations as one kernel, in nanoseconds; None where another
    form is better.

    constants: buffers known when compiling.
    """

    def __call__(
        self, group: Sequence[Computation], constants: Collection[Buffer] = (), /
    ) -> float | None: ...


@dataclass(frozen=True, eq=False)
class Stage:
    """Computations that run as one kernel, in order; or one Kernel given as such.

    sources: the names of the operators it came from. flops: counted by the operators.
    """

    name: str
    computations: tuple[Computation, ...]
    sources: tuple[str, ...] = ()
    flops: int = 0
    kernel: Kernel | None = None
    _reads: list[Buffer] = field(default_factory=list, init=False, repr=False)

    @property
    def writes(self) -> tuple[Buffer, ...]:
        """Every buffer written, internal ones included, in order."""
        if self.kernel is not None:
            return self.kernel.outputs
        return tuple(dict.fromkeys(o.tensor for c in self.computations for o in c.outputs))

    @property
    def reads(self) -> tuple[Buffer, ...]:
        """Buffers read that the Stage does not write itself, in order."""
        if self.kernel is not None:
            return self.kernel.inputs
        if not self._reads:
            own = set(self.writes)
            seen = dict.fromkeys(b for c in self.computations for b in c.inputs if b not in own)
            self._reads.extend(seen)
        return tuple(self._reads)

    @property
    def is_map(self) -> bool:
        """One Computation without reductions."""
        return len(self.computations) == 1 and self.computations[0].is_map


@dataclass(frozen=True, eq=False, slots=True)
class HostCall:
    """One operator run by a reference kernel in Python."""

    operation: Operation


Step = Stage | HostCall


class Flow:
    """Who writes and who reads each buffer in a list of Stages; host calls are left out."""

    def __init__(self, stages: Iterable[Step]) -> None:
        self.writers: dict[Buffer, list[Stage]] = {}
        self.readers: dict[Buffer, list[Stage]] = {}
        for stage in stages:
            if isinstance(stage, Stage):
                self.add(stage)

    def add(self, stage: Stage) -> None:
        """Take a Stage into account."""
        for b in stage.writes:
            self.writers.setdefault(b, []).append(stage)
        for b in stage.reads:
            self.readers.setdefault(b, []).append(stage)

    def remove(self, stage: Stage) -> None:
        """Forget a Stage."""
        for b in stage.writes:
            self.writers[b].remove(stage)
        for b in stage.reads:
            self.readers[b].remove(stage)

    def sole_reader(self, buffer: Buffer) -> Stage | None:
        """The only Stage that reads `buffer`, or None."""
        found = self.readers.get(buffer, [])
        return found[0] if len(found) == 1 else None


def is_contraction(computation: Computation) -> bool:
    """A sum of products of two tensors: a matrix product, a convolution."""
    op = computation.reducer
    if op is None or len(computation.outputs) != 1 or not is_sum(op):
        return False
    value = computation.outputs[0].value
    product = next((n for n in postorder(value) if isinstance(n, Mul) and _two_tensors(n)), None)
    return product is not None


def _two_tensors(product: Mul) -> bool:
    sides = [
        {n.buffer for n in postorder(side) if isinstance(n, Load)}
        for side in (product.lhs, product.rhs)
    ]
    return bool(sides[0]) and bool(sides[1])


def joined(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
    """Both lists of operators' names in order, each name once, and SOURCES of them at most.

    An operator comes on several ways where two that read its result meet again.
    """
    return tuple(dict.fromkeys((*first, *second)))[:SOURCES]


def merge(first: Stage, second: Stage, computations: Sequence[Computation]) -> Stage:
    """One Stage with the given Computations, named after both."""
    short = f"{first.name}+{second.name.rsplit('.', 1)[-1]}"
    name = short if len(short) <= 60 else first.name
    return Stage(
        name,
        tuple(computations),
        joined(first.sources, second.sources),
        first.flops + second.flops,
    )
