"""Why a kernel falls short of the machine's peak, from measurements and counts.

Counted (`benchmarks.counts`): multiply-adds, bytes of weights and of everything else, operations
besides products, lanes in use. Read from the machine code: the instructions of the inner loop.
Measured: the time, and this core's peaks. `CAUSES` is the table of conclusions from these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks import peak
from benchmarks.counts import Counts

BAR = 0.80  # of the peak or of the bandwidth: what a kernel is to reach
SHORT = 10.0  # microseconds, in which starting and ending a kernel still shows


@dataclass(frozen=True)
class Facts:
    """One kernel in one network on one thread.

    fma: share of the multiply-add peak. stream: share of the time that its bytes take at the
    measured bandwidth: weights from the level that holds all weights of the network, because they
    are read once per run, the rest from the level that holds it. transforms, epilogue, lanes: see
    `Counts`. mix: of its inner loop (tilewright.runtime.instruction_mix.Mix). vector: bytes of this
    processor's vectors.
    """

    us: float
    fma: float
    stream: float
    weights: int
    others: int
    transforms: float
    epilogue: float
    lanes: float
    mix: Any
    vector: int

    @property
    def falls_short(self) -> bool:
        """Whether it reaches neither bar."""
        return max(self.fma, self.stream) < BAR


@dataclass(frozen=True)
class Cause:
    """A name, when it applies to a kernel that falls short, and the numbers that say so."""

    name: str
    applies: Callable[[Facts], bool]
    told: Callable[[Facts], str]


CAUSES = (
    Cause("short", lambda f: f.us < SHORT, lambda f: f"{f.us:.1f} us"),
    Cause("transforms", lambda f: f.transforms > 0.05, lambda f: f"{f.transforms:.0%}"),
    Cause("epilogue", lambda f: f.epilogue > 0.1, lambda f: f"{f.epilogue:.0%}"),
    Cause("idle lanes", lambda f: f.lanes < 0.9, lambda f: f"{1 - f.lanes:.0%}"),
    Cause(
        "spills",
        lambda f: f.mix is not None and f.mix.spills * 10 > f.mix.fmas + f.mix.vectors,
        lambda f: f"{f.mix.spills} of {f.mix.instructions}",
    ),
    Cause(
        "narrow vectors",
        lambda f: f.mix is not None and 0 < f.mix.width < f.vector,
        lambda f: f"{f.mix.width} of {f.vector} bytes",
    ),
    Cause(
        "other arithmetic",
        lambda f: f.mix is not None and f.mix.vectors * 4 > f.mix.fmas,
        lambda f: f"{f.mix.vectors} beside {f.mix.fmas} multiply-adds",
    ),
    Cause(
        "loads",
        lambda f: f.mix is not None and 0 < f.mix.fmas < f.mix.loads,
        lambda f: f"{f.mix.loads} for {f.mix.fmas} multiply-adds",
    ),
    Cause(
        "arithmetic and traffic in turn",
        lambda f: f.fma + f.stream >= BAR,
        lambda f: f"{f.fma:.0%} + {f.stream:.0%}",
    ),
)
UNEXPLAINED = "unexplained"  # by any of these: a matter for a processor's own counters


def causes(facts: Facts) -> dict[str, str]:
    """The causes that apply to a kernel that falls short, each with its numbers; else none."""
    if not facts.falls_short:
        return {}
    found = {c.name: c.told(facts) for c in CAUSES if c.applies(facts)}
    return found or {UNEXPLAINED: ""}


def facts(
    rows: Collection[Any],
    found: Mapping[tuple[str, tuple[str, ...]], Counts],
    peaks: peak.Peaks,
    vector: int,
) -> Iterator[Facts]:
    """The facts of each row of a profile; found: the counts of the model; vector: in bytes."""
    every = sum(c.weights for c in found.values())
    for row in rows:
        c = found.get((row.name, row.nodes), Counts())
        others = max(0, row.bytes - c.constants)
        nanoseconds = c.weights / peaks.bandwidth(every) + others / peaks.bandwidth(
            others
        )
        yield Facts(
            us=row.seconds * 1e6,
            fma=row.gflops / peaks.gflops,
            stream=nanoseconds / 1e9 / row.seconds,
            weights=c.weights,
            others=others,
            transforms=c.transforms,
            epilogue=c.epilogue,
            lanes=c.lanes,
            mix=row.mix,
            vector=vector,
        )
