"""Plans as text: what it says, and that it is read back as the same plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx.parser
import pytest

from tilewright.base.dtypes import float32, int64
from tilewright.base.errors import InputError
from tilewright.compute.build import map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.compute.reducer import Reducer, arg_reducer, reducer
from tilewright.driver.compilation import optimize
from tilewright.driver.options import Options
from tilewright.driver.planning import make_plan
from tilewright.expr.nodes import Buffer, Expr, Var, const
from tilewright.frontends.load import load
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph.nodes import Graph, Value
from tilewright.plan.interp import evaluate
from tilewright.plan.nodes import FusionGroup, MemoryPlan, Plan
from tilewright.plan.parser import parse
from tilewright.plan.passes.memory import PlanMemory
from tilewright.plan.verify import verify
from tilewright.targets.registry import target
from tilewright.testing.graphs import Case
from tilewright.testing.machines import MACHINES
from tilewright.testing.networks import NETWORKS
from tilewright.testing.stage_models import random_model

# Fixed, so that the text is the same wherever the tests run.
MACHINE = MACHINES["cascadelake"].target()

# Every fourth network is a fast test.
EVERY = [
    pytest.param(name, id=name, marks=() if n % 4 == 0 else pytest.mark.slow)
    for n, name in enumerate(NETWORKS)
]

NET = """
<ir_version: 10, opset_import: ["" : 21]>
net (float[1, 3, 8, 8] x, float[6] u) => (float[1, 4, 8, 8] y, int64[2] at, float[6] s) {
  c = Conv<pads = [1, 1, 1, 1]>(x, w)
  r = Relu(c)
  y = Conv<pads = [1, 1, 1, 1]>(r, v)
  k = Reshape(u, two_three)
  at = ArgMax<axis = 1, keepdims = 0>(k)
  g = Erf(u)
  s = RandomUniformLike(g)
}"""


def planned(graph: Graph, math: str = "default") -> Plan:
    plan = make_plan(optimize(graph, Options(math=math), MACHINE), MACHINE, math)
    return PlanMemory(lambda stage: ()).run(plan)


def again(plan: Plan) -> Plan:
    """The plan of its text, which prints alike and is sound."""
    made = parse(str(plan), plan.graph)
    assert str(made) == str(plan)
    verify(made)
    assert [s.flops for s in made.groups] == [s.flops for s in plan.groups]
    return made


def same(plan: Plan, made: Plan, case: Case) -> None:
    """Both give the same, to the last bit."""
    found = [evaluate(p, case.inputs, OnnxFallback()) for p in (plan, made)]
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(two))


def test_text(golden: Any) -> None:
    model = onnx.parser.parse_model(NET)
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "v": rng.standard_normal((4, 4, 3, 3)).astype(np.float32),
        "two_three": np.array([2, 3], np.int64),
    }
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(a, n) for n, a in arrays.items()
    )
    plan = planned(load(model))
    golden("plan", str(plan))
    again(plan)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(20))
def test_a_random_plan_is_read_back(seed: int) -> None:
    case = random_model(seed)
    plan = planned(case.graph)
    same(plan, again(plan), case)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", EVERY)
def test_the_plan_of_a_network_is_read_back(name: str) -> None:
    again(planned(NETWORKS[name]().graph))


X, Y = Buffer("x", (4, 6), float32), Buffer("x", (4, 6), float32)
BEST, AT = Buffer("in", (4,), float32), Buffer("7 at", (4,), int64)


def awkward() -> Plan:
    """Names that are not words, that are taken, or given twice."""

    def value(i: Expr, k: Expr) -> tuple[Expr, Expr]:
        return Y[i, k], k

    op = arg_reducer("argmax", float32, int64)
    best = reduce_("if", (BEST, AT), (6,), op, value)
    first = map_("a b", Y, lambda i, j: X[i, j] * 2.0)
    values = {Value("x", float32, (4, 6)): X, Value('o "1"', int64, (4,)): AT}
    steps = (
        FusionGroup("s\n1", (first,), ("one, two",), 24),
        FusionGroup("s\n1", (best,), (), 0),
    )
    ends = tuple((v,) for v in values)
    return Plan(Graph("a plan", *ends, ()), steps, values)


def test_names_are_made_words() -> None:
    plan = awkward()
    text = str(plan)
    assert (
        'plan "a plan":' in text and 'group "s\\n1", 24 flops, from "one, two":' in text
    )
    made = parse(text)
    assert str(made) == text
    assert [v.name for v in made.graph.outputs] == ['o "1"']
    assert [s.name for s in made.groups] == ["s\n1", "s\n1"] and made.groups[
        0
    ].flops == 24
    x = np.arange(24, dtype=np.float32).reshape(4, 6) % 5
    (one,), (two,) = (evaluate(p, {"x": x}) for p in (plan, made))
    np.testing.assert_array_equal(one, two)


def test_an_operator_is_not_what_its_name_says() -> None:
    """Two that are called `add`: one adds, the other keeps the first."""
    a, b = Var("a", float32), Var("b", float32)
    first = Reducer("add", (a,), (b,), (a,), (const(0.0, float32),), commutative=False)
    results = [Buffer(n, (4,), float32) for n in ("first", "sum")]
    operators = (first, reducer("add", float32))
    groups = [
        FusionGroup(r.name, (reduce_(r.name, r, (6,), op, lambda i, k: X[i, k]),))
        for r, op in zip(results, operators, strict=True)
    ]
    values = {Value(t.name, float32, t.shape): t for t in (X, *results)}
    x, *ends = values
    plan = Plan(Graph("g", (x,), tuple(ends), ()), tuple(groups), values)
    assert "pw(add_2)" in str(plan) and "pw(add)" in str(plan)
    given = {"x": np.arange(24, dtype=np.float32).reshape(4, 6)}
    for p in (plan, parse(str(plan))):
        kept, total = evaluate(p, given)
        assert kept.tolist() == [0.0] * 4 and total.tolist() == [
            15.0,
            51.0,
            87.0,
            123.0,
        ]


def test_devices_and_memory_are_said() -> None:
    plan = awkward()
    away = [X, Y, BEST, AT]
    steps = tuple(replace(s, device="gpu 0") for s in plan.groups)
    memory = MemoryPlan({Y: 64, BEST: 0}, 192, {steps[1]: (Y,)})
    plan = replace(
        plan, steps=steps, devices=dict.fromkeys(away, "gpu 0"), memory=memory
    )
    text = str(plan)
    for line in (
        'plan "a plan", arena of 192 bytes:',
        'input x: float32[4, 6] on "gpu 0"',
        'buffer x_2: float32[4, 6] on "gpu 0" at 64  # steps 0 to 1',
        'group "s\\n1" on "gpu 0", over x_2:  # step 1',
    ):
        assert line in text
    made = parse(text)
    verify(made)
    assert str(made) == text
    assert (
        made.memory is not None
        and made.memory.over[made.groups[1]] == made.groups[1].reads
    )


def test_variables_that_computations_share_stay_shared() -> None:
    plan = planned(NETWORKS["attention_then_convolution"]().graph)

    def shared(p: Plan) -> list[int]:
        return [len({d.var for c in s.computations for d in c.dims}) for s in p.groups]

    assert shared(again(plan)) == shared(plan)
    several = [s for s in plan.groups if len(s.computations) > 1]
    dims = [[d.var for c in s.computations for d in c.dims] for s in several]
    assert any(len(set(vs)) < len(vs) for vs in dims)


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("plan ", "graph ", "plan, line 1: expected 'plan', found 'graph'"),
        ("  input", "input", "line 2: expected a line with 2 spaces before it"),
        ("  input", "  inputs", "line 2: expected one of input, constant, output"),
        ("4, 6] ", "4, n] ", "has no known size, and so no buffer"),
        ("argmax(a0", "best(a0", "unknown operator 'argmax'"),
        ("24 flops", "24 flips", "expected 'flops', found 'flips'"),
        ("float32[4, 6]", "float31[4, 6]", "float31 is not a dtype"),
    ],
)
def test_another_text_is_refused(right: str, wrong: str, message: str) -> None:
    text = str(awkward()).replace(
        "input x: float32[4, 6]", "input x: float32[4, 6] in x"
    )
    parse(text)
    assert right in text
    with pytest.raises(InputError, match=message) as error:
        parse(text.replace(right, wrong, 1))
    assert error.value.code == "TW-SYNTAX"


def test_contents_are_the_graphs() -> None:
    plan = planned(NETWORKS["vovnet"]().graph)
    with pytest.raises(
        InputError, match=r"the constant .* has contents, which are in its graph"
    ):
        parse(str(plan))
    made = again(plan)
    assert {id(a) for a in made.data.values()} == {id(a) for a in plan.data.values()}
    assert isinstance(plan.groups[0].computations[0], Computation)
    assert target("cpu").key
