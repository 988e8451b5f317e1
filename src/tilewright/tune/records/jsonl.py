"""Records as JSON Lines: one row a line, each complete, so that files can be cut and joined."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from tilewright.base.errors import InputError
from tilewright.tune.records.rows import Choice, Record, plain, row_of

_LONGEST: Final = 1 << 24  # bytes of a line: features are the largest part


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is not a record, by its number from 1 on, and why."""

    number: int
    why: str

    def __str__(self) -> str:
        return f"line {self.number}: {self.why}"


def line(row: Record | Choice) -> str:
    """A row as one line, with its end."""
    return json.dumps(plain(row), sort_keys=True, separators=(",", ":")) + "\n"


def read(lines: Iterable[bytes]) -> Iterator[Record | Choice | BadLine]:
    """The row of each line; empty lines are passed over."""
    for number, text in enumerate(lines, 1):
        if text.strip():
            yield _row(number, text)


def _row(number: int, text: bytes) -> Record | Choice | BadLine:
    if len(text) > _LONGEST:
        return BadLine(number, f"it has more than {_LONGEST:,} bytes")
    try:
        return row_of(json.loads(text.decode()))
    except InputError as error:
        return BadLine(number, error.message)
    except (ValueError, RecursionError) as error:
        return BadLine(number, f"it is not JSON: {error}")
