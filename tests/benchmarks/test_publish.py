"""What is published: only rows that count, and on the pages only what the rows say."""

from pathlib import Path

import click
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("torch")
from benchmarks import harness, publish
from tilewright.cli.rounds import RoundTable

FACTS = {"commit": "abc1234", "sources": "s", "processor": "A", "cpus": "2", "day": "2026-01-02",
         "packages": "onnxruntime 1"}  # fmt: skip
TIMES = {"tilewright": [1.0, 2.0, 1.0], "onnxruntime": [2.0, 2.0, 3.0]}


def row(name: str = "lenet", threads: int = 1, **more) -> RoundTable:
    fields = {
        "referenced": True,
        "error": {"tilewright": 2e-7, "onnxruntime": 0.0},
        "facts": FACTS,
    }
    return RoundTable(name, threads, list(TIMES), TIMES, **(fields | more))


def both() -> dict[tuple[str, int], RoundTable]:
    return {
        (n, t): row(n, t)
        for n in ("lenet", "matmul_512", "int8_matmul_1024")
        for t in (1, 2)
    }


@pytest.mark.parametrize(
    ("more", "why"),
    [
        pytest.param({"referenced": False}, "not compared", id="no-reference"),
        pytest.param(
            {"error": {"tilewright": 1.0, "onnxruntime": 0.0}}, "error", id="wrong"
        ),
        pytest.param({"failed": {"openvino": "broke"}}, "broke", id="failed"),
        pytest.param({"facts": {}}, "where it is from", id="of-unknown-origin"),
    ],
)
def test_a_row_that_does_not_count_is_left_out(more: dict, why: str, capsys):
    rows = {("lenet", 1): row(), ("vgg19", 1): row("vgg19", **more)}
    assert list(publish.countable(rows)) == [("lenet", 1)]
    assert "left out: vgg19 x1: " in (said := capsys.readouterr().err) and why in said


def test_rows_of_two_processors_are_refused():
    rows = {
        ("lenet", 1): row(),
        ("vgg19", 1): row("vgg19", facts=FACTS | {"processor": "B"}),
    }
    with pytest.raises(
        click.ClickException, match="one processor are published, found: A, B"
    ):
        publish.countable(rows)
    with pytest.raises(click.ClickException, match="found: no rows"):
        publish.countable({})


def test_the_newest_row_counts_and_probes_do_not(tmp_path: Path):
    store = harness.Rows(tmp_path / "rows.jsonl")
    for key, day in (("a", "1"), ("b", "2"), ("probe|lenet", "3")):
        store.add(row(key=key, facts=FACTS | {"day": day}))
    assert publish.newest(harness.Rows(store.path))["lenet", 1].facts["day"] == "2"


def test_published_rows_read_back(tmp_path: Path):
    path = tmp_path / "published.json"
    publish.write(both(), path)
    assert publish.read(path) == both()


@pytest.mark.parametrize("page", publish.PAGES)
def test_a_page_has_leads_errors_spread_and_where_they_are_from(page: str):
    said = publish.PAGES[page](both())
    assert "2.00" in said and "processors of A, 2026-01-02, commit abc1234" in said
    assert "2e-07" in said
    if page != "README.md":
        assert (
            "1.50-2.50" in said and "matmul_512" in said and "int8_matmul_1024" in said
        )


@pytest.mark.parametrize("page", publish.PAGES)
def test_the_page_has_a_place_for_them(page: str):
    text = (publish.ROOT / page).read_text(encoding="utf-8")
    assert "the figures" in publish.with_block(text, "the figures")


def test_the_pages_say_what_was_published():
    assert publish.outdated(publish.read()) == []


def test_a_page_that_says_something_else_is_found(tmp_path: Path):
    (tmp_path / "docs").mkdir()
    rows = both()
    for name, make in publish.PAGES.items():
        text = "before\n<!-- bench -->\nold\n<!-- /bench -->\nafter\n"
        (tmp_path / name).write_text(publish.with_block(text, make(rows)))
    assert publish.outdated(rows, tmp_path) == []
    page = tmp_path / "README.md"
    page.write_text(page.read_text().replace("2.00", "3.00"))
    assert publish.outdated(rows, tmp_path) == ["README.md"]
    with pytest.raises(ValueError, match="one <!-- bench --> block"):
        publish.with_block("no block", "x")
