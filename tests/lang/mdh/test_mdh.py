"""The face: fused, lowered, scheduled, built; BERT's attention mask on all ways to one kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tilewright.base.errors import CompileError, InputError, UnsupportedError
from tilewright.compute.canonical import canonical
from tilewright.compute.merge import merge_dims
from tilewright.driver.compilation import optimize
from tilewright.driver.options import Options
from tilewright.driver.planning import make_plan
from tilewright.driver.sources import import_model
from tilewright.lang import mdh
from tilewright.lang.mdh import add, cc, float32, inp_view, md_hom, mul, out_view, pw
from tilewright.lang.mdh.syntax.catalog import (
    bert_mask,
    binary,
    dot,
    expand_dims,
    mat_mul,
)
from tilewright.plan.nodes import FusionGroup
from tilewright.targets.registry import target

B, N = 3, 40
MODEL = f"""
<ir_version: 10, opset_import: ["" : 21]>
mask (float[{B}, {N}, 1] IB1, float[{B}, 1, {N}] IB2) => (float[{B}, 1, {N}, {N}] OB1)
<int64[1] axis = {{1}}, float one = {{1.0}}, float far = {{-10000.0}}> {{
  M = Mul (IB1, IB2)
  X = Unsqueeze (M, axis)
  S = Sub (one, X)
  OB1 = Mul (S, far)
}}
"""


def operators() -> list[mdh.Expression]:
    """Mul, ExpandDims, Sub and Mul, each an expression of its own."""
    product = (
        out_view[float32](M=[lambda i, j, k: (i, j, k)])
        @ md_hom[B, N, N](mul, (cc, cc, cc), name="product")
        @ inp_view[float32, float32](
            IB1=[lambda i, j, k: (i, j, 0)], IB2=[lambda i, j, k: (i, 0, k)]
        )
    )
    expanded = (
        out_view[float32](X=[lambda i, j, k: (i, 0, j, k)])
        @ md_hom[B, N, N](lambda m: m, (cc, cc, cc), name="expand_dims")
        @ inp_view[product](m=[lambda i, j, k: (i, j, k)])
    )

    def pointwise(f: Any, of: mdh.Expression, name: str, to: str) -> mdh.Expression:
        return (
            out_view[float32](**{to: [lambda *i: i]})
            @ md_hom[B, 1, N, N](f, (cc, cc, cc, cc), name=name)
            @ inp_view[of](x=[lambda *i: i])
        )

    inverted = pointwise(lambda x: 1.0 - x, expanded, "sub", "S")
    return [
        product,
        expanded,
        inverted,
        pointwise(lambda x: x * -10000.0, inverted, "mul", "OB1"),
    ]


def inputs() -> list[Any]:
    rng = np.random.default_rng(0)
    shapes = ((B, N, 1), (B, 1, N))
    return [rng.integers(0, 2, s).astype(np.float32) for s in shapes]


def expected(x: Any, y: Any) -> Any:
    return (1.0 - (x * y)[:, None]) * np.float32(-10000.0)


def test_four_operators_become_the_one_expression() -> None:
    assert mdh.equal(mdh.fuse(*operators()), bert_mask(B, N))


def test_the_graph_of_four_nodes_becomes_the_one_expression() -> None:
    options = Options.of({})
    model = import_model(onnx.parser.parse_model(MODEL), (), options)
    graph = optimize(model, options, target())
    assert [n.op_type for n in graph.operations] == ["Mul", "Unsqueeze", "Sub", "Mul"]
    (stage,) = make_plan(graph, target()).steps
    assert isinstance(stage, FusionGroup)
    (made,) = stage.computations
    # A graph's tensors may be seen with fewer axes; so may those of the expression.
    assert _merged(made) == _merged(bert_mask(B, N))


def _merged(c: Any) -> str:
    (c,), views = merge_dims([c])
    return canonical([c], [views.get(b, b) for b in (*c.inputs, c.outputs[0].tensor)])


@pytest.mark.parametrize("way", ["fused", "four", "schedule", "interp"])
def test_the_mask_runs(way: str) -> None:
    x, y = inputs()
    out = np.empty((B, 1, N, N), np.float32)
    built = {
        "fused": lambda: mdh.build(mdh.fuse(*operators(), name="mask")),
        "four": lambda: mdh.build(*operators()),
        "schedule": lambda: mdh.build(mdh.schedule(bert_mask(B, N), target="cpu")),
        "interp": lambda: mdh.build(bert_mask(B, N), target="interp"),
    }[way]()
    built(x, y, out)
    np.testing.assert_array_equal(out, expected(x, y))


def test_a_simulated_machine_gets_the_plain_nests() -> None:
    with pytest.raises(CompileError, match=r"no instruction performs `OB1\["):
        mdh.build(bert_mask(B, N), target="vdla")


def test_the_same_as_the_model() -> None:
    x, y = inputs()
    exe = tw.compile(onnx.parser.parse_model(MODEL))
    assert len(exe.profile(x, y).rows) == 1
    np.testing.assert_array_equal(exe(x, y), expected(x, y))


def test_a_schedule_by_hand() -> None:
    e = mat_mul(16, 32, 8)
    s = mdh.schedule(e)
    s.reorder("mat_mul.j", "mat_mul.i")
    s.vectorize(s.split("mat_mul.j", 8)[1])
    a, b = (np.random.default_rng(0).random(t.shape, np.float32) for t in e.inputs)
    out = np.empty((16, 32), np.float32)
    mdh.build(s)(a, b, out)
    np.testing.assert_allclose(out, a @ b, rtol=1e-5)


def test_the_kernel_has_inputs_first_and_the_result_last() -> None:
    kernel = mdh.lower(*operators(), name="mask")
    assert kernel.name == "mask"
    assert [b.name for b in kernel.params] == ["IB1", "IB2", "OB1"]


def test_names_of_loops_stay_apart() -> None:
    first = binary(mul, "mul", 4, 5)
    second = (
        out_view[float32](w=[lambda i, j: (i, j)])
        @ md_hom[4, 5](lambda z: z + 1.0, (cc, cc), name="mul")
        @ inp_view[first](z=[lambda i, j: (i, j)])
    )
    text = repr(mdh.lower(first, second))
    assert "mul.i in 4" in text and "mul2.i in 4" in text


def test_a_reduction_does_not_vanish_in_its_reader() -> None:
    total = dot(9)
    shifted = (
        out_view[float32](y=[lambda i: i])
        @ md_hom[4](lambda x, d: x - d, (cc,), name="shift")
        @ inp_view[float32, total](x=[lambda i: i], d=[lambda i: ()])
    )
    with pytest.raises(UnsupportedError, match="dot cannot be composed into shift"):
        mdh.fuse(total, shifted)
    a, b, x = (np.ones(n, np.float32) for n in (9, 9, 4))
    y = np.empty(4, np.float32)
    mdh.build(total, shifted)(a, b, x, y)
    assert (y == -8).all()


def test_a_map_goes_into_a_reduction() -> None:
    squares = (
        out_view[float32](s=[lambda i, j: (i, j)])
        @ md_hom[4, 6](lambda x: x * x, (cc, cc), name="square")
        @ inp_view[float32](x=[lambda i, j: (i, j)])
    )
    norms = (
        out_view[float32](n=[lambda i, j: i])
        @ md_hom[4, 6](lambda s: s, (cc, pw(add)), name="sum")
        @ inp_view[squares](s=[lambda i, j: (i, j)])
    )
    fused = mdh.fuse(squares, norms)
    assert "lambda x: x * x, (cc, pw(add))" in mdh.show(fused)


def test_reshapes_vanish() -> None:
    x = expand_dims(1, 3, 4)
    read = (
        out_view[float32](z=[lambda i, j: (j, i)])
        @ md_hom[3, 4](lambda v: v * 2.0, (cc, cc), name="double")
        @ inp_view[x](v=[lambda i, j: (i, 0, j)])
    )
    assert "lambda i, j: (i, j)" in mdh.show(mdh.fuse(x, read))


def test_tensors_of_one_name() -> None:
    first = expand_dims(0, 4)
    second = (
        out_view[float32](z=[lambda i: i])
        @ md_hom[4](lambda a, b: a + b, (cc,))
        @ inp_view[first, float32](a=[lambda i: (0, i)], x=[lambda i: i])
    )
    with pytest.raises(InputError, match="two tensors are called x"):
        mdh.lower(first, second)


def test_nothing_to_build() -> None:
    for f in (mdh.build, mdh.lower, mdh.schedule, mdh.fuse):
        with pytest.raises(InputError, match="no expression"):
            f()
    with pytest.raises(InputError, match="one schedule makes one function"):
        mdh.build(mdh.schedule(dot(4)), dot(4))


def test_the_module_is_public_and_lists_its_words() -> None:
    assert tw.mdh is mdh
    assert {"md_hom", "add", "float32", "exp"} <= set(mdh.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = mdh.nothing
