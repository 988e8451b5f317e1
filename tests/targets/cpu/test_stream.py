"""Large aligned results bypass the caches; other results are stored as before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.targets.cpu.native import aligned, prepare
from tilewright.base.dtypes import float32
from tilewright.base.errors import CompileError
from tilewright.compute.build import map_
from tilewright.compute.reducer import reducer
from tilewright.expr.nodes import INDEX, Buffer, Var, const, var
from tilewright.loops.lower import lower
from tilewright.loops.nodes import STREAM, Kernel, Stmt, Store, Update, block, loop
from tilewright.schedule import Schedule
from tilewright.targets.cpu.compile import assembly
from tilewright.targets.cpu.machine import CpuMachine, host, machine
from tilewright.targets.cpu.sketches import Context, default, sketches
from tilewright.targets.cpu.sketches.streaming import streamed

pytestmark = pytest.mark.skipif(
    host().arch != "x86_64" or not host().has("avx"), reason="of x86 with AVX"
)


def level(name: str) -> CpuMachine:
    """Whose caches hold next to nothing."""
    small = replace(machine(name), l1=1 << 9, l3=1 << 10)
    return replace(small, measured=(("streamed", 1 << 10),))


def scheduled(
    rows: int, columns: int, transposed: bool = False, name: str = "native"
) -> Kernel:
    x = Buffer("x", (columns, rows) if transposed else (rows, columns), float32)
    y = Buffer("y", (rows, columns), float32)
    c = map_("double", y, lambda i, j: (x[j, i] if transposed else x[i, j]) * 2.0)
    return default(lower("double", [c], [x, y], [y]), [c], Context(level(name))).kernel


def placed(shape: tuple[int, ...], offset: int) -> Any:
    """An array of float32 that begins `offset` elements after a 64-byte boundary."""
    n = int(np.prod(shape))
    return aligned(4 * (n + offset)).view(np.float32)[offset:].reshape(shape)


@pytest.mark.covering(2)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("offset", [0, 1, 8, 16])
@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "transposed"])
@pytest.mark.parametrize(
    ("rows", "columns"), [(64, 64), (64, 48), (33, 80), (37, 53), (256, 512)]
)
def test_the_result_is_the_same(
    rows: int, columns: int, transposed: bool, offset: int, threads: int
) -> None:
    kernel = scheduled(rows, columns, transposed)
    x, y = (placed(b.shape, offset) for b in kernel.params)
    x[...] = np.random.default_rng(rows).normal(size=x.shape)
    assert prepare(kernel, level("native"), threads)(x, y) == 0
    np.testing.assert_array_equal(y, 2 * (x.T if transposed else x))


@pytest.mark.parametrize(
    ("name", "wide"), [("x86-64-v3", "%ymm"), ("x86-64-v4", "%zmm")]
)
def test_whole_registers_are_stored_past_the_caches(name: str, wide: str) -> None:
    text = assembly(scheduled(64, 64, name=name), level(name))
    stores = [line for line in text.splitlines() if "movnt" in line]
    assert stores and any(wide in line for line in stores)
    assert "sfence" in text


def vectors(out: Buffer, start: int, step: int, lanes: int, count: int) -> Kernel:
    """`out[step * i + lane + start] = 1` in vectors."""
    i, lane = var("i"), var("lane")
    store = Store(out, (i * step + lane + start,), const(1, out.dtype))
    nest = loop(i, count, loop(lane, lanes, store, "vector"))
    return Kernel("fill", (out,), (out,), nest, {"i": {STREAM: "out"}})


@pytest.mark.parametrize(
    ("start", "step", "lanes", "streams"),
    [(0, 16, 16, True), (16, 32, 16, True), (1, 16, 16, False), (0, 24, 16, False),
     (0, 16, 8, False)],
)  # fmt: skip
def test_only_whole_registers_on_boundaries(
    start: int, step: int, lanes: int, streams: bool
) -> None:
    out = Buffer("out", (2048,), float32)
    text = assembly(vectors(out, start, step, lanes, 60), level("x86-64-v4"))
    assert ("movnt" in text) == streams


def grown() -> Kernel:
    out = Buffer("out", (2048,), float32)
    i, lane = var("i"), var("lane")
    store = Store(out, (i * 16 + lane,), out[i * 16 + lane] + 1.0)
    return Kernel("grow", (out,), (out,), loop(i, 128, loop(lane, 16, store, "vector")))


def test_what_the_kernel_reads_stays_in_the_caches() -> None:
    at = Context(level("x86-64-v4"))
    assert not default(grown(), [], at).trace.steps
    noted = replace(grown(), notes={"i": {STREAM: "out"}})
    with pytest.raises(
        CompileError, match="kernel grow: out cannot be stored past the caches"
    ):
        assembly(noted, at.machine)


def test_the_note_is_a_step_of_the_schedule_and_a_choice() -> None:
    x, y = Buffer("x", (64, 64), float32), Buffer("y", (64, 64), float32)
    c = map_("double", y, lambda i, j: x[i, j] * 2.0)
    plain, at = lower("double", [c], [x, y], [y]), Context(level("x86-64-v4"))
    point = sketches(plain, [c], at)[0].default()
    assert "s.annotate" in str(point.schedule.trace) and point.values["stream.y"]
    without = sketches(plain, [c], at)[0].at({"stream.y": False}).schedule.kernel
    assert "movnt" in assembly(point.schedule.kernel, at.machine)
    assert "movnt" not in assembly(without, at.machine)


def test_a_small_result_stays_in_the_caches() -> None:
    x, y = Buffer("x", (4, 16), float32), Buffer("y", (4, 16), float32)
    c = map_("double", y, lambda i, j: x[i, j] * 2.0)
    made = default(lower("double", [c], [x, y], [y]), [c], Context(level("x86-64-v4")))
    text = assembly(made.kernel, level("x86-64-v4"))
    assert "movnt" not in text and ".plain" not in text


LARGE, OTHER, SMALL = (
    Buffer(n, (k,), float32) for n, k in (("a", 2048), ("b", 2048), ("c", 4))
)


def noted(
    *nests: Stmt,
    results: Sequence[Buffer],
    name: str = "x86-64-v4",
    asked: list[Any] | None = None,
) -> dict[str, Any]:
    """The annotated loops of a kernel by default, with the annotation. asked: receives the
    candidates."""

    def choose(name: str, options: Any, good: Any) -> Any:
        if asked is not None:
            asked.append((name, tuple(options), good))
        return good

    kernel = Kernel("k", tuple(results), tuple(results), block(*nests))
    made = streamed(Schedule(kernel), Context(level(name)), choose)
    return {loop: said[STREAM] for loop, said in made.kernel.notes.items()}


def filled(name: str, *buffers: Buffer) -> Stmt:
    i = var(name)
    stores = [Store(b, (i,), const(1.0, float32)) for b in buffers]
    return loop(i, min(b.extents[0] for b in buffers), block(*stores))


def test_each_loop_says_which_results_pass_the_caches() -> None:
    both = filled("i", LARGE, OTHER)
    assert noted(both, results=(LARGE, OTHER)) == {"i": "a,b"}
    apart = filled("i", LARGE), filled("j", SMALL), filled("k", LARGE)
    assert noted(*apart, results=(LARGE, SMALL)) == {"i": "a", "k": "a"}


def test_what_is_added_to_is_read() -> None:
    i = var("j")
    step = Update((LARGE,), ((i,),), (const(1.0, float32),), reducer("add", float32))
    nests = filled("i", LARGE), loop(i, 2048, step)
    assert not noted(*nests, results=(LARGE,))


@pytest.mark.parametrize("name", ["aarch64", "x86-64-v2"])
def test_other_processors_get_no_note(name: str) -> None:
    asked: list[Any] = []
    assert not noted(filled("i", LARGE), results=(LARGE,), name=name, asked=asked)
    assert not asked


@pytest.mark.parametrize(
    ("elements", "expected"),
    [(128, None), (129, False), (255, False), (256, True)],
)
def test_which_results_may_pass_the_caches(elements: int, expected: Any) -> None:
    """Those that the first cache does not hold; by default the large ones."""
    asked: list[Any] = []
    out = Buffer("out", (elements,), float32)
    found = noted(filled("i", out), results=(out,), asked=asked)
    wanted = [("stream.out", (True, False), expected)]
    assert asked == (wanted if expected is not None else [])
    assert found == ({"i": "out"} if expected else {})


def test_stores_outside_of_loops_and_open_results_get_no_note() -> None:
    asked: list[Any] = []
    one = Store(LARGE, (const(0),), const(1.0, float32))
    assert not noted(one, results=(LARGE,), asked=asked) and not asked
    assert noted(one, filled("i", LARGE), results=(LARGE,)) == {"i": "a"}
    rows, i = Var("n", INDEX), var("i")
    whole = Buffer("open", (rows,), float32)
    nest = loop(
        rows, 999, loop(i, rows, Store(whole, (i,), const(1.0, float32))), "size"
    )
    asked.clear()
    assert not noted(nest, results=(whole,), asked=asked) and not asked


def test_a_processor_without_such_stores_refuses_the_note() -> None:
    out = Buffer("out", (2048,), float32)
    kernel = vectors(out, 0, 4, 4, 60)
    with pytest.raises(CompileError, match="no stores past the caches on aarch64"):
        assembly(kernel, machine("aarch64"))
    unnoted = replace(kernel, notes={})
    assert not default(
        unnoted, [], Context(replace(machine("aarch64"), l3=1))
    ).trace.steps
