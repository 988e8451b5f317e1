"""explore: the published table, searches, pages and bad input."""

import json
import re
from xml.etree import ElementTree

import pytest

from tilewright.cli import explore
from tilewright.dataflow.text import from_json

SVG = "{http://www.w3.org/2000/svg}"

CONV = ["conv2d:1x28x28,6x5x5", "--pes", "16,128", "--expand", "conv=mv,op,lmv"]


def test_the_published_table(command):
    arguments = (*CONV, "--volume", "array", "--schedule", "lts,rlx")
    found = command("explore", *arguments)
    assert found.code == 0, found.err
    rows = {line.split()[0]: line.split()[2:] for line in found.out.splitlines()[3:6]}
    assert rows == {
        "mv": ["129,024", "145,728", "35,136"],
        "op": ["222,486", "194,113", "107,713"],
        "lmv": ["150,486", "35,713", "35,713"],
    }
    assert "volume=array" in found.out and "exact" in found.out


def test_a_model_by_search_as_json(command, perceptron):
    found = command("explore", perceptron, "--pes", "4,8", "--limit", 8, "--json")
    assert found.code == 0, found.err
    assert not found.json["exact"] and len(found.json["points"]) <= 8
    assert {p["pes"] for p in found.json["points"]} == {4, 8}
    assert all(
        found.json["bounds"][str(p["pes"])] <= p["makespan"]
        for p in found.json["points"]
    )


def test_the_best_is_the_shortest_of_all_schedules(command, perceptron):
    arguments = ("explore", perceptron, "--pes", "2,4", "--limit", 3)
    best = command(*arguments, "--json").json["best"]
    lines = command(*arguments).out.splitlines()
    heading = next(line for line in lines if line.startswith("PEs"))
    assert heading.split()[:6] == ["PEs", "best", "SB-LTS", "SB-RLX", "list", "no"]
    for line, (pes, row) in zip(
        lines[lines.index(heading) + 1 :], best.items(), strict=False
    ):
        row["list"] = min(row["list-lts"], row["list-rlx"])
        made = [row[how] for how in ("lts", "rlx", "list", "baseline")]
        assert row["makespan"] == row[row["method"]] == min(made)
        assert line.split()[:6] == [pes, *(f"{n:,}" for n in (min(made), *made))]


def test_only_the_schedules_that_are_named_count(command, perceptron):
    every = {"lts", "rlx", "list-lts", "list-rlx", "baseline"}
    arguments = ("explore", perceptron, "--pes", "2,4")
    found = command(*arguments, "--json").json["points"]
    assert {p["method"] for p in found} <= every
    assert {name for p in found for name in p["tried"]} == every
    gang = command(*arguments, "--schedule", "lts,rlx", "--json").json["points"]
    assert {name for p in gang for name in p["tried"]} == {"lts", "rlx"}
    least, longer = (
        [min(p["makespan"] for p in points if p["pes"] == n) for n in (2, 4)]
        for points in (found, gang)
    )
    assert all(a <= b for a, b in zip(least, longer, strict=True)) and least != longer


def test_a_schedule_that_does_not_exist_is_refused(command):
    found = command("explore", "matmul", "--schedule", "lts,best")
    assert found.code == 2 and "'lts,best': expected some of lts,rlx" in found.err


def test_a_search_says_how_far_it_can_be_off(command, perceptron):
    found = command("explore", perceptron, "--pes", "4", "--limit", 3)
    assert (
        "searched: 3 combinations were scheduled; the optimum may be up to" in found.out
    )


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "is one of them"),
        (0.004, "may be up to 0.4% shorter"),
        (0.123, "may be up to 12% shorter"),
    ],
)
def test_how_far_the_optimum_can_be_is_never_none_by_rounding(share, text):
    assert explore._away(share).startswith(text)


def test_the_report_is_a_page_with_a_picture(command, tmp_path):
    page = tmp_path / "explore.html"
    found = command("explore", *CONV, "--report", page)
    assert found.code == 0 and "wrote" in found.err
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert "<td>mv</td>" in text and "129,024" in text
    pictures = [
        ElementTree.fromstring(p) for p in re.findall("<svg.*?</svg>", text, re.DOTALL)
    ]
    assert len(pictures) == 3
    for picture in pictures:
        assert any("volume=part" in text.text for text in picture.iter(f"{SVG}text"))
    bars = pictures[1].findall(f"{SVG}rect")
    titles = [bar.find(f"{SVG}title").text for bar in bars]
    assert any(
        re.match(r"conv2d\.\w+.*: \d+ tasks, cycles 14,400 to ", t) for t in titles
    )


def test_the_graph_collapses_equal_tasks(command, tmp_path):
    arguments = ["conv2d:1x28x28,6x5x5", "--pes", "16", "--expand", "conv=mv"]
    for name in ("graph.svg", "graph.dot", "graph.json"):
        found = command("explore", *arguments, "--graph", tmp_path / name)
        assert found.code == 0 and f"{name}" in found.err
    drawing = ElementTree.parse(tmp_path / "graph.svg").getroot()
    labels = [text.text for text in drawing.iter(f"{SVG}text")]
    assert "conv2d.conv.mv x576" in labels and labels.count("downsampler") == 1
    assert "conv2d: elements on each edge, volume=part" in labels
    assert "conv2d.conv.mv x576" in (tmp_path / "graph.dot").read_text()
    nodes = from_json((tmp_path / "graph.json").read_text()).nodes
    assert [n.count for n in nodes if n.name == "conv2d.conv.mv"] == [576]


def test_expansions_of_one_name_add_up(command):
    twice = [arg for name in ("mv", "op") for arg in ("--expand", f"matmul={name}")]
    found = command("explore", "matmul", "--pes", "4", *twice, "--json")
    assert {point["choice"][0] for point in found.json["points"]} == {"mv", "op"}


def test_a_later_run_goes_on_with_the_results(command, perceptron, tmp_path):
    path = tmp_path / "points.jsonl"
    first = command("explore", perceptron, "--pes", "4", "--results", path, "--json")
    again = command("explore", perceptron, "--pes", "4", "--results", path, "--json")
    assert first.json == again.json
    _, *lines = path.read_text().splitlines()
    points = {tuple(json.loads(line)["choice"]) for line in lines}
    assert points == {tuple(point["choice"]) for point in first.json["points"]}
    other = command("explore", "matmul", "--pes", "4", "--results", path)
    assert other.code == 1 and "results of another model" in other.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope.onnx"], "no such file"),
        (["model.tw"], "an artifact contains machine code, not the model"),
        (["conv2d:3x2,6"], "the sizes of a conv2d are malformed: 3x2,6"),
        (["conv2d:1x3x3,4x5x5"], "the sizes of a conv2d are malformed"),
        (
            ["conv2d:1x9x9,4x3x3x3"],
            "the sizes of a conv2d are malformed: 1x9x9,4x3x3x3",
        ),
        (["matmul:4x,4x4"], "the sizes of a matmul are malformed"),
        (["matmul", "--graph", "graph.png"], "a task graph cannot be written as .png"),
        (["matmul", "--report", "report.pdf"], "a report is an HTML page, not .pdf"),
        (["matmul", "--expand", "conv=mv"], "which is not in the network"),
        (["matmul", "--expand", "matmul=direct"], "known: lmv, mv, op"),
        (["matmul", "--expand", "matmul=mv,foo"], "no expansion 'foo' of matmul"),
    ],
)
def test_bad_input_is_one_line(command, arguments, message):
    found = command("explore", *arguments)
    assert found.code == 1
    assert message in found.err and found.err.count("\n") == 1
