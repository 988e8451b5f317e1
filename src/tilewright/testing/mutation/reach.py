"""Which tests run which lines (a pytest plugin), so that a fault is tried with those tests only.

Two uses, by variables of the environment: `RECORD` says what to trace and where to write it,
`WANTED` names a file that lists the tests to run, in order. What runs in other processes is not
seen: a test that starts one may run any line.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Collection, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import coverage
import pytest

RECORD: Final = "TILEWRIGHT_MUTATION_RECORD"
WANTED: Final = "TILEWRIGHT_MUTATION_WANTED"
_STARTS: Final = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn")


@dataclass(frozen=True, slots=True)
class Reach:
    """tests: seconds of each. starts: those that start processes. lines: file, line, tests.

    digest: of the sources and tests it was recorded with.

    A line that is run when a module is imported is reached by every test.
    """

    digest: str
    tests: dict[str, float]
    starts: frozenset[str]
    lines: dict[str, dict[int, frozenset[str]]]

    def of(self, file: str, lines: Iterable[int], within: Sequence[str]) -> list[str]:
        """The tests below the paths `within` that may run one of the lines of a file.

        The quickest come first. All are taken if none is known to run one of them.
        """
        known = self.lines.get(file, {})
        found = frozenset[str]().union(
            *(known.get(line, frozenset()) for line in lines)
        )
        wanted: Collection[str] = (
            self.tests if not found or "" in found else found | self.starts
        )
        near = (name for name in wanted if name.startswith(tuple(within)))
        return sorted(
            near, key=lambda name: (name in self.starts, self.tests.get(name, 0.0))
        )

    def seconds(self, tests: Iterable[str]) -> float:
        """How long tests take together."""
        return sum(self.tests.get(name, 0.0) for name in tests)


def read(path: Path) -> Reach:
    """What `RECORD` wrote."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    names = rows["names"]
    lines = {
        file: {
            int(line): frozenset(names[n] for n in tests)
            for line, tests in of_file.items()
        }
        for file, of_file in rows["lines"].items()
    }
    return Reach(rows["digest"], rows["tests"], frozenset(rows["starts"]), lines)


class _Recorder:
    """Traces the tests one by one."""

    def __init__(self, path: str, root: str, digest: str, files: list[str]) -> None:
        self._path, self._root, self._digest = Path(path), Path(root), digest
        self._tests: dict[str, float] = {}
        self._starts: set[str] = set()
        self._now = ""
        self._coverage = coverage.Coverage(
            data_file=None, include=files, config_file=False
        )
        self._coverage.start()
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: object) -> None:
        if event in _STARTS:
            self._starts.add(self._now)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self._now = item.nodeid
        self._coverage.switch_context(item.nodeid)
        start = time.perf_counter()
        try:
            return (yield)
        finally:
            self._tests[item.nodeid] = round(time.perf_counter() - start, 4)
            self._coverage.switch_context("")
            self._now = ""

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        data = self._coverage.get_data()
        names = {name: n for n, name in enumerate(sorted(data.measured_contexts()))}
        lines = {
            str(Path(file).relative_to(self._root)): {
                line: [names[name] for name in tests]
                for line, tests in data.contexts_by_lineno(file).items()
            }
            for file in data.measured_files()
        }
        rows = {"digest": self._digest, "tests": self._tests, "names": list(names), "lines": lines,
                "starts": sorted(self._starts - {""})}  # fmt: skip
        self._path.write_text(json.dumps(rows), encoding="utf-8")


class _Chooser:
    """Runs the wanted tests in their order."""

    def __init__(self, wanted: list[str]) -> None:
        self._order = {name: n for n, name in enumerate(wanted)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        kept = [item for item in items if item.nodeid in self._order]
        items[:] = sorted(kept, key=lambda item: self._order[item.nodeid])


def pytest_configure(config: pytest.Config) -> None:
    """Register what the environment asks for."""
    if RECORD in os.environ:
        config.pluginmanager.register(_Recorder(**json.loads(os.environ[RECORD])))
    if WANTED in os.environ:
        wanted = json.loads(Path(os.environ[WANTED]).read_text(encoding="utf-8"))
        config.pluginmanager.register(_Chooser(wanted))
