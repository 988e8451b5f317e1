"""The tool that seeds faults: which it makes, that tests catch one, that the list stays true."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tilewright.testing.mutation import reach, run
from tilewright.testing.mutation.operators import OPERATORS, mutants
from tilewright.testing.mutation.rooms import ROOMS, Room

SOURCE = '''"""A docstring with 1 number."""
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

__all__ = ["largest", "other", "another"]

def largest(values: list[int], least: int = 0) -> int:
    """The largest."""
    if not values:
        raise ValueError(f"no values {1 + 1}")
    kept = [v for v in values if v > least and v != 3]
    key = [kept, values, least]
    print(key, list(zip(kept, key, strict=True)))
    return max(kept) if kept else least - 1
'''


def made(operator: str) -> list[str]:
    found = [m for m in mutants("f.py", SOURCE) if m.operator == operator]
    for m in found:
        compile(m.source(SOURCE), "f.py", "exec")
    return [f"{m.before} -> {m.after}" for m in found]


def test_each_operator_makes_its_faults():
    assert "v > least and v != 3 -> v != 3" in made("drop-operand")
    assert "v > least -> v >= least" in made("compare")
    assert "least - 1 -> least + 1" in made("calculate")
    assert made("call") == ["max(kept) -> min(kept)"]
    assert made("drop-not") == ["not values -> values"]
    assert made("drop-statement") == [
        "print(key, list(zip(kept, key, strict=True))) -> pass"
    ]
    assert "[kept, values, least] -> [kept, least]" in made("drop-element")
    assert len(made("drop-guard")) == 1 and len(made("negate")) == 2
    assert len(made("drop-condition")) == 1 and made("count")
    assert {m.operator for m in mutants("f.py", SOURCE)} == set(OPERATORS)


def test_messages_annotations_and_imports_are_left_alone():
    for m in mutants("f.py", SOURCE):
        text = m.source(SOURCE)
        assert "A docstring with 1 number." in text, m
        assert "{1 + 1}" in text or m.operator == "drop-guard", m
        assert "TYPE_CHECKING:" in text and "values: list[int]" in text, m
        assert "['largest', 'other', 'another']" in text, m
        assert "strict=True" in text or m.operator == "drop-statement", m


def test_a_name_does_not_depend_on_the_rest_of_the_file():
    names = {m.name for m in mutants("f.py", SOURCE)}
    longer = SOURCE.replace("def largest", "def other(): return 5\n\n\ndef largest")
    assert names < {m.name for m in mutants("f.py", longer)}
    assert len(names) == len(list(mutants("f.py", SOURCE)))


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_name_what_there_is(room: str):
    for pattern in ROOMS[room].files:
        assert list(run.SOURCES.glob(pattern)), pattern
    for path in ROOMS[room].tests:
        assert (run.ROOT / path).exists(), path
    found = run.drawn(ROOMS[room], 4)
    assert len(found) >= 4
    for place in ROOMS[room].always:
        assert [m for m in found if f"{m.file}:{m.function}" == place], place


def test_what_is_said_to_be_harmless_is_still_there():
    files = {
        p for room in ROOMS.values() for f in room.files for p in run.SOURCES.glob(f)
    }
    known = run.harmless()
    texts = (
        {str(p.relative_to(run.SOURCES)): p.read_text() for p in files} if known else {}
    )
    names = {m.name for name, text in texts.items() for m in mutants(name, text)}
    assert set(known) <= names
    assert all(reason.strip() for reason in known.values())


def test_a_fault_is_caught_and_runs_go_on_where_they_were(tmp_path: Path, monkeypatch):
    room = Room(("base/names.py",), ("tests/base/test_names.py",))
    monkeypatch.setattr(run, "ROOMS", {"names": room})
    every = run.drawn(room, 1000)
    (forgets,) = [m for m in every if m.before == "taken.add(found)"]
    monkeypatch.setattr(run, "drawn", lambda room, count, seed: [forgets])
    arguments = ["--rooms", "names", "--count", "1", "--jobs", "1", "--bar", "0",
                 "--out", str(tmp_path / "r.jsonl")]  # fmt: skip
    first = CliRunner().invoke(run.main, arguments)
    assert first.exit_code == 0, first.output
    lines = (tmp_path / "r.jsonl").read_text().splitlines()
    tried = [json.loads(line) for line in lines]
    assert [r["caught"] for r in tried] == [True] and "test_names.py" in tried[0]["by"]
    assert "names: 1 faults, 1 caught, 0 harmless, 100.0%" in first.output
    assert CliRunner().invoke(run.main, arguments).output == first.output
    assert (tmp_path / "r.jsonl").read_text().splitlines() == lines
    assert ast.parse((run.SOURCES / "base/names.py").read_text())


TESTS = """
import subprocess, sys
import code_of_two


def test_one():
    assert code_of_two.one(2) == 3


def test_two():
    assert code_of_two.two(2) == 4


def test_of_another_process():
    subprocess.run([sys.executable, "-c", "pass"], check=True)
"""


def test_a_fault_is_tried_with_the_tests_that_reach_it(tmp_path: Path):
    """By line; what is run on import, or by nobody, with all; other processes with each."""
    (tmp_path / "code_of_two.py").write_text(
        "LEAST = 1\n\ndef one(n):\n    return n + LEAST\n\ndef two(n):\n    return n + 2\n"
        "\ndef three(n):\n    return n\n"
    )
    (tmp_path / "test_them.py").write_text(TESTS)
    told = {"path": str(tmp_path / "reach.json"), "root": str(tmp_path), "digest": "d",
            "files": [str(tmp_path / "code_of_two.py")]}  # fmt: skip
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        reach.__name__,
        "--rootdir",
        ".",
    ]
    environment = {**os.environ, "PYTHONPATH": f"{run.SOURCES.parent}:{tmp_path}",
                   reach.RECORD: json.dumps(told)}  # fmt: skip
    subprocess.run(
        command, cwd=tmp_path, env=environment, check=True, capture_output=True
    )
    found = reach.read(tmp_path / "reach.json")
    one, two, other = (
        f"test_them.py::test_{n}" for n in ("one", "two", "of_another_process")
    )
    assert found.of("code_of_two.py", range(4, 5), [""]) == [one, other]
    assert found.of("code_of_two.py", range(7, 8), [""]) == [two, other]
    for lines in (range(1, 2), range(3, 4), range(10, 11)):
        assert set(found.of("code_of_two.py", lines, [""])) == {one, two, other}
    assert not found.of("code_of_two.py", range(4, 5), ["elsewhere"])

    (tmp_path / "wanted.json").write_text(json.dumps([two]))
    environment = {**environment, reach.WANTED: str(tmp_path / "wanted.json")}
    del environment[reach.RECORD]
    (tmp_path / "code_of_two.py").write_text(
        "def one(n): ...\n\ndef two(n): return n + 2\n"
    )
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0 and "1 passed" in ran.stdout


def test_an_unknown_room_is_refused():
    result = CliRunner().invoke(run.main, ["--rooms", "attic"])
    assert result.exit_code == 2 and "no room attic" in result.output
