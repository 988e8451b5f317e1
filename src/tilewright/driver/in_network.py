"""Checks that schedules faster in isolation are faster in their model, with equal results.

In a model, the caches hold other data than when a kernel is called repeatedly: the data that the
previous kernels left there. So schedules are added one by one, and each is kept only if the whole
model is significantly faster with it.
"""

from __future__ import annotations

import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Final

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.driver.same_results import Array, expect_equal
from tilewright.runtime.executable import Executable
from tilewright.tune.gain import confidence
from tilewright.tune.measure.clock import clock_of
from tilewright.tune.records.database import Records
from tilewright.tune.records.rows import MARGIN, Choice
from tilewright.tune.tuner import TaskOutcome

Compile = Callable[[Path | None], Executable]  # with the choices of a records file

SURE: Final = 0.95  # required confidence that the model is faster
SITTINGS: Final = 8  # per comparison, each with its own memory; see `compared`
# Shares of the model's time. One comparison cannot resolve smaller gains: they are combined.
RESOLVED: Final = 0.01
LEAST: Final = 0.002  # smaller gains are not worth a comparison
_ROUNDS: Final = 5  # per sitting, and per profile
_BATCH: Final = 5e-3  # minimum seconds of a batch of calls that is timed as a whole


@dataclass(frozen=True, slots=True)
class NetworkTimes:
    """Seconds of a run without and with the chosen schedules.

    kernels: the same for all calls of a kernel, by the keys of tasks. confidence: that the model is
    faster with the choices; see `tune.gain.confidence`.
    """

    before: float
    after: float
    kernels: Mapping[str, tuple[float, float]]
    confidence: float = 0.0

    @property
    def gain(self) -> float:
        """The speedup."""
        return self.before / self.after


def kept(
    outcomes: Sequence[TaskOutcome],
    compile: Compile,
    feeds: Mapping[str, Array],
    least: float = MARGIN,
    base: Sequence[Choice] = (),
) -> tuple[list[TaskOutcome], NetworkTimes | None]:
    """The improved kernels that make the model faster, and its times with them.

    base: choices that the model has without and with them. No kernels if the whole model is not
    significantly faster, by a factor of at least `least`. Raises VerifyError if results differ.
    """
    if not outcomes:
        return [], None
    network = SwitchableModel(compile, feeds, base)
    times, total = network.profiled(outcomes), network.seconds
    shares = {key: (before - after) / total for key, (before, after) in times.items()}
    worth = [o for o in outcomes if shares[o.task.key] > 0]
    worth.sort(key=lambda o: -shares[o.task.key])
    chosen: list[TaskOutcome] = []
    for group in steps(worth, shares):
        chosen = _extended(network, chosen, group, shares)
    if not chosen:
        return [], NetworkTimes(total, total, times)
    found = network.compared([], chosen)
    whole = NetworkTimes(found.before, found.after, times, found.confidence)
    good = whole.confidence >= SURE and whole.gain >= least
    return (chosen if good else []), whole


def steps(
    worth: Sequence[TaskOutcome], shares: Mapping[str, float]
) -> Iterator[list[TaskOutcome]]:
    """The groups to add: each outcome that one comparison can resolve, then the others together.

    shares: the share of the model's time that each is expected to save, by the keys of tasks.
    """
    for o in worth:
        if shares[o.task.key] >= RESOLVED:
            yield [o]
    rest = [o for o in worth if shares[o.task.key] < RESOLVED]
    if rest:
        yield rest


def _extended(
    network: SwitchableModel,
    chosen: list[TaskOutcome],
    group: list[TaskOutcome],
    shares: Mapping[str, float],
) -> list[TaskOutcome]:
    """`chosen`, and those of `group` that make the model faster: all, or parts of its halves."""
    if sum(shares[o.task.key] for o in group) < LEAST:
        return chosen
    more = [*chosen, *group]
    found = network.compared(chosen, more)
    taken = found.confidence >= SURE
    names = [o.task.name for o in group]
    sure = found.confidence
    events.emit(
        "tune-choice", kernels=names, gain=found.gain, confidence=sure, taken=taken
    )
    if taken:
        return more
    if len(group) > 1:
        half = len(group) // 2
        for part in (group[:half], group[half:]):
            chosen = _extended(network, chosen, part, shares)
    return chosen


class SwitchableModel:
    """A model with different choices of schedules, on the same inputs.

    base: choices that it always has.
    """

    def __init__(
        self,
        compile: Compile,
        feeds: Mapping[str, Array],
        base: Sequence[Choice] = (),
    ) -> None:
        self._compile, self._feeds = compile, dict(feeds)
        self._base = base
        self._made: dict[tuple[str, ...], Executable] = {}

    @cached_property
    def seconds(self) -> float:
        """The seconds of a run with all defaults."""
        exe = self.compiled([])
        return statistics.median(self._timed(exe) for _ in range(_ROUNDS))

    def compiled(self, chosen: Sequence[TaskOutcome]) -> Executable:
        """The model with these kernels' best schedules. Raises VerifyError if results differ."""
        key = tuple(sorted(o.task.key for o in chosen))
        if key not in self._made:
            with choices_file(self._base, chosen) as path:
                made = self._compile(path)
            if chosen:
                expect_equal(self.compiled([]), made, self._feeds)
            self._made[key] = made
        return self._made[key]

    def profiled(
        self, outcomes: Sequence[TaskOutcome]
    ) -> dict[str, tuple[float, float]]:
        """Seconds of all calls of each kernel in the model, without and with all choices."""
        both = self.compiled([]), self.compiled(outcomes)
        parts: tuple[_Parts, _Parts] = (defaultdict(list), defaultdict(list))
        for n in range(_ROUNDS):
            for side in (0, 1) if n % 2 else (1, 0):
                for row in both[side].profile(self._feeds, repeat=3).rows:
                    parts[side][row.name].append(row.seconds)
        return {
            o.task.key: (_sum(parts[0], o.task.kernels), _sum(parts[1], o.task.kernels))
            for o in outcomes
        }

    def compared(
        self, before: Sequence[TaskOutcome], after: Sequence[TaskOutcome]
    ) -> NetworkTimes:
        """Compare the model with two sets of choices."""
        both = self.compiled(before), self.compiled(after)
        return compared(both, self._timed)

    def _timed(self, exe: Executable) -> float:
        return seconds_of(exe, self._feeds)


def compared(
    both: tuple[Executable, Executable], timed: Callable[[Executable], float]
) -> NetworkTimes:
    """Compare two programs, run alternately. timed: returns the seconds of a call.

    Two copies of one program differ in speed by the addresses of their memory, for as long as they
    exist. So each sitting makes new copies, and counts as one pair of times.
    """
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(SITTINGS):
        times: tuple[list[float], list[float]] = ([], [])
        copies = [_copy(exe) for exe in both]
        for n in range(_ROUNDS):
            for side in (0, 1) if n % 2 else (1, 0):
                times[side].append(timed(copies[side]))
        for side in (0, 1):
            found[side].append(statistics.median(times[side]))
    before, after = map(statistics.median, found)
    return NetworkTimes(before, after, {}, confidence(found[1], found[0]))


def seconds_of(exe: Executable, feeds: Mapping[str, Array]) -> float:
    """The mean seconds of a call in a batch, by the clock for such programs."""
    given, now = dict(feeds), clock_of(exe)
    start, calls = now(), 0
    while (taken := now() - start) < _BATCH or not calls:
        exe(given)
        calls += 1
    return taken / calls


_Parts = dict[str, list[float]]


def _copy(exe: Executable) -> Executable:
    """The same program in other memory."""
    return Executable(exe.model, threads=exe.threads)


def _sum(parts: _Parts, names: Sequence[str]) -> float:
    return sum(statistics.median(parts[name]) for name in names if name in parts)


@contextmanager
def choices_file(
    base: Sequence[Choice], chosen: Sequence[TaskOutcome] = ()
) -> Iterator[Path | None]:
    """A file of records with exactly these choices; None for none."""
    if not base and not chosen:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "choices.sqlite")
        _choose(path, base, chosen)
        yield path


def _choose(
    path: Path, base: Sequence[Choice], outcomes: Sequence[TaskOutcome]
) -> None:
    with Records(path) as records:
        records.merge(base)
        run = records.begin("comparison")
        for o in outcomes:
            assert o.best is not None and o.default is not None
            seconds = o.best.measurement.seconds
            default = max(o.default.measurement.seconds, seconds * MARGIN * 1.01)
            key, name = o.task.key, o.task.name
            records.choose(run, key, name, o.best.candidate, seconds, default)
