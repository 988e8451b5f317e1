"""Results of a captured graph that share memory, and open extents that a call makes numbers."""

from __future__ import annotations

import pytest

from tilewright.frontends.torch.shared import distinct
from tilewright.frontends.torch.sized import is_open, known, sized

torch = pytest.importorskip("torch")


def captured(function, *given):
    """A graph with open extents, and numbers that are in tensors."""
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(function, tracing_mode="symbolic")(*given)


def first_rows(x, count):
    """Several views of as many rows as a tensor says, and views of which shapes say all."""
    k = count.item()
    torch._check(k >= 0)
    torch._check(k <= x.shape[0])
    rows = x.narrow(0, 0, k)
    return rows, rows.unsqueeze(0), x.narrow(0, 0, 2), x, x.t()


def test_views_whose_extents_no_input_has_are_computed_each():
    graph = captured(first_rows, torch.randn(6, 4), torch.tensor(3))
    found = distinct(graph)
    assert found.places == [0, 1, None, None, None]
    assert found.inputs == [None, None, 0, 0, 0]
    given = torch.randn(7, 5), torch.tensor(4)
    made = found.of(found.module(*given), given)
    for result, want in zip(made, graph(*given), strict=True):
        assert torch.equal(result, want)
    assert made[3] is given[0]
    assert all(m._base is given[0] for m in (made[2], made[4]))


def test_numbers_made_of_extents_are_known_with_these():
    graph = captured(lambda x: x * (x.shape[0] / 4), torch.randn(6, 4))
    (place, *_) = graph.graph.nodes
    n, others = place.meta["val"].shape
    numbers = {n.node.expr: 6}
    values = [known(e, numbers) for e in (n, n * 2 + 1, n / 4, n * 0.5, 3, 1.5)]
    assert values == [6, 13, 1.5, 3.0, 3, 1.5]
    assert list(map(type, values)) == [int, int, float, float, int, float]
    assert known(others, numbers) is others
    assert is_open(known(n * others, numbers))
    (product,) = [
        node
        for node in sized(graph, numbers).graph.nodes
        if node.target is torch.ops.aten.mul.Tensor
    ]
    assert product.args[1] == 1.5 and type(product.args[1]) is float
