"""The text of a tuning result."""

from dataclasses import replace
from math import inf

import pytest

from tilewright.driver.tuned import INTERRUPTED, KernelTuned, TunedModel
from tilewright.tune.scheduler import TuningEnd

MEASURED = KernelTuned("conv", 1, 2e-3, 1e-3, 12, 0.99, 0.0, {}, "yes")
OTHER = KernelTuned("pool", 1, inf, inf, 0, 0.0, 0.0, {}, "no: not measured")


def result(kernels, ending):
    return TunedModel("m", kernels, ending, 24, {}, 30.0, {}, 0.1, "records")


@pytest.mark.parametrize(
    ("measured", "others", "ending", "text"),
    [
        (2, 1, TuningEnd.SECONDS, "1 of 3 kernels not measured: another run goes on, "
         "and needs about 15.0 s more for all of them"),
        (2, 4, INTERRUPTED, "4 of 6 kernels not measured: another run goes on, "
         "and needs about 1 min 00 s more for all of them"),
        (2, 3, TuningEnd.TRIALS, "3 of 5 kernels not measured: another run goes on, "
         "and needs about 36 more trials for all of them"),
        (0, 2, TuningEnd.SECONDS, "2 of 2 kernels not measured: this run was too short "
         "for a first one; give more time"),
    ],
)  # fmt: skip
def test_kernels_that_were_not_measured(measured, others, ending, text):
    found = result([MEASURED] * measured + [OTHER] * others, ending)
    assert str(found).split("\n")[-1] == text
    noted = replace(found, notes=["a note"])
    assert str(noted).split("\n")[-2:] == [text, "a note"]


def test_a_run_that_measured_all_says_nothing_of_it():
    assert "not measured" not in str(result([MEASURED], TuningEnd.SECONDS))
