"""One executable for the lengths of decoders, as exporters write those of Transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx.reference
from onnx import numpy_helper

import tilewright as tw
from tilewright.base import events

HOW: Any = {"jit": False, "threads": 2, "cache": False}
WORDS, WIDTH, HEADS, GROUPS, SIZE = 20, 16, 4, 2, 4  # SIZE: of a head
INNER = 24
CONSTANTS: dict[str, Any] = {
    **{f"i{n}": np.array(n) for n in range(4)},
    **{f"at{n}": np.array([n]) for n in range(4)},
    "rest": np.array([-1]),
    "minus": np.array(-1),
    "far": np.array([2**63 - 1]),
    "heads": np.array([HEADS]),
    "groups": np.array([GROUPS]),
    "size": np.array([SIZE]),
    "two": np.float32(2),
    "one": np.float32(1),
    "eps": np.float32(1e-6),
    "zero": np.float32(0),
    "scale": np.float32(SIZE**-0.5),
    "least": np.float32(-3.4e38),
}

# A length: of an axis of a tensor, as a scalar and as a vector.
LENGTH = """
  {x}_shape{axis} = Shape({x})  {name} = Gather({x}_shape{axis}, i{axis})
  {name}_one = Unsqueeze({name}, at0)
"""
NORM = """
  {y}_square = Pow({x}, two)  {y}_mean = ReduceMean<keepdims = 1>({y}_square, rest)
  {y}_more = Add({y}_mean, eps)  {y}_root = Sqrt({y}_more)  {y}_over = Div(one, {y}_root)
  {y}_by = Mul({x}, {y}_over)  {y} = Mul(norm_{y}, {y}_by)
"""
# [batch, length, width] -> [batch, heads, length, size]
IN_HEADS = """
  {y}_flat = MatMul({x}, w_{y})  {y}_as = Concat<axis = 0>(batch_one, {length}_one, rest, size)
  {y}_rows = Reshape({y}_flat, {y}_as)  {y} = Transpose<perm = [0, 2, 1, 3]>({y}_rows)
"""
# The halves of a head change places, one with another sign; how far depends on the position.
ROTATED = """
  {x}_shape = Shape({x})  {x}_size = Gather({x}_shape, i3)  {x}_half = Div({x}_size, i2)
  {x}_half_one = Unsqueeze({x}_half, at0)  {x}_first = Slice({x}, at0, {x}_half_one, at3)
  {x}_second = Slice({x}, {x}_half_one, far, at3)  {x}_other = Neg({x}_second)
  {x}_turned = Concat<axis = -1>({x}_other, {x}_first)
  {x}_cos = Mul({x}, cos)  {x}_sin = Mul({x}_turned, sin)  {y} = Add({x}_cos, {x}_sin)
"""
# Each group of keys or values is that of several heads.
REPEATED = """
  {x}_each = Unsqueeze({x}, at2)
  {x}_wide = Concat<axis = 0>(batch_one, groups, groups, all_one, size)
  {x}_many = Expand({x}_each, {x}_wide)
  {x}_as = Concat<axis = 0>(batch_one, heads, all_one, size)  {y} = Reshape({x}_many, {x}_as)
"""
# A truth value for each batch, query and key.
EXPANDED = """
  {y}_to = Concat<axis = 0>(batch_one, at1, {queries}_one, {keys}_one)
  {y}_ones = Shape({y}_to)  {y}_filled = ConstantOfShape<value = int64[1] {{1}}>({y}_ones)
  {y}_minus = Mul({y}_filled, minus)  {y}_same = Equal({y}_to, {y}_minus)
  {y}_shape = Where({y}_same, {y}_filled, {y}_to)  {y} = Expand({x}, {y}_shape)
"""
ATTENTION = """
  {y}_keys = Transpose<perm = [0, 1, 3, 2]>({k})  {y}_plain = MatMul({q}, {y}_keys)
  {scores}
  {y}_chosen = Where({mask}, {y}_scores, least)  {y}_soft = Softmax<axis = -1>({y}_chosen)
  {y}_nan = IsNaN({y}_soft)  {y}_weights = Where({y}_nan, zero, {y}_soft)
  {y}_mixed = MatMul({y}_weights, {v})  {y}_rows = Transpose<perm = [0, 2, 1, 3]>({y}_mixed)
  {y}_as = Concat<axis = 0>(batch_one, {length}_one, rest)
  {y}_flat = Reshape({y}_rows, {y}_as)  {y}_out = MatMul({y}_flat, w_{y})
  {y} = Add({x}, {y}_out)
"""


def decoder(signature: str, text: str, **weights: Any) -> onnx.ModelProto:
    """A model of a graph's text; its weights by name, random ones by their shapes."""
    head = '<ir_version: 8, opset_import: ["" : 18]>'
    made = onnx.parser.parse_model(f"{head} decoder {signature} {{ {text} }}")
    rng = np.random.default_rng(2)
    for name, w in {**CONSTANTS, **weights}.items():
        if isinstance(w, tuple):
            w = (rng.standard_normal(w) / np.sqrt(w[0])).astype(np.float32)
        made.graph.initializer.append(numpy_helper.from_array(np.asarray(w), name))
    return made


def llama() -> onnx.ModelProto:
    """A step of one layer: [batch, length] of words, and keys and values of `past` words."""
    text = f"""
      x = Gather(words, ids)
      {LENGTH.format(x="x", axis=0, name="batch")} {LENGTH.format(x="x", axis=1, name="new")}
      {LENGTH.format(x="k", axis=2, name="past")}
      all = Add(past, new)  all_one = Unsqueeze(all, at0)
      here = Range(i0, new, i1)  at = Add(here, past)  row = Unsqueeze(at, at0)
      places = Range(i0, all, i1)  places2 = Unsqueeze(places, at0)
      places3 = Unsqueeze(places2, at0)  places4 = Unsqueeze(places3, at0)
      at_a = Unsqueeze(at, at0)  at_b = Unsqueeze(at_a, at0)  at_c = Unsqueeze(at_b, at3)
      before = LessOrEqual(places4, at_c)
      {EXPANDED.format(x="before", y="seen", queries="new", keys="all")}
      column = Unsqueeze(row, at2)  number = Cast<to = 1>(column)
      angle = Mul(number, frequencies)  angles = Concat<axis = -1>(angle, angle)
      cos3 = Cos(angles)  sin3 = Sin(angles)
      cos = Unsqueeze(cos3, at1)  sin = Unsqueeze(sin3, at1)
      {NORM.format(x="x", y="before_attention")}
      {IN_HEADS.format(x="before_attention", y="q", length="new")}
      {IN_HEADS.format(x="before_attention", y="key", length="new")}
      {IN_HEADS.format(x="before_attention", y="value", length="new")}
      {ROTATED.format(x="q", y="query")} {ROTATED.format(x="key", y="new_k")}
      keys = Concat<axis = -2>(k, new_k)  values = Concat<axis = -2>(v, value)
      {REPEATED.format(x="keys", y="many_k")} {REPEATED.format(x="values", y="many_v")}
      {
        ATTENTION.format(
            x="x", y="mixed", q="query", k="many_k", v="many_v", mask="seen", length="new",
            scores="mixed_scores = Mul(mixed_plain, scale)",
        )
    }
      {NORM.format(x="mixed", y="before_up")}
      gate = MatMul(before_up, w_gate)  open = Sigmoid(gate)  silu = Mul(gate, open)
      up = MatMul(before_up, w_up)  both = Mul(silu, up)  down = MatMul(both, w_down)
      last = Add(mixed, down)  {NORM.format(x="last", y="normal")}
      logits = MatMul(normal, w_logits)
    """  # fmt: skip
    cache = f"float[b, {GROUPS}, p, {SIZE}] k, float[b, {GROUPS}, p, {SIZE}] v"
    made = f"float[b, t, {WORDS}] logits, float[b, {GROUPS}, n, {SIZE}] keys"
    return decoder(
        f"(int64[b, t] ids, {cache}) => ({made}, float[b, {GROUPS}, n, {SIZE}] values)",
        text,
        words=(WORDS, WIDTH),
        frequencies=np.float32([1, 0.1]),
        w_q=(WIDTH, HEADS * SIZE),
        w_key=(WIDTH, GROUPS * SIZE),
        w_value=(WIDTH, GROUPS * SIZE),
        w_mixed=(HEADS * SIZE, WIDTH),
        w_gate=(WIDTH, INNER),
        w_up=(WIDTH, INNER),
        w_down=(INNER, WIDTH),
        w_logits=(WIDTH, WORDS),
        **{f"norm_{n}": (WIDTH,) for n in ("before_attention", "before_up", "normal")},
    )


def t5() -> onnx.ModelProto:
    """A layer on [batch, length] of words: relative positions, and a mask of the encoder's."""
    text = f"""
      x = Gather(words, ids)
      {LENGTH.format(x="x", axis=0, name="batch")} {LENGTH.format(x="x", axis=1, name="new")}
      {LENGTH.format(x="enc", axis=1, name="old")}
      here = Range(i0, new, i1)  row = Unsqueeze(here, at0)  column = Unsqueeze(here, at1)
      away = Sub(row, column)  behind = Min(away, i0)  back = Neg(behind)
      near = Less(back, four)  real = Cast<to = 1>(back)  over = Div(real, four_real)
      log = Log(over)  by = Div(log, log_of_eight)  steps = Mul(by, four_real)
      whole = Cast<to = 7>(steps)  more = Add(whole, four)  most = Min(more, seven)
      bucket = Where(near, back, most)  biases = Gather(table, bucket)
      bias3 = Transpose<perm = [2, 0, 1]>(biases)  bias = Unsqueeze(bias3, at0)
      row3 = Unsqueeze(row, at0)  row4 = Unsqueeze(row3, at0)
      column3 = Unsqueeze(column, at0)  column4 = Unsqueeze(column3, at0)
      before = LessOrEqual(row4, column4)
      {EXPANDED.format(x="before", y="seen", queries="new", keys="new")}
      truth = Cast<to = 9>(mask)
      sentences = Range(i0, batch, i1)  sentence = Unsqueeze(sentences, at1)
      first = Mul(sentence, old)  words_of = Range(i0, old, i1)  words1 = Unsqueeze(words_of, at0)
      places = Add(first, words1)  every = Reshape(truth, rest)
      known2 = Gather(every, places)  known3 = Unsqueeze(known2, at1)
      known4 = Unsqueeze(known3, at1)
      {EXPANDED.format(x="known4", y="known", queries="new", keys="old")}
      {NORM.format(x="x", y="before_attention")}
      {"".join(IN_HEADS.format(x="before_attention", y=y, length="new") for y in "qkv")}
      {
        ATTENTION.format(
            x="x", y="mixed", q="q", k="k", v="v", mask="seen", length="new",
            scores="mixed_scores = Add(mixed_plain, bias)",
        )
    }
      {NORM.format(x="mixed", y="before_cross")}
      {IN_HEADS.format(x="before_cross", y="cq", length="new")}
      {IN_HEADS.format(x="enc", y="ck", length="old")}
      {IN_HEADS.format(x="enc", y="cv", length="old")}
      {
        ATTENTION.format(
            x="mixed", y="crossed", q="cq", k="ck", v="cv", mask="known", length="new",
            scores="crossed_scores = Identity(crossed_plain)",
        )
    }
      {NORM.format(x="crossed", y="before_up")}
      up = MatMul(before_up, w_up)  relu = Relu(up)  down = MatMul(relu, w_down)
      last = Add(crossed, down)  {NORM.format(x="last", y="normal")}
      logits = MatMul(normal, w_logits)
    """  # fmt: skip
    inner = HEADS * SIZE
    return decoder(
        f"(int64[b, t] ids, float[b, s, {WIDTH}] enc, int64[b, s] mask)"
        f" => (float[b, t, {WORDS}] logits)",
        text,
        words=(WORDS, WIDTH),
        table=(8, HEADS),
        four=np.array(4),
        seven=np.array(7),
        four_real=np.float32(4),
        log_of_eight=np.float32(np.log(8)),
        **{f"w_{n}": (WIDTH, inner) for n in ("q", "k", "v", "cq", "ck", "cv")},
        **{f"w_{n}": (inner, WIDTH) for n in ("mixed", "crossed")},
        w_up=(WIDTH, INNER),
        w_down=(INNER, WIDTH),
        w_logits=(WIDTH, WORDS),
        **{
            f"norm_{n}": (WIDTH,)
            for n in ("before_attention", "before_cross", "before_up", "normal")
        },
    )


def fed(source: onnx.ModelProto, **sizes: int) -> list[Any]:
    """Inputs of these sizes; of a mask, each sentence has other words, its first one at least."""
    rng = np.random.default_rng(sum(sizes.values()))
    found: list[Any] = []
    for v in source.graph.input:
        dims = v.type.tensor_type.shape.dim
        shape = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in dims]
        if v.name == "mask":
            ends = rng.integers(1, shape[1] + 1, (shape[0], 1))
            found.append((np.arange(shape[1]) < ends).astype(np.int64))
        elif v.name == "ids":
            found.append(rng.integers(0, WORDS, shape))
        else:
            found.append(rng.standard_normal(shape).astype(np.float32))
    return found


def agrees(exe: Any, source: onnx.ModelProto, **sizes: int) -> None:
    """The results at these sizes are those of onnx's reference."""
    given = fed(source, **sizes)
    names = [v.name for v in source.graph.input]
    with np.errstate(divide="ignore", invalid="ignore"):  # T5's log of 0, not chosen
        reference = onnx.reference.ReferenceEvaluator(source)
        want = reference.run(None, dict(zip(names, given, strict=True)))
    got = exe(*given)
    for a, b in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=str(sizes))


def test_a_step_behind_a_cache_of_any_length() -> None:
    source = llama()
    exe: Any = tw.compile(source, dims={"b": 2, "t": 1, "p": (0, 96)}, **HOW)
    assert exe.model.shared
    for p in (0, 1, 2, 15, 64, 96):
        agrees(exe, source, b=2, t=1, p=p)


def test_several_words_behind_a_cache() -> None:
    source = llama()
    exe: Any = tw.compile(source, dims={"b": 1, "t": (2, 12), "p": (1, 40)}, **HOW)
    assert exe.model.shared
    for t, p in ((2, 1), (12, 1), (2, 40), (7, 7), (12, 39), (5, 16)):
        agrees(exe, source, b=1, t=t, p=p)


def test_two_lengths_with_relative_positions() -> None:
    source = t5()
    dims: Any = {"b": (2, 4), "s": (2, 60), "t": (2, 40)}
    exe: Any = tw.compile(source, dims=dims, **HOW)
    assert len(exe.model.shared) == 1 and not exe.model.single
    for b, s, t in ((2, 2, 2), (4, 60, 2), (3, 2, 40), (4, 33, 33), (2, 59, 40)):
        agrees(exe, source, b=b, s=s, t=t)


def test_places_of_a_mask_of_one_size_that_memory_has() -> None:
    """Its two axes are merged for the places, and no kernel of one size can tell them apart."""
    source = t5()
    dims: Any = {"b": 3, "s": 2, "t": (2, 40)}
    with events.record() as heard:
        exe: Any = tw.compile(source, dims=dims, **{**HOW, "threads": 1})
    reasons = [e.fields["reason"] for e in heard if e.kind == "not-parted"]
    assert any("checked where it is used" in reason for reason in reasons)
    for t in (2, 9, 40):
        agrees(exe, source, b=3, s=2, t=t)
