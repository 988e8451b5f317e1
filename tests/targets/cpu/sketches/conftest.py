"""The checks of every schedule test, for the CPU's sketches too."""

from __future__ import annotations

from tests.schedule.conftest import check_same, results

__all__ = ["check_same", "results"]
