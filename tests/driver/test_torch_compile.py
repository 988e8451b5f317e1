"""`torch.compile(..., backend="tilewright")` beside PyTorch itself."""

import warnings
from importlib.metadata import entry_points

import pytest

from tilewright.base.errors import TilewrightWarning
from tilewright.driver.torch_backend import backend
from tilewright.frontends.torch.dynamo import CapturedGraph

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("fresh_capture")
F = torch.nn.functional


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.encoder = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 4))
        self.group = torch.nn.GroupNorm(2, 4)

    def forward(self, x):
        y = F.silu(self.norm(self.conv(x)))
        y = F.max_pool2d(y, 2).flatten(2).transpose(1, 2)
        y = self.head(self.encoder(y))
        z = F.scaled_dot_product_attention(y[:, None], y[:, None], y[:, None])
        return {"logits": y.mean(1), "rest": (z, self.group(y.mT), None)}


def same(function, *args, compiled=None, **options):
    run = compiled
    if run is None:
        run = torch.compile(function, backend=backend, **options)
    copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    found, wanted = run(*args), function(*copies)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(args, tuple(copies))
    return run


def test_the_backend_is_found_by_its_name():
    (found,) = entry_points(group="torch_dynamo_backends", name="tilewright")
    assert found.load() is backend


def test_a_network_in_tiers():
    x = torch.randn(2, 4)
    same(torch.nn.Linear(4, 3), x, options={"tiered": True, "cache": False})


@pytest.mark.slow
def test_a_network_at_several_batches():
    module = Network().eval()
    with torch.no_grad():
        run = same(module, torch.randn(2, 3, 8, 8))
        for n in (2, 5, 3):
            same(module, torch.randn(n, 3, 8, 8), compiled=run)


def test_weights_are_frozen_until_they_change():
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).eval()
    with torch.no_grad():
        run = same(module, torch.randn(2, 4))
        module[0].weight.mul_(2)
        same(module, torch.randn(2, 4), compiled=run)
        module[1].running_mean.add_(1)
        same(module, torch.randn(2, 4), compiled=run)
        module.load_state_dict(
            {
                n: torch.rand_like(t.float()).to(t.dtype)
                for n, t in module.state_dict().items()
            }
        )
        same(module, torch.randn(2, 4), compiled=run)
        module[0].weight = torch.nn.Parameter(torch.randn(4, 4))
        same(module, torch.randn(2, 4), compiled=run)


def test_changes_in_place_views_and_aliases():
    def function(x, y):
        x.add_(1)
        y[0] = x[1] * 2
        return x.view(-1), x, y.t(), y[1:]

    with torch.no_grad():
        same(function, torch.randn(3, 3), torch.randn(3, 3))


def test_parts_of_a_tensor_change_in_place():
    def change(x):
        x[:, ::2] += 1
        x.diagonal(1).fill_(4)
        x.as_strided((2, 2), (1, 3), 1).mul_(2)
        x.T[0] = x[1, 1]
        return x.put_(torch.tensor([0]), torch.tensor([9.0]))

    same(change, torch.randn(3, 5))


@pytest.mark.parametrize("dynamic", [False, True])
def test_results_that_share_memory(dynamic):
    """A change of one shows in the others, as in PyTorch."""

    def views(x):
        y = x.T + 1
        return y, y[1:, 0], y.flatten(), y, y.split(1)[1], y.unbind(1)[2]

    run = torch.compile(views, backend=backend, dynamic=dynamic)
    for rows in (3, 4):
        x = torch.randn(rows, 3)
        found, wanted = run(x), views(x)
        for results in (found, wanted):
            results[1].mul_(2)
            results[0][0] = 7
        torch.testing.assert_close(found, wanted)
        assert [r.stride() for r in found] == [r.stride() for r in wanted]


def test_graph_breaks_and_control_flow_of_python():
    def function(x):
        x = x * 2
        torch._dynamo.graph_break()
        if x.sum() > 0:
            return x + 1
        return x - 1

    with torch.no_grad():
        run = same(function, torch.ones(3))
        same(function, -torch.ones(3), compiled=run)


def test_other_layouts_numbers_and_types():
    def function(x, n, flag):
        return (x * n if flag else x).to(torch.bfloat16), x.sum(), (x > 0), x.long()

    with torch.no_grad():
        run = same(function, torch.randn(3, 4).t(), 2, True)
        same(function, torch.randn(4, 3), 3, False, compiled=run)
        same(function, torch.randn(8, 6)[::2, ::2], 2, True, compiled=run)


def test_gradients_of_a_perceptron():
    module = torch.nn.Sequential(
        torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)
    )
    x = torch.randn(3, 4)
    module(x).square().sum().backward()
    wanted = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    torch.compile(module, backend=backend)(x).square().sum().backward()
    for p, g in zip(module.parameters(), wanted, strict=True):
        torch.testing.assert_close(p.grad, g)


def gradients(module, run, *args):
    """The loss, and the gradients of all parameters."""
    module.zero_grad()
    loss = run(*args).square().mean()
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in module.parameters())]


def test_gradients_by_weights_of_one_pixel():
    """Of a squeeze: an outer product, transposed in registers, whose rows are not whole lines."""
    squeeze = torch.nn.Conv2d(38, 152, 1)
    x, tangent = torch.randn(1, 38, 1, 1), torch.randn(1, 152, 1, 1)
    squeeze(x).backward(tangent)
    wanted, squeeze.weight.grad = squeeze.weight.grad, None
    torch.compile(squeeze, backend=backend)(x).backward(tangent)
    torch.testing.assert_close(squeeze.weight.grad, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_a_network_trains():
    """Statistics of the batch, pooling, attention: backward graphs are compiled too."""

    class Classifier(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(2, 4, 3, stride=2, padding=1)
            self.norm = torch.nn.BatchNorm2d(4)
            self.projected = torch.nn.Linear(4, 12)
            self.group = torch.nn.GroupNorm(2, 4)
            self.table = torch.nn.Embedding(5, 4)

        def forward(self, image, tokens):
            y = F.max_pool2d(F.gelu(self.norm(self.conv(image))), 3, 2, 1)
            y = y.flatten(2).transpose(1, 2) + self.table(tokens)
            q, k, v = self.projected(y)[:, None].chunk(3, -1)
            y = F.scaled_dot_product_attention(q, k, v)[:, 0]
            return self.group(y.transpose(1, 2)).softmax(1)

    module = Classifier()
    state = {n: t.clone() for n, t in module.state_dict().items()}
    args = torch.randn(3, 2, 8, 8), torch.randint(0, 5, (3, 4))
    wanted = gradients(module, module, *args)
    running = module.norm.running_mean.clone()
    module.load_state_dict(state)
    found = gradients(module, torch.compile(module, backend=backend), *args)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(module.norm.running_mean, running)


def test_what_a_graph_draws_is_drawn_by_torch():
    """Anew at each call, the same numbers from the same seed."""

    def function(x):
        return x + torch.rand_like(x) * torch.randn(3, 4), torch.rand(2)

    run = torch.compile(function, backend=backend)
    x, found = torch.zeros(3, 4), []
    for f in (run, function):
        torch.manual_seed(5)
        found.append([f(x), f(x)])
    torch.testing.assert_close(*found)
    assert not torch.equal(found[0][0][0], found[0][1][0])


def test_a_recurrent_layer_that_pytorch_is_told_to_capture():
    class Reader(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.GRU(3, 4)

        def forward(self, x):
            return self.layer(x)[0]

    module, x = Reader(), torch.randn(5, 2, 3)
    wanted = gradients(module, module, x)
    with torch._dynamo.config.patch(allow_rnn=True):
        run = torch.compile(module, backend=backend, fullgraph=True)
        found = gradients(module, run, x)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def test_a_backward_pass_is_given_a_weight_once(monkeypatch):
    """Steps that use one weight would save it once for each of them, transposed, and copy it."""
    given = []
    call = CapturedGraph.__call__

    def noted(self, *args):
        given.append([a.untyped_storage().data_ptr() for a in args])
        return call(self, *args)

    monkeypatch.setattr(CapturedGraph, "__call__", noted)

    def steps(x, weight):
        state = torch.zeros(2, 6)
        for part in x.unbind():
            state = torch.tanh(F.linear(state, weight) + part)
        return state

    x = torch.randn(5, 2, 6)
    weight = torch.randn(6, 6, requires_grad=True)
    run = torch.compile(steps, backend=backend, fullgraph=True)
    steps(x, weight).square().sum().backward()
    wanted, weight.grad = weight.grad, None
    run(x, weight).square().sum().backward()
    torch.testing.assert_close(weight.grad, wanted)
    assert len(given) == 2
    assert given[1].count(weight.data_ptr()) == 1


def test_a_backward_pass_does_not_draw_again():
    x = torch.ones(400, requires_grad=True)
    y = torch.compile(lambda x: torch.sin(F.dropout(x, 0.5)), backend=backend)(x)
    y.sum().backward()
    kept = 2.0 * (y.detach() > 0)
    assert 100 < kept.count_nonzero() < 300
    torch.testing.assert_close(x.grad, kept * torch.cos(kept))


DRAWN = {
    "integers": lambda x: x + torch.randint(-3, 9, x.shape),
    "integers like": lambda x: x + torch.randint_like(x, 9),
    "permutation": lambda x: x[torch.randperm(len(x))],
    "uniform": lambda x: x + torch.empty_like(x).uniform_(-2, 3),
    "normal": lambda x: x + torch.normal(x, x.abs() + 1),
    "in place": lambda x: x + torch.empty_like(x).normal_(3, 2),
    "stochastic depth": lambda x: x * x.new_empty(len(x), 1).bernoulli_(0.6),
    "channels": lambda x: F.dropout1d(x[None], 0.4),
    "alpha": lambda x: F.alpha_dropout(x, 0.4, training=True),
    "order in memory": lambda x: x.t() + torch.rand_like(x.t()),
    "exponential": lambda x: x + torch.empty_like(x).exponential_(2),
    "geometric": lambda x: x + torch.empty_like(x).geometric_(0.3),
    "log normal": lambda x: x + torch.empty_like(x).log_normal_(0.3, 0.5),
    "gumbel": lambda x: F.gumbel_softmax(x),
    "a category": lambda x: torch.multinomial(x.exp(), 1),
    "categories": lambda x: torch.multinomial(x.abs()[0], 3),
    "again": lambda x: torch.multinomial(x.exp(), 9, replacement=True),
    "one, again": lambda x: torch.multinomial(x.exp(), 1, replacement=True),
    "of float16": lambda x: torch.multinomial(x.exp().half(), 99, replacement=True),
    "of bfloat16": lambda x: torch.multinomial(x.exp().bfloat16(), 99, True),
    "across": lambda x: torch.multinomial(x.exp().t(), 2),
}


@pytest.mark.parametrize("name", DRAWN)
def test_the_same_seed_draws_the_same_numbers_of(name):
    """Each call draws others."""
    x, found = torch.randn(6, 4), []
    for f in (torch.compile(DRAWN[name], backend=backend), DRAWN[name]):
        torch.manual_seed(5)
        found.append([f(x) for _ in range(3)])
    torch.testing.assert_close(*found)
    assert any(not torch.equal(found[0][0], other) for other in found[0][1:])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, -1], "element < 0"),
        ([1, float("inf")], "either `inf`"),
        ([float("nan"), 1], "`nan`"),
        ([0, 0], "sum of probabilities <= 0"),
    ],
)
def test_categories_without_chances_are_refused_as_in_pytorch(weights, message):
    given = torch.tensor([[1.0, 2.0], weights])
    run = torch.compile(lambda p: torch.multinomial(p, 1), backend=backend)
    assert run(given[:1].repeat(2, 1)).max() < 2
    for f in (run, lambda p: torch.multinomial(p, 1)):
        with pytest.raises(RuntimeError, match=message):
            f(given)


def test_a_category_without_a_chance_is_not_drawn():
    weights = torch.tensor([0.0, 1, 0, 3, 0]).repeat(500, 1)
    for count, again in ((1, False), (2, False), (4, True)):
        run = torch.compile(torch.multinomial, backend=backend)
        assert set(run(weights, count, again).unique().tolist()) == {1, 3}


def test_assertions_about_tensors_are_checked():
    def function(x):
        torch._assert_async((x > 0).all(), "not positive")
        torch._assert_async(x.sum() > 1, "small")
        return x * 2

    run = torch.compile(function, backend=backend)
    same(run, torch.ones(3))
    for given, message in ((torch.ones(3) / 9, "small"), (-torch.ones(3), "positive")):
        with pytest.raises(RuntimeError, match=message):
            run(given)


def test_what_is_drawn_by_a_computed_number_is_left_to_torch():
    def function(x):
        most = int(x.sum())
        return x + torch.randint(0, most, (4,))

    x, found = torch.ones(4), []
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        run = torch.compile(function, backend=backend)
        for f in (run, function):
            torch.manual_seed(5)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "PyTorch runs a graph.*aten.randint")
                found.append(f(x))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(4, 3).t(),
        torch.zeros(8, 6).t()[::2, 1:],
        torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.zeros(2, 1, 3).permute(2, 0, 1),
    ],
    ids="transposed part channels_last turned".split(),
)
def test_what_is_drawn_like_a_tensor_is_drawn_in_its_order(x):
    run = torch.compile(lambda x: torch.rand_like(x) * 2, backend=backend)
    torch.manual_seed(5)
    found = run(x)
    torch.manual_seed(5)
    torch.testing.assert_close(found, torch.rand_like(x) * 2)


def test_what_a_graph_draws_in_a_branch_is_drawn_by_torch():
    def function(x):
        return torch.cond(x.sum() < 9, torch.rand_like, torch.randn_like, (x,))

    x, found = torch.zeros(3, 4), []
    run = torch.compile(function, backend=backend)
    for f in (run, torch.compile(function, backend="eager")):
        torch.manual_seed(5)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "PyTorch runs a graph.*aten.rand")
            found.append(f(x))
    torch.testing.assert_close(*found)


def test_dropout_in_training_drops_its_share_and_scales_the_rest():
    x = torch.ones(64, 64, requires_grad=True)
    y = torch.compile(lambda x: F.dropout(x, 0.25) * 3, backend=backend)(x)
    y.sum().backward()
    assert 0.2 < float((y == 0).float().mean()) < 0.3
    torch.testing.assert_close(y[y != 0], torch.full_like(y[y != 0], 4.0))
    torch.testing.assert_close(x.grad, y.detach())


def test_what_no_rule_takes_runs_in_torch_and_is_named():
    def function(x):
        return torch.igamma(x * x, x * x)

    with (
        torch.no_grad(),
        pytest.warns(TilewrightWarning, match=r"igamma.*test_torch_compile"),
    ):
        same(function, torch.randn(3, 3))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"options": {"speed": 1}}, "there is no option 'speed'"),
        ({"options": {"math": "sloppy"}}, "math"),
        ({"mode": "max-autotune"}, "is for PyTorch's own backend"),
    ],
)
def test_bad_options(how, message):
    with pytest.raises(Exception, match=message):
        torch.compile(lambda x: x + 1, backend=backend, **how)(torch.ones(2))


def test_options_are_those_of_compile():
    with torch.no_grad():
        same(
            lambda x: x.softmax(-1),
            torch.randn(3),
            options={"threads": 1, "math": "exact"},
        )


def test_steps_of_optimizers_are_compiled():
    """PyTorch writes `addcmul` in them as its primitive `fma`."""
    own, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    other.load_state_dict(own.state_dict())
    ours, theirs = (torch.optim.AdamW(m.parameters(), 0.1) for m in (own, other))
    step = torch.compile(ours.step, backend=backend)
    for n in range(3):
        for module in (own, other):
            torch.manual_seed(n)
            for p in module.parameters():
                p.grad = torch.randn_like(p)
        step()
        theirs.step()
    for p, q in zip(own.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-5)


def test_autocast_rounds_as_in_eager_mode():
    """The captured graph has casts and convolutions of bfloat16."""
    module = torch.nn.Sequential(
        torch.nn.Conv2d(16, 16, 3, padding=1),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(16 * 25, 8),
    ).eval()
    run = torch.compile(module, backend=backend)
    x = torch.randn(2, 16, 5, 5)
    with torch.no_grad():
        want = module(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = run(x)
    assert found.dtype is torch.bfloat16
    error = (found.float() - want).norm() / want.norm()
    assert 1e-5 < error < 3 * 2**-8


def test_results_are_laid_out_as_foreseen():
    """Views of results are made by the strides that PyTorch computed."""

    def function(a):
        y = a.t() * 2
        return y, y.t()

    fast = torch.compile(function, backend=backend)
    a = torch.arange(12.0).reshape(3, 4)
    with torch.no_grad():
        for found, want in zip(fast(a), function(a), strict=True):
            assert torch.equal(found, want)
            assert found.stride() == want.stride()


def test_weights_put_in_place_of_others_and_those_of_inference_mode():
    layer, a = torch.nn.Linear(4, 4), torch.ones(2, 4)
    fast = torch.compile(layer, backend=backend)
    with torch.no_grad():
        fast(a)
        layer.weight.data = torch.full((4, 4), 2.0)
        assert torch.allclose(fast(a), layer(a))
    with torch.inference_mode():
        other = torch.nn.Linear(4, 4)
        fast = torch.compile(other, backend=backend)
        assert torch.allclose(fast(a), other(a), atol=1e-6)
        other.weight.mul_(2)
        assert torch.allclose(fast(a), other(a), atol=1e-6)


def test_linear_algebra_raises_the_errors_of_pytorch():
    def function(a, b):
        inverse = torch.linalg.inv(a) * 2
        return (
            torch.linalg.solve(a, b),
            inverse,
            torch.linalg.cholesky(a @ a.mT),
            a.det(),
        )

    a = torch.randn(2, 3, 3) + 3 * torch.eye(3)
    run = same(function, a, torch.randn(2, 3, 1))
    same(function, a.mT, torch.randn(2, 3, 1), compiled=run)
    a[1] = 0
    for wrong in (function, run):
        with pytest.raises(torch.linalg.LinAlgError, match=r"inv: \(Batch element 1\)"):
            wrong(a, torch.randn(2, 3, 1))


def test_a_check_beside_views_of_inputs_alone():
    def function(x, info):
        torch.ops.aten._linalg_check_errors(info, "mine", is_matrix=True)
        return x[1:]

    run = torch.compile(function, backend=backend)
    x = torch.randn(3, 2)
    torch.testing.assert_close(run(x, torch.tensor(0, dtype=torch.int32)), x[1:])
    with pytest.raises(RuntimeError, match="mine"):
        run(x, torch.tensor(-1, dtype=torch.int32))


TRAINED = {
    "inv": torch.linalg.inv,
    "cholesky": lambda a: torch.linalg.cholesky(a @ a.mT),
    "det": lambda a: a.det() * a.mT.det(),
    "slogdet": lambda a: a.slogdet()[1] + (a.mT @ a).logdet(),
    "solve": lambda a: torch.linalg.solve(a, a[..., :1] ** 2),
    "solve of a transposed matrix": lambda a: torch.linalg.solve(a.mT, a[..., 0] ** 2),
    "solve from the right": lambda a: torch.linalg.solve(a, a[:, :1] ** 2, left=False),
    "lu_factor": lambda a: torch.linalg.lu_factor(a)[0],
    "lu of tall matrices": lambda a: torch.linalg.lu(a[..., :2])[1],
    "lu of wide matrices": lambda a: torch.linalg.lu(a[:, :2])[2],
    "matrix_exp": torch.linalg.matrix_exp,
}


def test_linear_algebra_is_trained():
    """By our kernels: that PyTorch runs a graph would be a warning, which is an error here."""

    def function(given):
        return {name: f(given[name]) for name, f in TRAINED.items()}

    a = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(1))
    a += 3 * torch.eye(3)
    weights = {n: torch.randn(f(a).shape) for n, f in TRAINED.items()}
    flows = []
    for f in (function, torch.compile(function, backend=backend)):
        x = {name: a.clone().requires_grad_() for name in TRAINED}
        sum((y * weights[n]).sum() for n, y in f(x).items()).backward()
        flows.append({name: t.grad for name, t in x.items()})
    for name in TRAINED:
        found = [flow[name] for flow in flows]
        torch.testing.assert_close(
            *found, rtol=1e-4, atol=1e-4, msg=lambda said, name=name: f"{name}: {said}"
        )


def test_weights_are_constants_beside_a_check(monkeypatch):
    built = []
    make = CapturedGraph._built
    monkeypatch.setattr(
        CapturedGraph, "_built", lambda *given: (built.append(1), make(*given))[1]
    )
    layer = torch.nn.Linear(3, 3)

    def function(x):
        return torch.linalg.inv(layer(x) + 5 * torch.eye(3))

    with torch.no_grad():
        run = same(function, torch.randn(2, 3, 3))
        same(function, torch.randn(2, 3, 3), compiled=run)
        assert len(built) == 1
        layer.weight.mul_(0.5)
        same(function, torch.randn(2, 3, 3), compiled=run)
    assert len(built) == 2
