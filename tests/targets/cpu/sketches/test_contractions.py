"""Contractions in any order of storage, and reductions to several results, by default schedules."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.cpu.native import run_native
from tests.targets.cpu.sketches.machines import Small
from tilewright.lang import mdh
from tilewright.lang.mdh import (
    argmax,
    argmin,
    cc,
    float32,
    inp_view,
    int64,
    md_hom,
    mul,
    out_view,
    pw,
)
from tilewright.lang.mdh.syntax.catalog import CATALOG, ccsdt_i1, ccsdt_i2, prl
from tilewright.loops.nodes import Alloc, For
from tilewright.loops.verify import verify
from tilewright.loops.walk import walk
from tilewright.schedule import Schedule, replay
from tilewright.schedule.space.patterns import classify
from tilewright.targets.cpu.sketches import Context, sketches


def scheduled(expression, name: str, exact: bool = False) -> Schedule:
    """The default schedule for a small machine, which has to be of this sketch."""
    at = Context(Small(), (), exact)
    first = sketches(mdh.lower(expression), [expression], at)[0]
    assert first.name == name
    s = first.default().schedule
    verify(s.kernel)
    assert repr(replay(s.original, s.trace)) == repr(s.kernel)
    return s


def results(s: Schedule, seed: int = 0) -> list[np.ndarray]:
    """Of native code, on integers that sums represent exactly."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for b in s.kernel.params:
        arrays[b] = rng.integers(-4, 5, b.shape).astype(b.dtype.numpy)
    run_native(s.kernel, arrays)
    return [arrays[b] for b in s.kernel.params]


def buffers(s: Schedule) -> set[str]:
    return {
        p.stmt.buffer.name for p in walk(s.kernel.body) if isinstance(p.stmt, Alloc)
    }


@pytest.mark.parametrize(
    "make, spec",
    [(ccsdt_i1, "gdab,efgc->abcdef"), (ccsdt_i2, "gdac,efgb->abcdef")],
)
@pytest.mark.parametrize("sizes", [(4, 3, 2, 6, 4, 8, 5), (5, 7, 3, 5, 3, 5, 9)])
def test_a_contraction_of_any_storage_order(make, spec, sizes):
    s = scheduled(make(*sizes), "tiled")
    left, right, result = results(s)
    np.testing.assert_array_equal(result, np.einsum(spec, left, right))


def test_dimensions_that_are_neighbors_everywhere_are_one():
    """a and b, e and f of the first instance; e and f of the second. Tensors stay the user's."""
    for make, count in ((ccsdt_i1, 2), (ccsdt_i2, 1)):
        s = scheduled(make(4, 3, 2, 6, 4, 8, 5), "tiled")
        fused = [step.args[-1] for step in s.trace.steps if step.primitive == "rename"]
        assert len(fused) == count and all(
            name.endswith(("ab", "ef")) for name in fused
        )
        shapes = [b.shape for b in s.kernel.params]
        assert shapes == [b.shape for b in s.original.params]


def test_rows_that_lie_apart_are_packed_where_many_columns_read_them():
    assert "A.pack" in buffers(scheduled(ccsdt_i1(4, 4, 8, 16, 8, 16, 24), "tiled"))
    assert "A.pack" not in buffers(scheduled(ccsdt_i1(4, 4, 2, 16, 2, 4, 24), "tiled"))


def test_rows_along_which_the_product_reads_in_order_are_not_packed():
    s = scheduled(CATALOG["MatMul"](64, 512, 32), "tiled")
    assert "A.pack" not in buffers(s)


def extreme(op, rows: int, steps: int, across: bool):
    """The extreme of each row (column, if across) and where it is."""
    place = (lambda i, j: (j, i)) if across else (lambda i, j: (i, j))
    return (
        out_view[float32, int64](v=[lambda i, j: i], p=[lambda i, j: i])
        @ md_hom[rows, steps](lambda x, *, j: (x, j), (cc, pw(op)), name="extreme")
        @ inp_view[float32](x=[place])
    )


@pytest.mark.parametrize("op, find", [(argmax, np.argmax), (argmin, np.argmin)])
@pytest.mark.parametrize("across", [True, False])
@pytest.mark.parametrize("rows, steps", [(9, 37), (3, 3), (1, 50), (50, 2), (8, 16)])
def test_extremes_with_their_places_in_vectors(op, find, across, rows, steps):
    e = extreme(op, rows, steps, across)
    inside = rows == 1 or not across
    s = scheduled(e, "joint_rows" if inside else "joint")
    kinds = {p.stmt.kind for p in walk(s.kernel.body) if isinstance(p.stmt, For)}
    assert "vector" in kinds
    x, values, places = results(s)
    axis = 0 if across else 1
    np.testing.assert_array_equal(places, find(x, axis=axis))
    np.testing.assert_array_equal(values, np.take_along_axis(
        x, np.expand_dims(find(x, axis=axis), axis), axis
    ).reshape(-1))  # fmt: skip


def test_an_operator_of_the_user_in_vectors():
    s = scheduled(prl(21, 30), "joint")
    rng = np.random.default_rng(1)
    arrays = {b: np.zeros(b.shape, b.dtype.numpy) for b in s.kernel.params}
    new, existing, key, weight, match = arrays
    arrays[new][:] = rng.integers(0, 3, new.shape)
    arrays[existing][:] = rng.integers(0, 3, existing.shape)
    arrays[key][:] = np.arange(30)
    run_native(s.kernel, arrays)
    same = arrays[new][:, None] == arrays[existing][None]
    total = np.where(same, 1, -1) @ np.array([4.0, 2.5, 1.0], np.float32)
    np.testing.assert_array_equal(arrays[match], total.argmax(1))
    np.testing.assert_array_equal(arrays[weight], total.max(1))


def test_exact_arithmetic_does_not_part_a_reduction():
    """Lanes of results keep the order of each; lanes of one reduction do not."""
    kernel = mdh.lower(e := extreme(argmax, 9, 37, False))
    names = [x.name for x in sketches(kernel, [e], Context(Small(), (), True))]
    assert names == ["plain"]
    scheduled(extreme(argmax, 9, 37, True), "joint", exact=True)


def test_what_no_vector_suits_stays_plain():
    """The index of the element is read at a distance along both dimensions."""
    e = (
        out_view[float32, int64](v=[lambda i, j: i * 2], p=[lambda i, j: i * 2])
        @ md_hom[4, 5](lambda x, *, j: (x, j), (cc, pw(argmax)), name="apart")
        @ inp_view[float32](x=[lambda i, j: (i, j * 2)])
    )
    assert classify([e]).name == "plain"


def test_a_product_of_a_batch_in_the_middle():
    """The batch is the innermost of one operand and the second of the other."""
    e = (
        out_view[float32](C=[lambda b, i, j, k: (i, b, j)])
        @ md_hom[6, 10, 12, 7](mul, (cc, cc, cc, pw(mdh.add)), name="mixed")
        @ inp_view[float32, float32](
            A=[lambda b, i, j, k: (k, i, b)], B=[lambda b, i, j, k: (j, b, k)]
        )
    )
    s = mdh.schedule(e, target="cpu")
    left, right, result = results(s)
    np.testing.assert_array_equal(result, np.einsum("kib,jbk->ibj", left, right))
