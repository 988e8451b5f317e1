"""A Kernel as a model: it runs as its schedule says, and its work is counted."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.base.dtypes import float32
from tilewright.base.errors import InputError
from tilewright.compute.reducer import Reducer
from tilewright.driver.kernels import KernelCompiler
from tilewright.expr.nodes import Expr, Max, const, var
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel, Update, loop
from tilewright.operators import Buffer, exp, map_, maximum, minimum, reduce_, where
from tilewright.plan.normalize import KernelSignature
from tilewright.schedule import Schedule
from tilewright.targets.registry import target


def product(m: int, n: int, k: int) -> Schedule:
    a, b, c = (
        Buffer(*x, float32) for x in (("a", (m, k)), ("b", (k, n)), ("c", (m, n)))
    )
    c_ = reduce_("mm", c, (k,), "add", lambda i, j, k: a[i, k] * b[k, j])
    return Schedule(lower("mm", [c_], [a, b, c], [c]))


@pytest.mark.parametrize("scheduled", [False, True])
def test_a_kernel_is_compiled_as_it_is(scheduled):
    s = product(6, 16, 5)
    if scheduled:
        outer, _ = s.split("mm.i", 2)
        s.parallel(outer)
    exe = tw.compile(s.kernel)
    rng = np.random.default_rng(0)
    a, b = (
        rng.standard_normal((6, 5), np.float32),
        rng.standard_normal((5, 16), np.float32),
    )
    np.testing.assert_allclose(exe(a, b), a @ b, rtol=1e-5, atol=1e-5)
    assert [t.name for t in exe.inputs] == ["a", "b"]
    assert exe.model.kernels[0].flops == 2 * 6 * 16 * 5
    with pytest.raises(InputError, match="missing inputs"):
        exe(a)


def test_scalar_functions_of_the_authors_door():
    x, y = Buffer("x", (33,), float32), Buffer("y", (33,), float32)

    def f(i):
        return where(x[i] < 0.0, exp(x[i]), minimum(maximum(x[i], 0.5), 2.0))

    exe = tw.compile(lower("f", [map_("f", y, f)], [x, y], [y]))
    v = np.linspace(-3, 3, 33, dtype=np.float32)
    np.testing.assert_allclose(
        exe(v), np.where(v < 0, np.exp(v), np.clip(v, 0.5, 2)), rtol=1e-6
    )
    from tilewright import operators

    with pytest.raises(AttributeError, match="no_such"):
        _ = operators.no_such


def test_operators_of_one_name_have_kernels_of_their_own() -> None:
    """The text of a kernel has its reducers by name; the key of the cache has what they do."""
    f32 = float32
    x, y = Buffer("x", (8,), f32), Buffer("y", (1,), f32)
    a, b, k = var("a", f32), var("b", f32), var("k")
    compiler = KernelCompiler(target(), target(), None)

    def key(result: Expr) -> str:
        op = Reducer("mine", (a,), (b,), (result,), (const(0, f32),))
        body = loop(k, 8, Update((y,), ((const(0),),), (x[k],), op))
        signature = KernelSignature(
            "s", (), Kernel("s", (x, y), (y,), body), (x, y), (x, y), (y,), (0, 0)
        )
        return compiler._key(signature, (False, False))

    assert key(a + b) == key(a + b) != key(Max(a, b))
