"""The recipes of docs/extending.md outside of this process, as someone new would follow them.

What a recipe says is taken from the page: files from the blocks that start with a path, commands
from its ```console blocks, their order from the page. `test_docs` runs the Python of each recipe.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.docs.test_docs import RECIPES, ROOT, Block, blocks, exact, run
from tilewright.cli import app

SOURCES = Path("src/tilewright/schedule")


def recipe(title: str) -> list[Block]:
    """The blocks of one section."""
    _, rest = RECIPES.read_text().split(f"\n## {title}\n")
    return blocks(rest.split("\n## ")[0])


def files(found: list[Block]) -> dict[str, Block]:
    """The blocks that are files, by their paths."""
    return {b.path: b for b in found if b.path is not None}


def commands(found: list[Block]) -> list[str]:
    """The lines of ```console blocks, without comments behind them."""
    shown = "".join(b.text for b in found if b.language == "console")
    lines = [line.removeprefix("$ ") for line in shown.splitlines()]
    return [line.split("  #")[0].rstrip() for line in lines]


def printed(command: list[str], folder: Path, *paths: Path) -> str:
    """What a command prints that succeeds, where these paths have modules."""
    settings = {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "TILEWRIGHT_CACHE_DIR": str(folder / "cache"),
    }
    done = subprocess.run(
        command, cwd=folder, env=os.environ | settings, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_recipe_is_short() -> None:
    """In lines of code, without what shows that it works."""
    sizes = {
        title: sum(
            len([line for line in b.text.splitlines() if line.strip()])
            for b in recipe(title)
            if b.language in ("python", "py", "toml") and (b.path or b.language == "py")
        )
        for title in ("An operator", "A schedule primitive", "A target")
    }
    limits = {"An operator": 40, "A schedule primitive": 50, "A target": 90}
    assert all(0 < sizes[title] <= limits[title] for title in limits), sizes


def test_another_schedule_from_a_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = recipe("Another schedule for one kernel")
    monkeypatch.chdir(tmp_path)
    for block in found:
        if block.language == "python":
            run(block, {}, "another schedule")
    outputs = []
    for line in commands(found):
        program, *arguments = shlex.split(line)
        if program == "tilewright":
            assert app.run(arguments) == 0
            outputs.append(capsys.readouterr().out)
        else:
            printed(["sh", "-c", line], tmp_path)
    before, after = outputs
    assert "matmul.tile = (4, 2) (default" in after
    assert "matmul.tile" in before and "(default" not in before


def installed(folder: Path, metadata: Block) -> None:
    """Write what an installer would, for the modules that are there."""
    project = tomllib.loads(metadata.text)["project"]
    named = f"Name: {project['name']}\nVersion: {project['version']}\n"
    place = folder / f"{project['name']}-{project['version']}.dist-info"
    place.mkdir()
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\n{named}")
    groups = [
        "\n".join([f"[{group}]", *(f"{k} = {v}" for k, v in rows.items())])
        for group, rows in project["entry-points"].items()
    ]
    (place / "entry_points.txt").write_text("\n".join(groups) + "\n")


def test_an_installed_target_is_found_by_name(tmp_path: Path) -> None:
    """One folder, and its metadata: nothing else is imported or registered."""
    found = recipe("A target")
    named = files(found)
    assert list(named) == ["dotter/__init__.py", "pyproject.toml"]
    named["dotter/__init__.py"].write(tmp_path)
    installed(tmp_path, named["pyproject.toml"])
    *_, script, shown = [b for b in found if b.path is None]
    assert "dotter" in script.text and "import dotter" not in script.text
    (tmp_path / "model.py").write_text(script.text)
    output = printed([sys.executable, "model.py"], tmp_path, ROOT / "src", tmp_path)
    assert exact(shown.text, output), output


def insert(path: Path, first: str, lines: list[str]) -> None:
    """Put the imports before the first line that starts so, and the others at the end."""
    text = path.read_text()
    imports = [line for line in lines if not line.startswith(" ")]
    at = text.index(f"\n{first}") + 1
    others = [line for line in lines if line.startswith(" ")]
    parts = [text[:at].rstrip("\n"), *imports, text[at:].rstrip("\n"), *others]
    path.write_text("\n".join(parts) + "\n")


@pytest.mark.slow
def test_a_primitive_of_the_compiler(tmp_path: Path) -> None:
    """Its file, two lines and its test, in a copy of the repository."""
    found = recipe("A schedule primitive")
    for part in ("src", "tests", "docs", "benchmarks"):
        shutil.copytree(ROOT / part, tmp_path / part)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    named = files(found)
    assert list(named) == ["reverse.py", "tests/schedule/test_reverse.py"]
    named["reverse.py"].write(tmp_path / SOURCES / "primitives")
    named["tests/schedule/test_reverse.py"].write(tmp_path)
    (lines,) = [b for b in found if b.language == "py" and b.path is None]
    given = lines.text.splitlines()
    assert len(given) == 2
    place = tmp_path / SOURCES / "schedule.py"
    insert(place, "from tilewright.schedule.primitives import", given)
    for line in commands(found):
        shown = f"{shlex.quote(sys.executable)} -m {line} -n 0 -q"
        printed(["sh", "-c", shown], tmp_path, tmp_path / "src", tmp_path)
    table = (tmp_path / "docs/schedules.md").read_text()
    assert "| `reverse` | Run the iterations of a loop in the opposite order |" in table
    script = (
        "from tilewright.schedule import Schedule\nprint(Schedule.reverse.__name__)\n"
    )
    paths = (tmp_path, tmp_path / "src")
    assert printed([sys.executable, "-c", script], *paths) == "reverse\n"


def test_every_file_of_a_recipe_is_read() -> None:
    """The page or a test here uses each: a file that nothing imports would not be run."""
    found = blocks(RECIPES.read_text())
    code = "".join(b.text for b in found if b.path is None)
    used = set(re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE))
    imported = [p for p in files(found) if p.split("/")[0].split(".")[0] in used]
    copied = ["tests/schedule/test_reverse.py", "pyproject.toml"]
    operators = ["shrinkage.py", "reverse.py", "dotter/__init__.py", "strips.py"]
    tuner = ["depth.py", "nearest.py", "ladder.py", "orders.py"]
    assert imported == [*operators, *tuner]
    assert sorted([*imported, *copied]) == sorted(files(found))
