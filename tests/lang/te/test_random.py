"""Random schedules: each is refused by a ScheduleError, or computes what NumPy does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.lang.te.syntax.operators import CASES, Case, matmul
from tilewright import te as t
from tilewright.base.errors import ScheduleError
from tilewright.lang.te.syntax.nodes import Compute
from tilewright.loops.verify import verify

NAMES = (
    "small_matmul",
    "conv2d",
    "softmax",
    "layer_norm",
    "argmax",
    "max_pool",
    "prefix_scan",
)
VERBS = (
    *(
        "split",
        "split",
        "split",
        "fuse",
        "reorder",
        "reorder",
        "compute_at",
        "compute_at",
    ),
    *("inline", "kind", "kind", "cache_read", "cache_write", "rfactor"),
)


def _case(name: str) -> Case:
    return matmul(4, 6, 5) if name == "small_matmul" else CASES[name]()


def _say(draw: Any, s: t.Schedule) -> None:
    """One random verb on a random stage."""
    stage = draw(st.sampled_from(s.stages))
    tensor = stage.tensors[0]
    loop = draw(st.sampled_from(stage.leaves))
    match draw(st.sampled_from(VERBS)):
        case "split":
            size = draw(st.integers(1, 5))
            stage.split(loop, **{draw(st.sampled_from(["factor", "nparts"])): size})
        case "fuse":
            at = draw(st.integers(0, len(stage.leaves) - 1))
            stage.fuse(*stage.leaves[at : at + 2])
        case "reorder":
            some = draw(
                st.lists(st.sampled_from(stage.leaves), min_size=1, unique=True)
            )
            stage.reorder(*some)
        case "compute_at":
            other = draw(st.sampled_from(s.stages))
            stage.compute_at(other, draw(st.sampled_from(other.leaves)))
        case "inline":
            stage.compute_inline()
        case "kind":
            getattr(stage, draw(st.sampled_from(["vectorize", "unroll", "parallel"])))(
                loop
            )
        case "cache_read":
            s.cache_read(draw(st.sampled_from(stage.op.inputs)), "stack")
        case "cache_write":
            s.cache_write(tensor, "stack")
        case "rfactor":
            s.rfactor(tensor, loop)


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_schedules(data: st.DataObject) -> None:
    _check(data)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_many_random_schedules(data: st.DataObject) -> None:
    _check(data)


def _check(data: st.DataObject) -> None:
    case = _case(data.draw(st.sampled_from(NAMES)))
    s = t.create_schedule(list(case.outputs))
    for _ in range(data.draw(st.integers(1, 8))):
        try:
            _say(data.draw, s)
        except ScheduleError:
            continue  # refused at once, and not recorded
    assert all(isinstance(stage.op, Compute) for stage in s.stages)
    try:
        kernel = t.lower(s, case.args)
    except ScheduleError as error:
        assert error.where is not None and error.where.startswith("s")
        return
    verify(kernel)
    case.check(t.build(s, case.args, target="interp"))
    case.check(t.build(s, case.args))
