"""MDH's parameters: parts multiply to the extents, and every schedule computes the same."""

from __future__ import annotations

from math import prod
from random import Random

import numpy as np
import pytest

from tilewright.base.errors import InputError, ScheduleError, UnsupportedError
from tilewright.lang import mdh
from tilewright.lang.mdh import (
    add,
    cc,
    float32,
    inp_view,
    md_hom,
    mul,
    out_view,
    ps,
    pw,
)
from tilewright.loops.verify import verify
from tilewright.tune.base import Candidate, Space


def product(i: int, j: int, k: int) -> mdh.Expression:
    return (
        out_view[float32](C=[lambda i, j, k: (i, j)])
        @ md_hom[i, j, k](mul, (cc, cc, pw(add)), name="mm")
        @ inp_view[float32, float32](
            A=[lambda i, j, k: (i, k)], B=[lambda i, j, k: (k, j)]
        )
    )


def sums(i: int, k: int) -> mdh.Expression:
    return (
        out_view[float32](y=[lambda i, k: (i,)])
        @ md_hom[i, k](mul, (cc, pw(add)), name="sums")
        @ inp_view[float32, float32](A=[lambda i, k: (i, k)], x=[lambda i, k: (k,)])
    )


def doubled(i: int, j: int) -> mdh.Expression:
    return (
        out_view[float32](y=[lambda i, j: (i, j)])
        @ md_hom[i, j](lambda x: x + x, (cc, cc), name="doubled")
        @ inp_view[float32](x=[lambda i, j: (j, i)])
    )


def dot(k: int) -> mdh.Expression:
    return (
        out_view[float32](y=[lambda k: (0,)])
        @ md_hom[k](mul, (pw(add),), name="dot")
        @ inp_view[float32, float32](a=[lambda k: (k,)], b=[lambda k: (k,)])
    )


def chains(extent: int, limits: list[int]) -> int:
    """In how many ways numbers under these limits take factors of the extent, one by one."""
    if not limits:
        return 1
    return sum(
        chains(extent // d, limits[1:])
        for d in range(1, extent + 1)
        if extent % d == 0 and d <= limits[0]
    )


def test_the_space_of_a_matrix_vector_product_is_counted():
    space: Space = mdh.parameter_space(sums(12, 10), lanes=4)
    any_ = 1000
    total = 0
    for unrolled in (1, 2, 3, 4, 6, 12):  # of i; k has 32 // unrolled left
        rows = sum(
            chains(12 // cores // vector // unrolled, [any_])
            for cores in range(1, 13)
            for vector in range(1, 5)
            if 12 % (cores * vector * unrolled) == 0
        )
        total += rows * chains(10, [32 // unrolled, any_])
    assert space.size == total * 2 * 2 * 2  # two orders of two layers, outer or inner


@pytest.mark.parametrize(
    "made",
    [product(12, 8, 6), sums(12, 10), doubled(6, 8), dot(30)],
    ids=["product", "sums", "doubled", "dot"],
)
def test_every_schedule_computes_the_same(made):
    space = mdh.parameter_space(made, lanes=4, cores=4)
    kernel = mdh.lower(made)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(b.shape, np.float32) for b in kernel.inputs]
    outputs = [b for b in kernel.params if b in kernel.outputs]
    expected = [np.empty(b.shape, np.float32) for b in outputs]
    mdh.build(kernel, target="interp")(*inputs, *expected)
    r = Random(0)
    kernels = set()
    for candidate in [space.default(), *(space.sample(r) for _ in range(25))]:
        point = space.schedule(candidate)
        assert Candidate.of(point) == candidate
        verify(point.schedule.kernel)
        found = [np.full(b.shape, np.nan, np.float32) for b in outputs]
        mdh.build(point.schedule, target="interp")(*inputs, *found)
        for a, b in zip(expected, found, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5)
        kernels.add(str(point.schedule.kernel))
    assert len(kernels) > 10


def test_a_schedule_that_is_worked_out():
    space = mdh.parameter_space(product(16, 32, 64), lanes=8)
    values = dict.fromkeys((p.name for p in space.parameters), 1)
    values |= {"PRT.COR.i": 2, "PRT.REG.i": 4, "PRT.COR.j": 2, "PRT.SIMD.j": 8}
    values |= {"PRT.L2.k": 4, "PRT.REG.k": 2, "ASS.COR": "outer"}
    values |= {"ORD.L2": ("k", "i", "j"), "ORD.L1": ("i", "j", "k")}
    text = str(space.schedule(Candidate("", values)).schedule.kernel)
    body = text[text.rindex("for mm.k.o in 4") :]
    order = ["k.o in 4", "i.i.o in 2", "j.i.o in 2", "k.i.o in 8"]
    order += ["i.i.i in 4 unroll", "k.i.i in 2 unroll", "j.i.i in 8 vector"]
    places = [body.index(f"for mm.{loop}") for loop in order]
    assert places == sorted(places), text
    assert "in 4 parallel" in text[: text.rindex("for mm.k.o in 4")]
    assert (
        prod(v for v in values.values() if isinstance(v, int)) == 2 * 4 * 2 * 8 * 4 * 2
    )


def test_limits_hold():
    space = mdh.parameter_space(product(64, 64, 64), lanes=8, cores=4)
    r = Random(0)
    for _ in range(200):
        v = space.sample(r).values
        assert v["PRT.COR.i"] * v["PRT.COR.j"] <= 4
        assert v["PRT.SIMD.j"] <= 8
        assert v["PRT.REG.i"] * v["PRT.REG.j"] * v["PRT.REG.k"] <= 32
        for d in "ijk":
            parts = [
                n
                for name, n in v.items()
                if name.startswith("PRT") and name.endswith(d)
            ]
            assert 64 % prod(parts) == 0
    assert "PRT.COR.k" not in v
    assert "PRT.SIMD.k" not in v


def test_refusals():
    with pytest.raises(InputError, match="is not an expression"):
        mdh.parameter_space("mm")
    scan = md_hom[8, 8](lambda x: x, (cc, ps(add)), name="scan")
    running = (
        out_view[float32](y=[lambda i, k: (i, k)])
        @ scan
        @ inp_view[float32](x=[lambda i, k: (i, k)])
    )
    with pytest.raises(UnsupportedError, match="scan is a scan along"):
        mdh.parameter_space(running)
    space = mdh.parameter_space(sums(4, 4))
    with pytest.raises(ScheduleError, match="`nearest` finds the closest one"):
        space.schedule(Candidate("", {"PRT.COR.i": 2}))


def test_an_expression_has_the_space_of_sketches_too():
    made = product(16, 16, 16)
    space = mdh.sketch_space(made)
    default = space.schedule(space.default()).schedule
    assert repr(default.kernel) == repr(mdh.schedule(made, target="cpu").kernel)
