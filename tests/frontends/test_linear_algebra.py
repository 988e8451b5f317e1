"""Linear algebra on batches of matrices, compiled and compared with PyTorch."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.base.errors import UnsupportedError
from tilewright.graph import gradient
from tilewright.graph.interp import evaluate
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.passes.differentiate import extended

torch = pytest.importorskip("torch")
linalg = torch.linalg

from tilewright.driver.torch_backend import backend  # noqa: E402
from tilewright.frontends.torch.aten.importer import ImportSettings  # noqa: E402
from tilewright.frontends.torch.aten.program import import_program  # noqa: E402


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def triangular(a, b, *, left=True, **how):
    return linalg.solve_triangular(a, b if left else b.mT, left=left, **how)


# Of a matrix, a positive definite one, and right-hand sides. Rolled, it needs row exchanges.
FUNCTIONS = {
    "det": lambda a, c, b: (torch.det(a.roll(1, -2)), linalg.det(a.mT)),
    "slogdet": lambda a, c, b: (torch.slogdet(a.roll(1, -2)), linalg.slogdet(-a)),
    "logdet": lambda a, c, b: (torch.logdet(c), torch.logdet(a)),
    "inv": lambda a, c, b: (linalg.inv(a), torch.inverse(a.mT), *linalg.inv_ex(c)),
    "solve": lambda a, c, b: (linalg.solve(a.roll(1, -2), b), *linalg.solve_ex(a, b)),
    "solve vectors": lambda a, c, b: linalg.solve(a, b[..., 0]),
    "solve from the right": lambda a, c, b: linalg.solve(a, b.mT, left=False),
    "power": lambda a, c, b: [linalg.matrix_power(a / 9, n) for n in (5, -3, 0)],
    "cholesky": lambda a, c, b: (linalg.cholesky(c), linalg.cholesky(c, upper=True)),
    "cholesky_ex": lambda a, c, b: linalg.cholesky_ex(c),
    "cholesky_solve": lambda a, c, b: [
        torch.cholesky_solve(b, a, upper=upper) for upper in (False, True)
    ],
    "cholesky_solve of a triangle": lambda a, c, b: torch.cholesky_solve(b, a.tril()),
    "cholesky_inverse": lambda a, c, b: torch.cholesky_inverse(a, upper=True),
    "lu_factor": lambda a, c, b: (
        *linalg.lu_factor(a.roll(1, -2)),
        *linalg.lu_factor_ex(c),
        *linalg.lu(a.roll(1, -2)),
    ),
    "lu_solve": lambda a, c, b: [
        linalg.lu_solve(*linalg.lu_factor(a.roll(1, -2)), b, adjoint=adjoint)
        for adjoint in (False, True)
    ],
    "lu_solve from the right": lambda a, c, b: [
        linalg.lu_solve(*linalg.lu_factor(a), b.mT, left=False, adjoint=adjoint)
        for adjoint in (False, True)
    ],
    "lower": lambda a, c, b: triangular(a, b, upper=False),
    "lower from the right": lambda a, c, b: triangular(a, b, upper=False, left=False),
    "upper": lambda a, c, b: triangular(a, b, upper=True),
    "unit": lambda a, c, b: triangular(a / 40, b, upper=True, unitriangular=True),
}
SHAPES = [(2, 3, 2), (2, 33), (4, 0), (0, 7), (1,), (3, 7)]  # of batches, and rows


def matrices(*shape, dtype=torch.float64):
    """A well conditioned matrix, a positive definite one, and three right-hand sides."""
    generator = torch.Generator().manual_seed(len(shape) + shape[-1])
    n = shape[-1]
    made = torch.randn(*shape, n + 3, generator=generator, dtype=dtype)
    a = made[..., :n] + 2 * n**0.5 * torch.eye(n, dtype=dtype)
    return a, a @ a.mT + torch.eye(n, dtype=dtype), made[..., n:]


def compiled(function, *inputs):
    return tw.compile(Function(function), inputs, threads=1, cache=False)(*inputs)


@pytest.mark.covering(1)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_in_pytorch(name, shape):
    function = FUNCTIONS[name]
    dtype = torch.float32 if shape[-1] == 7 else torch.float64
    inputs = matrices(*shape, dtype=dtype)  # views: the memory has gaps
    found = torch.utils._pytree.tree_leaves(compiled(function, *inputs))
    want = torch.utils._pytree.tree_leaves(function(*inputs))
    for got, expected in zip(found, want, strict=True):
        torch.testing.assert_close(got, expected, equal_nan=True)


def test_batches_are_broadcast():
    a, _, _ = matrices(3)
    _, _, b = matrices(2, 3)

    def function(a, b):
        first = linalg.solve(a, b), linalg.solve(b @ b.mT + 9 * a, b[0, :, 0])
        return *first, linalg.solve_triangular(a, b, upper=True)

    for got, expected in zip(compiled(function, a, b), function(a, b), strict=True):
        torch.testing.assert_close(got, expected)


def test_an_open_batch():
    batch = torch.export.Dim("batch")
    inputs = matrices(2, 3)
    dynamic = (tuple({0: batch} for _ in inputs),)

    def function(a, c, b):
        return linalg.inv(a), linalg.solve(c, b), linalg.cholesky(c)

    exe = tw.compile(Function(function), inputs, dynamic_shapes=dynamic, threads=1)
    other = matrices(5, 3)
    for got, expected in zip(exe(*other), function(*other), strict=True):
        torch.testing.assert_close(got, expected)


# Two that are singular and two that are not, one of which begins with 0.
SINGULAR = torch.tensor(
    [[[1, 2], [2, 4]], [[2, 1], [1, 3]], [[0, 0], [0, 0]], [[0, 1], [1, 0]]],
    dtype=torch.float64,
)


def test_a_singular_matrix_gives_nan_and_the_pivot_that_is_zero():
    """PyTorch raises an error for the whole batch."""

    def function(a):
        found = linalg.inv_ex(a)
        return linalg.inv(a), found.info, *torch.slogdet(a), linalg.det(a)

    inverse, info, sign, log, det = compiled(function, SINGULAR)
    assert inverse[[0, 2]].isnan().all()
    torch.testing.assert_close(inverse[1::2], linalg.inv(SINGULAR[1::2]))
    assert info.tolist() == [2, 0, 1, 0] == linalg.inv_ex(SINGULAR).info.tolist()
    assert sign.tolist() == [0, 1, 0, -1] and log[0] == -torch.inf and det[0] == 0


def test_singular_matrices_have_factors_and_a_pivot_that_is_zero():
    factors, pivots, info = compiled(linalg.lu_factor_ex, SINGULAR)
    want = linalg.lu_factor_ex(SINGULAR)
    torch.testing.assert_close(factors, want.LU)
    assert torch.equal(pivots, want.pivots) and torch.equal(info, want.info)


@pytest.mark.parametrize(
    "shape", [(2, 5, 3), (3, 3, 7), (1, 4), (4, 1), (0, 3), (3, 0)]
)
def test_factors_of_matrices_that_are_not_square(shape):
    """Also one whose second pivot is zero, and the zeros behind its columns are none."""

    def function(a):
        found = linalg.lu_factor_ex(a)
        return *found, *torch.lu_unpack(*found[:2]), *linalg.lu(a)

    a = torch.randn(shape, generator=torch.Generator().manual_seed(0)).double()
    if min(shape) > 1:
        a[0, :, 1] = 0
    found, want = compiled(function, a), function(a)
    assert int(want[2].max()) == (2 if min(shape) > 1 else 0)
    for got, expected in zip(found, want, strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("shape", [(4, 3), (3, 4)])
def test_a_zero_pivot_of_a_matrix_that_is_not_square_is_said(shape):
    """The last one too; of the zeros that make the matrix square none is."""
    a = torch.zeros(3, *shape, dtype=torch.float64)
    for n, zeros in enumerate(([], [2], [0])):
        for i in {0, 1, 2}.difference(zeros):
            a[n, i, i] = i + 2.0
    found, want = compiled(linalg.lu_factor_ex, a), linalg.lu_factor_ex(a)
    assert found[2].tolist() == want.info.tolist() == [0, 3, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_exponentials_of_matrices(dtype):
    """Of norms from 0 to 1000 in one batch, each squared as often as it needs; and of none."""
    a = torch.randn(6, 5, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    a = a - a.mT  # its exponential is a rotation, however large it is
    a = a * torch.tensor([0, 1e-3, 0.1, 1, 10, 100], dtype=dtype)[:, None, None]
    found = compiled(linalg.matrix_exp, a)
    exact = linalg.matrix_exp(a.double())
    tolerance = 1e-13 if dtype == torch.float64 else 3e-5
    for n, norm in enumerate([1, 1, 1, 1, 10, 100]):
        torch.testing.assert_close(
            found[n].double(), exact[n], rtol=0, atol=tolerance * norm
        )
    broken = torch.tensor([[torch.nan, 0], [0, 1]], dtype=dtype)
    assert compiled(linalg.matrix_exp, broken)[0].isnan().all()
    assert compiled(linalg.matrix_exp, a[:0]).shape == (0, 5, 5)
    single = torch.tensor([[-50.0]], dtype=dtype)
    torch.testing.assert_close(compiled(linalg.matrix_exp, single), single.exp())


@pytest.mark.parametrize("n", [3, 20])
def test_a_matrix_that_is_not_definite_gives_nan_and_the_pivot(n):
    a = torch.eye(n).repeat(3, 1, 1)
    a[0, 1, 1] = -1
    a[1, n - 1, n - 1] = 0
    factor, info = compiled(linalg.cholesky_ex, a)
    assert info.tolist() == [2, n, 0] == linalg.cholesky_ex(a).info.tolist()
    assert factor.isnan().flatten(1).any(1).tolist() == [True, True, False]


def test_constants_are_singular_in_the_same_way():
    known = torch.tensor([[1.0, 1.0], [1.0, 1.0]])
    program = torch.export.export(
        Function(lambda x: x * linalg.cholesky(known)), (torch.ones(2, 2),)
    )
    graph = import_program(program, ImportSettings(1 << 32))
    (found,) = evaluate(graph, {graph.inputs[0].name: np.ones((2, 2), "f")}).values()
    assert np.isnan(found).any()


DIFFERENTIABLE = (
    "det",
    "slogdet",
    "logdet",
    "solve",
    "solve from the right",
    "cholesky",
    "cholesky_solve of a triangle",
    "lower",
    "lower from the right",
    "upper",
    "unit",
)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_derivatives(name):
    generator = torch.Generator().manual_seed(3)

    def function(*inputs):
        found = torch.utils._pytree.tree_leaves(FUNCTIONS[name](*inputs))
        return sum((y * weights[y.shape]).sum() for y in found if y.is_floating_point())

    inputs = [x.contiguous().requires_grad_() for x in matrices(2, 4)]
    shapes = [
        y.shape for y in torch.utils._pytree.tree_leaves(FUNCTIONS[name](*inputs))
    ]
    weights = {
        s: torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes
    }
    want = torch.autograd.grad(function(*inputs), inputs, allow_unused=True)
    given = tuple(x.detach() for x in inputs)
    graph = import_program(
        torch.export.export(Function(function), given), ImportSettings(1 << 32)
    )
    f = Fragment("gradient", graph.constants)
    found = gradient.gradients(graph.operations, graph.outputs[0], graph.inputs, f)
    named = {v.name: x.numpy() for v, x in zip(graph.inputs, given, strict=True)}
    results = list(evaluate(extended(graph, f, found), named).values())[-len(found) :]
    for got, expected in zip(results, want, strict=True):
        wanted = 0 if expected is None else expected.numpy()
        np.testing.assert_allclose(got, wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("function", "pattern"),
    [
        (lambda a: linalg.eigvals(a).abs(), "aten.linalg_eig"),
        (  # PyTorch decomposes it further, into a check that has no rule
            lambda a: linalg.lu_factor(a, pivot=False)[0],
            "aten.linalg_lu_factor.default: it does not exchange rows",
        ),
    ],
)
def test_other_decompositions_are_refused_by_name(function, pattern):
    program = torch.export.export(Function(function), (torch.eye(3),))
    with pytest.raises(UnsupportedError, match=pattern):
        import_program(program, ImportSettings(1 << 32))


@pytest.mark.filterwarnings("error:PyTorch runs a graph")
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("adjoint", [True, False])
def test_systems_by_lu_factors_with_open_extents(left, adjoint):
    """Batches, of matrices or sides or both, and numbers of sides."""

    def solved(a, b):
        factors = linalg.lu_factor(a)
        return linalg.lu_solve(*factors, b, left=left, adjoint=adjoint)

    for matrices, sides in (((0,), (0,)), ((0,), ()), ((), (0,))):
        torch._dynamo.reset()
        run = torch.compile(solved, backend=backend)
        for count in (4, 6):
            a = torch.randn([count] * len(matrices) + [3, 3]) + 3 * torch.eye(3)
            b = torch.randn([count] * len(sides) + [3, count + 3])
            b = (b if left else b.mT.contiguous()).requires_grad_()
            a.requires_grad_()
            for axis in matrices:
                torch._dynamo.mark_dynamic(a, axis)
            for axis in (*sides, -1 if left else -2):
                torch._dynamo.mark_dynamic(b, axis % b.dim())
            found = [
                [y, *torch.autograd.grad(y.square().sum(), (a, b))]
                for y in (run(a, b), solved(a, b))
            ]
            torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)
