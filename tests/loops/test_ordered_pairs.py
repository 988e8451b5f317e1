"""ArgMax without comparisons of indices: the same pairs, where and only where the pass may."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tilewright.base.dtypes import DType, float32, int32, int64
from tilewright.compute.reducer import Reducer, arg_reducer, in_order, paired, reducer
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import const
from tilewright.loops import interp
from tilewright.loops.nodes import Kernel
from tilewright.loops.parser import parse
from tilewright.loops.passes.ordered_pairs import ordered_pairs
from tilewright.loops.verify import verify

KINDS = [(name, last) for name in ("argmax", "argmin") for last in (False, True)]


def checked(text: str, name: str = "argmax", last: bool = False) -> tuple[Kernel, bool]:
    """The rewritten kernel, which is verified and computes the same from ties, extremes and NaNs;
    and whether it is another one."""
    op = arg_reducer(name, float32, int64, last)
    kernel = parse(text.strip().split("\n"), operators={"argmax": op})
    verify(kernel)
    made = ordered_pairs(kernel)
    verify(made)
    special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan]
    least, most = [np.nan, -np.inf], [0.0, -0.0]
    for seed, some in enumerate([special, least, [-np.inf], [np.inf], most, [np.nan]]):
        x = np.random.default_rng(seed).choice(some, kernel.params[0].shape)
        found = [run(k, x.astype(np.float32)) for k in (kernel, made)]
        np.testing.assert_array_equal(*found)
    return made, made is not kernel


def run(kernel: Kernel, x: np.ndarray) -> np.ndarray:
    arrays = {b: np.zeros(b.shape, b.dtype.numpy) for b in kernel.params}
    arrays[kernel.params[0]] = x
    interp.run(kernel, arrays)
    return arrays[kernel.outputs[0]]


LANES = """
kernel k(x: float32[3, 22]) -> y: int64[3]:
  for i in 3:
    alloc v: float32[4] in register:
      alloc n: int64[4] in register:
        for c in 4 vector:
          v[c] = {worst}
          n[c] = {far}
        for k in {steps}{sums}:
          for m in 4{others}:
            v[{at}], n[{at}] argmax= x[i, {read}], {index}
        for t in 2 unroll:
          for l in 4 vector:
            v[l], n[l] argmax= x[i, t * 4 + l + 12], t * 4 + l + {then}
        y[i] = 0
        alloc a: float32[1] in register:
          alloc b: int64[1] in register:
            a[0] = {worst}
            b[0] = {far}
            for r in 4:
              a[0], b[0] argmax= v[r], n[r]
            y[i] = b[0]
"""
USUAL = {
    "steps": 3,
    "sums": "",
    "others": " vector",
    "at": "m",
    "read": "k * 4 + m",
    "index": "k * 4 + m",
    "then": 12,
    "worst": "-inf",
    "far": "9223372036854775807",
}


def test_the_page_s_example() -> None:
    made, changed = checked(LANES.format(**USUAL))
    assert changed
    assert """
        for m.first in 4 vector:
          v[m.first], n[m.first] argmax= x[i, 0 * 4 + m.first], 0 * 4 + m.first
        for k in 3:
          for m in 4 vector:
            v[m], n[m] argmax_in_order= x[i, k * 4 + m], k * 4 + m
        for l.first in 4 vector:
          v[l.first], n[l.first] argmax= x[i, 0 * 4 + l.first + 12], 0 * 4 + l.first + 12
        for t in 2 unroll:
          for l in 4 vector:
            v[l], n[l] argmax_in_order=""" in repr(made)
    assert repr(made).count("in_order") == 2  # indices of lanes are in no order


@pytest.mark.parametrize(("name", "last"), KINDS)
def test_every_kind(name: str, last: bool) -> None:
    worst = "-inf" if name == "argmax" else "inf"
    far = "-1" if last else USUAL["far"]
    text = LANES.format(**{**USUAL, "worst": worst, "far": far})
    assert checked(text, name, last)[1]


@pytest.mark.parametrize(
    ("what", "count"),
    [
        ({}, 2),
        ({"sums": " unroll"}, 2),
        ({"others": " unroll"}, 2),
        ({"others": " - i"}, 0),  # a number that is not known
        ({"steps": 1}, 2),
        ({"steps": 0}, 0),  # and nothing is known of what follows
        ({"index": "8 - k * 4 + m"}, 0),  # in decreasing order
        ({"index": "m"}, 0),  # in no order
        ({"index": "k % 2 * 4 + m"}, 0),  # not linear
        ({"index": "k * 4 + m + k % 2"}, 0),  # a part of it is not
        ({"index": "k * 4 + m + 90"}, 1),  # the next nest's are smaller
        ({"then": 11}, 1),  # and so here
        ({"at": "m % 2"}, 0),  # two lanes meet
        ({"at": "0", "read": "k + m", "index": "k + m"}, 0),  # sums that overlap
        ({"worst": "0.0"}, 0),  # no identity: a tie with it is the step's
        ({"far": "7"}, 0),
    ],
)
def test_each_condition(what: dict[str, object], count: int) -> None:
    values = {**USUAL, **what}
    if values["at"] in ("0", "m % 2"):
        values["others"] = ""
    made, _ = checked(LANES.format(**values))
    assert repr(made).count("in_order") == count


AROUND = """
kernel k(x: float32[3, 8]) -> y: int64[3]:
  for i in 3:
    alloc v: float32[1]:
      alloc n: int64[1]:
        v[0] = -inf
        n[0] = 9223372036854775807
{body}
        y[i] = n[0]
"""
NEST = """
        for o in 2:
          for k in 4:
            v[0], n[0] argmax= x[i, o * 4 + k], o * 4 + k"""


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        (NEST, True),
        (NEST.replace("o * 4 + k\n", "k * 2 + o\n")[:-9] + "k * 2 + o", False),
        (NEST.replace("for k in 4", "for k in 5").replace("x[i, o", "x[i, o"), False),
        ("        v[0] = x[i, 0]" + NEST, False),  # another value before it
        ("        n[0] = i" + NEST, False),
        ("        v[0], n[0] argmax= x[i, 7], 7" + NEST, False),
        ("        if i < 1:\n          v[0] = x[i, 0]" + NEST, False),
        ("        for z in 2:\n          n[0] = z" + NEST, False),
        ("        if i < 9:" + NEST.replace("\n        ", "\n          "), True),
        ("        for z in 2:" + NEST.replace("\n        ", "\n          "), False),
        (NEST.replace("x[i, o * 4 + k]", "x[i, o * 4 + k] + v[0]"), False),
        (
            NEST.replace("[0] argmax", "[y[i]] argmax").replace("v[0], ", "v[0], "),
            False,
        ),
        (NEST.replace("for k in 4", "for k in 4 - i"), False),
        (NEST.replace("for k in 4", "for k in 4 vector"), False),
    ],
)
def test_what_is_around(body: str, changed: bool) -> None:
    text = AROUND.format(body=body.strip("\n"))
    if "in 5" in body:
        text = text.replace("x: float32[3, 8]", "x: float32[3, 9]")
    assert checked(text)[1] == changed


def test_a_value_of_another_pair_stays() -> None:
    """It has no index of this pair, so a tie with it is the step's."""
    made, _ = checked("""
kernel k(x: float32[3, 8]) -> y: int64[3]:
  for i in 3:
    alloc v: float32[1]:
      alloc n: int64[1]:
        alloc m: int64[1]:
          v[0] = -inf
          n[0] = 9223372036854775807
          m[0] = 9223372036854775807
          for k in 4:
            v[0], n[0] argmax= x[i, k], k
          for k2 in 4:
            v[0], m[0] argmax= x[i, k2 + 4], k2 + 4
          y[i] = m[0]
""")
    assert repr(made).count("in_order") == 1


def test_a_result_in_memory_stays() -> None:
    """What the caller's memory held before is not known."""
    assert not checked("""
kernel k(x: float32[3, 8]) -> y: int64[3], z: float32[3]:
  for i in 3:
    z[i] = -inf
    y[i] = 9223372036854775807
    for k in 8:
      z[i], y[i] argmax= x[i, k], k
""")[1]


VALUES: dict[DType, list[float]] = {
    float32: [np.nan, -np.inf, np.inf, -0.0, 0.0, 2.0],
    int32: [-(1 << 31), (1 << 31) - 1, 0, 1],
}


@pytest.mark.parametrize("dtype", VALUES, ids=str)
@pytest.mark.parametrize(("name", "last"), KINDS)
def test_both_operators_agree_on_indices_in_order(
    dtype: DType, name: str, last: bool
) -> None:
    op = arg_reducer(name, dtype, int64, last)
    other = in_order(op)
    assert other is not None and other is in_order(op)
    for a, b in itertools.product(VALUES[dtype], repeat=2):
        pairs = [(const(v, dtype), const(i, int64)) for v, i in ((a, 3), (b, 5))]
        found, want = (
            [evaluate(e, {}) for e in o.combine(*pairs)] for o in (other, op)
        )
        np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize(
    "op",
    [
        reducer("max", float32),
        paired(reducer("max", float32), reducer("min", int64)),
        paired(reducer("max", float32), reducer("max", float32)),
    ],
)
def test_other_operators_have_none(op: Reducer) -> None:
    assert in_order(op) is None
