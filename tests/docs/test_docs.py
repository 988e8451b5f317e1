"""What the documentation shows is run, and what it says was printed is what is printed.

A page's ```python blocks run in order, in one namespace and an empty folder; one that starts with a
path (`# acme.py`) is written there, for the others to import. Each recipe of extending.md has a
namespace of its own. A ```text block right after one is its output: exactly, or, by a word behind
`text`:

    varies    with numbers, widths of columns and order of lines left out (times, profiles);
    excerpt   each line shown occurs somewhere in the output, numbers left out.

`pytest tests/docs --update-golden` writes the outputs anew. A page with ```python torch blocks
needs PyTorch.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import re
import runpy
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from tilewright.frontends.hf import encoder, families
from tilewright.schedule.registry import PRIMITIVES
from tilewright.targets import registry

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)(?: (\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


PATH = re.compile(r"# ([\w/]+\.\w+)\n")
RECIPES = ROOT / "docs" / "extending.md"


@dataclass
class Block:
    language: str
    word: str | None
    text: str
    span: tuple[int, int]

    @property
    def path(self) -> str | None:
        """The file that it is, if it says so."""
        found = PATH.match(self.text)
        return None if found is None else found[1]

    def write(self, folder: Path) -> Path:
        """Make it a file."""
        assert self.path is not None
        path = folder / self.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.text)
        return path


def blocks(page: str) -> list[Block]:
    return [Block(m[1], m[2], m[3], m.span(3)) for m in BLOCK.finditer(page)]


def masked(line: str) -> str:
    return " ".join(re.sub(r"\d+(\.\d+)?(e[-+]\d+)?", "#", line).split())


def exact(shown: str, printed: str) -> bool:
    return (
        shown.rstrip()
        == "\n".join(line.rstrip() for line in printed.splitlines()).rstrip()
    )


def varies(shown: str, printed: str) -> bool:
    # Rows of a profile are in the order of their times.
    return sorted(map(masked, shown.split("\n"))) == sorted(
        map(masked, printed.split("\n"))
    )


def excerpt(shown: str, printed: str) -> bool:
    have = {masked(line) for line in printed.splitlines()}
    return all(
        masked(line) in have for line in shown.splitlines() if line.strip(" .;#")
    )


AGREES: dict[str | None, Callable[[str, str], bool]] = {
    None: exact,
    "varies": varies,
    "excerpt": excerpt,
}


def run(block: Block, scope: dict[str, object], where: str) -> str:
    lines = block.text.splitlines(keepends=True)
    linecache.cache[where] = len(block.text), None, lines, where  # for inspect
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block.text, where, "exec"), scope)
    return printed.getvalue()


# Seconds each; what they show has fast tests of its own.
LONG = {
    f"{name}.md"
    for name in (
        "dataflow gpu halide lift llm mdh npu pytorch te tuning tuning-fleet "
        "tuning-measurement tuning-models tuning-spaces vta"
    ).split()
}


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(p, id=p.name, marks=[pytest.mark.slow] * (p.name in LONG))
        for p in PAGES
    ],
)
def test_page(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    own_registries: None,
    own_modules: None,
) -> None:
    page = path.read_text()
    found = blocks(page)
    code = [b for b in found if b.language == "python"]
    if not code:
        return
    if any(b.word == "torch" for b in code) and find_spec("torch") is None:
        pytest.skip("the page needs PyTorch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    update = request.config.getoption("--update-golden")
    scope: dict[str, object] = {"__name__": path.stem}
    changes: list[tuple[tuple[int, int], str]] = []
    heading = 0
    for n, block in enumerate(found):
        if block.language != "python":
            continue
        if path == RECIPES and heading != (
            last := page.rfind("\n## ", 0, block.span[0])
        ):
            heading, scope = last, {"__name__": path.stem}
        if block.path is not None:
            block.write(tmp_path)
            continue
        line = page[: block.span[0]].count("\n") + 1
        printed = run(block, scope, f"{path.name}, line {line}")
        after = found[n + 1] if n + 1 < len(found) else None
        between = "" if after is None else page[block.span[1] : after.span[0]]
        shown = (
            after is not None and after.language == "text" and between.count("\n") <= 3
        )
        if after is None or not shown:
            continue
        if AGREES[after.word](after.text, printed):
            continue
        if not update:
            assert after.text == printed, f"{path.name}, line {line} ({after.word})"
            raise AssertionError(f"{path.name}, line {line}: the output differs")
        changes.append((after.span, printed.rstrip() + "\n"))
    for (start, end), text in reversed(changes):
        page = page[:start] + text + page[end:]
    if changes:
        path.write_text(page)


def test_the_table_of_primitives(request: pytest.FixtureRequest) -> None:
    import inspect

    from tilewright.schedule import Schedule

    rows = ["| primitive | what it does |", "|---|---|"]
    conditions: list[str] = []
    for name, function in sorted(PRIMITIVES.items()):
        assert hasattr(Schedule, name)
        doc = inspect.cleandoc(function.__doc__ or "")
        found = re.search(r"^requires: (.*?)(?=^\S|\Z)", doc, re.MULTILINE | re.DOTALL)
        requires = (
            "always legal" if found is None else " ".join(found[1].split()).rstrip(".")
        )
        does = doc.splitlines()[0].split(";")[0].rstrip(".")
        rows.append(f"| `{name}` | {does} |")
        parts = clauses(requires)
        if len(parts) == 1:
            conditions.append(f"- `{name}`: {requires}")
        else:
            conditions.append(f"- `{name}`:")
            conditions.extend(f"    - {part}" for part in parts)
    _table(ROOT / "docs/schedules.md", "primitives", rows, request)
    _table(ROOT / "docs/schedules.md", "requirements", conditions, request)


# A semicolon outside of parentheses, but not before an alternative; or the end of a sentence.
_CLAUSE = re.compile(r"; (?!or |else |[^(]*\))|(?<=[^.])\. (?=[A-Z])")


def clauses(text: str) -> list[str]:
    """The parts of a condition, each of which is shown on a line of its own."""
    return _CLAUSE.split(text)


def test_a_condition_is_divided_at_its_semicolons_and_sentences() -> None:
    assert clauses("one; two (a; b); three") == ["one", "two (a; b)", "three"]
    assert clauses("one; or two; three") == ["one; or two", "three"]
    assert clauses("one, such as 0 .. 3. Two. and so on") == [
        "one, such as 0 .. 3",
        "Two. and so on",
    ]


LONGEST_CELL = 450  # characters; more of them are a section or a list


@pytest.mark.parametrize("path", [*PAGES, ROOT / "README.md"], ids=lambda p: p.name)
def test_no_cell_of_a_table_is_a_page_of_text(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    for line in re.findall(r"^\|.*\|$", text, re.M):
        for cell in re.split(r"(?<!\\)\|", line):
            assert len(cell) <= LONGEST_CELL, cell[:80]


def _table(
    path: Path, mark: str, rows: list[str], request: pytest.FixtureRequest
) -> None:
    """Compare, or write, the lines between `<!-- mark -->` and `<!-- /mark -->`."""
    page, text = path.read_text(), "\n".join(rows) + "\n"
    before, rest = page.split(f"<!-- {mark} -->\n")
    shown, after = rest.split(f"<!-- /{mark} -->")
    if request.config.getoption("--update-golden"):
        path.write_text(f"{before}<!-- {mark} -->\n{text}<!-- /{mark} -->{after}")
    else:
        assert shown == text


def test_the_compiler_in_one_file(capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "docs/build_it_yourself.py"
    assert len(path.read_text().splitlines()) < 600
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    for stage in ("Fused:", "kernel t1(", " vector:", "Refused:", "GFLOP/s"):
        assert stage in printed


def test_dependencies_are_those_of_the_package() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]

    def names(requirements: list[str]) -> set[str]:
        return {re.match(r"[\w-]+", r)[0] for r in requirements}  # type: ignore[index]

    page = (ROOT / "docs/dependencies.md").read_text()
    always, extras = page.split("## Extras")
    rows = re.findall(r"^\| ([\w-]+) \|", always, re.MULTILINE)
    assert set(rows) - {"package"} == names(project["dependencies"])
    listed: dict[str, set[str]] = {}
    for which, packages in re.findall(r"^\| (`.+?`) \| (.+?) \|", extras, re.MULTILINE):
        for extra in re.findall(r"`(\w+)`", which):
            listed.setdefault(extra, set()).update(packages.split(", "))
    wanted = {k: names(v) for k, v in project["optional-dependencies"].items()}
    assert listed == wanted


def test_settings_are_those_of_the_package() -> None:
    from tilewright.base.flags import TABLE

    page = (ROOT / "docs/index.md").read_text()
    for flag in TABLE:
        assert f"| `{flag.name}` |" in page and flag.doc in page, flag.name
    assert page.count("| `") == len(TABLE)


def test_commands_of_the_status_page_exist() -> None:
    from tilewright.cli.app import VERBS

    shown = re.findall(
        r"`((?:pytest|python|tilewright) [^`]+)`", (ROOT / "docs/status.md").read_text()
    )
    assert len(shown) > 20
    for line in shown:
        program, *words = line.split()
        if program == "tilewright":
            assert words[0] in VERBS or words[0] == "--help", line
        else:
            if words[0] == "-m":
                words[1] = words[1].replace(".", "/") + ".py"
            paths = [word for word in words if not word.startswith("-")]
            assert all((ROOT / path).exists() for path in paths), line


def test_what_the_status_page_says_works_has_a_command() -> None:
    command = re.compile(r"`(?:pytest|python|tilewright|make) [^`]+`")
    rows = [
        x
        for x in (ROOT / "docs/status.md").read_text().splitlines()
        if x.startswith("| ")
    ]
    works = [x for x in rows if re.search(r"\| (?:works|partly)\b", x)]
    assert len(works) > 50
    assert not [x for x in works if not command.search(x)]


def test_rows_of_the_status_page_are_short() -> None:
    """A row says what works and where its page is; the details belong to that page."""
    lines = (ROOT / "docs/status.md").read_text().splitlines()
    prose = [re.sub(r"`[^`]*`|\]\([^)]*\)", "", line) for line in lines]
    assert [line[:60] for line in prose if len(line) > 450] == []


def test_each_target_is_in_the_table_of_options() -> None:
    (row,) = re.findall(
        r"^\| `--target cpu` \|.*$", (ROOT / "docs/cli.md").read_text(), re.MULTILINE
    )
    missing = [name for name in registry.names() if f"`{name}`" not in row]
    assert missing == []


def test_the_readme_names_the_architectures_of_folders() -> None:
    (row,) = re.findall(
        r"^\| language models \|.*$", (ROOT / "README.md").read_text(), re.MULTILINE
    )
    for family in (*families.FAMILIES, *encoder.FAMILIES):
        name = re.sub(r"(ForCausalLM|LMHeadModel|Model)$", "", family)
        assert re.search(rf"\b{name}\b", row), family
