"""A package imported when it is needed, whose files another process reads before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tilewright.testing.landscapes import KnowingModel, Landscape, TableRunner, bowl
from tilewright.tune.accounts import TimeAccounts
from tilewright.tune.import_ahead import ImportAhead
from tilewright.tune.tuner import Tuning, TuningTools


def test_another_process_imports_first_and_ends_with_the_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each import of this package adds a line to a file."""
    seen = tmp_path / "seen"
    line = f"open({str(seen)!r}, 'a').write(str(os.getpid()) + '\\n')"
    (tmp_path / "heavy_package.py").write_text(
        f"import os, time\n{line}\ntime.sleep(60)"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*given: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*given, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    ahead = ImportAhead("heavy_package")
    while not (seen.exists() and seen.read_text().endswith("\n")):
        assert started[0].poll() is None
    assert "heavy_package" not in sys.modules
    (tmp_path / "heavy_package.py").write_text(f"import os\n{line}")
    ahead()
    assert started[0].returncode == -9
    assert len(seen.read_text().split()) == 2 and "heavy_package" in sys.modules
    ImportAhead("heavy_package")
    assert len(started) == 1
    del sys.modules["heavy_package"]


def test_the_import_waits_for_samples_and_is_no_time_of_a_fit() -> None:
    now, done = [0.0], list[str]()

    def prepare() -> None:
        done.append("import")
        now[0] += 5

    class Fitting(KnowingModel):
        def update(self, samples: Any) -> None:
            done.append("fit")

    land = Landscape((10,) * 8, bowl)
    tools = TuningTools(TableRunner(land), model=Fitting(land), prepare=prepare)
    accounts = TimeAccounts(lambda: now[0])
    tuning = Tuning(land.task(), tools, effort=1, accounts=accounts)
    tuning.step(1)
    assert not done
    tuning.step(16)
    assert done == ["import", "fit"]
    assert accounts.seconds["import"] == 5 and accounts.seconds["learn"] == 0
