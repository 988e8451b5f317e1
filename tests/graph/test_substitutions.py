"""Every substitution is right, every condition of it is needed, and its labels are true."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tilewright.base.errors import InputError
from tilewright.frontends.onnx import load
from tilewright.graph.rules.check import check
from tilewright.graph.rules.driver import rewrite
from tilewright.graph.rules.rule import Rule
from tilewright.graph.rules.substitutions import SUBSTITUTIONS
from tilewright.graph.rules.substitutions.siblings import SiblingOperations

MANY = 80  # instances: enough for the rarest counterexample


def without(rule: Rule, n: int) -> Rule:
    """A rule without one of its conditions."""
    when = [c for k, c in enumerate(rule.when) if k != n]
    pattern = rule.pattern
    if isinstance(pattern, SiblingOperations):
        pattern = replace(pattern, alike=when)
    return replace(rule, when=when, pattern=pattern)


# ONNX asks for it, not arithmetic: `pads` of Conv in a file are not negative.
OF_THE_FORMAT = "padding-into-convolution: it crops nothing"
CONDITIONS = [
    pytest.param(without(rule, n), id=name)
    for rule in SUBSTITUTIONS
    for n, condition in enumerate(rule.when)
    if (name := f"{rule.name}: {condition.__doc__}") != OF_THE_FORMAT
]


@pytest.mark.parametrize(
    "instances", [5, pytest.param(60, marks=pytest.mark.slow)], ids=str
)
@pytest.mark.parametrize("rule", SUBSTITUTIONS, ids=lambda r: r.name)
def test_every_row_is_right(rule: Rule, instances: int) -> None:
    check(rule, seed=7, once=True, instances=instances)


@pytest.mark.parametrize(("first", "left"), [(1, 1), (-1, 2)])
def test_a_crop_is_not_a_convolutions_padding(first: int, left: int) -> None:
    source = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
      cropped (float[1,1,5] x) => (float[1,1,n] y)
      <int64[6] pads = {{0, 0, {first}, 0, 0, 1}}, float[1,1,2] w = {{1.0, 2.0}}>
      {{ padded = Pad(x, pads) y = Conv(padded, w) }}""")
    (rule,) = [r for r in SUBSTITUTIONS if r.name == "padding-into-convolution"]
    after = rewrite(load(source.SerializeToString()), [rule])
    assert len(after.operations) == left


@pytest.mark.parametrize(
    ("left", "right", "products"),
    [
        (("2,3", "2,4"), ("3,5", "4,5"), 1),
        (("2,3", "2,4"), ("3", "4"), 2),  # vectors
        (("7,2,3", "2,4"), ("3,5", "4,5"), 2),  # one for seven
        (("2,3", "2,4"), ("3,5", "7,4,5"), 2),
    ],
)
def test_sums_of_products_that_fit_are_one_product(
    left: tuple[str, str], right: tuple[str, str], products: int
) -> None:
    x, y = left
    z, w = right
    source = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
      blocks (float[{x}] x, float[{y}] y, float[{z}] z, float[{w}] w) => (float s)
      {{ a = MatMul(x, z) b = MatMul(y, w) s = Add(a, b) }}""")
    (rule,) = [r for r in SUBSTITUTIONS if r.name == "product-of-blocks"]
    after = rewrite(load(source.SerializeToString()), [rule])
    assert [o.op_type for o in after.operations].count("MatMul") == products


def test_a_sum_of_products_of_stacks_that_are_broadcast_stays() -> None:
    """Joining their factors failed the compilation."""
    source = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
      sum (float[2,8,3] a, float[1,8,3] b, float[2,3,8] c, float[2,3,8] d) => (float[2,8,8] y)
      { p = MatMul(a, c) q = MatMul(b, d) y = Add(p, q) }""")
    rng = np.random.default_rng(0)
    given = [
        rng.standard_normal((n, *side)).astype("f")
        for n, side in ((2, (8, 3)), (1, (8, 3)), (2, (3, 8)), (2, (3, 8)))
    ]
    a, b, c, d = given
    found = tw.compile(source, threads=1, cache=False)(*given)
    np.testing.assert_allclose(found, a @ c + b @ d, rtol=1e-5, atol=1e-5)


@pytest.fixture
def any_counterexample(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one will do: a small one takes many more draws."""
    monkeypatch.setattr(sys.modules[check.__module__], "MORE", 0)


@pytest.mark.usefixtures("any_counterexample")
@pytest.mark.parametrize("rule", CONDITIONS)
def test_every_condition_is_needed(rule: Rule) -> None:
    with pytest.raises(InputError, match=f"rule '{rule.name}': it (is wrong|fails) on"):
        check(rule, once=True, instances=MANY)


# The reference adds both sides in one order, or rounds both correctly; a kernel need not.
NOT_SEEN_TO_ROUND = {
    "average-pool-as-mean",
    "inverse-as-power",
    "inverse-root-as-power",
    "join-before-product",
    "join-behind-product",
    "mean-of-an-image",
    "padding-into-convolution",
    "pointwise-convolution-as-product",
    "product-and-sum-of-gemm",
    "gemm-of-product-and-sum",
    "product-of-gemm",
    "product-of-transposes",
    "product-into-table",
    "root-as-power",
    "root-of-a-square",
    "pairs-of-groups",
    "transpose-of-a-product",
    "wider-kernel",
}
ROUNDED = [
    rule
    for rule in SUBSTITUTIONS
    if not rule.exact and rule.name not in NOT_SEEN_TO_ROUND
]


@pytest.mark.usefixtures("any_counterexample")
@pytest.mark.parametrize("rule", ROUNDED, ids=lambda r: r.name)
def test_what_may_round_otherwise_does(rule: Rule) -> None:
    with pytest.raises(InputError, match="it is wrong on"):
        check(replace(rule, exact=True), once=True, instances=MANY)


# NumPy takes a root for this power; by IEEE 754 it differs from one at -0 and -infinity.
FINITE = [r for r in SUBSTITUTIONS if r.finite and r.name != "root-as-power"]


@pytest.mark.usefixtures("any_counterexample")
@pytest.mark.parametrize("rule", FINITE, ids=lambda r: r.name)
def test_what_holds_for_finite_numbers_alone_fails_for_others(rule: Rule) -> None:
    with pytest.raises(InputError, match=r"it is wrong on .*(inf|nan)"):
        check(replace(rule, finite=False), once=True, instances=MANY)


def test_rows_have_names_of_their_own() -> None:
    assert len({r.name for r in SUBSTITUTIONS}) == len(SUBSTITUTIONS)
