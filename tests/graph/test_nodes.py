"""Graphs: what they print, what the verifier finds, queries and renaming."""

import numpy as np
import pytest

from tilewright.base.dtypes import bool_, float32, int64
from tilewright.base.errors import ModelError
from tilewright.graph.nodes import Graph, Operation, Value, constant
from tilewright.graph.renaming import name_outputs, rewire
from tilewright.graph.verify import topological, verify


def value(name, shape=(2, 3), dtype=float32):
    return Value(name, dtype, shape)


def small():
    x, h, y = value("x", ("N", 3)), value("h", ("N", 4)), value("y", ("N", 4))
    w = constant("w", np.ones((3, 4), np.float32))
    return Graph(
        "small",
        (x,),
        (y,),
        (
            Operation("MatMul", (x, w), (h,), {}, "", 13, "fc"),
            Operation("LeakyRelu", (h,), (y,), {"alpha": 0.5}, "", 16),
        ),
        {w: np.ones((3, 4), np.float32)},
    )


def test_printed_graph():
    assert str(small()) == (
        "graph small(x: float32[N, 3]) -> (y: float32[N, 4]) {\n"
        "  const w: float32[3, 4] = <min 1, max 1, mean 1>\n"
        "  h: float32[N, 4] = MatMul(x, w)  # fc\n"
        "  y: float32[N, 4] = LeakyRelu(h; alpha=0.5)\n"
        "}"
    )


def test_printed_subgraph_and_left_out_operands():
    x, c, y, a = value("x"), value("c", (), bool_), value("y"), value("a")
    branch = Graph("then", (), (a,), (Operation("Clip", (x, None, x), (a,)),))
    graph = Graph(
        "g", (x, c), (y,), (Operation("If", (c,), (y,), {"then_branch": branch}),)
    )
    assert str(graph) == (
        "graph g(x: float32[2, 3], c: bool[]) -> (y: float32[2, 3]) {\n"
        "  y: float32[2, 3] = If(c; then_branch=<then>)\n"
        "    then_branch: graph then() -> (a: float32[2, 3]) {\n"
        "      a: float32[2, 3] = Clip(x, _, x)\n"
        "    }\n"
        "}"
    )
    assert branch.captured == (x,)
    assert graph.operations[0].reads == (c, x)
    verify(graph)


def test_types_of_what_is_no_tensor():
    assert repr(Value("s", float32, (2, None), "optional.sequence")) == (
        "s: optional(sequence(float32[2, ?]))"
    )
    assert repr(Value("u")) == "u: ?"


def test_queries():
    graph = small()
    x, w, h, y = graph.values
    assert graph.producer(h).op_type == "MatMul" and graph.producer(x) is None
    assert [op.op_type for op in graph.users(h)] == ["LeakyRelu"]
    assert graph.users(y) == ()
    assert not x.static and w.static and w.extents == (3, 4)


def broken(operations, outputs, inputs=("x",)):
    return Graph("g", tuple(inputs), tuple(outputs), tuple(operations))


def test_verifier_names_what_is_wrong():
    x, a, b = value("x"), value("a"), value("b")
    relu = Operation("Relu", (a,), (b,), {}, "", 14, "late")
    absolute = Operation("Abs", (x,), (a,), {}, "", 13, "early")
    verify(broken([absolute, relu], [b], [x]))
    for graph, words in (
        (broken([relu], [b], [x]), ("late", "'a'", "nothing defines")),
        (broken([relu, absolute], [b], [x]), ("late", "early", "before")),
        (broken([absolute], [b], [x]), ("output 'b'",)),
        (
            broken([absolute, Operation("Abs", (x,), (a,))], [a], [x]),
            ("written twice", "'a'"),
        ),
        (
            broken([absolute, Operation("Abs", (x,), (value("a"),))], [a], [x]),
            ("two values",),
        ),
    ):
        with pytest.raises(ModelError) as caught:
            verify(graph)
        for word in words:
            assert word in str(caught.value)


def test_cycles_are_named():
    a, b, c = value("a"), value("b"), value("c")
    ops = [
        Operation("Abs", (c,), (a,), {}, "", 1, "one"),
        Operation("Abs", (a,), (b,), {}, "", 1, "two"),
        Operation("Abs", (b,), (c,), {}, "", 1, "three"),
    ]
    with pytest.raises(ModelError, match="cycle"):
        verify(broken(ops, [c], []))
    with pytest.raises(
        ModelError, match=r"one.*three.*two|three.*two.*one|two.*one.*three"
    ):
        topological(ops, "here")


def test_sorting_keeps_the_order_where_it_can():
    x, a, b, c = value("x"), value("a"), value("b"), value("c")
    ops = [
        Operation("Abs", (b,), (c,), {}, "", 1, "last"),
        Operation("Abs", (x,), (a,), {}, "", 1, "first"),
        Operation("Abs", (a,), (b,), {}, "", 1, "middle"),
    ]
    assert [op.name for op in topological(ops, "here")] == ["first", "middle", "last"]


def test_rewiring_reaches_into_subgraphs():
    x, z, c, y, a = (
        value("x"),
        value("z"),
        value("c", (), bool_),
        value("y"),
        value("a"),
    )
    branch = Graph("then", (), (a,), (Operation("Abs", (x,), (a,)),))
    graph = Graph(
        "g", (x, c), (y,), (Operation("If", (c,), (y,), {"then_branch": branch}),)
    )
    new = rewire(graph, {x: z})
    assert new.inputs[0] is z
    assert new.operations[0].attributes["then_branch"].captured == (z,)


def test_outputs_are_named_by_renaming_or_by_a_copy():
    x, y = value("x"), value("long/y")
    graph = Graph("g", (x,), (y, y, x), (Operation("Abs", (x,), (y,)),))
    named = name_outputs(graph, ["y", "again", "same"])
    verify(named)
    assert [v.name for v in named.outputs] == ["y", "again", "same"]
    assert [op.op_type for op in named.operations] == ["Abs", "Identity", "Identity"]


def test_what_has_the_name_of_an_output_gives_it_up():
    x, long, y, a = value("x"), value("long/y"), value("y"), value("a")
    operations = (
        Operation("Abs", (x,), (y,)),
        Operation("Neg", (y,), (long,)),
        Operation("Exp", (y,), (a,)),
    )
    named = name_outputs(Graph("g", (x,), (long, a, a), operations), ["y", "a", "b"])
    verify(named)
    assert [v.name for v in named.outputs] == ["y", "a", "b"]
    abs_, neg, exp, copy = named.operations
    assert [v.name for v in abs_.outputs] == ["y_2"]
    assert neg.inputs == exp.inputs == abs_.outputs
    assert copy.inputs == exp.outputs
    crossed = Graph("g", (x,), (long, y), operations)
    assert [v.name for v in name_outputs(crossed, ["y", "long/y"]).values] == [
        *("x", "long/y", "y", "a")
    ]


def test_constants_that_nothing_reads_are_dropped():
    graph = small()
    kept = graph.with_operations(graph.operations[1:], outputs=graph.outputs)
    assert not kept.constants
    assert int64 is value("i", (), int64).dtype
