"""Extents that depend on data: whole graphs as native code, against ONNX's reference."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tilewright.base.errors import ExecutionError, TilewrightWarning
from tilewright.graph.bounded import data_dependent
from tilewright.graph.bounded.bound import CONTROL, bound
from tilewright.graph.bounded.extents import ARITHMETIC, BoundedExtent, simplified
from tilewright.graph.nodes import Value
from tilewright.runtime import host
from tilewright.runtime.executable import Executable

HEAD = '<ir_version: 9, opset_import: ["" : 21]>\n'
NONE, SOME, ALL = (
    np.array(v, np.float32) for v in ([0] * 6, [0, 2, -1, 0, 3, 1], range(1, 7))
)
EVERY = (NONE, SOME, ALL)


def compiled(body: str) -> Executable:
    """The model, compiled without host fallbacks."""
    model = onnx.parser.parse_model(HEAD + body)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TilewrightWarning)
        return tw.compile(model, threads=1)  # type: ignore[return-value]


def agree(body: str, *feeds: Any) -> None:
    """The compiled model agrees with ONNX's reference, in shapes and dtypes too."""
    exe = compiled(body)
    judge = ReferenceEvaluator(onnx.parser.parse_model(HEAD + body))
    names = [v.name for v in exe.inputs]
    for feed in feeds:
        given = feed if isinstance(feed, tuple) else (feed,)
        want = judge.run(None, dict(zip(names, given, strict=True)))
        found = exe(*given)
        for got, expected in zip(
            found if isinstance(found, tuple) else [found], want, strict=True
        ):
            assert np.shape(got) == np.shape(expected)
            assert np.asarray(got).dtype == np.asarray(expected).dtype
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_consumers_of_what_was_found() -> None:
    """Element by element, sums, extremes, shapes, products: for none, some and all."""
    agree(
        """it (float[6] x, float[6,3] w) => (float[n] e, float s, float[n,3] rows,
            float[1,3] p, float t, int64[k] shape, float[n] soft, float[n] c, int64 many) {
          at = NonZero(x)
          places = Transpose <perm = [1, 0]> (at)
          v = GatherND(x, places)
          e = Exp(v)
          s = ReduceSum <keepdims = 0> (e)
          row = Constant <value_ints = [-1]> ()
          flat = Reshape(at, row)
          rows = Gather <axis = 0> (w, flat)
          axis = Constant <value_ints = [0]> ()
          line = Unsqueeze(v, axis)
          squares = Mul(rows, rows)
          p = MatMul(line, squares)
          t = ReduceProd <keepdims = 0> (v)
          shape = Shape(at)
          soft = Softmax <axis = 0> (v)
          zero = Constant <value_int = 0> ()
          c = CumSum(v, zero)
          many = Size(v)
        }""",
        *((x, np.arange(18, dtype=np.float32).reshape(6, 3) / 9) for x in EVERY),
    )


def test_a_nan_behind_the_count_stays_there() -> None:
    """The first row, which reads beyond the count would return, is NaN."""
    w = np.ones((6, 3), np.float32)
    w[0] = np.nan
    agree(
        """it (float[6] x, float[6,3] w) => (float[1,3] y, float[3] most, float[3] mean) {
          at = NonZero(x)
          axis = Constant <value_ints = [0]> ()
          flat = Squeeze(at, axis)
          rows = Gather(w, flat)
          v = Gather(x, flat)
          line = Unsqueeze(v, axis)
          y = MatMul(line, rows)
          most = ReduceMax <keepdims = 0> (rows, axis)
          mean = ReduceMean <keepdims = 0> (rows, axis)
        }""",
        (SOME, w),
    )


def test_parts_and_wholes() -> None:
    """Concat after an open extent, Slice to and from counts, Reshape that moves elements."""
    agree(
        """it (float[6] x) => (float[n] joined, float[m] last, float[k] cut, int64[j] range,
            int64[a,b] wide, int64[d] turned, float[o] ones, float[q] grown) {
          at = NonZero(x)
          row = Constant <value_ints = [-1]> ()
          flat = Reshape(at, row)
          v = Gather(x, flat)
          e = Neg(v)
          joined = Concat <axis = 0> (v, x, e)
          one = Constant <value_ints = [1]> ()
          two = Constant <value_ints = [2]> ()
          big = Constant <value_ints = [99]> ()
          minus = Constant <value_ints = [-2]> ()
          zero = Constant <value_ints = [0]> ()
          last = Slice(v, minus, big, zero)
          cut = Slice(joined, one, minus, zero, two)
          n = Shape(v)
          scalar = Squeeze(n)
          s0 = Constant <value_int = 0> ()
          s2 = Constant <value_int = 2> ()
          range = Range(s0, scalar, s2)
          pair = Concat <axis = 0> (at, at)
          over = Transpose <perm = [1, 0]> (pair)
          turned = Reshape(over, row)
          form = Concat <axis = 0> (two, n)
          wide = Reshape <allowzero = 1> (over, form)
          ones = ConstantOfShape <value = float[1] {1}> (n)
          unit = Constant <value_floats = [2.0]> ()
          grown = Expand(unit, n)
        }""",
        *EVERY,
    )


TOP = """it (float[6] x) => (float[k] best, int64[k] place, float[k] least, int64[u] ids) {
  at = NonZero(x)
  row = Constant <value_ints = [-1]> ()
  flat = Reshape(at, row)
  v = Gather(x, flat)
  n = Shape(v)
  three = Constant <value_ints = [3]> ()
  k = Min(n, three)
  best, place = TopK(v, k)
  least, other = TopK <largest = 0> (v, k)
  ids, first, inverse, counts = Unique <sorted = 0> (flat)
}"""


def test_the_best_of_what_was_found() -> None:
    """The run decides the number of results; infinities and NaN are kept."""
    odd = np.array([-np.inf, 0, np.nan, -np.inf, 0, 5], np.float32)
    exe = compiled(TOP)
    agree(TOP, *EVERY)
    best, place, least, _ = exe(odd)
    np.testing.assert_array_equal(best, [np.nan, 5, -np.inf])
    assert place.tolist() == [1, 3, 0]
    np.testing.assert_array_equal(least, [-np.inf, -np.inf, 5])


def test_what_is_not_there_comes_behind_nan() -> None:
    """Among the smallest k, for k up to the number of elements."""
    exe = compiled(TOP.replace("k = Min(n, three)", "k = Identity(n)"))
    odd = np.array([np.inf, 0, np.nan, -1, 0, 5], np.float32)
    np.testing.assert_array_equal(exe(odd)[2], [-1, 5, np.inf, np.nan])
    np.testing.assert_array_equal(exe(odd)[0], [np.nan, np.inf, 5, -1])


def test_scatters_of_what_was_found() -> None:
    agree(
        """it (float[6] x, float[6] data) => (float[6] y, float[6] z, float[6] w) {
          at = NonZero(x)
          places = Transpose <perm = [1, 0]> (at)
          v = GatherND(x, places)
          y = ScatterND(data, places, v)
          row = Constant <value_ints = [-1]> ()
          flat = Reshape(at, row)
          z = ScatterElements <axis = 0, reduction = "add"> (data, flat, v)
          six = Constant <value_int = 6> ()
          back = Sub(flat, six)
          w = ScatterElements <axis = 0> (data, back, v)
        }""",
        *((x, np.arange(6, dtype=np.float32)) for x in EVERY),
    )


def test_compress_and_suppression_of_what_was_found() -> None:
    boxes = np.array([[0, k / 2, 1, k / 2 + 1] for k in range(6)], np.float32)
    agree(
        """it (float[6] x, float[6,4] boxes) => (float[n,4] kept, int64[m,3] rows) {
          zero = Constant <value_float = 0.0> ()
          good = Greater(x, zero)
          kept = Compress <axis = 0> (boxes, good)
          scores = Compress <axis = 0> (x, good)
          b = Constant <value_ints = [0]> ()
          bb = Constant <value_ints = [0, 1]> ()
          batch = Unsqueeze(kept, b)
          s = Unsqueeze(scores, bb)
          most = Constant <value_ints = [4]> ()
          overlap = Constant <value_floats = [0.4]> ()
          rows = NonMaxSuppression(batch, s, most, overlap)
        }""",
        *((x, boxes) for x in EVERY),
    )


IF = """it (float[6] x) => (float[n] y) {
  at = NonZero(x)
  row = Constant <value_ints = [-1]> ()
  flat = Reshape(at, row)
  v = Gather(x, flat)
  n = Size(v)
  zero = Constant <value_int = 0> ()
  empty = Equal(n, zero)
  y = If (empty) <
    then_branch = none () => (float[a] r) { r = Mul(x, x) },
    else_branch = some () => (float[b] r) {
      first = Constant <value_ints = [0]> ()
      r = Gather(v, first)
    }
  >
}"""


def test_the_branch_that_is_not_taken_does_not_fail() -> None:
    """There is no first element of none; both branches call their result by one name."""
    agree(IF, *EVERY)


def test_an_index_beyond_the_count_is_an_error() -> None:
    """The memory has room for it."""
    exe = compiled(
        """it (float[6] x, int64[1] i) => (float[1] y) {
          at = NonZero(x)
          row = Constant <value_ints = [-1]> ()
          flat = Reshape(at, row)
          v = Gather(x, flat)
          y = Gather(v, i)
        }"""
    )
    assert exe(SOME, np.array([3])).tolist() == [1]
    assert exe(SOME, np.array([-4])).tolist() == [2]
    for wrong in (4, -5):
        with pytest.raises(ExecutionError, match="index in the data is out of range"):
            exe(SOME, np.array([wrong]))


def test_more_than_there_are_is_an_error() -> None:
    exe = compiled(TOP.replace("k = Min(n, three)", "k = Identity(three)"))
    assert exe(SOME)[0].tolist() == [3, 2, 1]
    with pytest.raises(ExecutionError, match="index in the data is out of range"):
        exe(NONE)


def test_an_operator_without_a_rule_gets_the_true_shape() -> None:
    """It and the operations after it fall back to the host with a warning; the rest is native."""
    body = """it (float[6] x) => (float[6] y, float[n,k] z, float[a,b] t) {
      at = NonZero(x)
      y = Exp(x)
      eye = EyeLike <dtype = 1> (at)
      t = ReduceSum(eye)
      z = Cast <to = 1> (at)
    }"""
    model = onnx.parser.parse_model(HEAD + body)
    with pytest.warns(TilewrightWarning, match="2 operators .* EyeLike.* ReduceSum"):
        exe = tw.compile(model, threads=1)
    y, z, t = exe(SOME)
    np.testing.assert_allclose(y, np.exp(SOME), rtol=1e-6)
    assert z.tolist() == [[1, 2, 4, 5]]
    assert t.tolist() == [[1]]


def test_a_graph_of_known_extents_stays_as_it_is() -> None:
    from tilewright.frontends.load import load

    model = onnx.parser.parse_model(
        HEAD + "it (float[6] x) => (float[6] y) { y = Exp(x) }"
    )
    graph = load(model)
    assert bound(graph, None) is graph


def test_an_artifact_trims_without_the_compiler(tmp_path: Any) -> None:
    exe = compiled(IF)
    exe.save(tmp_path / "it.tw")
    assert tw.load(tmp_path / "it.tw")(SOME).tolist() == [2]


@pytest.mark.parametrize("count", [-1, 4])
def test_a_count_is_not_trusted_beyond_its_bound(count: int) -> None:
    trim = host.resolve("trim", "Trim", {"axes": [1]})
    with pytest.raises(
        ExecutionError, match=f"axis 1 has {count} elements, of at most 3"
    ):
        trim([np.zeros((2, 3)), np.array(count)])


@pytest.mark.parametrize("op", list(ARITHMETIC))
def test_bounds_hold_for_every_number_within(op: str) -> None:
    """And simplifications hold for every number."""
    rule = ARITHMETIC[op]
    rng = np.random.default_rng(0)
    for _ in range(50):
        a, b = (sorted(int(n) for n in rng.integers(-4, 9, 2)) for _ in range(2))
        if op == "Div":
            b = [max(n, 1) for n in b]
        low, high = rule.bounds((a[0], a[1]), (b[0], b[1]))
        count = Value("n")
        found = simplified(op, BoundedExtent(count, *a), known := b[1])
        for x in range(a[0], a[1] + 1):
            for y in range(b[0], b[1] + 1):
                assert low <= rule.exact(x, y) <= high
            if isinstance(found, BoundedExtent):
                assert rule.exact(x, known) == x
            elif found is not None:
                assert rule.exact(x, known) == found


def test_nothing_is_compiled_for_the_values_of_what_is_searched() -> None:
    """One executable, whose results are open, and no more of them."""
    assert isinstance(compiled(IF), Executable)
    assert isinstance(compiled(TOP), Executable)


def test_numbers_that_wrap_around_are_not_followed() -> None:
    """Six times 50 is 44 in a byte, and so is the length."""
    body = """it (float[6] x) => (int64[1] n, int64[k] y) {
          at = NonZero(x)
          size = Size(at)
          byte = Cast <to = 2> (size)
          fifty = Constant <value = uint8[1] {50}> ()
          many = Mul(byte, fifty)
          n = Cast <to = 7> (many)
          y = ConstantOfShape <value = int64[1] {1}> (n)
        }"""
    model = onnx.parser.parse_model(HEAD + body)
    with pytest.warns(TilewrightWarning, match="falls? back to the host"):
        exe = tw.compile(model, threads=1)
    n, y = exe(ALL)
    assert (n.tolist(), y.shape) == ([44], (44,))


def on_the_host(body: str, *feed: Any) -> Any:
    """The result of the model; a warning names the part that falls back."""
    with pytest.warns(TilewrightWarning, match="falls? back to the host"):
        return tw.compile(onnx.parser.parse_model(HEAD + body), threads=1)(*feed)


SCATTER = """it (float[6] x, float[{rows},6] data, float[{w}] w) => (float[{rows},6] y) {{
  at = NonZero(x)
  places = Transpose <perm = [1, 0]> (at)
  there = NonZero(w)
  across = Transpose <perm = [1, 0]> (there)
  found = GatherND(w, across)
  axis = Constant <value_ints = [1]> ()
  column = Unsqueeze(found, axis)
  y = ScatterElements <axis = 1> (data, places, {updates})
}}"""


def test_updates_of_another_count_are_scattered_by_the_host() -> None:
    """Whether the updates fit the indices is known only at run time."""
    data = np.zeros((6, 6), np.float32)
    for w in (SOME, np.array([0, 3, 0, 3, 1, 4, 0], np.float32)):
        body = SCATTER.format(rows=6, w=len(w), updates="column")
        y = on_the_host(body, SOME, data, w)
        want = data.copy()
        want[np.arange(4), np.flatnonzero(SOME)] = w[w != 0]
        np.testing.assert_array_equal(y, want)


def test_memory_that_an_operator_refuses_is_cut_first() -> None:
    """There may be six places, and are no more than the two rows that take them."""
    data, x = np.zeros((2, 6), np.float32), np.array([0, 5, 0, 7, 0, 0], np.float32)
    body = SCATTER.format(rows=2, w=6, updates="column")
    y = on_the_host(body, x, data, x)
    assert y.tolist() == [[0, 5, 0, 0, 0, 0], [0, 0, 0, 7, 0, 0]]


def test_strings_are_told_apart_by_the_host() -> None:
    body = "it (string[4] s) => (string[n] y, int64[n] at) { y, at = Unique(s) }"
    y, at = on_the_host(body, np.array(["b", "a", "b", "c"], object))
    assert (y.tolist(), at.tolist()) == (["a", "b", "c"], [1, 0, 3])


def test_a_condition_that_may_not_be_there_is_not_bounded() -> None:
    """There is room for one, and none in it is an error."""
    body = """it (float[1] x) => (float[k] y) {
      zero = Constant <value_float = 0.0> ()
      above = Greater(x, zero)
      taken = Compress(above, above)
      y = If (taken) <
        then_branch = a () => (float[p] r) { r = Identity(x) },
        else_branch = b () => (float[q] r) { r = Concat <axis = 0> (x, x) }
      >
    }"""
    one = np.ones(1, np.float32)
    with pytest.warns(TilewrightWarning, match="falls? back to the host"):
        exe = tw.compile(onnx.parser.parse_model(HEAD + body), threads=1)
    assert exe(one).tolist() == [1]
    with pytest.raises(ExecutionError):
        exe(-one)


@pytest.mark.parametrize(
    ("cast", "shape"),
    [
        ("CastLike(few, values)", "2"),
        ("CastLike(many, values)", "6, 1"),
        ("CastLike(one, values)", "1"),
        ("CastLike(values, few)", "n"),
        ("CastLike(rows, found)", "n, 1"),
    ],
)
def test_cast_like_takes_no_extent_of_what_gives_the_type(
    cast: str, shape: str
) -> None:
    """However many elements were found, or rows of them: the result is like the first operand."""
    kind = "float" if cast.endswith("values)") else "int64"
    agree(
        f"""it (float[6] x, int64[2] few, int64[6,1] many, int64[1] one) => ({kind}[{shape}] y) {{
          at = NonZero(x)
          found = Transpose <perm = [1, 0]> (at)
          values = GatherND(x, found)
          last = Constant <value_ints = [1]> ()
          rows = Unsqueeze(values, last)
          y = {cast}
        }}""",
        *((v, np.array([3, 4]), np.arange(6)[:, None], np.array([5])) for v in EVERY),
    )


def test_what_has_a_rule_for_control_is_looked_for() -> None:
    """A graph without such operators is not walked, and the rules not even loaded."""
    assert CONTROL.keys() == data_dependent.CONTROL


def test_an_operator_without_inputs_may_be_in_a_branch() -> None:
    draw = "r = RandomNormal<shape=[4], seed=3.0>() a = Add(r, x)"
    branches = f"""then_branch = t () => (float[4] a) {{ {draw} }},
        else_branch = e () => (float[4] b) {{ b = Neg(x) }}"""
    ends = "(bool c, float[4] x) => (float[4] y)"
    exe = compiled(f"b {ends} {{ y = If(c) <{branches}> }}")
    drawn = exe(np.array(True), ALL[:4]) - ALL[:4]
    assert np.abs(drawn).max() > 0.1
    np.testing.assert_allclose(exe(np.array(True), NONE[:4]), drawn, atol=1e-6)
    np.testing.assert_array_equal(exe(np.array(False), ALL[:4]), -ALL[:4])
