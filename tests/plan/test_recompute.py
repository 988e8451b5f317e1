"""Tensors made again where memory is short: the same results, bit by bit, in fewer bytes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tilewright.base import events
from tilewright.base.dtypes import float32
from tilewright.base.errors import MemoryLimitError
from tilewright.compute.build import map_
from tilewright.compute.nodes import Computation, Output
from tilewright.expr.nodes import Buffer, const, var
from tilewright.graph.nodes import Graph, Value
from tilewright.loops.nodes import Kernel, Store, loop
from tilewright.plan.interp import evaluate
from tilewright.plan.nodes import DeviceCopy, FusionGroup, Plan, Step
from tilewright.plan.passes.recompute import (
    Recompute,
    given_bytes,
    peak_bytes,
    rerunnable,
)
from tilewright.plan.verify import verify

N = 256  # elements of each tensor: 1 KiB, which is a multiple of the alignment
SIZE = 4 * N
DEPTH = 6


def cost(
    group: Sequence[Computation], constants: Collection[Buffer] = ()
) -> float | None:
    """A nanosecond each."""
    return float(len(group))


def tensor(name: str) -> Buffer:
    return Buffer(name, (N,), float32)


def twice(x: Buffer, y: Buffer) -> FusionGroup:
    return FusionGroup(y.name, (map_(y.name, y, lambda i: x[i] * 2.0),))


def product(x: Buffer, y: Buffer, z: Buffer) -> FusionGroup:
    return FusionGroup(z.name, (map_(z.name, z, lambda i: x[i] * y[i] + 1.0),))


def there_and_back() -> tuple[Buffer, Buffer, list[FusionGroup]]:
    """a0 to a5, each from the one before, then each read again in reverse, as training does."""
    x = tensor("x")
    made = [x, *(tensor(f"a{n}") for n in range(DEPTH))]
    steps = [twice(a, b) for a, b in itertools.pairwise(made)]
    flow = made[-1]
    for n, a in reversed(list(enumerate(made[:-1]))):
        nearer = tensor(f"b{n}")
        steps.append(product(flow, a, nearer))
        flow = nearer
    return x, flow, steps


def plan_of(x: Buffer, y: Buffer, steps: Sequence[Step]) -> Plan:
    values = {Value(b.name, float32, (N,)): b for b in (x, y)}
    graph = Graph("g", *((v,) for v in values), ())
    return Plan(graph, tuple(steps), values)


def within(plan: Plan, tensors: int) -> Plan:
    """The plan with at most this many live tensors between steps, if possible."""
    limit = given_bytes(plan) + tensors * SIZE
    found = Recompute(cost, limit).run(plan)
    verify(found)
    return found


def results(plan: Plan) -> list[Any]:
    x = np.random.default_rng(0).standard_normal(N).astype(np.float32)
    return evaluate(plan, {"x": x})


def test_a_plan_that_fits_stays_as_it_is() -> None:
    plan = plan_of(*there_and_back())
    assert peak_bytes(plan) == (DEPTH + 1) * SIZE
    assert within(plan, DEPTH + 1) is plan


@pytest.mark.parametrize("tensors", [5, 4, 3])
def test_it_fits_into_less_and_computes_the_same(tensors: int) -> None:
    plan = plan_of(*there_and_back())
    found = within(plan, tensors)
    assert peak_bytes(found) <= tensors * SIZE
    assert len(found.steps) > len(plan.steps)
    for a, b in zip(results(plan), results(found), strict=True):
        assert np.array_equal(a, b)


def test_one_that_cannot_fit_comes_as_near_as_it_can() -> None:
    """A step needs its own operands, whatever is recomputed."""
    plan = plan_of(*there_and_back())
    found = within(plan, 1)
    assert SIZE < peak_bytes(found) < peak_bytes(plan)
    assert np.array_equal(results(found), results(plan))


def test_only_what_makes_one_whole_tensor_runs_again() -> None:
    """One condition each: a Kernel, a second result, a part."""
    x, y, steps = there_and_back()
    wanted = steps[1]
    (a0,), (a1,) = wanted.reads, wanted.writes
    assert rerunnable(plan_of(x, y, steps))[a1] is wanted

    i = var("i")
    body = loop(i, N, Store(a1, (i,), a0[i] * const(2.0, float32)))
    kernel = Kernel("a1", (a0, a1), (a1,), body)
    written = replace(wanted, computations=(), kernel=kernel)
    assert a1 not in rerunnable(plan_of(x, y, [steps[0], written, *steps[2:]]))

    other = tensor("other")
    both = map_("other", other, lambda i: a1[i] + 1.0)
    two = replace(wanted, computations=(*wanted.computations, both))
    reader = product(y, other, tensor("end"))
    plan = plan_of(x, reader.writes[0], [steps[0], two, *steps[2:], reader])
    assert rerunnable(plan).keys().isdisjoint({a1, other})

    half = N // 2
    first = map_("a1", a1, lambda i: a0[i] * 2.0, extents=(half,))
    second = replace(first, outputs=tuple(_behind(o, half) for o in first.outputs))
    parts = [FusionGroup(f"a1.{n}", (c,)) for n, c in enumerate((first, second))]
    plan = plan_of(x, y, [steps[0], *parts, *steps[2:]])
    verify(plan)
    assert a1 not in rerunnable(plan)
    for n in range(1, DEPTH):  # whatever else runs again
        assert np.array_equal(results(within(plan, n)), results(plan))


def _behind(o: Output, by: int) -> Output:
    """What writes the value of an output of half a tensor in the other half."""
    return replace(o, index=tuple(i + by for i in o.index))


def test_what_leaves_the_model_or_the_host_is_kept() -> None:
    x, y, steps = there_and_back()
    (a1,) = steps[1].writes
    plan = plan_of(x, y, steps)
    out = Value("a1", float32, (N,))
    graph = Graph("g", plan.graph.inputs, (*plan.graph.outputs, out), ())
    kept = replace(plan, graph=graph, buffers={**plan.buffers, out: a1})
    names = {s.name for s in within(kept, 1).steps}
    assert "a1.again" not in names and "a2.again" in names

    there, away = tensor("there"), tensor("away")
    far = replace(twice(there, away), device="far")
    moved = [*steps[:2], DeviceCopy(a1, there), far, *steps[2:]]
    moved.append(DeviceCopy(away, tensor("back")))
    elsewhere = replace(plan_of(x, y, moved), devices={there: "far", away: "far"})
    assert away not in rerunnable(elsewhere)
    small = within(elsewhere, 3)
    assert len(small.steps) > len(elsewhere.steps)
    copied = [s.source for s in small.steps if isinstance(s, DeviceCopy)]
    assert copied == [a1, away]  # what a copy reads is the first one


def test_what_nobody_reads_in_between_runs_later_only() -> None:
    x, y, steps = there_and_back()
    early = twice(x, tensor("early"))
    last = product(y, early.writes[0], tensor("last"))
    plan = plan_of(x, last.writes[0], [early, *steps, last])
    found = within(plan, DEPTH + 1)
    assert [s.name for s in found.steps].count("early") == 0
    assert [s.name for s in found.steps].count("early.again") == 1
    assert np.array_equal(results(found), results(plan))


NET = """<ir_version: 10, opset_import: ["" : 21]>
waits (float[64, 256] x, float[256, 256] w) => (float[64, 256] y) {
  a = Softmax<axis = 1>(x)
  t = MatMul(x, w)
  p = Add(t, a)
  u = MatMul(p, w)
  v = MatMul(u, w)
  s = MatMul(v, w)
  y = Mul(s, a)
}"""


def test_a_model_within_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recomputing keeps the plan within `memory_limit`; a limit that is too small is refused."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    model = onnx.parser.parse_model(NET)
    rng = np.random.default_rng(1)
    given = [rng.standard_normal(s).astype(np.float32) for s in ((64, 256), (256, 256))]
    free = tw.compile(model, cache=False)
    with events.record() as log:
        small = tw.compile(model, cache=False, memory_limit=free.peak_bytes - 2**16)
    assert [e for e in log if e.kind == "recompute"]
    assert small.peak_bytes <= free.peak_bytes - 2**16
    assert np.array_equal(small(*given), free(*given))
    file = tmp_path / "waits.onnx"
    onnx.save(model, file)
    enough = 2 * free.peak_bytes
    for limit in (small.peak_bytes, enough, None, small.peak_bytes):
        exe = tw.compile(file, memory_limit=limit)  # each its own, cached or not
        same = small if limit == small.peak_bytes else free
        assert exe.peak_bytes == same.peak_bytes
    with pytest.raises(MemoryLimitError, match="over the memory limit"):
        tw.compile(model, cache=False, memory_limit=2**18)


@pytest.mark.parametrize("seed", [9, 11, 81])
def test_what_is_made_again_twice_has_two_names(seed: int) -> None:
    """By its name a plan's text tells a tensor."""
    choices = random.Random(seed)
    made, steps = [tensor("x")], []
    for n in range(choices.randrange(5, 14)):
        y = tensor(f"t{n}")
        if choices.random() < 0.5:
            steps.append(twice(choices.choice(made[-3:]), y))
        else:
            steps.append(product(choices.choice(made), choices.choice(made), y))
        made.append(y)
    plan = plan_of(made[0], made[-1], steps)
    for tensors in (1, 2, 3):
        found = within(plan, tensors)
        names = [b.name for step in found.steps for b in step.writes]
        assert len(set(names)) == len(names)
        np.testing.assert_array_equal(results(found), results(plan))
