"""SQL statements, and the conversion between table rows and objects.

A row of trials or choices ends with a checksum over its other columns, which detects damage on the
disk: SQLite itself does not check contents.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.tune.base import Candidate, Measurement, Status, Trial
from tilewright.tune.records.key import Key, digest
from tilewright.tune.records.rows import Choice, Features, Record, TunerRun

T = TypeVar("T")
RowOf = Callable[[Sequence[Any]], T | None]  # returns None for a damaged row

ADD_RUN: Final = "insert or ignore into runs values (?, ?, ?, ?, ?, ?, ?)"
TAKE_RUN: Final = "update runs set process = ? where id = ?"
END_RUN: Final = "update runs set ended = ? where id = ?"
UNFINISHED: Final = """
select id, model, started, compiler, settings, process from runs
where ended is null and model = ? and settings = ? order by started desc"""

ADD_TASK: Final = (
    "insert or ignore into tasks values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
ADD_TRIAL: Final = f"insert or ignore into trials values (null, {', '.join('?' * 14)})"
ADD_FEATURES: Final = "insert into features values (?, ?, ?, ?)"
ADD_CHOICE: Final = "insert or ignore into choices values (null, ?, ?, ?, ?, ?, ?, ?)"

DELETE: Final = "delete from trials where digest = ? and run = ? and candidate = ?"
DELETE_FEATURES: Final = (
    "delete from features where trial not in (select id from trials)"
)
DELETE_TASKS: Final = """
delete from tasks where digest not in (select digest from trials)
and digest not in (select digest from choices)"""
DELETE_RUNS: Final = """
delete from runs where ended is not null and id not in (select run from trials)
and id not in (select run from choices)"""

_ABOUT: Final = """
left join tasks t on t.digest = r.digest left join runs u on u.id = r.run"""
_OF_RUN: Final = "t.key, t.name, u.id, u.model, u.started, u.compiler, u.settings"
RECORDS: Final = f"""
select {_OF_RUN}, f.name, f.version, f.data, r.digest, r.run, r.candidate, r.status, r.rounds,
r.seconds, r.reason, r.noise, r.build_seconds, r.run_seconds, r.predicted, r.strategy, r.time, r.sum
from trials r {_ABOUT} left join features f on f.trial = r.id"""
CHOICES: Final = f"""
select {_OF_RUN}, r.digest, r.run, r.candidate, r.seconds, r.default_seconds, r.time, r.sum
from choices r {_ABOUT}"""


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Which rows to select: those that satisfy all given conditions.

    model, operator, machine: a substring, case-insensitive; that of operator is matched against a
    kernel's name, its Computations and the digest of its operator. digest: of a key. before: only
    older rows, in seconds since the epoch.
    """

    model: str = ""
    operator: str = ""
    machine: str = ""
    digest: str = ""
    before: float | None = None

    @property
    def condition(self) -> tuple[str, list[Any]]:
        """The SQL condition over trials or choices r, tasks t and runs u, and its values."""
        tests: list[str] = ["1"]
        values: list[Any] = []
        for text, names in (
            (self.model, ("u.model",)),
            (self.operator, ("t.name", "t.family", "t.operator")),
            (self.machine, ("t.processor", "t.machine")),
        ):
            if text:
                either = " or ".join(f"instr(lower({n}), lower(?))" for n in names)
                tests.append(f"({either})")
                values += [text] * len(names)
        if self.digest:
            tests.append("r.digest = ?")
            values.append(self.digest)
        if self.before is not None:
            tests.append("r.time < ?")
            values.append(self.before)
        return " and ".join(tests), values


def of_run(run: TunerRun) -> tuple[Any, ...]:
    """The first columns of a run."""
    return (run.id, run.model, run.started, run.compiler, run.settings)


def run(row: Sequence[Any]) -> TunerRun:
    """The run of these columns; missing values become empty."""
    number, model, started, compiler, settings = row
    since = started if isinstance(started, float) else 0.0
    return TunerRun(number, model or "", since, compiler or "", settings or "")


def of_task(key: Key, name: str) -> tuple[Any, ...]:
    """The columns of a task."""
    parts = [getattr(key, part) for part in Key.__dataclass_fields__]
    return (key.digest, key.text, name, *parts)


def of_record(r: Record) -> list[Any]:
    """The columns of a trial, except its number."""
    m = r.trial.measurement
    values: list[Any] = [
        *identity(r),
        m.status.value,
        json.dumps(m.rounds),
        m.seconds if m.status is Status.OK and m.rounds else None,
        m.reason,
        m.noise,
        m.build_seconds,
        m.run_seconds,
        r.trial.predicted,
        r.trial.strategy,
        r.time,
    ]
    return [*values, _sum(values)]


def identity(r: Record) -> tuple[str, str, str]:
    """The columns that identify a trial."""
    return r.key.digest, r.run.id, r.trial.candidate.key


def record(row: Sequence[Any]) -> Record | None:
    """The trial of a row of RECORDS; None if the row is damaged."""
    about, seen, values = row[:7], row[7:10], list(row[10:])
    key = _checked(about[0], values)
    if key is None:
        return None
    _, run_id, candidate, status, rounds, _, reason = values[:7]
    noise, build, ran, predicted, strategy, when, _ = values[7:]
    m = Measurement(
        Status(status), tuple(json.loads(rounds)), reason, noise, build, ran
    )
    trial = Trial(Candidate.parse(candidate), m, predicted, strategy)
    features = None if seen[0] is None else Features(*seen)
    return Record(key, about[1], _run_of(about, run_id), when, trial, features)


def of_choice(c: Choice) -> list[Any]:
    """The columns of a choice, except its number."""
    candidate = None if c.candidate is None else c.candidate.key
    values = [c.key.digest, c.run.id, candidate, c.seconds, c.default_seconds, c.time]
    return [*values, _sum(values)]


def choice(row: Sequence[Any]) -> Choice | None:
    """The choice of a row of CHOICES; None if the row is damaged."""
    about, values = row[:7], list(row[7:])
    key = _checked(about[0], values)
    if key is None:
        return None
    _, run_id, text, seconds, default, when, _ = values
    candidate = None if text is None else Candidate.parse(text)
    made = _run_of(about, run_id)
    return Choice(key, about[1], made, when, candidate, seconds, default)


def _checked(text: str | None, values: Sequence[Any]) -> Key | None:
    """The key of a row with these columns; None if the key or the row is damaged."""
    found = None if text is None else _key(text)
    if found is None or found[0] != values[0] or _sum(values[:-1]) != values[-1]:
        return None
    return found[1]


@lru_cache(maxsize=256)
def _key(text: str) -> tuple[str, Key] | None:
    """The digest and the key of a text; None if it is not a key."""
    try:
        return digest(text), Key.parse(text)
    except InputError:
        return None


def _run_of(about: Sequence[Any], run_id: str) -> TunerRun:
    return run((run_id, *about[3:7]))


def _sum(values: Sequence[Any]) -> str:
    """A checksum over the columns of a row."""
    text = json.dumps(list(values), default=repr)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
