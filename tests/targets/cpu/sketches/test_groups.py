"""Narrow groups of convolutions in vectors that span several of them: equal, and only there."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.targets.cpu.sketches.test_sketches import native
from tilewright.base.dtypes import DType, bfloat16, float32
from tilewright.compute.build import cast, map_, reduce_
from tilewright.compute.interp import evaluate
from tilewright.compute.nodes import Computation
from tilewright.compute.transforms import follow
from tilewright.expr.nodes import Buffer
from tilewright.schedule.space.patterns import KernelPattern, classify
from tilewright.targets.cpu.compile import assembly
from tilewright.targets.cpu.machine import machine
from tilewright.targets.cpu.predict import predicted_time
from tilewright.targets.cpu.sketches import Context, sketches
from tilewright.targets.cpu.sketches.groups import in_best_form, joined_groups
from tilewright.testing.random_kernels import plain

WIDE = machine("znver4")
TAPS = 3


def grouped(
    groups: int = 8,
    width: int = 4,
    taken: int | None = None,
    dtype: DType = float32,
    columns: int = 10,
    rows: int = 6,
    combine: str = "add",
    form: str = "",
) -> tuple[list[Computation], Buffer]:
    """A convolution of one row of taps per group, and a map after it; the weights.

    taken: channels that a group reads. form: what else is not as usual.
    """
    depth = width if taken is None else taken
    shape = (rows, columns + TAPS - 1, groups, depth)
    if form == "groups first":
        shape = (groups, *shape[:2], depth)
    x = Buffer("X", shape, dtype)
    w = Buffer("W", (groups, width, depth, TAPS), dtype)
    if form == "weights turned":
        w = Buffer("W", (groups, depth, width, TAPS), dtype)
    t = Buffer("T", (rows, columns, groups, width), float32)
    b = Buffer("B", (groups,) if form == "by group" else (groups, width), float32)
    y = Buffer("Y", t.shape, float32)
    if form == "shuffled":
        y = Buffer("Y", (rows, columns, width, groups), float32)

    def product(k, l, o, i, m, p):  # noqa: E741
        place = {
            "groups first": (o, k, l + p, m),
            "backwards": (k, l + p, groups - 1 - o, m),
        }
        row = x[place.get(form, (k, l + p, o, m))]
        column = w[o, m, i, p] if form == "weights turned" else w[o, i, m, p]
        return cast(row, float32) * cast(column, float32)

    def shifted(k, l, o, i):  # noqa: E741
        if form == "by group":
            return t[k, l, o, i] + b[o]
        if form == "counted":
            return t[k, l, o, i] + b[o, i] * cast(o * width + i, float32)
        first = b[0, 0] if form == "first again" else 0.0
        return t[k, l, o, i] + b[o, i] + first

    total = reduce_("conv", t, (depth, TAPS), combine, product)
    if form == "shuffled":
        after = map_("y", y, lambda k, l, i, o: shifted(k, l, o, i))  # noqa: E741
    else:
        after = map_("y", y, shifted)
    aligned = follow(total, after)
    assert aligned is not None
    if form == "groups outside":
        k, l, o, *rest = total.dims  # noqa: E741
        total = replace(total, dims=(o, k, l, *rest))
    return [total, aligned], w


def joined(computations: list[Computation]) -> KernelPattern | None:
    found = joined_groups(classify(computations), Context(WIDE))
    return found and found.pattern


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("form", ["", "alone", "counted"])
def test_the_sums_are_the_same(width: int, form: str) -> None:
    computations = grouped(32, width, form=form)[0][: 1 if form == "alone" else 2]
    found = joined_groups(classify(computations), Context(WIDE))
    assert found is not None and found.pattern.vector is not None
    assert found.pattern.vector.extent == 32 * width
    rng = np.random.default_rng(3)
    made = {o.tensor for c in computations for o in c.outputs}
    given = {b for c in computations for b in c.inputs} - made
    arrays = {b: rng.standard_normal(b.shape).astype(np.float32) for b in given}
    viewed = {
        found.views.get(b, b): a.reshape(found.views.get(b, b).shape)
        for b, a in arrays.items()
    }
    want, got = (
        evaluate(computations, arrays),
        evaluate(found.pattern.computations, viewed),
    )
    for b, result in want.items():
        np.testing.assert_array_equal(got[found.views[b]].reshape(b.shape), result)


@pytest.mark.parametrize(
    "other",
    [
        {"width": 8},  # permutations across parts of 128 bits
        {"groups": 16, "width": 3},  # no whole groups in a vector
        {"groups": 6},  # 24 results are no whole vectors
        {"taken": 8},  # a vector of results reads two of channels
        {"dtype": bfloat16},
        {"combine": "max"},
        {"form": "groups first", "rows": 4},  # what they read is far apart
        {"form": "backwards"},
        {"form": "weights turned"},  # results are not next to groups
        {"form": "by group"},
        {"form": "first again"},  # a tensor at an index with and without groups
        {"form": "shuffled"},
        {"form": "groups outside"},  # rows between groups and their results
    ],
    ids=str,
)
def test_other_reductions_stay_apart(other: dict) -> None:
    assert joined(grouped()[0]) is not None
    found = grouped(**other)[0]
    assert classify(found).name == "tiled"
    assert joined(found) is None


def test_tensors_that_are_reshaped_already_stay_apart(monkeypatch) -> None:
    """With one tap, rows and columns are one dimension: there is one view of a tensor, not two."""
    monkeypatch.setattr(sys.modules[__name__], "TAPS", 1)
    computations, w = grouped()
    assert joined(computations) is not None
    found = sketches(plain(computations), computations, Context(WIDE, {w}))
    assert "groups" not in [s.name for s in found]


def test_groups_as_wide_as_a_vector_stay_apart() -> None:
    four = Context(machine("x86-64-v2"))
    assert joined_groups(classify(grouped(width=2)[0]), four) is not None
    assert joined_groups(classify(grouped(width=4)[0]), four) is None


@pytest.mark.parametrize(
    ("mcpu", "width", "side", "best"),
    [
        ("znver5", 4, 56, "groups"),
        ("znver5", 2, 7, "groups"),
        ("znver5", 16, 56, "tiled"),
        ("znver4", 4, 56, "groups"),
        ("sapphirerapids", 4, 56, "groups"),
        ("x86-64-v3", 4, 56, "groups"),
        ("x86-64-v3", 4, 7, "tiled"),  # few registers for rows of 7
    ],
)
def test_the_form_that_is_compiled_is_priced(
    mcpu: str, width: int, side: int, best: str
) -> None:
    computations, w = grouped(32, width, columns=side, rows=side)
    at = Context(machine(mcpu), {w})
    found = sketches(plain(computations), computations, at)
    assert found[0].name == best
    assert in_best_form(classify(computations), at).name == best


def test_a_search_sees_what_joined_groups_save() -> None:
    """A group of 32 has 64 times the products of one of 4, as long as lanes are full."""
    narrow, wide = (
        predicted_time([*c], Context(machine("znver5"), {w}))
        for c, w in (grouped(32, n, columns=56, rows=56) for n in (4, 32))
    )
    assert narrow < wide / 20


@pytest.mark.parametrize("width", [2, 4])
def test_vectors_are_permuted_not_gathered(width: int) -> None:
    computations, w = grouped(32 // width * 2, width, columns=11)
    kernel = plain(computations)
    (sketch,) = (
        s
        for s in sketches(kernel, computations, Context(WIDE, {w}))
        if s.name == "groups"
    )
    after = sketch.default().schedule.kernel
    for got, want in zip(native(after), native(kernel), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    code = assembly(after, WIDE)
    assert "gather" not in code
    assert re.search(r"vfmadd\S+\s.*zmm", code)
    assert re.search(r"v(permilps|movsldup)\s.*zmm", code)
