"""Records as JSON Lines: each line is a complete row, so files can be split and concatenated."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.tune.records.rows import Choice, Record, plain, row_of

_LONGEST: Final = 1 << 24  # bytes per line: features are the largest part


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is not a record: its number, from 1, and the reason."""

    number: int
    why: str

    def __str__(self) -> str:
        return f"line {self.number}: {self.why}"


def line(row: Record | Choice) -> str:
    """A row as one line, newline included."""
    return json.dumps(plain(row), sort_keys=True, separators=(",", ":")) + "\n"


def read(lines: Iterable[bytes]) -> Iterator[Record | Choice | BadLine]:
    """Parse each line into a row; empty lines are skipped."""
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
