"""Where the stages of a program are computed, and which places are possible together."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import cached_property

from tilewright.base.dataclass import dataclass
from tilewright.expr.nodes import Load
from tilewright.expr.reads import loads
from tilewright.tune.stages.bodies import Bodies
from tilewright.tune.stages.program import ProgramStage


class Place(Enum):
    """Where a stage is computed.

    INLINE: wherever it is used. TILE: what a register tile of its reader needs, before the tile.
    ROW: the next rows of a nest at root, as it goes down; earlier rows are kept while they are
    needed. ROOT: all of it, before anything that reads it.
    """

    INLINE = "inline"
    TILE = "tile"
    ROW = "row"
    ROOT = "root"


@dataclass(frozen=True, eq=False)
class StagePlaces:
    """A place for each stage that is not at root."""

    bodies: Bodies
    places: Mapping[ProgramStage, Place]

    def of(self, f: ProgramStage) -> Place:
        """The place of a stage."""
        return self.places.get(f, Place.ROOT)

    def having(self, f: ProgramStage, place: Place) -> StagePlaces:
        """The placement with another place for one stage."""
        return StagePlaces(self.bodies, {**self.places, f: place})

    @cached_property
    def inline(self) -> frozenset[ProgramStage]:
        """The stages that are inlined."""
        return frozenset(f for f, p in self.places.items() if p is Place.INLINE)

    @cached_property
    def stored(self) -> tuple[ProgramStage, ...]:
        """The others, producers first."""
        return tuple(f for f in self.bodies.program.stages if f not in self.inline)

    @cached_property
    def readers(self) -> Mapping[ProgramStage, frozenset[ProgramStage]]:
        """The stored stages that read each stage, directly or through inlined ones."""
        found: dict[ProgramStage, frozenset[ProgramStage]] = {}
        for f in reversed(self.bodies.program.stages):
            several: set[ProgramStage] = set()
            for c in self.bodies.program.consumers[f]:
                several |= found[c] if c in self.inline else {c}
            found[f] = frozenset(several)
        return found

    @cached_property
    def hosts(self) -> Mapping[ProgramStage, ProgramStage] | None:
        """The stage in whose loops each one is computed, itself at root; None: impossible.

        Those of a tile are computed in one stage's tiles. Those of a row are computed as one nest
        at root goes down; all their readers must be inside of it.
        """
        found: dict[ProgramStage, ProgramStage] = {}
        for f in reversed(self.stored):
            place = self.of(f)
            if place is Place.ROOT:
                found[f] = f
                continue
            around = {
                found[c] if place is Place.ROW or self.of(c) is Place.TILE else c
                for c in self.readers[f]
            }
            if place is Place.ROW:
                around = {found[h] for h in around}
            if len(around) != 1:
                return None
            [found[f]] = around
        return found

    @cached_property
    def laid_out(self) -> Mapping[ProgramStage, tuple[str, ...]]:
        """The stages of which data choose elements, and the coordinates among whose values they do.

        These values are stored side by side where all readers choose; vectors then store apart.
        """
        found: dict[ProgramStage, tuple[str, ...]] = {}
        for f in self.stored:
            every: set[tuple[str, ...]] = set()
            for reader in self.readers[f]:
                for body in self.bodies.of(reader, self.inline) or ():
                    every |= {chosen(load, f) for load in body.reads.get(f, ())}
            if len(every) == 1 and self.of(f) is not Place.TILE:
                [names] = every
                if names and names[-1] != f.args[0].name:
                    found[f] = names
        return found

    def nest(self, f: ProgramStage) -> ProgramStage:
        """The stage at root in whose nest a stored stage is computed."""
        assert self.hosts is not None
        while self.hosts[f] is not f:
            f = self.hosts[f]
        return f


def chosen(load: Load, f: ProgramStage) -> tuple[str, ...]:
    """The coordinates of a stage among whose values data choose in a load of it."""
    pairs = zip(load.index, reversed(f.args), strict=True)
    return tuple(v.name for i, v in pairs if loads(i))
