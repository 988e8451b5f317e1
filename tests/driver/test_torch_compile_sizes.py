"""`torch.compile` with batches of several sizes, which PyTorch captures once."""

import copy
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

from tilewright.base.errors import TilewrightWarning
from tilewright.driver.torch_backend import backend
from tilewright.frontends.torch import dynamo
from tilewright.frontends.torch.aten.decompositions import decompositions

torch = pytest.importorskip("torch")
nn = torch.nn
F = nn.functional

SIZES = (6, 3, 8)


@pytest.fixture(autouse=True)
def captures(monkeypatch):
    """How many times PyTorch captured; a graph that PyTorch runs is an error."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    found = []
    capture = dynamo.backend
    monkeypatch.setattr(
        dynamo, "backend", lambda *given: (found.append(1), capture(*given))[1]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", TilewrightWarning)
        yield found


def trained_as_in_eager_mode(module, shape, sizes=SIZES, tolerance=1e-4):
    """Results, gradients and buffers at each size, after each of several steps."""
    other = copy.deepcopy(module)
    run = torch.compile(module, backend=backend)
    for n in sizes:
        found = []
        given = torch.randn(n, *shape)
        flow = None
        for f in (other, run):
            x = given.clone().requires_grad_()
            torch._dynamo.mark_dynamic(x, 0)
            module.zero_grad()
            other.zero_grad()
            y = f(x)
            flow = torch.randn_like(y) if flow is None else flow
            y.backward(flow)
            held = module if f is run else other
            grads = [p.grad.clone() for p in held.parameters()]
            buffers = [b.clone() for b in held.buffers()]
            found.append((y.detach(), x.grad, grads, buffers))
        torch.testing.assert_close(found[1], found[0], rtol=tolerance, atol=tolerance)


def test_statistics_of_batches(captures):
    """The divisor of running variances, and of gradients, is known only at a call."""
    module = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1),
        nn.BatchNorm2d(3),
        nn.ReLU(),
    )
    trained_as_in_eager_mode(module, (2, 4, 5))
    assert len(captures) == 1


def test_statistics_need_no_graph_for_each_size(captures, monkeypatch):
    monkeypatch.setattr(dynamo, "sized", None)
    norm = nn.BatchNorm1d(3)
    other = copy.deepcopy(norm)
    run = torch.compile(norm, backend=backend)
    with torch.no_grad():
        for n in SIZES:
            x = torch.randn(n, 3)
            torch._dynamo.mark_dynamic(x, 0)
            torch.testing.assert_close(run(x), other(x))
            torch.testing.assert_close(norm.running_var, other.running_var)
    assert len(captures) == 1


def test_pooled_and_resized_batches(captures):
    class Pyramid(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(2, 2, 3, padding=1)

        def forward(self, x):
            y = self.conv(x)
            parts = [
                F.max_pool2d(y, 3, 2, 1),
                F.avg_pool2d(y, 2),
                F.interpolate(y, scale_factor=2, mode="bilinear"),
                F.adaptive_avg_pool2d(y, (3, 2)),
            ]
            return torch.cat([p.flatten(1) for p in parts], 1)

    trained_as_in_eager_mode(Pyramid(), (2, 8, 10), (4, 3))
    assert len(captures) == 1


def random_shapes(x):
    """Shapes and strides of x, sums and products of its extents, and the order of its rows."""
    n, m = x.shape
    kept = F.dropout(x.T @ x, 0.3), torch.bernoulli(x.sigmoid())
    others = (
        torch.rand(2 * n + 1, 3),
        torch.randint(0, 9, (n * m,)),
        torch.rand_like(x.T),
    )
    return torch.rand_like(x) + x, *kept, *others, x[torch.randperm(n)]


def test_random_numbers_of_batches_are_those_of_torch(captures, monkeypatch):
    """They are drawn in the shapes of each call, for one graph."""
    from torch._functorch.aot_autograd import make_boxed_func

    monkeypatch.setattr(dynamo, "sized", None)

    def decomposed(module, inputs):
        make = lambda graph, given: make_boxed_func(graph)  # noqa: E731
        prepare = torch._dynamo.backends.common.aot_autograd(
            fw_compiler=make, decompositions=decompositions()
        )
        return prepare(module, inputs)

    found = []
    for compiler in (backend, decomposed):
        torch._dynamo.reset()
        run = torch.compile(random_shapes, backend=compiler, dynamic=True)
        torch.manual_seed(1)
        found.append([run(torch.randn(n, m)) for n, m in ((3, 4), (5, 4), (2, 7))])
    torch.testing.assert_close(*found)
    assert len(captures) == 1


def test_few_sizes_are_kept(captures, monkeypatch):
    """The one that was used longest ago is dropped, and made again when it is back."""
    monkeypatch.setattr(dynamo, "_SIZES", 2)
    made = []
    one = dynamo.sized
    monkeypatch.setattr(
        dynamo,
        "sized",
        lambda module, numbers: (
            made.append(list(numbers.values())),
            one(module, numbers),
        )[1],
    )

    def function(x):
        return torch.eye(x.shape[0])[:, :1] + x  # the number of rows has to be known

    run = torch.compile(function, backend=backend, dynamic=True)
    for n in (3, 5, 3, 7, 3, 5):
        run(torch.randn(n, 4))
    sizes = [min(n for n in numbers if n != 4) for numbers in made]
    assert sizes == [3, 5, 7, 5]


def test_threads_that_call_at_once_make_one_graph_for_a_size(monkeypatch):
    """One after the other; and none drops what another one has dropped."""
    one, made, busy = dynamo.sized, [], []

    def slow(module, numbers):
        busy.append(len(made))
        time.sleep(0.05)
        made.append(numbers)
        return one(module, numbers)

    def function(x):
        return torch.eye(x.shape[0])[:, :1] * 0 + x

    run = torch.compile(function, backend=backend, dynamic=True)
    run(torch.ones(3, 4))
    monkeypatch.setattr(dynamo, "sized", slow)
    given = [torch.full((n, 4), float(n)) for n in (5, 5, 6, 5)]
    with ThreadPoolExecutor(len(given)) as threads:
        for x, found in zip(given, threads.map(run, given), strict=True):
            torch.testing.assert_close(found, x)
    assert len(made) == 2 and busy == [0, 1]


def test_an_operator_without_a_rule_is_run_by_torch_at_once(monkeypatch):
    monkeypatch.setattr(dynamo, "sized", None)
    run = torch.compile(torch.igamma, backend=backend, dynamic=True)
    with pytest.warns(TilewrightWarning, match="igamma"):
        run(torch.rand(3, 2), torch.rand(3, 2))


def test_arithmetic_on_open_extents_with_floats():
    """A share of an extent, which is no integer; and what is rounded from one."""

    def function(x, t):
        n = x.shape[0]
        return (
            F.cross_entropy(x, t, reduction="none", label_smoothing=0.1),
            x * (0.3 / n), x + (n * 0.5) % 2, x.new_zeros(int(n * 0.7)), x * (n // 2.5),
            F.layer_norm(x, (x.shape[1],)), x.sum(0) / n**0.5, x - max(n, 4.5),
        )  # fmt: skip

    run = torch.compile(function, backend=backend, dynamic=True)
    for n in (5, 3, 8):
        x, t = torch.randn(n, 7), torch.arange(n) % 7
        torch.testing.assert_close(run(x, t), function(x, t))


@pytest.mark.parametrize("dynamic", [False, True])
def test_results_that_are_views_of_inputs_are_these_views(dynamic):
    """Not copies, of which PyTorch would take strides for the views that it makes."""

    def function(x, y):
        x.mul_(2)
        views = x[1:], x.T, x[:, ::2], x, x.split(1)[1], x.expand(2, *x.shape)
        return *views, y[1:, ::3], y.view(-1)[3:], y, (y + 1)[1:], y * 1

    run = torch.compile(function, backend=backend, dynamic=dynamic)
    for base in (torch.randn(4, 7), torch.randn(8, 9)[2:], torch.randn(3, 5)):
        given = [(base.clone(), base), (base.clone(), base.clone())]
        found, wanted = run(*given[0]), function(*given[1])
        torch.testing.assert_close(found, wanted)
        assert [r.stride() for r in found] == [r.stride() for r in wanted]
        for results in (found, wanted):
            results[0].fill_(3)
            results[4].zero_()
            results[6].fill_(5)
            results[7][2:].neg_()
            results[9].zero_()
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(*given)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_no_elements_in_open_batches():
    def function(x, y):
        return (
            x.sum(0), x.softmax(0), F.layer_norm(x, (x.shape[1],)), x.std(1), x.amax(1),
            torch.cat([x, x]), F.group_norm(y, 1), F.instance_norm(y), F.max_pool2d(y, 2),
            F.conv2d(y, torch.ones(4, 3, 3, 3)), F.adaptive_avg_pool2d(y, 1),
        )  # fmt: skip

    for dynamic in (False, True):
        torch._dynamo.reset()
        run = torch.compile(function, backend=backend, dynamic=dynamic)
        given = torch.zeros(0, 4), torch.zeros(0, 3, 6, 6)
        torch.testing.assert_close(run(*given), function(*given))


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_of_no_images(dynamic):
    run = torch.compile(lambda x: F.max_pool2d(x, 2), backend=backend, dynamic=dynamic)
    x = torch.zeros(0, 3, 6, 6, requires_grad=True)
    run(x).sum().backward()
    assert x.grad.shape == x.shape


def test_elements_are_put_into_a_tensor_of_any_size():
    run = torch.compile(torch.put, backend=backend, dynamic=True)
    places, values = torch.tensor([0, 1, 7]), torch.randn(3)
    for rows in (3, 4):
        given = torch.randn(rows, 3), places, values
        torch.testing.assert_close(run(*given), torch.put(*given))
