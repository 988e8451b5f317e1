"""`equal` against the text of whole plans: on networks at some sizes, and with faults seeded."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import onnx
import onnx.parser
import pytest

import tilewright as tw
from tests.driver.ranges import plan_faults, random_counts
from tests.driver.ranges.random_windows import LEVEL
from tests.driver.ranges.test_ranged import HEAD
from tilewright.driver.ranges import compared_plans
from tilewright.driver.ranges.generalize import equal
from tilewright.plan.nodes import Plan

ENOUGH = 3  # sizes of a network
TRIES = 4  # of each fault at each of them

# Positions and a mask of the sequence's length, attention, and a norm.
DECODER = (
    HEAD
    + """(float[h, 8] x, float[8, 8] q, float[8, 8] k, float[w, 8] m) => (float[h, 8] y)
    <float[64, 8] table = {"""
    + ", ".join(f"{n % 13}.5" for n in range(512))
    + """}> {
      zero = Constant<value_ints = [0]>() n = Shape<end = 1>(x)
      p = Slice(table, zero, n, zero) t = Add(x, p)
      a = MatMul(t, q) b = MatMul(t, k) c = Transpose<perm = [1, 0]>(b)
      s = MatMul(a, c) u = Trilu<upper = 0>(s) v = Softmax<axis = -1>(u)
      o = MatMul(v, t) r = Add(o, x) f = ReduceMax<keepdims = 0>(m)
      one = Constant<value_ints = [1]>() g = ReduceMean<keepdims = 1>(r, one)
      i = Sub(r, g) y = Mul(i, f) }"""
)
WINDOWS = (
    HEAD
    + """(float[1, 4, h, w] x, float[4, 4, 3, 3] k) => (float[1, 4, e, g] y) {
      a = Conv<pads = [1, 1, 1, 1]>(x, k) b = Relu(a) c = Add(b, x)
      d = MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(c)
      f = AveragePool<kernel_shape = [2, 2]>(d) y = Neg(f) }"""
)
NETWORKS: dict[str, onnx.ModelProto] = {
    "decoder": onnx.parser.parse_model(DECODER),
    "windows": onnx.parser.parse_model(WINDOWS),
    **{f"random {n}": random_counts.network(n, 1) for n in (3, 12)},
}
Pair = tuple[Plan, dict[str, int], Plan]


class EnoughError(Exception):
    """So many plans have been compared."""


def compared(name: str, patch: pytest.MonkeyPatch) -> list[Pair]:
    """Open plans of a network, the first sizes that are compared, and their own plans."""
    found: list[Pair] = []

    def noted(plan: Plan, extents: dict[str, int], fixed: Plan) -> bool:
        if len(found) == ENOUGH:
            raise EnoughError
        found.append((plan, extents, fixed))
        return equal(plan, extents, fixed)

    patch.setattr(compared_plans, "equal", noted)
    patch.setattr(compared_plans, "workers", lambda *_: 1)
    patch.setattr(compared_plans, "can_fork", lambda: False)
    how: Any = {"jit": False, "cache": False, "threads": 1, "mcpu": LEVEL}
    with pytest.raises(EnoughError):
        tw.compile(NETWORKS[name], dims={"h": (5, 14), "w": (7, 16)}, **how)
    return found


@pytest.mark.parametrize("name", NETWORKS)
def test_both_tell_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = [
        *(
            partial(plan_faults.in_a_computation, f)
            for f in plan_faults.IN_COMPUTATIONS
        ),
        *plan_faults.IN_PLANS,
    ]
    r, told = random.Random(0), [0, 0]
    for plan, extents, fixed in compared(name, monkeypatch):
        assert equal(plan, extents, fixed)
        assert plan_faults.have_one_text(plan, extents, fixed)
        for n, fault in enumerate(faults * TRIES):
            other = fault(fixed, r)
            if other is None:
                continue
            same = equal(plan, extents, other)
            assert same == plan_faults.have_one_text(plan, extents, other), n
            told[same] += 1
    different, same_again = told
    assert different > 100 and same_again < different // 4, told
