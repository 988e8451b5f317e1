"""The search over graphs: it keeps their meaning, ends, repeats itself, and is replayed."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import pairwise

import numpy as np
import onnx.parser as onnx_parser
import pytest

from tilewright.base.dtypes import float32
from tilewright.base.errors import InputError
from tilewright.frontends.onnx import load
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph import interp
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.rules.patterns import onnx, reals
from tilewright.graph.rules.registry import register
from tilewright.graph.rules.rule import Rule
from tilewright.graph.rules.substitutions import SUBSTITUTIONS
from tilewright.graph.substitute.backtracking import backtrack
from tilewright.graph.substitute.derivation import GraphDerivation, replay
from tilewright.graph.substitute.identity import Digests, digest
from tilewright.graph.substitute.optimize import OptimizeSettings, optimize
from tilewright.graph.substitute.partition import edge_weights, partition
from tilewright.graph.substitute.parts import convex, extract, splice
from tilewright.graph.substitute.pricing import Pricing
from tilewright.graph.substitute.steps import folded, successors
from tilewright.graph.verify import verify
from tilewright.search.result import SearchLimits, StopReason
from tilewright.testing.networks.builder import Net
from tilewright.testing.substitutable import random_substitutable

GROUPS = 800
CASES = 25  # per group: 20,000 graphs in all, 300 of them in `make test`


def operations(graph: Graph) -> float:
    return float(len(graph.operations))


def any_number(graph: Graph) -> float:
    """A cost that follows nothing, so that every rule is taken somewhere: from 1 to 2."""
    found = hashlib.sha256(digest(graph).encode()).digest()
    return 1 + int.from_bytes(found[:4], "big") / 2**32


def check_same(before: Graph, after: Graph, inputs) -> None:
    rounding = 1e-3 if before.inputs[0].dtype is float32 else 1e-9
    for (name, a), b in zip(
        interp.evaluate(before, inputs).items(),
        interp.evaluate(after, inputs).values(),
        strict=True,
    ):
        peak = max(1.0, float(np.abs(a).max(initial=0)))
        np.testing.assert_allclose(b, a, rtol=0, atol=rounding * peak, err_msg=name)


@pytest.mark.sampled(67)  # each group draws of all operators
@pytest.mark.parametrize("group", range(GROUPS))
def test_random_graphs_mean_the_same(group):
    moved = 0
    how = OptimizeSettings(alpha=2.0, budget=2, part=12)
    for n in range(CASES):
        seed = CASES * group + n
        case = random_substitutable(seed, 4)
        some = SUBSTITUTIONS[seed % 3 :: 3]  # all of them take too long together
        found = optimize(case.graph, some, any_number, how)
        verify(found.graph)
        moved += len(found.derivation.steps)
        check_same(case.graph, found.graph, case.inputs)
        again = replay(folded(case.graph), found.derivation, SUBSTITUTIONS)
        assert digest(again) == digest(found.graph)
    assert moved > 1


def test_a_search_repeats_itself_and_the_cost_falls():
    case = random_substitutable(3, 6)
    how = OptimizeSettings(budget=3)
    first, second = (
        optimize(case.graph, SUBSTITUTIONS, operations, how) for _ in range(2)
    )
    assert first.derivation == second.derivation
    assert str(first.graph) == str(second.graph)
    assert first.after <= first.before
    check_same(case.graph, first.graph, case.inputs)


# -- digests


def small(swap: bool = False, order: bool = False, scale: float = 1.0) -> Graph:
    x = Value("x", float32, (2, 2))
    w = Value("w", float32, (2, 2))
    names = "ab" if not order else "qr"
    a, b = (Value(n, float32, (2, 2)) for n in names)
    y = Value("y", float32, (2, 2))
    one = Operation("MatMul", (x, w), (a,), version=13)
    two = Operation("Relu", (x,), (b,), version=14)
    last = Operation("Add", (b, a) if swap else (a, b), (y,), version=14)
    ops = (two, one, last) if order else (one, two, last)
    data = {w: np.full((2, 2), scale, np.float32)}
    return Graph("g", (x,), (y,), ops, data)


def test_a_digest_is_of_the_meaning():
    assert digest(small()) == digest(small(swap=True)) == digest(small(order=True))
    assert digest(small()) != digest(small(scale=2.0))
    g = small()
    subtract = replace(g.operations[2], op_type="Sub")
    other = replace(g, operations=(*g.operations[:2], subtract))
    assert digest(g) != digest(other)
    swapped = replace(subtract, inputs=subtract.inputs[::-1])
    assert digest(other) != digest(replace(g, operations=(*g.operations[:2], swapped)))
    a = replace(g.operations[0], attributes={"k": 1})
    assert digest(g) != digest(replace(g, operations=(a, *g.operations[1:])))


def test_what_is_computed_twice_differs_from_what_is_computed_once():
    g = small()
    one, two, last = g.operations
    twin = Value("twin", float32, (2, 2))
    again = replace(one, outputs=(twin,))
    ends = (*g.outputs, Value("z", float32, (2, 2)))
    more = Operation("Neg", (one.outputs[0],), (ends[1],), version=13)
    shared = replace(g, operations=(one, two, last, more), outputs=ends)
    doubled = replace(
        g,
        operations=(one, two, again, last, replace(more, inputs=(twin,))),
        outputs=ends,
    )
    assert digest(shared) != digest(doubled)


def test_weights_of_one_type_are_one_structure_and_shapes_are_not():
    def with_constant(array):
        x = Value("x", float32, (2, 2))
        c = Value("c", float32, array.shape)
        y = Value("y", float32, (2, 2))
        op = Operation("MatMul", (x, c), (y,), version=13)
        return Graph("g", (x,), (y,), (op,), {c: array})

    def structure(graph):
        return Digests(contents=False).graph(graph)

    large = np.zeros((2, 50), np.float32)
    assert structure(with_constant(large)) == structure(with_constant(large + 1))
    assert digest(with_constant(large)) != digest(with_constant(large + 1))
    few = np.zeros((2, 2), np.float32)
    assert structure(with_constant(few)) != structure(with_constant(few + 1))


# -- parts


@pytest.mark.parametrize("seed", range(8))
def test_parts_are_convex_and_whole(seed):
    graph = folded(random_substitutable(seed, 12).graph)
    parts = partition(graph, SUBSTITUTIONS, 8)
    assert sorted(map(id, graph.operations)) == sorted(id(o) for p in parts for o in p)
    done = set()
    for part in parts:
        assert 1 <= len(part) <= 8
        assert convex(graph, part) == set(part)
        for op in part:
            makers = {m for v in op.reads if (m := graph.producer(v)) is not None}
            assert makers <= done | set(part)
        done.update(part)
        again = splice(graph, part, extract(graph, part))
        verify(again)
        assert digest(again) == digest(graph)


def test_a_cut_goes_where_few_rules_apply():
    """Two blocks of siblings with one edge between them are cut at that edge."""
    shape = (1, 4, 5, 5)
    x = Value("x", float32, shape)
    constants, ops, here = {}, [], x
    for block in range(2):
        made = []
        for n in range(3):
            w = Value(f"w{block}{n}", float32, (4, 4, 1, 1))
            constants[w] = np.ones((4, 4, 1, 1), np.float32)
            made.append(Value(f"c{block}{n}", float32, shape))
            ops.append(Operation("Conv", (here, w), (made[-1],), version=11))
        for n in range(2):
            total = Value(f"s{block}{n}", float32, shape)
            left = made[0] if n == 0 else here
            ops.append(Operation("Add", (left, made[n + 1]), (total,), version=14))
            here = total
        if block == 0:
            narrow = Value("narrow", float32, shape)
            ops.append(Operation("Relu", (here,), (narrow,), version=14))
            here = narrow
    graph = Graph("g", (x,), (here,), tuple(ops), constants)
    weights = edge_weights(graph, SUBSTITUTIONS)
    parts = partition(graph, SUBSTITUTIONS, 6)
    assert [len(p) for p in parts] == [5, 6]
    assert all(
        not weights[a, b]
        for a in parts[0]
        for b in parts[1]
        if set(a.writes) & set(b.reads)
    )


def test_names_of_a_new_part_do_not_clash():
    g = small()
    part = extract(g, g.operations[:1])
    clash = Value("b", float32, (2, 2))
    (op,) = part.operations
    inner = replace(op, outputs=(clash,))
    copy = Operation("Identity", (clash,), op.outputs, version=21)
    made = splice(g, g.operations[:1], replace(part, operations=(inner, copy)))
    verify(made)
    assert len(made.operations) == 4


# -- pricing


@pytest.mark.parametrize("seed", range(6))
def test_a_window_tells_the_difference_of_the_whole(seed):
    """For a cost that is a sum over operations, at any radius."""

    def weighed(g):
        return float(sum(len(op.op_type) + len(op.inputs) for op in g.operations))

    graph = folded(random_substitutable(seed, 5).graph)
    for radius in (0, 2):
        pricing = Pricing(weighed, radius)
        for _, after in successors(graph, SUBSTITUTIONS):
            assert pricing.change(graph, after) == weighed(after) - weighed(graph)


def test_blocks_of_one_structure_are_priced_once():
    asked = []

    def noted(g):
        asked.append(g)
        return operations(g)

    pricing = Pricing(noted)
    assert pricing.whole(small()) == pricing.whole(small(order=True)) == 3.0
    assert len(asked) == pricing.asked == 1
    graph = small()
    one, two, last = graph.operations
    other = replace(two, op_type="Neg")
    pricing.whole(replace(graph, operations=(one, other, last)))
    assert pricing.asked == 2


def sums_alone(g: Graph) -> float:
    """A lower bound of `kernels`: joins and maps vanish."""
    return sum(10.0 for op in g.operations if op.op_type in ("Conv", "MatMul"))


def test_a_guess_is_of_what_came_and_what_went():
    graph = folded(random_substitutable(3, 12).graph)
    asked = []

    def least(g):
        asked.append(g)
        assert len(g.operations) == 1
        return sums_alone(g)

    pricing = Pricing(operations, least=least)
    guesses = set()
    for _, after in successors(graph, SUBSTITUTIONS):
        guess = pricing.guess(graph, after)
        assert guess == sums_alone(after) - sums_alone(graph)
        guesses.add(guess)
    assert len(guesses) > 1
    assert pricing.asked == 0
    structures = Digests(contents=False)
    assert len({structures.graph(g) for g in asked}) == len(asked)  # each once


def test_guesses_save_prices_and_lose_nothing_where_they_are_right():
    n = Net("cell")
    x, state = n.input(2, 6), n.input(2, 6)
    f = (x @ n.weight(6, 6, fan=6)).Sigmoid()
    value = x @ n.weight(6, 6, fan=6)
    graph = n.case([f * state + f * value]).graph
    plain, guided = (
        optimize(
            graph, SUBSTITUTIONS, kernels, OptimizeSettings(alpha=1.2), least=least
        )
        for least in (None, sums_alone)
    )
    assert guided.after == plain.after < plain.before
    assert guided.evaluations < plain.evaluations


# -- limits


def search(graph, cost=operations, rules=SUBSTITUTIONS, **options):
    return backtrack(folded(graph), rules, Pricing(cost), **options)


def test_a_budget_and_limits_end_a_search():
    graph = random_substitutable(3, 12).graph
    assert search(graph, any_number, alpha=2, budget=1).stop is StopReason.EXPANSIONS
    few = search(graph, any_number, alpha=2, limits=SearchLimits(evaluations=5))
    assert (few.stop, few.evaluations) == (StopReason.EVALUATIONS, 5)
    asked = iter([False] * 3)
    stopped = search(
        graph, any_number, alpha=2, limits=SearchLimits(until=lambda: next(asked, True))
    )
    assert stopped.stop is StopReason.UNTIL and stopped.cost <= stopped.start
    late = optimize(graph, SUBSTITUTIONS, any_number, limits=SearchLimits(seconds=0))
    assert late.interrupted and late.after <= late.before


def test_after_its_time_a_search_prices_nothing_but_what_it_found(monkeypatch):
    """Each cost takes a second: the first one, of the whole graph, may be the last."""
    now, priced = [0.0], []
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def slow(graph):
        now[0] += 1
        priced.append(graph)
        return any_number(graph)

    values = [Value(f"v{n}", float32, (2,)) for n in range(7)]
    chain = [
        Operation("Relu" if n % 2 else "Tanh", (x,), (y,), version=14)
        for n, (x, y) in enumerate(pairwise(values))
    ]
    graph = Graph("g", (values[0],), (values[-1],), tuple(chain))
    how = OptimizeSettings(part=2, alpha=2.0, budget=3)
    for seconds, least, most in ((0.5, 1, 1), (1.5, 2, 3), (None, 6, 99)):
        now[0] = 0.0
        priced.clear()
        limits = SearchLimits(seconds=seconds)
        found = optimize(graph, chain_rules(), slow, how, limits=limits)
        assert found.interrupted == (seconds is not None)
        assert least <= len(priced) <= most, priced


def chain_rules():
    (x,) = reals("x")
    both = onnx.Tanh(onnx.Relu(x))
    return Rule("up", onnx.Relu(x), both), Rule("down", both, onnx.Tanh(x))


def test_alpha_lets_a_step_cost_more_first():
    """The one way to the cheapest graph leads over one that costs 1.5 times as much."""
    x, y = (Value(n, float32, (2,)) for n in "xy")
    graph = Graph("g", (x,), (y,), (Operation("Relu", (x,), (y,), version=14),))
    cost = {("Relu",): 2.0, ("Relu", "Tanh"): 3.0, ("Tanh",): 1.0}

    def price(g):
        return cost.get(tuple(op.op_type for op in g.operations), 9.0)

    rules = chain_rules()
    assert search(graph, price, rules, alpha=1.0).cost == 2.0
    assert search(graph, price, rules, alpha=1.4).cost == 2.0
    found = search(graph, price, rules, alpha=1.6)
    assert found.cost == 1.0
    assert [(s.rule, s.before, s.after) for s in found.steps] == [
        ("up", 2.0, 3.0),
        ("down", 3.0, 1.0),
    ]


def two_chains() -> Graph:
    values = [[Value(f"{n}{k}", float32, (2,)) for n in "xy"] for k in range(2)]
    ops = (Operation("Relu", (x,), (y,), version=14) for x, y in values)
    inputs, outputs = zip(*values, strict=True)
    return Graph("g", inputs, outputs, tuple(ops))


def test_successors_near_some_operations_are_of_matches_that_touch_them():
    graph, rules = two_chains(), chain_rules()
    first, second = graph.operations
    labels = [
        [step.node for step, _ in successors(graph, rules, near=near)]
        for near in (None, [first], [second], [])
    ]
    assert labels == [[first.label, second.label], [first.label], [second.label], []]


def test_after_a_step_that_did_not_pay_only_steps_near_it_are_taken():
    """What is independent of it is not tried with it, and the least is found all the same."""
    raised = set()

    def price(g):
        chains = [chain(g, v) for v in g.outputs]
        raised.add(sum("Relu" in c and "Tanh" in c for c in chains))
        return float(sum(2.0 if kind == "Relu" else 1.0 for c in chains for kind in c))

    def chain(g, v):
        made = g.producer(v)
        return [] if made is None else [*chain(g, made.inputs[0]), made.op_type]

    class Whole(Pricing):
        def change(self, before, after):
            return self.whole(after) - self.whole(before)

    found = backtrack(two_chains(), chain_rules(), Whole(price), alpha=1.8)
    assert found.cost == 2.0
    assert [s.rule for s in found.steps] == ["up", "down", "up", "down"]
    assert raised == {0, 1}


def test_exact_takes_no_rule_that_rounds():
    """A product of two weights is known, but rounds otherwise than two products in a row."""
    n = Net("chain")
    y = (n.input(8, 6) @ n.weight(6, 6, fan=6)) @ n.weight(6, 6, fan=6)
    case = n.case([y])
    fast, default, exact = (
        optimize(case.graph, SUBSTITUTIONS, operations, OptimizeSettings(math=math))
        for math in ("fast", "default", "exact")
    )
    # Of an infinite x the two products may make a NaN where the one makes none.
    assert (fast.after, default.after, exact.after) == (1.0, 2.0, 2.0)
    assert not exact.derivation.steps and not default.derivation.steps
    with pytest.raises(InputError, match="math='sloppy'"):
        OptimizeSettings(math="sloppy")


@pytest.mark.parametrize(
    "wrong",
    [
        {"alpha": 0.9},
        {"alpha": float("nan")},
        {"budget": 0},
        {"patience": -1},
        {"part": 1},
    ],
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(InputError):
        OptimizeSettings(**wrong)


def test_a_wrong_rule_is_refused_when_it_is_registered():
    (x,) = reals("x")
    with pytest.raises(InputError, match="wrong-relu"):
        register(Rule("wrong-relu", onnx.Relu(x), onnx.Abs(x)))


# -- what was published


def kernels(graph: Graph) -> float:
    """As MetaFlow counts: products and convolutions cost most, parts and joins nothing."""
    prices = {"Conv": 10.0, "MatMul": 10.0, "Split": 0.0, "Concat": 0.0, "Slice": 0.0}
    return sum(prices.get(op.op_type, 1.0) for op in graph.operations)


def test_the_inception_block_of_metaflow_is_found_from_its_plain_form():
    """Its convolutions of one image become one, smaller windows with zeros around them."""
    n = Net("inception")
    x = n.input(1, 8, 7, 7)
    one = x.conv_bias(4, 1)
    three = x.conv_bias(6, 3)
    deep = x.conv_bias(4, 1).conv_bias(6, 3)
    case = n.case([n.cat(one, three, deep)])
    found = optimize(case.graph, SUBSTITUTIONS, kernels, OptimizeSettings(alpha=1.2))
    kinds = [op.op_type for op in found.graph.operations]
    assert kinds.count("Conv") == 2
    assert [s.rule for s in found.derivation.steps] == [
        "merge-convolutions-of-one-image",
        "unary-before-split",
    ]
    check_same(case.graph, found.graph, case.inputs)


def test_the_recurrent_cell_of_metaflow_is_found_from_its_plain_form():
    """f*c + f*x becomes f*(c+x), and three products of one vector become one."""
    n = Net("cell")
    x, state = n.input(2, 6), n.input(2, 6)
    f = (x @ n.weight(6, 6, fan=6)).Sigmoid()
    r = (x @ n.weight(6, 6, fan=6)).Sigmoid()
    value = x @ n.weight(6, 6, fan=6)
    c = f * state + f * value
    case = n.case([c, r * c.Tanh() + r * x])
    found = optimize(case.graph, SUBSTITUTIONS, kernels, OptimizeSettings(alpha=1.2))
    kinds = [op.op_type for op in found.graph.operations]
    assert kinds.count("MatMul") == 1
    assert kinds.count("Mul") == 2
    assert [s.rule for s in found.derivation.steps] == [
        "merge-products-of-one-left-operand",
        "factor-of-a-sum",
        "factor-of-a-sum",
    ]
    check_same(case.graph, found.graph, case.inputs)


# -- derivations


def derived():
    case = random_substitutable(3, 6)
    found = optimize(case.graph, SUBSTITUTIONS, operations, OptimizeSettings(budget=3))
    assert found.derivation.steps
    return folded(case.graph), found


def test_a_derivation_is_written_read_and_replayed():
    graph, found = derived()
    read = GraphDerivation.from_json(found.derivation.to_json())
    assert read == found.derivation
    assert str(replay(graph, read, SUBSTITUTIONS)) == str(found.graph)


def test_derivations_that_do_not_fit_are_refused():
    graph, found = derived()
    made = found.derivation
    with pytest.raises(InputError, match="another graph"):
        replay(found.graph, made, SUBSTITUTIONS)
    with pytest.raises(InputError, match="there is no rule"):
        replay(graph, made, ())
    with pytest.raises(InputError, match="now make another graph"):
        replay(graph, replace(made, end=made.start), SUBSTITUTIONS)
    stage = made.stages[0]
    off = replace(stage.steps[0], place=99)
    with pytest.raises(InputError, match="does not apply"):
        replay(
            graph,
            replace(made, stages=(replace(stage, steps=(off,)),)),
            SUBSTITUTIONS,
        )
    lost = replace(made, stages=(replace(stage, part=("nobody",)),))
    with pytest.raises(InputError, match="'nobody'"):
        replay(graph, lost, SUBSTITUTIONS)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"version": 2}', '{"version": 1, "start": 1}', "null", '"a"'],
)
def test_files_that_are_no_derivations_are_refused(text):
    with pytest.raises(InputError, match="derivation"):
        GraphDerivation.from_json(text)


def test_what_is_known_in_a_run_alone_is_left_as_it_is():
    """NonZero gives as many columns as the data has: no condition may ask for them."""
    model = onnx_parser.parse_model(
        """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[3, 4] x) => (float[?, ?] y) < int64[2] i = {0, 1} > {
      places = NonZero (x)
      rows = Transpose <perm = [1, 0]> (places)
      pairs = Gather <axis = 1> (rows, i)
      a, b = Split <axis = 0> (places)
      left = Cast <to = 1> (pairs)
      right = Cast <to = 1> (places)
      one = MatMul (left, right)
      other = MatMul (left, right)
      y = Add (one, other)
    }"""
    )
    graph = load(model)
    assert not graph.outputs[0].static
    fallback = OnnxFallback()
    how = OptimizeSettings(alpha=2.0, budget=3)
    found = optimize(graph, SUBSTITUTIONS, any_number, how, fallback=fallback)
    verify(found.graph)
    feeds = {"x": np.eye(3, 4, dtype=np.float32)}
    (want,) = interp.evaluate(graph, feeds, fallback=fallback).values()
    (got,) = interp.evaluate(found.graph, feeds, fallback=fallback).values()
    np.testing.assert_allclose(got, want)
