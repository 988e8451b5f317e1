"""Forms of convolutions that are named: used whatever they cost, if all else permits them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pytest

from tilewright.base.dtypes import float32
from tilewright.compute.build import map_, padded, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Expr
from tilewright.plan.decisions import DIRECT, WINDOWS, has_window, may_differ
from tilewright.plan.nodes import FusionGroup, Step
from tilewright.plan.passes.split_windows import split_windows
from tilewright.plan.passes.winograd import WinogradForms, transform_convolutions

WEIGHTS = Buffer("w", (5, 4, 3, 3), float32)


def layer(name: str, dilation: int = 1, weights: Buffer = WEIGHTS) -> FusionGroup:
    """A convolution of 4 channels of 8x8 elements to 5 channels; channels are in front."""
    x = Buffer(f"x_{name}", (4, 8, 8), float32)
    y = Buffer(f"y_{name}", (5, 8, 8), float32)
    d = dilation

    def value(k: Expr, i: Expr, j: Expr, c: Expr, a: Expr, b: Expr) -> Expr:
        at = (c, i + a * d - d, j + b * d - d)
        return padded(x, at, 0.0) * weights[k, c, a, b]

    return FusionGroup(name, (reduce_("conv", y, (4, 3, 3), "add", value),))


class Refusals(list[tuple[str, str]]):
    """What was refused: groups and forms."""

    def __call__(self, group: FusionGroup, form: str) -> None:
        self.append((group.name, form))


def cost(group: Sequence[Computation], constants: Collection[Buffer] = ()) -> float:
    return 1.0


def never(
    group: Sequence[Computation], constants: Collection[Buffer] = ()
) -> float | None:
    return None


def products(steps: Sequence[Step]) -> list[int]:
    """For each product: the points of its tile, 0 for a direct convolution."""
    groups = [s for s in steps if isinstance(s, FusionGroup)]
    whole = [g for g in groups if not g.name.endswith((".in", ".out"))]
    return [
        len(g.computations[1].outputs) if len(g.computations) > 2 else 0 for g in whole
    ]


def formed(
    groups: Sequence[FusionGroup],
    named: dict[FusionGroup, str],
    tiles: Sequence[int] = (2, 4),
    asked: object = cost,
) -> tuple[list[int], Refusals]:
    refused = Refusals()
    forms = WinogradForms(tiles, asked, 10**6)  # type: ignore[arg-type]
    kept = {b for g in groups for b in g.writes}
    found = transform_convolutions(groups, forms, {WEIGHTS}, kept, named, refused)
    return products(found), refused


@pytest.mark.parametrize(("form", "points"), [("F(2)", 16), ("F(4)", 36)])
def test_a_tile_that_is_named_is_used_whatever_is_expected(
    form: str, points: int
) -> None:
    """By the estimate there is none: the target prefers another form, and copies do not pay."""
    one, other = layer("one"), layer("other")
    found, refused = formed([one, other], {one: form}, asked=never)
    assert (found, refused) == ([points, 0], [])


@pytest.mark.parametrize("form", [DIRECT, WINDOWS])
def test_a_form_that_is_not_winograds_is_left_alone(form: str) -> None:
    """`other` shows that the estimate would transform both; it does where copies are free."""
    one, other = layer("one"), layer("other")
    forms = WinogradForms((2,), cost, 0)
    kept = {*one.writes, *other.writes}
    refused = Refusals()
    named = {one: form}
    steps = transform_convolutions([one, other], forms, {WEIGHTS}, kept, named, refused)
    assert (products(steps), refused) == ([0, 16], [])


def test_a_named_form_does_not_price_an_equal_convolution() -> None:
    """`other` equals `one`: it is still asked about, and the target prefers another form."""
    one, other = layer("one"), layer("other")
    forms = WinogradForms((2,), never, 0)
    for order, points in (((one, other), [16, 0]), ((other, one), [0, 16])):
        kept = {*one.writes, *other.writes}
        steps = transform_convolutions(order, forms, {WEIGHTS}, kept, {one: "F(2)"})
        assert products(steps) == points


@pytest.mark.parametrize(
    ("form", "tiles", "group"),
    [
        ("F(4)", (2,), layer("l")),  # `math` does not allow it
        ("F(2)", (), layer("l")),
        ("F(6)", (2, 4), layer("l")),  # there is no such form
        ("F(2)", (2,), layer("l", dilation=2)),  # the law does not hold
        ("F(2)", (2,), layer("l", weights=Buffer("v", (5, 4, 3, 3), float32))),
    ],
)
def test_a_form_that_is_not_possible_is_refused(
    form: str, tiles: Sequence[int], group: FusionGroup
) -> None:
    """The last one's weights are known only at run time."""
    assert formed([group], {group: form}, tiles) == ([0], [("l", form)])


def test_a_refused_form_leaves_the_estimate_to_decide() -> None:
    one = layer("one")
    forms = WinogradForms((2,), cost, 0)
    refused = Refusals()
    steps = transform_convolutions(
        [one], forms, {WEIGHTS}, one.writes, {one: "F(4)"}, refused
    )
    assert (products(steps), refused) == ([16], [("one", "F(4)")])


DATA = {WEIGHTS: np.ones(WEIGHTS.shape, np.float32)}


def split(
    group: FusionGroup, form: str | None, gain: float, data: object = None
) -> tuple[int, Refusals]:
    """How many groups a convolution becomes."""
    refused = Refusals()
    named = {} if form is None else {group: form}
    given = DATA if data is None else data
    found = split_windows([group], given, cost, gain, named, refused)  # type: ignore[arg-type]
    return len(found), refused


def test_windows_are_split_as_named() -> None:
    wide = layer("wide", dilation=5)
    assert split(wide, None, gain=0.0) == (1, [])
    assert split(wide, WINDOWS, gain=0.0) == (10, [])
    assert split(wide, None, gain=1e9) == (10, [])
    for other in (DIRECT, "F(2)"):
        assert split(wide, other, gain=1e9) == (1, [])


def test_windows_with_factors_that_are_not_finite_stay_whole() -> None:
    wide = layer("wide", dilation=5)
    odd = {WEIGHTS: np.full(WEIGHTS.shape, np.inf, np.float32)}
    assert split(wide, WINDOWS, 1e9, odd) == (1, [("wide", WINDOWS)])
    assert split(wide, WINDOWS, 1e9, {}) == (1, [("wide", WINDOWS)])


def test_only_convolutions_may_differ() -> None:
    x, y = Buffer("x", (6, 7), float32), Buffer("y", (6, 5), float32)
    v = Buffer("v", (7, 5), float32)
    product = reduce_("product", y, (7,), "add", lambda i, j, k: x[i, k] * v[k, j])
    assert may_differ(layer("l"))
    assert not may_differ(FusionGroup("p", (product,)))
    assert not may_differ(FusionGroup("hand-written", ()))


def window(taps: tuple[int, int], weighted: bool = True) -> FusionGroup:
    """A convolution, or a sum of windows without weights."""
    x, y = Buffer("x", (4, 8, 8), float32), Buffer("y", (5, 8, 8), float32)
    w = Buffer("w", (5, 4, *taps), float32)

    def value(k: Expr, i: Expr, j: Expr, c: Expr, a: Expr, b: Expr) -> Expr:
        read = padded(x, (c, i + a - taps[0] // 2, j + b - taps[1] // 2), 0.0)
        return read * w[k, c, a, b] if weighted else read

    return FusionGroup("window", (reduce_("window", y, (4, *taps), "add", value),))


def test_other_windows_than_winograds_may_be_split() -> None:
    assert not has_window(window((1, 5)))
    assert may_differ(window((1, 5)))
    assert has_window(window((3, 3), weighted=False))
    assert not may_differ(window((3, 3), weighted=False))


def test_winograds_window_is_followed_by_one_map_at_most() -> None:
    (conv,) = layer("l").computations
    y = conv.outputs[0].tensor
    maps = []
    for n in range(2):
        z = Buffer(f"z{n}", y.shape, float32)
        maps.append(map_(f"add{n}", z, lambda *i, y=y: y[i] + 1.0))
        y = z
    assert has_window(FusionGroup("one", (conv, maps[0])))
    assert not has_window(FusionGroup("two", (conv, *maps)))
