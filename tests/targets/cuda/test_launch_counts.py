"""What columns, transposes, scans and phases ask of memory is what the interpreter counts.

Each closed form is for odd sizes and partial tiles, on machines that differ in what it depends on.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.targets.cuda.test_traffic import OF, counted
from tests.targets.simt.groups import Group, column_sum, families, scan, transpose
from tests.targets.simt.operators import families as operator_families
from tests.targets.simt.test_phases import GRU, LSTM, steps
from tilewright.base.dtypes import DType, float16, float32, float64
from tilewright.loops.launch import LaunchProgram
from tilewright.loops.passes.to_launches import to_launches
from tilewright.schedule import Schedule
from tilewright.targets.cuda.machine import machine
from tilewright.targets.simt.column_cost import column_counts, columns_of
from tilewright.targets.simt.counts import LaunchCounts
from tilewright.targets.simt.machine import GENERIC, SimtMachine
from tilewright.targets.simt.phase_cost import meetings
from tilewright.targets.simt.phases import work_together
from tilewright.targets.simt.scan_cost import Scans, scan_counts
from tilewright.targets.simt.transpose_cost import TransposeShape, transpose_counts
from tilewright.testing.ptx.traffic import AccessKind

# With warps, without any that are known, and with less shared memory than rows of scans take.
SMALL = replace(OF.simt, name="small", shared=4096, block_threads=256, units=3)
MACHINES = {of.name: of for of in (OF.simt, machine("sm_70").simt, GENERIC, SMALL)}


def launched(
    group: Group, family: str, of: SimtMachine, **values: object
) -> LaunchProgram:
    sketch = next(s for s in families(group, of) if s.name == family)
    return to_launches(sketch.at(values).schedule.kernel, of.warp)


def asked(p: LaunchProgram) -> LaunchCounts:
    """What the interpreter of PTX counts."""
    found = counted(p)
    kinds = [AccessKind(x, w) for x in ("global", "shared") for w in (False, True)]
    read, written, loaded, stored = (found.turns[kind] for kind in kinds)
    held = max(sum(b.size * b.dtype.itemsize for b in x.shared) for x in p.launches)
    return LaunchCounts(read, written, stored, loaded, found.meetings, held)


COLUMNS = {
    "whole": ((64, 64), {"columns": 32, "parts": 8}, float32),
    "ragged": ((129, 70), {"columns": 32, "parts": 8}, float32),
    "narrow": ((100, 33), {"columns": 16, "parts": 16}, float32),
    "fewer than a block": ((77, 5), {"columns": 32, "parts": 8}, float32),
    "alone": ((70, 40), {"columns": 8, "parts": 1}, float32),
    "one by one": ((65, 9), {"columns": 1, "parts": 64}, float32),
    "wide": ((90, 34), {"columns": 64, "parts": 2}, float32),
    "half": ((70, 20), {"columns": 8, "parts": 16}, float16),
    "double": ((70, 20), {"columns": 8, "parts": 16}, float64),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("of", MACHINES)
@pytest.mark.parametrize("name", COLUMNS)
def test_columns(name, of):
    sizes, values, dtype = COLUMNS[name]
    group = column_sum(*sizes, dtype)
    found = column_counts(columns_of(*group[1]), *values.values(), MACHINES[of])
    assert asked(launched(group, "columns", MACHINES[of], **values)) == found


def test_parts_of_columns_are_in_different_banks():
    """Each of 32 neighbors has its own: a turn for each request."""
    group = column_sum(64, 64)
    found = counted(launched(group, "columns", OF.simt, columns=32, parts=8))
    for kind in (AccessKind("shared", False), AccessKind("shared", True)):
        assert found.turns[kind] == found.requests[kind]


TURNS = {
    "whole": ((64, 64), {"tile": 32, "rows": 8}, float32),
    "ragged": ((40, 33), {"tile": 32, "rows": 8}, float32),
    "small tiles": ((19, 70), {"tile": 8, "rows": 8}, float32),
    "half": ((50, 9), {"tile": 32, "rows": 8}, float16),
    "double": ((33, 33), {"tile": 16, "rows": 1}, float64),
    "less than a tile": ((5, 40), {"tile": 32, "rows": 8}, float32),
    "in four rounds": ((40, 5), {"tile": 16, "rows": 4}, float32),
}


def turned(sizes: tuple[int, int], dtype: DType) -> TransposeShape:
    """That of `groups.transpose`, which has two in between."""
    m, n = sizes
    size = dtype.itemsize
    return TransposeShape(n, m, (2,), (2 * n, n), (2 * m, m), (size, size))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("of", [x for x in MACHINES if x != "small"])
@pytest.mark.parametrize("name", TURNS)
def test_transposes(name, of):
    sizes, values, dtype = TURNS[name]
    program = launched(transpose(*sizes, dtype), "transpose", MACHINES[of], **values)
    found = transpose_counts(turned(sizes, dtype), *values.values(), MACHINES[of])
    assert asked(program) == found


SCANS = {
    "rows": (lambda: scan(3, 100), Scans(3, 100, 0, 4, (True, True)), 8),
    "odd rows": (lambda: scan(5, 37), Scans(5, 37, 0, 4, (True, True)), 8),
    "even parts": (lambda: scan(3, 64), Scans(3, 64, 0, 4, (True, True)), 32),
    "two warps": (lambda: scan(2, 300), Scans(2, 300, 0, 4, (True, True)), 64),
    "half": (
        lambda: scan(3, 65, t=float16),
        Scans(3, 65, 0, 2, (True, True)),
        8,
    ),
    "double": (
        lambda: scan(2, 50, t=float64),
        Scans(2, 50, 0, 8, (True, True)),
        16,
    ),
    "in memory": (lambda: scan(3, 100), Scans(3, 100, 0, 4, (False, False)), 8),
    "one row": (lambda: scan(1, 37), Scans(1, 37, 0, 4, (False, False)), 8),
    "beside": (lambda: scan(70, 5, True), Scans(1, 70, 5, 4, (False, False)), 4),
    "ragged": (lambda: scan(70, 40, True), Scans(1, 70, 40, 4, (False, False)), 4),
    "half beside": (
        lambda: scan(70, 3, True, t=float16),
        Scans(1, 70, 3, 2, (False, False)),
        2,
    ),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("of", [x for x in MACHINES if x != "small"])
@pytest.mark.parametrize("name", SCANS)
def test_scans(name, of):
    make, shape, parts = SCANS[name]
    values: dict[str, object] = {"parts": parts}
    if not shape.columns and shape.rows > 1:
        values |= {"x.staged": shape.staged[0], "y.staged": shape.staged[1]}
    program = launched(make(), "scan", MACHINES[of], **values)
    assert asked(program) == scan_counts(shape, parts, MACHINES[of])


@pytest.mark.parametrize("threads", [8, 32])
@pytest.mark.parametrize("text", [LSTM, GRU])
def test_threads_meet_once_in_front_of_each_phase(text, threads):
    """Steps of a recurrence: one barrier serves all that is written before it."""
    k = steps(text)
    sketch = next(s for s in operator_families(k, OF.simt) if s.name == "phases")
    point = sketch.default()
    (name,) = (n for n in point.values if n.endswith(".threads"))
    point = sketch.at({name: threads})
    found = counted(to_launches(point.schedule.kernel, OF.simt.warp))
    work = work_together(Schedule(k), name.removesuffix(".threads"))
    assert found.meetings == meetings(work)


def test_a_model_that_forgets_a_partial_tile_is_found():
    """A planted fault: the sizes of the whole tiles only."""
    sizes, values, dtype = TURNS["ragged"]
    program = launched(transpose(*sizes, dtype), "transpose", OF.simt, **values)
    whole = transpose_counts(turned((32, 32), dtype), *values.values(), OF.simt)
    assert asked(program) != whole
