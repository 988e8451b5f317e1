"""What of the package a process has in memory that only loads and runs an artifact."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOMS = ("graph", "lift", "plan", "loops", "schedule", "driver", "frontends")


def compiler_rooms(artifact: Path) -> list[str]:
    """The rooms of the compiler that are imported to run an artifact on ones."""
    code = f"""if True:
        import sys, numpy as np, tilewright as tw
        exe = tw.load({str(artifact)!r})
        exe(*(np.ones(t.extents, t.dtype) for t in exe.inputs))
        print(*(r for r in {ROOMS} if f"tilewright.{{r}}" in sys.modules))"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    return found.stdout.split()
