"""The threads of NumPy's OpenBLAS: what the environment says of them when it is loaded."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from tilewright.base.idle_threads import SHORT, TIMEOUT, soon_asleep

# Prints what the environment says when NumPy is looked for, and afterwards.
PROBE = f"""
import os, sys

class Watch:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "numpy":
            print(os.environ.get({TIMEOUT!r}))

sys.meta_path.insert(0, Watch)
import tilewright
tilewright.compile
print(os.environ.get({TIMEOUT!r}))
"""


def _printed(**env: str) -> list[str]:
    others = {k: v for k, v in os.environ.items() if k != TIMEOUT}
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        env={**others, **env},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_numpy_is_loaded_with_a_short_timeout_that_does_not_stay() -> None:
    assert _printed() == [SHORT, "None"]


def test_what_the_user_has_set_stays() -> None:
    assert _printed(**{TIMEOUT: "26"}) == ["26", "26"]


def test_a_numpy_that_is_loaded_leaves_the_environment_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(TIMEOUT, raising=False)
    monkeypatch.setitem(sys.modules, "numpy", np)
    with soon_asleep():
        assert TIMEOUT not in os.environ


def test_it_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TIMEOUT, raising=False)
    monkeypatch.delitem(sys.modules, "numpy", raising=False)
    with pytest.raises(ImportError), soon_asleep():
        assert os.environ[TIMEOUT] == SHORT
        raise ImportError
    assert TIMEOUT not in os.environ
