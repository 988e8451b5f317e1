"""Reductions whose blocks add their parts atomically: what may be chosen, and when."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tests.targets.cuda.running import run_in
from tests.targets.opencl.running import pocl
from tests.targets.opencl.running import run as run_on_opencl
from tests.targets.simt.groups import Group, check, families, inputs, total
from tests.targets.simt.products import CASES
from tilewright.base.dtypes import DType, float32, float64, int32
from tilewright.base.errors import ScheduleError
from tilewright.compute.build import reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Expr
from tilewright.loops import launch_interp
from tilewright.loops.launch import LaunchProgram
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel
from tilewright.loops.passes.to_launches import to_launches
from tilewright.operators import map_
from tilewright.schedule.space import Point, Sketch
from tilewright.targets import registry
from tilewright.targets.simt.machine import GENERIC, SimtMachine
from tilewright.targets.simt.schedules import sketches
from tilewright.testing.random_kernels import plain

ANY = replace(GENERIC, any_order=True)
PARTS = {"sum.parts": 8, "threads": 16}
ATOMIC = {**PARTS, "sum.combined": "atomic"}


@cache
def case(dtype: DType) -> Group:
    return total(1, 3000, dtype)


def sketch(dtype: DType, of: SimtMachine) -> Sketch:
    found = families(case(dtype), of)
    return next(s for s in found if s.name == "total")


def forms(dtype: DType, of: SimtMachine) -> tuple[object, ...]:
    point = sketch(dtype, of).at(PARTS)
    (found,) = (p.candidates for p in point.parameters if p.name == "sum.combined")
    return found


def atomic(dtype: DType, warp: int = 1) -> tuple[Kernel, LaunchProgram]:
    kernel = sketch(dtype, ANY).at(ATOMIC).schedule.kernel
    return case(dtype)[0], to_launches(kernel, warp)


@pytest.mark.parametrize(
    ("dtype", "of", "found"),
    [
        (float32, GENERIC, ("launch",)),
        (float32, ANY, ("launch", "atomic")),
        (int32, GENERIC, ("launch", "atomic")),
        (float64, ANY, ("launch",)),
    ],
)
def test_floats_are_added_in_any_order_only_where_that_is_allowed(dtype, of, found):
    assert forms(dtype, of) == found


TILES = {"mm.tile": (16, 16, 8, 8, 8), "mm.staged": True}


def product(
    dtype: DType, batch: int = 0, deep: int = 36, then: str = ""
) -> tuple[Kernel, list[Computation]]:
    """Rows by columns of odd sizes, of which several may be a batch; then: what follows."""
    around = (batch,) * bool(batch)
    a, b = (
        Buffer("a", (*around, 17, deep), dtype),
        Buffer("b", (*around, deep, 11), dtype),
    )
    c, y = Buffer("c", (*around, 17, 11), dtype), Buffer("y", (*around, 17, 11), dtype)

    def term(*i: Expr) -> Expr:
        *outer, m, n, k = i
        return a[(*outer, m, k)] * b[(*outer, k, n)]

    found = [reduce_("mm", c, (deep,), "add", term)]
    if then:
        found.append(map_(then, y, lambda *i: c[i] + c[i]))
    out = y if then else c
    return lower("mm", found, params=[a, b, out], outputs=[out]), found


def in_tiles(made: tuple[Kernel, list[Computation]], of: SimtMachine) -> Sketch:
    return next(s for s in sketches(*made, of) if s.name == "tiles")


def sharers(
    made: tuple[Kernel, list[Computation]], of: SimtMachine
) -> tuple[object, ...]:
    """The numbers of blocks that may share a sum; none where it is no choice."""
    point = in_tiles(made, of).at(TILES)
    return next((p.candidates for p in point.parameters if p.name == "mm.blocks"), ())


@pytest.mark.parametrize(
    ("made", "of", "found"),
    [
        (product(int32), GENERIC, (1, 2, 3)),
        (product(float32), ANY, (1, 2, 3)),
        (product(float32), GENERIC, ()),
        (product(float64), ANY, ()),
        (product(float32, then="twice"), ANY, ()),
        (product(int32, deep=8), GENERIC, ()),
        (product(int32, deep=24), GENERIC, (1, 2)),
    ],
)
def test_blocks_share_the_sums_of_a_product_where_that_is_allowed(made, of, found):
    """The results are of a dtype that is added as one step, in any order, and nothing follows
    them; each block has a step of the sum."""
    assert sharers(made, of) == found
    point = in_tiles(made, of).at(TILES)
    assert point.values.get("mm.blocks", 1) == 1
    assert "atomic" not in repr(to_launches(point.schedule.kernel))


def test_the_parts_of_a_last_wave_have_blocks_of_their_own():
    sketch = in_tiles(product(int32, 5, 512), replace(GENERIC, units=4))
    usual = {**TILES, "mm.last_wave": (0, 1)}
    names = {p.name: p.candidates for p in sketch.at(usual).parameters}
    assert "mm.blocks" in names
    parts = next(wave for wave in names["mm.last_wave"] if wave != (0, 1))
    point = sketch.at({**TILES, "mm.last_wave": parts})
    assert "mm.blocks" not in {p.name for p in point.parameters}


@pytest.mark.parametrize("dtype", [int32, float32])
@pytest.mark.parametrize(("batch", "blocks", "staged"), [
    (0, 2, True), (0, 3, True), (2, 2, True), (0, 3, False),
])  # fmt: skip
def test_blocks_that_share_a_product_add_their_parts(dtype, batch, blocks, staged):
    made = product(dtype, batch)
    values = {**TILES, "mm.staged": staged, "mm.blocks": blocks}
    point = in_tiles(made, ANY).at(values)
    kernel, p = made[0], to_launches(point.schedule.kernel)
    assert [launch.grid[1] for launch in p.launches] == [1, blocks]
    assert repr(p.launches[1].body).count("atomic c[") == 1 and not p.workspace
    given = inputs(kernel)
    check(kernel, p, given)
    check(kernel, p, given, run_in)
    check(kernel, p, given, run_on_opencl)


# Tiles that are all of one dimension and parts of another one: loops over blocks of one iteration.
NARROW = {
    "thin": (4, 32, 8, 1, 32),
    "convolution": (32, 32, 16, 8, 8),
    "strided": (16, 32, 16, 4, 16),
    "pointwise": (32, 32, 16, 8, 8),
}


@pytest.mark.parametrize("name", NARROW)
def test_each_number_of_blocks_that_is_offered_is_possible(name):
    case = CASES[name]()
    made = plain(case), list(case)
    usual = {"mm.tile": NARROW[name], "mm.staged": True}
    sketch = in_tiles(made, ANY)
    found = {p.name: p.candidates for p in sketch.at(usual).parameters}
    given = inputs(made[0])
    for blocks in found["mm.blocks"]:
        point = sketch.at(usual | {"mm.blocks": blocks})
        check(made[0], to_launches(point.schedule.kernel), given)
    assert found["mm.blocks"][-1] > 1


def test_parts_in_one_order_are_the_default():
    point = sketch(float32, ANY).at(PARTS)
    assert point.values["sum.combined"] == "launch"
    assert "atomic" not in repr(to_launches(point.schedule.kernel))


@pytest.mark.parametrize("dtype", [float32, int32])
@pytest.mark.parametrize("warp", [1, 32])
def test_each_block_adds_its_part(dtype, warp):
    kernel, p = atomic(dtype, warp)
    assert repr(p).count("atomic y[] add=") == 1
    assert not p.workspace  # no parts, and no launch that combines them
    assert [launch.grid[0] for launch in p.launches] == [1, 8]
    for seed in range(2):
        check(kernel, p, inputs(kernel), partial(launch_interp.run, seed=seed))


@pytest.mark.parametrize("dtype", [float32, int32])
@pytest.mark.parametrize("run", [run_in, run_on_opencl], ids=["ptx", "opencl"])
def test_the_code_adds_all_parts(dtype, run):
    kernel, p = atomic(dtype, 32 if run is run_in else 1)
    check(kernel, p, inputs(kernel), run)


# -- columns


@cache
def columns(dtype: DType, deep: bool = False) -> Group:
    """Sums of 21 columns; deep: in planes, along two dimensions."""
    shape = (9, 34, 3, 7) if deep else (301, 21)
    x, y = Buffer("x", shape, dtype), Buffer("y", shape[len(shape) // 2 :], dtype)
    if deep:
        made = reduce_("sum", y, (9, 34), "add", lambda i, j, k, m: x[k, m, i, j])
    else:
        made = reduce_("sum", y, (301,), "add", lambda j, k: x[k, j])
    return lower("columns", [made], params=[x, y], outputs=[y]), [made]


def of_columns(group: Group, of: SimtMachine, **values: object) -> Point:
    sketch = next(s for s in families(group, of) if s.name == "columns")
    return sketch.at({"columns": 8, "parts": 4, **values})


@pytest.mark.parametrize(
    ("dtype", "of", "offered"),
    [(float32, GENERIC, False), (float32, ANY, True), (int32, GENERIC, True)],
)
def test_blocks_share_columns_only_where_any_order_will_do(dtype, of, offered):
    point = of_columns(columns(dtype), of)
    assert point.values.get("sum.blocks") == (1 if offered else None)
    assert "atomic" not in repr(to_launches(point.schedule.kernel))


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(
    ("dtype", "run"),
    [
        (int32, launch_interp.run),
        (float32, launch_interp.run),
        (float32, run_in),
        (float32, run_on_opencl),
    ],
    ids=["integers", "interpreted", "ptx", "opencl"],
)
def test_blocks_add_their_parts_of_each_column(dtype, run, deep):
    group = columns(dtype, deep)
    blocks = 2 if deep else 4
    point = of_columns(group, ANY, **{"sum.blocks": blocks})
    p = to_launches(point.schedule.kernel, 32 if run is run_in else 1)
    assert repr(p).count("atomic y[") == 1
    assert p.launches[-1].grid[1] == blocks
    check(group[0], p, inputs(group[0]), run)


@pytest.mark.parametrize("name", ["cuda", "opencl", "amdgpu", "spirv"])
def test_the_mode_of_arithmetic_decides(name):
    assert not registry.target(name).simt.any_order
    assert not registry.target(name, exact=True).simt.any_order
    fast = registry.target(name, fast=True)
    assert fast.simt.any_order
    assert fast.key != registry.target(name).key


MODEL = """
<ir_version: 8, opset_import: ["": 17]>
sums (float[300, 100] x) => (float y) { y = ReduceSumSquare<keepdims=0>(x) }
"""


def test_a_model_on_a_device():
    pocl()
    x = np.random.default_rng(0).standard_normal((300, 100)).astype(np.float32)
    model = onnx.parser.parse_model(MODEL)
    name = "reducesumsquare"
    asked = {name: {f"{name}.parts": 2, f"{name}.combined": "atomic"}}
    how = {"target": "opencl", "cache": False, "schedules": asked}
    made = tw.compile(model, math="fast", **how)
    np.testing.assert_allclose(made(x), np.sum(x * x, dtype="d"), rtol=1e-5)
    with pytest.raises(ScheduleError, match="'atomic' is not possible here"):
        tw.compile(model, **how)
