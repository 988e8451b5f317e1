"""The stages of a program: what each computes over a box of coordinates, from which others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from math import prod

from tilewright.base.dataclass import dataclass
from tilewright.expr.nodes import Buffer, Expr, Extent, Load, Var, fixed
from tilewright.ir.node import postorder

Ends = tuple[int, int]  # the first and last of a range
Box = Sequence[Ends]  # of each dimension, as a NumPy array has them


@dataclass(frozen=True, eq=False)
class StageNest:
    """One nest: in its iterations, values are stored at places, or combined with what is there.

    args: the place of the first value. stores: of each the place, and a value for each buffer.
    domain: the range of each coordinate that it reduces over.
    """

    args: tuple[Expr, ...]
    stores: Sequence[tuple[tuple[Expr, ...], tuple[Expr, ...]]]
    domain: Mapping[Expr, Ends] = field(default_factory=dict)

    @property
    def values(self) -> tuple[Expr, ...]:
        """What is stored first, for each buffer."""
        return self.stores[0][1]

    @property
    def roots(self) -> tuple[Expr, ...]:
        """All values, then all places."""
        values = [v for _, several in self.stores for v in several]
        places = [i for place, _ in self.stores for i in place]
        return (*values, *places)


@dataclass(frozen=True, eq=False)
class Input:
    """A tensor that the program is given."""

    symbols: tuple[Buffer, ...]
    box: Box


@dataclass(frozen=True, eq=False)
class ProgramStage:
    """A tensor, or several of one shape, and its definitions: a pure one, then updates.

    args: its coordinates, the innermost in memory first. symbols: its buffers in expressions. box:
    the coordinates that are needed.
    """

    name: str
    args: tuple[Var, ...]
    symbols: tuple[Buffer, ...]
    box: Box
    definitions: tuple[StageNest, ...]


Owner = ProgramStage | Input


@dataclass(frozen=True, eq=False)
class StageGraph:
    """Stages, producers first. outputs: those of them that are results."""

    stages: tuple[ProgramStage, ...]
    inputs: tuple[Input, ...]
    outputs: frozenset[ProgramStage]

    @cached_property
    def owners(self) -> Mapping[Buffer, Owner]:
        """The stage or input of each buffer."""
        every: tuple[Owner, ...] = (*self.stages, *self.inputs)
        return {b: owner for owner in every for b in owner.symbols}

    @cached_property
    def producers(self) -> Mapping[ProgramStage, tuple[ProgramStage, ...]]:
        """The stages that each one reads."""
        found: dict[ProgramStage, tuple[ProgramStage, ...]] = {}
        for stage in self.stages:
            read: dict[ProgramStage, None] = {}
            roots = [e for d in stage.definitions for e in d.roots]
            for node in (n for e in roots for n in postorder(e)):
                if isinstance(node, Load):
                    owner = self.owners[node.buffer]
                    if isinstance(owner, ProgramStage) and owner is not stage:
                        read[owner] = None
            found[stage] = tuple(read)
        return found

    @cached_property
    def consumers(self) -> Mapping[ProgramStage, tuple[ProgramStage, ...]]:
        """The stages that read each one."""
        found: dict[ProgramStage, list[ProgramStage]] = {
            stage: [] for stage in self.stages
        }
        for stage, read in self.producers.items():
            for producer in read:
                found[producer].append(stage)
        return {stage: tuple(several) for stage, several in found.items()}


def box_of(pairs: Iterable[tuple[Extent, Extent]]) -> list[Ends]:
    """The box of the first coordinate and the extent of each dimension, which are numbers."""
    found = []
    for low, extent in pairs:
        first = fixed(low, "a box")
        found.append((first, first + fixed(extent, "a box") - 1))
    return found


def extents(owner: Owner) -> list[int]:
    """How large each dimension is, the innermost first."""
    return [last - first + 1 for first, last in reversed(owner.box)]


def size(owner: Owner) -> int:
    """The bytes of a stage or an input."""
    each = sum(int(b.dtype.itemsize) for b in owner.symbols)
    return each * prod(extents(owner))
