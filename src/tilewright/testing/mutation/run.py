"""Seeds faults and counts those that the tests catch (python -m tilewright.testing.mutation.run).

Each fault is tried in a copy of the sources, with those tests of its room that run its line
(`reach`), until one fails. Results are kept line by line: a run that was broken off goes on where
it was.
"""

from __future__ import annotations

import contextlib
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
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import Queue
from typing import Any, Final

import click

from tilewright.testing.mutation import reach
from tilewright.testing.mutation.operators import Mutant, mutants
from tilewright.testing.mutation.reach import RECORD, WANTED, Reach, read
from tilewright.testing.mutation.rooms import ROOMS, Room

SOURCES: Final = Path(__file__).resolve().parents[2]
ROOT: Final = SOURCES.parents[1]
HARMLESS: Final = ROOT / "tests" / "mutation" / "harmless.json"
# A mutant that runs this many times as long as the tests do without it hangs: it is caught.
PATIENCE: Final = 5
START: Final = 60.0  # seconds for pytest to come up and collect


def drawn(room: Room, count: int, seed: int = 0) -> list[Mutant]:
    """The faults that are always tried and `count` others, the same for the same sources.

    Each file has its share of them.
    """
    files = sorted({p for pattern in room.files for p in SOURCES.glob(pattern)})
    found, shares = [], []
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
class Result:
    """What became of a fault. by: the test that caught it, or `time`."""

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


class Copy:
    """A copy of the sources in which one file at a time is another."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.sources = folder / "src" / "tilewright"
        # Copies: pytest follows links, and would then import the sources beside the real tests.
        for name in ("src", "tests", "docs", "benchmarks", "examples"):
            shutil.copytree(ROOT / name, folder / name)
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / name, folder / name)

    def record(self, rooms: Sequence[Room], digest: str, path: Path) -> None:
        """Write to `path` which tests of the rooms reach which lines of theirs.

        Raises ClickException if one of them fails.
        """
        files = {
            p
            for room in rooms
            for pattern in room.files
            for p in self.sources.glob(pattern)
        }
        told = {"path": str(path.resolve()), "root": str(self.sources), "digest": digest,
                "files": sorted(map(str, files))}  # fmt: skip
        tests = dict.fromkeys(test for room in rooms for test in room.tests)
        passed, failed, _ = self._run(tests, None, {RECORD: json.dumps(told)})
        if not passed:
            raise click.ClickException(f"the tests fail without a fault: {failed}")

    def run(self, tests: Sequence[str], limit: float) -> tuple[bool, str, float]:
        """Whether all tests, by their names, pass; else which fails first; seconds."""
        path = self.root / "wanted.json"
        path.write_text(json.dumps(tests), encoding="utf-8")
        return self._run(
            sorted({name.split("::")[0] for name in tests}), limit, {WANTED: path}
        )

    def _run(
        self, paths: Iterable[str], limit: float | None, variables: Mapping[str, object]
    ) -> tuple[bool, str, float]:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", "--no-header",
                   "-p", "no:cacheprovider", "-p", reach.__name__, *paths]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": str(self.root / "src"),
                       **{name: str(value) for name, value in variables.items()}}  # fmt: skip
        start = time.monotonic()
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                command, cwd=self.root, env=environment, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                return False, "time", time.monotonic() - start
            finally:
                _end(process)
            output.seek(0)
            text = output.read()
        return status == 0, _failed(text), time.monotonic() - start

    def try_one(
        self, mutant: Mutant, tests: Sequence[str], limit: float
    ) -> tuple[bool, str, float]:
        """`run` with a fault in its place."""
        path = self.sources / mutant.file
        good = path.read_bytes()
        path.write_text(mutant.source(good.decode()), encoding="utf-8")
        try:
            return self.run(tests, limit)
        finally:
            path.write_bytes(good)


def _end(process: subprocess.Popen[bytes]) -> None:
    """No process of a test stays behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()


def _failed(text: str) -> str:
    """The first failure that pytest tells of, else its last line."""
    lines = [line for line in text.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return (told or lines[-1:] or ["nothing was printed"])[0][:200]


def results(path: Path) -> dict[str, Result]:
    """The results of earlier runs; a torn last line is none."""
    found: dict[str, Result] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            result = Result(**json.loads(line))
        except (json.JSONDecodeError, TypeError):
            continue
        found[result.name] = result
    return found


def _reach(copy: Copy, rooms: Sequence[Room], path: Path) -> Reach:
    """Which tests of the rooms reach which lines; kept in a file for the same sources and tests."""
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
    room: str,
    tests: Sequence[str],
    wanted: Iterable[Mutant],
    copies: Queue[Copy],
    known: Reach,
) -> Iterator[Result]:
    """Each fault with the tests that reach it, as many at a time as there are copies."""

    def one(m: Mutant) -> Result:
        copy = copies.get()
        try:
            near = known.of(m.file, m.lines, tests)
            passed, by, took = copy.try_one(
                m, near, PATIENCE * known.seconds(near) + START
            )
        finally:
            copies.put(copy)
        by = "" if passed else by
        return Result(
            room, m.name, m.file, m.function, m.line, m.operator, m.before, m.after, not passed, by,
            round(took, 1),
        )  # fmt: skip

    with ThreadPoolExecutor(copies.qsize()) as pool:
        yield from pool.map(one, wanted)


def harmless() -> dict[str, str]:
    """Faults that do no harm, by name, each with the reason."""
    found: dict[str, str] = json.loads(HARMLESS.read_text(encoding="utf-8"))
    return found


def summary(found: Iterable[Result]) -> list[dict[str, Any]]:
    """Per room: faults, those caught, those that do no harm, the share caught of the others."""
    known = harmless()
    rooms: dict[str, list[Result]] = {}
    for r in found:
        rooms.setdefault(r.room, []).append(r)
    table = []
    for room, members in rooms.items():
        caught = sum(r.caught for r in members)
        idle = sum(not r.caught and r.name in known for r in members)
        share = caught / max(1, len(members) - idle)
        table.append({"room": room, "faults": len(members), "caught": caught, "harmless": idle,
                      "share": round(share, 3)})  # fmt: skip
    return table


@click.command(
    epilog="Example: python -m tilewright.testing.mutation.run --rooms memory --count 20"
)
@click.option(
    "--rooms", default=",".join(ROOMS), show_default=True, help="Commas between them."
)
@click.option("--count", default=40, show_default=True, help="Faults per room.")
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(min=1))
@click.option("--seed", default=0, show_default=True, help="Other faults.")
@click.option(
    "--bar", default=0.95, show_default=True, help="The share that must be caught."
)
@click.option("--faults", default="", help="Only these, by their names, tried again.")
@click.option("--tests", default="", help="Instead of the tests of the rooms.")
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
        _try(missing, chosen, jobs, out)
    known = results(out)
    sys.exit(_tell([known[m.name] for every in wanted.values() for m in every], bar))


def _with_tests(room: Room, tests: str) -> Room:
    return replace(room, tests=tuple(tests.split(","))) if tests else room


def _try(
    missing: Mapping[str, Sequence[Mutant]],
    rooms: Mapping[str, Room],
    jobs: int,
    out: Path,
) -> None:
    """Try what is missing, and write each result as it comes."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        out.open("a", encoding="utf-8") as file,
    ):
        copies: Queue[Copy] = Queue()
        for n in range(jobs):
            copies.put(Copy(Path(scratch) / str(n)))
        lacking = [rooms[name] for name, faults in missing.items() if faults]
        reached = _reach(copies.queue[0], lacking, out.with_suffix(".reach.json"))
        for name, faults in missing.items():
            for result in _tried(name, rooms[name].tests, faults, copies, reached):
                file.write(json.dumps(asdict(result)) + "\n")
                file.flush()


def _tell(counted: Sequence[Result], bar: float) -> int:
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
    return 1 if any(told["share"] < bar for told in table) else 0


if __name__ == "__main__":
    main()
