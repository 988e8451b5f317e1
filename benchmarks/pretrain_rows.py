"""Measured programs as lines of a file, which a killed run leaves whole.

The first line of each run describes the machine. Then there is a line for each program, written as
soon as it is measured, and one for each completed model.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from tilewright.base.errors import InputError
from tilewright.tune.features.fast import Fast
from tilewright.tune.models.programs import Rows

VERSION: Final = 1
RUN, DONE = "run", "done"


@dataclass(frozen=True)
class Row:
    """A program with its time.

    source: its model, such as "layer 7"; kind: the kind of its operator. task: a digest of the
    kernel, its shapes, the level and the machine. level: the instruction set. default: whether the
    rules choose it. seconds: None if it failed; see `status`. features: of the set `fast`, float32
    in base 64.
    """

    source: str
    kind: str
    task: str
    level: str
    machine: str
    candidate: str
    default: bool
    status: str
    seconds: float | None
    noise: float
    features: str

    @property
    def columns(self) -> Rows:
        """The features: float32 [columns]."""
        return unpacked(self.features)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The key of a program, which is measured once."""
        return self.level, self.source, self.task, self.candidate


def packed(columns: Rows) -> str:
    """Features as a row has them."""
    return base64.b64encode(columns.astype("<f4").tobytes()).decode()


def unpacked(text: str) -> Rows:
    """The inverse of `packed`."""
    return np.frombuffer(base64.b64decode(text), "<f4")


@dataclass(frozen=True)
class Measured:
    """The content of files. done: (level, source) of completed models. runs: the machines."""

    rows: Sequence[Row]
    done: frozenset[tuple[str, str]]
    runs: Sequence[Mapping[str, Any]]


def read(paths: Sequence[Path]) -> Measured:
    """The rows of all files, each program once; without a last line that a kill cut off.

    Raises InputError for a damaged line elsewhere, and for features of another version.
    """
    rows: dict[tuple[str, ...], Row] = {}
    done: set[tuple[str, str]] = set()
    runs: list[Mapping[str, Any]] = []
    for path in paths:
        for number, line in _lines(path):
            where = f"{path}, line {number}"
            if RUN in line:
                _check_run(line, where)
                runs.append(line[RUN])
            elif DONE in line:
                done.add((line["level"], line[DONE]))
            else:
                row = _row(line, where)
                rows.setdefault((row.machine, *row.key), row)
    return Measured(list(rows.values()), frozenset(done), runs)


def _lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    *whole, _ = path.read_bytes().split(
        b"\n"
    )  # after the last end there is nothing whole
    for number, text in enumerate(whole, 1):
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if not isinstance(line, dict):
            raise _damaged(f"{path}, line {number}")
        yield number, line


def _row(line: Mapping[str, Any], where: str) -> Row:
    try:
        row = Row(**line)
        size = len(row.columns)
    except (TypeError, ValueError) as error:
        raise _damaged(where) from error
    if size != len(Fast().columns):
        raise _damaged(where)
    return row


def _check_run(line: Mapping[str, Any], where: str) -> None:
    found = line.get("version"), line.get("features")
    if found != (VERSION, Fast.version):
        raise InputError(
            f"programs of version {found[0]}, with version {found[1]} of the features",
            where=where,
            hint=f"measure again: this reads {VERSION}, and its features are at {Fast.version}",
        )


def _damaged(where: str) -> InputError:
    return InputError(
        "the line is not a measured program",
        where=where,
        hint="remove it; all other lines can be read",
    )


class Writer:
    """Appends to a file; a line at its end that a kill cut off is removed first. run: the
    machine."""

    def __init__(self, path: Path, run: Mapping[str, Any]) -> None:
        if path.exists():
            whole = path.read_bytes()
            cut = whole.rfind(b"\n") + 1
            if cut < len(whole):
                with path.open("r+b") as file:
                    file.truncate(cut)
        self._file = path.open("ab", buffering=0)
        self._write({RUN: run, "version": VERSION, "features": Fast.version})

    def add(self, row: Row) -> None:
        """Keep a program."""
        self._write(asdict(row))

    def finish(self, level: str, source: str) -> None:
        """Keep that all programs of a model are here."""
        self._write({DONE: source, "level": level})

    def close(self) -> None:
        """Nothing is added any more."""
        self._file.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
