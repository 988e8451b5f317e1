"""What `make docs` does with the pages before mkdocs reads them.

The pages are written to be read in the repository: they link to sources and to files above this
folder, and mark their blocks for the tests. A site has no sources beside it, so a link to one
becomes its name; pages above this folder, the API reference and the lists of examples are added.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

import tilewright
from tilewright import _PUBLIC

ROOT: Final = Path(__file__).parent.parent
MD: Final = ".md"
# Pages above this folder, by what the site calls them.
ABOVE: Final = {"README": "start", "CHANGELOG": "changelog", "CONTRIBUTING": "contributing"}
MODULES: Final = ("operators", "rules", "onnx_backend")  # doors that are no names of the package
FENCE: Final = re.compile(r"^```(\w+) \w+$", re.MULTILINE)
ERRORS: Final = "errors"  # the page with the table of codes, and the folder of their pages
CODE: Final = re.compile(r"`(TW(?:-[A-Z0-9]+)+)(?:-\.\.\.)?`")  # ... ends a family of codes
LINK: Final = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
COMMENT: Final = re.compile(r"^<!--.*-->\n", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are written or kept elsewhere."""
    for source, page in ABOVE.items():
        text = (ROOT / f"{source}{MD}").read_text()
        files.append(File.generated(config, page + MD, content=text))
    for page, text in reference().items():
        files.append(File.generated(config, f"reference/{page}{MD}", content=text))
    for code, text in errors().items():
        files.append(File.generated(config, f"{ERRORS}/{code}{MD}", content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The page as mkdocs understands it."""
    here = "." if page.file.src_uri.count("/") == 0 else ".."
    if page.file.src_uri == f"{ERRORS}{MD}":
        markdown = CODE.sub(lambda m: f"[{m[0]}]({ERRORS}/{m[1]}{MD})", markdown)
    plain = FENCE.sub(r"```\1", COMMENT.sub("", markdown))
    return LINK.sub(lambda m: _link(m[1], m[2], page.file.src_uri, here), plain)


def _link(text: str, target: str, source: str, here: str) -> str:
    """A link of `source` as the site has it; the text alone where the site has no such page."""
    path, mark, anchor = target.partition("#")
    if "://" in target or not path or source.startswith("reference/"):
        return f"[{text}]({target})"
    base = ROOT if source.removesuffix(MD) in ABOVE.values() else ROOT / "docs"
    found = (base / path).resolve()
    name = str(found.relative_to(ROOT)) if found.is_relative_to(ROOT) else ""
    if name.removesuffix(MD) in ABOVE:
        return f"[{text}]({here}/{ABOVE[name.removesuffix(MD)]}{MD}{mark}{anchor})"
    if name.startswith("docs/"):
        return f"[{text}]({here}/{name.removeprefix('docs/')}{mark}{anchor})"
    return text


def reference() -> dict[str, str]:
    """Pages of the API by name: one for the package's own names, one for each public module."""
    pages = {name: p for name, p in _PUBLIC.items() if ":" not in p}
    pages |= {name: f"tilewright.{name}" for name in MODULES}
    names = [getattr(tilewright, name) for name in _PUBLIC if name not in pages]
    own = "\n".join(f"::: {v.__module__}.{v.__qualname__}\n" for v in names)
    found = {"tilewright": f"# tilewright\n\n{own}"}
    for name, module in pages.items():
        found[name] = f"# tilewright.{name}\n\n::: {module}\n"
    listed = "\n".join(f"- [tilewright.{name}]({name}{MD})" for name in pages)
    index = f"# Reference\n\n- [tilewright](tilewright{MD})\n{listed}\n"
    return {"index": index, **found}


def errors() -> dict[str, str]:
    """A page for each code: what the tables say about it, and its example if there is one."""
    page = (ROOT / "docs" / f"{ERRORS}{MD}").read_text()
    page = page.replace("](#", f"]({ERRORS}{MD}#")
    examples = (ROOT / "docs" / f"error_examples{MD}").read_text()
    beginning, *sections = re.split(r"^## ", examples, flags=re.MULTILINE)
    shared = beginning[beginning.index("```python") :]
    shown = dict(section.split("\n", 1) for section in sections)
    found: dict[str, list[str]] = {}
    for codes, text in _rows(page):
        for code in CODE.findall(codes):
            found.setdefault(code, []).append(text)
    return {c: _error_page(c, rows, shared, shown.get(c)) for c, rows in found.items()}


def _rows(page: str) -> Iterator[tuple[str, str]]:
    """The rows of the page's tables that have codes: the cell with the codes, and what to say."""
    raised = advice = ""
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) != 4:
            continue
        first, second, third, last = cells
        if CODE.search(second):
            raised = first or raised
            last = last.replace("As above", advice)
            advice = last.partition("; the message")[0].rstrip(".")
            yield second, f"**{raised}.** {third}\n\n**What to do.** {last}\n"
        elif CODE.search(last):
            yield last, f"**A limit.** {first}: {second}, by default {third}; then {last}.\n"


def _error_page(code: str, rows: list[str], shared: str, example: str | None) -> str:
    text = "\n".join([f"# {code}\n", *rows])
    if example is not None:
        text += f"\n## Example\n{example}\nThe examples of all pages begin with:\n\n{shared}"
    return f"{text}\n[All errors](errors{MD})\n"
