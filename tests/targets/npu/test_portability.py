"""The figure of networks on machines: its bars, and that the one in the documentation is right."""

import re
from pathlib import Path
from xml.etree import ElementTree

from tests.targets.npu.programs import example
from tilewright.report.portability import picture
from tilewright.targets import npu

SVG = "{http://www.w3.org/2000/svg}"
DOCS = Path(__file__).parents[3] / "docs"
BARS = [
    {"program": p, "machine": m, "cycles": n, "utilization": 0.5, "energy": 1234.0}
    for p, m, n in [("a", "x", 10), ("a", "y", 1000), ("b", "x", 100), ("b", "y", 99)]
]


def bars(svg: str) -> list[tuple[str, float, float, float, str]]:
    """Title, x, bottom, height and color of each bar."""
    found = []
    for bar in ElementTree.fromstring(svg).iter(f"{SVG}rect"):
        x, y, height = (float(bar.get(name, "")) for name in ("x", "y", "height"))
        title = bar.findtext(f"{SVG}title")
        found.append((title or "", x, y + height, height, bar.get("fill", "")))
    return found


def test_a_bar_is_as_high_as_the_logarithm_of_its_cycles() -> None:
    a, b, c, d = bars(picture(BARS))
    assert a[0] == "a on x: 10 cycles, 50.0% used, 1,234 nJ"
    assert a[3] == 0 and b[3] == 2 * c[3] and 0.97 * c[3] < d[3] < c[3]
    assert len({bar[2] for bar in (a, b, c, d)}) == 1
    assert a[1] < b[1] < c[1] < d[1] and c[1] - b[1] > b[1] - a[1]
    assert a[4] == c[4] != b[4] == d[4]


def test_names_are_escaped_and_equal_cycles_are_drawn() -> None:
    (bar,) = bars(picture([{**BARS[0], "program": "<&>"}]))
    assert bar[0].startswith("<&> on x")


def test_a_bar_has_what_the_simulator_says() -> None:
    """Of a quick network, from the example that makes the figure."""
    machine = npu.MACHINES["wide"]
    found = example().measured("dense", machine)
    timing = npu.map_onto(example().NETWORKS["dense"].program, machine).timing
    assert (found["program"], found["machine"]) == ("dense", "wide")
    assert found["cycles"] == timing.cycles == 1183


def test_the_figure_of_the_documentation_has_the_figures_of_its_table() -> None:
    rows = re.findall(
        r"^(\w+) +(\w+) +(\d+) +([\d.]+%) +(\d+)  \d+ [MV]",
        (DOCS / "npu.md").read_text(),
        re.MULTILINE,
    )
    table = {
        f"{name} on {machine}: {int(cycles):,} cycles, {used} used, {int(energy):,} nJ"
        for name, machine, cycles, used, energy in rows
    }
    assert len(table) == 30
    drawn = {bar[0] for bar in bars((DOCS / "npu_portability.svg").read_text())}
    assert drawn == table
