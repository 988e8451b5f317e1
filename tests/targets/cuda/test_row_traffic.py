"""The terms of the cost of rows are what the interpreters count."""

from __future__ import annotations

import pytest

from tests.loops.gpu_kernels import barriers as barriers_of
from tests.targets.cuda.test_traffic import OF, counted
from tests.targets.simt.groups import GROUPS, Group, row_sum, softmax
from tilewright.loops.launch import CombineThreads, LaunchProgram
from tilewright.loops.passes.to_launches import to_launches
from tilewright.loops.walk import walk
from tilewright.targets.simt.machine import GENERIC, SimtMachine
from tilewright.targets.simt.row_cost import SECTOR, barriers, read_bytes
from tilewright.targets.simt.rows import rows_of
from tilewright.targets.simt.schedules import sketches
from tilewright.testing.ptx.traffic import AccessKind


def launched(group: Group, lanes: int, of: SimtMachine = OF.simt) -> LaunchProgram:
    """Two rows in a block, each of some threads."""
    sketch = next(s for s in sketches(*group, of) if s.name == "rows")
    point = sketch.at({"lanes": lanes, "rows": 2})
    return to_launches(point.schedule.kernel, of.warp)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("lanes", [4, 8, 32, 128])
@pytest.mark.parametrize("make", [softmax, row_sum])
def test_rows_are_read_once_by_whole_sectors(make, lanes):
    """Softmax holds its inputs in registers between its passes."""
    group = make(32, 128)
    rows = rows_of(group[1], OF.simt)
    assert rows is not None
    found = counted(launched(group, lanes)).turns[AccessKind("global", False)]
    assert found == read_bytes(rows, lanes) // SECTOR


@pytest.mark.sampled(3)
@pytest.mark.parametrize("of", [OF.simt, GENERIC], ids=lambda of: of.name)
@pytest.mark.parametrize("lanes", [1, 2, 32, 64, 128])
@pytest.mark.parametrize("name", ["softmax", "row_sum", "argmax"])
def test_threads_of_a_row_meet_as_often_as_the_model_says(name, lanes, of):
    """And exchange registers in each of its trees, where the machine has warps."""
    group = GROUPS[name][0](32, 128)
    rows = rows_of(group[1], of)
    assert rows is not None
    p = launched(group, lanes, of)
    (launch,) = p.launches
    combined = [
        s.width for at in walk(launch.body) if isinstance(s := at.stmt, CombineThreads)
    ]
    within = min(lanes, of.warp)
    assert combined == [within] * rows.reductions * (within > 1)
    assert len(barriers_of(p)) == rows.reductions * barriers(of, lanes)
