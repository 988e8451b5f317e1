"""Plans over several devices: where each group runs, the copies, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from zlib import crc32

import numpy as np
import pytest

from tilewright.base import events
from tilewright.base.dtypes import float32, int32
from tilewright.base.errors import InputError, VerifyError
from tilewright.compute.build import map_
from tilewright.driver.planning import questions
from tilewright.expr.nodes import Buffer, const
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.loops.lower import lower as lower_loops
from tilewright.plan.interp import evaluate
from tilewright.plan.lower import lower
from tilewright.plan.nodes import HOST, DeviceCopy, FusionGroup, HostFallback, Plan
from tilewright.plan.parser import parse
from tilewright.plan.passes.memory import PlanMemory
from tilewright.plan.passes.partition import Partition, Refuses
from tilewright.plan.pipeline import Compensate, plan_pipeline
from tilewright.plan.verify import verify
from tilewright.plan.verify_memory import verify_arena
from tilewright.testing.graphs import Case
from tilewright.testing.machines import MACHINES
from tilewright.testing.stage_models import random_model

ASK = questions(MACHINES["haswell"].target())


def some(device: str) -> Refuses:
    """A device that takes about half of the groups, always the same."""

    def refuses(group: FusionGroup, live: object) -> str:
        return "" if crc32(f"{device} {group.name}".encode()) % 2 else "it is odd"

    return refuses


def divided(case: Case, fused: tuple[str, ...] = ()) -> Plan:
    """The plan of a model over two devices and the host, with places in memory.

    fused: the devices that take groups of any form.
    """
    refuses = {d: some(d) for d in ("gpu", "npu 1")}
    asked = dict.fromkeys(fused, ASK)
    pipeline = plan_pipeline(ASK, "exact", refuses, fused=asked)
    plan = pipeline.run(lower(case.graph), check=True)
    plan = PlanMemory(lambda group: ()).run(plan)
    verify_arena(plan)
    return plan


@pytest.mark.sampled(11)
@pytest.mark.parametrize("fused", [(), ("gpu",)], ids=["as they are", "fused"])
@pytest.mark.parametrize("seed", range(24))
def test_a_divided_plan_gives_what_the_whole_one_does(
    seed: int, fused: tuple[str, ...]
) -> None:
    case = random_model(seed)
    plan = divided(case, fused)
    again = parse(str(plan), plan.graph)
    assert str(again) == str(plan)
    verify_arena(again)
    whole = Compensate().run(lower(case.graph))  # the only pass that changes a bit
    expected = evaluate(whole, case.inputs, OnnxFallback())
    for made in (plan, again):
        found = evaluate(made, case.inputs, OnnxFallback())
        for one, two in zip(found, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(one), np.asarray(two))


def test_random_plans_are_divided_in_every_way() -> None:
    """So that the test above means something: both devices, both directions, constants there."""
    plans = [divided(random_model(seed)) for seed in range(24)]
    groups = {g.device for p in plans for g in p.groups}
    assert groups == {HOST, "gpu", "npu 1"}
    copies = [(p, s) for p in plans for s in p.steps if isinstance(s, DeviceCopy)]
    ends = {(p.device_of(s.source), p.device_of(s.target)) for p, s in copies}
    assert ends == {(HOST, d) for d in groups - {HOST}} | {
        (d, HOST) for d in groups - {HOST}
    }
    assert any(p.device_of(b) != HOST for p in plans for b in p.data)
    assert any(p.memory is not None and p.memory.elsewhere.get("gpu") for p in plans)


X, T, Y, Z = (Buffer(name, (4, 6), float32) for name in "xtyz")
ENDS = {Value("x", float32, (4, 6)): X, Value("y", float32, (4, 6)): Y}
CHAIN = Plan(
    Graph("chain", tuple(ENDS)[:1], tuple(ENDS)[1:], ()),
    (
        FusionGroup("first", (map_("first", T, lambda i, j: X[i, j] + X[i, j]),)),
        FusionGroup("then", (map_("then", Y, lambda i, j: T[i, j] * X[i, j]),)),
    ),
    ENDS,
)
TEXT = """\
plan chain, arena of 0 bytes, 384 bytes on gpu:
  input x: float32[4, 6]
  output y: float32[4, 6]
  buffer x_gpu: float32[4, 6] on gpu at 0  # steps 0 to 2
  buffer t_gpu: float32[4, 6] on gpu at 128  # steps 1 to 2
  buffer y_gpu: float32[4, 6] on gpu at 256  # steps 2 to 3
  copy x -> x_gpu  # step 0"""


def test_groups_of_a_device_pass_tensors_there() -> None:
    """One copy in, one out: tensors that only the device reads are not copied back."""
    with events.record() as happened:
        plan = Partition("gpu", lambda group, live: "").run(CHAIN)
    plan = PlanMemory(lambda group: ()).run(plan)
    verify(plan)
    assert str(plan).startswith(TEXT)
    kinds = [type(s).__name__ for s in plan.steps]
    assert kinds == ["DeviceCopy", "FusionGroup", "FusionGroup", "DeviceCopy"]
    placed = [e.fields for e in happened if e.kind == "placed-on"]
    assert [(f["step"], f["device"]) for f in placed] == [
        ("first", "gpu"),
        ("then", "gpu"),
    ]


def half(name: str, at: int) -> FusionGroup:
    """Twice two rows of X, as those rows of T."""
    part = Buffer(name, (2, 6), float32)
    c = map_(name, part, lambda i, j: X[i + const(at), j] * 2.0)
    (out,) = c.outputs
    i, j = out.index
    moved = replace(out, tensor=T, index=(i + const(at), j))
    return FusionGroup(name, (replace(c, outputs=(moved,)),))


def test_a_group_stays_where_its_tensors_cannot_be_copied() -> None:
    """Two groups write one tensor, or one reads a tensor that is complete only later."""
    early = FusionGroup("early", (map_("early", Z, lambda i, j: T[i - i, j]),))
    then = FusionGroup("then", (map_("then", Y, lambda i, j: T[i, j] + Z[i, j]),))
    plan = replace(CHAIN, steps=(half("up", 0), early, half("low", 2), then))
    verify(plan)
    with events.record() as happened:
        made = Partition("gpu", lambda group, live: "").run(plan)
    verify(made)
    placed = {e.fields["step"]: e.fields["why"] for e in happened}
    assert placed == {
        "up": "other steps also write t",
        "early": "t is not complete yet",
        "low": "other steps also write t",
        "then": "",
    }
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    (found,) = evaluate(made, {"x": x})
    np.testing.assert_array_equal(found, 2 * x + 2 * x[:1])


def placed(plan: Plan) -> dict[str, tuple[str, str]]:
    """Where each step of a plan runs if the device takes all it can, and the reason."""
    with events.record() as happened:
        Partition("gpu", lambda step, live: "").run(plan)
    return {
        e.fields["step"]: (e.fields["device"], e.fields["why"])
        for e in happened
        if e.kind == "placed-on"
    }


def test_a_kernel_given_as_such_stays() -> None:
    """The same group, by its Computation or by a Kernel that computes it."""
    c = map_("first", T, lambda i, j: X[i, j] + X[i, j])
    kernel = lower_loops("first", [c], params=[X, T], outputs=[T])
    given = FusionGroup("first", (), kernel=kernel)
    then = CHAIN.steps[1]
    assert placed(CHAIN)["first"] == ("gpu", "")
    plan = replace(CHAIN, steps=(given, then))
    verify(plan)
    assert placed(plan) == {
        "first": (HOST, "it is a hand-written Kernel"),
        "then": ("gpu", ""),
    }


def test_an_operator_with_an_operand_that_is_not_in_memory_stays() -> None:
    """It moves if it has a Buffer for everything it reads and writes; otherwise it stays."""
    x, y = ENDS
    other, more = Value("names"), Value("more")
    why = (HOST, "not all of its operands are tensors in memory")
    for reads, writes, expected in (
        ((x,), (y,), ("gpu", "")),
        ((x, other), (y,), why),
        ((x,), (y, more), why),
    ):
        step = HostFallback(Operation("Own", reads, writes, name="own"), (X,), (Y,))
        assert list(placed(replace(CHAIN, steps=(step,))).values()) == [expected]


def copied(source: Buffer, target: Buffer, **devices: str) -> Plan:
    there = {b: devices[b.name] for b in (source, target) if b.name in devices}
    step = FusionGroup("g", (map_("g", Y, lambda i, j: X[i, j]),))
    return replace(CHAIN, steps=(step, DeviceCopy(source, target)), devices=there)


def test_a_copy_is_from_the_host_or_to_it() -> None:
    verify(copied(X, Z, z="gpu"))
    for target, devices, message in (
        (Z, {}, "goes from host to host"),
        (Z, {"x": "gpu", "z": "npu"}, "uses .*, which is on|goes from gpu to npu"),
        (Buffer("z", (6, 4), float32), {"z": "gpu"}, "makes z"),
        (Buffer("z", (4, 6), int32), {"z": "gpu"}, "makes z"),
    ):
        with pytest.raises(VerifyError, match=message):
            verify(copied(X, target, **devices))


def test_a_copy_of_what_is_not_written_yet() -> None:
    plan = copied(Y, Z, z="gpu")
    verify(plan)
    with pytest.raises(VerifyError, match="not written before") as error:
        verify(replace(plan, steps=plan.steps[::-1]))
    assert error.value.code == "TW-PLAN-UNWRITTEN"


def test_a_copy_in_a_text_names_buffers_of_the_plan() -> None:
    text = str(copied(X, Z, z="gpu"))
    with pytest.raises(InputError, match="the plan has no buffer nowhere"):
        parse(text.replace("-> z", "-> nowhere"))


def parted(early: bool = False) -> Plan:
    """y = concat(x, x) by two groups; early: somebody reads it between the two."""
    half = Buffer("half", (2, 6), float32)
    group = {
        "top": map_("top", Y, lambda i, j: X[i, j], extents=(2, 6)),
        "between": map_("between", half, lambda i, j: Y[i, j]),
        "bottom": map_(
            "bottom",
            Y,
            lambda i, j: X[i, j],
            extents=(2, 6),
            index=lambda i, j: (i + 2, j),
        ),
    }
    names = ("top", "between", "bottom") if early else ("top", "bottom")
    steps = tuple(FusionGroup(n, (group[n],)) for n in names)
    return replace(CHAIN, steps=steps)


def places(plan: Plan, refused: str = "", any_form: bool = True) -> list[str]:
    made = Partition(
        "gpu", lambda group, live: refused if group.name == refused else "", any_form
    ).run(plan)
    return [
        type(s).__name__ if isinstance(s, DeviceCopy) else s.device for s in made.steps
    ]


def test_parts_of_a_tensor_go_to_a_device_together_or_not_at_all() -> None:
    copy = "DeviceCopy"
    assert places(parted()) == [copy, "gpu", "gpu", copy]
    assert places(parted(), refused="top") == [HOST, HOST]
    assert places(parted(), refused="bottom") == [HOST, HOST]
    assert places(parted(), any_form=False) == [HOST, HOST]
    assert places(parted(early=True)) == [HOST, HOST, HOST]
