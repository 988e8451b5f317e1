"""A short life of a server: eight executables, eight threads, changing shapes; nothing grows.

`python -m tests.robust.soak SECONDS` runs for a given time. Each thread calls executables in
its own order and compares each result, bit by bit, with the first one, which was compared with
ONNX's reference. Shapes are compiled, forgotten and compiled again; artifacts are written, loaded
and dropped; some calls are refused, as they should be; children are forked and end.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tests.robust.models import FLOAT, INT64, model, node
from tilewright.base.errors import ExecutionError, TilewrightWarning
from tilewright.driver import dynamic
from tilewright.expr import patterns, simplify

THREADS = 8
SHAPES = 7
# Fewer than there are shapes, so that some are forgotten and compiled again; and facts that are
# kept up to a limit reach it at once, so that only what has none grows.
LIMITS = (
    (dynamic, "KEPT", 4),
    (simplify, "_MEMO_LIMIT", 100),
    (patterns, "_FACTS_LIMIT", 100),
)
# Memory that an allocator may keep to itself, and the interpreter's own counts.
SLACK_BYTES = 24 << 20
SLACK_OBJECTS = 3000

Array = np.ndarray[Any, Any]
Call = Callable[[], Sequence[Array]]


@dataclass
class Work:
    """A call and its result, or None if it is refused."""

    name: str
    call: Call
    expected: Sequence[Array] | None


@dataclass(frozen=True)
class Level:
    """What may not grow."""

    memory: int
    files: int
    threads: int
    objects: int
    mappings: int

    @staticmethod
    def now() -> Level:
        """The state of the process, after everything that can be freed was freed."""
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        memory = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )
        mappings = Path("/proc/self/maps").read_bytes().count(b"\n")
        files, tasks = os.listdir("/proc/self/fd"), os.listdir("/proc/self/task")
        return Level(memory, len(files), len(tasks), len(gc.get_objects()), mappings)

    def grown(self, before: Level) -> str:
        """What has grown since, by more than is noise; empty where nothing has."""
        allowed = Level(SLACK_BYTES, 2, 0, SLACK_OBJECTS, 40)
        return ", ".join(
            f"{name}: {was} -> {now}"
            for name in ("memory", "files", "threads", "objects", "mappings")
            if (now := getattr(self, name))
            > (was := getattr(before, name)) + getattr(allowed, name)
        )


@dataclass
class Server:
    """Executables and their calls; `wrong` lists the failures."""

    folder: Path
    works: list[Work] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    calls: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(0)
        w = rng.standard_normal((16, 12), dtype=np.float32)
        filters = rng.standard_normal((8, 4, 3, 3), dtype=np.float32)
        dense = [node("MatMul", ["x", "w"], ["h"]), node("Relu", ["h"], ["y"])]
        square = [
            node("Transpose", ["x"], ["t"], perm=[1, 0]),
            node("MatMul", ["x", "t"], ["s"]),
            node("Softmax", ["s"], ["p"]),
            node("MatMul", ["p", "x"], ["y"]),
        ]
        conv = [
            node("Conv", ["x", "f"], ["c"], pads=[1] * 4),
            node("Relu", ["c"], ["y"]),
        ]
        unique = [node("Exp", ["x"], ["e"]), node("Unique", ["e"], ["y"], sorted=1)]
        gather = [node("Gather", ["table", "i"], ["y"])]

        def draw(*shape: int) -> Array:
            return rng.standard_normal(shape, dtype=np.float32)

        matrices = [draw(n, 16) for n in range(1, SHAPES + 1)]
        images = [draw(1, 4, 10, 10) for _ in range(3)]
        source = model(conv, {"x": (FLOAT, [1, 4, 10, 10])}, constants={"f": filters})
        self._add(
            "dense",
            model(dense, {"x": (FLOAT, [7, 16])}, constants={"w": w}),
            [draw(7, 16)],
        )
        self._add(
            "batch",
            model(dense, {"x": (FLOAT, ["n", 16])}, constants={"w": w}),
            matrices,
            threads=2,
        )
        self._add("attention", model(square, {"x": (FLOAT, ["n", 16])}), matrices)
        self._add("convolution", source, images, threads=2)
        self._add("reference", model(unique, {"x": (FLOAT, [9])}), [draw(9)])
        table = model(gather, {"i": (INT64, [3])}, constants={"table": w})
        self._add("lookup", table, [np.array([0, 15, 7]), np.array([0, 16, 0])])
        self._add(
            "wide",
            model(dense, {"x": (FLOAT, [64, 16])}, constants={"w": w}),
            [draw(64, 16)],
        )
        refused = [work.name for work in self.works if work.expected is None]
        assert refused == ["lookup 1"], refused
        self.path = self.folder / "m.tw"
        tw.compile(source, threads=2).save(self.path)
        self._loaded(images)

    def _add(
        self, name: str, source: Any, feeds: Sequence[Array], threads: int = 1
    ) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", TilewrightWarning
            )  # a host fallback, which is said
            exe = tw.compile(source, threads=threads)
        reference = ReferenceEvaluator(source)
        for number, x in enumerate(feeds):
            call = self._call(exe, x)
            try:
                expected = call()
            except ExecutionError:
                self.works.append(Work(f"{name} {number}", call, None))
                continue
            (right,) = reference.run(None, {source.graph.input[0].name: x})
            np.testing.assert_allclose(expected[0], right, rtol=1e-4, atol=1e-4)
            self.works.append(Work(f"{name} {number}", call, expected))

    def _loaded(self, feeds: Sequence[Array]) -> None:
        """An artifact that is loaded for each call, and dropped."""
        for number, x in enumerate(feeds):

            def call(x: Array = x) -> Sequence[Array]:
                return [tw.load(self.path, threads=2)(x)]

            self.works.append(Work(f"loaded {number}", call, call()))

    @staticmethod
    def _call(exe: Any, x: Array) -> Call:
        return lambda: [exe(x)]

    def run(self, again: Callable[[int], bool]) -> None:
        """Have the threads call while `again(round)`."""
        threads = [
            threading.Thread(target=self._serve, args=(number, again))
            for number in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _serve(self, number: int, again: Callable[[int], bool]) -> None:
        rng, turn = Random(number), 0
        while again(turn) and not self.wrong:
            turn += 1
            for work in rng.sample(self.works, len(self.works)):
                problem = _done(work)
                if problem:
                    self.wrong.append(f"{work.name} in thread {number}: {problem}")
            self.calls += len(self.works)

    def in_between(self) -> None:
        """Other work of a server: artifacts are written again, children run and end."""
        tw.load(self.path, threads=2).save(self.path)
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # Python 3.12: a fork among threads
            child = os.fork()
        if not child:
            work = self.works[0]
            os._exit(1 if _done(work) else 0)
        if os.waitpid(child, 0)[1]:
            self.wrong.append("a child failed")


def _done(work: Work) -> str:
    """Do the work. Returns what is wrong with the result, or an empty string."""
    try:
        found = work.call()
    except ExecutionError as error:
        return "" if work.expected is None else f"it was refused: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if work.expected is None:
        return "it was not refused"
    same = all(np.array_equal(a, b) for a, b in zip(found, work.expected, strict=True))
    return "" if same else "another result than at first"


def soak(folder: Path, lengths: Iterator[Callable[[int], bool]]) -> tuple[int, str]:
    """Run for each of `lengths`, the first to warm up. Returns the calls and the failures."""
    before_all = [getattr(module, name) for module, name, _ in LIMITS]
    for module, name, value in LIMITS:
        setattr(module, name, value)
    try:
        server = Server(folder)
        server.run(next(lengths))
        server.in_between()
        before = Level.now()
        for again in lengths:
            server.run(again)
            server.in_between()
            found = "; ".join(server.wrong[:5]) or Level.now().grown(before)
            if found:
                return server.calls, found
        return server.calls, ""
    finally:
        for (module, name, _), value in zip(LIMITS, before_all, strict=True):
            setattr(module, name, value)


def main(seconds: float) -> int:
    """Run for this many seconds, and check every minute that nothing has grown."""
    end = time.monotonic() + seconds

    def lengths() -> Iterator[Callable[[int], bool]]:
        while time.monotonic() < end:
            until = min(end, time.monotonic() + 60)
            yield lambda turn, until=until: time.monotonic() < until
            print(
                f"{max(0, end - time.monotonic()):.0f} s left, {Level.now()}",
                flush=True,
            )

    with tempfile.TemporaryDirectory() as folder:
        os.environ["TILEWRIGHT_CACHE_DIR"] = str(Path(folder) / "cache")
        calls, wrong = soak(Path(folder), lengths())
    print(f"{calls} calls: {wrong or 'no wrong result, and nothing has grown'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
