"""The recorded objects, runs, trials and choices, and the plain-value form of each.

The plain form is the one in JSON Lines. Each row is complete: it names its kernel, machine, run and
model, so it can be read alone, on any machine.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.tune.base import Candidate, Measurement, Status, Trial
from tilewright.tune.records.key import Key

FORMAT: Final = 1  # version of the plain form
# A choice is used only if it beats the default by this factor within one run: smaller differences
# are measurement noise.
MARGIN: Final = 1.02


@dataclass(frozen=True, slots=True)
class TunerRun:
    """A run of a tuner. id: globally unique. started: seconds since the epoch.

    compiler: the version that measured and a digest of its code; informational, never searched.
    settings: what the caller wants to look up again, such as its method.
    """

    id: str
    model: str
    started: float
    compiler: str = ""
    settings: str = ""


@dataclass(frozen=True, slots=True)
class Features:
    """The features of a program before it was measured: the set, its version, its bytes."""

    set: str
    version: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Record:
    """A trial with its kernel, run and time. task: the kernel's name, for display."""

    key: Key
    task: str
    run: TunerRun
    time: float
    trial: Trial
    features: Features | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """The decision to use this schedule for a kernel; without a candidate, the default one.

    seconds, default_seconds: per call, both measured in this run.
    """

    key: Key
    task: str
    run: TunerRun
    time: float
    candidate: Candidate | None
    seconds: float = 0.0
    default_seconds: float = 0.0

    @property
    def gain(self) -> float:
        """The speedup over the default."""
        return self.default_seconds / self.seconds if self.candidate else 1.0

    @property
    def pays(self) -> bool:
        """Whether it is used: faster than the default by MARGIN."""
        return self.gain >= MARGIN


def plain(row: Record | Choice) -> dict[str, Any]:
    """A row as a JSON object."""
    run, trial = row.run, None
    found: dict[str, Any] = {
        "record": "trial" if isinstance(row, Record) else "choice",
        "format": FORMAT,
        "task": row.task,
        "time": row.time,
        "run": {name: getattr(run, name) for name in _RUN},
        "key": {name: getattr(row.key, name) for name in _KEY},
    }
    if isinstance(row, Choice):
        candidate = None if row.candidate is None else row.candidate.key
        return found | {
            "candidate": candidate,
            "seconds": row.seconds,
            "default_seconds": row.default_seconds,
        }
    trial = row.trial
    m = trial.measurement
    found |= {
        "candidate": trial.candidate.key,
        "status": m.status.value,
        "rounds": list(m.rounds),
        "reason": m.reason,
        "noise": m.noise,
        "build_seconds": m.build_seconds,
        "run_seconds": m.run_seconds,
        "predicted": trial.predicted,
        "strategy": trial.strategy,
    }
    if row.features is not None:
        data = base64.b64encode(row.features.data).decode()
        parts = {"set": row.features.set, "version": row.features.version}
        found["features"] = parts | {"data": data}
    return found


def row_of(given: Any) -> Record | Choice:
    """Parse a plain row. Raises InputError that names the missing or invalid part."""
    if not isinstance(given, dict) or given.get("record") not in ("trial", "choice"):
        raise InputError("it is not a record of a trial or a choice")
    if given.get("format") != FORMAT:
        raise InputError(f"its format is {given.get('format')!r}, expected {FORMAT}")
    read = _Reader(given)
    about = (
        Key.of(given.get("key")),
        read.text("task"),
        _run(_Reader(read.table("run"))),
        read.number("time"),
    )
    if given["record"] == "choice":
        return _choice(read, about)
    return Record(*about, _trial(read), _features(read))


_RUN: Final = ("id", "model", "started", "compiler", "settings")
_KEY: Final = tuple(Key.__dataclass_fields__)
_About = tuple[Key, str, TunerRun, float]


@dataclass(frozen=True, slots=True)
class _Reader:
    """Typed access to values by name. Raises InputError for a value of another type."""

    given: Mapping[str, Any]

    def text(self, name: str) -> str:
        value = self.given.get(name)
        if not isinstance(value, str):
            raise _wrong(name, value, "a text")
        return value

    def number(self, name: str, least: float = 0.0) -> float:
        return _number(name, self.given.get(name), least)

    def table(self, name: str) -> Mapping[str, Any]:
        value = self.given.get(name)
        if not isinstance(value, dict):
            raise _wrong(name, value, "a table")
        return value

    def candidate(self) -> Candidate:
        text = self.text("candidate")
        try:
            return Candidate.parse(text)
        except (ValueError, RecursionError):
            raise _wrong("candidate", text, "the key of a candidate") from None


def _run(read: _Reader) -> TunerRun:
    return TunerRun(
        read.text("id"),
        read.text("model"),
        read.number("started"),
        read.text("compiler"),
        read.text("settings"),
    )


def _choice(read: _Reader, about: _About) -> Choice:
    if read.given.get("candidate") is None:
        return Choice(*about, None)
    seconds = read.number("seconds")
    default = read.number("default_seconds")
    if not seconds or not default:
        raise _wrong("seconds", min(seconds, default), "more than 0")
    return Choice(*about, read.candidate(), seconds, default)


def _trial(read: _Reader) -> Trial:
    rounds = read.given.get("rounds")
    if not isinstance(rounds, list):
        raise _wrong("rounds", rounds, "a list")
    try:
        status = Status(read.text("status"))
    except ValueError:
        raise _wrong(
            "status", read.text("status"), f"one of {', '.join(Status)}"
        ) from None
    measured = Measurement(
        status,
        tuple(_number("rounds", r) for r in rounds),
        read.text("reason"),
        read.number("noise"),
        read.number("build_seconds"),
        read.number("run_seconds"),
    )
    predicted = read.given.get("predicted")
    if predicted is not None:
        predicted = read.number("predicted", -math.inf)
    return Trial(read.candidate(), measured, predicted, read.text("strategy"))


def _features(read: _Reader) -> Features | None:
    if read.given.get("features") is None:
        return None
    parts = _Reader(read.table("features"))
    version = int(parts.number("version"))
    try:
        data = base64.b64decode(parts.text("data"), validate=True)
    except (ValueError, binascii.Error):
        raise _wrong("features", parts.given.get("data"), "base64") from None
    return Features(parts.text("set"), version, data)


def _number(name: str, value: Any, least: float = 0.0) -> float:
    """A finite number. Python's JSON parser also accepts NaN and infinity."""
    right = isinstance(value, int | float) and not isinstance(value, bool)
    if not right or not math.isfinite(value) or value < least:
        raise _wrong(name, value, "a finite number that is not negative")
    return float(value)


def _wrong(name: str, value: object, expected: str) -> InputError:
    return InputError(f"its {name} is {value!r:.80}, not {expected}")
