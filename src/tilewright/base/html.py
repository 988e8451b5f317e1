"""HTML and SVG as text that is escaped by construction.

    element("td", "a < b", class_="name")      <td class="name">a &lt; b</td>

Text becomes `Markup` by `element` only, so no name of a model can end as a tag.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from tilewright.base.text import visible

Attribute = str | float | int | bool | None
_VOID: Final = frozenset(
    "br circle col hr img input line meta path polyline rect".split()
)


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(tag: str, *content: str, **attributes: Attribute) -> Markup:
    """An element; content that is not Markup is escaped.

    attributes: `class_` is class, `data_x` is data-x; None and False are left out, True has no
    value, numbers have two decimals at most.
    """
    head = "".join(_attribute(k, v) for k, v in attributes.items())
    if tag in _VOID and not content:
        return Markup(f"<{tag}{head}/>")
    return Markup(f"<{tag}{head}>{join(content)}</{tag}>")


def join(parts: Iterable[str]) -> Markup:
    """Parts one after another; those that are not Markup are escaped."""
    return Markup("".join(p if isinstance(p, Markup) else text(p) for p in parts))


def text(raw: str) -> Markup:
    """Escaped text; what no terminal shows, HTML has no form for either."""
    kept = "\n".join(visible(line) for line in str(raw).split("\n"))
    return Markup(escape(kept))


def table(
    heading: Sequence[str],
    rows: Iterable[Sequence[str]],
    align: str = "",
    name: str = "",
) -> Markup:
    """A table that scrolls independently on a small screen; align has `<` or `>` per column.

    name: its identifier; the page's script sorts what has one.
    """
    sides = ["n" if side == ">" else None for side in align.ljust(len(heading), "<")]

    def cells(tag: str, row: Sequence[str]) -> Markup:
        parts = zip(row, sides, strict=True)
        return element("tr", *(element(tag, c, class_=side) for c, side in parts))

    head = element("thead", cells("th", heading))
    body = element("tbody", *(cells("td", row) for row in rows))
    whole = element("table", head, body, id=name or None, data_sorts=bool(name))
    return element("div", whole, class_="scroll")


def share_bar(share: float) -> Markup:
    """A bar as long as a share (0 to 1) of five letters, which needs no style sheet."""
    style = f"display:inline-block;height:.6em;margin-left:.5em;width:{5 * share:.2f}em"
    return element("span", style=f"{style};background:#4e79a7")


def _attribute(name: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    if isinstance(value, float):
        value = f"{value:.2f}".rstrip("0").rstrip(".")
    return f' {name}="{escape(visible(str(value)))}"'
