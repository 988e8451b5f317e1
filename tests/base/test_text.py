"""Text layout and human figures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.base import text


def test_indent_leaves_empty_lines_alone():
    assert text.indent("a\n\nb") == "  a\n\n  b"
    assert text.indent("a", 2, "\t") == "\t\ta"


def test_wrap_keeps_one_line_when_it_fits():
    assert text.wrap(["a", "b"], opening="f(", closing=")") == "f(a, b)"
    assert text.wrap([], opening="f(", closing=")") == "f()"


def test_wrap_fills_indented_lines():
    out = text.wrap(["alpha", "beta", "gamma"], opening="f(", closing=")", width=15)
    assert out == "f(\n  alpha, beta,\n  gamma\n)"


@given(st.lists(st.text("abc", min_size=1, max_size=9)), st.integers(12, 40))
def test_wrap_stays_within_the_width_and_loses_nothing(items, width):
    out = text.wrap(items, opening="f(", closing=")", width=width)
    assert all(len(line) <= width for line in out.split("\n"))
    assert "".join(out.split()) == "f(" + ",".join(items) + ")"


def test_columns_align():
    rows = [["name", "time"], ["conv", "12"], ["a"]]
    assert text.columns(rows, "<>") == "name  time\nconv    12\na"
    assert text.columns([]) == ""


def test_a_reason_is_without_its_number_and_file():
    found = FileNotFoundError(2, "No such file or directory", "a.json")
    assert text.reason(found) == "No such file or directory"
    assert text.reason(ValueError("it is no number")) == "it is no number"
    assert text.reason(OSError("the lock is held")) == "the lock is held"


def test_words():
    assert text.plural(1, "node") == "1 node"
    assert text.plural(2000, "entry", "entries") == "2,000 entries"
    assert text.listing(["a", "b", "c"], 2) == "a, b and 1 more"
    assert text.did_you_mean("sofmax", ["softmax", "relu"]) == "Did you mean 'softmax'?"
    assert text.did_you_mean("zzz", ["relu"]) == "Known: relu"
    # A common syllable is no likeness; the beginning of a long name is.
    assert text.nearest("Frobnicate", ["Concat"]) is None
    assert text.nearest("LayerNorm", ["LayerNormalization"]) == "LayerNormalization"
    assert text.did_you_mean("zzz", []) is None


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1000, "1000 B"),
        (1023.9, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (2 * 1024**3, "2.00 GiB"),
        (-1536, "-1.50 KiB"),
        (10**30, "888178419700125 PiB"),
    ],
)
def test_human_bytes(size, expected):
    assert text.human_bytes(size) == expected


@pytest.mark.parametrize(
    ("count", "unit", "expected"),
    [
        (7, "", "7"),
        (999, "", "999"),
        (1_234_567, "", "1.23 M"),
        (999_900, "", "1.00 M"),
        (4.1e9, "FLOP", "4.10 GFLOP"),
        (0.5, "", "0.50"),
    ],
)
def test_human_count(count, unit, expected):
    assert text.human_count(count, unit) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0 ns"),
        (3.2e-10, "0.32 ns"),
        (1.23e-5, "12.3 µs"),
        (0.9996e-3, "1.00 ms"),
        (0.25, "250 ms"),
        (59.9, "59.9 s"),
        (59.96, "1 min 00 s"),
        (125, "2 min 05 s"),
        (7260, "2 h 01 min"),
        (-0.25, "-250 ms"),
    ],
)
def test_human_time(seconds, expected):
    assert text.human_time(seconds) == expected


def test_what_acts_on_a_terminal_is_shown():
    assert text.visible("plain é 語 \t\n") == "plain é 語 \t\n"
    assert (
        text.visible("\x1b[2J\x07\x9b\u202e\r\x7f") == r"\x1b[2J\x07\x9b\u202e\x0d\x7f"
    )
