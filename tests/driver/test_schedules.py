"""The schedule of one kernel, asked for by its name; and why each kernel has the one it has."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import helper

import tilewright as tw
from tests.driver.test_compile import expected, model, perceptron, sample
from tilewright.base import events
from tilewright.base.dtypes import float32
from tilewright.base.errors import InputError, ScheduleError
from tilewright.base.store import FileStore
from tilewright.compute.build import map_, reduce_
from tilewright.driver import schedules, text
from tilewright.driver.kernels import KernelCompiler
from tilewright.driver.schedule_records import ScheduleRecord
from tilewright.expr.nodes import Buffer
from tilewright.loops.lower import lower
from tilewright.plan.nodes import FusionGroup
from tilewright.plan.normalize import kernel_signature
from tilewright.schedule import Schedule
from tilewright.schedule.space.selection import Selection
from tilewright.targets.cpu.sketches import rules
from tilewright.targets.registry import target

V3: Any = {"mcpu": "x86-64-v3", "threads": 1}


def records(**options: Any) -> dict[str, ScheduleRecord]:
    return {r.kernel: r for r in schedules(perceptron(7), **V3, **options)}


def test_a_kernel_is_told_with_its_sketch_its_parameters_and_its_trace() -> None:
    hidden = records()["matmul+relu"]
    assert (hidden.sketch, hidden.sketches[0]) == ("tiled", "tiled")
    assert hidden.estimate is not None and hidden.estimate > 0
    (tile,) = (p for p in hidden.parameters if p.name == "matmul.tile")
    assert tile.value == tile.default and tile.value in tile.candidates
    assert "s.compute_at('h'" in str(hidden) and "matmul.tile = " in str(hidden)
    assert json.loads(json.dumps(hidden.to_dict()))["values"]["sketch"] == "tiled"


def test_the_record_is_of_the_schedule_that_is_compiled() -> None:
    """What is told replays to the kernel that the code is made of."""
    told = [r.trace for r in schedules(perceptron(7), **V3)]
    cpu = target("cpu", **V3)
    kernels = []
    real = type(cpu).default_schedule

    def seen(self: Any, *given: Any) -> Any:
        kernels.append(real(self, *given))
        return kernels[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(cpu), "default_schedule", seen)
        text(perceptron(7), "kernel", **V3)
    assert [s.trace for s in kernels] == told


def test_one_kernel_changes_and_the_others_do_not() -> None:
    usual, chosen = (
        records(),
        {"matmul+relu": {"matmul.tile": (2, 1), "pack.w1": False}},
    )
    changed = records(schedules=chosen)
    assert changed["matmul_2"].trace == usual["matmul_2"].trace
    assert changed["matmul_2"].estimate == usual["matmul_2"].estimate is not None
    # The model's time is that of its own choice.
    assert changed["matmul+relu"].estimate is None
    assert changed["matmul+relu"].trace != usual["matmul+relu"].trace
    assert "matmul.tile = (2, 1) (default" in str(changed["matmul+relu"])
    assert "s.pack('w1'" not in str(changed["matmul+relu"])
    kernels = text(perceptron(7), "kernel", **V3, schedules=chosen)
    assert kernels != text(perceptron(7), "kernel", **V3)
    assert "s.split" in text(perceptron(7), "schedule", **V3, schedules=chosen)


def test_what_a_record_says_is_taken_back() -> None:
    values = {name: r.to_dict()["values"] for name, r in records().items()}
    again = records(schedules=json.loads(json.dumps(values)))
    assert [r.trace for r in again.values()] == [r.trace for r in records().values()]


@pytest.mark.parametrize("values", [{"sketch": "plain"}, {"matmul.tile": (1, 2)}, {}])
def test_the_results_stay_the_same(values: dict[str, Any]) -> None:
    source, x = perceptron(7).SerializeToString(), sample(7)
    tw.compile(source)
    with events.record() as log:
        exe = tw.compile(source, schedules={"matmul+relu": values})
    assert not [e for e in log if e.kind == "model-cached"]
    np.testing.assert_allclose(exe(x), expected(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (
            {"hidden": {}},
            InputError,
            r"no kernel 'hidden'; the kernels are matmul\+relu, matmul_2",
        ),
        (
            {"matmul_2": {"sketch": "rowz"}},
            ScheduleError,
            "no sketch 'rowz'; its sketches are til",
        ),
        (
            {"matmul_2": {"tile": 1}},
            ScheduleError,
            "kernel matmul_2: .*no parameter tile; the parameters are matmul",
        ),
        (
            {"matmul_2": {"matmul.tile": 3}},
            ScheduleError,
            "3 is not possible here; take one of",
        ),
        ({"matmul_2": 3}, InputError, "give parameters by kernel"),
        ([("matmul_2", {})], InputError, "give parameters by kernel"),
        ({"matmul_2": {"a": {1}}}, InputError, "give parameters by kernel"),
    ],
    ids=str,
)
def test_a_bad_choice_is_refused_by_name(
    given: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        tw.compile(perceptron(7), schedules=given, cache=False)


def test_what_a_primitive_refused_is_told_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(s: Schedule, *rest: Any) -> Schedule:
        s.split("nowhere", 4)
        return s

    monkeypatch.setitem(
        rules.RULES, "tiled", replace(rules.RULES["tiled"], schedule=refused)
    )
    hidden = records()["matmul+relu"]
    assert hidden.sketch == "parts" and "tiled" in hidden.sketches
    sketch, *parts = hidden.refused
    assert (
        sketch.startswith("tiled (sketch-refused): matmul_relu: split: ")
        and "nowhere" in sketch
    )
    assert parts and all("kept-plain" in reason for reason in parts)
    assert any(line.startswith("refused: tiled") for line in hidden.reasons)


def test_a_choice_is_part_of_the_key_of_a_kernel(tmp_path: Any) -> None:
    a, b, y = (Buffer(n, (24, 24), float32) for n in "aby")
    c = reduce_("mm", y, (24,), "add", lambda i, j, k: a[i, k] * b[k, j])
    face, store = (
        kernel_signature(FusionGroup("mm", (c,)), {y}),
        FileStore(tmp_path, 1 << 30),
    )
    cpu = target("cpu")
    usual = KernelCompiler(cpu, cpu, store)
    chosen = KernelCompiler(
        cpu, cpu, store, choose=lambda f: Selection(values={"mm.tile": (1, 1)})
    )
    assert usual.compile(face, ()).symbol != chosen.compile(face, ()).symbol


def recurrent(units: int, batch: int = 1) -> Any:
    """An LSTM over three steps."""
    rng = np.random.default_rng(units)
    w = {
        n: 0.2 * rng.standard_normal((1, 4 * units, k))
        for n, k in (("w", 8), ("r", units))
    }
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=units)
    return model([node], {"x": [3, batch, 8]}, w)


def steps_of(source: Any, **options: Any) -> ScheduleRecord:
    """The record of the recurrence."""
    found = schedules(source, mcpu="x86-64-v3", threads=2, **options)
    (record,) = (r for r in found if r.sketch == "kernel")
    return record


@pytest.mark.sampled(5)
@pytest.mark.parametrize("batch", [1, 2, 7])
@pytest.mark.parametrize("units", [1, 5, 40])
def test_tiles_of_a_recurrence_are_choices(units: int, batch: int) -> None:
    source = recurrent(units, batch)
    record = steps_of(source)
    assert not record.refused and "cache_write" in str(record.trace)
    x = np.random.default_rng(batch).standard_normal((3, batch, 8)).astype(np.float32)
    want = tw.compile(source, cache=False)(x)
    offered = {p.name: p.candidates for p in record.parameters}
    (rows,) = (name for name in offered if name.endswith(".rows"))
    (lanes,) = (name for name in offered if name.endswith(".lanes"))
    for values in (
        {rows: offered[rows][0]},
        {rows: offered[rows][-1], lanes: offered[lanes][0]},
    ):
        chosen = {record.kernel: values}
        assert not steps_of(source, schedules=chosen).refused
        np.testing.assert_array_equal(
            tw.compile(source, cache=False, schedules=chosen)(x), want
        )


@pytest.mark.parametrize(("units", "good"), [(256, True), (64, False)])
def test_threads_of_a_recurrence_are_a_choice_that_is_proved(
    units: int, good: bool
) -> None:
    """256 units: 2 ** 18 multiply-adds per step, from which on the threads share them."""
    source = recurrent(units)
    record = steps_of(source)
    # That of the product; the others' are of the loops behind it.
    threads = next(p for p in record.parameters if p.name.endswith(".parallel"))
    assert threads.default is good
    for shared in (True, False):
        chosen = {record.kernel: {threads.name: shared}}
        kernel = text(source, "kernel", mcpu="x86-64-v3", threads=2, schedules=chosen)
        loop = threads.name.removesuffix(".parallel")
        assert (f"for {loop} in {4 * units // 64} parallel" in kernel) is shared


def test_a_kernel_that_an_operator_gives_has_its_own_sketch() -> None:
    a, y = (Buffer(n, (8,), float32) for n in "ay")
    kernel = lower("k", [map_("m", y, lambda i: a[i] * 2.0)], [a, y], [y])
    face = kernel_signature(FusionGroup("whole", (), kernel=kernel), {y})
    small = {"l1": 8, "l3": 8, "measured": (("streamed", 8.0),)}
    large = replace(target("cpu").machine, **small)  # type: ignore[attr-defined]
    cpu = replace(target("cpu"), machine=large)  # type: ignore[type-var]
    for streams in (True, False):
        wanted = Selection("kernel", {"stream.y": streams})
        compiler = KernelCompiler(cpu, cpu, None, choose=lambda f, w=wanted: w)  # type: ignore[misc]
        point = compiler.point(face, (False, False))
        assert point.sketch == "kernel" and point.values["stream.y"] is streams
        assert (str(point.schedule.trace) == "") != streams
