"""What counts as a whole number, here and wherever a user gives one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright import halide, lift, mdh, te
from tilewright.base.errors import TilewrightError
from tilewright.base.numbers import whole
from tilewright.dataflow.baseline import nonstreaming_makespan
from tilewright.dataflow.graph import TaskGraph
from tilewright.dataflow.schedule import schedule as schedule_tasks
from tilewright.driver.options import Options
from tilewright.runtime.threads import thread_count
from tilewright.targets.vta import VTAConfig
from tilewright.targets.vta.timing import TimingParameters


@pytest.mark.parametrize(
    "value", [3, np.int8(3), np.uint64(3)], ids=lambda v: type(v).__name__
)
def test_whole_numbers(value: object) -> None:
    assert whole(value) == 3 and type(whole(value)) is int
    assert whole(value, 3) == 3 and whole(value, 4) is None


@pytest.mark.parametrize(
    "value", [True, np.True_, 2.0, np.float32(2), "2", None, 2j, [2]], ids=str
)
def test_what_is_no_whole_number(value: object) -> None:
    assert whole(value) is None


def split(factor: object) -> None:
    A = te.placeholder((8,), "float32", "A")
    B = te.compute((8,), lambda i: A[i], "B")
    te.create_schedule(B.op)[B].split(B.op.axis[0], factor)


NO_TASKS = TaskGraph("none", (), (), "part")
TAKERS: dict[str, Callable[[Any], Any]] = {
    "threads": thread_count,
    "compile-threads": lambda n: Options(threads=n),
    "compile-memory": lambda n: Options(memory_limit=n),
    "te-shape": lambda n: te.placeholder((n,), "float32"),
    "te-axis": lambda n: te.reduce_axis((0, n)),
    "te-split": split,
    "mdh-extent": lambda n: mdh.md_hom[n](lambda v: v, (mdh.cc,)),
    "mdh-buffer": lambda n: mdh.buffer(mdh.float32, n),
    "lift-length": lambda n: lift.array(lift.f32, n),
    "lift-count": lambda n: lift.asVector(n),
    "lift-times": lambda n: lift.infer(
        lift.fun(lambda a: lift.Iterate(n, lift.Map(lambda v: v))(a), lift.f32[4])
    ),
    "lift-component": lambda n: lift.infer(
        lift.fun(
            lambda a: a | lift.Map(lambda p: p[n]), lift.Tup(lift.f32, lift.f32)[4]
        )
    ),
    "lift-size": lambda n: lift.lower(
        lift.fun(lambda a: a | lift.Map(lambda v: v + v), lift.f32[lift.length("n")]),
        {"n": n},
    ),
    "halide": lambda n: halide.RDom([(0, n)]),
    "vta-config": lambda n: VTAConfig(
        LOG_BATCH=n, LOG_INP_BUFF_SIZE=16, LOG_ACC_BUFF_SIZE=18
    ),
    "vta-timing": lambda n: TimingParameters(gemm_interval=n),
    "elements": lambda n: schedule_tasks(NO_TASKS, n),
    "elements-of-the-baseline": lambda n: nonstreaming_makespan(NO_TASKS, n),
}


@pytest.mark.parametrize("value", [True, 1.5, "1"], ids=repr)
@pytest.mark.parametrize("take", TAKERS.values(), ids=TAKERS)
def test_wherever_one_is_asked_for(take, value) -> None:
    with pytest.raises(TilewrightError):
        take(value)


@pytest.mark.parametrize("take", TAKERS.values(), ids=TAKERS)
def test_one_of_numpy_will_do(take) -> None:
    take(np.int64(1))
