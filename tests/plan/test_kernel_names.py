"""Names in a kernel: of tensors, and of the Computations whose loops they are part of."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tilewright.base.dtypes import float32
from tilewright.compute.build import map_
from tilewright.expr.nodes import INDEX, Buffer, Load, Var
from tilewright.graph.interp import evaluate
from tilewright.loops.nodes import Alloc, Kernel, Store, block, loop
from tilewright.loops.verify import verify
from tilewright.plan.nodes import FusionGroup
from tilewright.plan.normalize import kernel_signature


def tensor() -> Buffer:
    return Buffer("t", (4,), float32)


def names(kernel: Kernel) -> list[str]:
    return [b.name for b in kernel.params]


def test_tensors_that_share_a_name() -> None:
    """An input, a result inside of the group, and its own result."""
    x, inner, y = tensor(), tensor(), tensor()
    group = FusionGroup(
        "g",
        (
            map_("a", inner, lambda i: x[i] + 1.0),
            map_("a", y, lambda i: inner[i] * x[i]),
        ),
    )
    signature = kernel_signature(group, {y})
    assert signature.values == (x, y)
    verify(signature.plain())
    assert names(signature.plain()) == ["t", "t_2"]
    (made,) = signature.computations[0].outputs
    assert made.tensor.name == "t_3"


def test_computations_named_as_the_second_of_others() -> None:
    x, y, z, last = (Buffer(name, (4,), float32) for name in "xyzw")
    group = FusionGroup(
        "g",
        (
            map_("a", y, lambda i: x[i] + 1.0),
            map_("a", z, lambda i: y[i] + 1.0),
            map_("a2", last, lambda i: z[i] + 1.0),
        ),
    )
    found = kernel_signature(group, {last}).computations
    assert [c.name for c in found] == ["a", "a2", "a22"]


def test_a_given_kernel_whose_tensors_share_a_name() -> None:
    x, y = tensor(), tensor()
    inner = Buffer("t", (4,), float32, "shared", swizzle=16)
    i, j = Var("i", INDEX), Var("j", INDEX)
    first = loop(i, 4, Store(inner, (i,), Load(x, (i,))))
    second = loop(j, 4, Store(y, (j,), Load(inner, (j,))))
    given = Kernel("k", (x, y), (y,), Alloc(inner, block(first, second)))
    signature = kernel_signature(FusionGroup("g", (), kernel=given), {y})
    assert signature.values == (x, y)
    verify(signature.plain())
    assert names(signature.plain()) == ["t", "t_2"]
    made: Any = signature.plain().body
    assert (made.buffer.name, made.buffer.swizzle) == ("t_3", 16)
    assert signature.on_values.params == (x, y)


def model(text: str) -> Any:
    head = '<ir_version: 10, opset_import: ["": 21]> g '
    return onnx.parser.parse_model(head + text)


X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)


@pytest.mark.representatives(
    "fixed-softmax_max", "fixed-softmax_exp", "range-softmax_max"
)
@pytest.mark.parametrize("name", ["softmax_max", "softmax_exp"])
@pytest.mark.parametrize("dims", [{"n": 2}, {"n": (1, 40)}], ids=["fixed", "range"])
def test_a_value_named_as_what_an_operator_computes_inside(
    name: str, dims: Any
) -> None:
    source = model(
        f"(float[n, 3, 4] {name}) => (float[n, 3, 4] y) {{ y = Softmax<axis=1>({name}) }}"
    )
    exe: Any = tw.compile(source, dims=dims, jit=False, threads=1)
    e = np.exp(X)
    np.testing.assert_allclose(exe(X), e / e.sum(1, keepdims=True), rtol=1e-5)


def test_what_two_operators_compute_alike() -> None:
    """The maxima of a derivative and of the function are one kernel with two results."""
    source = model(
        "(float[2, 3, 4] x) => (float y) <int64[1] a = {1}> {"
        " m = ReduceLogSumExp(x, a) p = Mul(m, m) y = ReduceSum<keepdims=0>(p) }"
    )
    graph = tw.grad(source, "x")
    (want,) = evaluate(graph, {"x": X}, float64=True).values()
    exe: Any = tw.compile(graph, threads=1)
    np.testing.assert_allclose(exe(X), want, rtol=1e-5, atol=1e-6)
