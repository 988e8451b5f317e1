"""The search: places for all stages, from the outputs to the inputs, the cheapest few at a time."""

from __future__ import annotations

from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.tune.stages.bodies import Bodies
from tilewright.tune.stages.places import Place, StagePlaces
from tilewright.tune.stages.price import Priced, Prices
from tilewright.tune.stages.program import ProgramStage

BEAM: Final = 4  # placements that are kept at a time
# Stages, at most, that are also searched from other starts than at root.
FEW: Final = 16
SWEEPS: Final = 2  # through all stages, changing one place at a time


@dataclass(frozen=True, eq=False)
class Found:
    """A placement and its price."""

    placement: StagePlaces
    priced: Priced


def search(bodies: Bodies, width: int = BEAM) -> list[Found]:
    """Placements, the cheapest first; so many are kept at a time."""
    prices = Prices(bodies)
    order = [f for f in reversed(bodies.program.stages) if options(bodies, f)]
    beam = _cheapest(_starts(bodies, order, prices), width)
    for f in order:
        beam = _cheapest([*beam, *_changed(beam, f, prices)], width)
    for _ in range(SWEEPS):
        before = beam[0].priced.cycles
        for f in order:
            beam = _cheapest([*beam, *_changed(beam[:1], f, prices)], width)
            beam = _cheapest([*beam, *_together(beam[0], f, prices)], width)
        if beam[0].priced.cycles >= before:
            break
    return beam


def _starts(bodies: Bodies, order: list[ProgramStage], prices: Prices) -> list[Found]:
    """All stages at root; where they are few, also in rows, and inlined."""
    found = []
    places_at = (Place.ROOT, Place.ROW, Place.INLINE)
    for place in places_at if len(order) <= FEW else places_at[:1]:
        places = {f: place for f in order if place in options(bodies, f)}
        placement = StagePlaces(bodies, places)
        priced = prices.of(placement)
        if priced is not None:
            found.append(Found(placement, priced))
    return found


def _changed(beam: list[Found], f: Any, prices: Prices) -> list[Found]:
    """Each placement with each other place of a stage."""
    found = []
    for one in beam:
        for place in options(prices.bodies, f):
            if place is one.placement.of(f):
                continue
            placement = one.placement.having(f, place)
            priced = prices.of(placement)
            if priced is not None:
                found.append(Found(placement, priced))
    return found


def _together(one: Found, f: Any, prices: Prices) -> list[Found]:
    """The placement with a stage and one that it reads in rows: either alone may gain nothing."""
    found = []
    for p in prices.bodies.program.producers[f]:
        if Place.ROW in options(prices.bodies, f):
            placement = one.placement.having(f, Place.ROW).having(p, Place.ROW)
            priced = prices.of(placement)
            if priced is not None:
                found.append(Found(placement, priced))
    return found


def _cheapest(found: list[Found], width: int) -> list[Found]:
    kept: dict[Any, Found] = {}
    for one in sorted(found, key=lambda x: x.priced.cycles):
        root = {f for f, p in one.placement.places.items() if p is not Place.ROOT}
        key = frozenset((f, one.placement.of(f)) for f in root)
        kept.setdefault(key, one)
    return list(kept.values())[:width]


def options(bodies: Bodies, f: Any) -> tuple[Place, ...]:
    """The places that a stage can have; none for an output."""
    if f in bodies.program.outputs:
        return ()
    if len(f.definitions) > 1:
        return Place.ROOT, Place.ROW, Place.TILE
    return Place.INLINE, Place.ROOT, Place.ROW, Place.TILE
