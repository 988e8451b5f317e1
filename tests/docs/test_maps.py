"""Packages of many files say what is where, and their texts are true of what is there."""

from __future__ import annotations

import importlib
import pkgutil
import re
import tomllib

import pytest

import tilewright
from tests.docs.test_docs import ROOT

MANY = 45
# Each file is named after what it holds: a command, a family of operators, a primitive.
ONE_EACH = {"tilewright.cli", "tilewright.graph.ops", "tilewright.schedule.primitives"}
SUBJECT = re.compile(r"^([a-z][^:\n]+): ((?:.|\n    )+)$", re.MULTILINE)


def modules(package: str) -> set[str]:
    found = importlib.import_module(package).__path__
    return {module.name for module in pkgutil.iter_modules(found)}


def large() -> list[str]:
    packages = pkgutil.walk_packages(tilewright.__path__, "tilewright.")
    return [p.name for p in packages if p.ispkg and len(modules(p.name)) > MANY]


def listed(package: str) -> list[str]:
    """The names behind the subjects of a package's text."""
    text = importlib.import_module(package).__doc__ or ""
    names = " ".join(names for _, names in SUBJECT.findall(text))
    return re.findall(r"\w+", names)


def test_there_are_large_packages() -> None:
    assert {"tilewright.driver", *ONE_EACH} <= set(large())


@pytest.mark.parametrize("package", sorted(set(large()) - ONE_EACH))
def test_a_large_package_lists_each_of_its_files_once(package: str) -> None:
    assert sorted(listed(package)) == sorted(modules(package))


def test_the_page_lists_all_packages_from_the_bottom_up() -> None:
    """In the order of the contract that the linter checks."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    layers = contracts[0]["layers"][::-1]
    ranks = {
        name: n for n, layer in enumerate(layers) for name in re.findall(r"\w+", layer)
    }
    page = (ROOT / "docs/architecture.md").read_text()
    _, section = page.split("\n## Packages\n")
    rows = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")]
    names = [
        name for row in rows[: len(ranks)] for name in re.findall(r"`(\w+)[/.`]", row)
    ]
    shown = [name for name in names if name in ranks]
    assert [ranks[name] for name in shown] == sorted(ranks[name] for name in shown)
    assert set(ranks) - set(shown) <= {"rules", "__main__"}
