"""What bounds a scheduled kernel: the resource that is busy longest, in words.

Each rule reads the features `fast` and says how many cycles of one core its resource is busy. The
largest number is the kernel's bound, as far as the features know: the share of the measured time
that it explains is part of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.base.text import human_bytes
from tilewright.loops.nodes import Kernel
from tilewright.tune.features.base import LOG
from tilewright.tune.features.facts import Facts
from tilewright.tune.features.fast import DIVISION_CYCLES, FUNCTION_CYCLES, Fast

CLOCK: Final = 3.0  # cycles per nanosecond, if the target does not say
EXPLAINED: Final = 0.5  # of the time, at least, for a bound to be called one
FULL: Final = 0.9  # of the lanes, threads or accumulators: more are all


@dataclass(frozen=True, slots=True)
class KernelBounds:
    """Finds the bounds of kernels on a machine. clock: cycles per nanosecond. call_ns: nanoseconds
    that a kernel takes besides its work."""

    facts: Facts
    clock: float = CLOCK
    call_ns: float = 0.0

    def of(self, kernel: Kernel, seconds: float) -> str:
        """What bounds a kernel that takes so many seconds per call."""
        at = _Terms(_plain(kernel, self.facts), self.facts)
        busy = {rule: rule(at)[0] / at.workers for rule in RULES}
        longest = max(busy, key=lambda rule: busy[rule])
        cycles, text = busy[longest], longest(at)[1]
        if self.call_ns * self.clock > cycles:
            cycles, text = self.call_ns * self.clock, "starting the kernel"
        share = cycles / (seconds * self.clock * 1e9)
        # What is expected to take longer than all does is overlapped, or faster than expected.
        said = text if share >= FULL else f"{text}, {share:.0%} of the time"
        if share < EXPLAINED:
            said = f"not known: most is {said}"
        return said + at.idle


def _plain(kernel: Kernel, facts: Facts) -> Mapping[str, float]:
    """The features of a kernel by name, as counts and not as their logarithms."""
    features = Fast(facts)
    (row,) = features.extract(kernel).tolist()
    columns = zip(features.columns, row, strict=True)
    return {c.name: 2.0**x - 1 if c.unit == LOG else x for c, x in columns}


@dataclass(frozen=True, slots=True)
class _Terms:
    """The features of a kernel by name, and the machine."""

    row: Mapping[str, float]
    facts: Facts

    @property
    def workers(self) -> float:
        """Threads that are busy on average while the kernel runs."""
        shared = self.row["parallel"] / max(1.0, self.row["executions"])
        threads = max(1.0, min(self.facts.cores, self.row["tile_tasks"]))
        busy = threads * (self.row["tile_balance"] or 1.0)
        return 1 / (1 - shared + shared / busy)

    @property
    def idle(self) -> str:
        """The threads that wait, in words; empty if there are few."""
        if self.workers >= FULL * self.facts.cores:
            return ""
        return f"; {self.workers:.1f} of {self.facts.cores} threads are busy"


def _memory(at: _Terms) -> tuple[float, str]:
    """Bytes that move between caches. What fits into the last one is there before a call."""
    far = 0.0 if at.row["parameter_bytes"] <= at.facts.l3 else at.row["from_memory"]
    levels = {
        "the second cache": (at.row["from_l2"], at.facts.l2_bytes),
        "the last cache": (at.row["from_l3"], at.facts.l3_bytes),
        "memory": (far, at.facts.memory_bytes),
    }
    cycles = {name: moved / rate for name, (moved, rate) in levels.items()}
    slowest = max(cycles, key=lambda name: cycles[name])
    moved = human_bytes(round(levels[slowest][0]))
    return sum(cycles.values()), f"memory traffic ({moved} from {slowest})"


def _loads(at: _Terms) -> tuple[float, str]:
    """Loads of operands."""
    names = ("vector_loads", "broadcasts", "gathers")
    loads = sum(at.row[name] for name in names)
    per = loads / max(1.0, at.row["instructions"])
    one_by_one = at.row["gathers"] / max(1.0, loads)
    apart = f", {one_by_one:.0%} of them one by one" if one_by_one > 0.1 else ""
    text = f"loads ({per:.2g} per arithmetic instruction{apart})"
    return at.row["load_cycles"], text


def _chains(at: _Terms) -> tuple[float, str]:
    """Sums each step of which waits for the one before."""
    overlap = at.row["tile_overlap"]
    if at.row["tile_steps"] <= 1 or overlap >= FULL or not overlap:
        return 0.0, ""
    share = at.row["tile_share"]
    cycles = _arithmetic(at)[0] * (share / overlap + 1 - share)
    return cycles, f"dependence chains (so few sums hide {overlap:.0%} of the latency)"


def _functions(at: _Terms) -> tuple[float, str]:
    """Divisions and functions, in vectors where the rest is."""
    operations = at.row["divisions"] + at.row["functions"]
    scalar = at.row["multiply_adds"] + at.row["simple"] + at.row["conversions"]
    width = (scalar + operations) / max(1.0, at.row["instructions"])
    weighed = DIVISION_CYCLES * at.row["divisions"]
    weighed += FUNCTION_CYCLES * at.row["functions"]
    return weighed / max(1.0, width), "divisions and functions"


def _arithmetic(at: _Terms) -> tuple[float, str]:
    """The rest of the arithmetic."""
    cycles = at.row["issue_cycles"] - _functions(at)[0]
    lanes, beside = at.row["tile_lanes_used"], at.row["simple"]
    if lanes < FULL:
        return cycles, f"arithmetic ({lanes:.0%} of the lanes are used)"
    share = beside / max(1.0, beside + at.row["multiply_adds"])
    besides = f", {share:.0%} of it besides multiply-adds" if share > 0.1 else ""
    return cycles, f"arithmetic (all lanes are used{besides})"


# Each returns the cycles of one core that a resource is busy, and its name.
RULES: Final[tuple[Callable[[_Terms], tuple[float, str]], ...]] = (
    _memory,
    _loads,
    _chains,
    _functions,
    _arithmetic,
)
