"""Fragments: phases access the elements of a warp's tile that their thread has, and no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.targets.cuda.running import SM80, load_counted
from tilewright.base.dtypes import float16, float32
from tilewright.base.errors import ScheduleError
from tilewright.compute.build import cast, map_, reduce_
from tilewright.expr.nodes import INDEX, Buffer, Lt, Var, const
from tilewright.ir.node import substitute
from tilewright.loops import launch_interp
from tilewright.loops.launch import AXIS, LaunchProgram
from tilewright.loops.launch_interp import DivergenceError
from tilewright.loops.lower import lower
from tilewright.loops.nodes import For, If, Unit
from tilewright.loops.passes.to_launches import to_launches
from tilewright.loops.walk import walk
from tilewright.schedule import Schedule
from tilewright.targets import registry

registry.intrinsics("cuda")
A, B = Buffer("a", (16, 16), float16), Buffer("b", (16, 8), float16)
T, Y = Buffer("t", (16, 8), float32), Buffer("y", (16, 8), float32)


def scheduled(index: Any, rows: int = 8, pairs: int = 2) -> Schedule:
    """y[i, j] = 2 * t[index(i, j)], where t is a product in the registers of a warp. rows: threads
    on y. pairs: neighboring columns of a thread."""
    mm = reduce_(
        "mm",
        T,
        (16,),
        "add",
        lambda i, j, k: cast(A[i, k], float32) * cast(B[k, j], float32),
    )
    twice = map_("twice", Y, lambda i, j: T[index(i, j)] * 2)
    s = Schedule(lower("f", [mm, twice], params=[A, B, Y], outputs=[Y]))
    s.set_scope("t", "warp")
    s.tensorize("mm.i", "cuda.mma.float16")
    down, row = s.split("twice.i", rows)
    column, pair = s.split("twice.j", pairs)
    s.reorder(row, column, down, pair)
    s.bind(row, "threadIdx.y")
    s.bind(column, "threadIdx.x")
    return s


def program(s: Schedule) -> LaunchProgram:
    """All of it as one block."""
    body = For(Var("block", INDEX), const(1), "blockIdx.x", s.kernel.body)
    return to_launches(s.kernel.with_body(body), 32)


def arrays(p: LaunchProgram) -> dict[Buffer, Any]:
    rng = np.random.default_rng(0)
    return {x: rng.integers(-3, 4, x.shape).astype(x.dtype.numpy) for x in p.params}


def test_a_thread_has_its_elements_of_a_product():
    p = program(scheduled(lambda i, j: (i, j)))
    (launch,) = p.launches
    assert launch.threads == (4, 8, 1)
    given = arrays(p)
    want = 2 * (given[A].astype(np.float32) @ given[B].astype(np.float32))
    _, (made,) = load_counted(p, SM80, given)
    assert np.array_equal(made, want)
    launch_interp.run(p, given)
    assert np.array_equal(given[Y], want)


REFUSED = {
    "another row": (lambda i, j: (15 - i, j), {}),
    "another column": (lambda i, j: (i, 7 - j), {}),
    "a neighbor's": (lambda i, j: (i, (j + 2) % 8), {}),
    "other threads": (lambda i, j: (i, j), {"rows": 4, "pairs": 1}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_another_thread_s_elements_are_refused(name):
    index, how = REFUSED[name]
    with pytest.raises(
        ScheduleError, match=r"single threads have t.*holds it together"
    ):
        program(scheduled(index, **how))


def _as_float16(s: Schedule) -> None:
    """Deal out the rounded product, an operand of the next one."""
    down, row = s.split("round.i", 8)
    across, column = s.split("round.j", 8)
    column, pair = s.split(column, 2)
    s.reorder(row, column, down, across, pair)
    s.bind(row, "threadIdx.y")
    s.bind(column, "threadIdx.x")


def chained() -> LaunchProgram:
    """y = f16(a @ b) @ c, with 16 columns between: shares go from one product to the next."""
    wide, b = Buffer("p", (16, 16), float16), Buffer("b", (16, 16), float16)
    c, t = Buffer("c", (16, 8), float16), Buffer("t", (16, 16), float32)
    first = reduce_(
        "mm",
        t,
        (16,),
        "add",
        lambda i, j, k: cast(A[i, k], float32) * cast(b[k, j], float32),
    )
    rounded = map_("round", wide, lambda i, j: cast(t[i, j], float16))
    second = reduce_(
        "nn",
        Y,
        (16,),
        "add",
        lambda i, j, k: cast(wide[i, k], float32) * cast(c[k, j], float32),
    )
    s = Schedule(lower("f", [first, rounded, second], params=[A, b, c, Y], outputs=[Y]))
    for name in ("t", "p"):
        s.set_scope(name, "warp")
    zero = s.decompose_reduction("t", "mm.i")
    for row, column in (zero, ("mm.i", "mm.j")):
        across, inner = s.split(column, 8)
        s.reorder(across, row, inner)
    s.tensorize("mm.i", "cuda.mma.float16")
    _as_float16(s)
    held = s.cache_write("y", None, "warp")
    s.tensorize("nn.i", "cuda.mma.float16")
    s.tensorize(f"{held}.w0", "cuda.mma.store.float32")
    return program(s)


def test_what_threads_round_is_a_factor_of_the_next_product():
    p = chained()
    given = arrays(p)
    a, b, c = (given[x].astype(np.float32) for x in p.params[:3])
    want = (a @ b) @ c
    traffic, (made,) = load_counted(p, SM80, given)
    assert traffic.products == 3 and np.array_equal(made, want)


@pytest.mark.slow
def test_threads_exchange_the_elements_of_a_factor():
    p = chained()
    given = arrays(p)
    a, b, c = (given[x].astype(np.float32) for x in p.params[:3])
    want = (a @ b) @ c
    launch_interp.run(p, given)
    assert np.array_equal(given[p.outputs[0]], want)


def test_threads_of_a_warp_that_go_apart_are_noticed():
    p = chained()
    (launch,) = p.launches
    units = [at.stmt for at in walk(launch.body) if isinstance(at.stmt, Unit)]
    factor = next(u for u in units if any(o.buffer.name == "p" for o in u.operands))
    alone = If(Lt(AXIS["threadIdx.y"], const(4)), factor, None)
    body = substitute(launch.body, {factor: alone})
    wrong = LaunchProgram(
        p.name, p.params, p.outputs, p.workspace, (launch.with_body(body),)
    )
    with pytest.raises(DivergenceError, match="not all threads of the warp"):
        launch_interp.run(wrong, arrays(p))
