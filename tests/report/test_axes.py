"""Axes and labels: round ticks, places, labels that do not meet."""

import re
from importlib.resources import files

import pytest

from tilewright.report.axes import COLORS, ChartAxis, LabelPlacer


@pytest.mark.parametrize(
    ("axis", "ticks"),
    [
        (ChartAxis(0, 10, 0, 100), [0, 2, 4, 6, 8, 10]),
        (ChartAxis(0.5, 3000, 0, 100, log=True), [1, 10, 100, 1000]),
        (ChartAxis(15, 400, 0, 100, log=True), [20, 50, 100, 200]),
        (ChartAxis(1, 1e12, 0, 100, log=True), [1, 1e3, 1e6, 1e9, 1e12]),
        (ChartAxis(0, 0, 0, 100), [0]),
        (ChartAxis(3, 4, 0, 100), [3, 3.2, 3.4, 3.6, 3.8, 4]),
    ],
)
def test_ticks_are_round_and_inside(axis, ticks):
    assert axis.ticks() == pytest.approx(ticks)


def test_places_are_linear_or_logarithmic():
    assert ChartAxis(0, 4, 10, 50).at(1) == 20
    assert ChartAxis(1, 100, 0, 2, log=True).at(10) == pytest.approx(1)
    assert ChartAxis(7, 7, 3, 9).at(7) == 3


def test_the_style_sheet_has_all_colors_in_both_modes():
    style = files("tilewright.report").joinpath("assets/report.css").read_text()
    for n in range(COLORS):
        light, dark = re.findall(rf"--c{n}: (#\w{{6}});", style)
        assert light != dark and f".c{n} {{ fill: var(--c{n}); }}" in style
    assert f"--c{COLORS}:" not in style
    found = re.findall(r"--c\d+: (#\w{6});", style)
    assert len(set(found)) == len(found) == 2 * COLORS


def test_labels_of_one_place_do_not_meet():
    labels = LabelPlacer((0, 0, 400, 200))
    made = [labels.place(200, 100, f"kernel {n}") for n in range(20)]
    shown = [m for m in made if m]
    assert 2 <= len(shown) < 20  # the rest has no place
    assert len({re.sub(">.*", "", m) for m in shown}) == len(shown)
    for n, a in enumerate(labels.taken):
        for b in labels.taken[n + 1 :]:
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
