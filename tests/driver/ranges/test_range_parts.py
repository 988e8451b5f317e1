"""Ranges in parts: the box that agrees, what is left, and where plans change their form."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tests.driver.ranges.test_ranged import HEAD
from tilewright.base.errors import UnsupportedError
from tilewright.driver.dims import combinations
from tilewright.driver.ranges import ranged
from tilewright.driver.ranges.range_parts import (
    box_of,
    cover_of,
    of_one_form,
    outside,
    without_odd,
)
from tilewright.driver.ranges.sample_points import pattern
from tilewright.runtime.dispatch import Allowed

ALLOWED: Allowed = {"h": range(1, 31), "w": range(1, 21)}
LISTED: Allowed = {"h": (1, 2, 4, 8, 16, 32, 64)}


@pytest.mark.parametrize(
    ("inside", "count"),
    [
        ({"h": range(4, 31), "w": range(2, 21)}, 4),  # 1, 2 and 3, and a width of 1
        ({"h": range(5, 31), "w": range(1, 21)}, 1),  # 1 to 4 in one part
        ({"h": range(5, 25), "w": range(5, 19)}, 5),  # below and above; 19 and 20 alone
        (ALLOWED, 0),
    ],
)
def test_what_is_left_is_in_few_parts_that_do_not_meet(
    inside: Allowed, count: int
) -> None:
    parts = list(outside(ALLOWED, inside))
    assert len(parts) == count
    found = [tuple(e.values()) for part in (inside, *parts) for e in combinations(part)]
    assert sorted(found) == sorted(tuple(e.values()) for e in combinations(ALLOWED))


def test_listed_values_are_parts_too() -> None:
    assert list(outside(LISTED, {"h": (16, 32, 64)})) == [{"h": (1, 2, 4, 8)}]
    mixed: Allowed = {"h": (16, 8, 64, 2, 4, 1)}
    assert list(outside(mixed, {"h": (16, 64)})) == [{"h": (8, 2, 4, 1)}]


@pytest.mark.parametrize(
    ("form", "want"),
    [
        (lambda h, w: h > 7, {"h": range(8, 31), "w": range(1, 21)}),
        (lambda h, w: (h > 7, h > 25), {"h": range(8, 26), "w": range(1, 21)}),
        (lambda h, w: min(w, 4), {"h": range(1, 31), "w": range(4, 21)}),
        (lambda h, w: 0, None),
    ],
)
def test_plans_of_one_form_are_an_interval(
    form: Callable[[int, int], Any], want: Allowed | None
) -> None:
    asked: list[dict[str, int]] = []

    def form_at(extents: Any) -> Any:
        asked.append(extents)
        return form(*extents.values())

    assert of_one_form(ALLOWED, form_at) == want
    assert asked[0] == pattern(ALLOWED)
    assert len(asked) < 20


def test_a_pattern_that_does_not_agree_has_no_box() -> None:
    start = tuple(pattern(ALLOWED).values())
    assert box_of(ALLOWED, {start: False}) is None
    assert box_of(ALLOWED, {start: True}) == {
        name: range(n, n + 1) for name, n in zip("hw", start, strict=True)
    }


def test_a_box_ends_before_what_does_not_agree_on_either_side() -> None:
    """What agrees behind that is not in it, and neither are the others there odd."""
    allowed: Allowed = {"h": range(1, 31)}
    (n,) = pattern(allowed).values()
    compared = {(n + k,): abs(k) != 4 for k in (-6, -4, -2, 0, 2, 4, 6)}
    box = box_of(allowed, compared)
    assert box == {"h": range(n - 2, n + 3)}
    assert cover_of(box, compared)[1] == frozenset()
    assert cover_of(box, {**compared, (n + 1,): False})[1] == {(n + 1,)}


def test_ends_of_a_box_are_cut_once_and_never_the_pattern() -> None:
    box = {"h": range(1, 6), "w": range(1, 6)}
    # Without its first row, the second odd one is outside already.
    cut = without_odd(box, [(1, 1), (1, 5)], (3, 2))
    assert cut == {"h": range(2, 6), "w": range(1, 6)}
    cut = without_odd(box, [(1, 1)], (1, 2))
    assert cut == {"h": range(1, 6), "w": range(2, 6)}


def test_the_sizes_of_a_pattern_differ() -> None:
    """Equal ones would make one constant of two, the weights of both axes."""
    square = {n: range(10, 70) for n in "bhw"}
    assert len(set(pattern(square).values())) == 3
    assert pattern({"h": range(4, 5), "w": range(4, 5)}) == {"h": 4, "w": 4}


CAUSAL = (
    "(float[1, 2, n] x) => (y) { "
    "a = Conv<pads = [6, 0], dilations = [6]>(x, u) r = Relu(a)"
    " y = Conv<pads = [12, 0], dilations = [12]>(r, v) }"
)


def causal() -> onnx.ModelProto:
    source = onnx.parser.parse_model(HEAD + CAUSAL)
    rng = np.random.default_rng(0)
    for name in "uv":
        array = rng.standard_normal((2, 2, 2)).astype(np.float32)
        source.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return source


def test_a_window_longer_than_the_sequence_divides_the_range() -> None:
    """Below 13 elements, the second convolution reads nothing but its border at one tap."""
    source = causal()
    how: Any = {"jit": False, "threads": 1, "cache": False}
    exe: Any = tw.compile(source, dims={"n": (4, 300)}, **how)
    assert len(exe.model.shared) > 1
    theirs = ReferenceEvaluator(source)
    rng = np.random.default_rng(0)
    for n in (4, 6, 7, 11, 12, 13, 14, 100, 299, 300):
        x = rng.standard_normal((1, 2, n)).astype(np.float32)
        (want,) = theirs.run(None, {"x": x})
        np.testing.assert_allclose(exe(x), want, rtol=1e-4, atol=1e-5)


def test_a_part_that_has_shared_code_is_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where all of the range needs too much code; in the steps that were given."""
    monkeypatch.setattr(ranged, "TOGETHER", 2)
    monkeypatch.setattr(ranged, "ALONE", 0)
    source = causal()
    how: Any = {"jit": False, "threads": 1, "cache": False}
    with pytest.raises(UnsupportedError, match="2 at n = 10 and 1 at n = 6") as told:
        tw.compile(source, dims={"n": (4, 300, 2)}, **how)
    hint = str(told.value.hint)
    assert hint.startswith("plans are alike in a part of the range"), hint
    part = ast.literal_eval(hint.partition("dims=")[2])
    assert part["n"][1:] == (300, 2), part
    exe: Any = tw.compile(source, dims=part, **how)
    assert len(exe.model.shared) == 1 and not exe.model.single, exe
