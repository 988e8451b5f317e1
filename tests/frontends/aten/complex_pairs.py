"""Complex tensors: parts moved alike, arithmetic and functions of numbers, and their edges."""

import math

import torch

from tests.frontends.aten.tensors import x

F = torch.nn.functional
T = torch.tensor
Z = torch.view_as_complex
AT = T([[0, 1], [3, 2], [1, 1]])
FIRST = T([2, 0])
# Zeros, axes, a negative zero, and parts whose squares overflow or vanish.
EDGES = T(
    [[0.0, 0.0], [-4.0, 0.0], [-4.0, -0.0], [0.0, -2.0], [3e30, -4e30], [1e-30, 2e-30]]
)


def of(function):
    """A function of two complex tensors, as one of pairs."""

    def run(a, b):
        found = function(Z(a), Z(b))
        parts = found if isinstance(found, list | tuple) else [found]
        return [torch.view_as_real(p) if p.is_complex() else p for p in parts]

    return run, x(3, 4, 2), x(3, 4, 2, seed=1)


def edges(function):
    return lambda a: torch.view_as_real(function(Z(a))), EDGES


CASES = {
    "complex parts written": of(
        lambda z, w: (
            z.slice_scatter(w[:, :2], 1, 1, 3),
            z.select_scatter(w[0], 0, 1),
            z.diagonal_scatter(w[:, 0]),
            z.index_put((FIRST,), w[:2], accumulate=True),
            z.scatter(1, AT[:, :1], w),
            z.scatter(1, AT[:, :1], 2.5),
            z.scatter_add(1, AT, w),
            z.put(FIRST, w[0, :2]),
            z.index_add(0, FIRST, w[:2], alpha=2),
            z.masked_fill(w.real > 0, 2.0),
            torch.where(w.real > 0, z, 0.5),
        )
    ),
    "complex numbers moved": of(
        lambda z, w: (
            torch.cat([z, w.real, w], 1),
            torch.stack([z, w]),
            z[FIRST],
            z.gather(1, AT),
            z.tril(),
            F.pad(z, (1, 2), value=1.5),
            F.pad(z, (1, 2, 0, -1)),
            z.repeat(2, 1),
            *[p * 2 for p in z.split(2, 1)],
            *[p * 2 for p in w.unbind(0)],
        )
    ),
    "complex numbers made": of(
        lambda z, w: (
            torch.full((3, 4), 1 + 2j) * z,
            torch.full_like(z, 1 - 1j),
            torch.ones(4, dtype=z.dtype) + z,
            torch.ones_like(w) * w,
            torch.zeros(4, dtype=z.dtype) - z,
            z.new_zeros(2),
            z.new_full((2,), 3.0),
            torch.tensor(2j) * z,
        )
    ),
    "complex sums": of(
        lambda z, w: (z.sum(), z.sum(1), w.mean(0, keepdim=True), z.cumsum(1), z.norm())
    ),
    "complex products of matrices": of(
        lambda z, w: (
            z @ w.mT,
            z.mH @ w,
            torch.bmm(z[None], w.mH[None]),
            z @ w[0],
            torch.addmm(z[:, :3], z, w.mT, beta=2, alpha=1j),
            torch.addmm(torch.full((3, 3), complex("inf")), z, w.mT, beta=0),
            torch.addmv(w[:, 0], z, w[0]),
            torch.einsum("ab,cb->ac", z, w.conj()),
        )
    ),
    "complex sums and quotients": of(
        lambda z, w: (
            torch.sub(z, w, alpha=2),
            torch.add(z, w, alpha=2j),
            1j - z,
            torch.rsub(z, w, alpha=3),
            torch.addcmul(z, z, w, value=2),
            torch.lerp(z, w, 0.3),
            torch.lerp(z, w, 0.8),
            z / w,
            z / w.real,
            z.real / w,
            2 / z,
            z / (1 + 2j),
            z.reciprocal(),
        )
    ),
    "complex functions": of(
        lambda z, w: (z.exp(), z.log(), z.sqrt(), z.angle(), z.sin(), z.cos())
    ),
    "complex powers": of(
        lambda z, w: (
            *[
                z.cdouble() ** n
                for n in (0, 1, 2, 3, -1, -2, 0.5, 9, 2.5, 1j, math.nan)
            ],
            z.cdouble() ** w,
            2 ** z.cdouble(),
        )
    ),
    "complex numbers compared": of(
        lambda z, w: (z == w, z != z.clone(), z.real + 0j == z.real, torch.isnan(z / 0))
    ),
    "signs of conjugates": of(lambda z, w: (z.conj().imag, (-z).conj().imag + 1)),
    "complex roots at edges": edges(torch.sqrt),
    "complex logarithms near one": (
        lambda a: (
            torch.view_as_real(torch.log1p(Z(a))),
            torch.view_as_real(torch.logaddexp(Z(a), Z(a.flip(0)))),
        ),
        torch.cat(
            [
                EDGES[:4],
                EDGES[4:] * 1e-20,
                x(9, 2),
                x(9, 2) * 1e-4,
                T([[-1.0, 0.0], [-1.0, 1e-3], [1e-9, 2e-3], [-0.5, 0.1]]),
            ]
        ),
    ),
    "complex quotients at edges": edges(lambda z: torch.full_like(z, 3e30 + 1e30j) / z),
    "complex angles at edges": (lambda a: Z(a).angle(), EDGES),
}
