"""One executable for a range: windows with a stride along open sizes, whose extents are floors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tests.driver.ranges import random_windows
from tests.driver.ranges.test_ranged import HEAD
from tilewright.base.errors import UnsupportedError
from tilewright.driver.options import Options
from tilewright.driver.ranges import compared_plans, sample_points
from tilewright.driver.ranges.size_products import SizeSum
from tilewright.driver.ranges.size_terms import Basis, SizeTerm
from tilewright.driver.sources import import_model
from tilewright.graph.interp import evaluate
from tilewright.graph.specialize import specialize
from tilewright.runtime.ranged import RangedExecutable

SHAPES = {
    "v": (4, 3, 3, 3),
    "u": (4, 4, 3, 3),
    "o": (4, 3, 1, 1),
    "g": (4, 5),
    "b": (5,),
}
SHAPES |= {"p": (8, 3, 4, 4), "q": (8, 6), "k": (14, 3, 3, 3)}
STEM = (
    "a = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(x, v) r = Relu(a)"
    " m = MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(r)"
)
MODELS = {
    "a convolution": "y = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(x, v)",
    "three steps, two behind": "y = Conv<strides = [3, 1], pads = [0, 1, 2, 1]>(x, v)",
    "the same extent": 'y = Conv<strides = [2, 2], auto_pad = "SAME_UPPER">(x, v)',
    "dilated": "y = Conv<strides = [2, 1], dilations = [2, 1]>(x, v)",
    "a pooling": "y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)",
    "rounded up": "y = MaxPool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1>(x)",
    "a mean, rounded up": "y = AveragePool<kernel_shape = [2, 2], strides = [2, 2],"
    " ceil_mode = 1>(x)",
    "a stem": STEM + " y = Conv<pads = [1, 1, 1, 1]>(m, u)",
    "a residual": STEM + " c = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(m, u)"
    " s = Conv<strides = [4, 4]>(x, o) z = MaxPool<kernel_shape = [1, 1], strides = [2, 2]>(s)"
    " y = Add(c, z)",
    "a small network": "a = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(x, v) r = Relu(a)"
    " c = Conv<pads = [1, 1, 1, 1]>(r, u)"
    " m = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(c)"
    " d = MaxPool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1>(m)"
    " e = GlobalAveragePool(d) f = Flatten(e) y = Gemm(f, g, b)",
    "a padded mean": "y = AveragePool<kernel_shape = [3, 3], strides = [2, 2],"
    " pads = [1, 0, 1, 0]>(x)",
    "a border that pays at some sizes alone": "a = Conv<strides = [5, 3]>(x, v)"
    " c = Conv<pads = [1, 1, 1, 1]>(a, u) y = Relu(c)",
    "halves": "l, d = Split<axis = 2, num_outputs = 2>(x) n = Neg(d)"
    " y = Concat<axis = 2>(n, l)",
    "patches": "a = Conv<strides = [4, 4]>(x, p) i = Constant<value_ints = [0, 0, -1]>()"
    " c = Reshape(a, i) t = Transpose<perm = [0, 2, 1]>(c) y = MatMul(t, q)",
}
SLOW = {"three steps, two behind", "dilated", "a stem", "a pooling", "halves"}
HEADS = (
    "a = Conv<pads = [1, 1, 1, 1]>(x, k) s = Transpose<perm = [0, 2, 3, 1]>(a)"
    " i = Constant<value_ints = [1, -1, 7]>() t = Reshape(s, i)"
    " c = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(x, k)"
    " d = Transpose<perm = [0, 2, 3, 1]>(c) e = Reshape(d, i) y = Concat<axis = 1>(t, e)"
)
NAMES = [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in MODELS]
HOW: Any = {"jit": False, "threads": 1, "cache": False}


def model(name: str, width: str = "17") -> onnx.ModelProto:
    body = HEADS if name == "heads" else MODELS[name]
    text = f"(float[1, 3, h, {width}] x) => (float[1, i, j, k] y) {{ {body} }}"
    made = onnx.parser.parse_model(HEAD + text)
    made.graph.output[0].type.tensor_type.ClearField("shape")
    used = {i for node in made.graph.node for i in node.input}
    rng = np.random.default_rng(1)
    for n, shape in SHAPES.items():
        if n in used:
            array = rng.standard_normal(shape).astype(np.float32)
            made.graph.initializer.append(onnx.numpy_helper.from_array(array, n))
    return made


def compared(exe: Any, source: onnx.ModelProto, points: list[tuple[int, int]]) -> None:
    """With ONNX's reference, and with ours."""
    theirs = ReferenceEvaluator(source)
    graph = import_model(source, (), Options.of({}))
    for h, w in points:
        rng = np.random.default_rng(h * 1000 + w)
        x = rng.standard_normal((1, 3, h, w)).astype(np.float32)
        found = exe(x)
        sized = specialize(graph, {"h": h, "w": w})
        for (want,) in (theirs.run(None, {"x": x}), evaluate(sized, {"x": x}).values()):
            assert found.shape == want.shape, (h, w)
            np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NAMES)
def test_one_code_is_right_at_every_size(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TILEWRIGHT_DEBUG", "1")
    source = model(name)
    exe: Any = tw.compile(source, dims={"h": (16, 29)}, **HOW)
    assert isinstance(exe, RangedExecutable)
    assert [len(s.covers) for s in exe.model.shared] == [14], exe
    exe.save(tmp_path / "m.tw")
    loaded = tw.load(tmp_path / "m.tw", threads=2)
    compared(exe, source, [(h, 17) for h in range(16, 30)])
    compared(loaded, source, [(16, 17), (25, 17), (29, 17)])


def test_one_size_alone_has_windows_that_reach_beyond_the_end() -> None:
    source = model("a convolution")
    source.graph.node[0].attribute[0].ints[0] = 7
    assert source.graph.node[0].attribute[0].name == "strides"
    exe: Any = tw.compile(source, dims={"h": (20, 26)}, **HOW)
    assert [len(s.covers) for s in exe.model.shared] == [7], exe
    compared(exe, source, [(h, 17) for h in range(20, 27)])


# a stem: in test_one_code_is_right_at_every_size
@pytest.mark.representatives("patches")
@pytest.mark.parametrize("name", ["a stem", "a small network", "patches"])
def test_height_and_width_are_open(name: str) -> None:
    source = model(name, "w")
    exe: Any = tw.compile(source, dims={"h": (18, 24), "w": (17, 22)}, **HOW)
    assert [len(s.covers) for s in exe.model.shared] == [42], exe
    points = [(18, 17), (18, 22), (24, 17), (24, 22), (21, 21), (22, 20), (23, 19)]
    compared(exe, source, points)


def test_heads_of_a_detector_write_parts_of_one_result() -> None:
    """Several boxes at each position of maps of several sizes, both open."""
    source = model("heads", "w")
    exe: Any = tw.compile(source, dims={"h": (8, 40, 8), "w": (8, 40, 8)}, **HOW)
    assert [len(s.covers) for s in exe.model.shared] == [25], exe
    compared(exe, source, [(8, 8), (8, 40), (40, 24)])


def test_heads_over_maps_of_any_size_write_parts_of_one_result() -> None:
    """The maps have h * w and (h + 1) // 2 * (w + 1) // 2 positions: a sum of two products."""
    source = model("heads", "w")
    exe: Any = tw.compile(source, dims={"h": (8, 19), "w": (7, 15)}, **HOW)
    assert [len(s.covers) for s in exe.model.shared] == [12 * 9], exe
    compared(exe, source, [(8, 7), (8, 15), (19, 7), (19, 15), (13, 10)])


def test_of_a_wide_range_some_sizes_are_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sample_points, "FEW", 40)
    monkeypatch.setattr(sample_points, "COMPARED", 40)
    monkeypatch.setattr(sample_points, "SAMPLED", 8)
    source = model("a residual")
    exe: Any = tw.compile(source, dims={"h": (16, 130)}, **HOW)
    assert [len(s.covers) for s in exe.model.shared] == [115], exe
    compared(exe, source, [(h, 17) for h in (16, 17, 30, 31, 100, 113, 129, 130)])


@pytest.mark.parametrize("mcpu", ["x86-64-v2", "x86-64-v3"])
def test_of_two_wide_ranges_pairs_are_planned(
    monkeypatch: pytest.MonkeyPatch, mcpu: str
) -> None:
    compared_at: list[int] = []
    equal = compared_plans.equal

    def counted(*given: Any) -> bool:
        compared_at.append(1)
        return equal(*given)

    monkeypatch.setattr(compared_plans, "equal", counted)
    monkeypatch.setattr(compared_plans, "workers", lambda *_: 1)
    source = model("a residual", "w")
    dims = {"h": (32, 190), "w": (33, 200)}
    exe: Any = tw.compile(source, dims=dims, mcpu=mcpu, **HOW)
    assert [len(s.covers) for s in exe.model.shared] == [159 * 168], exe
    assert 20 < len(compared_at) < 75
    random = np.random.default_rng(0)
    points = [
        (int(random.integers(32, 191)), int(random.integers(33, 201)))
        for _ in range(12)
    ]
    compared(exe, source, [(32, 33), (190, 200), (32, 200), (190, 33), *points])


@pytest.mark.representatives("0", "2")
@pytest.mark.parametrize("seed", range(3))
def test_random_networks_of_windows(seed: int) -> None:
    assert random_windows.run(seed) == "right"


@pytest.mark.slow
def test_many_random_networks_of_windows() -> None:
    """Those that share no code have plans of several forms, which `run` checks."""
    found = [random_windows.run(seed) for seed in range(100, 200)]
    assert found.count("right") > 70


def test_plans_with_a_border_at_some_sizes_have_several_forms() -> None:
    """The last window reaches the border below at even heights alone."""
    source = random_windows.network(188, 16)
    assert random_windows.forms(source, [{"h": h} for h in (16, 22, 28)]) == 1
    assert random_windows.forms(source, [{"h": h} for h in (16, 17)]) == 2


FLOORS = {
    "h": (SizeTerm("h"), SizeTerm("h", 2, 1), SizeTerm("h", 12, 3)),
    "w": (SizeTerm("w"),),
}


def test_a_size_with_each_remainder_is_compared() -> None:
    allowed = {"h": range(16, 400), "w": range(1, 40)}
    points = sample_points.first_points(allowed, FLOORS)
    found = sample_points.compared_points(allowed, points, FLOORS)
    start = sample_points.pattern(allowed)
    line = {p["h"] % 12 for p in found if p["w"] == start["w"]}
    assert line == set(range(12))
    long = {**FLOORS, "h": (*FLOORS["h"], SizeTerm("h", 64), SizeTerm("h", 9))}
    with pytest.raises(UnsupportedError, match="come again only after 576 sizes"):
        sample_points.compared_points(allowed, points, long)


def test_a_mean_over_a_map_that_both_sizes_change_has_its_divisor() -> None:
    """It is 8 at the pattern, 6 by height, 12 by width, and 9, not 10, where both have changed."""
    averaged_right()


def test_a_guess_that_is_wrong_at_a_corner_is_wrong_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the divisor is taken for a sum, as where no planned size has both changed, two corners
    differ. Leaving out their heights does not make the rest right."""

    def inner(extents: Any, terms: Any, start: Any) -> int:
        (name,) = {t.size for t in terms}
        told = [
            (
                sum(t.at({name: n}) != t.at(start) for t in terms),
                -abs(n - start[name]),
                n,
            )
            for n in sorted(extents)[1:-1]
        ]
        return int(max(told)[-1])

    monkeypatch.setattr(SizeSum, "is_told_from_products", lambda *_: True)
    monkeypatch.setattr(sample_points, "_other", inner)
    averaged_right()


AVERAGED = """<ir_version: 8, opset_import: ["" : 18]>
      net (float[1, 3, h, w] x) => (float[] y) {
        a = MaxPool<kernel_shape=[2, 2], pads=[1, 1, 1, 1], strides=[2, 2]>(x)
        b = AveragePool<ceil_mode=1, count_include_pad=1, kernel_shape=[2, 2],
          pads=[1, 1, 1, 1], strides=[2, 3]>(a)
        c = MaxPool<kernel_shape=[3, 5], pads=[1, 2, 1, 2], strides=[2, 2]>(b)
        y = GlobalAveragePool(c) }"""


def averaged_right() -> None:
    model = onnx.parser.parse_model(AVERAGED)
    dims = {"h": (16, 29), "w": (16, 22)}
    exe: Any = tw.compile(model, dims=dims, jit=False, cache=False, mcpu="x86-64-v3")
    reference = ReferenceEvaluator(model)
    for h, w in [(16, 16), (17, 22), (18, 22), (20, 20), (21, 22), (22, 22), (29, 22)]:
        x = np.random.default_rng(h).standard_normal((1, 3, h, w)).astype("f")
        (want,) = reference.run(None, {"x": x})
        np.testing.assert_allclose(exe(x), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("allowed", "w"),
    [
        ({"h": range(18, 30), "w": range(16, 26)}, SizeTerm("w", 8, 1)),
        ({"h": range(18, 30), "w": range(16, 23)}, SizeTerm("w", 6, 2)),  # only at 22
    ],
)
def test_a_corner_has_other_floors_than_the_pattern_along_each_size(
    allowed: dict[str, range], w: SizeTerm
) -> None:
    """Products of floors that change along one size at a time alone look like sums."""
    terms = {"h": (SizeTerm("h"), SizeTerm("h", 8, 1)), "w": (SizeTerm("w"), w)}
    points = sample_points.first_points(allowed, terms)
    start = points[0]
    assert any(
        all(t.at(p) != t.at(start) for t in (*terms["h"], *terms["w"])) for p in points
    )
    slow = SizeTerm("h"), SizeTerm("h", 4)  # at 23, neither h - h // 4 nor h // 4 is
    near = {"h": range(16, 30), "w": range(16, 23)}
    told = sample_points.first_points(near, {"h": slow, "w": (SizeTerm("w"),)})
    assert any(p["h"] % 4 == told[0]["h"] % 4 and p != told[0] for p in told)
    basis = Basis.of(points, terms)
    products = [((p["h"] + 1) // 8) * w.at(p) for p in points]
    factors = basis.factors(products)
    assert factors is not None
    form = SizeSum.through(factors, start, products[0])
    assert [form.at(p) for p in points] != products
