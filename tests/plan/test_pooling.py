"""Pooling in the kernel of the convolution before it: when, on what machine, and what results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx.parser
import onnx.reference
import pytest
from onnx import ModelProto, numpy_helper

import tilewright as tw
from tilewright.base import events
from tilewright.base.dtypes import float32
from tilewright.compute.build import map_, reduce_
from tilewright.compute.interp import run
from tilewright.compute.nodes import Computation
from tilewright.driver import schedules
from tilewright.driver.options import Options
from tilewright.driver.stages import planned
from tilewright.expr.nodes import Buffer
from tilewright.graph.nodes import Operation
from tilewright.loops.nodes import Kernel, block
from tilewright.plan.nodes import FusionGroup, HostFallback, Step
from tilewright.plan.passes.pooling import pool_in_blocks
from tilewright.targets.cpu.sketches import Context, estimated_cost
from tilewright.targets.cpu.sketches.pooled import pooled
from tilewright.testing.machines import KIB, MACHINES

ROWS, COLUMNS, CHANNELS = 8, 6, 4
X = Buffer("x", (ROWS + 2, COLUMNS + 2, 3), float32)
W = Buffer("w", (3, 3, 3, CHANNELS), float32)
SUM, MADE = (Buffer(n, (ROWS, COLUMNS, CHANNELS), float32) for n in ("sum", "made"))
SMALL = Buffer("small", (ROWS // 2, COLUMNS // 2, CHANNELS), float32)
LESS = Buffer("less", SMALL.shape, float32)
OTHER = Buffer("other", MADE.shape, float32)


def free(group: Sequence[Computation], constants: Any = ()) -> float | None:
    return 0.0


def group(*computations: Computation) -> FusionGroup:
    names = tuple(c.name for c in computations)
    return FusionGroup("+".join(names), computations, names)


CONV = reduce_(
    "conv", SUM, (3, 3, 3), "add",
    lambda i, j, c, m, n, k: X[i + m, j + n, k] * W[m, n, k, c],
)  # fmt: skip
RELU = map_("relu", MADE, lambda i, j, c: SUM[i, j, c] * 2.0)
FIRST = group(CONV, RELU)


def pooling(tensor: Buffer = MADE, out: Buffer = SMALL, op: str = "max") -> Computation:
    return reduce_(
        f"pool_{out.name}", out, (2, 2), op,
        lambda i, j, c, m, n: tensor[i * 2 + m, j * 2 + n, c],
    )  # fmt: skip


POOL = group(pooling())


def merged(
    steps: Sequence[Step], keep: Sequence[Buffer] = (SMALL,), cost: Any = free
) -> list[Step]:
    found = pool_in_blocks(steps, keep, {W}, cost)
    rng = np.random.default_rng(0)
    given = {b: rng.standard_normal(b.shape, dtype=np.float32) for b in (X, W)}
    memories: list[dict[Buffer, Any]] = []
    for some in (steps, found):
        memory: dict[Buffer, Any] = {b: a.copy() for b, a in given.items()}
        for s in some:
            if isinstance(s, FusionGroup) and s.kernel is None:
                for b in s.writes:
                    memory.setdefault(b, np.full(b.shape, np.nan, np.float32))
                run(s.computations, memory)
        memories.append(memory)
    for b, a in memories[0].items():
        np.testing.assert_array_equal(memories[1][b], a)
    return found


def test_a_convolution_and_its_pooling_are_one() -> None:
    with events.record() as log:
        (both,) = merged([FIRST, POOL])
    assert isinstance(both, FusionGroup)
    assert both.computations == (CONV, RELU, *POOL.computations)
    (event,) = [e for e in log if e.kind == "fuse"]
    assert event.fields["rule"] == "pooling"
    assert event.fields["sources"] == ("conv", "relu", "pool_small")


def test_it_runs_where_the_pooling_does() -> None:
    between = group(map_("other", OTHER, lambda i, j, c: X[i, j, 0] + 1.0))
    found = merged([FIRST, between, POOL])
    assert len(found) == 2 and found[0] is between


SCALED = map_("scaled", LESS, lambda i, j, c: SMALL[i, j, c] * MADE[i, j, c])
READER = group(map_("reader", OTHER, lambda i, j, c: MADE[i, j, c] + 1.0))
PART = group(
    map_("part", MADE, lambda i, j, c: X[i, j, 0] + 0.0, extents=(1, COLUMNS, CHANNELS))
)
HALF = reduce_(
    "half", SMALL, (2, 2), "max",
    lambda i, j, c, m, n: MADE[i * 2 + m, j * 2 + n, c] + X[i, j, 0],
)  # fmt: skip
PRODUCT = reduce_(
    "product", SMALL, (2, 2), "add",
    lambda i, j, c, m, n: MADE[i * 2 + m, j * 2 + n, c] * W[m, n, 0, c],
)  # fmt: skip
MEAN = reduce_("mean", MADE, (3,), "add", lambda i, j, c, k: X[i, j, k])
CALL = HostFallback(Operation("Own", (), (), {}, "", 1, "call"), (MADE,), (OTHER,))
GIVEN = Kernel("given", (MADE, SMALL), (SMALL,), block())
MAKES = Kernel("makes", (X, MADE), (MADE,), block())
TWICE = reduce_("twice", MADE, (2,), "add", lambda i, j, c, k: SUM[i, j, c] * 1.0)

APART: dict[str, tuple[list[Step], tuple[Buffer, ...]]] = {
    "others read the results": ([FIRST, READER, POOL], (SMALL, OTHER)),
    "others read the sums": (
        [FIRST, group(map_("sums", OTHER, lambda i, j, c: SUM[i, j, c] + 1.0)), POOL],
        (SMALL, OTHER),
    ),
    "the results leave the model": ([FIRST, POOL], (SMALL, MADE)),
    "the sums leave the model": ([FIRST, POOL], (SMALL, SUM)),
    "a host call reads them": ([FIRST, CALL, POOL], (SMALL, MADE, OTHER)),
    "others write a part of them": ([FIRST, PART, POOL], (SMALL,)),
    "the pooling reads something else": ([FIRST, group(HALF)], (SMALL,)),
    "it is a product": ([FIRST, group(PRODUCT)], (SMALL,)),
    "what follows it reads them again": (
        [FIRST, group(pooling(), SCALED)], (LESS,),
    ),
    "no product before it": ([group(MEAN), POOL], (SMALL,)),
    "a map before it": ([READER, group(pooling(OTHER))], (SMALL,)),
    "two maps behind the product": (
        [group(CONV, RELU, map_("again", OTHER, lambda i, j, c: MADE[i, j, c] + 1.0)),
         group(pooling(OTHER))],
        (SMALL,),
    ),
    "a reduction behind the product": ([group(CONV, TWICE), POOL], (SMALL,)),
    "nothing is pooled": (
        [FIRST, group(map_("one", OTHER, lambda i, j, c: MADE[i, j, c] + 1.0))],
        (OTHER,),
    ),
    "a kernel given as such before it": (
        [replace(FIRST, computations=(), kernel=MAKES), POOL], (SMALL,),
    ),
    "a kernel given as such": (
        [FIRST, replace(POOL, computations=(), kernel=GIVEN)], (SMALL,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", APART)
def test_what_stays_apart(name: str) -> None:
    steps, keep = APART[name]
    assert pool_in_blocks(steps, keep, {W}, free) == steps


def test_what_costs_more_stays_apart_and_is_reported() -> None:
    def cost(g: Sequence[Computation], constants: Any = ()) -> float | None:
        return 3000.0 if len(g) == 3 else 1000.0

    with events.record() as log:
        assert merged([FIRST, POOL], cost=cost) == [FIRST, POOL]
    (event,) = [e for e in log if e.kind == "not-fused"]
    assert "3.0 us, 2.0 us separately" in event.fields["reason"]


# -- the decision of a processor


def convolution(
    side: int = 64,
    window: int = 2,
    step: int = 2,
    first: bool = False,
    padded: bool = False,
) -> list[Computation]:
    """64 channels, 4 bytes each, of side x side; first: channels are outermost in the result."""
    x = Buffer("x", (side + 2, side + 2, 3), float32)
    w = Buffer("w", (3, 3, 3, 64), float32)
    made = Buffer("made", (side, side, 64), float32)
    count = (side - window) // step + 1
    out = Buffer("out", (64, count, count) if first else (count, count, 64), float32)
    conv = reduce_(
        "conv", made, (3, 3, 3), "add",
        lambda i, j, c, m, n, k: x[i + m, j + n, k] * w[m, n, k, c],
    )  # fmt: skip

    def read(i: Any, j: Any, c: Any, m: Any, n: Any) -> Any:
        value = made[i * step + m, j * step + n, c]
        return value + 0.0 if padded else value

    def turned(c: Any, i: Any, j: Any, m: Any, n: Any) -> Any:
        return read(i, j, c, m, n)

    pool = reduce_("pool", out, (window, window), "max", turned if first else read)
    return [conv, pool]


def repeated() -> list[Computation]:
    """The pooled image three times: the outermost dimension moves nothing of what is read."""
    conv, pool = convolution()
    made = conv.outputs[0].tensor
    out = Buffer("out", (3, *pool.outputs[0].tensor.shape), float32)
    again = reduce_(
        "pool", out, (2, 2), "max",
        lambda t, i, j, c, m, n: made[i * 2 + m, j * 2 + n, c],
    )  # fmt: skip
    return [conv, again]


def at(l2: int, cores: int = 1) -> Context:
    machine: Any = replace(MACHINES["embedded"], l2=l2, cores=cores).target()
    return Context(machine.machine, {Buffer("w", (3, 3, 3, 64), float32)})


MIB = 1024 * KIB
DECISIONS = [
    (convolution(), at(512 * KIB), "one"),
    (convolution(), at(128 * KIB), "one"),
    (convolution(), at(1 * MIB), ""),  # the results stay in the cache
    (convolution(), at(64 * KIB), ""),  # no row of the pooling fits a quarter of it
    (convolution(), at(512 * KIB, cores=16), "one"),
    (convolution(), at(512 * KIB, cores=17), ""),  # 32 rows are too few blocks
    (convolution(window=3), at(512 * KIB), ""),  # a row in six is computed twice
    (convolution(window=3), at(960 * KIB), "dearer"),  # one in fourteen
    (convolution(first=True), at(512 * KIB), ""),  # blocks would be of channels
    (convolution(padded=True), at(512 * KIB), ""),  # not the results themselves
    (convolution(window=2, step=3), at(512 * KIB), "one"),
    (repeated(), at(512 * KIB), ""),
]


@pytest.mark.parametrize("n", range(len(DECISIONS)))
def test_the_second_cache_decides(n: int) -> None:
    computations, context, expected = DECISIONS[n]
    assert (pooled(computations, context) is not None) == bool(expected)
    one = estimated_cost(computations, context)
    found = ""
    if one is not None:
        apart = [estimated_cost([c], context) or 0.0 for c in computations]
        found = "one" if one < sum(apart) else "dearer"
    assert found == expected


# -- models


def model(side: int, batch: int = 1) -> ModelProto:
    """A convolution, pooled between two others; its results are larger than the second cache."""
    half = side // 2
    m = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>\n'
        f"m (float[{batch}, 3, {side}, {side}] x) => (float[{batch}, 8, {half}, {half}] y) "
        "{ c = Conv<pads = [1, 1, 1, 1]>(x, w, b) r = Relu(c)"
        " p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r) y = Conv(p, v) }"
    )
    rng = np.random.default_rng(0)
    for name, shape in (("w", (32, 3, 3, 3)), ("b", (32,)), ("v", (8, 32, 1, 1))):
        array = rng.standard_normal(shape).astype(np.float32)
        m.graph.initializer.append(numpy_helper.from_array(array, name))
    return m


LARGE = {"mcpu": "x86-64-v3", "records": False}


@pytest.mark.covering(1)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("side", [66, 75])
def test_results_are_those_of_onnx(side: int, threads: int, tmp_path: Any) -> None:
    path = tmp_path / "small.toml"
    path.write_text("l2 = 262144\n")
    m = model(side)
    exe = tw.compile(m, threads=threads, cache=False, machine=path, **LARGE)
    assert len(exe.model.kernels) == 2
    rng = np.random.default_rng(1)
    x = rng.standard_normal((1, 3, side, side), dtype=np.float32)
    (want,) = onnx.reference.ReferenceEvaluator(m).run(None, {"x": x})
    np.testing.assert_allclose(exe(x), want, rtol=1e-4, atol=1e-4)


def test_explanations_say_it(tmp_path: Any) -> None:
    path = tmp_path / "small.toml"
    path.write_text("l2 = 262144\n")
    found = schedules(model(66), machine=path, **LARGE)
    said = [line for r in found for line in r.fused]
    assert "fused: conv+relu and maxpool (pooling)" in said
    plan, _ = planned(model(66), (), None, Options(mcpu="x86-64-v3", fusion=False))
    assert len(plan.groups) >= 4
