"""The contractions' benchmark runs, and refuses what is not equal."""

from __future__ import annotations

from dataclasses import replace

import click
import numpy as np
import pytest

from benchmarks.contraction_cases import CASES
from benchmarks.contractions import check, runs


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_numpy_has_our_results(case):
    found, _ = runs(case.small(), 1, ["numpy"])
    check(case, found)


def test_another_result_is_no_row():
    found, _ = runs(CASES[0].small(), 1, ["numpy"])
    wrong = {**found, "numpy": lambda: [np.asarray(x) + 1 for x in found["numpy"]()]}
    with pytest.raises(
        click.ClickException, match="ccsdt-i1: numpy has another result"
    ):
        check(replace(CASES[0]), wrong)
