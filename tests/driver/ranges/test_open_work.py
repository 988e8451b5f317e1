"""The flops and bytes of code for ranges follow the sizes of the call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.driver.ranges import test_positions, test_ranged
from tilewright.base.dtypes import float32, int32
from tilewright.driver.ranges.open_work import flops_formula
from tilewright.expr.nodes import INDEX, Buffer, Load, Var, const
from tilewright.loops.nodes import If, Kernel, Stmt, Store, block, loop
from tilewright.plan.nodes import OpenExtent
from tilewright.runtime.formulas import value

HOW: Any = {"threads": 1, "cache": False}
CONVOLUTION = [
    ("Conv", {"pads": [1] * 4}, (16, 16, 3, 3)),
    ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}, ()),
]
WINOGRAD = [
    ("Conv", {}, (48, 4, 1, 1)),
    ("Conv", {"pads": [1] * 4}, (48, 48, 3, 3)),
    CONVOLUTION[1],
]
IMAGES: Any = {"n": 1, "h": (9, 30), "w": (8, 30, 2)}


def ones(source: Any, sizes: dict[str, int]) -> np.ndarray[Any, Any]:
    dims = source.graph.input[0].type.tensor_type.shape.dim
    return np.ones([sizes.get(d.dim_param, d.dim_value) for d in dims], np.float32)


@pytest.mark.representatives("rows")  # images: their Winograd form below
@pytest.mark.parametrize(
    ("source", "dims", "off"),
    [
        (test_ranged.model(test_ranged.MODELS["products"]), {"n": (3, 40)}, 0.0),
        # Scores grow with n²; the results, which are divided in their place, with n.
        pytest.param(
            test_ranged.model(test_ranged.MODELS["attention"]),
            {"n": (9, 40)},
            0.02,
            marks=pytest.mark.slow,
        ),
        (test_positions.model(CONVOLUTION), IMAGES, 0.0),
        pytest.param(
            test_positions.model(WINOGRAD),
            {"n": 1, "h": (12, 20), "w": 20},
            0.0,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["rows", "scores", "images", "winograd"],
)
def test_a_profile_counts_what_the_call_computes(
    source: Any, dims: Any, off: float, tmp_path: Path
) -> None:
    """As the code of one shape does, at both ends; also in an artifact."""
    exe: Any = tw.compile(source, dims=dims, jit=False, **HOW)
    exe.save(tmp_path / "m.tw")
    exe = tw.load(tmp_path / "m.tw", threads=1)
    ranges = {n: e for n, e in dims.items() if isinstance(e, tuple)}
    moved: list[int] = []
    for at in (lambda e: e[0], lambda e: e[1]):
        sizes = {n: at(e) for n, e in ranges.items()}
        x = ones(source, sizes | {"n": sizes.get("n", 1), "w": sizes.get("w", 20)})
        alone: Any = tw.compile(source, dims={**dims, **sizes}, optimize="off", **HOW)
        want = sum(k.flops for k in alone.model.kernels)
        rows = exe.profile(x, repeat=1).rows
        assert sum(r.flops for r in rows) == pytest.approx(want, rel=off, abs=0), sizes
        moved.append(sum(r.bytes for r in rows))
        assert moved[-1] > x.nbytes and max(r.gflops for r in rows) > 0
    assert moved[1] > moved[0]


def test_in_winograd_s_form_the_products_of_its_tiles_count() -> None:
    dims: Any = {"n": 1, "h": (12, 20), "w": 12}
    exe: Any = tw.compile(test_positions.model(WINOGRAD), dims=dims, jit=False, **HOW)
    found, tiles = [], {}
    for h in (12, 19):
        made = exe.specialized({"x": np.ones((1, 4, h, 12), np.float32)}).model
        found.append(max(k.flops for k in made.kernels))
        for t in (2, 4):
            count = -(-h // t) * -(-12 // t)
            tiles.setdefault(t, []).append(2 * (t + 2) ** 2 * count * 48 * 48)
    assert found in tiles.values()


N = Var("n", INDEX)
SIZES = [OpenExtent(N, 1, 64, Buffer("count", (1,), float32), counted=4)]


def nest(dtype: Any, *bodies: Stmt) -> Kernel:
    i = Var("i", INDEX)
    x, y = Buffer("x", (N,), dtype), Buffer("y", (N,), dtype)
    stored = Store(y, (i,), Load(x, (i,)) + Load(x, (i,)))
    return Kernel("k", (x, y), (y,), block(loop(i, N, stored), *bodies))


def test_proportions_are_those_of_the_statements() -> None:
    """Each does at least one operation; an unknown loop counts once, and so does a condition."""
    i, j, k = (Var(name, INDEX) for name in "ijk")
    z = Buffer("y", (N,), float32)
    triangle = loop(i, N, loop(j, i, loop(k, 3, Store(z, (i,), const(0.0, float32)))))
    for dtype in (float32, int32):
        made = flops_formula(nest(dtype), 12, SIZES)
        assert [value(made, {"n": n}) for n in (1, 4, 64)] == [3, 12, 192]
    guarded = If(i < N, triangle, None)
    made = flops_formula(nest(float32, guarded), 16, SIZES)
    assert [value(made, {"n": n}) for n in (1, 4, 64)] == [4, 16, 256]
    made = flops_formula(nest(float32, loop(i, N, triangle)), 4 + 12 * 4, SIZES)
    assert [value(made, {"n": n}) for n in (4, 8)] == [52, 8 + 24 * 8]
    assert flops_formula(nest(float32), 0, SIZES) == 0


def test_without_a_place_flops_were_counted_at_the_most() -> None:
    made = flops_formula(nest(float32), 128, [OpenExtent(N, 1, 64, SIZES[0].source)])
    assert value(made, {"n": 2}) == 4
