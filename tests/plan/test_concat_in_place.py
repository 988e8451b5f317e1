"""Concatenations of tensors that others read too: stored in place, not copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import onnx.reference
import pytest

import tilewright as tw
from tilewright.base import events
from tilewright.base.dtypes import float32, int64
from tilewright.expr.nodes import Buffer
from tilewright.operators import map_
from tilewright.plan.nodes import FusionGroup
from tilewright.plan.normalize import kernel_signature
from tilewright.plan.offsets import from_zero
from tilewright.plan.passes.concat_in_place import concat_in_place

rng = np.random.default_rng(3)


def agree(text: str, *, placed: int) -> None:
    """The model gives what ONNX's reference gives, and so many tensors have a place in another."""
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21]>\n{text}'
    )
    with events.record() as log:
        exe = tw.compile(model, cache=False)
    assert sum(e.kind == "placed" for e in log) == placed
    given = {
        i.name: rng.standard_normal(
            [d.dim_value for d in i.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for i in model.graph.input
    }
    want = onnx.reference.ReferenceEvaluator(model).run(None, given)
    for _ in range(2):
        got: Any = exe(*given.values())
        for g, w in zip(got if len(want) > 1 else [got], want, strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)


@pytest.mark.covering(1)  # each axis; wide and narrow
@pytest.mark.parametrize("axis", [0, 1, 2, 3])
@pytest.mark.parametrize(("width", "placed"), [(16, 2), (3, 0)], ids=["wide", "narrow"])
def test_a_dense_block_copies_what_is_narrow_only(
    axis: int, width: int, placed: int
) -> None:
    shape = [2, 16, 5, width]
    placed = placed if axis == 3 or width == 16 else 1 if axis == 2 else 2
    agree(
        f"""dense (float{shape} x) => (float y) {{
          a = Relu(x)
          s = ReduceSum(a)
          b = Mul(x, s)
          ab = Concat<axis={axis}>(a, b)
          t = ReduceSum(ab)
          c = Mul(x, t)
          abc = Concat<axis={axis}>(ab, c)
          y = ReduceMax(abc)
        }}""",
        placed=placed,
    )


def test_a_tensor_that_leaves_the_model_is_copied() -> None:
    agree(
        """leaves (float[4, 32] x) => (float[4, 32] a, float y) {
          a = Relu(x)
          b = Neg(x)
          ab = Concat<axis=1>(a, b)
          y = ReduceMax(ab)
        }""",
        placed=0,
    )


def test_running_sums_that_are_part_of_a_larger_tensor_run_on() -> None:
    """The scan writes rows of the larger one: it was one dimension with its copy, and summed up
    nothing."""
    agree(
        """sums (float[4, 32] x, float[4, 32] z) => (float[4, 32] w, float y) {
          k = Constant<value = int64 {1}>()
          r = Relu(x)
          a = CumSum(r, k)
          b = Concat<axis = 0>(a, z)
          w = Neg(a)
          y = ReduceMax(b)
        }""",
        placed=1,
    )


def test_a_tensor_that_occurs_twice_has_one_place() -> None:
    agree(
        """twice (float[4, 32] x) => (float y, float z) {
          a = Relu(x)
          s = ReduceSum(a)
          z = Mul(s, s)
          aa = Concat<axis=1>(a, a)
          y = ReduceMax(aa)
        }""",
        placed=0,
    )


def test_a_tensor_that_is_looked_up_is_copied() -> None:
    """The places to read are data; only the tensor's own extent bounds them."""
    x, a, y = (Buffer(n, (4, 32), float32) for n in "xay")
    b = Buffer("b", (8, 32), float32)
    rows = Buffer("rows", (4,), int64)
    first = FusionGroup("first", (map_("first", a, lambda i, j: x[i, j]),))
    copy = FusionGroup(
        "copy", (map_("copy", b, lambda i, j: a[i, j], extents=(4, 32)),)
    )
    near = FusionGroup("near", (map_("near", y, lambda i, j: a[i, j]),))
    looked = FusionGroup("looked", (map_("looked", y, lambda i, j: a[rows[i], j]),))
    assert len(concat_in_place([first, near, copy], (), 16)) == 2
    assert len(concat_in_place([first, looked, copy], (), 16)) == 3


def test_who_reads_a_part_does_not_write_another() -> None:
    x, a, b = (
        Buffer(n, s, float32)
        for n, s in (("x", (4, 32)), ("a", (4, 32)), ("b", (8, 32)))
    )
    first = FusionGroup("first", (map_("first", a, lambda i, j: x[i, j]),))
    copy = FusionGroup(
        "copy", (map_("copy", b, lambda i, j: a[i, j], extents=(4, 32)),)
    )

    def below(i: Any, j: Any) -> Any:
        return (i + 4, j)

    rest = map_("rest", b, lambda i, j: a[i, j] + 1.0, extents=(4, 32), index=below)
    reads_and_writes = FusionGroup("rest", (rest,))
    assert len(concat_in_place([first, copy, reads_and_writes], {b}, 16)) == 3
    assert len(concat_in_place([first, copy, reads_and_writes], (), 16)) == 3
    assert len(concat_in_place([first, copy], (), 16)) == 1


def test_parts_of_one_tensor_are_written_by_one_kernel() -> None:
    x, y = Buffer("x", (4, 32), float32), Buffer("y", (4, 128), float32)

    def part(n: int) -> FusionGroup:
        def at(i: Any, j: Any) -> Any:
            return (i, j + 32 * n)

        c = map_("part", y, lambda i, j: x[i, j] * 2.0, extents=(4, 32), index=at)
        return FusionGroup("part", (c,))

    signatures = [kernel_signature(part(n), {y}) for n in (1, 2, 3)]
    assert [f.offsets for f in signatures] == [(0, 128 * n) for n in (1, 2, 3)]
    assert len({str(f.computations[0]) for f in signatures}) == 1
    (c,) = part(1).computations
    kept, offsets = from_zero([c, map_("again", x, lambda i, j: y[i, j])], [y])
    assert kept[0] is c and not offsets


@pytest.mark.parametrize("axis", [2, 3])
def test_padding_ends_where_the_part_ends_not_where_the_whole_does(axis: int) -> None:
    """Convolutions with padding read a part of a concatenation and all of it."""
    agree(
        f"""part (float[1, 4, 6, 16] x, float[4, 4, 3, 3] w, float[4, 4, 3, 3] v)
            => (float[1, 4, 6, 16] y, float z) {{
          a = Conv<pads = [1, 1, 1, 1]>(x, w)
          b = Sigmoid(x)
          ab = Concat<axis = {axis}>(a, b)
          y = Conv<pads = [1, 1, 1, 1]>(a, w)
          t = Conv<pads = [1, 1, 1, 1]>(ab, v)
          u = Neg(b)
          m = ReduceMax(u)
          s = ReduceMax(t)
          z = Add(s, m)
        }}""",
        placed=2,
    )
