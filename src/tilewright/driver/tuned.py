"""The result of tuning a model, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import inf, isfinite
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.numbers import ceil_div
from tilewright.base.text import columns, human_time, plural
from tilewright.tune.scheduler import TuningEnd
from tilewright.tune.tuner import TaskOutcome

INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class KernelTuned:
    """The result for one kernel.

    calls: per run of the model. default, best: seconds of a call in isolation. used: whether
    compilations use the best schedule, and if not, why. confidence: that it is faster. in_network:
    seconds of all its calls in the model, without and with it; None if not compared. operations,
    bytes_moved: of a call, as of tasks. bound: what bounds the best schedule, in words.
    """

    name: str
    calls: int
    default: float
    best: float
    trials: int
    confidence: float
    expected_gain: float
    candidate: Mapping[str, Any]
    used: str
    in_network: tuple[float, float] | None = None
    operations: int = 0
    bytes_moved: int = 0
    bound: str = ""

    @property
    def gain(self) -> float:
        """The speedup in isolation; 1 if unknown."""
        return self.default / self.best if isfinite(self.default / self.best) else 1.0

    @staticmethod
    def of(
        outcome: TaskOutcome, used: str, in_network: tuple[float, float] | None = None
    ) -> KernelTuned:
        """The result of an outcome."""
        best, default = outcome.best, outcome.default
        values: dict[str, Any] = {}
        if best is not None:
            values = {"sketch": best.candidate.sketch, **best.candidate.values}
        return KernelTuned(
            outcome.task.name,
            outcome.task.calls,
            inf if default is None else default.measurement.seconds,
            inf if best is None else best.measurement.seconds,
            outcome.trials,
            outcome.confidence,
            outcome.expected_gain,
            values,
            used,
            in_network,
            outcome.task.operations,
            outcome.task.bytes_moved,
            outcome.bound,
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "kernel": self.name,
            "calls": self.calls,
            "default_seconds": self.default,
            "best_seconds": self.best,
            "gain": self.gain,
            "trials": self.trials,
            "confidence": self.confidence,
            "expected_gain": self.expected_gain,
            "values": dict(self.candidate),
            "used": self.used,
            "in_network": self.in_network,
            "operations": self.operations,
            "bytes_moved": self.bytes_moved,
            "bound": self.bound,
        }


@dataclass(frozen=True, slots=True)
class TunedModel:
    """The result for a model.

    ending: why tuning ended: a scheduler.Ending or `interrupted`. failed: the number of failed
    trials, by status. spent: seconds, by activity. overhead: the share of time neither building nor
    measuring. records: the file. before, after: seconds of a run, from alternating runs; None if no
    schedule was chosen.
    """

    model: str
    kernels: Sequence[KernelTuned]
    ending: TuningEnd | str
    trials: int
    failed: Mapping[str, int]
    seconds: float
    spent: Mapping[str, float]
    overhead: float
    records: str
    before: float | None = None
    after: float | None = None
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def gain(self) -> float:
        """The speedup of the model; 1 if nothing better was found."""
        if self.before is None or self.after is None:
            return 1.0
        return self.before / self.after

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "model": self.model,
            "gain": self.gain,
            "before_seconds": self.before,
            "after_seconds": self.after,
            "ending": str(self.ending),
            "trials": self.trials,
            "failed": dict(self.failed),
            "seconds": self.seconds,
            "spent": dict(self.spent),
            "overhead": self.overhead,
            "records": self.records,
            "notes": list(self.notes),
            "kernels": [k.to_dict() for k in self.kernels],
        }

    def __str__(self) -> str:
        heading = ["kernel", "calls", "default", "best", "gain", "trials", "used"]
        rows = [_row(k) for k in self.kernels]
        failed = ", ".join(f"{count} {name}" for name, count in self.failed.items())
        lines = [columns([heading, *rows], "<>>>>><")]
        lines.append(
            f"{plural(self.trials, 'trial')} in {human_time(self.seconds)}"
            + (f" ({failed})" if failed else "")
            + f", {self.overhead:.0%} of it neither building nor measuring"
        )
        if self.before is not None and self.after is not None:
            times = f"{human_time(self.before)} -> {human_time(self.after)}"
            lines.append(f"the model: {times}, {self.gain:.2f} times as fast")
        else:
            lines.append("the model: no schedule that makes it faster was found")
        return "\n".join([*lines, *self._unmeasured(), *self.notes])

    def _unmeasured(self) -> list[str]:
        """How much longer a run must be that measures every kernel, if this one did not.

        The estimate: each of the others takes as long as those that were measured on average.
        """
        measured = sum(k.trials > 0 for k in self.kernels)
        left = len(self.kernels) - measured
        if not left:
            return []
        count = f"{left} of {plural(len(self.kernels), 'kernel')} not measured"
        if not measured:
            return [f"{count}: this run was too short for a first one; give more time"]
        if self.ending == TuningEnd.TRIALS:
            more = f"{ceil_div(self.trials * left, measured):,} more trials"
        else:
            more = f"{human_time(self.seconds * left / measured)} more"
        return [f"{count}: another run goes on, and needs about {more} for all of them"]


def _row(k: KernelTuned) -> list[str]:
    times = [human_time(t) if isfinite(t) else "-" for t in (k.default, k.best)]
    gain = f"{k.gain:.2f}"
    return [k.name[:48], str(k.calls), *times, gain, str(k.trials), k.used]
