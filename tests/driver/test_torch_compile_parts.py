"""Graphs of `torch.compile` around single operators that PyTorch runs."""

import warnings
import weakref

import pytest

from tilewright.base.errors import TilewrightWarning
from tilewright.driver.torch_backend import backend
from tilewright.frontends.torch.dynamo import CapturedGraph
from tilewright.frontends.torch.parts import Parts, left_to_torch

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("fresh_capture")


@pytest.fixture
def graphs(monkeypatch):
    """The names of the operators in each graph that is compiled, and its frozen inputs."""
    made = []
    make = CapturedGraph.__init__

    def noted(self, module, frozen, *given):
        called = [n.target for n in module.graph.nodes if n.op == "call_function"]
        made.append(([str(target).split(".")[-2] for target in called], frozen))
        make(self, module, frozen, *given)

    monkeypatch.setattr(CapturedGraph, "__init__", noted)
    return made


# Each draws as often as the numbers want, so that those after it tell whether it drew.
DRAWN = {
    "poisson": torch.poisson,
    "binomial": lambda a: torch.binomial(torch.full_like(a, 7.0), a / (a + 1)),
    "gamma": torch._standard_gamma,
    "dirichlet": torch._sample_dirichlet,
    "a distribution": lambda a: torch.distributions.Beta(a, 2 * a).sample(),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", DRAWN)
def test_what_is_drawn_from_a_computed_tensor(name, dynamic, graphs):
    def function(x):
        before = torch.rand_like(x)
        drawn = DRAWN[name](x.square() * 3 + before + 0.1)
        return before, drawn + torch.rand_like(x), torch.randn_like(drawn)

    x, found = torch.randn(5, 3), []
    torch.distributions.Distribution.set_default_validate_args(False)
    for f in (torch.compile(function, backend=backend, dynamic=dynamic), function):
        torch.manual_seed(5)
        found.append(f(x))
    torch.distributions.Distribution.set_default_validate_args(True)
    torch.testing.assert_close(*found)
    assert graphs and not any("gamma" in names for names, _ in graphs)


def around(x):
    """An operator of one result and one of two results, one of which nobody takes."""
    y = torch.igamma(x.exp(), x.square() + 1) * 2
    factor, _ = torch.geqrf(y.sin())
    return y - 1, factor.triu().sum(), x


def test_what_has_no_rule_is_run_by_torch_alone(graphs):
    x = torch.randn(3, 3)
    run = torch.compile(around, backend=backend)
    said = r"in part: no rule imports the operators prims.igamma[^;]*; aten.geqrf"
    with pytest.warns(TilewrightWarning, match=said):
        found = run(x)
    torch.testing.assert_close(found, around(x))
    names = [name for group, _ in graphs for name in group]
    assert {"exp", "mul", "sin"} <= set(names)
    assert not {"igamma", "geqrf", "getitem"} & set(names)
    assert len(graphs) == 3
    torch.testing.assert_close(run(2 * x), around(2 * x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
@pytest.mark.parametrize(
    "function",
    [
        torch.nn.Linear(3, 2),
        torch.nn.Linear(3, 2, bias=False),
        lambda x: x @ torch.ones(3, 2),
    ],
    ids=["bias", "no bias", "product"],
)
def test_products_of_two_dtypes_are_what_torch_says(function, dtype):
    """Tracing lets them pass, so they once had a result."""
    x = torch.ones(4, 3, dtype=dtype)
    with pytest.raises(RuntimeError, match=r"same dtype"):
        function(x)
    with (
        pytest.warns(TilewrightWarning, match=r"operands are float\d+ and float\d+"),
        pytest.raises(RuntimeError, match=r"same dtype"),
    ):
        torch.compile(function, backend=backend)(x)


def test_complex_numbers_that_python_has_no_name_for():
    """PyTorch runs the graph, whose text would have the names `nanj` and `infj`."""

    def function(x):
        x = torch.where(x.real > 0, x, complex("nan+nanj"))
        return torch.where(x.imag > 1, complex("inf+infj"), x).acos()

    x = torch.tensor([1 + 0.5j, -1 + 0j, 1 + 2j])
    with pytest.warns(TilewrightWarning, match="aten.acos.default: its numbers are"):
        found = torch.compile(function, backend=backend)(x)
    torch.testing.assert_close(found, function(x), equal_nan=True)


def test_gradients_around_an_operator_without_a_rule():
    weight = torch.randn(3, 3, requires_grad=True)

    def function(x):
        return torch.igamma(torch.ones(3), (x @ weight).square() + 1).sum(), weight * 2

    found = []
    x = torch.randn(2, 3)
    for f in (torch.compile(function, backend=backend), function):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "PyTorch runs a graph.*in part.*igamma")
            value, doubled = f(x)
            loss = value + doubled.sum()
            found.append((value, torch.autograd.grad(loss, weight)))
    torch.testing.assert_close(*found)


def test_weights_are_constants_of_each_part(graphs):
    layer = torch.nn.Linear(3, 3, bias=False)
    run = torch.compile(lambda x: layer(torch.poisson(layer(x).exp())), backend=backend)
    x = torch.randn(2, 3)
    for scale in (1, 0.5):
        with torch.no_grad():
            layer.weight.mul_(scale)
            torch.manual_seed(1)
            found = run(x)
            torch.manual_seed(1)
            wanted = layer(torch.poisson(layer(x).exp()))
        torch.testing.assert_close(found, wanted)
    assert [len(frozen) for _, frozen in graphs] == [1, 1]


def test_a_graph_that_is_ordered_by_tokens_stays_whole():
    def function(x):
        return torch.igamma(torch.linalg.inv(x).abs() + 1, x.abs())

    x = torch.eye(3) + 0.1
    with pytest.warns(TilewrightWarning, match=r"graph of \d+ nodes: .*igamma"):
        found = torch.compile(function, backend=backend)(x)
    torch.testing.assert_close(found, function(x))


def traced(function, *given):
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(function)(*given)


def test_values_that_no_later_part_takes_are_dropped():
    """A part's own inputs end with it, but those of a later part, or of the caller, do not."""

    def function(x, y):
        a = x.exp()
        b = torch.igamma(a, y)
        c = torch.igamma(b.sin(), x)
        return a, c.cos()

    module = traced(function, torch.rand(2), torch.rand(2))
    assert len(left_to_torch(module)) == 2
    parts = Parts(module, (), lambda module, frozen: module)
    ends = [[n.name for n in part.ends] for part in parts._parts]
    assert ends == [[], ["y_1"], ["igamma"], ["sin", "x_1"], ["igamma_1"]]
    given = torch.rand(2), torch.rand(2)
    torch.testing.assert_close(parts(*given), function(*given))


def test_memory_of_a_value_is_free_when_later_parts_run():
    made, alive = [], []

    def make(module, frozen):
        def run(*given):
            alive.append([held() is not None for held in made])
            found = module(*given)
            made.extend(map(weakref.ref, found))
            return found

        return run

    def function(x, y):
        a = x.exp()
        return a, torch.igamma(torch.igamma(a, y).sin(), x).cos()

    module = traced(function, torch.rand(2), torch.rand(2))
    Parts(module, (), make)(torch.rand(2), torch.rand(2))
    assert alive == [[], [True], [True, False]]  # the first one is a result


def test_a_constant_of_the_graph_is_known_to_all_parts():
    steps = torch.tensor([1.0, 2.0])

    def function(x):
        return torch.igamma(x * steps, steps) + steps, steps

    module = traced(function, torch.rand(2))
    given = torch.rand(2)
    found = Parts(module, (), lambda module, frozen: module)(given)
    torch.testing.assert_close(found, function(given))


def test_what_changes_a_tensor_in_place_is_no_part_of_its_own():
    module = traced(lambda x: x.exp().igamma_(x), torch.rand(2))
    assert left_to_torch(module) == []


class Kept(torch.nn.Module):
    """Keys that the graph itself writes, beside a weight."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.register_buffer("keys", torch.zeros(5, 3))

    def forward(self, x, at):
        self.keys.index_copy_(0, at, self.layer(x))
        return self.keys.sum(0)


def test_a_buffer_that_the_graph_changes_is_no_constant(monkeypatch):
    built = []
    make = CapturedGraph._built
    monkeypatch.setattr(
        CapturedGraph,
        "_built",
        lambda self, args: (built.append(self._frozen), make(self, args))[1],
    )
    module = Kept()
    run = torch.compile(module, backend=backend)
    with torch.no_grad():
        wanted = torch.zeros(5, 3)
        for n in range(4):
            x = torch.randn(1, 3)
            wanted[n] = module.layer(x)
            torch.testing.assert_close(run(x, torch.tensor([n])), wanted.sum(0))
    torch.testing.assert_close(module.keys, wanted)
    (frozen,) = built
    assert len(frozen) == 2


def test_views_of_what_another_part_has_made_share_its_memory():
    """Also if its extents are products of those of the inputs."""

    def function(x):
        y = x * 2
        v = y.view(2, -1)
        return torch.poisson(v.detach().abs()) * v, v.t(), y

    found = torch.compile(function, backend=backend, dynamic=True)(torch.randn(4, 5))
    found[2].fill_(7.0)
    assert bool((found[1] == 7.0).all())


def parts_of_sums(x):
    """Every second row has as many elements as x, which no extent of the sums says alone."""
    y = torch.cat([x, x + 1])
    drawn = torch.poisson(y.abs())
    z = y * 2
    even, odd = z[::2], z[1::2]
    return z, even, odd, z.view(-1), drawn, drawn[::2], *z.split(2)[:2]


def first_rows(x, count):
    """Views of as many rows as a tensor says."""
    k = count.item()
    torch._check(k >= 0)
    torch._check(k <= x.shape[0])
    y = x * 2
    return y, y.narrow(0, 0, k), y.narrow(0, 0, k).unsqueeze(0)


def places(found):
    """Which results share memory, and where they start in it."""
    memory = [t.untyped_storage().data_ptr() for t in found]
    return [(memory.index(m), t.storage_offset()) for m, t in zip(memory, found)]


VIEWS = {
    "of parts": (parts_of_sums,),
    "of a number of rows": (first_rows, torch.tensor(3)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", VIEWS)
@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_results_share_memory_as_in_pytorch(name, dynamic):
    function, *rest = VIEWS[name]
    run = torch.compile(function, backend=backend, dynamic=dynamic)
    for rows in (4, 6):
        x = torch.randn(rows, 3)
        torch.manual_seed(1)
        found = run(x, *rest)
        torch.manual_seed(1)
        wanted = function(x, *rest)
        torch.testing.assert_close(found, wanted)
        assert places(found) == places(wanted)
        assert [f.stride() for f in found] == [w.stride() for w in wanted]


def test_views_of_results_that_later_parts_take_are_also_computed():
    """A part computes its own copy of a view, and PyTorch makes the one that is a result."""

    def function(x):
        y = x.exp()
        rows = y[1:]
        return y, rows, torch.igamma(rows * 2, rows)

    module = traced(function, torch.rand(3, 2))
    parts = Parts(module, (), lambda module, frozen: module)
    x = torch.rand(3, 2)
    found = parts(x)
    torch.testing.assert_close(found, function(x))
    assert places(found) == [(0, 0), (0, 2), (2, 0)]


def test_dropout_that_a_checkpoint_repeats(graphs):
    """The same elements are dropped again; the layers around it are compiled in both passes."""
    from torch.utils.checkpoint import checkpoint

    layer = torch.nn.Linear(8, 8)

    def function(x):
        def inner(z):
            return torch.nn.functional.dropout(layer(z).sin(), 0.5)

        return checkpoint(inner, x, use_reentrant=False)

    x = torch.ones(16, 8, requires_grad=True)
    y = torch.compile(function, backend=backend)(x)
    y.sum().backward()
    kept = (y != 0).float() * 2
    assert 0.2 < (y != 0).float().mean() < 0.8
    wanted = (kept * layer(x).cos()) @ layer.weight
    torch.testing.assert_close(x.grad, wanted, rtol=1e-4, atol=1e-5)
    ran = {name for names, _ in graphs for name in names}
    assert {"sin", "cos"} <= ran and "rand_like" not in ran
