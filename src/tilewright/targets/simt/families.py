"""The families of schedules of reductions and transposes that apply to a kernel, best first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from tilewright.compute.nodes import Computation
from tilewright.loops.nodes import Kernel
from tilewright.schedule import Schedule
from tilewright.schedule.space import Choices, Sketch
from tilewright.schedule.space.selection import legal_point
from tilewright.targets.simt.attention import attention_of, by_key_blocks
from tilewright.targets.simt.columns import are_columns, by_columns
from tilewright.targets.simt.machine import SimtMachine
from tilewright.targets.simt.rows import by_rows, rows_of
from tilewright.targets.simt.scans import by_scan_parts, is_scan
from tilewright.targets.simt.totals import by_parts, is_total
from tilewright.targets.simt.transposes import by_tiles, is_transpose

_Applies = Callable[[Sequence[Computation], SimtMachine], object]
_Run = Callable[[Schedule, Sequence[Computation], SimtMachine, Choices], Schedule]

# By name: whether it applies to a group (truthy); the schedule; whether it changes the order of
# reductions, which exact arithmetic forbids.
FAMILIES: Final[dict[str, tuple[_Applies, _Run, bool]]] = {
    "attention": (attention_of, by_key_blocks, True),
    "transpose": (is_transpose, by_tiles, False),
    "scan": (is_scan, by_scan_parts, True),
    "total": (is_total, by_parts, True),
    "columns": (are_columns, by_columns, True),
    "rows": (rows_of, by_rows, True),
}


def reductions(
    kernel: Kernel,
    computations: Sequence[Computation],
    machine: SimtMachine,
    exact: bool,
) -> Iterator[Sketch]:
    """The families that apply, each legal with its defaults."""
    ordered = exact and not _are_whole(computations)
    for name, (applies, run, regroups) in FAMILIES.items():
        if (
            not computations
            or (ordered and regroups)
            or not applies(computations, machine)
        ):
            continue
        sketch = Sketch(name, partial(_run, run, kernel, tuple(computations), machine))
        # Its loops may depend on one another in a way that its pattern does not tell.
        if legal_point(kernel.name, sketch) is not None:
            yield sketch


def _are_whole(computations: Sequence[Computation]) -> bool:
    """Whether all reductions are of integers or truth values, whose order changes no result."""
    dtypes = (t for c in computations if c.reducer for t in c.reducer.dtypes)
    return not any(t.is_float for t in dtypes)


def _run(
    run: _Run,
    kernel: Kernel,
    computations: Sequence[Computation],
    machine: SimtMachine,
    choose: Choices,
) -> Schedule:
    return run(Schedule(kernel), computations, machine, choose)
