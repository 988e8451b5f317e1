"""Models for ranges that are in no file, in the cache by their graphs: modules and programs."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright.base import events
from tilewright.base.errors import InputError
from tilewright.driver.graph_digest import digest_of
from tilewright.frontends.load import of_torch
from tilewright.runtime.conditions import AppliedFunction, ExtentCondition

LIMIT = 1 << 30


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))


class Scaled(torch.nn.Module):
    def __init__(self, seed=0, factor=2.0):
        super().__init__()
        torch.manual_seed(seed)
        self.layer = torch.nn.Linear(4, 3)
        self.factor = factor

    def forward(self, x, y):
        if x.shape[0] > y.shape[0]:
            return {"sum": self.layer(x) * self.factor + y.sum()}
        return {"sum": self.layer(x)}


def shapes():
    n = torch.export.Dim("n", min=3, max=9)
    m = torch.export.Dim("m", min=2, max=8)
    return {"x": {0: n}, "y": {0: m}}


def inputs(n=5, m=4):
    return torch.ones(n, 4), torch.ones(m)


def compiled(module, **options):
    how = {"dynamic_shapes": shapes(), "jit": False, "threads": 1} | options
    with events.record() as log:
        exe = tw.compile(module, inputs(), **how)
    return exe, any(e.kind == "model-cached" for e in log)


def test_a_module_is_found_with_its_conditions_and_names():
    module = Scaled()
    _, cached = compiled(module)
    assert not cached
    exe, cached = compiled(module)
    assert cached
    found, wanted = exe(*inputs(6, 3)), module(*inputs(6, 3))
    assert found.keys() == {"sum"}
    torch.testing.assert_close(found["sum"], wanted["sum"].detach())
    with pytest.raises(InputError, match="the model is made for n > m"):
        exe(*inputs(3, 3))


def test_other_weights_code_ranges_and_options_are_other_models():
    """Beside one model in the cache, and those before it here."""
    compiled(Scaled())
    others = [
        {"module": Scaled(seed=1)},
        {"module": Scaled(factor=3.0)},
        {"dims": {"n": (3, 8)}},
        {"math": "fast"},
        {"cache": False},
    ]
    for other in others:
        module = other.get("module", Scaled())
        options = {name: value for name, value in other.items() if name != "module"}
        exe, cached = compiled(module, **options)
        assert not cached, other
        found, wanted = exe(*inputs()), module(*inputs())
        torch.testing.assert_close(found["sum"], wanted["sum"].detach())


def graph():
    return of_torch(Scaled(), inputs(), dynamic_shapes=shapes(), limit=LIMIT)


def test_every_part_of_a_graph_counts():
    made = graph()
    assert digest_of(made) == digest_of(graph())
    (first, *rest) = made.operations
    weight, array = next((v, a) for v, a in made.constants.items() if a.size == 12)
    changed = np.array(array)
    changed[0, 0] += 1
    others = [
        replace(made, name="other"),
        replace(made, ranges={}),
        replace(made, conditions=()),
        replace(made, conditions=(ExtentCondition(AppliedFunction("<", ("n", "m"))),)),
        replace(made, nesting=None),
        replace(made, outputs=()),
        replace(made, inputs=made.inputs[::-1]),
        replace(made, constants={**made.constants, weight: changed}),
        replace(made, operations=(replace(first, name="other"), *rest)),
        replace(made, operations=(replace(first, version=1), *rest)),
        replace(made, operations=(replace(first, attributes={"a": 1}), *rest)),
        replace(made, operations=(replace(first, attributes={"a": 1.0}), *rest)),
        replace(made, operations=(replace(first, attributes={"a": made}), *rest)),
        replace(made, operations=(replace(first, attributes={"a": array}), *rest)),
        replace(made, operations=(replace(first, attributes={"a": array.T}), *rest)),
    ]
    found = [digest_of(g) for g in (made, *others)]
    assert len(set(found)) == len(found)
