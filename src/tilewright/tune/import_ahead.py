"""A heavy package, whose files another process reads while the first programs are measured.

A thread cannot import it meanwhile: builds are forks, which would find half of it imported.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from importlib import import_module
from typing import Final


class ImportAhead:
    """The process starts at once, and a call imports the package here. package: its name."""

    def __init__(self, package: str) -> None:
        self._package: Final = package
        self._process = ExitStack()
        if package in sys.modules:
            return
        silent = subprocess.DEVNULL
        process = subprocess.Popen(
            [sys.executable, "-c", f"import {package}"],
            stdin=silent,
            stdout=silent,
            stderr=silent,
        )
        self._process.callback(process.wait)
        self._process.callback(process.kill)

    def __call__(self) -> None:
        """Import the package, if it is not imported yet. Raises ImportError."""
        import_module(self._package)
        self.close()

    def close(self) -> None:
        """End the process."""
        self._process.close()
