"""The cost model: its constants are documented and in one place; its estimates."""

from __future__ import annotations

import ast
import importlib.util
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import tilewright
from tilewright.base.dtypes import float32, int64
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.operators import map_
from tilewright.targets.cpu.cost import constants, cost_model
from tilewright.targets.cpu.machine import machine

ROOT = Path(tilewright.__file__).parent
ROOMS = ("graph/passes", "plan", "schedule/space", "targets/cpu/sketches")
HARMLESS = {0, 1, 2, 1e-9, 1e-6}  # counting, halves and pairs; ties, and what divides
V4 = machine("x86-64-v4")
COSTS = cost_model(V4)

# Numbers that are not costs: file, and the enclosing function or the name.
STRUCTURE = {
    ("graph/passes/decompose.py", "_parts"),  # an opset
    ("graph/passes/simplify.py", "FOLD_BYTES"),  # what a compilation may cost
    ("graph/passes/differentiate.py", "_STATISTICS"),  # of operands
    ("graph/passes/rematerialize.py", "_bytes"),  # bits of a byte
    ("graph/passes/weight_only.py", "BITS"),  # what operators take, as the next five
    ("graph/passes/weight_only.py", "GROUPS"),
    ("graph/passes/weight_only.py", "LEAST"),
    ("graph/passes/weight_only.py", "weight_only"),
    ("graph/passes/weight_only.py", "_Builder"),
    ("targets/cpu/sketches/block_scaled.py", "_bits"),
    ("schedule/space/patterns.py", "_block_scaled"),  # of loads
    ("plan/passes/halo.py", "_guarded_reads"),  # how many answers are kept, as the next
    ("schedule/space/patterns.py", "address"),
    (
        "targets/cpu/sketches/partial_sums.py",
        "PRODUCTS",
    ),  # what rounds, as the next two
    ("targets/cpu/sketches/partial_sums.py", "SUMS"),
    ("targets/cpu/sketches/partial_sums.py", "STEPS"),
    ("targets/cpu/sketches/register_tile_model.py", "_best"),
    ("targets/cpu/sketches/register_tile_model.py", "RowData"),  # half
    ("targets/cpu/sketches/winograd.py", "EQUAL"),  # what the model cannot tell apart
    ("targets/cpu/sketches/scatters.py", "scatter_of"),  # bits of a narrow float
    ("plan/passes/compensate.py", "SHORT"),  # terms that NumPy adds one by one
    ("plan/passes/products.py", "PRODUCTS"),  # of what is tried, as the next one
    ("plan/passes/siblings.py", "REACH"),
    ("plan/questions.py", "dearer"),  # of a microsecond
    ("targets/cpu/sketches/register_transpose.py", "_SHUFFLED"),  # bytes
    ("plan/interp.py", "UNWRITTEN"),  # what memory holds that nobody wrote
    ("plan/layout.py", "_is_map"),  # axes, as the next
    ("plan/layout.py", "_is_stack"),
    (
        "plan/nodes.py",
        "SOURCES",
    ),  # names, at most: of a plan that grows as the model does
    ("plan/nodes.py", "merge"),  # letters of a name
    ("plan/passes/products.py", "_outside_loads"),  # what a cache holds
    ("plan/passes/fuse.py", "MAX_NODES"),  # what a value may grow to, as the next two
    ("plan/passes/fuse.py", "MAX_LOADS"),
    ("plan/passes/fuse.py", "MAX_WRITTEN"),
    ("plan/memory_report.py", "_SHOWN"),  # lines
    ("plan/passes/recompute.py", "_CHAIN"),  # of what is tried
    ("plan/pipeline.py", "WINOGRAD"),  # what `math` allows
    ("schedule/space/choices.py", "_given"),  # of the candidates that a message lists
    (
        "schedule/space/fusion.py",
        "_sizes",
    ),  # candidates: powers of two, and three times these
    (
        "schedule/space/patterns.py",
        "CLOSE",
    ),  # neighbors, to the shuffles of any vector unit
    ("schedule/space/patterns.py", "_windows"),  # of Computations
    ("targets/cpu/sketches/roles.py", "_data_loads"),  # of operands
    (
        "targets/cpu/sketches/roles.py",
        "ORDERED",
    ),  # of the space: permutations grow fast
    ("targets/cpu/sketches/turned.py", "_rows"),  # candidates
    ("targets/cpu/sketches/groups.py", "LANE"),  # of the instructions
    ("targets/cpu/sketches/winograd.py", "_stage_padding"),  # of axes
    ("plan/control.py", "own_results"),  # a version of ONNX
}


def numbers(tree: ast.Module) -> Iterator[tuple[str, float]]:
    """Every number that is neither an index nor a candidate, with its place."""
    for top in tree.body:
        target = top.targets[0] if isinstance(top, ast.Assign) else top
        target = top.target if isinstance(top, ast.AnnAssign) else target
        name = getattr(target, "id", getattr(target, "name", ""))
        several = isinstance(top, ast.Assign) and isinstance(top.value, ast.Tuple)
        indices = [x.slice for x in ast.walk(top) if isinstance(x, ast.Subscript)]
        skipped = {n for index in indices for n in ast.walk(index)}
        for node in () if several else set(ast.walk(top)) - skipped:
            value = node.value if isinstance(node, ast.Constant) else None
            if isinstance(value, int | float) and not isinstance(value, bool):
                yield name, value


def misplaced(path: str, text: str) -> list[str]:
    found = numbers(ast.parse(text))
    return [
        f"{path}: {name} has {value}"
        for name, value in found
        if value not in HARMLESS and (path, name) not in STRUCTURE
    ]


def test_no_constant_of_cost_stands_elsewhere() -> None:
    files = [f for room in ROOMS for f in sorted((ROOT / room).rglob("*.py"))]
    assert len(files) > 20
    found = [
        x for f in files for x in misplaced(str(f.relative_to(ROOT)), f.read_text())
    ]
    rooms = "targets/cpu/cost.py or kernel_costs.py"
    assert not found, f"say it in {rooms}: {'; '.join(found)}"


@pytest.mark.parametrize(
    "text",
    [
        "LARGE = 4\n",
        "X = 1 << 18\n",
        "DEPTH: Final = 256\n",
        "def f(n: int) -> bool:\n    return n > 0.5 * n\n",
    ],
)
def test_a_constant_of_cost_is_found(text: str) -> None:
    assert misplaced("targets/cpu/sketches/maps.py", text)
    assert not misplaced(
        "targets/cpu/sketches/maps.py", "ROWS = (1, 2, 4)\nx = y[3] + 1\n"
    )


def test_every_constant_says_what_it_is_and_where_it_is_from() -> None:
    found = constants()
    assert len({c.name for c in found}) == len(found) > 50
    for c in found:
        assert c.value > 0 and c.unit and c.meaning, c
        assert c.unit.startswith("ns") == c.name.endswith("_ns"), c
        python, option, module, *arguments = c.source.split()
        assert (python, option) == ("python", "-m") and importlib.util.find_spec(module)
        assert arguments in ([], [c.name]), c


def test_a_measured_constant_takes_the_place_of_the_default() -> None:
    assert cost_model(V4).share_ns == 10_000
    changed = cost_model(replace(V4, measured=(("share_ns", 500.0),)))
    assert changed.share_ns == 500 and changed.product_ns == cost_model(V4).product_ns


def test_vectors_of_any_width_take_the_bytes_per_cycle_that_the_processor_has() -> None:
    lanes = (4, 8, 16)
    assert [COSTS.multiply_rate(n, 4) for n in lanes] == [2, 2, 1]
    assert [COSTS.multiply_rate(n, 8) for n in lanes] == [2, 1, 0.5]
    wide = cost_model(replace(V4, measured=(("multiplied", 128.0),)))
    assert [wide.multiply_rate(n, 4) for n in lanes] == [2, 2, 2]


def test_work_is_shared_from_the_same_time_on_whatever_it_consists_of() -> None:
    assert COSTS.worth_sharing(1_000_000 * COSTS.product_ns)
    assert not COSTS.worth_sharing(999_999 * COSTS.product_ns)
    assert COSTS.worth_sharing(65_536 * COSTS.point_ns)
    assert not COSTS.worth_sharing(65_535 * COSTS.point_ns)
    data = Buffer("x", (1 << 16,), float32)
    assert COSTS.worth_sharing(COSTS.moving([data], ()))
    assert not COSTS.worth_sharing(COSTS.moving([data], {data}))
    assert COSTS.worth_sharing(COSTS.moving([data, data], {data}))


def test_of_a_buffer_moves_what_is_accessed() -> None:
    x, y = (Buffer(n, (1 << 16,), float32) for n in "xy")
    rows = Buffer("rows", (4, 8), int64)
    few = Buffer("few", (4, 8), float32)
    whole = map_("t", y, lambda i: x[i] + 1.0)
    strided = map_("t", few, lambda i, j: x[i * 512] + x[j * 512])
    found = map_("t", few, lambda i, j: x[rows[i, 0]])
    byte = COSTS.byte_ns

    def moved(c: Computation, *buffers: Buffer) -> float:
        return COSTS.moving(buffers, (), c)

    assert moved(whole, x, y) == COSTS.moving([x, y], ())
    assert moved(strided, x) == pytest.approx((4 + 8) * 4 * byte)
    assert moved(strided, few) == pytest.approx(32 * 4 * byte)
    assert moved(found, x) == moved(found, rows) / 2 == pytest.approx(4 * 4 * byte)
    assert not moved(whole, few) and not COSTS.worth_sharing(moved(strided, x))


def test_traffic_weighs_what_it_comes_from() -> None:
    sizes = [COSTS.machine.l1 // 2, COSTS.machine.l2 // 2, COSTS.machine.l3]
    assert sorted(map(COSTS.traffic, sizes)) == [COSTS.traffic(n) for n in sizes]
    assert len(set(map(COSTS.traffic, sizes))) == 3


def test_large_results_pass_the_caches_by() -> None:
    assert not COSTS.streams(COSTS.streamed - 1)
    assert COSTS.streams(COSTS.streamed)
    assert not cost_model(machine("aarch64")).streams(1 << 40)


def test_rows_without_a_distance_displace_nothing() -> None:
    assert COSTS.resident_rows(0) == math.inf
