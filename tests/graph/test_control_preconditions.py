"""Loops become copies of their body, and sequences the values they hold, only where that is known.

A row is a model that differs from one that is taken in a single condition; the graph as read, the
graph specialized, and where it is short NumPy agree on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

from tilewright.base.dtypes import float32
from tilewright.base.errors import ExecutionError, ModelError
from tilewright.frontends.onnx.load import load
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph import interp
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.sequences import MAX_ITEMS
from tilewright.graph.specialize import specialize
from tilewright.graph.unroll import MAX_OPERATIONS, MAX_TRIPS
from tilewright.plan import layout
from tilewright.testing.differential import without_shapes

ARRAYS = {
    "no": np.array(0), "two": np.array(2), "minus": np.array(-1), "many": np.array(MAX_TRIPS + 1),
    "yes": np.array(True), "nay": np.array(False), "one": np.float32(1), "big": np.float32(100),
    "sizes": np.array([1, 2, 2]), "odd": np.array([1, 2, 3]), "less": np.array([1, 2]),
    "below": np.array([-1, 6]), "zero": np.array([0]),
}  # fmt: skip


def model(source: str, opset: int = 18) -> onnx.ModelProto:
    made = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}]> f {source}'
    )
    words = set(source.replace("(", " ").replace(")", " ").replace(",", " ").split())
    used = {k: a for k, a in ARRAYS.items() if k in words}
    made.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(a), k) for k, a in used.items()
    )
    return made


def loop(
    count: str, going: str, condition: str = "g = Identity(c)", more: str = ""
) -> str:
    """A loop that adds x to its state, and gives every state."""
    body = "body(int64 i, bool c, float[3] s) => (bool g, float[3] t, float[3] u) "
    body += f"{{ t = Add(s, x) u = Identity(t) {condition} }}"
    return (
        f"(float[3] x, int64 n, bool b{more}) => (float[3] y, float[k, 3] z) "
        f"{{ y, z = Loop<body = {body}>({count}, {going}, x) }}"
    )


def scan(inputs: str, body: str, attributes: str = "") -> str:
    return (
        f"({inputs}) => (float y, float z) "
        f"{{ y, z = Scan<num_scan_inputs = 1{attributes}, body = {body}>(x, w) }}"
    )


SUMS = (
    "b(float[3] s, float[3] i) => (float[3] t, float[3] u) { t = Add(s, i) u = Neg(t) }"
)
LESS = "m = ReduceMax<keepdims = 0>(t) g = Less(m, big)"
LONG = " ".join(f"p{k} = Neg(x)" for k in range(MAX_OPERATIONS // 2))
COUNTED = "q = Cast<to = 1>(i) g = Less(q, one)"
# Model, and whether the loop becomes copies.
LOOPS: dict[str, tuple[str, bool]] = {
    "a known count": (loop("two", ""), True),
    "a known count and condition": (loop("two", "yes"), True),
    "a condition by the number": (loop("", "yes", COUNTED), True),
    "a count at run time": (loop("n", ""), False),
    "a condition at run time": (loop("two", "b"), False),
    "a condition of the data": (loop("two", "", LESS), False),
    "as many as there may be": (loop("many", ""), False),
    "too many operations": (loop("two", "", f"{LONG} g = Identity(c)"), False),
    "no iteration": (loop("no", ""), False),
    "a negative count": (loop("minus", ""), False),
    "a condition that never held": (loop("two", "nay"), False),
    "no iteration and no scan": (
        "(float[3] x) => (float[3] y) { y = Loop<body = b(int64 i, bool c, float[3] s) => "
        "(bool g, float[3] t) { t = Add(s, x) g = Identity(c) }>(no, , x) }", True,
    ),
    "a sequence as state": (
        "(float[3] x) => (float[n, 3] y) { e = SequenceEmpty() t = Loop<body = "
        "b(int64 i, bool c, seq(float[3]) s) => (bool g, seq(float[3]) u) "
        "{ u = SequenceInsert(s, x) g = Identity(c) }>(two, , e) "
        "y = ConcatFromSequence<axis = 0, new_axis = 1>(t) }", False,
    ),
    "a scan": (scan("float[3] x, float[4, 3] w", SUMS), True),
    "a scan from the end": (
        scan("float[3] x, float[4, 3] w", SUMS, ", scan_input_directions = [1]"), True,
    ),
    "a scan to the front": (
        scan("float[3] x, float[4, 3] w", SUMS, ", scan_output_directions = [1]"), True,
    ),
    "a scan over another axis": (
        scan("float[3] x, float[3, 4] w", SUMS, ", scan_input_axes = [-1]"), True,
    ),
    "a scan onto another axis": (
        scan("float[3] x, float[4, 3] w", SUMS, ", scan_output_axes = [-1]"), True,
    ),
    "a scan of no steps": (scan("float[3] x, float[0, 3] w", SUMS), False),
    "a scan of too many steps": (
        scan(f"float[3] x, float[{MAX_TRIPS + 1}, 3] w", SUMS), False,
    ),
}  # fmt: skip


def fed(v: Value) -> Any:
    if v.name in ("n", "b"):
        return np.array(2 if v.name == "n" else True)
    random = np.random.default_rng(len(v.extents))
    return random.standard_normal(v.extents).astype(np.float32)


def check(source: onnx.ModelProto, expected: Any = None) -> Graph:
    """The specialized graph, which means what the graph as read does; expected: its result."""
    graph = load(source)
    feeds = {v.name: fed(v) for v in graph.inputs}
    special = specialize(graph, fallback=OnnxFallback())
    before, after = (
        interp.evaluate(g, feeds, fallback=OnnxFallback()) for g in (graph, special)
    )
    for v in graph.outputs:
        assert after[v.name].dtype == before[v.name].dtype
        np.testing.assert_allclose(
            after[v.name], before[v.name], rtol=1e-6, strict=True
        )
    if expected is not None:
        np.testing.assert_array_equal(before["y"], expected)
    return special


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_where_it_may_be_unrolled_and_nowhere_else(name: str) -> None:
    source, unrolls = LOOPS[name]
    special = check(model(source))
    left = [op.op_type for op in special.operations if op.subgraphs]
    assert len(left) == (0 if unrolls else 1)
    if not unrolls:  # and nothing of what was tried
        assert len(special.operations) <= 3


TWO = (
    "(float[{}, 2] x, float[{}, 2] w) => (float[a, 2] y) {{ y = Scan<num_scan_inputs = 2{}, "
    "body = b(float[2] i, float[2] j) => (float[2] o) {{ o = Add(i, j) }}>(x, w) }}"
)


@pytest.mark.parametrize("lengths", [(5, 7), (7, 5), (90, 100), (0, 1)])
@pytest.mark.parametrize("rest", ["", ", scan_input_directions = [1, 1]"])
def test_inputs_of_a_scan_are_as_long_as_one_another(
    lengths: tuple[int, int], rest: str
) -> None:
    said = f"the inputs that Scan iterates over are {lengths[0]}, {lengths[1]} long"
    graph = load(model(TWO.format(*lengths, rest)))
    with pytest.raises(ExecutionError, match=said):
        specialize(graph, fallback=OnnxFallback())
    with pytest.raises(ExecutionError, match=said):
        interp.evaluate(
            graph, {v.name: fed(v) for v in graph.inputs}, fallback=OnnxFallback()
        )


@pytest.mark.parametrize(
    "name", ["no iteration", "a negative count", "a scan of no steps"]
)
def test_scans_of_nothing_are_empty(name: str) -> None:
    graph = load(model(LOOPS[name][0]))
    feeds = {v.name: fed(v) for v in graph.inputs}
    found = interp.evaluate(graph, feeds, fallback=OnnxFallback())
    np.testing.assert_array_equal(found["y"], feeds["x"])
    np.testing.assert_array_equal(found["z"], np.zeros((0, 3), np.float32), strict=True)


UNTYPED = {
    "of a state": (
        "(float[3] x) => (float z) { y, z = Loop<body = b(int64 i, bool c, float s) => "
        "(bool g, float t, float u) { t = Add(s, x) u = Unsqueeze(t, zero) g = Identity(c) }>"
        "(no, , x) }", (0, 1, 3),
    ),
    "of what is captured": (
        "(float[4, 3] x, float[3] w) => (float z) { y, z = Loop<body = "
        "b(int64 i, bool c, float s) => (bool g, float t, float u) "
        "{ t = Identity(s) u = Neg(x) g = Identity(c) }>(no, , w) }", (0, 4, 3),
    ),
    "of a result that is captured": (
        "(float[4, 3] x, float[3] w, bool b) => (float z) { n = If<then_branch = "
        "t() => (float m) { m = Neg(x) }, else_branch = e() => (float m) { m = Identity(w) }>(b) "
        "y, z = Loop<body = b(int64 i, bool c, float s) => (bool g, float t, float u) "
        "{ t = Identity(s) u = Neg(n) g = Identity(c) }>(no, , w) }", (0, 4, 3),
    ),
    "of an element": (
        "(float[0, 5] w, float[3] x) => (float z) { y, z = Scan<num_scan_inputs = 1, body = "
        "b(float s, float i) => (float t, float u) "
        "{ t = Identity(s) u = Unsqueeze(i, zero) }>(x, w) }", (0, 1, 5),
    ),
    "of a scan onto another axis": (
        "(float[5, 0] w, float[3] x) => (float z) { y, z = Scan<num_scan_inputs = 1, "
        "scan_input_axes = [1], scan_output_axes = [-1], body = b(float s, float i) => "
        "(float t, float u) { t = Identity(s) u = Identity(i) }>(x, w) }", (5, 0),
    ),
    "of a body with a Scan of different lengths": (
        "(float[2, 3] x, float[4, 3] w) => (float z) { y, z = Loop<body = "
        "b(int64 i, bool c, float s) => (bool g, float t, float u) { t = Identity(s) "
        "u = Scan<num_scan_inputs = 2, body = d(float j, float k) => (float m) "
        "{ m = Add(j, k) }>(s, w) g = Identity(c) }>(no, , x) }", (0,),
    ),
    "of a state that the body does not fit": (
        "(float[2] x, float[3] w) => (float z) { y, z = Loop<body = b(int64 i, bool c, float s) "
        "=> (bool g, float t, float u) { t = Add(s, w) u = Neg(t) g = Identity(c) }>"
        "(no, , x) }", (0,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNTYPED)
def test_a_scan_of_nothing_has_the_rank_that_the_first_iteration_would_give(
    name: str,
) -> None:
    text, shape = UNTYPED[name]
    source = model(text)
    without_shapes(source.graph)
    graph = load(source)
    feeds = {v.name: fed(v) for v in graph.inputs}
    found = interp.evaluate(graph, feeds, fallback=OnnxFallback())
    np.testing.assert_array_equal(found["z"], np.zeros(shape, np.float32), strict=True)


def test_an_element_of_a_scan_has_no_axes_and_is_an_array() -> None:
    seen: list[Any] = []
    graph = load(
        model(
            "(float[4] x) => (float[4] y) { y = Scan<num_scan_inputs = 1, body = "
            "b(float i) => (float o) { a = Neg(i) o = Softsign(a) }>(x) }"
        )
    )
    x = np.array([-2, 0, 1, 5], np.float32)

    class Watched(OnnxFallback):
        def run(self, op: Any, arrays: Any) -> Any:
            seen.extend(arrays)
            return super().run(op, arrays)

    found = interp.evaluate(graph, {"x": x}, fallback=Watched())
    np.testing.assert_allclose(found["y"], -x / (1 + np.abs(x)), rtol=1e-6)
    assert all(isinstance(a, np.ndarray) for a in seen)


def test_a_scan_whose_length_is_not_known() -> None:
    graph = load(model(TWO.format("N", "N", "")))
    special = specialize(graph, fallback=OnnxFallback())
    assert [op.op_type for op in special.operations] == ["Scan"]


BATCHES = (
    "(float[{0}, 3, 2] x) => (float[a, b, 2] y) {{ y = Scan<num_scan_inputs = 1, "
    "body = b(float[2] i) => (float[2] o) {{ o = Neg(i) }}>({1}, x) }}"
)


def test_scans_of_batches_and_of_none() -> None:
    for batches, copies in ((2, True), (0, False)):
        graph = load(model(BATCHES.format(batches, ""), 8))
        special = specialize(graph, fallback=OnnxFallback())
        assert ("Scan" not in [op.op_type for op in special.operations]) == copies
        if copies:
            x = fed(graph.inputs[0])
            for g in (graph, special):
                found = interp.evaluate(g, {"x": x}, fallback=OnnxFallback())
                np.testing.assert_array_equal(found["y"], -x)


def test_lengths_of_batches_keep_a_scan() -> None:
    source = BATCHES.format(3, "sizes")
    source = source.replace("(float[3, 3, 2] x", "(int64[3] sizes, float[3, 3, 2] x", 1)
    special = specialize(
        load(model(source.replace("sizes", "l"), 8)), fallback=OnnxFallback()
    )
    assert [op.op_type for op in special.operations] == ["Scan"]


BRANCHES = (
    "(float[3] x, bool b) => (float[3] y) { y = If<"
    "then_branch = t() => (float[3] o) { o = Neg(x) }, "
    "else_branch = e() => (float[3] p) { p = Add(x, x) }>(b) }"
)
X3 = np.array([1, -2, 3], np.float32)
W = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
NUMBERS = (
    "(float[3] x, int64 n) => (int64[k] y) { t, y = Loop<body = b(int64 i, bool c, float[3] s) => "
    "(bool g, float[3] t, int64 u) { t = Add(s, x) u = Identity(i) g = Identity(c) }>(n, , x) }"
)
BACKWARD = BATCHES.replace(
    "num_scan_inputs = 1", "num_scan_inputs = 1, directions = [1]"
)
LAST = scan("float[3] x, float[N, 3] w", SUMS, ", scan_output_axes = [-1]").replace(
    "y, z", "z, y"
)
# What control flow means: a model, its version, what it is given, what NumPy makes of it.
MEANING: dict[str, tuple[str, int, dict[str, Any], Any]] = {
    "a branch": (BRANCHES, 18, {"x": X3, "b": np.array(True)}, -X3),
    "the other branch": (BRANCHES, 18, {"x": X3, "b": np.array(False)}, X3 + X3),
    "numbers of iterations": (NUMBERS, 18, {"x": X3, "n": np.array(3)}, np.arange(3)),
    "no numbers": (NUMBERS, 18, {"x": X3, "n": np.array(0)}, np.zeros(0, np.int64)),
    "no condition from the start": (
        NUMBERS.replace("n, , x", "n, nay, x"), 18, {"x": X3, "n": np.array(3)},
        np.zeros(0, np.int64),
    ),
    "a condition that ends": (
        NUMBERS.replace("Identity(c)", "Less(i, two)"), 18, {"x": X3, "n": np.array(9)},
        np.arange(3),
    ),
    "batches": (BATCHES.format(2, ""), 8, {"x": W}, -W),
    "batches from the end": (BACKWARD.format(2, ""), 8, {"x": W}, -W[:, ::-1]),
    "nothing along the last axis": (
        LAST, 18, {"x": X3, "w": np.zeros((0, 3), np.float32)}, np.zeros((3, 0), np.float32),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MEANING)
def test_control_flow_means_what_onnx_says(name: str) -> None:
    source, opset, feeds, expected = MEANING[name]
    found = interp.evaluate(load(model(source, opset)), feeds, fallback=OnnxFallback())
    np.testing.assert_array_equal(found["y"], expected, strict=True)


def test_lengths_of_batches_are_refused_by_name() -> None:
    source = BATCHES.format(2, "l").replace(
        "(float[2, 3, 2] x", "(int64[2] l, float[2, 3, 2] x", 1
    )
    with pytest.raises(
        ExecutionError, match="Scan 8 with sequence lengths is not implemented"
    ):
        interp.evaluate(
            load(model(source, 8)),
            {"x": W, "l": np.array([3, 2])},
            fallback=OnnxFallback(),
        )


# Model, its result, and whether every sequence is gone; n is 2.
JOIN = "y = ConcatFromSequence<axis = 0>(t)"
SEQUENCES: dict[str, tuple[str, Callable[[Any], Any], bool]] = {
    "known sizes": (
        "s = SplitToSequence(x, sizes) y = SequenceAt(s, minus)", lambda x: x[3:], True,
    ),
    "one size": ("s = SplitToSequence(x, two) y = SequenceAt(s, minus)", lambda x: x[4:], True),
    "a size at run time": (
        "s = SplitToSequence(x, n) y = SequenceAt(s, no)", lambda x: x[:2], False,
    ),
    "an item": ("s = SequenceConstruct(p, x) y = SequenceAt(s, minus)", lambda x: x, True),
    "an item at run time": (
        "s = SequenceConstruct(p, p, x) y = SequenceAt(s, n)", lambda x: x, False,
    ),
    "put before the last": (
        "s = SequenceConstruct(x, x) t = SequenceInsert(s, p, minus) " + JOIN,
        lambda x: np.concatenate([x, -x, x]), True,
    ),
    "put at the end": (
        "s = SequenceConstruct(x, x) t = SequenceInsert(s, p, two) " + JOIN,
        lambda x: np.concatenate([x, x, -x]), True,
    ),
    "put in at run time": (
        "s = SequenceConstruct(x, x) t = SequenceInsert(s, p, n) " + JOIN,
        lambda x: np.concatenate([x, x, -x]), False,
    ),
    "put into none at run time": (
        "s = SequenceEmpty() k = Sub(n, two) t = SequenceInsert(s, p, k) " + JOIN,
        lambda x: -x, False,
    ),
    "taken out": (
        "s = SequenceConstruct(p, x, x) t = SequenceErase(s, no) " + JOIN,
        lambda x: np.concatenate([x, x]), True,
    ),
    "taken out from the end": (
        "s = SequenceConstruct(x, x, p) t = SequenceErase(s, minus) " + JOIN,
        lambda x: np.concatenate([x, x]), True,
    ),
    "taken out at run time": (
        "s = SequenceConstruct(x, x, p) t = SequenceErase(s, n) " + JOIN,
        lambda x: np.concatenate([x, x]), False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_sequence_where_it_is_known_and_nowhere_else(name: str) -> None:
    source, expected, known = SEQUENCES[name]
    text = model(
        f"(float[5, 3] x, int64 n) => (float[a, b] y) {{ p = Neg(x) {source} }}"
    )
    special = check(text, expected(fed(Value("x", float32, (5, 3)))))
    assert reads_a_sequence(special) != known


def reads_a_sequence(graph: Graph) -> bool:
    """Whether a sequence is needed for the result."""
    made = graph.producer(graph.outputs[0])
    return made is not None and any(v.kind == "sequence" for v in made.reads)


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("extent", [MAX_ITEMS, MAX_ITEMS + 1])
def test_more_items_than_are_followed(keep: int, extent: int) -> None:
    text = f"(float[2, {extent}] x) => (int64 y) "
    split = f"s = SplitToSequence<axis = 1, keepdims = {keep}>(x)"
    special = check(model(f"{text} {{ {split} y = SequenceLength(s) }}"), extent)
    assert reads_a_sequence(special) == (extent > MAX_ITEMS)


@pytest.mark.parametrize("sizes", ["odd", "less", "no", "minus"])
def test_sizes_that_are_none(sizes: str) -> None:
    graph = load(model(f"(float[5, 3] x) => (int64 y) {{ s = SplitToSequence(x, {sizes}) "
                       "y = SequenceLength(s) }"))  # fmt: skip
    assert [op.op_type for op in graph.operations] == [
        "SplitToSequence",
        "SequenceLength",
    ]
    with pytest.raises(ExecutionError, match=r"the sizes .* do not split 5"):
        interp.evaluate(
            graph, {"x": np.ones((5, 3), np.float32)}, fallback=OnnxFallback()
        )


def test_sizes_below_zero_that_add_up() -> None:
    body = "s = SplitToSequence(x, below) y = SequenceLength(s)"
    source = "(float[5, 3] x{}) => (int64 y) {{ " + body + " }}"
    with pytest.raises(ModelError, match=r"sizes \[-1, 6\]"):
        load(model(source.format("")))
    graph = load(model(source.replace("below", "l").format(", int64[2] l")))
    feeds = {"x": np.ones((5, 3), np.float32), "l": ARRAYS["below"]}
    with pytest.raises(ExecutionError, match=r"the sizes \[-1, 6\] do not split 5"):
        interp.evaluate(graph, feeds, fallback=OnnxFallback())


def test_a_split_of_unknown_extent_is_left_to_run_time() -> None:
    graph = load(model("(float[N, 3] x) => (int64 y) { s = SplitToSequence(x) "
                       "y = SequenceLength(s) }"))  # fmt: skip
    assert [op.op_type for op in graph.operations] == [
        "SplitToSequence",
        "SequenceLength",
    ]


@pytest.mark.parametrize(
    "source",
    [
        "s = SequenceConstruct(x, x) y = SequenceAt(s, two)",
        "s = SequenceConstruct(x) y = SequenceAt(s, two)",
        "e = SequenceConstruct(x) s = SequenceErase(e) y = SequenceAt(s, minus)",
        "e = SequenceConstruct(x) s = SequenceErase(e, two) y = SequenceAt(s, no)",
        "e = SequenceConstruct(x) s = SequenceInsert(e, x, two) y = SequenceAt(s, no)",
    ],
)
def test_positions_beyond_the_ends_are_left_to_run_time(source: str) -> None:
    graph = load(model(f"(float[5, 3] x) => (float[a, b] y) {{ {source} }}"))
    assert graph.operations[-1].op_type == "SequenceAt"


# ------------------------------------------------------------------------------- layouts


def maps(*shape: Any) -> tuple[Graph, dict[str, Value]]:
    """x -> Conv -> a -> Relu -> b -> Relu -> c, with constant weights."""
    x, w, a, b, c = (Value(n, float32, shape) for n in "xwabc")
    ops = [
        Operation("Conv", (x, w), (a,)),
        Operation("Relu", (a,), (b,)),
        Operation("Relu", (b,), (c,)),
    ]
    full = [d if isinstance(d, int) else 1 for d in shape]
    graph = Graph("g", (x,), (c,), tuple(ops), {w: np.zeros(full, np.float32)})
    return graph, {v.name: v for v in (x, w, a, b, c)}


def test_only_what_computations_make_and_read_is_stored_otherwise() -> None:
    graph, v = maps(1, 4, 5, 5)
    order = (0, 2, 3, 1)
    assert layout.choose(graph) == {
        v["a"]: order,
        v["b"]: order,
    }  # no input, output or constant
    assert layout.choose(graph, [v["a"]]) == {v["b"]: order}  # nor what a kernel reads


@pytest.mark.parametrize("shape", [(4, 5), (4,), (1, 4, None), (1, 4, "N")])
def test_only_maps_whose_extents_are_known(shape: tuple[Any, ...]) -> None:
    graph, _ = maps(*shape)
    assert layout.choose(graph) == {}
