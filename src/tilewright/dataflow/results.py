"""The costs of combinations, in memory or in a file from which a later run resumes.

The file has a line of JSON that identifies the exploration, then one per point, appended as it is
found; if more schedules of a point are made later, the later line replaces the earlier one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.base.files import write_whole
from tilewright.runtime import schema

Choice = tuple[str, ...]


@dataclass(frozen=True)
class ExploredPoint:
    """One combination on one number of processing elements; in cycles and elements.

    choice: an expansion for each group. method: of the shortest schedule; tried: all methods used.
    buffers: elements that FIFOs and buffers hold.
    """

    choice: Choice
    pes: int
    method: str
    tried: tuple[str, ...]
    makespan: int
    io: int
    buffers: int
    tasks: int
    speedup: float
    utilization: float
    slr: float
    sslr: float

    @property
    def costs(self) -> tuple[int, int, int, int]:
        """The costs to minimize."""
        return self.makespan, self.io, self.buffers, self.pes


_ROW: Final = {
    "choice": [schema.Text],
    "tried": [schema.Text],
    **dict.fromkeys(("pes", "makespan", "io", "buffers", "tasks"), schema.Count),
    "method": schema.Text,
    **dict.fromkeys(("speedup", "utilization", "slr", "sslr"), schema.Number),
}


class ResultStore:
    """Known points, by combination and number of elements; `open` reads those of a file and appends
    new ones to it."""

    def __init__(self, path: Path | None = None) -> None:
        self.known: dict[tuple[Choice, int], ExploredPoint] = {}
        self._path = path

    def open(self, subject: Mapping[str, Any]) -> None:
        """Read the known points of `subject`, plain data that identifies the exploration.

        A truncated line at the end of the file is dropped. Raises InputError for a file of another
        subject or with other contents.
        """
        if self._path is None:
            return
        head = json.dumps(subject)
        text = self._text()
        lines = text[: text.rfind("\n") + 1].splitlines()
        if not lines:
            self._path.write_text(head + "\n")
            return
        if lines[0] != head:
            raise InputError(
                "this file contains results of another model or other options",
                where=str(self._path),
                hint="name another file, or delete it to start over",
            )
        for number, line in enumerate(lines[1:], 2):
            point = self._point(number, line)
            self.known[point.choice, point.pes] = point
        if not text.endswith("\n"):
            whole = "\n".join(lines) + "\n"
            write_whole(self._path, lambda file: file.write(whole.encode()))

    def _text(self) -> str:
        """The contents of the file; empty if there is none yet."""
        assert self._path is not None
        try:
            return self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""
        except ValueError as e:
            raise InputError(
                f"these are not results: {e}",
                where=str(self._path),
                hint="name another file",
            ) from None

    def add(self, point: ExploredPoint) -> None:
        """Store a point."""
        self.known[point.choice, point.pes] = point
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(point)) + "\n")

    def _point(self, number: int, line: str) -> ExploredPoint:
        try:
            row = json.loads(line)
            schema.check(row, _ROW)
            lists = {name: tuple(row[name]) for name in ("choice", "tried")}
            return ExploredPoint(**{**row, **lists})
        except (ValueError, RecursionError) as e:
            raise InputError(
                f"line {number} is not a result: {e}",
                where=str(self._path),
                hint="delete the line, or delete the file to start over",
            ) from None
