"""MDH's expressions for any types and sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright import mdh
from tilewright.base.errors import InputError
from tilewright.lang.mdh import (
    add,
    cc,
    float32,
    float64,
    inp_view,
    md_hom,
    mul,
    out_view,
    pw,
)
from tilewright.lang.mdh.syntax.catalog import CATALOG
from tilewright.loops.interp import run
from tilewright.loops.sizes import at


@mdh.generic
def MatMul(T: Any, M: Any, N: Any, K: Any) -> Any:
    return (
        out_view[T](C=[lambda i, j, k: (i, j)])
        @ md_hom[M, N, K](mul, (cc, cc, pw(add)))
        @ inp_view[T, T](A=[lambda i, j, k: (i, k)], B=[lambda i, j, k: (k, j)])
    )


@pytest.mark.parametrize(
    "T, kind",
    [(float32, np.float32), pytest.param(float64, np.float64, marks=pytest.mark.slow)],
)
def test_one_function_for_all_sizes_of_a_type(T: Any, kind: Any) -> None:
    f = mdh.build(MatMul[T], threads=2)
    rng = np.random.default_rng(0)
    for m, n, k in [(0, 3, 2), (2, 3, 0), (1, 1, 1), (17, 5, 3), (15, 40, 33)]:
        a, b = rng.random((m, k)).astype(kind), rng.random((k, n)).astype(kind)
        c = np.full((m, n), 7, kind)
        f(a, b, c)
        np.testing.assert_allclose(c, a @ b, rtol=1e-4)


def test_sizes_are_stated_left_out_or_mixed() -> None:
    assert (
        repr(MatMul[float32, 10, 500, 64].inputs)
        == "(A: float32[10, 64], B: float32[64, 500])"
    )
    half = MatMul[float32, mdh.size("R"), 500]
    assert repr(half.inputs) == "(A: float32[R, K], B: float32[K, 500])"
    assert half.name == "MatMul" and repr(MatMul) == "MatMul[T, M, N, K]"
    with pytest.raises(InputError, match="5 types and sizes given, 4 expected"):
        MatMul[float32, 1, 2, 3, 4]
    with pytest.raises(InputError, match="it returns 3, not an expression"):
        mdh.generic(lambda T: 3)[float32]
    with pytest.raises(
        InputError, match=r"the extent 2\.5 is not a number of iterations"
    ):
        MatMul[float32, 2.5]
    with pytest.raises(InputError, match="the name '1' is not an identifier"):
        mdh.size("1")


def _reads(*accesses: Any, n: Any, view: Any = float32) -> Any:
    return (
        out_view[float32](y=[lambda i: i])
        @ md_hom[n](lambda *x: x[0], (cc,))
        @ inp_view[view](x=list(accesses))
    )


def test_shapes_are_inferred_where_they_follow_and_stated_where_not() -> None:
    n = mdh.size("N")
    shifted = (
        out_view[float32](y=[lambda i: i])
        @ md_hom[n](lambda a, b: a + b, (cc,))
        @ inp_view[float32](x=[lambda i: i * 2 + 1, lambda i: i * 2])
    )
    assert repr(shifted.inputs[0]) == "x: float32[N * 2]"
    with pytest.raises(InputError, match="the index may be negative"):
        _reads(lambda i: i - 1, n=n)
    with pytest.raises(InputError, match="the size follows from i // 2 only where"):
        _reads(lambda i: i // 2, n=n)
    stated = _reads(lambda i: i // 2, n=n, view=mdh.buffer(float32, n))
    assert repr(stated.inputs[0]) == "x: float32[N]"


QUICK = ["Dot", "MatVec", "BiasAddGrad", "Jacobi2D", "MBBS", "PRL"]
SLOW = ["MatMulT", "bMatMul", "Conv2D", "CCSD(T) I1", "MCC"]


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)]
)
def test_the_papers_operators_for_all_sizes(name: str) -> None:
    make = CATALOG[name]
    words = make.__code__.co_varnames[: make.__code__.co_argcount]
    e = make(*map(mdh.size, words))
    plain = mdh.lower(e)
    f = mdh.build(e, threads=1)
    rng = np.random.default_rng(0)
    for least in (1, 6):
        sizes = {v: least + n for n, v in enumerate(plain.sizes)}
        arrays = []
        for b in plain.params:
            shape = [at(x, sizes) for x in b.extents]
            arrays.append(rng.integers(0, 3, shape).astype(b.dtype.numpy))
        expected = [a.copy() for a in arrays]
        run(plain, dict(zip(plain.params, expected, strict=True)))
        f(*arrays)
        for found, right in zip(arrays, expected, strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-4)
