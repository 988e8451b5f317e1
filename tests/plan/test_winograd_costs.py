"""The cost of a Winograd form is asked for once for convolutions that are equal but for names."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from unittest.mock import Mock

import pytest

from tilewright.base.dtypes import float32
from tilewright.compute.build import map_, padded, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Expr
from tilewright.plan.nodes import FusionGroup, Step
from tilewright.plan.passes import winograd
from tilewright.plan.passes.winograd import WinogradForms, transform_convolutions

FILTERS = [Buffer(f"w{n}", (5, 4, 3, 3), float32) for n in range(2)]


def layer(
    n: int,
    side: int = 6,
    scale: float = 2.0,
    place: tuple[int, ...] | None = None,
) -> FusionGroup:
    """A convolution of its own tensors, and a map behind it.

    place: where its results begin in a larger tensor; None for one of their size.
    """
    x = Buffer(f"x{n}", (4, side, side), float32)
    shape = (5, side, side)
    t = Buffer(f"t{n}", shape, float32)
    y = Buffer(f"y{n}", tuple(d + 9 * (place is not None) for d in shape), float32)
    filters = FILTERS[n]

    def value(k: Expr, i: Expr, j: Expr, c: Expr, a: Expr, b: Expr) -> Expr:
        return padded(x, (c, i + a - 1, j + b - 1), 0.0) * filters[k, c, a, b]

    conv = reduce_(f"conv{n}", t, (4, 3, 3), "add", value)
    scaled = map_(
        f"map{n}",
        y,
        lambda *i: t[i] * scale,
        extents=shape,
        index=lambda *i: tuple(
            v + p if p else v for v, p in zip(i, place or (0, 0, 0), strict=True)
        ),
    )
    return FusionGroup(f"layer{n}", (conv, scaled))


class Costs:
    """Counts what is asked; costs: by the points of a tile, None for a form that is not taken.

    direct: of a convolution and a map.
    """

    def __init__(
        self,
        costs: dict[int, float | None],
        direct: float | None = 9.0,
    ) -> None:
        self.costs, self.direct = costs, direct
        self.asked: list[int] = []

    def __call__(
        self, group: Sequence[Computation], constants: Collection[Buffer] = ()
    ) -> float | None:
        if len(group) == 2:
            return self.direct
        points = len(group[1].outputs)
        self.asked.append(points)
        return self.costs[points]


def made(
    steps: Sequence[Step], costs: Costs, moved_ns: float = 0.0, near: int = 0
) -> list[int]:
    """The points of the tile of each layer, 0 for one that stays."""
    forms = WinogradForms((2, 4), costs, moved_ns, near)
    keep = {b for s in steps for b in s.writes if b.name.startswith("y")}
    after = transform_convolutions(steps, forms, set(FILTERS), keep)
    layers = [s for s in after if s.name.startswith("layer")]
    groups = [s for s in layers if not s.name.endswith((".in", ".out"))]
    return [
        len(s.computations[1].outputs) if len(s.computations) > 2 else 0
        for s in groups
        if isinstance(s, FusionGroup)
    ]


@pytest.mark.parametrize(
    ("costs", "tiles", "forms"),
    [
        ({16: 1.0, 36: 2.0}, 16, 3),
        ({16: 2.0, 36: 1.0}, 36, 4),
        ({16: None, 36: 1.0}, 36, 3),
        ({16: None, 36: None}, 0, 2),
    ],
)
def test_equal_layers_have_one_answer_for_each_tile(
    costs: dict[int, float | None],
    tiles: int,
    forms: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """forms: how many are made; the second layer's only where they may be the cheapest yet."""
    form = Mock(wraps=winograd._transformed)
    monkeypatch.setattr(winograd, "_transformed", form)
    asked = Costs(costs)
    assert made([layer(0), layer(1)], asked) == [tiles, tiles]
    assert asked.asked == [16, 36]
    assert form.call_count == forms


@pytest.mark.parametrize("start", [1, 5, 9])
def test_layers_that_fill_other_parts_of_a_tensor_have_one_answer(start: int) -> None:
    asked = Costs({16: 1.0, 36: 2.0})
    first, second = layer(0, place=(4, 0, 0)), layer(1, place=(start, 0, 0))
    assert made([first, second], asked) == [16, 16]
    assert asked.asked == [16, 36]


def test_a_layer_at_the_start_of_a_tensor_or_along_other_axes_has_its_own() -> None:
    """Dimensions merge where their index is a variable, and not where it is one and a constant."""
    for place in (None, (0, 0, 0), (0, 0, 4), (4, 0, 4)):
        asked = Costs({16: 1.0, 36: 2.0})
        first, other = layer(0, place=(4, 0, 0)), layer(1, place=place)
        assert made([first, other], asked) == [16, 16]
        assert asked.asked == [16, 36, 16, 36]


@pytest.mark.parametrize("change", [{"side": 8}, {"scale": 3.0}])
def test_layers_that_differ_have_their_own(change: dict[str, Any]) -> None:
    asked = Costs({16: 1.0, 36: 2.0})
    assert made([layer(0), layer(1, **change)], asked) == [16, 16]
    assert asked.asked == [16, 36, 16, 36]


# Of the image and of the result, whose channels are first: a copy of each.
IMAGE, RESULT = 4 * 6 * 6, 5 * 6 * 6


@pytest.mark.parametrize(
    ("direct", "moved_ns", "near", "tiles"),
    [
        (1.0 + IMAGE + RESULT, 1.0, 0, 16),
        (0.9 + IMAGE + RESULT, 1.0, 0, 0),
        (1.0 + RESULT, 1.0, 4 * IMAGE, 16),
        (0.9 + RESULT, 1.0, 4 * IMAGE, 0),
        (1.0 + RESULT, 1.0, 4 * IMAGE - 1, 0),
        (1.0, 1.0, 4 * RESULT, 16),
        (None, 0.0, 0, 0),
    ],
)
def test_a_form_takes_no_longer_than_the_convolution_with_its_copies(
    direct: float | None, moved_ns: float, near: int, tiles: int
) -> None:
    """The copies of tensors that are not near."""
    costs = Costs({16: 1.0, 36: None}, direct)
    assert made([layer(0)], costs, moved_ns, near) == [tiles]


def grouped() -> FusionGroup:
    """A convolution in three groups of two channels, and a map behind it."""
    x = Buffer("x", (6, 6, 6), float32)
    t, y = (Buffer(n, (6, 6, 6), float32) for n in "ty")
    w = Buffer("w", (6, 2, 3, 3), float32)

    def value(k: Expr, i: Expr, j: Expr, c: Expr, a: Expr, b: Expr) -> Expr:
        return padded(x, (k // 2 * 2 + c, i + a - 1, j + b - 1), 0.0) * w[k, c, a, b]

    conv = reduce_("conv", t, (2, 3, 3), "add", value)
    return FusionGroup("grouped", (conv, map_("map", y, lambda *i: t[i] * 2.0)))


@pytest.mark.parametrize(("least", "kernels"), [(50.0, 3), (51.0, 0)])
def test_each_group_of_channels_takes_long_enough_for_a_kernel(
    least: float, kernels: int
) -> None:
    """By estimate; in any case where the form is named."""
    group = grouped()
    forms = WinogradForms((2,), lambda *_: 50.0, group_ns=least)
    keep = {group.computations[-1].outputs[0].tensor}
    weights = {b for b in group.reads if b.name == "w"}
    for named, count in (({}, kernels), ({group: "F(2)"}, 3)):
        found = transform_convolutions([group], forms, weights, keep, named)
        assert sum(step.name.endswith("F(2,3)") for step in found) == count
