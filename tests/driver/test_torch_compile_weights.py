"""Writes to weights that PyTorch does not count, beside `torch.compile(backend="tilewright")`."""

import pytest

from tilewright.driver.torch_backend import backend
from tilewright.frontends.torch.dynamo import CapturedGraph

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("fresh_capture")


@pytest.fixture
def built(monkeypatch):
    """The graphs that were compiled, one entry for each time."""
    made = []
    build = CapturedGraph._built

    def noted(self, args):
        made.append(self)
        return build(self, args)

    monkeypatch.setattr(CapturedGraph, "_built", noted)
    return made


def last_element(weight):
    weight.data.view(-1)[-1] = 3.0


WRITES = {
    "a product": lambda weight: weight.data.mul_(2),
    "a copy": lambda weight: weight.data.copy_(torch.randn(40, 40)),
    "a moving average": lambda weight: weight.data.lerp_(torch.ones(40, 40), 0.1),
    "by NumPy": lambda weight: weight.detach().numpy().fill(0.5),
    "the first element": lambda weight: weight.data[0, 0].fill_(3.0),
    "the last element": last_element,
}


@pytest.mark.parametrize("name", WRITES)
def test_uncounted_writes_are_seen(name, built):
    module = torch.nn.Linear(40, 40)
    run, x = torch.compile(module, backend=backend), torch.randn(2, 40)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(run(x), module(x))
        counted = module.weight._version
        WRITES[name](module.weight)
        assert module.weight._version == counted
        for _ in range(2):
            torch.testing.assert_close(run(x), module(x))
    assert len(built) == 2  # once before the write and once after it


@pytest.mark.parametrize("order", ["columns first", "channels last"])
def test_uncounted_writes_to_weights_of_another_order_in_memory_are_seen(order, built):
    weight = torch.randn(8, 6).t()
    if order == "channels last":
        weight = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    module = Scaled(weight)
    run, x = torch.compile(module, backend=backend), torch.randn(2)
    with torch.no_grad():
        torch.testing.assert_close(run(x), module(x))
        module.weight.data.mul_(2)
        torch.testing.assert_close(run(x), module(x))
    assert len(built) == 2


@pytest.mark.parametrize(
    "sizes, steps, gaps",
    [((8, 4), (6, 1), slice(4, 6)), ((2, 2), (0, 3), slice(1, 3))],
    ids=["columns", "overlapping"],
)
def test_gaps_of_a_weight_are_not_read(built, sizes, steps, gaps):
    """They are other tensors, which change without a new compilation."""
    whole = torch.randn(8 * 6)
    module = Scaled(whole.as_strided(sizes, steps))
    run, x = torch.compile(module, backend=backend), torch.randn(2)
    with torch.no_grad():
        run(x)
        whole.data[gaps].mul_(2)
        torch.testing.assert_close(run(x), module(x))
    assert len(built) == 1


class Scaled(torch.nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = torch.nn.Parameter(weight)

    def forward(self, x):
        return x * self.weight.sum()


@pytest.mark.parametrize(
    "weight", [torch.ones(()), torch.ones(0, 3), torch.ones(3, 4).t(), torch.ones(4)]
)
def test_weights_of_any_layout_are_compiled_once(weight, built):
    """Those whose memory is not theirs alone, or that have none, are not read."""
    module = Scaled(weight)
    run, x = torch.compile(module, backend=backend), torch.randn(2)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(run(x), module(x))
        module.weight.mul_(2)
        torch.testing.assert_close(run(x), module(x))
    assert len(built) == 2


def test_results_without_elements_can_be_given_others():
    def function(x):
        held = torch.empty(0)
        torch.add(x, 1, out=held)
        return held

    x = torch.randn(3, 4)
    found = torch.compile(function, backend=backend)(x)
    torch.testing.assert_close(found, x + 1)
