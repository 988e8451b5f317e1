"""Seeds faults and counts those that the tests catch (python -m tilewright.testing.mutation.run).

Each fault is tried in a copy of the sources, with the tests of its room until one fails. Results
are kept line by line: a run that was broken off goes on where it was.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any, Final

import click

from tilewright.testing.mutation.operators import Mutant, mutants
from tilewright.testing.mutation.rooms import ROOMS, Room

SOURCES: Final = Path(__file__).resolve().parents[2]
ROOT: Final = SOURCES.parents[1]
HARMLESS: Final = ROOT / "tests" / "mutation" / "harmless.json"
# A mutant that runs this many times as long as the tests do without it hangs: it is caught.
PATIENCE: Final = 5


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
    return found + [m for share in shares for m in share[: math.ceil(fraction * len(share))]]


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
        # Copies: pytest follows links, and would then import the sources beside the real tests.
        for name in ("src", "tests", "docs", "benchmarks", "examples"):
            shutil.copytree(ROOT / name, folder / name)
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / name, folder / name)

    def run(self, tests: Sequence[str], limit: float | None = None) -> tuple[bool, str, float]:
        """Whether all tests pass; else which fails first; seconds."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", "--no-header",
                   "-p", "no:cacheprovider", *tests]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": str(self.root / "src")}
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
        path = self.root / "src" / "tilewright" / mutant.file
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


def _tried(room: str, wanted: Iterable[Mutant], jobs: int, folder: Path) -> Iterator[Result]:
    """Each fault with the tests of its room, several at a time."""
    tests = ROOMS[room].tests
    copies: Queue[Copy] = Queue()
    for n in range(jobs):
        copies.put(Copy(folder / f"{room}-{n}"))
    first = copies.get()
    passed, failed, seconds = first.run(tests)
    copies.put(first)
    if not passed:
        raise click.ClickException(f"{room}: the tests fail without a fault: {failed}")

    def one(m: Mutant) -> Result:
        copy = copies.get()
        try:
            passed, by, took = copy.try_one(m, tests, PATIENCE * seconds + 10)
        finally:
            copies.put(copy)
        by = "" if passed else by
        return Result(
            room, m.name, m.file, m.function, m.line, m.operator, m.before, m.after, not passed, by,
            round(took, 1),
        )  # fmt: skip

    with ThreadPoolExecutor(jobs) as pool:
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
@click.option("--rooms", default=",".join(ROOMS), show_default=True, help="Commas between them.")
@click.option("--count", default=40, show_default=True, help="Faults per room.")
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(min=1))
@click.option("--seed", default=0, show_default=True, help="Other faults.")
@click.option("--bar", default=0.95, show_default=True, help="The share that must be caught.")
@click.option("--out", default="out/mutants.jsonl", show_default=True,
              type=click.Path(path_type=Path))  # fmt: skip
def main(rooms: str, count: int, jobs: int, seed: int, bar: float, out: Path) -> None:
    """Seed faults into the sources, run the tests of their room, and say which were not caught."""
    unknown = [r for r in rooms.split(",") if r not in ROOMS]
    if unknown:
        raise click.BadParameter(f"no room {', '.join(unknown)}; there are {', '.join(ROOMS)}")
    out.parent.mkdir(parents=True, exist_ok=True)
    known, counted = results(out), []
    with tempfile.TemporaryDirectory() as scratch, out.open("a", encoding="utf-8") as file:
        for room in rooms.split(","):
            wanted = drawn(ROOMS[room], count, seed)
            counted += [known[m.name] for m in wanted if m.name in known]
            missing = [m for m in wanted if m.name not in known]
            for result in _tried(room, missing, jobs, Path(scratch)) if missing else ():
                fields = {k: getattr(result, k) for k in result.__dataclass_fields__}
                file.write(json.dumps(fields) + "\n")
                file.flush()
                counted.append(result)
    known_harmless = harmless()
    for r in counted:
        if not r.caught and r.name not in known_harmless:
            click.echo(f"{r.name} {r.file}:{r.line} {r.function}: {r.operator}: "
                       f"{r.before} -> {r.after}")  # fmt: skip
    table = summary(counted)
    for row in table:
        click.echo(
            "{room}: {faults} faults, {caught} caught, {harmless} harmless, {share:.1%}".format(
                **row
            )
        )
    sys.exit(1 if any(row["share"] < bar for row in table) else 0)


if __name__ == "__main__":
    main()
