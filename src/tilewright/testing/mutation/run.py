"""Seeds faults and counts those that the tests catch (python -m tilewright.testing.mutation.run).

Each fault is tried in a copy of the sources, with those tests of its room that run its line
(`reach`), until one fails. Results are kept line by line: a run that was broken off continues where
it was.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from queue import Queue
from typing import Any, Final

import click

from tilewright.base.dataclass import dataclass
from tilewright.testing.mutation import reach
from tilewright.testing.mutation.operators import Mutant, mutants
from tilewright.testing.mutation.reach import TestReach, read
from tilewright.testing.mutation.rooms import ROOMS, MutationRoom
from tilewright.testing.mutation.trying import (
    NOT_REPLACED,
    OUT_OF_TIME,
    PYTEST,
    START,
    MutantAnswer,
    MutantRequest,
    WaitingPytest,
)

SOURCES: Final = Path(__file__).resolve().parents[2]
ROOT: Final = SOURCES.parents[1]
HARMLESS: Final = ROOT / "tests" / "mutation" / "harmless.json"
# A mutant that runs this many times as long as the tests do without it hangs: it is caught.
PATIENCE: Final = 5
LEAST: Final = 30.0  # seconds that each may take: other programs run next to it


def drawn(
    room: MutationRoom,
    count: int,
    seed: int = 0,
) -> list[Mutant]:
    """The faults that are always tried and `count` others, the same for the same sources.

    Each file has its share of them.
    """
    files = sorted({p for pattern in room.files for p in SOURCES.glob(pattern)})
    found = []
    shares = []
    for path in files:
        name = str(path.relative_to(SOURCES))
        every = list(mutants(name, path.read_text(encoding="utf-8")))
        named = [m for m in every if f"{name}:{m.function}" in room.always]
        others = [m for m in every if m not in named]
        random.Random(f"{seed} {name}").shuffle(others)
        found += named
        shares.append(others)
    total = sum(map(len, shares))
    fraction = min(1.0, count / max(1, total))
    return found + [
        m for share in shares for m in share[: math.ceil(fraction * len(share))]
    ]


@dataclass(frozen=True, slots=True)
class MutationResult:
    """The outcome of a fault. by: the test that caught it, or `time`."""

    room: str
    name: str
    file: str
    function: str
    line: int
    operator: str
    before: str
    after: str
    caught: bool
    by: str
    seconds: float


class SourceCopy:
    """Tests in `root` and a copy of the sources that they import, with one file changed at a
    time."""

    def __init__(self, root: Path, sources: Path) -> None:
        self.root, self.sources = root, sources
        self._waiting: tuple[Sequence[str], WaitingPytest] | None = None
        found = (str(sources.parent), str(SOURCES.parent))
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(found),
            # Of a fault that lasted less than a second, it would be taken for the file without it.
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    @classmethod
    def made(cls, folder: Path) -> SourceCopy:
        """A copy of our sources and tests. No links: pytest would follow them to the original
        sources."""
        for name in ("src", "tests", "docs", "benchmarks", "examples"):
            shutil.copytree(ROOT / name, folder / name)
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / name, folder / name)
        return cls(folder, folder / "src" / "tilewright")

    def record(
        self,
        rooms: Sequence[MutationRoom],
        digest: str,
        path: Path,
    ) -> None:
        """Write to `path` which lines of each room its tests reach.

        Raises ClickException if pytest does not finish.
        """
        files = {
            p
            for room in rooms
            for pattern in room.files
            for p in self.sources.glob(pattern)
        }
        told = {"path": str(path.resolve()), "root": str(self.sources), "digest": digest,
                "files": sorted(map(str, files)),}  # fmt: skip
        tests = dict.fromkeys(test for room in rooms for test in room.tests)
        env = self._environment | {reach.RECORD: json.dumps(told)}
        ran = subprocess.run(
            [*PYTEST, "-p", reach.__name__, *tests], cwd=self.root, check=False,
            env=env,
            capture_output=True, text=True,
        )  # fmt: skip
        if not path.exists():
            raise click.ClickException(
                f"the tests did not finish: {ran.stdout[-2000:]}"
            )

    def try_one(
        self,
        mutant: Mutant,
        room: MutationRoom,
        tests: Sequence[str],
        limit: float,
        fresh: bool,
    ) -> tuple[bool, str, float]:
        """Whether the tests pass with a fault in its place; else which fails first; seconds.

        fresh: the fault does its harm when the file is imported, or before.
        """
        path = self.sources / mutant.file
        good = path.read_text(encoding="utf-8")
        faulty = mutant.source(good)
        request = MutantRequest(tests, limit, str(path), good, faulty)
        if fresh:
            waiting = None
        else:
            waiting = self._of(room)
        start = time.monotonic()
        path.write_text(faulty, encoding="utf-8")
        try:
            if waiting is None:
                answer = None
            else:
                answer = waiting.ask(request)
            if answer is None or answer.status == NOT_REPLACED:
                answer = self._asked_anew(request)
        finally:
            path.write_text(good, encoding="utf-8")
        by = answer.failed or _STATUSES.get(answer.status, f"status {answer.status}")
        return answer.status == 0, by, time.monotonic() - start

    def _of(self, room: MutationRoom) -> WaitingPytest:
        """The pytest of a room, which has imported the files as they are without a fault."""
        if self._waiting is None or self._waiting[0] != room.tests:
            self.close()
            waiting = WaitingPytest(self.root, room.tests, self._environment)
            self._waiting = room.tests, waiting
            waiting.ask(MutantRequest((), START, "", "", ""))  # it has, once it answers
        return self._waiting[1]

    def _asked_anew(self, request: MutantRequest) -> MutantAnswer:
        """Of a pytest that imports the fault."""
        files = dict.fromkeys(name.split("::")[0] for name in request.tests)
        waiting = WaitingPytest(self.root, tuple(files), self._environment)
        try:
            return waiting.ask(replace(request, before=request.after))
        except RuntimeError:
            return MutantAnswer(NOT_UP, "")
        finally:
            waiting.close()

    def close(self) -> None:
        """End its pytest."""
        if self._waiting is not None:
            self._waiting[1].close()
            self._waiting = None


NOT_UP: Final = 103
_STATUSES: Final = {OUT_OF_TIME: "time", NOT_UP: "collection"}


def results(path: Path) -> dict[str, MutationResult]:
    """The results of earlier runs; a torn last line is none."""
    found: dict[str, MutationResult] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            result = MutationResult(**json.loads(line))
        except (json.JSONDecodeError, TypeError):
            continue
        found[result.name] = result
    return found


def _reach(
    copy: SourceCopy,
    rooms: Sequence[MutationRoom],
    path: Path,
) -> TestReach:
    """The lines that each test of the rooms reaches; cached in a file by sources and tests."""
    digest = hashlib.sha256(repr(rooms).encode())
    for file in sorted(
        p for name in ("src", "tests") for p in (ROOT / name).rglob("*.py")
    ):
        digest.update(file.read_bytes())
    if not path.exists() or (known := read(path)).digest != digest.hexdigest():
        copy.record(rooms, digest.hexdigest(), path)
        known = read(path)
    return known


def _tried(
    name: str,
    room: MutationRoom,
    wanted: Iterable[Mutant],
    copies: Queue[SourceCopy],
    known: TestReach,
    seconds: float,
) -> Iterator[MutationResult]:
    """Try each fault with the quickest tests that reach it, within `seconds` in total.

    As many faults at a time as there are copies.
    """

    def one(m: Mutant) -> MutationResult:
        copy = copies.get()
        try:
            reaching = known.of(m.file, m.lines, room.tests)
            near = known.affordable(reaching, seconds)
            limit = PATIENCE * known.seconds(near) + LEAST
            fresh = known.on_import(m.file, m.lines)
            passed, by, took = copy.try_one(m, room, near, limit, fresh)
        finally:
            copies.put(copy)
        by = "" if passed else by
        return MutationResult(
            name, m.name, m.file, m.function, m.line, m.operator, m.before, m.after, not passed, by,
            round(took, 1),
        )  # fmt: skip

    with ThreadPoolExecutor(copies.qsize()) as pool:
        yield from pool.map(one, wanted)


def harmless() -> dict[str, str]:
    """Equivalent mutants, by name, each with the reason."""
    found: dict[str, str] = json.loads(HARMLESS.read_text(encoding="utf-8"))
    return found


def summary(found: Iterable[MutationResult]) -> list[dict[str, Any]]:
    """Per room: faults, those caught, those that do no harm, the share caught of the others."""
    known = harmless()
    rooms: dict[str, list[MutationResult]] = {}
    for r in found:
        rooms.setdefault(r.room, []).append(r)
    table = []
    for room, members in rooms.items():
        caught = sum(r.caught for r in members)
        idle = sum(not r.caught and r.name in known for r in members)
        share = caught / max(1, len(members) - idle)
        table.append({"room": room, "faults": len(members), "caught": caught, "harmless": idle,
                      "share": round(share, 3),})  # fmt: skip
    return table


@click.command(
    epilog="Example: python -m tilewright.testing.mutation.run --rooms memory --count 20"
)
@click.option(
    "--rooms",
    default=",".join(ROOMS),
    show_default=True,
    help="Commas between them.",
)
@click.option(
    "--count",
    default=40,
    show_default=True,
    help="Faults per room.",
)
@click.option(
    "--jobs",
    default=2,
    show_default=True,
    type=click.IntRange(min=1),
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    help="Other faults.",
)
@click.option(
    "--bar",
    default=0.95,
    show_default=True,
    help="The share that must be caught.",
)
@click.option("--faults", default="", help="Only these, by their names, tried again.")
@click.option("--tests", default="", help="Instead of the tests of the rooms.")
@click.option("--seconds", default=120.0, show_default=True,
              help="What the tests of one fault may take, the quickest ones first.")  # fmt: skip
@click.option("--out", default="out/mutants.jsonl", show_default=True,
              type=click.Path(path_type=Path))  # fmt: skip
def main(
    rooms: str,
    count: int,
    jobs: int,
    seed: int,
    bar: float,
    faults: str,
    tests: str,
    seconds: float,
    out: Path,
) -> None:
    """Seed faults into the sources, run the tests of their room, and say which were not caught."""
    unknown = [r for r in rooms.split(",") if r not in ROOMS]
    if unknown:
        raise click.BadParameter(
            f"no room {', '.join(unknown)}; there are {', '.join(ROOMS)}"
        )
    chosen = {name: _with_tests(ROOMS[name], tests) for name in rooms.split(",")}
    out.parent.mkdir(parents=True, exist_ok=True)
    known = results(out)
    wanted = {name: drawn(room, count, seed) for name, room in chosen.items()}
    if faults:
        named = faults.split(",")
        wanted = {
            room: [m for m in every if m.name in named]
            for room, every in wanted.items()
        }
        known = {name: result for name, result in known.items() if name not in named}
    missing = {
        room: [m for m in every if m.name not in known]
        for room, every in wanted.items()
    }
    if any(missing.values()):
        _try(missing, chosen, jobs, seconds, out)
    known = results(out)
    counted = [known[m.name] for every in wanted.values() for m in every]
    sys.exit(_tell(counted, bar))


def _with_tests(room: MutationRoom, tests: str) -> MutationRoom:
    if tests:
        return replace(room, tests=tuple(tests.split(",")))
    return room


def _try(
    missing: Mapping[str, Sequence[Mutant]],
    rooms: Mapping[str, MutationRoom],
    jobs: int,
    seconds: float,
    out: Path,
) -> None:
    """Try the missing mutants, and write each result at once."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        out.open("a", encoding="utf-8") as file,
    ):
        made = [SourceCopy.made(Path(scratch) / str(n)) for n in range(jobs)]
        copies: Queue[SourceCopy] = Queue()
        for copy in made:
            copies.put(copy)
        lacking = [rooms[name] for name, faults in missing.items() if faults]
        path = out.with_suffix(".reach.json")
        reached = _reach(made[0], lacking, path)
        for test in reached.failed:
            click.echo(f"left out, because it fails without a fault: {test}")
        try:
            for name, faults in missing.items():
                for result in _tried(
                    name, rooms[name], faults, copies, reached, seconds
                ):
                    file.write(json.dumps(asdict(result)) + "\n")
                    file.flush()
        finally:
            for copy in made:
                copy.close()


def _tell(counted: Sequence[MutationResult], bar: float) -> int:
    """Print what got through and the table; the status to exit with."""
    known = harmless()
    for r in counted:
        if not r.caught and r.name not in known:
            click.echo(f"{r.name} {r.file}:{r.line} {r.function}: {r.operator}: "
                       f"{r.before} -> {r.after}")  # fmt: skip
    table = summary(counted)
    row = "{room}: {faults} faults, {caught} caught, {harmless} harmless, {share:.1%}"
    for told in table:
        click.echo(row.format(**told))
    if any(told["share"] < bar for told in table):
        return 1
    return 0


if __name__ == "__main__":
    main()
