"""Flags: read when asked, and a bad value is refused by name."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.base import flags
from tilewright.base.errors import FlagError
from tilewright.base.text import human_bytes


@pytest.mark.parametrize("flag", flags.TABLE, ids=lambda flag: flag.name)
def test_each_flag_has_a_default_and_a_line_of_explanation(flag, monkeypatch):
    monkeypatch.delenv(flag.name, raising=False)
    assert flag.get() == flag.default
    assert not flag.is_set
    monkeypatch.setenv(flag.name, "  ")
    assert flag.get() == flag.default
    assert flag.doc.endswith(".")
    assert len(flag.doc) < 100


def test_names_are_unique():
    names = [flag.name for flag in flags.TABLE]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("flag", "text", "value"),
    [
        (flags.DEBUG, "1", True),
        (flags.DEBUG, "Off", False),
        (flags.NUM_THREADS, "3", 3),
        (flags.OMP_NUM_THREADS, "4,2", 4),
        (flags.CACHE_SIZE, "512M", 512 * 2**20),
        (flags.CACHE_SIZE, "2GiB", 2 * 2**30),
        (flags.MEMORY_LIMIT, "1.5k", 1536),
        (flags.MEMORY_LIMIT, "77", 77),
        (flags.MEMORY_LIMIT, "7 b", 7),
        (flags.FALLBACK, "Error", "error"),
    ],
)
def test_values_are_read_at_call_time(flag, text, value, monkeypatch):
    monkeypatch.setenv(flag.name, text)
    assert flag.get() == value
    assert flag.is_set


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        (flags.DEBUG, "maybe"),
        (flags.NUM_THREADS, "0"),
        (flags.NUM_THREADS, "two"),
        (flags.OMP_NUM_THREADS, ","),
        (flags.CACHE_SIZE, "-1"),
        (flags.CACHE_SIZE, "1X"),
        (flags.CACHE_SIZE, "GB"),
        (flags.FALLBACK, "1"),
    ],
)
def test_a_bad_value_names_variable_value_and_what_is_expected(flag, text, monkeypatch):
    monkeypatch.setenv(flag.name, text)
    with pytest.raises(FlagError) as caught:
        flag.get()
    message = str(caught.value)
    assert flag.name in message
    assert repr(text) in message
    assert flag.expected in message
    assert "\n" not in message


def test_a_former_name_is_refused_with_the_present_one(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_STRICT", "1")
    with pytest.raises(FlagError, match="Set TILEWRIGHT_FALLBACK to warn or error"):
        flags.FALLBACK.get()


@given(st.integers(0, 2**60))
def test_sizes_read_back_exactly(size):
    assert flags.parse_size(str(size)) == size
    shown = flags.parse_size(human_bytes(size))
    assert abs(shown - size) <= 0.005 * size + 1


def test_the_documentation_lists_every_flag_and_no_other():
    page = (Path(__file__).parents[2] / "docs" / "index.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", page, re.M)
    assert sorted(rows) == sorted((flag.name, flag.doc) for flag in flags.TABLE)
