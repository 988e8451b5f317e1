"""What a thread and a block of every family of schedules take, by ptxas, and how many blocks run.

The figures are those of the default schedule of a usual size. They may drift by a quarter; whoever
changes a schedule on purpose changes them here. Skipped only where there is no ptxas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest

from tests.targets.cuda.test_traffic import tiled
from tests.targets.simt.attention import attention
from tests.targets.simt.groups import (
    argmax,
    column_sum,
    running,
    softmax,
    total,
    transpose,
)
from tests.targets.simt.operators import kernel
from tests.targets.simt.products import Case, convolution, product
from tests.targets.simt.test_windows import depthwise
from tilewright.base.dtypes import bfloat16, float16, float32
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Call
from tilewright.loops.launch import LaunchProgram
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel
from tilewright.operators import map_
from tilewright.schedule.space.patterns import classify
from tilewright.targets.cuda import report, tensor_attention, tensor_tiles
from tilewright.targets.cuda.machine import CudaMachine, machine
from tilewright.targets.cuda.report import Occupancy, Resources
from tilewright.targets.cuda.target import Cuda, code_of
from tilewright.targets.simt.attention import attention_of, shape
from tilewright.targets.simt.attention_cost import attention_tiles
from tilewright.targets.simt.attention_cost import registers as attention_registers
from tilewright.targets.simt.attention_cost import shared_bytes as attention_bytes
from tilewright.targets.simt.cost import held, shared_bytes
from tilewright.targets.simt.families import FAMILIES
from tilewright.targets.simt.predict import tiles
from tilewright.targets.simt.products import product_of
from tilewright.targets.simt.schedules import sketches
from tilewright.testing.random_kernels import plain

Group = tuple[Kernel, Sequence[Computation]]
pytestmark = pytest.mark.skipif(report.ptxas() is None, reason="there is no ptxas")
LSTM = """(float[8, 2, 64] x, float[1, 256, 64] w, float[1, 256, 64] r)
    => (float[8, 1, 2, 64] y) { y = LSTM<hidden_size = 64>(x, w, r) }"""


def of_product(case: Case) -> Group:
    return plain(case), case


def exponentials() -> Group:
    x, y = Buffer("x", (1000, 1000), float32), Buffer("y", (1000, 1000), float32)
    made = [map_("e", y, lambda i, j: Call("exp", (x[i, j],)))]
    return lower("e", made, params=[x, y], outputs=[y]), made


halves = partial(product, 1024, 1024, 1024, float16, float32)
groups = partial(product, 2048, 2048, 2048, bfloat16, float32)
# name: the family, and what it is for
CASES: dict[str, tuple[str, Callable[[], Group]]] = {
    "exponentials": ("by element", exponentials),
    "transpose": ("transpose", lambda: transpose(512, 512)),
    "running sums": ("scan", lambda: running(512, 1000)),
    "total": ("total", lambda: total(1000, 1000)),
    "columns": ("columns", lambda: column_sum(1000, 500)),
    "softmax": ("rows", lambda: softmax(512, 1000)),
    "argmax": ("rows", lambda: argmax(512, 1000)),
    "long rows": ("rows", lambda: softmax(64, 40_000)),
    "product": ("tiles", lambda: of_product(product(1024, 1024, 1024))),
    "convolution": ("tiles", lambda: of_product(convolution(64, 56, 64, 3, 1))),
    "depthwise": ("windows", lambda: of_product(depthwise(96, 112, 3, 2))),
    "lstm": ("phases", lambda: (kernel(LSTM), ())),
    "attention": ("attention", lambda: attention(512, 512, 64, 64, heads=8)),
    "attention of halves": (
        tensor_attention.NAME,
        lambda: attention(512, 512, 64, 64, heads=8, of=float16),
    ),
    "product of halves": (tensor_tiles.NAME, lambda: of_product(halves())),
    "product by groups": ("warp groups", lambda: of_product(groups())),
}
# of each launch: threads of a block, registers of a thread, shared bytes of a block, blocks that a
# multiprocessor runs at once
Row = tuple[int, int, int, int]
GOLDEN: dict[tuple[str, str], list[Row]] = {
    ("exponentials", "sm_80"): [(256, 18, 0, 8)],
    ("exponentials", "sm_90a"): [(256, 18, 0, 8)],
    ("transpose", "sm_80"): [(256, 20, 4224, 8)],
    ("transpose", "sm_90a"): [(256, 20, 4224, 8)],
    ("running sums", "sm_80"): [(256, 20, 10400, 8)],
    ("running sums", "sm_90a"): [(512, 15, 12032, 4)],
    ("total", "sm_80"): [(1, 6, 0, 32), (256, 28, 32, 8), (256, 13, 32, 8)],
    ("total", "sm_90a"): [(1, 6, 0, 32), (256, 29, 32, 8), (256, 12, 32, 8)],
    ("columns", "sm_80"): [(256, 22, 1024, 8)],
    ("columns", "sm_90a"): [(256, 15, 1024, 8)],
    ("softmax", "sm_80"): [(256, 48, 0, 5)],
    ("softmax", "sm_90a"): [(256, 31, 64, 8)],
    ("argmax", "sm_80"): [(256, 16, 0, 8)],
    ("argmax", "sm_90a"): [(256, 18, 0, 8)],
    ("long rows", "sm_80"): [(256, 26, 64, 8)],
    ("long rows", "sm_90a"): [(512, 22, 160_064, 1)],
    ("product", "sm_80"): [(128, 48, 12_800, 10)],
    ("product", "sm_90a"): [(256, 62, 25_600, 4)],
    ("convolution", "sm_80"): [(128, 48, 4848, 10)],
    ("convolution", "sm_90a"): [(128, 56, 3888, 9)],
    ("depthwise", "sm_80"): [(32, 62, 0, 32)],
    ("depthwise", "sm_90a"): [(32, 58, 0, 32)],
    ("lstm", "sm_80"): [(512, 32, 2048, 4)],
    ("lstm", "sm_90a"): [(512, 32, 2048, 4)],
    ("attention", "sm_80"): [(32, 117, 35_104, 4)],
    ("attention", "sm_90a"): [(32, 194, 37_184, 6)],
    ("attention of halves", "sm_80"): [(32, 143, 34_816, 4)],
    ("attention of halves", "sm_90a"): [(32, 254, 36_864, 6)],
    ("product of halves", "sm_80"): [(256, 128, 69_632, 2)],
    ("product of halves", "sm_90a"): [(256, 64, 73_728, 3)],
    ("product by groups", "sm_90a"): [(256, 154, 196_624, 1)],
}


def taken(p: LaunchProgram, of: CudaMachine) -> list[tuple[Row, Resources, Occupancy]]:
    """What each launch takes, in order."""
    text = Cuda(of).assembly(p)
    _, used = report.assemble(text, of)
    found = []
    for call in code_of(p, text, of).launches:
        x, y, z = call.threads
        one = used[call.name]
        runs = report.occupancy(one, x * y * z, of, call.dynamic)
        shared = one.shared + call.dynamic
        found.append(((x * y * z, one.registers, shared, runs.blocks), one, runs))
    return found


def is_near(one: int, other: int) -> bool:
    """Within a quarter of the second."""
    return abs(one - other) <= max(1, other / 4)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "arch"), GOLDEN)
def test_a_family_takes_what_it_took(name, arch):
    family, make = CASES[name]
    target, (scheduled, made) = Cuda(machine(arch)), make()
    sketch = next(s for s in target.sketches(scheduled, made, ()) if s.name == family)
    found = taken(target.launches(sketch.default().schedule.kernel), target.machine)
    for (row, used, runs), wanted in zip(found, GOLDEN[name, arch], strict=True):
        assert (row[0], row[2]) == (wanted[0], wanted[2]), row
        assert is_near(row[1], wanted[1]) and is_near(row[3], wanted[3]), row
        assert used.stack == used.spill_stores == used.spill_loads == 0
        assert runs.blocks > 0, runs


def test_every_family_has_a_row_of_each_architecture():
    families = {CASES[name][0] for name, _ in GOLDEN}
    own = {"by element", "tiles", "windows", "phases", "warp groups"}
    own |= {tensor_attention.NAME, tensor_tiles.NAME}
    assert families == {*FAMILIES, *own}
    for name, (family, _) in CASES.items():
        arches = {arch for n, arch in GOLDEN if n == name}
        later = {"sm_90a"} if family == "warp groups" else {"sm_80", "sm_90a"}
        assert arches == later, name


SQUARE = product(1024, 1024, 1024)
SIMT = machine("sm_80").simt
PRODUCT = product_of(classify(SQUARE))
DEEPEST = [t for t in tiles(PRODUCT, SIMT, True) if t.depth == 32]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("tile", DEEPEST, ids=str)
def test_the_model_of_tiles_holds_what_ptxas_finds(tile):
    """Shared memory to the byte; registers, and the blocks that run at once, within a quarter."""
    of = machine("sm_80")
    p, plan, rooms = tiled(SQUARE, tuple(tile), last_wave=(0, 1))
    expected = held(plan, of.simt, shared_bytes(plan, rooms, 1))
    (((_, registers, shared, blocks), used, _),) = taken(p, of)
    assert shared == expected.shared
    assert is_near(expected.registers, registers)
    assert is_near(expected.blocks, blocks)
    assert used.spill_stores == used.stack == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("depth", [64, 128])
def test_the_model_of_attention_holds_what_ptxas_finds(depth, place):
    """Its best tiles: no more shared memory, which buffers may share, and registers within a
    quarter: the elements of a tile are not all there at once while it is copied."""
    of = machine("sm_80")
    scheduled, made = attention(512, 512, 64, depth, heads=8)
    asked = shape(attention_of(made, of.simt))
    tile = attention_tiles(asked, of.simt)[place]
    sketch = next(
        s for s in sketches(scheduled, made, of.simt) if s.name == "attention"
    )
    kernel = sketch.at({"attention.tile": tile}).schedule.kernel
    program = Cuda(of).launches(kernel)
    (((_, registers, shared, _), used, _),) = taken(program, of)
    assert shared <= attention_bytes(asked, tile, of.simt)
    assert registers < 255 and is_near(attention_registers(asked, tile), registers)
    assert used.spill_stores == used.stack == 0
