"""Singular values, eigenvalues, orthogonal factors and pseudoinverses, compiled, beside PyTorch."""

import warnings

import pytest

import tilewright as tw
from tests.frontends.test_linear_algebra import Function, compiled
from tilewright.base.errors import TilewrightWarning, UnsupportedError
from tilewright.driver.torch_backend import backend

torch = pytest.importorskip("torch")
linalg = torch.linalg

EPSILONS = {torch.float32: 2e-6, torch.float64: 2e-14}


def random(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def of_rank(rank, rows, columns):
    return random(rows, rank) @ random(rank, columns, seed=1)


# What is hard for rotations, or for reflections: nothing to rotate, columns of zeros, equal
# values, values of very different sizes, and squares that overflow or vanish.
MATRICES = {
    "tall": random(5, 3),
    "wide": random(3, 5),
    "square": random(2, 4, 4),
    "larger": random(24, 17),
    "one": random(1, 1),
    "a column": random(5, 1),
    "a row": random(1, 4),
    "zeros": torch.zeros(4, 3),
    "a column of zeros": torch.cat([torch.zeros(4, 1), random(4, 2)], 1),
    "the last column of zeros": torch.cat([random(4, 2), torch.zeros(4, 1)], 1),
    "a unit matrix": torch.eye(4),
    "equal values": linalg.qr(random(5, 5))[0] * 3,
    "pairs of one size": torch.diag(torch.tensor([2.0, -2.0, 1.0, -1.0])).roll(1, 0),
    "rank 2": of_rank(2, 6, 4),
    "rank 1, wide": of_rank(1, 3, 6),
    "ones": torch.ones(5, 4),
    "graded": random(6, 5) * 10.0 ** -torch.arange(0, 25, 5),
    "huge": random(4, 3) * 1e30,
    "tiny": random(4, 3) * 1e-30,
    "one huge column": random(4, 3) * torch.tensor([1e30, 1, 1e-8]),
    "columns whose squares vanish": random(4, 4)
    * torch.tensor([1, 1e-160, 1e-170, 1e-310], dtype=torch.float64),
    "rows whose squares vanish": random(4, 4).triu()
    * torch.tensor([[1], [1e-160], [1e-160], [1e-160]], dtype=torch.float64)
    + random(4, 4).tril(-1)
    * torch.tensor([0, 1e-160, 1e-160, 1e-160], dtype=torch.float64),
    "triangles": random(4, 4).triu(),
    "negative zeros": -torch.zeros(3, 3),
    "empty rows": torch.zeros(2, 0, 3),
    "empty columns": torch.zeros(3, 0),
    "no matrix": torch.zeros(0, 3, 4),
}
DTYPES = {"double": torch.float64, "single": torch.float32}


@pytest.fixture(params=DTYPES)
def dtype(request):
    return DTYPES[request.param]


def near(found, wanted, scale=1.0):
    """Within the precision of the type, of numbers up to `scale`."""
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    error = EPSILONS[found.dtype] * max(float(scale), 1e-300)
    torch.testing.assert_close(found, wanted, rtol=0, atol=error)


def orthonormal(columns):
    unit = torch.eye(columns.shape[-1], dtype=columns.dtype)
    near(columns.mT @ columns, unit.expand(*columns.shape[:-2], *unit.shape))


def largest(a):
    return a.abs().max() * max(a.shape[-2:]) if a.numel() else 1


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", MATRICES)
def test_singular_values_and_vectors(name, dtype):
    a = MATRICES[name].to(dtype)
    values = linalg.svdvals(a)
    for full in (False, True):
        want = linalg.svd(a, full_matrices=full)
        found = compiled(lambda a, full=full: linalg.svd(a, full_matrices=full), a)
        left, s, right = found
        assert [t.shape for t in found] == [t.shape for t in want]
        near(s, values, largest(a))
        assert bool((s >= 0).all())
        orthonormal(left)
        orthonormal(right.mT)
        k = s.shape[-1]
        near((left[..., :k] * s[..., None, :]) @ right[..., :k, :], a, largest(a))


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", MATRICES)
def test_orthogonal_factors_with_the_signs_of_lapack(name, dtype):
    a = MATRICES[name].to(dtype)
    found = compiled(
        lambda a: [linalg.qr(a, m) for m in ("reduced", "complete", "r")], a
    )
    for mode, (q, r) in zip(("reduced", "complete", "r"), found, strict=True):
        want = linalg.qr(a, mode)
        near(r, want.R, largest(a))
        assert torch.equal(r, r.triu())
        if mode == "r":
            assert q.shape == want.Q.shape == (0,)
            continue
        assert q.shape == want.Q.shape
        orthonormal(q)
        near(q @ r, a, largest(a))
        if bool((linalg.matrix_rank(a) == min(a.shape[-2:])).all()):
            near(q[..., : r.shape[-1]], want.Q[..., : r.shape[-1]], 1e3)


def symmetric(a):
    n = min(a.shape[-2:])
    half = a[..., :n, :n]
    return half + half.mT


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", MATRICES)
def test_eigenvalues_of_symmetric_matrices(name, dtype):
    a = symmetric(MATRICES[name].to(dtype))
    want = linalg.eigvalsh(a)
    values, vectors, alone = compiled(
        lambda a: (*linalg.eigh(a), linalg.eigvalsh(a)), a
    )
    near(values, want, largest(a))
    assert torch.equal(values, alone)
    orthonormal(vectors)
    near((vectors * values[..., None, :]) @ vectors.mT, a, largest(a))


def test_one_triangle_of_a_symmetric_matrix_counts():
    a = random(4, 4)
    for triangle in ("L", "U"):
        found = compiled(lambda a, t=triangle: linalg.eigh(a, UPLO=t)[0], a)
        near(found, linalg.eigh(a, UPLO=triangle)[0], 10)


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", MATRICES)
def test_pseudoinverses_and_ranks(name, dtype):
    a = MATRICES[name].to(dtype)
    half = symmetric(a)

    def function(a, half):
        return linalg.pinv(a), linalg.pinv(half, hermitian=True), linalg.matrix_rank(a)

    found, want = compiled(function, a, half), function(a, half)
    for got, expected in zip(found[:2], want[:2], strict=True):
        size = expected.abs().max() if expected.numel() else 0
        condition = size * largest(a)
        near(got, expected, 10 * size * max(condition, 1) + 1)
    assert torch.equal(found[2], want[2])


def test_tolerances_of_ranks():
    """An absolute one, a relative one, both, and those of each matrix."""
    values = torch.tensor([[4.0, 2.0, 1.0], [8.0, 1.0, 0.5]], dtype=torch.float64)
    q = linalg.qr(random(2, 3, 3))[0]
    a = q * values[:, None, :]

    def function(a):
        each = torch.tensor([1.5, 0.7], dtype=torch.float64)
        ways = [
            {"atol": 1.5},
            {"rtol": 0.3},
            {"atol": 0.9, "rtol": 0.2},
            {"atol": each},
        ]
        ways += [{"rtol": each / 9}, {"atol": 0.0}]
        return [f(a, **how) for how in ways for f in (linalg.pinv, linalg.matrix_rank)]

    for got, expected in zip(compiled(function, a), function(a), strict=True):
        torch.testing.assert_close(got, expected)


def test_what_is_made_of_them():
    def function(a):
        return (
            linalg.cond(a), linalg.cond(a, -2), linalg.norm(a, "nuc"), linalg.norm(a, 2),
            linalg.matrix_norm(a, -2), torch.svd(a)[1], torch.qr(a)[1], torch.pinverse(a),
        )  # fmt: skip

    a = random(4, 3)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", UserWarning
        )  # of functions that have newer names
        found, want = compiled(function, a), function(a)
    for got, expected in zip(found, want, strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [(0, 0), (2, 1)])
def test_entries_that_are_not_finite_give_nan(number, place):
    """Where PyTorch raises an error; other matrices of the batch are as they were."""
    a = random(2, 3, 3)
    a[(1, *place)] = number
    found = compiled(lambda a: [*linalg.svd(a), *linalg.eigh(a), linalg.pinv(a)], a)
    near(found[1][0], linalg.svdvals(a[0]), 10)
    near(found[3][0], linalg.eigvalsh(a[0]), 10)
    for part in found:
        assert part[1].isnan().all()
    _, r = compiled(linalg.qr, a)
    near(r[0], linalg.qr(a[0]).R, 10)
    assert r[1].isnan().any()


def test_an_open_batch():
    batch = torch.export.Dim("batch")
    function = Function(
        lambda a: (linalg.svdvals(a), linalg.eigvalsh(a), linalg.qr(a)[1])
    )
    exe = tw.compile(
        function, random(2, 3, 3), dynamic_shapes=(({0: batch},),), threads=1
    )
    for n in (1, 5):
        a = random(n, 3, 3)
        for got, expected in zip(exe(a), function(a), strict=True):
            torch.testing.assert_close(got, expected)


TRAINED = {
    "svdvals": lambda a: linalg.svdvals(a).square(),
    "svd": lambda a: (lambda u, s, v: (u * s[..., None, :]) @ v + u @ v)(
        *linalg.svd(a, full_matrices=False)
    ),
    "eigh": lambda a: (lambda w, q: (q * w.exp()[..., None, :]) @ q.mT)(
        *linalg.eigh(a @ a.mT)
    ),
    "eigvalsh": lambda a: linalg.eigvalsh(a + a.mT),
    "qr": lambda a: (lambda q, r: q + r)(*linalg.qr(a)),
    "qr of tall matrices": lambda a: linalg.qr(a[..., :2])[0],
    "pinv": lambda a: linalg.pinv(a[..., :2]),
    "nuclear norm": lambda a: linalg.matrix_norm(a, "nuc"),
}


def test_they_are_trained():
    """By our kernels: that PyTorch runs a graph would be a warning, which is an error here."""

    def function(given):
        return {name: f(given[name]) for name, f in TRAINED.items()}

    a = random(2, 3, 3, seed=3)
    weights = {n: random(*f(a).shape, seed=1) for n, f in TRAINED.items()}
    torch._dynamo.reset()
    flows = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", TilewrightWarning)
        for f in (function, torch.compile(function, backend=backend)):
            x = {name: a.clone().requires_grad_() for name in TRAINED}
            sum((y * weights[n]).sum() for n, y in f(x).items()).backward()
            flows.append({name: t.grad for name, t in x.items()})
    for name in TRAINED:
        found = [flow[name] for flow in flows]
        torch.testing.assert_close(
            *found, rtol=1e-9, atol=1e-9, msg=lambda said, name=name: f"{name}: {said}"
        )


def test_least_squares_run_in_torch_between_graphs():
    """Their results have shapes that depend on ranks, so PyTorch splits the graph."""
    run = torch.compile(lambda a, b: linalg.lstsq(a * 2, b)[0] + 1, backend=backend)
    a, b = random(5, 3), random(5, 2)
    torch.testing.assert_close(run(a, b), linalg.lstsq(a * 2, b)[0] + 1)


def test_what_is_refused():
    with pytest.raises(UnsupportedError, match="eig"):
        compiled(lambda a: linalg.eig(a)[0].real, random(3, 3))
    size = torch.export.Dim("size")
    with pytest.raises(UnsupportedError, match="known only at run time"):
        tw.compile(
            Function(linalg.svdvals), random(4, 3), dynamic_shapes=(({0: size},),)
        )
