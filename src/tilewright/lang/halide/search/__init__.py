"""A search for a pipeline's schedule: where each Func is computed, by an analytic price.

`beam.py` searches, `price.py` prices, `lines.py` writes what was found as directives on copies of
the Funcs, and the primitives that these become prove that it is legal.
"""

from __future__ import annotations

from tilewright.base.errors import ScheduleError
from tilewright.lang.halide.replay import replay
from tilewright.lang.halide.search.beam import Found, search
from tilewright.lang.halide.search.bodies import Bodies
from tilewright.lang.halide.search.copies import copied
from tilewright.lang.halide.search.costs import StageCosts
from tilewright.lang.halide.search.lines import Lines
from tilewright.lang.halide.syntax.pipeline import Pipeline
from tilewright.schedule import Schedule


def searched(stages: Pipeline, name: str, costs: StageCosts, threads: int) -> Schedule:
    """The schedule of the cheapest placement that is legal.

    Raises ScheduleError where none of those that the search keeps is.
    """
    bodies = Bodies(stages, costs)
    failed: ScheduleError | None = None
    for found in search(bodies):
        try:
            return scheduled(bodies, found, name, threads)
        except ScheduleError as error:
            failed = failed or error
    assert failed is not None
    raise failed


def scheduled(bodies: Bodies, found: Found, name: str, threads: int) -> Schedule:
    """The schedule of a placement. Raises ScheduleError where it is not legal."""
    made = copied(bodies.stages)
    to = dict(zip(bodies.stages.funcs, made.funcs, strict=True))
    Lines(bodies, found.placement, found.priced.tiles, to, threads).write()  # type: ignore[arg-type]
    return replay(made, name).schedule
