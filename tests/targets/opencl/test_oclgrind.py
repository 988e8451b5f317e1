"""Every family of schedules on Oclgrind, which tells races, barriers that not all threads come to,
and accesses that are outside.

It prints what it finds: each case is a process, so that all of it is seen. What is read before it
is written it cannot tell: it does not know all instructions of its own compiler there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.targets.opencl import checked
from tilewright.base.errors import ArtifactError
from tilewright.targets.opencl.platforms import listed, shown
from tilewright.targets.simt.families import FAMILIES

RUN = """
import sys, numpy as np
sys.path[:0] = {paths!r}
import tilewright as tw
from tests.targets.opencl import checked
{code}
"""

FAULTS = re.compile("race|Invalid|divergence")


@pytest.fixture(scope="module", autouse=True)
def _installed():
    try:
        if any("Oclgrind" in shown(d) for d in listed()):
            return
    except ArtifactError as error:
        pytest.skip(str(error))
    pytest.skip("Oclgrind is not installed")


def said(code: str) -> str:
    """What Oclgrind says of calls of functions of `checked`; they have to end well."""
    code = RUN.format(paths=[p for p in sys.path if p], code=code)
    variables = {
        "TILEWRIGHT_OPENCL_DEVICE": "Oclgrind",
        "OCLGRIND_DATA_RACES": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | variables,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


SLOW = "map product convolution pooling scan gather sort concat transpose lstm half".split()
SLOW += "norm columns total".split()
MODELS = ["softmax", *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)]


@pytest.mark.parametrize("name", MODELS)
def test_schedules_have_no_race_and_stay_inside(name):
    found = said(f"checked.model({name!r})")
    assert "right" in found
    assert not FAULTS.search(found), found


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_has_no_race_and_a_barrier_that_is_missing_is_told(name):
    """By name: models so small have other defaults."""
    found = said(f"checked.family({name!r})")
    assert "right" in found
    assert not FAULTS.search(found), found
    assert "race" in said(f"checked.family({name!r}, barrier=False)")


def test_each_family_has_a_case():
    assert checked.FAMILIES.keys() == FAMILIES.keys()


@pytest.mark.slow
def test_a_last_wave_in_parts_has_no_race_and_stays_inside():
    found = said("checked.last_wave(barrier=True)")
    assert "right" in found
    assert not FAULTS.search(found), found
    assert "race" in said("checked.last_wave(barrier=False)")


def test_a_race_and_a_wrong_access_are_told():
    """So that silence above means something."""
    assert "race" in said("checked.race(barrier=False)")
    assert "divergence" in said("checked.divergence()")
    found = said("checked.race(barrier=True); checked.outside()")
    assert "divergence" not in found
    assert "race" not in found and "Invalid write" in found


@pytest.mark.slow
@pytest.mark.parametrize("places", [1, 4])
def test_windows_have_no_race_and_stay_inside(places):
    found = said(f"checked.windows({places})")
    assert found.count("right") == 2
    assert not FAULTS.search(found), found
