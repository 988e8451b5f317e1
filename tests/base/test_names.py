"""Names that are words, each once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tilewright.base.names import fresh, identifier, untaken


@given(st.text())
def test_every_text_has_a_word(text: str) -> None:
    word = identifier(text)
    assert word.isidentifier() and word.isascii()
    assert identifier(word) == word


def test_words() -> None:
    assert [identifier(x) for x in ("a.b", "1a", "", "é", "_a")] == [
        "a_b",
        "x1a",
        "x",
        "_",
        "_a",
    ]
    assert identifier("1a", "main_") == "main_1a"


@given(st.lists(st.sampled_from("ab")))
def test_no_name_is_given_twice(names: list[str]) -> None:
    taken: set[str] = {"a_3"}
    made = [fresh(taken, name) for name in names]
    assert taken == {"a_3", *made} and len(taken) == len(made) + 1
    assert [m for m in made if m in "ab"] == list(dict.fromkeys(names))


@given(st.lists(st.sampled_from(["a", "a:2", "a:2:2", "b"])))
def test_marked_names_are_unique_even_if_some_look_marked(names: list[str]) -> None:
    taken: set[str] = set()
    made = [fresh(taken, name, ":") for name in names]
    assert len(set(made)) == len(names)
    assert untaken(taken, "a", ":") not in taken
    assert all(m.startswith(name) for m, name in zip(made, names, strict=True))
