"""The tool that seeds faults: which it makes, that tests catch one, that the list stays true."""

import ast
import gc
import importlib.util
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tilewright.testing.mutation import marks, reach, run
from tilewright.testing.mutation.live import Functions
from tilewright.testing.mutation.operators import OPERATORS, mutants
from tilewright.testing.mutation.rooms import ROOMS, MutationRoom
from tilewright.testing.mutation.trying import (
    OUT_OF_TIME,
    PYTEST,
    MutantAnswer,
    MutantRequest,
    WaitingPytest,
)

# Plugins of pytest take longer to import than these tests to run.
BARE = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
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
    places = ROOMS[room].always
    files = {place.partition(":")[0] for place in places} or ROOMS[room].files[:1]
    found = run.drawn(replace(ROOMS[room], files=(*files,)), 4)
    assert len(found) >= 4
    for place in places:
        assert [m for m in found if f"{m.file}:{m.function}" == place], place


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_fault_is_caught_and_runs_go_on_where_they_were(tmp_path: Path, monkeypatch):
    room = MutationRoom(("base/names.py",), ("tests/base/test_names.py",))
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


CODE = """LEAST = 1

def one(n):
    return n + LEAST

def two(n):
    return n + 2

def three(n):
    return n
"""


def recorded(folder: Path) -> reach.TestReach:
    """What `test_them.py` reaches of `code_of_two.py`."""
    told = {"path": str(folder / "reach.json"), "root": str(folder), "digest": "d",
            "files": [str(folder / "code_of_two.py")]}  # fmt: skip
    environment = {**BARE, "PYTHONPATH": f"{run.SOURCES.parent}:{folder}",
                   reach.RECORD: json.dumps(told)}  # fmt: skip
    command = [*PYTEST, "-p", reach.__name__, "--rootdir", "."]
    subprocess.run(command, cwd=folder, env=environment, capture_output=True)
    return reach.read(folder / "reach.json")


def test_a_fault_is_tried_with_the_tests_that_reach_it(tmp_path: Path):
    """By line; lines that run on import, or never, with all tests; other processes always."""
    (tmp_path / "code_of_two.py").write_text(CODE)
    (tmp_path / "test_them.py").write_text(TESTS)
    found = recorded(tmp_path)
    one, two, other = (
        f"test_them.py::test_{n}" for n in ("one", "two", "of_another_process")
    )
    assert found.of("code_of_two.py", range(4, 5), [""]) == [one, other]
    assert found.of("code_of_two.py", range(7, 8), [""]) == [two, other]
    for lines in (range(1, 2), range(3, 4), range(10, 11)):
        assert set(found.of("code_of_two.py", lines, [""])) == {one, two, other}
    assert not found.of("code_of_two.py", range(4, 5), ["elsewhere"])
    known = replace(found, tests={one: 2.0, two: 3.0, other: 4.0})
    for seconds, kept in ((9.0, 3), (8.9, 2), (5.0, 2), (1.0, 1)):
        assert known.affordable([one, two, other], seconds) == [one, two, other][:kept]


def test_a_test_that_fails_without_a_fault_is_left_out(tmp_path: Path):
    (tmp_path / "code_of_two.py").write_text("def one(n):\n    return n\n")
    (tmp_path / "test_them.py").write_text(
        "import code_of_two\n\ndef test_good():\n    code_of_two.one(1)\n"
        "\ndef test_bad():\n    assert code_of_two.one(1) == 2\n"
    )
    found = recorded(tmp_path)
    assert found.failed == ("test_them.py::test_bad",)
    assert found.of("code_of_two.py", range(2, 3), [""]) == ["test_them.py::test_good"]


MARKED = '''"""A docstring."""
from __future__ import annotations

def f(x):
    """Another."""
    if x > 1:
        return 1
    elif x > 0:
        return 2
    for n in range(x): pass
    else:
        g = lambda: (
            x)
    return g()

class C:
    kept = f(2)
'''


def test_marks_say_which_lines_ran():
    reached = set()
    code = compile(marks.marked(ast.parse(MARKED), "f.py"), "f.py", "exec")
    names = {marks.MARK: reached.add, "__name__": "marked"}
    exec(code, names)
    assert {n for _, n in reached} == {4, 6, 7, 16, 17}
    for x, lines in ((1, {6, 8, 9}), (0, {6, 8, 10, 12, 13, 14})):
        reached.clear()
        names["f"](x)
        assert reached == {("f.py", n) for n in lines}
    assert names["f"].__doc__ == "Another." and names["__doc__"] == "A docstring."


LIVE = """import functools

@functools.cache
def one(n):
    return n + 1

class C:
    def m(self): return [one(k) for k in (1, 2)]

rows = [lambda x: x, lambda x: x + 2]
def outer(y):
    def inner(): return y
    return inner
made = outer(3)
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """Two modules, where each is, and the functions of the process."""
    folder, modules = tmp_path_factory.mktemp("live"), []
    for name in ("one", "two"):
        path = folder / f"{name}.py"
        path.write_text(LIVE)
        spec = importlib.util.spec_from_file_location(name, path)
        modules.append(importlib.util.module_from_spec(spec))
        spec.loader.exec_module(modules[-1])
    functions = Functions()
    gc.freeze()  # as before: see tests/conftest.py
    return modules, [m.__file__ for m in modules], functions


def test_functions_are_given_the_code_with_the_fault(live):
    (module, _), (path, _), functions = live
    changes = {"n + 1": "n - 1", "(1, 2)": "(1, 3)", "x + 2": "x - 2"}
    after = LIVE
    for old, new in changes.items():
        after = after.replace(old, new)
    assert functions.replace(path, LIVE, after)
    assert module.C().m() == [0, 2]
    assert [row(1) for row in module.rows] == [1, -1] and module.made() == 3


def test_a_fault_that_reads_other_variables_is_not_put_in(live):
    _, (_, path), functions = live
    assert not functions.replace(path, LIVE, LIVE.replace("return y", "return 3"))


def waiting(tmp_path: Path) -> WaitingPytest:
    (tmp_path / "code_of_two.py").write_text(CODE)
    (tmp_path / "test_them.py").write_text(TESTS)
    environment = {**BARE, "PYTHONPATH": f"{run.SOURCES.parent}:{tmp_path}"}
    return WaitingPytest(tmp_path, ["--rootdir", ".", "test_them.py"], environment)


def test_a_waiting_pytest_tries_faults(tmp_path: Path):
    """Each in a fork, so nothing of it remains, even if it hangs or kills its process."""
    one, two = "test_them.py::test_one", "test_them.py::test_two"
    path = str(tmp_path / "code_of_two.py")
    server = waiting(tmp_path)

    def ask(after: str, seconds: float = 60.0, tests=(two, one)) -> MutantAnswer:
        return server.ask(MutantRequest(tests, seconds, path, CODE, after))

    try:
        assert ask(CODE) == MutantAnswer(0, "")
        assert ask(CODE.replace("n + LEAST", "n")) == MutantAnswer(1, one)
        assert ask(CODE.replace("return n + ", "return n - ")) == MutantAnswer(1, two)
        assert ask(CODE.replace("n + LEAST", "n"), tests=[two]) == MutantAnswer(0, "")
        hangs = CODE.replace("return n + 2", "while True: pass")
        assert ask(hangs, 0.5) == MutantAnswer(OUT_OF_TIME, "")
        dies = CODE.replace("return n + 2", "import os; os.abort()")
        assert ask(dies) == MutantAnswer(-6, "")
        assert ask(CODE) == MutantAnswer(0, "")
    finally:
        server.close()


def test_a_pytest_that_does_not_come_up_says_so(tmp_path: Path):
    server = waiting(tmp_path)
    server.close()
    (tmp_path / "code_of_two.py").write_text("import nothing_of_this_name\n")
    environment = {**BARE, "PYTHONPATH": f"{run.SOURCES.parent}:{tmp_path}"}
    server = WaitingPytest(tmp_path, ["--rootdir", ".", "test_them.py"], environment)
    try:
        with pytest.raises(RuntimeError, match="nothing_of_this_name"):
            server.ask(MutantRequest((), 60.0, "", "", ""))
    finally:
        server.close()


def test_a_fault_in_what_an_import_runs_is_tried_in_a_new_process(tmp_path: Path):
    """The waiting pytest has imported the file: to it the fault would be none."""
    copy = run.SourceCopy(tmp_path, tmp_path)
    (tmp_path / "code_of_two.py").write_text(CODE)
    (tmp_path / "test_them.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    (fault,) = [m for m in mutants("code_of_two.py", CODE) if m.line == 1]
    room, tests = MutationRoom((), ("test_them.py",)), ["test_them.py::test_one"]
    try:
        assert copy.try_one(fault, room, tests, 60.0, fresh=False)[:2] == (
            True,
            "status 0",
        )
        assert copy.try_one(fault, room, tests, 60.0, fresh=True)[:2] == (
            False,
            tests[0],
        )
        assert (tmp_path / "code_of_two.py").read_text() == CODE
    finally:
        copy.close()


def test_a_fault_in_a_file_that_a_test_imports_is_tried(tmp_path: Path):
    """It is not imported during collection; such faults once counted as caught in any case."""
    later = TESTS.replace("import code_of_two", "").replace(
        "():\n", "():\n    import code_of_two\n"
    )
    (tmp_path / "code_of_two.py").write_text(CODE)
    (tmp_path / "test_them.py").write_text(later)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    copy = run.SourceCopy(tmp_path, tmp_path)
    room, tests = MutationRoom((), ("test_them.py",)), ["test_them.py::test_one"]
    faults = {m.function: m for m in mutants("code_of_two.py", CODE)}
    one, two = (
        copy.try_one(faults[name], room, tests, 60.0, fresh=False)[:2]
        for name in ("one", "two")
    )
    copy.close()
    assert one == (False, tests[0]) and two == (True, "status 0")


def test_an_unknown_room_is_refused():
    result = CliRunner().invoke(run.main, ["--rooms", "attic"])
    assert result.exit_code == 2 and "no room attic" in result.output
