"""Records which tests run which lines (a pytest plugin), so that a fault is tried with those only.

Other processes are not observed: a test that starts one may run any line.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Collection, Generator, Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import pytest

from tilewright.base.dataclass import dataclass
from tilewright.testing.mutation.marks import Line, LineMarks

# Of the environment: what to record and where to write it, as JSON.
RECORD: Final = "_TILEWRIGHT_MUTATION_RECORD"
_STARTS: Final = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn")


@dataclass(frozen=True, slots=True)
class TestReach:
    """tests: seconds of each. starts: tests that start processes. lines: file, line, tests. failed:
    tests that fail without a fault, which are not run. digest: of the recorded sources and tests. A
    line that runs at import is reached by every test.
    """

    digest: str
    tests: dict[str, float]
    starts: frozenset[str]
    lines: dict[str, dict[int, frozenset[str]]]
    failed: tuple[str, ...]

    def of(
        self,
        file: str,
        lines: Iterable[int],
        within: Sequence[str],
    ) -> list[str]:
        """The tests below the paths `within` that may run one of the lines of a file.

        The quickest come first. All are taken if none is known to run one of them.
        """
        found = self._runs(file, lines)
        wanted: Collection[str] = (
            self.tests if not found or "" in found else found | self.starts
        )
        near = (
            name
            for name in wanted
            if name.startswith(tuple(within)) and name not in self.failed
        )
        return sorted(
            near, key=lambda name: (name in self.starts, self.tests.get(name, 0.0))
        )

    def on_import(self, file: str, lines: Iterable[int]) -> bool:
        """Whether importing the file runs one of the lines."""
        return "" in self._runs(file, lines)

    def _runs(self, file: str, lines: Iterable[int]) -> frozenset[str]:
        known = self.lines.get(file, {})
        return frozenset[str]().union(*(known.get(line, frozenset()) for line in lines))

    def affordable(self, tests: Sequence[str], seconds: float) -> list[str]:
        """The longest prefix of `tests` that fits in `seconds`; at least one test."""
        ends = accumulate(self.tests.get(name, 0.0) for name in tests)
        return [
            name
            for n, (name, end) in enumerate(zip(tests, ends))
            if not n or end <= seconds
        ]

    def seconds(self, tests: Iterable[str]) -> float:
        """How long tests take together."""
        return sum(self.tests.get(name, 0.0) for name in tests)


def read(path: Path) -> TestReach:
    """The data that the plugin wrote."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    names = rows["names"]
    lines = {
        file: {
            int(line): frozenset(names[n] for n in tests)
            for line, tests in of_file.items()
        }
        for file, of_file in rows["lines"].items()
    }
    starts = frozenset(rows["starts"])
    failed = tuple(rows["failed"])
    return TestReach(rows["digest"], rows["tests"], starts, lines,
                 failed)  # fmt: skip


class _Recorder:
    """Asks after each test which lines it ran; what runs outside tests has no name."""

    def __init__(
        self,
        path: str,
        root: str,
        digest: str,
        files: list[str],
    ) -> None:
        self._path = Path(path)
        self._root = Path(root)
        self._digest = digest
        self._tests: dict[str, float] = {}
        self._starts: set[str] = set()
        self._failed: list[str] = []
        self._now = ""
        self._ran: dict[Line, set[str]] = {}
        self._marks = LineMarks(files)
        self._marks.install()
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: object) -> None:
        if event in _STARTS:
            self._starts.add(self._now)

    def _collect(self) -> None:
        for place in self._marks.reached:
            self._ran.setdefault(place, set()).add(self._now)
        self._marks.reached.clear()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self._collect()
        self._now = item.nodeid
        start = time.perf_counter()
        try:
            return (yield)
        finally:
            self._tests[item.nodeid] = round(time.perf_counter() - start, 4)
            self._collect()
            self._now = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self._failed:
            self._failed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._collect()
        self._ran |= {place: {""} for place in self._marks.imported}
        names = {name: n for n, name in enumerate(["", *self._tests])}
        lines: dict[str, dict[int, list[int]]] = {}
        for (file, line), tests in sorted(self._ran.items()):
            of_file = lines.setdefault(str(Path(file).relative_to(self._root)), {})
            of_file[line] = sorted(names[name] for name in tests)
        rows = {"digest": self._digest, "tests": self._tests, "names": list(names), "lines": lines,
                "starts": sorted(self._starts - {""}), "failed": self._failed,}  # fmt: skip
        self._path.write_text(json.dumps(rows), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Register the recorder if the environment requests it."""
    if RECORD in os.environ:
        config.pluginmanager.register(_Recorder(**json.loads(os.environ[RECORD])))
