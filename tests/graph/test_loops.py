"""Loops and branches that a run decides, natively: models against ONNX Runtime's results."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.base import errors
from tilewright.driver.compilation import onnx_fallback
from tilewright.driver.options import Options
from tilewright.driver.stages import planned
from tilewright.plan.interp import evaluate
from tilewright.plan.nodes import Branch, Loop
from tilewright.plan.parser import parse
from tilewright.plan.verify import verify

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node, info = helper.make_node, helper.make_tensor_value_info


def graph(nodes, inputs, outputs, constants=None):
    table = (constants or {}).items()
    held = [numpy_helper.from_array(np.asarray(a), n) for n, a in table]
    ends = [[info(n, *t) for n, t in side.items()] for side in (inputs, outputs)]
    return helper.make_graph(nodes, "g", *ends, held)


def model(*parts):
    opset = [helper.make_opsetid("", 18)]
    return helper.make_model(graph(*parts), opset_imports=opset, ir_version=9)


def loop(nodes, states, results, x=None, constants=None, trips=100, more=None):
    """A model of one Loop. states: type and initial array by name; results: their names behind an
    iteration, then the scans with their types. more: what else the model takes."""
    body = graph(
        nodes,
        {"n": (INT, []), "c": (BOOL, []), **{k: t for k, (t, _) in states.items()}},
        {"go": (BOOL, []), **results},
    )
    first = {f"{k}_0": a for k, (_, a) in states.items()}
    ends = [f"{r}_end" for r in results]
    op = node("Loop", ["M", "T", *first], ends, body=body, name="the loop")
    known = {"M": np.array(trips), "T": np.array(True), **first, **(constants or {})}
    types = list(results.values())
    count = len(states)
    free = [(t, [None] * len(s)) for t, s in types[:count]]
    free += [(t, [None] * (len(s) + 1)) for t, s in types[count:]]
    outputs = dict(zip(ends, free, strict=True))
    return model([op], {"x": (FLOAT, [3]), **(more or {})}, outputs, known)


def check(m, *calls, kind=Loop):
    """Compiled, interpreted, and by ONNX Runtime: the same, without host fallbacks in between."""
    expected = onnxruntime.InferenceSession(m.SerializeToString())
    exe = tw.compile(m, threads=1, fallback="error")
    plan, _ = planned(m, (), None, Options.of({}))
    assert any(isinstance(s, kind) for s in plan.steps)
    text = str(plan)
    again = parse(text, plan.graph)
    assert str(again) == text
    verify(again)
    for feeds in calls:
        wanted = expected.run(None, feeds)
        for results in (exe.run(feeds), evaluate(again, feeds, onnx_fallback())):
            for a, b in zip(wanted, results, strict=True):
                assert a.shape == b.shape
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return exe


ONE = np.ones(3, np.float32)
F3 = (FLOAT, [3])
X = {"x": np.array([1, 2, 3], np.float32)}
SMALL = {"x": np.array([0.25, -1, 0], np.float32)}
LIMIT = {"limit": np.array(60, np.float32), "one": ONE}
COUNTS = [
    node("Add", ["s", "x"], ["s1"]),
    node("ReduceSum", ["s1"], ["sum"], keepdims=0),
    node("Less", ["sum", "limit"], ["go"]),
]


def test_states_trade_places_and_rows_are_stacked():
    nodes = [
        *COUNTS,
        node("Identity", ["t"], ["t1"]),
        node("Mul", ["s1", "t"], ["item"]),
    ]
    states = {"s": (F3, ONE), "t": (F3, 2 * ONE)}
    m = loop(nodes, states, {"t1": F3, "s1": F3, "item": F3}, constants=LIMIT)
    check(m, X, SMALL)


def test_three_states_turn_without_any_arithmetic():
    nodes = [node("Identity", ["c"], ["go"])]
    names = ("a", "b", "d")
    states = {k: (F3, n * ONE) for n, k in enumerate(names)}
    turned = [node("Identity", [k], [f"{k}1"]) for k in names]
    results = {"b1": F3, "d1": F3, "a1": F3}
    check(loop([*nodes, *turned], states, results, trips=65), X)


def test_one_value_is_two_states_and_an_item():
    nodes = [*COUNTS, node("Identity", ["s1"], ["t1"]), node("Identity", ["s1"], ["u"])]
    states = {"s": (F3, ONE), "t": (F3, 2 * ONE)}
    m = loop(nodes, states, {"s1": F3, "t1": F3, "u": F3}, constants=LIMIT)
    check(m, X, SMALL)


def test_a_value_of_the_graph_around_is_a_state_and_an_item():
    nodes = [
        *COUNTS,
        node("Identity", ["x"], ["t1"]),
        node("Identity", ["one"], ["u"]),
    ]
    states = {"s": (F3, ONE), "t": (F3, 2 * ONE)}
    m = loop(nodes, states, {"s1": F3, "t1": F3, "u": F3}, constants=LIMIT)
    check(m, X, SMALL)


def test_a_state_is_read_behind_what_replaces_it():
    """s1 may not lie in the memory of s: the item reads s behind it."""
    nodes = [
        *COUNTS,
        node("Sub", ["s1", "s"], ["d"]),
        node("Mul", ["d", "s"], ["item"]),
    ]
    m = loop(nodes, {"s": (F3, ONE)}, {"s1": F3, "item": F3}, constants=LIMIT)
    check(m, X, SMALL)


@pytest.mark.parametrize("trips", [0, 1, 64, 65, -3])
def test_counts_of_iterations(trips):
    nodes = [node("Identity", ["c"], ["go"]), node("Add", ["s", "x"], ["s1"])]
    nodes.append(node("Gather", ["table", "n"], ["item"]))
    table = np.arange(65 * 2, dtype=np.float32).reshape(65, 2)
    results = {"s1": F3, "item": (FLOAT, [2])}
    given = {"table": table}
    m = loop(nodes, {"s": (F3, ONE)}, results, constants=given, trips=trips)
    expected = onnxruntime.InferenceSession(m.SerializeToString()).run(None, X)
    for a, b in zip(expected, tw.compile(m, threads=1).run(X), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b)


def test_a_state_that_grows_has_a_bound_and_a_count():
    nodes = [*COUNTS, node("Concat", ["k", "s1"], ["k1"], axis=0)]
    nodes.append(node("ReduceMax", ["k1"], ["item"], keepdims=1))
    states = {"s": (F3, ONE), "k": ((FLOAT, [None]), np.ones(0, np.float32))}
    results = {"s1": F3, "k1": (FLOAT, [None]), "item": (FLOAT, [1])}
    check(loop(nodes, states, results, constants=LIMIT), X, SMALL)


def test_states_that_grow_together_are_multiplied():
    nodes = [
        *COUNTS,
        node("Concat", ["k", "s1"], ["k1"], axis=0),
        node("Concat", ["v", "x"], ["v1"], axis=0),
        node("Mul", ["k1", "v1"], ["kv"]),
        node("ReduceSum", ["kv"], ["item"], keepdims=0),
    ]
    empty = ((FLOAT, [None]), np.ones(0, np.float32))
    states = {"s": (F3, ONE), "k": empty, "v": empty}
    grown = (FLOAT, [None])
    results = {"s1": F3, "k1": grown, "v1": grown, "item": (FLOAT, [])}
    check(loop(nodes, states, results, constants=LIMIT), X)


def test_states_that_begin_alike_and_grow_apart_have_counts_of_their_own():
    nodes = [
        *COUNTS,
        node("Concat", ["k", "s1"], ["k1"], axis=0),
        node("Concat", ["v", "x", "x"], ["v1"], axis=0),
    ]
    empty = ((FLOAT, [None]), np.ones(0, np.float32))
    states = {"s": (F3, ONE), "k": empty, "v": empty}
    grown = (FLOAT, [None])
    results = {"s1": F3, "k1": grown, "v1": grown}
    check(loop(nodes, states, results, constants=LIMIT), X, SMALL)


def test_growth_without_a_bound_is_left_to_the_host():
    """A state twice as long each time: no multiple of the iterations bounds it."""
    nodes = [*COUNTS, node("Concat", ["k", "k"], ["k1"], axis=0)]
    states = {"s": (F3, ONE), "k": ((FLOAT, [None]), np.ones(1, np.float32))}
    results = {"s1": F3, "k1": (FLOAT, [None])}
    m = loop(nodes, states, results, constants=LIMIT, trips=5000)
    with pytest.raises(errors.UnsupportedError, match="the loop"):
        tw.compile(m, fallback="error")


def test_an_index_out_of_range_inside_names_the_node_and_ends_the_loop():
    nodes = [*COUNTS, node("Gather", ["table", "n"], ["item"])]
    constants = {**LIMIT, "table": np.zeros((4, 3), np.float32)}
    m = loop(nodes, {"s": (F3, ONE)}, {"s1": F3, "item": F3}, constants=constants)
    exe = tw.compile(m, threads=1, fallback="error")
    assert exe.run(X | {"x": 20 * X["x"]})[1].shape == (1, 3)
    with pytest.raises(errors.ExecutionError, match="Gather"):
        exe.run(X)
    assert exe.run(X | {"x": 20 * X["x"]})[1].shape == (1, 3)


def test_a_scan_of_many_steps_runs_backward_and_stacks_along_another_axis():
    body = graph(
        [node("Add", ["s", "a"], ["s1"]), node("Mul", ["s1", "b"], ["y"])],
        {"s": F3, "a": F3, "b": F3},
        {"s1": F3, "y": F3},
    )
    op = node(
        "Scan",
        ["s0", "u", "w"],
        ["end", "ys"],
        body=body,
        num_scan_inputs=2,
        scan_input_axes=[0, 1],
        scan_input_directions=[1, 0],
        scan_output_axes=[1],
        scan_output_directions=[1],
    )
    inputs = {"s0": F3, "u": (FLOAT, [70, 3]), "w": (FLOAT, [3, 70])}
    m = model([op], inputs, {"end": F3, "ys": (FLOAT, [3, 70])})
    r = np.random.default_rng(0)
    feeds = {k: r.random(s, np.float32) for k, (_, s) in inputs.items()}
    check(m, feeds)


def branching(size):
    """An If of large branches, one of which fails on what the other is for."""
    then = graph(
        [node("Gather", ["x", "i"], ["row"]), node("MatMul", ["row", "w"], ["y1"])],
        {},
        {"y1": (FLOAT, [None, size])},
    )
    other = graph([node("Neg", ["x"], ["y2"])], {}, {"y2": (FLOAT, [None, size])})
    nodes = [
        node("ReduceMin", ["i"], ["least"], keepdims=0),
        node("GreaterOrEqual", ["least", "zero"], ["fine"]),
        node("If", ["fine"], ["y"], then_branch=then, else_branch=other),
    ]
    inputs = {"x": (FLOAT, [4, size]), "i": (INT, [2])}
    w = np.random.default_rng(0).random((size, size), np.float32)
    known = {"zero": np.array(0), "w": w}
    return model(nodes, inputs, {"y": (FLOAT, [None, size])}, known)


def test_of_large_branches_only_the_one_that_is_taken_runs():
    x = np.random.default_rng(1).random((4, 64), np.float32)
    m = branching(64)
    calls = [{"x": x, "i": np.array(i)} for i in ([0, 3], [-9, 0])]
    exe = check(m, *calls, kind=Branch)
    with pytest.raises(errors.ExecutionError, match="Gather"):
        exe.run({"x": x, "i": np.array([4, 0])})


def test_a_profile_gives_a_loop_its_time_and_its_kernels_none():
    nodes = [*COUNTS, node("Mul", ["s1", "s1"], ["item"])]
    m = loop(nodes, {"s": (F3, ONE)}, {"s1": F3, "item": F3}, constants=LIMIT)
    exe = tw.compile(m, threads=1)
    assert "the loop" in str(exe.profile(X, repeat=3))


def test_results_of_a_loop_that_are_joined_keep_names_apart(monkeypatch):
    """The memory of a result that is cut has the result's name in the model."""
    monkeypatch.setenv("TILEWRIGHT_DEBUG", "1")
    body = [
        node("Identity", ["x"], ["s1"]),
        node("Size", ["s"], ["size"]),
        node("Less", ["size", "four"], ["go"]),
    ]
    m = loop(
        body,
        {"s": ((FLOAT, [None]), np.ones(2, np.float32))},
        {"s1": (FLOAT, [None])},
        constants={"four": np.array(4)},
    )
    m.graph.node.append(node("Concat", ["s1_end", "s1_end"], ["y"], axis=0))
    m.graph.output.append(info("y", FLOAT, [None]))
    check(m, X)


def test_a_state_grows_in_a_body_that_never_runs():
    states = {"s": ((FLOAT, [None]), ONE)}
    body = [
        node("Concat", ["x", "x"], ["s1"], axis=0),
        node("ReduceMax", ["x"], ["m"], keepdims=0),
        node("Less", ["m", "limit"], ["go"]),
    ]
    known = LIMIT | {"zero": np.array(0, np.float32)}
    m = loop(body, states, {"s1": (FLOAT, [None])}, constants=known, trips=0)
    for name in ("T", "s_0"):
        m.graph.initializer.remove(
            next(t for t in m.graph.initializer if t.name == name)
        )
    m.graph.node.insert(0, node("Squeeze", ["flag"], ["T"]))
    m.graph.node.insert(0, node("Compress", ["x", "positive"], ["s_0"]))
    m.graph.node.insert(0, node("Greater", ["x", "zero"], ["positive"]))
    m.graph.input.append(info("flag", BOOL, [1, 1]))
    check(m, X | {"flag": np.array([[True]])})
