"""Runs generators in turn, counts, and writes a test for each fault.

It also keeps the combinations that occurred in a generator's programs: the next campaign is steered
to others.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from itertools import cycle, islice
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.base.files import write_whole
from tilewright.testing.fuzz.worker import (
    CaseGenerator,
    FuzzFinding,
    FuzzProcess,
    LostProgram,
    Met,
)

FIRST: Final = 1_000_000  # seeds below it are those of tests
FLUSH: Final = 5.0  # seconds between two writes of the counts
OFTEN: Final = 99  # a pair that met more often is kept as one that met so often
PAIRS: Final = 20_000  # of one generator are kept, those that met most often


@dataclass
class Count:
    """Counts of one generator over all campaigns. next: the first seed that was never run."""

    programs: int = 0
    faults: int = 0
    next: int = FIRST


def read_counts(path: Path) -> dict[str, Count]:
    """The counts in a file; none if there is no file. Raises ValueError for another content."""
    if not path.exists():
        return {}
    rows: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {name: Count(**row) for name, row in rows.items()}


def read_met(path: Path) -> dict[str, Met]:
    """The pair counts of each generator in a file; empty if there is no file. Raises ValueError for
    malformed content."""
    if not path.exists():
        return {}
    rows: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {
        name: Counter(
            {(a, b): int(n) for a, others in pairs.items() for b, n in others.items()}
        )
        for name, pairs in rows.items()
    }


def met_text(met: Mapping[str, Met]) -> str:
    """The content of such a file."""
    rows: dict[str, dict[str, dict[str, int]]] = {}
    for name in sorted(met):
        pairs = rows[name] = {}
        for (a, b), n in sorted(met[name].most_common(PAIRS)):
            pairs.setdefault(a, {})[b] = min(n, OFTEN)
    return json.dumps(rows, indent=0) + "\n"


@dataclass
class _Turn:
    """The state of one generator in this campaign. open: seeds that were started and not
    finished."""

    generator: CaseGenerator
    count: Count
    following: int
    programs: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)

    def take(self) -> int:
        seed = self.following
        self.following += 1
        self.open.add(seed)
        return seed

    def finish(self, seed: int) -> None:
        self.open.discard(seed)
        self.programs += 1
        self.count.programs += 1
        self.count.next = min(self.open, default=self.following)


class Campaign:
    """Some generators, and the folder of the counts and of the tests that are written.

    written: the tests of this campaign, one for each kind of failure of a generator.
    """

    def __init__(self, generators: Sequence[CaseGenerator], folder: Path) -> None:
        self._folder = folder
        self._counts = read_counts(folder / "counts.json")
        self._met = read_met(folder / "met.json")
        self.written: list[Path] = []
        self._turns = []
        for g in generators:
            count = self._counts.setdefault(g.name, Count())
            self._turns.append(_Turn(g, count, count.next))

    def run(
        self,
        seconds: float,
        jobs: int,
        programs: int | None = None,
    ) -> None:
        """Run for `seconds`, `programs`, or until Ctrl-C; keep the results of completed
        programs."""
        workers = [FuzzProcess() for _ in range(jobs)]
        try:
            end = time.monotonic() + seconds
            self._rounds(workers, end, programs)
        except KeyboardInterrupt:
            pass
        finally:
            for worker in workers:
                worker.close()
            self._save()

    def _rounds(
        self,
        workers: Sequence[FuzzProcess],
        end: float,
        programs: int | None,
    ) -> None:
        turns: dict[FuzzProcess, _Turn] = {}
        order = islice(cycle(self._turns), programs)
        idle = list(workers)
        saved = time.monotonic()
        while True:
            now = time.monotonic()
            while idle and now < end and (turn := next(order, None)) is not None:
                worker = idle.pop()
                turns[worker] = turn
                met = self._met.get(turn.generator.name)
                worker.start(turn.generator, turn.take(), met=met)
            if not turns:
                return
            least = min(worker.left for worker in turns)
            wait([worker.pipe for worker in turns], max(0.0, min(least, FLUSH)))
            for worker in list(turns):
                seed = worker.seed
                ended, result = worker.poll()
                if ended:
                    idle.append(worker)
                    if worker.met:
                        name = turns[worker].generator.name
                        self._met.setdefault(name, Counter()).update(worker.met)
                    self._finish(turns.pop(worker), seed, result)
            if now > saved + FLUSH:
                self._save()
                saved = now

    def _finish(
        self,
        turn: _Turn,
        seed: int,
        result: FuzzFinding | LostProgram | None,
    ) -> None:
        turn.finish(seed)
        if result is None:
            return
        turn.count.faults += 1
        kind = _kind(result.reason)
        turn.kinds[kind] = turn.kinds.get(kind, 0) + 1
        if turn.kinds[kind] == 1:
            path = self._folder / f"found_{turn.generator.name}_{seed}.py"
            text = source_of_test(turn.generator.name, seed, result)
            write_whole(path, lambda file: file.write(text.encode()))
            self.written.append(path)
        self._save()

    def _save(self) -> None:
        rows = {name: asdict(self._counts[name]) for name in sorted(self._counts)}
        text = json.dumps(rows, indent=2) + "\n"
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / "counts.json"
        write_whole(path, lambda file: file.write(text.encode()))
        if self._met:
            met = met_text(self._met).encode()
            path = self._folder / "met.json"
            write_whole(path, lambda file: file.write(met))

    def summary(self) -> list[str]:
        """One line per generator, then what to commit."""
        if self._met:
            met = ["met.json"]
        else:
            met = []
        lines = [
            f"{t.generator.name}: {t.programs} programs, {sum(t.kinds.values())} failures of "
            f"{len(t.kinds)} kinds; {t.count.programs} programs and {t.count.faults} failures ever"
            for t in self._turns
        ]
        new = ["counts.json", *met, *(path.name for path in self.written)]
        return [*lines, f"to commit, in {self._folder}: {', '.join(new)}"]


def _kind(reason: str) -> str:
    """The words of a reason's last line, which failures of one kind share."""
    lines = reason.strip().splitlines() or [""]
    return re.sub(r"[^A-Za-z_ ]+", "", lines[-1])[:100]


ALONE: Final = """\
from tilewright.testing.fuzz.generators import GENERATORS
from tilewright.testing.fuzz.worker import alone


def test_{name}_{seed}():
    assert not alone(GENERATORS["{name}"], {seed}, {told!r})
"""


def source_of_test(
    name: str,
    seed: int,
    result: FuzzFinding | LostProgram,
) -> str:
    """The source of a test of the failure; it uses the seed if there is no reduced program."""
    if isinstance(result, LostProgram):
        told = result.told
    else:
        told = ""
    if isinstance(result, FuzzFinding):
        body = result.test
    else:
        body = ""
    text = body or ALONE.format(
        name=name,
        seed=seed,
        told=told,
    )
    said = "\n".join(
        f"# {line}".rstrip() for line in result.reason.strip().splitlines()[-30:]
    )
    return f'"""Found by make fuzz: {name}, seed {seed}."""\n\n{said}\n\n{text}'
