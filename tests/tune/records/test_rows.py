"""Rows as JSON Lines and back; what is not a row is named and costs no other."""

from __future__ import annotations

import copy
import json

import pytest

from tests.tune.records.made import ROWS
from tilewright.base.errors import InputError
from tilewright.tune.records import jsonl
from tilewright.tune.records.jsonl import BadLine
from tilewright.tune.records.rows import MARGIN, Choice, plain, row_of


def test_rows_are_the_same_there_and_back() -> None:
    lines = [jsonl.line(row) for row in ROWS]
    assert all(text.count("\n") == 1 and text.endswith("\n") for text in lines)
    assert list(jsonl.read(text.encode() for text in lines)) == ROWS
    again = [jsonl.line(row) for row in jsonl.read(t.encode() for t in lines)]  # type: ignore[arg-type]
    assert again == lines


def test_a_line_says_everything_by_itself() -> None:
    table = json.loads(jsonl.line(ROWS[0]))
    assert table["key"]["processor"] == "Brand 9000"
    assert table["run"]["model"] == "model.onnx"
    assert row_of(table) == ROWS[0]


def test_bad_lines_are_named_and_the_others_read() -> None:
    good = jsonl.line(ROWS[0]).encode()
    lines = [b"{", good, b"", b"\xff\xfe", b"[]", good, b"[" * 50_000, b"x" * (1 << 25)]
    found = list(jsonl.read(lines))
    bad = [f for f in found if isinstance(f, BadLine)]
    assert [b.number for b in bad] == [1, 4, 5, 7, 8]
    assert [f for f in found if not isinstance(f, BadLine)] == [ROWS[0], ROWS[0]]
    assert "line 1: it is not JSON" in str(bad[0])
    assert "16,777,216 bytes" in str(bad[-1])


WRONG = [
    ("record", "program", "not a record of a trial or a choice"),
    ("format", 2, "its format is 2"),
    ("key", None, "a table of its parts"),
    ("task", 3, "its task is 3, not a text"),
    ("run", [], "its run is"),
    ("time", float("nan"), "its time is nan, not a finite"),
    ("time", True, "its time is True"),
    ("candidate", "{}", "not the key of a candidate"),
    ("candidate", 7, "its candidate is 7"),
    ("status", "fine", "its status is 'fine', not one of ok, refused"),
    ("rounds", "1e-3", "its rounds is '1e-3', not a list"),
    ("rounds", [float("inf")], "its rounds is inf"),
    ("rounds", [-1.0], "its rounds is -1.0"),
    ("reason", None, "its reason is None"),
    ("noise", "1", "its noise is '1'"),
    ("predicted", "1", "its predicted is '1'"),
    ("strategy", 1, "its strategy is 1"),
    ("features", 3, "its features is 3"),
    ("features", {"set": "a", "version": 1, "data": "!"}, "not base64"),
]


@pytest.mark.parametrize(("part", "value", "why"), WRONG)
def test_each_part_is_checked(part: str, value: object, why: str) -> None:
    table = copy.deepcopy(plain(ROWS[0]))
    table[part] = value
    with pytest.raises(InputError) as caught:
        row_of(table)
    assert why in caught.value.message


@pytest.mark.parametrize("part", ["seconds", "default_seconds"])
def test_a_choice_has_both_times(part: str) -> None:
    choice = next(r for r in ROWS if isinstance(r, Choice))
    for value in (0, None, -1, "2"):
        with pytest.raises(InputError, match=r"its (default_)?seconds is"):
            row_of(plain(choice) | {part: value})


def test_a_choice_pays_from_the_margin_on() -> None:
    choice = next(r for r in ROWS if isinstance(r, Choice))
    of = choice.__class__
    parts = (choice.key, choice.task, choice.run, choice.time, choice.candidate)
    assert of(*parts, 1.0, MARGIN).pays
    assert not of(*parts, 1.0, MARGIN - 1e-6).pays
    assert not of(*parts[:-1], None).pays
