"""Rules that use an open number, a Value, as a number of Python, and rules that are faulty."""

import operator

import numpy as np
import pytest

from tilewright.frontends.torch.aten import importer
from tilewright.frontends.torch.aten.importer import (
    FxSource,
    ImportSettings,
    RuleRefused,
    import_graph,
)

torch = pytest.importorskip("torch")

USES = {
    "int": int,
    "float": float,
    "round": round,
    "range": range,
    "bin": bin,
    "negative": lambda n: -n,
    "sum": lambda n: 1 + n,
    "quotient": lambda n: n // 2,
    "comparison": lambda n: n < 3,
    "most": lambda n: max(n, 3),
    "repeated": lambda n: [0] * n,
    "element": lambda n: [1, 2][n],
    "slice": lambda n: [1, 2][:n],
    "text": lambda n: f"{n:d}",
    "shape": lambda n: np.zeros((n, 2)),
}
FAULTS = {
    "None": lambda n: None + 1,
    "length": lambda n: len(3),
    "arguments": lambda n: abs(),
    "element of None": lambda n: operator.getitem(None, 0),
}


@pytest.fixture(scope="module")
def graph():
    """x * n, where n is an extent of x."""
    from torch.fx.experimental.proxy_tensor import make_fx

    function = make_fx(lambda x: (x * x.shape[0],), tracing_mode="symbolic")
    return function(torch.ones(3, 2))


def imported(graph, use, monkeypatch):
    """The graph by a rule that does something else with n first."""
    rule_of = importer.rule_of

    def with_use(target):
        rule = rule_of(target)
        if target is not torch.ops.aten.mul.Tensor:
            return rule
        return lambda call: (use(call["other"]), rule(call))[1]

    monkeypatch.setattr(importer, "rule_of", with_use)
    return import_graph(FxSource(graph), ImportSettings(1 << 32))


@pytest.mark.parametrize("name", USES)
def test_an_open_number_that_a_rule_needs_is_refused(name, graph, monkeypatch):
    with pytest.raises(RuleRefused, match="'other' is known only at run time"):
        imported(graph, USES[name], monkeypatch)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_a_rule_stays_one(name, graph, monkeypatch):
    with pytest.raises(TypeError):
        imported(graph, FAULTS[name], monkeypatch)


def test_the_rule_takes_it_as_a_value(graph, monkeypatch):
    made = imported(graph, lambda n: n, monkeypatch)
    assert "= Mul(x_1, " in str(made)
