"""What the benchmarks share: results that survive a break, and the environment of processes."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from tilewright.cli.rounds import Row

ROOT = Path(__file__).resolve().parent.parent


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This environment with the repository and its `src` importable, and `extra`."""
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    joined = os.pathsep.join(p for p in paths if p)
    return {**os.environ, "PYTHONPATH": joined, **(extra or {})}


class Rows:
    """Finished rows in a file of JSON lines: a run that was broken off goes on where it was."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, Row] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    row = Row(**json.loads(line))
                except (json.JSONDecodeError, TypeError):
                    continue  # the line being written when the run was broken off
                self.rows[row.key] = row

    def get(self, key: str) -> Row | None:
        """The finished row of this key; one with a failed engine is measured again."""
        row = self.rows.get(key)
        return row if row is not None and not row.failed else None

    def add(self, row: Row) -> None:
        """Appends a row."""
        self.rows[row.key] = row
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean of positive numbers; nan of none."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def source_hash() -> str:
    """Changes with any source file of the package: old rows are then not taken for new ones."""
    import hashlib

    digest = hashlib.sha256()
    for path in sorted((ROOT / "src" / "tilewright").rglob("*.py")):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
