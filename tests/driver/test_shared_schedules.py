"""How kernels of code for ranges of sizes are scheduled: by units, positions or rows, and why."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.driver.ranges import test_positions, test_ranged
from tilewright.base.events import Event
from tilewright.driver import schedules
from tilewright.driver.explain import explained_range
from tilewright.driver.options import Options
from tilewright.driver.schedule_records import ScheduleRecord, shared_records
from tilewright.frontends.load import load
from tilewright.graph.specialize import specialize

CONVOLUTION: list[Any] = [
    ("Conv", {}, (16, 16, 1, 16)),  # of long pieces of rows: no rectangles
    ("GlobalAveragePool", {}, ()),
]
SIZES = {"n": 1, "h": (9, 14), "w": (18, 24, 2)}
HOW: Any = {"jit": False, "threads": 1, "cache": False}


def ways(source: Any, dims: Any) -> dict[str, ScheduleRecord]:
    return {r.sketch: r for r in schedules(source, dims=dims, **HOW)}


def test_a_convolution_runs_by_positions_and_a_pooling_whole() -> None:
    """As the code does: its events are those that the compilation of the model emits."""
    found = ways(test_positions.model(CONVOLUTION), SIZES)
    assert set(found) == {"positions", "whole"}
    by, whole = found["positions"], found["whole"]
    assert (
        by.sources
        and by.parts[0] == "shared code for h 9 to 14, w 18 to 24 in steps of 2"
    )
    assert "so many at a time: " in by.parts[1]
    assert by.refused == ("units (not-parted): its units are not alike",)
    assert by.reasons[:3] == ["chosen: positions", *by.parts]
    assert by.to_dict()["parts"] == list(by.parts)
    assert "it does not do the same at each position" in " ".join(whole.refused)
    assert "rows (not-parted): " in " ".join(whole.refused)


def test_a_depthwise_convolution_runs_by_rectangles() -> None:
    source = test_positions.model(test_positions.MODELS["depthwise"])
    made = schedules(source, dims={"n": 1, "h": (17, 22), "w": (18, 21)}, **HOW)
    said = [r.parts[1] for r in made if "rectangles" in r.parts[1]]
    assert said
    assert all(re.fullmatch(r"positions in rectangles of \d+ by \d+", t) for t in said)


@pytest.mark.parametrize(
    ("name", "way", "said"),
    [
        ("convolution", "units", "units of n, so many at a time: "),
        ("attention", "rows", "rows, so many at a time: "),
    ],
)
def test_units_and_rows(name: str, way: str, said: str) -> None:
    source = test_ranged.model(test_ranged.MODELS[name])
    assert said in ways(source, {"n": (1, 40)})[way].parts[1]


def test_one_shape_has_no_shared_code() -> None:
    source = test_ranged.model(test_ranged.MODELS["rows"])
    assert ways(source, {"n": [2, 5]}) == {}
    (record,) = schedules(source, dims={"n": 4}, **HOW)
    assert not record.parts and record.parameters


def moment(kind: str, start: float, **fields: Any) -> Event:
    return Event(kind, start, 0.0, 1, fields)


def kernel(start: float, name: str, way: str) -> Event:
    return moment("shared-kernel", start, kernel=name, sources=["s"], way=way)


def test_records_are_of_the_kernels_that_are_code() -> None:
    """What another kernel, another plan, or a plan without code reported is not theirs."""
    whole = {"total": 1, "sizes": {"n": range(1, 9)}}
    counts = {"kernel": "k", "at_a_time": [8, 2, 1], "points": 16}
    log = [
        kernel(1, "lost", "whole"),
        moment("kernels", 1, **whole, error="UnsupportedError"),
        moment("kept-whole", 1.5, kernel="k", reason="of a plan"),
        moment("not-parted", 2.1, kernel="k", by="units", reason="not alike"),
        moment("positions", 2.2, **counts, few=5, by=[4]),
        kernel(2, "kept", "positions"),
        moment("kernels", 2, **whole),
        kernel(3, "alone", "whole"),
        moment("kernels", 3, total=1),
    ]
    (record,) = shared_records(log)
    assert (record.kernel, record.sketch) == ("kept", "positions")
    assert record.refused == ("units (not-parted): not alike",)
    assert record.parts == (
        "shared code for n 1 to 8",
        "positions of 16 points, so many at a time: 8, the rest by 2 and 1; "
        "up to 5 points directly, by 4",
    )


def test_a_range_is_explained_with_its_rewrites() -> None:
    """Winograd's groups, which a range of images has not, are those of one size."""
    source = load(test_positions.model([("Conv", {"pads": [1] * 4}, (64, 64, 3, 3))]))
    here = specialize(source, {"n": 1, "h": 9, "w": 8})
    made = explained_range(source, SIZES, here, Options(threads=1))
    assert {r.sketch for r in made.shared} == {"positions"}
    kinds = {e.kind for e in made.log}
    assert {"positions", "not-parted", "pass"} <= kinds and "winograd" not in kinds
    assert not made.kernels and made.before is here
