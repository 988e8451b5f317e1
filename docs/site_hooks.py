"""What `make docs` does with the pages before mkdocs reads them.

The pages are written to be read in the repository: they link to sources and to files above this
folder, and mark their blocks for the tests. A site has no sources beside it, so a link to one
becomes its name; pages above this folder, the API reference and the lists of examples are added.
"""

from __future__ import annotations

import re
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
LINK: Final = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
COMMENT: Final = re.compile(r"^<!--.*-->\n", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are written or kept elsewhere."""
    for source, page in ABOVE.items():
        text = (ROOT / f"{source}{MD}").read_text()
        files.append(File.generated(config, page + MD, content=text))
    for page, text in reference().items():
        files.append(File.generated(config, f"reference/{page}{MD}", content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The page as mkdocs understands it."""
    here = "." if page.file.src_uri.count("/") == 0 else ".."
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
