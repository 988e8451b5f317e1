"""The smoke test of the least versions: what it takes from pyproject.toml, and what it refuses."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.robust import lowest
from tilewright.testing.networks import NETWORKS

ROOT = Path(__file__).parents[2]


def test_the_least_versions_are_those_declared():
    assert lowest.least(["ml_dtypes>=0.5.1,<0.7", "numpy>=2,<3"]) == {
        "ml_dtypes": "0.5.1",
        "numpy": "2",
    }
    printed = subprocess.run(
        [sys.executable, lowest.__file__], capture_output=True, text=True, check=True
    )
    text = lowest.PROJECT.read_text()
    for line in printed.stdout.splitlines():
        assert f'"{line.replace("==", ">=")},<' in text
    assert {"numpy", "onnx", "click"} <= {*lowest.declared()}


@pytest.mark.parametrize("text", ["numpy", "numpy>=2", "numpy<3", "numpy==2,<3"])
def test_a_dependency_without_two_bounds_is_refused(text):
    with pytest.raises(ValueError, match="expected NAME>=VERSION,<VERSION"):
        lowest.least([text])


def test_newer_packages_than_the_least_are_noticed(monkeypatch):
    monkeypatch.setattr(lowest, "declared", lambda: {"numpy": "1.0"})
    with pytest.raises(SystemExit, match="not as expected: numpy"):
        lowest.check_versions()


def test_a_command_that_fails_is_shown():
    with pytest.raises(SystemExit, match="no such file"):
        lowest.tilewright("check", "absent.onnx")


def test_it_is_part_of_the_slow_tests_only():
    assert set(lowest.NETWORKS) <= set(NETWORKS)
    make = (ROOT / "Makefile").read_text()
    slow = make.partition("\ntest-all:")[2].partition("\n\n")[0]
    assert slow.endswith("lowest")
    fast = make.partition("\ntest:")[2].partition("\n\n")[0]
    assert "lowest" not in fast
