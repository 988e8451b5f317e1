"""The cases of `benchmarks.contractions`: an MDH expression, and the same in other engines.

Sizes are those of the papers. Each engine runs the code that its users would write: it gets the
arrays once and returns a function without arguments; conversions are not timed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tilewright.lang.mdh.syntax.catalog import CATALOG

Arrays = Sequence[Any]
# From the arrays to the timed function, which returns the results.
Engine = Callable[..., Callable[[], Arrays]]


@dataclass(frozen=True)
class Case:
    """operations: floating-point ones per point of all dimensions (for PRL, comparisons too).

    least: the sizes of a quick check. tolerance: of a result, relative to its greatest element.
    """

    name: str
    catalog: str
    sizes: tuple[int, ...]
    least: tuple[int, ...]
    operations: int
    numpy: Engine
    torch: Engine
    numba: Engine
    tolerance: float = 1e-5
    most: int = 0

    def expression(self) -> Any:
        """The expression at the case's size."""
        return CATALOG[self.catalog](*self.sizes)

    def small(self) -> Case:
        """The case at a size that takes no time."""
        return replace(self, sizes=self.least)

    def inputs(self, rng: np.random.Generator) -> list[Any]:
        """Arrays for the inputs: normal floats, integers below `most`."""
        found = []
        for b in self.expression().inputs:
            if b.dtype.is_float:
                found.append(rng.standard_normal(b.shape, np.float32))
            elif len(b.shape) == 1:
                found.append(np.arange(b.size, dtype=b.dtype.numpy))
            else:
                found.append(rng.integers(0, self.most, b.shape, b.dtype.numpy))
        return found

    @property
    def flops(self) -> int:
        """Operations of one call."""
        return self.operations * math.prod(self.sizes)

    @property
    def nbytes(self) -> int:
        """Bytes of all inputs and results, each once."""
        e = self.expression()
        return sum(b.size * b.dtype.itemsize for b in (*e.inputs, *e.results))


def _tensors(arrays: Arrays) -> list[Any]:
    import torch

    return [torch.from_numpy(a) for a in arrays]


def _compiled(loops: Callable[..., None]) -> Callable[..., None]:
    import numba

    return numba.njit(parallel=True, fastmath=True)(loops)  # type: ignore[no-any-return]


# -- CCSD(T)


def _einsum(spec: str) -> Engine:
    def make(*arrays: Any) -> Callable[[], Arrays]:
        return lambda: [np.einsum(spec, *arrays, optimize=True)]

    return make


def _torch_einsum(spec: str) -> Engine:
    def make(*arrays: Any) -> Callable[[], Arrays]:
        import torch

        tensors = _tensors(arrays)
        return lambda: [torch.einsum(spec, *tensors)]

    return make


def _numba_ccsdt(exchanged: bool) -> Engine:
    """The loops in the order of the result; exchanged: b and c change their places (I2)."""

    def make(left: Any, right: Any) -> Callable[[], Arrays]:
        _, d, a, last = left.shape
        e, f, _, other = right.shape
        b, c = (other, last) if exchanged else (last, other)
        result = np.empty((a, b, c, d, e, f), np.float32)
        seen = result.transpose(0, 2, 1, 3, 4, 5) if exchanged else result
        loops = _compiled(_ccsdt())

        def run() -> Arrays:
            loops(left, right, seen)
            return [result]

        return run

    return make


def _ccsdt() -> Callable[..., None]:
    from numba import prange

    def loops(A, B, C):  # type: ignore[no-untyped-def]
        na, nb, nc, nd, ne, nf = C.shape
        for ab in prange(na * nb):
            a, b = ab // nb, ab % nb
            for c in range(nc):
                for d in range(nd):
                    for e in range(ne):
                        for f in range(nf):
                            total = np.float32(0)
                            for g in range(A.shape[0]):
                                total += A[g, d, a, b] * B[e, f, g, c]
                            C[a, b, c, d, e, f] = total

    return loops


# -- convolution


def _numpy_mcc(image: Any, filters: Any) -> Callable[[], Arrays]:
    r, s = filters.shape[1:3]
    windows = sliding_window_view(image, (r, s), axis=(1, 2))
    return lambda: [np.einsum("npqcrs,krsc->npqk", windows, filters, optimize=True)]


def _torch_mcc(image: Any, filters: Any) -> Callable[[], Arrays]:
    from torch.nn.functional import conv2d

    x, w = (t.permute(0, 3, 1, 2) for t in _tensors([image, filters]))
    return lambda: [conv2d(x, w).permute(0, 2, 3, 1)]


def _numba_mcc(image: Any, filters: Any) -> Callable[[], Arrays]:
    from numba import prange

    def loops(image, filters, out):  # type: ignore[no-untyped-def]
        n, p, q, k = out.shape
        _, r, s, c = filters.shape
        for pk in prange(p * k):
            y, z = pk // k, pk % k
            for b in range(n):
                for x in range(q):
                    total = np.float32(0)
                    for i in range(r):
                        for j in range(s):
                            for m in range(c):
                                total += image[b, y + i, x + j, m] * filters[z, i, j, m]
                    out[b, y, x, z] = total

    n, h, w, _ = image.shape
    k, r, s, _ = filters.shape
    result = np.empty((n, h - r + 1, w - s + 1, k), np.float32)
    compiled = _compiled(loops)

    def run() -> Arrays:
        compiled(image, filters, result)
        return [result]

    return run


# -- stencils


def _five(x: Any) -> Any:
    middle = x[1:-1, 1:-1]
    return (middle + x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]) * 0.2


def _seven(x: Any) -> Any:
    m = slice(1, -1)
    around = x[:-2, m, m] + x[2:, m, m] + x[m, :-2, m] + x[m, 2:, m]
    around = around + x[m, m, :-2] + x[m, m, 2:]
    return x[m, m, m] * 0.4 + around * 0.1


def _numpy_stencil(step: Callable[[Any], Any]) -> Engine:
    return lambda x: lambda: [step(x)]


def _torch_stencil(step: Callable[[Any], Any]) -> Engine:
    def make(x: Any) -> Callable[[], Arrays]:
        (t,) = _tensors([x])
        return lambda: [step(t)]

    return make


def _numba_jacobi2d(x: Any) -> Callable[[], Arrays]:
    from numba import prange

    def loops(x, y):  # type: ignore[no-untyped-def]
        fifth = np.float32(0.2)
        for i in prange(y.shape[0]):
            for j in range(y.shape[1]):
                total = x[i + 1, j + 1] + x[i, j + 1] + x[i + 2, j + 1]
                y[i, j] = (total + x[i + 1, j] + x[i + 1, j + 2]) * fifth

    return _numba_stencil(loops, x)


def _numba_jacobi3d(x: Any) -> Callable[[], Arrays]:
    from numba import prange

    def loops(x, y):  # type: ignore[no-untyped-def]
        center, around = np.float32(0.4), np.float32(0.1)
        for i in prange(y.shape[0]):
            for j in range(y.shape[1]):
                for k in range(y.shape[2]):
                    total = x[i, j + 1, k + 1] + x[i + 2, j + 1, k + 1]
                    total += x[i + 1, j, k + 1] + x[i + 1, j + 2, k + 1]
                    total += x[i + 1, j + 1, k] + x[i + 1, j + 1, k + 2]
                    y[i, j, k] = x[i + 1, j + 1, k + 1] * center + total * around

    return _numba_stencil(loops, x)


def _numba_stencil(loops: Callable[..., None], x: Any) -> Callable[[], Arrays]:
    result = np.empty([n - 2 for n in x.shape], np.float32)
    compiled = _compiled(loops)

    def run() -> Arrays:
        compiled(x, result)
        return [result]

    return run


# -- record linkage

_WORTH = (4.0, 2.5, 1.0)


def _numpy_prl(new: Any, existing: Any, key: Any) -> Callable[[], Arrays]:
    def run() -> Arrays:
        total = np.zeros((len(new), len(existing)), np.float32)
        for field, worth in enumerate(_WORTH):
            same = new[:, None, field] == existing[None, :, field]
            total += np.where(same, np.float32(worth), np.float32(-worth))
        best = total.argmax(axis=1)
        return [np.take_along_axis(total, best[:, None], 1)[:, 0], key[best]]

    return run


def _torch_prl(new: Any, existing: Any, key: Any) -> Callable[[], Arrays]:
    import torch

    n, e, k = _tensors([new, existing, key])

    def run() -> Arrays:
        total = torch.zeros(len(n), len(e))
        for field, worth in enumerate(_WORTH):
            same = n[:, None, field] == e[None, :, field]
            total += torch.where(same, worth, -worth)
        found = total.max(dim=1)
        return [found.values, k[found.indices]]

    return run


def _numba_prl(new: Any, existing: Any, key: Any) -> Callable[[], Arrays]:
    from numba import prange

    def loops(new, existing, key, weight, match):  # type: ignore[no-untyped-def]
        for i in prange(new.shape[0]):
            top, where = np.float32(-np.inf), np.int64(0)
            for j in range(existing.shape[0]):
                total = (
                    np.float32(4.0) if new[i, 0] == existing[j, 0] else np.float32(-4.0)
                )
                total += (
                    np.float32(2.5) if new[i, 1] == existing[j, 1] else np.float32(-2.5)
                )
                total += (
                    np.float32(1.0) if new[i, 2] == existing[j, 2] else np.float32(-1.0)
                )
                if total > top or (total == top and key[j] < where):
                    top, where = total, key[j]
            weight[i], match[i] = top, where

    results = [np.empty(len(new), np.float32), np.empty(len(new), np.int64)]
    compiled = _compiled(loops)

    def run() -> Arrays:
        compiled(new, existing, key, *results)
        return results

    return run


_I1, _I2 = "gdab,efgc->abcdef", "gdac,efgb->abcdef"
_ORBITALS, _FEW = (24, 16, 16, 24, 16, 16, 24), (3, 4, 2, 5, 4, 16, 6)

CASES = (
    Case("ccsdt-i1", "CCSD(T) I1", _ORBITALS, _FEW, 2,
         _einsum(_I1), _torch_einsum(_I1), _numba_ccsdt(False)),
    Case("ccsdt-i2", "CCSD(T) I2", _ORBITALS, _FEW, 2,
         _einsum(_I2), _torch_einsum(_I2), _numba_ccsdt(True)),
    Case("mcc", "MCC", (1, 7, 7, 512, 3, 3, 512), (1, 5, 4, 8, 3, 3, 16), 2,
         _numpy_mcc, _torch_mcc, _numba_mcc, tolerance=1e-4),
    Case("prl", "PRL", (1024, 1024), (16, 48), 6,
         _numpy_prl, _torch_prl, _numba_prl, most=7),
    Case("jacobi2d", "Jacobi2D", (4096, 4096), (30, 50), 5,
         _numpy_stencil(_five), _torch_stencil(_five), _numba_jacobi2d),
    Case("jacobi3d-256", "Jacobi3D", (256, 256, 256), (10, 12, 20), 8,
         _numpy_stencil(_seven), _torch_stencil(_seven), _numba_jacobi3d),
    Case("jacobi3d-512", "Jacobi3D", (512, 512, 512), (10, 12, 20), 8,
         _numpy_stencil(_seven), _torch_stencil(_seven), _numba_jacobi3d),
)  # fmt: skip
