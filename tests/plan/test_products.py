"""Products of one tensor with several constants: when they become one, and when not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx.parser
import onnx.reference
import pytest
from onnx import numpy_helper

import tilewright as tw
from tilewright.base import events
from tilewright.base.dtypes import float32
from tilewright.compute.build import map_, reduce_
from tilewright.compute.interp import run
from tilewright.compute.nodes import Computation
from tilewright.compute.transforms import map_outputs
from tilewright.driver.options import Options
from tilewright.driver.stages import planned
from tilewright.expr.nodes import Buffer, Le, Select, const
from tilewright.graph.nodes import Operation
from tilewright.ir.node import substitute
from tilewright.loops.nodes import Kernel, block
from tilewright.plan.nodes import FusionGroup, HostFallback, Step
from tilewright.plan.passes.products import merge_products
from tilewright.plan.verify import verify_steps
from tilewright.targets.registry import target

Steps = list[Step]
M, K = 4, 6
X, OTHER = Buffer("x", (M, K), float32), Buffer("o", (M, K), float32)


def free(group: Sequence[Computation], constants: Any = ()) -> float | None:
    """One kernel takes as long as any other."""
    return 0.0


class Model:
    """Groups with constants."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.data: dict[Buffer, Any] = {}
        self.steps: Steps = []

    def constant(self, *shape: int) -> Buffer:
        b = Buffer(f"c{len(self.data)}", shape, float32)
        self.data[b] = self.rng.integers(-3, 4, shape).astype(np.float32)
        return b

    def add(self, name: str, *computations: Computation) -> Buffer:
        self.steps.append(FusionGroup(name, computations, (name,)))
        return computations[-1].outputs[0].tensor

    def product(
        self,
        n: int,
        x: Buffer = X,
        weights: Buffer | None = None,
        bias: bool = False,
        after: Callable[[Any], Any] = lambda e: e,
        triangle: bool = False,
    ) -> Buffer:
        w = weights or self.constant(K, n)
        name = f"p{len(self.steps)}"
        out = Buffer(name, (M, n), float32)
        if not bias and not triangle:
            return self.add(name, matmul(name, out, x, w))
        acc, b = Buffer(f"{name}a", (M, n), float32), self.constant(n)
        r = matmul(name, acc, x, w)
        i, j = (d.var for d in r.dims[:2])

        def value(i: Any, j: Any) -> Any:
            e = after(acc[i, j] + b[j])
            return Select(Le(j, i), e, const(0.0, float32)) if triangle else e

        e = map_(f"{name}b", out, value)
        env = {d.var: v for d, v in zip(e.dims, (i, j), strict=True)}
        outputs = map_outputs(e, lambda v: substitute(v, dict(env)))
        return self.add(name, r, replace(e, dims=r.dims[:2], outputs=outputs))

    def read(self, b: Buffer) -> Buffer:
        out = Buffer(f"r{len(self.steps)}", b.shape, b.dtype)
        return self.add(out.name, map_(out.name, out, lambda i, j: b[i, j] * 2.0))

    def merged(self, keep: Sequence[Buffer] = (), cost: Any = free) -> int:
        """How many groups are left; they are sound, and what leaves the model is what it was."""
        found, made = merge_products(self.steps, keep, self.data, cost)
        read = {b for s in self.steps for b in s.reads}
        results = [b for s in self.steps for b in s.writes[-1:] if b not in read]
        results += list(keep)
        memories = []
        for steps in (self.steps, found):
            verify_steps(steps, {X, OTHER, *self.data, *made}, results)
            memory = {**self.data, **made}
            rng = np.random.default_rng(1)
            for b in (X, OTHER):
                memory[b] = rng.integers(-3, 4, b.shape).astype(np.float32)
            for s in steps:
                if isinstance(s, FusionGroup) and s.kernel is None:
                    for b in s.writes:
                        memory.setdefault(b, np.full(b.shape, np.nan, b.dtype.numpy))
                    run(s.computations, memory)
            memories.append([memory[b] for b in results if b in memory])
        for a, b in zip(*memories, strict=True):
            np.testing.assert_array_equal(a, b)
        return len(found)


def matmul(name: str, out: Buffer, x: Buffer, w: Buffer) -> Computation:
    return reduce_(name, out, (K,), "add", lambda i, j, k: x[i, k] * w[k, j])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("widths", [(4, 4), (4, 8), (1, 3), (2, 5, 8)])
def test_products_of_one_tensor_are_one(widths: tuple[int, ...], bias: bool) -> None:
    m = Model()
    for y in [m.product(n, bias=bias) for n in widths]:
        m.read(y)
    assert m.merged() == 1 + len(widths)


def test_constants_lie_side_by_side() -> None:
    m = Model()
    for y in [m.product(2), m.product(3)]:
        m.read(y)
    first, second = m.data.values()
    _, made = merge_products(m.steps, (), m.data, free)
    (both,) = made.values()
    np.testing.assert_array_equal(both, np.concatenate([first, second], 1))


def test_what_has_the_same_weights_twice() -> None:
    m = Model()
    w = m.constant(K, 4)
    for y in [m.product(4, weights=w), m.product(4, weights=w)]:
        m.read(y)
    assert m.merged() == 3


def separate(build: Callable[[Model], Any], keep: int | None = None) -> None:
    """The groups of such a model stay as they are; keep: the one whose result does."""
    m = Model()
    build(m)
    kept = [] if keep is None else [m.steps[keep].writes[-1]]
    assert m.merged(kept) == len(m.steps)


def both(*parts: Callable[[Model], Buffer]) -> Callable[[Model], Any]:
    return lambda m: [m.read(y) for y in [p(m) for p in parts]]


def given(m: Model) -> Buffer:
    """A product whose weights are computed."""
    w = m.add("w", map_("w", Buffer("w", (K, 4), float32), lambda k, j: OTHER[j, k]))
    return m.product(4, weights=w)


APART: dict[str, Callable[[Model], Any]] = {
    "of different tensors": both(lambda m: m.product(4), lambda m: m.product(4, OTHER)),
    "with weights that are computed": both(lambda m: m.product(4), given),
    "with and without a map": both(
        lambda m: m.product(4), lambda m: m.product(4, bias=True)
    ),
    "with different maps": both(
        lambda m: m.product(4, bias=True),
        lambda m: m.product(4, bias=True, after=lambda e: e * 2.0),
    ),
    "with what depends on the column": both(
        lambda m: m.product(4, triangle=True), lambda m: m.product(4, triangle=True)
    ),
}


@pytest.mark.parametrize("name", APART)
def test_what_differs_in_more_than_constants_stays(name: str) -> None:
    separate(APART[name])


@pytest.mark.parametrize("keep", [0, 1])
def test_a_result_of_the_model_stays(keep: int) -> None:
    separate(both(lambda m: m.product(4), lambda m: m.product(4)), keep)


def test_the_second_may_not_depend_on_the_first() -> None:
    """x W, and (x W) V of the same shapes."""
    m = Model()
    y = m.product(K)
    m.read(m.product(4, y))
    assert m.merged() == 3


def test_what_a_kernel_or_a_host_call_reads_stays() -> None:
    m = Model()
    y, z = m.product(4), m.product(4)
    m.read(z)
    out = Buffer("k", (M, 4), float32)
    own = FusionGroup("own", (), kernel=Kernel("own", (y, out), (out,), block()))
    found, made = merge_products([*m.steps, own], (), m.data, free)
    assert len(found) == 4 and not made
    call = HostFallback(Operation("Own", (), (), {}, "", 1, "call"), (y,))
    found, made = merge_products([*m.steps, call], {y}, m.data, free)
    assert len(found) == 4 and not made


def test_a_result_written_in_parts_stays() -> None:
    """Half of each result is written by another group."""
    m = Model()
    w = m.constant(K, 2)
    out = Buffer("out", (M, 4), float32)
    left = matmul("left", out, X, w)
    m.add(
        "left",
        replace(left, dims=(left.dims[0], replace(left.dims[1], size=2), left.dims[2])),
    )
    m.add("right", map_("right", out, lambda i, j: X[i, j], extents=(M, 2),
                        index=lambda i, j: (i, j + 2)))  # fmt: skip
    m.read(out)
    m.read(m.product(4))
    assert m.merged() == len(m.steps)


def test_what_costs_more_stays_and_is_reported() -> None:
    m = Model()
    for y in [m.product(4), m.product(4)]:
        m.read(y)

    def wide(group: Sequence[Computation], constants: Any = ()) -> float | None:
        n = group[-1].outputs[0].tensor.shape[-1]
        return 9e3 if n > 4 else 4e3

    with events.record() as log:
        assert m.merged(cost=wide) == 4
    said = {e.fields["reason"] for e in log if e.kind == "not-fused"}
    assert said == {"one kernel is expected to take 9.0 us, 8.0 us separately"}
    assert m.merged(cost=lambda group, constants=(): None) == 4


def test_readers_that_it_slows_down_count() -> None:
    m = Model()
    for y in [m.product(4), m.product(4)]:
        m.read(y)

    def far(group: Sequence[Computation], constants: Any = ()) -> float | None:
        return 5.0 if group[-1].is_map and group[-1].inputs[0].shape[-1] > 4 else 1.0

    assert m.merged(cost=far) == 4


# -- whole models


def heads(queries: int, values: int) -> onnx.ModelProto:
    """An encoder's projections into heads, in two arrangements, and what reads them."""
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
    heads (float[5,16] x) => (float[4,5,{queries // 4}] y, float[4,5,{values // 4}] z) {{
      qs = Constant<value_ints = [5, 4, {queries // 4}]>()
      vs = Constant<value_ints = [5, 4, {values // 4}]>()
      a = MatMul(x, wq) q = Add(a, bq) h = Reshape(q, qs)
      t = Transpose<perm = [1, 0, 2]>(h) y = Softmax<axis = -1>(t)
      b = MatMul(x, wv) v = Add(b, bv) g = Reshape(v, vs)
      u = Transpose<perm = [1, 0, 2]>(g) z = Softmax<axis = -1>(u)
    }}"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(4)
    shapes = {
        "wq": (16, queries),
        "bq": (queries,),
        "wv": (16, values),
        "bv": (values,),
    }
    for name, shape in shapes.items():
        array = rng.standard_normal(shape, dtype=np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


@pytest.mark.covering(1)
@pytest.mark.parametrize("mcpu", ["x86-64-v2", "x86-64-v3", "native"])
@pytest.mark.parametrize(("queries", "values"), [(64, 64), (32, 64), (64, 16)])
def test_heads(mcpu: str, queries: int, values: int) -> None:
    if not target("cpu", mcpu).runs_here:
        pytest.skip(f"this machine does not run {mcpu}")
    model = heads(queries, values)
    x = np.random.default_rng(5).standard_normal((5, 16), dtype=np.float32)
    want: Any = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    exe: Any = tw.compile(model, mcpu=mcpu, cache=False, records=False)
    for got, expected in zip(exe(x), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_triangles_of_two_products() -> None:
    """Trilu of the second counts its own columns."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
    triangles (float[16,16] x) => (float[16,16] y) {
      a = MatMul(x, wa) c = Add(a, ba) t = Trilu<upper = 0>(c)
      b = MatMul(x, wb) d = Add(b, bb) u = Trilu<upper = 0>(d) y = MatMul(t, u)
    }""")
    rng = np.random.default_rng(6)
    for name, shape in {"wa": (16, 16), "wb": (16, 16), "ba": 16, "bb": 16}.items():
        array = rng.standard_normal(shape, dtype=np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    x = rng.standard_normal((16, 16), dtype=np.float32)
    want: Any = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    got: Any = tw.compile(model, cache=False, records=False)(x)
    np.testing.assert_allclose(got, want[0], rtol=1e-4, atol=1e-4)


def test_heads_of_one_size_are_one_product() -> None:
    """Their result has the heads of both, one after another."""
    plan, _ = planned(heads(64, 64), (), None, Options(records=False))
    (product,) = (g for g in plan.groups if not g.computations[0].is_map
                  and len(g.sources) > 2 and g.computations[0].reducer.name == "add")  # fmt: skip
    assert product.writes[-1].shape == (8, 5, 16)
    (text,) = {str(plan)}
    assert "bq" in text
