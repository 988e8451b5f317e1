"""A script of the examples, run as a user would."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

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


def printed_here(script: Path, arguments: Sequence[str], folder: Path) -> str:
    """As `printed`, in this process, which has imported already what most scripts do."""
    found = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(found):
        patch.chdir(folder)
        patch.setenv("TILEWRIGHT_CACHE_DIR", str(folder / "cache"))
        patch.setattr(sys, "argv", [str(script), *arguments])
        patch.syspath_prepend(str(script.parent))
        runpy.run_path(str(script), run_name="__main__")
    return found.getvalue()
