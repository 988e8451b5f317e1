"""Products of parts of run-time sizes become one grouped product; nothing else does."""

import pytest

import tilewright as tw
from tilewright.frontends.torch.aten.grouped import with_grouped_products

torch = pytest.importorskip("torch")
ROWS, GROUPS, K, N = 12, 4, 8, 8


class Experts(torch.nn.Module):
    """The forms that are grouped products: `linear` and `@`."""

    counts = "uneven"

    def __init__(self, turned=True, groups=GROUPS):
        super().__init__()
        torch.manual_seed(3)
        shape = (groups, N, K) if turned else (groups, K, N)
        self.w = torch.nn.Parameter(torch.randn(shape))
        self.v = torch.nn.Parameter(torch.randn(shape))
        self.b = torch.nn.Parameter(torch.randn(GROUPS, N))
        self.turned = turned

    def forward(self, x, counts):
        return torch.cat(self.products(self.parts(x, counts)), 0)

    def parts(self, x, counts):
        return x.split(counts.tolist(), 0)

    def products(self, parts):
        return [self.product(p, i) for i, p in enumerate(parts)]

    def product(self, x, i):
        if self.turned:
            return torch.nn.functional.linear(x, self.w[i])
        return x @ self.w[i]


class InReverse(Experts):
    def products(self, parts):
        return super().products(parts)[::-1]


class OfPartsInReverse(Experts):
    def products(self, parts):
        return super().products(parts[::-1])


class ByRotatedMatrices(Experts):
    def product(self, x, i):
        return super().product(x, (i + 1) % GROUPS)


class ByTwoTensors(Experts):
    def product(self, x, i):
        w = self.v if i == 2 else self.w
        return torch.nn.functional.linear(x, w[i])


class WithBias(Experts):
    def product(self, x, i):
        return torch.nn.functional.linear(x, self.w[i], self.b[i])


class WithoutTheLast(Experts):
    def products(self, parts):
        return super().products(parts)[:-1]


class WithTheRest(Experts):
    def products(self, parts):
        return [*super().products(parts), self.v[0]]


class OfMoreMatrices(Experts):
    def __init__(self):
        super().__init__(groups=GROUPS + 1)


class AcrossColumns(Experts):
    """Joined along the columns: every part has as many rows as the first."""

    counts = "even"

    def forward(self, x, counts):
        parts = self.parts(x, counts)
        for p in parts:
            torch._check(p.shape[0] == ROWS // GROUPS)
        return torch.cat(self.products(parts), 1)


class CutAcross(Experts):
    """Cut along the columns, of which each matrix takes those of one part."""

    counts = "columns"

    def parts(self, x, counts):
        return x.repeat(1, GROUPS).split(counts.tolist(), 1)


class OfKnownSizes(Experts):
    def parts(self, x, counts):
        return x.split([ROWS // GROUPS] * GROUPS, 0)


class OfStacks(Experts):
    """Each part is a stack of matrices, whose first axis is cut."""

    def parts(self, x, counts):
        return x.view(ROWS, 1, K).split(counts.tolist(), 0)


COUNTS = {"uneven": [5, 1, 2, 4], "one": [0, 0, 12, 0], "even": [3, 3, 3, 3]}
COLUMNS = [K] * GROUPS
COUNTEREXAMPLES = [
    InReverse,
    OfPartsInReverse,
    ByRotatedMatrices,
    ByTwoTensors,
    WithBias,
    WithoutTheLast,
    WithTheRest,
    OfMoreMatrices,
    OfKnownSizes,
    OfStacks,
    AcrossColumns,
    CutAcross,
]


def exported(module, counts="uneven"):
    torch.manual_seed(5)
    args = torch.randn(ROWS, K), torch.tensor(COUNTS.get(counts, COLUMNS))
    return torch.export.export(module, args), args


@pytest.mark.parametrize("turned", [True, False])
def test_products_of_parts_of_unknown_sizes_are_one_grouped_product(turned):
    module = Experts(turned)
    program, (x, _) = exported(module)
    compiled = tw.compile(program, threads=1, fallback="error")
    for counts in COUNTS.values():
        given = x, torch.tensor(counts)
        torch.testing.assert_close(compiled(*given), module(*given).detach())


def test_no_product_of_a_part_is_left():
    program, _ = exported(Experts())
    found = with_grouped_products(program.graph_module)
    names = [str(n.target) for n in found.graph.nodes]
    assert "aten._grouped_mm.default" in names
    assert not {"aten.linear.default", "aten.split_with_sizes.default"} & set(names)


@pytest.mark.parametrize("kind", COUNTEREXAMPLES)
def test_what_is_no_grouped_product_stays(kind):
    program, _ = exported(kind(), kind.counts)
    module = program.graph_module
    assert with_grouped_products(module) is module
