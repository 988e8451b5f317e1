"""The glossary: each term once, and every class or function that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.test_references import resolved

PAGE = Path(__file__).parents[2] / "docs" / "glossary.md"
ROWS = re.findall(
    r"^\| ([^|]+) \| ([^|]+) \| `([\w.]+)` \|$", PAGE.read_text(), re.MULTILINE
)


def test_every_row_has_a_term_a_meaning_and_a_name() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    headings = lines.count("| term | meaning | in the code |")
    assert headings >= 5 and len(lines) - headings == len(ROWS) > 60


def test_every_term_is_defined_once() -> None:
    terms = [term for term, _, _ in ROWS]
    assert sorted(set(terms)) == sorted(terms)


@pytest.mark.parametrize(("term", "name"), [(term, name) for term, _, name in ROWS])
def test_what_it_names_exists(term: str, name: str) -> None:
    assert resolved(f"tilewright.{name}"), term


def test_a_name_that_does_not_exist_is_found() -> None:
    assert not resolved("tilewright.loops.nodes.Missing")
