"""The page around every report: one file, with its style and script in it and nothing outside."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from tilewright.base.html import Markup, element, join

# No report may request anything from a server.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def page(title: str, sections: Sequence[tuple[str, str, str]], data: Any = None) -> str:
    """A whole page. sections: identifier, heading, content. data: JSON for the script."""
    links = (element("a", heading, href=f"#{name}") for name, heading, _ in sections)
    body = [
        element("a", "Skip to the report", class_="skip", href=f"#{sections[0][0]}"),
        element("header", element("h1", title), element("nav", *links)),
        element("main", *(_section(*s) for s in sections)),
    ]
    if data is not None:
        text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
        body.append(
            element("script", Markup(text), type="application/json", id="facts")
        )
    body.append(element("script", Markup(asset("report.js"))))
    head = [
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(asset("report.css"))),
    ]
    whole = element("html", element("head", *head), element("body", *body), lang="en")
    return f"<!doctype html>\n{whole}\n"


def _section(name: str, heading: str, content: str) -> Markup:
    return element("section", element("h2", heading), join([content]), id=name)


@cache
def asset(name: str) -> str:
    """A file of `report/assets`."""
    return files("tilewright.report").joinpath("assets", name).read_text("utf-8")
