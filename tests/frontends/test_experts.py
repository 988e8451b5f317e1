"""Mixtures of experts from PyTorch: products by tiles of rows, for any routing and any number."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.base import events
from tilewright.frontends.torch import to_graph
from tilewright.frontends.torch.aten.operators.experts import (
    most_tiles,
    summed_height,
    tile_height,
)

torch = pytest.importorskip("torch")
GROUPS, K, N = 5, 16, 64
ROUTES = {
    "uneven": lambda n: torch.randint(0, GROUPS, (n,)),
    "all to the first": lambda n: torch.zeros(n, dtype=torch.int64),
    "all to the last": lambda n: torch.full((n,), GROUPS - 1),
    "to two of five": lambda n: torch.randint(0, 2, (n,)) * 3,
}


class Routed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.w = torch.nn.Parameter(torch.randn(GROUPS, K, N).round().bfloat16())

    def forward(self, x, e):
        order = torch.argsort(e, stable=True)
        counts = torch.histc(e.float(), GROUPS, 0, GROUPS - 1)
        ends = torch.cumsum(counts, 0).to(torch.int32)
        return torch._grouped_mm(x[order], self.w, offs=ends)


def wanted(module, x, e):
    order = torch.argsort(e, stable=True)
    return torch.bmm(x[order].float()[:, None], module.w.float()[e[order]])[:, 0]


def routed(n, route):
    torch.manual_seed(n)
    return torch.randn(n, K).round().bfloat16(), ROUTES[route](n)


@pytest.fixture(scope="module")
def of_any_number():
    module = Routed()
    rows = torch.export.Dim("rows", min=1, max=300)
    program = torch.export.export(
        module, routed(40, "uneven"), dynamic_shapes=({0: rows}, {0: rows})
    )
    return module, tw.compile(program, threads=1, fallback="error")


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("rows", [1, 17, 300])
def test_an_unknown_number_of_rows(of_any_number, rows, route):
    module, compiled = of_any_number
    x, e = routed(rows, route)
    found = compiled(x, e).float()
    want = wanted(module, x, e).bfloat16().float()
    assert torch.equal(found, want)


@pytest.mark.parametrize("rows", [4, 40])
def test_a_known_number_of_rows(rows):
    module = Routed()
    program = torch.export.export(module, routed(rows, "uneven"))
    compiled = tw.compile(program, threads=1, fallback="error")
    for route in ROUTES:
        x, e = routed(rows, route)
        found = compiled(x, e).float()
        want = wanted(module, x, e).bfloat16().float()
        assert torch.equal(found, want)


def test_no_product_is_of_all_rows_and_all_groups():
    with events.record() as log:
        tw.compile(torch.export.export(Routed(), routed(40, "uneven")), threads=1)
    assert "gathered-matrices-in-panels" in {
        e.fields["rule"] for e in log if e.kind == "rule"
    }


@pytest.mark.parametrize("height", [1, 2, 8, 16])
@pytest.mark.parametrize("groups", [1, 3, 8])
def test_the_bound_of_tiles_is_reached_and_never_passed(groups, height):
    rng = np.random.default_rng(height)
    for rows in (1, 5, 64, 100):
        bound = most_tiles(rows, groups, height)
        cuts = np.sort(rng.integers(0, rows + 1, (200, groups - 1)))
        ends = np.pad(cuts, ((0, 0), (1, 1)), constant_values=((0, 0), (0, rows)))
        tiles = -(-np.diff(ends) // height)
        assert tiles.sum(1).max() <= bound
    # One row in each group, and full tiles of one group beside.
    rows = groups + 3 * height
    assert most_tiles(rows, groups, height) == groups + 3


@pytest.mark.parametrize(
    ("rows", "groups", "height"),
    [(2, 8, 1), (8, 8, 1), (192, 8, 8), (384, 60, 4), (1024, 8, 32), (None, 8, 16)],
)
def test_the_height_of_tiles(rows, groups, height):
    assert tile_height(rows, groups) == height


class Backward(torch.nn.Module):
    """Gradients of a grouped product, as transformers has them."""

    def __init__(self):
        super().__init__()
        from tests.frontends.aten.spectral import BACK  # which registers it

        self.name = BACK.partition("::")[2]

    def forward(self, x, w, offs, g):
        return getattr(torch.ops.transformers, self.name)(x, w, offs, g)


def flows(rows, dtype=torch.float32):
    torch.manual_seed(rows)
    shapes = (rows, K), (GROUPS, K, N), (rows, N)
    return [torch.randn(shape).to(dtype) for shape in shapes]


def by_autograd(x, w, offs, g):
    """The gradients of a product for each group: rows past the last end have none."""
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    sizes = torch.diff(offs, prepend=offs[:1] * 0).tolist()
    parts = torch.split(x[: offs[-1]], sizes)
    found = torch.cat([part @ own for part, own in zip(parts, w, strict=True)])
    return torch.autograd.grad(found, (x, w), g[: offs[-1]])


ENDS = {
    "all rows": [3, 20, 90, 91, 300],
    "empty groups": [0, 150, 150, 300, 300],
    "one group": [0, 0, 300, 300, 300],
    "rows of no group": [8, 16, 40, 56, 250],
    "no rows": [0, 0, 0, 0, 0],
}


@pytest.fixture(scope="module")
def of_weights():
    x, w, g = flows(300)
    offs = torch.tensor(ENDS["all rows"], dtype=torch.int32)
    program = torch.export.export(Backward(), (x, w, offs, g))
    return tw.compile(program, threads=1, fallback="error")


@pytest.mark.parametrize("ends", ENDS)
def test_gradients_of_matrices_are_sums_of_tiles(of_weights, ends):
    assert summed_height(300, GROUPS) == 64
    x, w, g = flows(300)
    offs = torch.tensor(ENDS[ends], dtype=torch.int32)
    found = of_weights(x, w, offs, g)
    wanted = by_autograd(x, w, offs, g)
    torch.testing.assert_close(tuple(found), wanted, rtol=1e-4, atol=1e-4)


def test_infinite_rows_of_another_group_leave_a_gradient_finite(of_weights):
    x, w, g = flows(300)
    x[120], g[121] = float("inf"), float("inf")
    offs = torch.tensor([100, 120, 122, 200, 300], dtype=torch.int32)
    found = of_weights(x, w, offs, g)[1]
    assert torch.isfinite(found).all((1, 2)).tolist() == [True, True, False, True, True]


def adds_tiles(program):
    graph, _ = to_graph(program, limit=1 << 30)
    return "ScatterND" in {op.op_type for op in graph.operations}


def test_sums_of_tiles_are_not_rounded_and_need_a_number_of_rows():
    offs = torch.tensor(ENDS["all rows"], dtype=torch.int32)

    def program(dtype, **options):
        x, w, g = flows(300, dtype)
        return torch.export.export(Backward(), (x, w, offs, g), **options)

    assert adds_tiles(program(torch.float32))
    assert not adds_tiles(program(torch.bfloat16))
    rows = {0: torch.export.Dim("rows", min=2, max=400)}
    open_rows = {"dynamic_shapes": (rows, None, None, rows)}
    assert not adds_tiles(program(torch.float32, **open_rows))


@pytest.mark.parametrize(
    ("rows", "groups", "height"),
    [(384, 60, 16), (192, 8, 64), (1024, 8, 128), (300, 1, None), (None, 8, None)],
)
def test_the_height_of_tiles_that_are_summed(rows, groups, height):
    assert summed_height(rows, groups) == height
