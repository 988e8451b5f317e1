"""Every module, file, page and section that a text of ours names exists.

A text is a page, or the source of a module: its docstrings, comments, errors and registries.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import tilewright
from tilewright.runtime import devices, host
from tilewright.targets import registry

ROOT = Path(__file__).parent.parent.parent
PACKAGE = Path(tilewright.__file__).parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
FOLDERS = (PACKAGE, ROOT / "benchmarks", ROOT / "examples", ROOT / "docs")
SOURCES = [f for folder in FOLDERS for f in sorted(folder.rglob("*.py"))]

MODULE = re.compile(r"(?<![\w./-])tilewright((?:\.[a-z_]\w*)+)(?::(\w+))?(?![\w/-])")
FILE = re.compile(
    r"(?<![\w/.*{<-])((?:\w+/)+\w+\.(?:py|md|svg|png)|\w+\.md)(#[\w-]+)?(?![\w/])"
)
LINK = re.compile(r"\]\(([^)\s#]*)(#[^)\s]+)?\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
# What looks like the name of a module and is none: a group of entry points.
NO_MODULES = {registry.GROUP, devices.GROUP}
# A page of ONNX Runtime's, and a file that a reader of targets.md writes.
ELSEWHERE = {"ContribOperators.md", "mac/machine.py"}


@cache
def resolved(name: str, attribute: str | None = None) -> bool:
    """Whether a dotted name is a module of ours, or something in one."""
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        try:
            found = importlib.util.find_spec(".".join(parts[:n]))
        except ModuleNotFoundError:
            continue
        if found is None:
            continue
        value: object = importlib.import_module(".".join(parts[:n]))
        for word in [*parts[n:], *([attribute] if attribute else [])]:
            if not hasattr(value, word):
                return False
            value = getattr(value, word)
        return True
    return False


def modules(text: str) -> Iterator[str]:
    """Names of modules in a text that do not exist."""
    for found in MODULE.finditer(text):
        name = "tilewright" + found[1]
        if name not in NO_MODULES and not resolved(name, found[2]):
            yield found[0]


@cache
def sections(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = FENCE.sub("", page.read_text())
    found: dict[str, int] = {}
    names = []
    for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title)
        name = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        count = found[name] = found.get(name, -1) + 1
        names.append(f"{name}-{count}" if count else name)
    return frozenset(names)


def files(text: str, folder: Path) -> Iterator[str]:
    """Paths of files, and sections of pages, in a text that do not exist."""
    places = (folder, ROOT, ROOT / "docs", ROOT / "tests", PACKAGE.parent, PACKAGE)
    lines = (
        line for line in text.splitlines() if re.search(r"\.(?:py|md|svg|png)", line)
    )
    for found in FILE.finditer("\n".join(lines)):
        path, anchor = found[1], found[2]
        if path in ELSEWHERE:
            continue
        there = next((p / path for p in places if (p / path).exists()), None)
        if there is None or (anchor and anchor[1:] not in sections(there)):
            yield found[0]


def links(page: Path) -> Iterator[str]:
    """Links of a page that lead nowhere."""
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))
    for path, anchor in LINK.findall(text):
        if path.startswith(("http:", "https:")):
            continue
        there = page.parent / path if path else page
        if not there.exists() or (anchor and anchor[1:] not in sections(there)):
            yield path + anchor


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_what_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    assert [
        *links(page),
        *modules(text),
        *files(FENCE.sub("", text), page.parent),
    ] == []


def test_what_sources_name_exists() -> None:
    wrong = []
    for path in SOURCES:
        text = path.read_text()
        found = [*modules(text), *files(text, path.parent)]
        wrong += [f"{path.relative_to(ROOT)}: {name}" for name in found]
    assert wrong == []


def test_each_provider_of_host_kernels_registers_itself() -> None:
    for provider, (module, _) in host._MODULES.items():
        importlib.import_module(module)
        assert provider in host._factories


def test_each_target_and_device_is_where_it_is_said_to_be() -> None:
    for row in registry._ROWS.values():
        assert isinstance(row.make, str) and resolved(*row.make.split(":"))
        if row.intrinsics:
            assert resolved(row.intrinsics)
    for place in devices._OWN.values():
        assert resolved(*place.split(":"))


@pytest.mark.parametrize(
    "text",
    [
        '"tilewright.frontends.onnx.missing"',
        '"tilewright.targets.cpu.target:missing"',
        "`tilewright.driver.compile.missing`",
    ],
)
def test_a_missing_module_is_found(text: str) -> None:
    assert [*modules(text)] == [text.strip('"`')]


@pytest.mark.parametrize(
    "text", ["docs/missing.md", "missing.md", "`loops/missing.py`", "index.md#missing"]
)
def test_a_missing_file_is_found(text: str) -> None:
    assert [*files(text, ROOT)] == [text.strip("`")]


def test_a_missing_section_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One `two`, three\n[a](#one-two-three) [b](#missing) [c](missing.md)\n"
    )
    assert [*links(page)] == ["#missing", "missing.md"]
