"""HTML by construction: escaping, void elements, attributes, tables."""

from tilewright.base.html import Markup, element, join, table


def test_text_is_escaped_and_markup_is_not():
    inner = element("b", "a < b & c")
    assert inner == "<b>a &lt; b &amp; c</b>" and isinstance(inner, Markup)
    assert element("p", inner, "<i>") == f"<p>{inner}&lt;i&gt;</p>"
    assert join(["<", inner]) == f"&lt;{inner}"


def test_attributes_are_escaped_left_out_and_short():
    made = element(
        "a", href='"><script>', class_="x", data_n=1.50, hidden=True, id=None
    )
    assert made == (
        '<a href="&quot;&gt;&lt;script&gt;" class="x" data-n="1.5" hidden></a>'
    )
    assert element("br") == "<br/>"


def test_what_acts_on_a_terminal_is_shown():
    assert "\x1b" not in element("td", "\x1b]0;evil\x07", title="\x1b[2J")


def test_a_table_has_a_class_for_numbers_and_sorts_if_it_has_a_name():
    made = table(("a", "b"), [("x", "1")], "<>", "rows")
    assert '<td class="n">1</td>' in made and "<td>x</td>" in made
    assert 'id="rows" data-sorts' in made and "data-sorts" not in table(
        ("a",), [("x",)]
    )
