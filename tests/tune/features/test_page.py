"""The page of features has every column; `pytest --update-golden` writes its table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tilewright.tune.features import Column, Facts, feature_sets
from tilewright.tune.features.halide_columns import TYPES

PAGE = Path(__file__).parents[3] / "docs/tuning-features.md"
MARK, END = "<!-- columns -->\n", "<!-- /columns -->"
# What numbers a column among several, in names and in what they say.
NUMBER = re.compile(
    r"(?<=\bB)\d+|(?<=buffer)\d+|(?<=touch)\d+|(?<=at_count_)\d+|(?<=at_reuse_)\d+"
    r"|(?<=at_topdown_)\d+|(?<=curve_)\d+|(?<=tensor_)\d+|(?<=trips_)\d+|(?<=bytes_)\d+"
)
COUNTED = re.compile(
    r"(?<=tensor )\d+|(?<=access )\d+|(?<=buffer )\d+|(?<=loop )\d+|(?<=parameter )\d+"
    r"|(?<=is )\d+(?=,)|^\d+(?= less)|\d+(?=/10)"
)
OF_TYPE = re.compile(rf"\b({'|'.join(TYPES)})\b")


def template(column: Column, halide: bool) -> Column:
    """The column with N for its number, and TYPE for its type."""
    name, doc = NUMBER.sub("N", column.name), COUNTED.sub("N", column.doc)
    if halide:
        name = re.sub(rf"_({'|'.join(TYPES)})$", "_TYPE", name)
        doc = OF_TYPE.sub("TYPE", doc)
    return Column(name, column.unit, doc)


def table() -> str:
    lines = []
    for features in feature_sets(Facts()):
        halide = features.name == "halide"
        found: dict[Column, int] = {}
        for column in features.columns:
            made = template(column, halide)
            found[made] = found.get(made, 0) + 1
        lines += [f"### {features.name}, version {features.version}", ""]
        lines += [f"Source: {features.source}.", ""]
        lines += ["| column | of these | unit | what it is |", "|---|---|---|---|"]
        for c, n in found.items():
            unit = c.unit.replace("|x|", "abs(x)")  # a bar would end the cell
            lines.append(f"| `{c.name}` | {n} | {unit} | {c.doc} |")
        lines.append("")
    return "\n".join(lines)


def test_the_page_has_every_column(request: pytest.FixtureRequest):
    page = PAGE.read_text()
    before, rest = page.split(MARK)
    shown, after = rest.split(END)
    if request.config.getoption("--update-golden"):
        PAGE.write_text(f"{before}{MARK}{table()}{END}{after}")
    else:
        assert shown == table()


def test_templates_stand_for_what_they_count():
    """No two columns of one template say different things but for the number and the type."""
    for features in feature_sets(Facts()):
        halide = features.name == "halide"
        by_name: dict[str, set[tuple[str, str]]] = {}
        for column in features.columns:
            made = template(column, halide)
            by_name.setdefault(made.name, set()).add((made.unit, made.doc))
        assert {name: v for name, v in by_name.items() if len(v) > 1} == {}
        assert all(c.unit and c.doc for c in features.columns)


def test_a_column_that_is_new_is_missed(monkeypatch):
    from tilewright.tune.features import configuration

    columns = configuration.WithoutLoops().columns
    more = property(lambda self: (*columns, Column("new", "ns", "something else")))
    monkeypatch.setattr(configuration.WithoutLoops, "columns", more)
    assert "`new`" in table() and "`new`" not in PAGE.read_text()
