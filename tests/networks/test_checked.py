"""Networks with every kernel run alone in guarded memory, and with every access checked."""

from __future__ import annotations

import warnings

import pytest

import tilewright as tw
from tilewright.base.errors import TilewrightWarning
from tilewright.driver.validate import validate_model
from tilewright.testing.networks import NETWORKS
from tilewright.testing.networks.judge import NetworkJudge

EFFORT = 50_000
# Small ones, of floats and of bytes; the others are slow tests.
FIRST = "attention_then_convolution operator_oriented".split()
FORMS = [
    pytest.param(name, id=name, marks=() if name in FIRST else pytest.mark.slow)
    for name in NETWORKS
]


@pytest.mark.parametrize("name", FORMS)
def test_kernels_are_right_alone(name: str) -> None:
    found = validate_model(NETWORKS[name]().graph, effort=EFFORT, cache=False)
    assert found
    for verdict in found:
        assert verdict.ok, verdict


@pytest.mark.parametrize("name", FORMS)
def test_no_access_is_outside(name: str) -> None:
    case = NETWORKS[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TilewrightWarning)  # of host fallbacks
        exe = tw.compile(case.graph, threads=2, cache=False, sanitize=True)
    judge = NetworkJudge(case.graph, case.inputs)
    assert not judge.wrong(exe(*(case.inputs[v.name] for v in case.graph.inputs)))
