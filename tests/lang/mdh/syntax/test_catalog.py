"""The operators of the papers: against NumPy, interpreted and compiled, and as text and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.base.dtypes import int64
from tilewright.compute.canonical import canonical
from tilewright.compute.interp import evaluate
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import const
from tilewright.expr.python import select
from tilewright.lang import mdh
from tilewright.lang.mdh.syntax import Expression, parse, pw_custom_func, show
from tilewright.lang.mdh.syntax import catalog as c
from tilewright.lang.mdh.syntax.operators import OPERATORS

Arrays = list[Any]


def windows(x: Any, *shape: int) -> Any:
    return np.lib.stride_tricks.sliding_window_view(x, shape)


def jacobi3d(x: Any) -> Any:
    m = x[1:-1, 1:-1, 1:-1]
    around = (
        x[:-2, 1:-1, 1:-1] + x[2:, 1:-1, 1:-1] + x[1:-1, :-2, 1:-1] + x[1:-1, 2:, 1:-1]
    )
    return 0.4 * m + 0.1 * (around + x[1:-1, 1:-1, :-2] + x[1:-1, 1:-1, 2:])


def jacobi2d(x: Any) -> Any:
    return 0.2 * (
        x[1:-1, 1:-1] + x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]
    )


def prl(new: Any, known: Any, keys: Any) -> Any:
    same = new[:, None, :] == known[None, :, :]
    worth = np.where(same, 1, -1) @ np.array([4.0, 2.5, 1.0])
    best = worth.max(axis=1)
    at = [keys[worth[i] == best[i]].min() for i in range(len(new))]
    return [best, np.array(at)]


def mcc(image: Any, filters: Any) -> Any:
    r, s = filters.shape[1:3]
    seen = np.lib.stride_tricks.sliding_window_view(image, (r, s), axis=(1, 2))
    return np.einsum("npqcrs,krsc->npqk", seen, filters)


def mcc_capsule(image: Any, filters: Any) -> Any:
    r, s = filters.shape[1:3]
    seen = np.lib.stride_tricks.sliding_window_view(image, (r, s), axis=(1, 2))
    return np.einsum("npqcimrs,krscmj->npqkij", seen, filters)


def product(pattern: str) -> Callable[..., Any]:
    return lambda a, b: np.einsum(pattern, a, b)


@pw_custom_func(identity=(0.0, float("-inf")))
def sum_and_max(a: Any, b: Any) -> Any:
    return a[0] + b[0], select(a[1] < b[1], b[1], a[1])


# name: the expression, and what NumPy says
CASES: dict[str, tuple[Expression, Callable[..., Any]]] = {
    "Dot": (c.dot(100), np.dot),
    "MatVec": (c.mat_vec(5, 33), np.matmul),
    "MatMul": (c.mat_mul(9, 17, 6), np.matmul),
    "MatMulT": (c.mat_mul_t(5, 7, 6), lambda a, b: (a.T @ b.T).T),
    "bMatMul": (c.b_mat_mul(2, 3, 4, 5), np.matmul),
    "BatchMatMul": (c.batch_mat_mul(2, 3, 4, 5, 6), np.matmul),
    "BiasAddGrad": (c.bias_add_grad(20, 7), lambda x: x.sum(axis=0)),
    "CCSD(T) I1": (c.ccsdt_i1(2, 3, 4, 2, 3, 2, 5), product("gdab,efgc->abcdef")),
    "CCSD(T) I2": (c.ccsdt_i2(2, 3, 4, 2, 3, 2, 5), product("gdac,efgb->abcdef")),
    "Conv2D": (
        c.conv2d(8, 9, 3, 2),
        lambda i, f: np.einsum("pqrs,rs->pq", windows(i, 3, 2), f),
    ),
    "MCC": (c.mcc(2, 5, 5, 4, 3, 3, 2), mcc),
    "MCC_Capsule": (c.mcc_capsule(1, 4, 4, 3, 3, 3, 2, 2, 3, 2), mcc_capsule),
    "Jacobi1D": (c.jacobi1d(30), lambda x: windows(x, 3).mean(axis=1)),
    "Jacobi2D": (c.jacobi2d(10, 12), jacobi2d),
    "Jacobi3D": (c.jacobi3d(5, 6, 7), jacobi3d),
    "PRL": (c.prl(8, 20), prl),
    "Histo": (c.histo(50, 7), lambda e, b: (e[:, None] == b).sum(axis=0)),
    "GenHisto": (
        c.gen_histo(
            20,
            4,
            lambda e, b: select(e.eq(b), e * 3, const(0, int64)),
            OPERATORS["max"],
        ),
        lambda e, b: np.where(e[:, None] == b, 3 * e[:, None], 0).max(axis=0),
    ),
    "map": (c.map_(lambda x: x * x + 1.0, 40), lambda x: x * x + 1),
    "reduce": (c.reduce_(OPERATORS["max"], 40), np.max),
    "reduce2": (c.reduce2(sum_and_max, 40), lambda x: [x.sum(), x.max()]),
    "scan": (c.scan(OPERATORS["add"], 40), np.cumsum),
    "MBBS": (c.mbbs(6, 5), lambda a: a.sum(axis=1).cumsum()),
    "Mul": (c.binary(c.mul, "mul", 4, 5), np.multiply),
    "Sub": (c.binary(lambda x, y: x - y, "sub", 4, 5), np.subtract),
    "ExpandDims<0>": (c.expand_dims(0, 3, 4), lambda x: x[None]),
    "ExpandDims<1>": (c.expand_dims(1, 3, 4), lambda x: x[:, None]),
    "BERT mask": (c.bert_mask(2, 8), lambda x, y: (1.0 - x * y)[:, None] * -10000.0),
}


def text(e: Computation) -> str:
    results = dict.fromkeys(o.tensor for o in e.outputs)
    return canonical([e], [*e.inputs, *results])


def drawn(e: Expression) -> Arrays:
    rng = np.random.default_rng(len(e.name))
    return [rng.integers(0, 4, b.shape).astype(b.dtype.numpy) for b in e.inputs]


def expected(e: Expression, reference: Callable[..., Any], inputs: Arrays) -> Arrays:
    found = reference(*inputs)
    found = found if isinstance(found, list) else [found]
    assert len(found) == len(e.results)
    return [np.asarray(f) for f in found]


@pytest.mark.parametrize("name", CASES)
def test_means_what_numpy_says(name: str) -> None:
    e, reference = CASES[name]
    inputs = drawn(e)
    made = evaluate(e, dict(zip(e.inputs, inputs, strict=True)))
    for b, want in zip(e.results, expected(e, reference, inputs), strict=True):
        assert b.shape == want.shape
        np.testing.assert_allclose(made[b], want, rtol=1e-5)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("target", ["cpu", "interp"])
@pytest.mark.parametrize("name", CASES)
def test_runs(name: str, target: str) -> None:
    e, reference = CASES[name]
    inputs = drawn(e)
    outputs = [np.empty(b.shape, b.dtype.numpy) for b in e.results]
    mdh.build(e, target=target)(*inputs, *outputs)
    for made, want in zip(outputs, expected(e, reference, inputs), strict=True):
        np.testing.assert_allclose(made, want, rtol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_prints_and_parses_back(name: str) -> None:
    e, _ = CASES[name]
    again = parse(show(e))
    assert text(again) == text(e)
    assert show(again) == show(e)


def test_every_row_of_the_catalog_is_tried() -> None:
    tried = {name.split("<")[0] for name in CASES}
    assert set(c.CATALOG) <= tried


def test_printed_form(golden: Callable[[str, str], None]) -> None:
    shown = [f"# {name}\n{show(e)}" for name, (e, _) in CASES.items()]
    golden("mdh_catalog", "\n\n".join(shown))
