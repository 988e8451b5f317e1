"""float16 and bfloat16 in `torch.compile(backend="tilewright")`: operators round once."""

import pytest

from tilewright.driver.torch_backend import backend
from tilewright.frontends.torch import dynamo
from tilewright.frontends.torch.aten.importer import ImportSettings

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("fresh_capture")
F = torch.nn.functional
SHORT = [torch.float16, torch.bfloat16]


def matrices(x):
    """A matrix, and two whose product has one term each, which no order of a sum changes. None is
    negative: sums of different signs show the rounding of float32."""
    x = x.abs()
    return x.view(16, 16), x[:16, None], x[None, 16:32]


# Each rounds more than once, or a number that PyTorch keeps, if it is computed in 16 bits.
ROUNDED_ONCE = {
    "a product with a number": lambda x: x * 1.1,
    "a quotient by a number": lambda x: x / 3.3,
    "a term times a whole number": lambda x: torch.add(x, x.flip(0), alpha=3),
    "a term times a whole number less another": lambda x: torch.rsub(
        x, x.flip(0), alpha=3
    ),
    "two decimals": lambda x: x.round(decimals=2),
    "a norm of third powers": lambda x: torch.linalg.vector_norm(
        x.view(16, 16), ord=3, dim=1
    ),
    "groups": lambda x: F.group_norm(x.view(2, 4, 32), 2, x[:4], x[4:8]),
    "a product with a wider scalar": lambda x: x * torch.tensor(1.1),
    "a larger one of two": lambda x: torch.maximum(x, torch.tensor(0.1)),
    "a running sum": lambda x: x.cumsum(0),
    "a scaled product": lambda x: torch.addcmul(x, x, x.flip(0), value=0.3),
    "between two": lambda x: torch.lerp(x, x.flip(0), 0.3),
    "a scaled matrix and a scaled product": lambda x: torch.addmm(
        *matrices(x), beta=0.3, alpha=1.1
    ),
    "a matrix and a scaled product": lambda x: torch.addmm(*matrices(x), alpha=1.1),
    "a scaled matrix and a product": lambda x: torch.addmm(*matrices(x), beta=0.3),
    "a batch of scaled products": lambda x: torch.baddbmm(
        *(m[None] for m in matrices(x)), beta=0, alpha=1.1
    ),
    "a vector and a scaled product": lambda x: torch.addmv(
        x[:16].abs(), x[16:32, None].abs(), x[:1].abs(), alpha=1.1
    ),
    "a sum of products": lambda x: torch.addbmm(
        x.view(16, 16).abs(), x[:32].view(2, 16, 1).abs(), x[32:64].view(2, 1, 16).abs()
    ),
    "silu": F.silu,
    "glu": lambda x: F.glu(x, 0),
    "elu": lambda x: F.elu(x, 1.1),
    "softplus": F.softplus,
    "the root of the reciprocal": lambda x: x.abs().rsqrt(),
    "log10": lambda x: x.abs().log10(),
    "log1p": lambda x: x.abs().log1p(),
    "expm1": lambda x: x.div(16).expm1(),
    "atan2": lambda x: torch.atan2(x, x.flip(0)),
    "hypot": lambda x: torch.hypot(x, x.flip(0)),
}


# PyTorch rounds the numbers of these to 16 bits, and what it stores.
SUMS = {
    "a sum with a number": lambda x: x + 0.1,
    "a number less a tensor": lambda x: 0.1 - x,
    "a sum with a wider scalar": lambda x: x - torch.tensor(0.1),
    "a scaled term": lambda x: torch.add(x, x.flip(0), alpha=0.3),
    "a scaled term less another": lambda x: torch.rsub(x, x.flip(0), alpha=1.7),
    "a scaled number": lambda x: torch.add(x, 1.2345, alpha=2.5),
}


@pytest.mark.parametrize("dtype", SHORT)
def test_results_are_rounded_once(dtype):
    """Errors beside float64 are at most half the distance to the next number of 16 bits."""
    x = (torch.randn(256) * 4).to(dtype)
    functions = list(ROUNDED_ONCE.values())
    found = torch.compile(lambda x: [f(x) for f in functions], backend=backend)(x)
    distance = torch.finfo(dtype).eps / 2
    for name, f, y in zip(ROUNDED_ONCE, functions, found, strict=True):
        assert y.dtype is dtype, name
        exact = f(x.double())
        tiny = torch.finfo(dtype).smallest_normal
        error = (y.double() - exact).abs() / exact.abs().clamp(min=tiny)
        assert error.max() < 1.02 * distance, name


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("name", SUMS)
def test_sums_round_their_numbers(name, dtype):
    x = (torch.randn(4000) * 4).to(dtype)
    found = torch.compile(SUMS[name], backend=backend)(x)
    assert found.dtype is dtype
    assert torch.equal(found, SUMS[name](x))


def casts(function, x):
    """How many casts the graph of a function has."""
    graphs = []

    def compiled(graph):
        graphs.append(graph)
        return lambda *args: tuple(torch.zeros(v.shape) for v in graph.outputs)

    def kept(module, inputs):
        return dynamo.backend(module, inputs, compiled, ImportSettings(1 << 30))

    torch.compile(function, backend=kept)(x)
    (graph,) = graphs
    return sum(op.op_type == "Cast" for op in graph.operations)


def test_only_numbers_that_do_not_fit_are_kept_whole():
    x = torch.ones(4, dtype=torch.bfloat16)
    assert casts(lambda x: x * 1.1, x) == 2
    assert casts(lambda x: x * 1.5, x) == 0  # exact in bfloat16
    assert casts(lambda x: x + x, x) == 0
    assert casts(lambda x: x * 1.1, x.float()) == 0
    assert casts(lambda x: torch.add(x, x, alpha=-1), x) == 0


def test_a_turned_number_is_itself():
    x = torch.tensor(2.0)
    found = torch.compile(lambda x: x.flip(0) + 1, backend=backend)(x)
    assert found.shape == () and found == 3
