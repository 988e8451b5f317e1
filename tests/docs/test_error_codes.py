"""The table of error codes in docs/errors.md and the codes in the sources are the same."""

import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "errors.md").read_text()
CODE = re.compile(r"""(["'])(TW(?:-[A-Z0-9]+)+)\1""")


def raised(source: str) -> set[str]:
    """The codes in Python source: strings that are a code and nothing else."""
    return {code for _, code in CODE.findall(source)}


def listed(page: str) -> set[str]:
    """The codes in the tables of a page; one that ends in ... stands for all that begin so."""
    rows = "\n".join(line for line in page.splitlines() if line.startswith("|"))
    return set(re.findall(r"`(TW-[A-Z0-9-]+(?:\.\.\.)?)`", rows))


def covers(row: str, code: str) -> bool:
    if row.endswith("-..."):
        return code.startswith(row.removesuffix("..."))
    return row == code


def without_row(codes: Iterable[str], rows: set[str]) -> list[str]:
    return sorted(c for c in codes if not any(covers(row, c) for row in rows))


def without_code(codes: set[str], rows: Iterable[str]) -> list[str]:
    return sorted(row for row in rows if not any(covers(row, c) for c in codes))


def codes_of_the_package() -> set[str]:
    sources = (ROOT / "src" / "tilewright").rglob("*.py")
    return set().union(*(raised(path.read_text()) for path in sources))


def test_every_code_has_a_row_and_every_row_a_code():
    codes, rows = codes_of_the_package(), listed(PAGE)
    assert without_row(codes, rows) == []
    assert without_code(codes, rows) == []


def test_a_missing_row_and_a_missing_code_are_found():
    source = 'raise InputError("see TW-TEXT", code="TW-A")\ncode = "TW-LIFT-B"'
    assert raised(source) == {"TW-A", "TW-LIFT-B"}
    page = "`TW-TEXT` is no row.\n| `E` | `TW-A`, `TW-LIFT-...` | `x` |"
    assert listed(page) == {"TW-A", "TW-LIFT-..."}
    assert without_row({"TW-A", "TW-LIFT-B"}, listed(page)) == []
    assert without_row({"TW-AB", "TW-LIFT"}, listed(page)) == ["TW-AB", "TW-LIFT"]
    assert without_code({"TW-AB", "TW-LIFT"}, listed(page)) == ["TW-A", "TW-LIFT-..."]


def test_every_example_prints_the_code_of_its_section():
    page = (ROOT / "docs" / "error_examples.md").read_text()
    sections = re.findall(
        r"^## (\S+)\n.*?^```text\n(\S+): ", page, re.MULTILINE | re.DOTALL
    )
    codes = [code for code, _ in sections]
    assert codes == [printed for _, printed in sections]
    assert len(set(codes)) == len(codes) == page.count("\n## ") > 20
    assert set(codes) <= listed(PAGE)
