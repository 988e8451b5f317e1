"""NonZero and Unique by blocks of threads: running counts, sorts by merge paths, bisection."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.loops.gpu_kernels import barriers, without_barrier
from tests.targets.cuda.running import run_in
from tests.targets.opencl.running import pocl, program_on
from tilewright.base.dtypes import dtype_of
from tilewright.base.errors import ExecutionError
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.graph.nodes import Operation, Value
from tilewright.graph.ops.open_extents import DOMAIN
from tilewright.graph.ops.registry import OpCall, definition_of, program_of
from tilewright.loops import interp, launch_interp, searching
from tilewright.loops.launch import LaunchProgram
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel
from tilewright.loops.passes.to_launches import to_launches
from tilewright.targets.cuda.machine import machine as cuda
from tilewright.targets.cuda.target import Cuda
from tilewright.targets.opencl.target import OpenCL
from tilewright.targets.simt.machine import GENERIC, MALI, POCL
from tilewright.targets.simt.schedules import sketches

Array = np.ndarray[Any, Any]
H100 = Cuda(cuda("sm_90"), exact=False).simt
MACHINES = {m.name: m for m in (GENERIC, MALI, POCL)} | {"H100": H100}
RUNS = {
    "interpreter": launch_interp.run,
    "PoCL": lambda p, arrays: arrays.update(program_on(pocl(), p, arrays)),
    "PTX": lambda p, arrays: run_in(p, arrays, "sm_90"),
}
SIZE = 11  # of what is sorted: what is proved of one kernel is known of the next


def steps(op_type: str, *given: Array, **attributes: Any) -> tuple[Any, ...]:
    """The kernels of an operator for blocks of threads, with their Computations; its operands and
    results."""
    inputs = [Value(f"x{n}", dtype_of(a.dtype), a.shape) for n, a in enumerate(given)]
    draft = Operation(op_type, tuple(inputs), (), attributes, DOMAIN, 1, "it")
    definition = definition_of(draft)
    assert definition is not None
    types = definition.infer(OpCall(draft))
    outputs = [Value(f"y{n}", *t) for n, t in enumerate(types)]
    op = Operation(op_type, tuple(inputs), tuple(outputs), attributes, DOMAIN, 1, "it")
    buffers = [Buffer(v.name, v.extents, v.dtype) for v in (*inputs, *outputs)]
    operands, results = buffers[: len(inputs)], buffers[len(inputs) :]
    program = program_of(op, {}, operands, results, blocks=OpenCL(GENERIC).blocks)
    assert program is not None
    return [_kernel(item) for item in program], operands, results


def _kernel(item: Computation | Kernel) -> tuple[Kernel, list[Computation]]:
    if isinstance(item, Kernel):
        return item, []
    made = [o.tensor for o in item.outputs]
    params = [*item.inputs, *made]
    return lower(item.name, [item], params=params, outputs=made), [item]


def launches(found: tuple[Kernel, list[Computation]], of: Any) -> LaunchProgram:
    """The program of the best schedule of a kernel."""
    best = sketches(*found, of)[0].default().schedule.kernel
    return to_launches(best, of.warp)


def ran(made: tuple[Any, ...], given: Any, of: Any = GENERIC, run: str = "interpreter"):
    """The results on a machine. Every launch leaves what the loops of its kernel do.

    run: by what; "loops" if by these alone.
    """
    kernels, operands, results = made
    arrays = dict(zip(operands, given, strict=True))
    for k, computations in kernels:
        for b in k.outputs:
            arrays[b] = np.full(b.shape, 7, b.dtype.numpy)
        here = {b: arrays[b].copy() for b in k.params}
        interp.run(k, here)
        there = {b: arrays[b].copy() for b in k.params}
        if run == "loops":
            there = here
        else:
            RUNS[run](launches((k, computations), of), there)
        for b in k.outputs:
            np.testing.assert_array_equal(there[b], here[b], err_msg=f"{k.name} {b}")
            arrays[b] = there[b]
    return [arrays[b] for b in results]


def check_nonzero(x: Array, **how: Any) -> None:
    places, count = ran(steps("NonZero", x), [x], **how)
    want = np.array(np.nonzero(x))
    assert count == want.shape[1]
    np.testing.assert_array_equal(places[:, :count], want)
    assert not places[:, int(count) :].any()


def check_unique(x: Array, axis: int = 0, ordered: int = 1, **how: Any) -> None:
    made = steps("Unique", x, axis=axis, sorted=ordered)
    values, first, inverse, counts, found = ran(made, [x], **how)
    wanted = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    _, heads, back, many = wanted
    order = np.arange(len(heads)) if ordered else np.argsort(heads)
    n = len(heads)
    assert found == n
    np.testing.assert_array_equal(first[:n], heads[order])
    np.testing.assert_array_equal(counts[:n], many[order])
    np.testing.assert_array_equal(inverse, np.argsort(order)[back.reshape(-1)])
    kept = np.take(x, heads[order], axis)
    np.testing.assert_array_equal(np.take(values, range(n), axis), kept)
    for a in (first, counts, np.moveaxis(values, axis, 0)):
        assert not a[n:].any()


@pytest.fixture
def few(monkeypatch):
    """Blocks that sort four elements, so that some more are merged by several of them."""
    monkeypatch.setattr(searching, "IN_BLOCK", 2)


def flags(shape: Any, share: float) -> Array:
    return (np.random.default_rng(0).random(shape) < share).astype(np.float32)


@pytest.mark.parametrize("share", [0, 0.3, 1])
@pytest.mark.parametrize("shape", [(1,), (37,), (3, 1, 7)])
def test_places_of_none_some_and_all(shape, share):
    check_nonzero(flags(shape, share))


@pytest.mark.representatives("pocl")
@pytest.mark.parametrize("machine", MACHINES)
def test_launches_are_right_on_each_machine(few, machine):
    check_nonzero(flags((7, 11), 0.5), of=MACHINES[machine])
    x = np.random.default_rng(1).integers(0, 5, SIZE)
    check_unique(x, of=MACHINES[machine])


def test_counts_go_beyond_a_block():
    """More elements than a block has threads; a long row of them is counted by several blocks."""
    x = flags((700,), 0.4)
    scan, search = (launches(k, GENERIC) for k in steps("NonZero", x)[0])
    assert [p.grid[0] for p in search.launches] == [11, 1]
    check_nonzero(x)
    (scan, _), _, _ = steps("NonZero", flags((1 << 20,), 0))
    assert any(p.grid[0] > 1 for p in launches(scan, GENERIC).launches)


@pytest.mark.parametrize("most, ordered", [(1, 0), (4, 0), (100, 1)])
def test_distinct_elements_of_some_blocks(few, most, ordered):
    x = np.random.default_rng(most).integers(0, most, SIZE)
    check_unique(x, ordered=ordered)


def test_distinct_slices(few):
    x = np.random.default_rng(0).integers(0, 2, (2, 4))
    check_unique(x, axis=1, ordered=0)


@pytest.mark.parametrize("count", [0, 5])
@pytest.mark.parametrize(
    "run", ["loops", pytest.param("interpreter", marks=pytest.mark.slow)]
)
def test_slices_past_the_count_are_ignored(few, count, run):
    x = np.random.default_rng(0).integers(0, 3, SIZE)
    made = steps("Unique", x, np.array(count), axis=0, sorted=1)
    values, first, inverse, counts, found = ran(made, [x, np.array(count)], run=run)
    want = np.unique(
        x[:count], return_index=True, return_inverse=True, return_counts=True
    )
    n = len(want[0])
    assert found == n and not values[n:].any() and not inverse[count:].any()
    made = (values[:n], first[:n], inverse[:count], counts[:n])
    for a, b in zip(made, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_nan_is_last_and_zeros_are_equal(few):
    some = [np.nan, 0.0, 2, -0.0, np.nan, 1, -np.inf]
    x = np.array([*some, *[1] * (SIZE - len(some))], np.float32)
    values, first, _, counts, found = ran(steps("Unique", x, axis=0), [x])
    assert found == 5
    np.testing.assert_array_equal(values[:5], [-np.inf, 0, 1, 2, np.nan])
    assert first[:5].tolist() == [6, 1, 5, 2, 0]
    assert counts[:5].tolist() == [1, 2, 5, 1, 2]


def test_each_barrier_of_the_sort_is_needed():
    """Blocks sort in shared memory; without a barrier the race detector finds two threads."""
    x = np.random.default_rng(0).permutation(SIZE)
    kernels, operands, _ = steps("Unique", x, axis=0)
    k = kernels[0]
    made = launches(k, GENERIC)
    assert {b.name for b in made.launches[0].shared} == {"mine", "dealt"}
    count = len(barriers(made))
    assert count >= 2
    arrays = {b: np.zeros(b.shape, b.dtype.numpy) for b in k[0].params}
    arrays[operands[0]] = x
    for n in range(count):
        with pytest.raises(ExecutionError):
            broken = {b: a.copy() for b, a in arrays.items()}
            launch_interp.run(without_barrier(made, n), broken)


def test_sums_of_integers_are_in_parts_where_floats_keep_their_order():
    """Exact arithmetic forbids another order for floats alone."""
    kernels, _, _ = steps("NonZero", flags((5000,), 0.5))
    names = [s.name for s in sketches(*kernels[0], GENERIC, exact=True)]
    assert names[0] == "scan"


@pytest.mark.parametrize("run", ["PoCL", "PTX"])
def test_devices_agree(few, run):
    """NonZero on PoCL is in the slow test below."""
    of = H100 if run == "PTX" else POCL
    if run == "PTX":
        check_nonzero(flags((5, 13), 0.4), of=of, run=run)
    check_unique(np.random.default_rng(0).integers(0, 4, SIZE), 0, 0, of=of, run=run)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1023, 1024, 1025, 5003])
def test_long_ones_on_pocl(size):
    rng = np.random.default_rng(size)
    for most in (1, 50, size):
        check_unique(rng.integers(0, most, size), of=POCL, run="PoCL")
    for share in (0, 0.01, 1):
        check_nonzero(flags((size,), share), of=POCL, run="PoCL")
