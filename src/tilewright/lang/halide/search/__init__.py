"""A search for a pipeline's schedule: where each Func is computed, by an analytic price.

`tune/stages` searches; `lines.py` writes what it found as directives on copies of the Funcs, and
the primitives that these become prove that it is legal.
"""

from __future__ import annotations

from tilewright.base.errors import InputError, ScheduleError, UnsupportedError
from tilewright.lang.halide.levels import Scheduled
from tilewright.lang.halide.replay import replay
from tilewright.lang.halide.search.copies import copied, program
from tilewright.lang.halide.search.lines import Lines
from tilewright.lang.halide.syntax.pipeline import Pipeline
from tilewright.schedule import Schedule
from tilewright.tune.features.facts import Facts
from tilewright.tune.stages.beam import BEAM, Found, search
from tilewright.tune.stages.bodies import Bodies
from tilewright.tune.stages.costs import StageCosts


def searched(
    stages: Pipeline, name: str, facts: Facts, threads: int, beam: int = BEAM
) -> Schedule:
    """The schedule of the cheapest placement that is legal.

    beam: how many placements are kept at a time. Raises ScheduleError where none of those that
    the search ends with is legal, InputError for open sizes, UnsupportedError for C functions.
    """
    _check(stages, name)
    bodies = Bodies(program(stages), StageCosts(facts))
    failed: ScheduleError | None = None
    for found in search(bodies, beam):
        try:
            return scheduled(stages, found, name, threads)
        except ScheduleError as error:
            failed = failed or error
    assert failed is not None
    raise failed


def _check(stages: Pipeline, name: str) -> None:
    ends = (end for box in stages.boxes.values() for pair in box for end in pair)
    if not all(isinstance(end, int) for end in ends):
        raise InputError(
            "its sizes are known only when it is called",
            where=f"Adams2019 of {name}",
            hint="realize or compile it for a size, which is then scheduled",
        )
    for f in stages.funcs:
        if isinstance(f, Scheduled) and f.extern is not None:
            raise UnsupportedError(
                "a C function computes it",
                where=f"Adams2019, Func {f.name()}",
                hint="write the schedule by hand",
            )


def scheduled(stages: Pipeline, found: Found, name: str, threads: int) -> Schedule:
    """The schedule of a placement. Raises ScheduleError where it is not legal."""
    made = copied(stages)
    placement = found.placement
    known = placement.bodies.program.stages
    to = {}
    for stage, f in zip(known, made.funcs, strict=True):
        assert isinstance(f, Scheduled)
        to[stage] = f
    lines = Lines(placement, found.priced.tiles, to, threads)
    lines.write()
    replayed = replay(made, name)
    return replayed.schedule
