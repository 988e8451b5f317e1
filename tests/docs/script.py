"""A script of the examples, run as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def printed(script: Path, arguments: Sequence[str], folder: Path) -> str:
    """What it prints, in a process and a folder of its own, with an empty cache; it succeeds."""
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        cwd=folder,
        env=os.environ
        | {
            "PYTHONPATH": str(ROOT / "src"),
            "TILEWRIGHT_CACHE_DIR": str(folder / "cache"),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
