"""Graphs back to ONNX: checked, run by ONNX Runtime, refused by name, written whole or not."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import onnx.parser
import pytest

import tilewright as tw
from tilewright.base import dtypes
from tilewright.base.errors import (
    InputError,
    ModelError,
    TilewrightWarning,
    UnsupportedError,
)
from tilewright.frontends.onnx import load
from tilewright.frontends.onnx.opsets import CHANGED
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.frontends.onnx.save import save_onnx
from tilewright.graph import interp
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.testing.networks import NETWORKS

ort = pytest.importorskip("onnxruntime")
SMALL = list(NETWORKS)[::6]


def ort_run(model, feeds):
    data = model if isinstance(model, str) else model.SerializeToString()
    options = ort.SessionOptions()
    options.log_severity_level = 3
    # QuantizeLinear and DequantizeLinear as they are: fused, they round otherwise.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(feeds))


def evaluate(graph, feeds):
    return list(interp.evaluate(graph, feeds, fallback=OnnxFallback()).values())


def text(body: str, opset: int = 21):
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}]> {body}'
    )


def float_graph(*operations: Operation, inputs, outputs) -> Graph:
    return Graph("g", tuple(inputs), tuple(outputs), operations)


@pytest.mark.parametrize("name", SMALL)
def test_networks_there_and_back(name):
    case = NETWORKS[name]()
    ours = {op.qualified for op in case.graph.operations if op.domain == "tilewright"}
    if ours:
        with pytest.raises(UnsupportedError) as error:
            tw.to_onnx(case.graph)
        assert {item.partition(" ")[0] for item in error.value.items} == ours
        return
    model = tw.to_onnx(case.graph)
    onnx.checker.check_model(model, full_check=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TilewrightWarning)
        again = load(model)
    assert [v.name for v in again.inputs] == [v.name for v in case.graph.inputs]
    assert [v.name for v in again.outputs] == [v.name for v in case.graph.outputs]
    feeds = {v.name: np.asarray(case.inputs[v.name]) for v in case.graph.inputs}
    expected = evaluate(case.graph, feeds)
    for a, b in zip(evaluate(again, feeds), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(ort_run(model, feeds), expected, strict=True):
        wide = np.asarray(b, np.float64) if b.dtype.kind == "f" else b
        np.testing.assert_allclose(a, wide, rtol=2e-3, atol=2e-4)


def test_symbolic_extents_subgraphs_and_names_stay():
    model = text(
        """
    branch (bool c, float[N, 4] x) => (float[N, 4] "y/out") {
      "y/out" = If (c) <
        then_branch = g1 () => (float[N, 4] t) { w = Constant <value_float = 2.0> ()
            t = Mul(x, w) },
        else_branch = g2 () => (float[N, 4] e) { e = Neg(x) }
      >
    }""".replace('"y/out"', "y_out")
    )
    again = tw.to_onnx(load(model), name="kept")
    onnx.checker.check_model(again, full_check=True)
    assert again.graph.name == "kept"
    assert again.graph.input[1].type.tensor_type.shape.dim[0].dim_param == "N"
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    for c in (True, False):
        feeds = {"c": np.array(c), "x": x}
        (y,), (z,) = ort_run(again, feeds), ort_run(model, feeds)
        np.testing.assert_array_equal(y, z)


def test_operators_of_several_opsets_come_to_one():
    x = Value("x", dtypes.float32, (2, 1, 6))
    s = Value("s", dtypes.float32, (2, 6))
    m = Value("m", dtypes.float32, (2, 1))
    p = [Value(f"p{n}", dtypes.float32, (2, 3)) for n in range(2)]
    h = Value("h", dtypes.float32, (2, 6))
    g = Value("g", dtypes.float32, (2, 6))
    graph = float_graph(
        Operation("Squeeze", (x,), (s,), {"axes": [1]}, version=11),
        Operation("ReduceMean", (s,), (m,), {"axes": [1]}, version=13),
        Operation("Split", (s,), tuple(p), {"axis": 1}, version=13),
        Operation("Softmax", (s,), (h,), version=11),
        Operation("Gelu", (h,), (g,), version=20),
        inputs=[x],
        outputs=[m, *p, g],
    )
    model = tw.to_onnx(graph)
    onnx.checker.check_model(model, full_check=True)
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 20)]
    feeds = {"x": np.random.default_rng(0).normal(size=(2, 1, 6)).astype(np.float32)}
    found = ort_run(model, feeds)
    flat = feeds["x"][:, 0]
    np.testing.assert_allclose(found[0], flat.mean(1, keepdims=True), rtol=1e-5)
    np.testing.assert_array_equal(found[1], flat[:, :3])
    np.testing.assert_array_equal(found[2], flat[:, 3:])
    np.testing.assert_allclose(found[3], evaluate(load(model), feeds)[3], rtol=1e-5)
    assert abs(found[3]).max() < 1


def test_operators_stay_as_the_model_has_them():
    model = text(
        """
    g (float[1, 2, 4, 4] x, float[3, 1, 8] s) => (float[1, 2, 8, 8] y, float[3, 1, 1, 4] h) <
      float[4] scales = {1, 1, 2, 2}
    > {
      y = Resize <mode = "linear"> (x, , scales)
      w = ConstantOfShape (wshape)
      r = ConstantOfShape (rshape)
      h, last = GRU <hidden_size = 4> (s, w, r)
    }""".replace(
            "{1, 1, 2, 2}",
            "{1, 1, 2, 2}, int64[3] wshape = {1, 12, 8}, int64[3] rshape = {1, 12, 4}",
        )
    )
    with pytest.raises(UnsupportedError, match="Resample"):
        tw.to_onnx(load(model))
    graph = load(model, standard=True)
    again = tw.to_onnx(graph)
    onnx.checker.check_model(again, full_check=True)
    assert [n.op_type for n in again.graph.node] == ["Resize", "GRU"]
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.normal(size=(1, 2, 4, 4)).astype(np.float32),
        "s": rng.normal(size=(3, 1, 8)).astype(np.float32),
    }
    found = tw.compile(graph, cache=False)(feeds)
    for a, b in zip(ort_run(again, feeds), found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_what_no_one_opset_has_is_refused_by_name():
    x = Value("x", dtypes.float32, (2, 3, 4))
    y, z = (Value(n, dtypes.float32, (2, 3, 4)) for n in "yz")
    graph = float_graph(
        Operation("Softmax", (x,), (y,), {"axis": 1}, version=11, name="old"),
        Operation("Gelu", (y,), (z,), version=20),
        inputs=[x],
        outputs=[z],
    )
    with pytest.raises(UnsupportedError, match=r"Softmax of opset 11 \(node 'old'\)"):
        tw.to_onnx(graph)


@pytest.mark.parametrize("op_type", sorted(CHANGED))
def test_every_changed_meaning_is_one_that_onnx_lists(op_type):
    opset, _ = CHANGED[op_type]
    assert onnx.defs.get_schema(op_type, opset).since_version == opset
    assert onnx.defs.get_schema(op_type, opset - 1).since_version < opset


@pytest.mark.parametrize(("op_type", "domain"), [("Attend", "tilewright"), ("Foo", "")])
def test_operators_that_onnx_has_not_are_refused(op_type, domain):
    x, y = (Value(n, dtypes.float32, (2,)) for n in "xy")
    graph = float_graph(
        Operation(op_type, (x,), (y,), domain=domain, name="n7"),
        inputs=[x],
        outputs=[y],
    )
    with pytest.raises(UnsupportedError, match=f"{op_type}.*n7.*Export the graph"):
        tw.to_onnx(graph)


def many_weights():
    numbers = ", ".join(str(n % 7 - 3) for n in range(1200))
    return text(
        "w (float[2, 600] x) => (float[2, 2] y, int8[5] q) <"
        f"float[600, 2] w = {{{numbers}}}, int4[5] q4 = {{1, -2, 3, 7, -8}}, "
        "float[2] b = {1, 2}> { m = MatMul(x, w) y = Add(m, b) q = Cast <to = 3> (q4) }"
    )


def test_large_weights_go_beside_the_model(tmp_path):
    graph = load(many_weights())
    files = tw.save_onnx(graph, tmp_path / "m.onnx", largest=100)
    assert [f.suffix for f in files] == [".data", ".onnx"]
    onnx.checker.check_model(str(files[-1]), full_check=True)
    feeds = {"x": np.ones((2, 600), np.float32)}
    expected = evaluate(graph, feeds)
    again = load(files[-1])
    assert again.files == (files[0].name,)
    for a, b in zip(evaluate(again, feeds), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(ort_run(str(files[-1]), feeds)[0], expected[0])


def test_nothing_is_left_where_writing_fails(tmp_path, monkeypatch):
    from tilewright.frontends.onnx import save

    graph, written = load(many_weights()), []

    def full(path, write, **options):
        if path.suffix == ".onnx":
            raise OSError(28, "No space left on device")
        written.append(path)
        path.write_bytes(b"weights")

    monkeypatch.setattr(save, "write_whole", full)
    with pytest.raises(InputError, match=r"m\.onnx: .*No space left"):
        save_onnx(graph, tmp_path / "m.onnx", largest=100)
    assert written and not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"none/m\.onnx"):
        tw.save_onnx(load(many_weights()), tmp_path / "none" / "m.onnx")


def squeezed(names, opset):
    """A branch that squeezes `x0` and adds a vector, and its values by these names."""
    x0, squeezed, other, y = names
    return Graph(
        y.name,
        (),
        (y,),
        (
            Operation("Squeeze", (x0,), (squeezed,), {"axes": [0]}, version=opset),
            Operation("Add", (squeezed, other), (y,), version=14),
        ),
    )


def test_conversions_hide_no_value_of_the_graphs_around():
    """`s` squeezed wants a constant `s_axes`, which the graph around has, or one inside."""
    condition = Value("c", dtypes.bool_, ())
    taken = Value("s_axes", dtypes.float32, (3,))
    x, x0 = (Value(n, dtypes.float32, (1, 3)) for n in ("x", "x0"))
    s, t, y = (Value(n, dtypes.float32, (3,)) for n in ("s", "t", "y"))
    t_axes = Value("t_axes", dtypes.float32, (3,))
    then = squeezed((x0, s, taken, Value("a", dtypes.float32, (3,))), 11)
    other = Graph("b", (), (t_axes,), (Operation("Relu", (t,), (t_axes,), version=14),))
    branches = {"then_branch": then, "else_branch": other}
    graph = float_graph(
        Operation("Relu", (x,), (x0,), version=14),
        Operation("Squeeze", (x,), (t,), {"axes": [0]}, version=11),
        Operation("If", (condition,), (y,), branches, version=11),
        inputs=[condition, x, taken],
        outputs=[y],
    )
    model = tw.to_onnx(graph)
    onnx.checker.check_model(model, full_check=True)
    feeds = {"x": np.full((1, 3), -2, "f"), "s_axes": np.full(3, 5, "f")}
    for choice, want in ((True, 5), (False, 0)):
        (found,) = ort_run(model, {**feeds, "c": np.array(choice)})
        np.testing.assert_array_equal(found, np.full(3, want, "f"))


@pytest.mark.parametrize("attributes", [{}, {"axis": 2}, {"axis": -2, "inverse": 1}])
def test_the_axis_of_a_fourier_transform_stays(attributes):
    x, y, z = (Value(n, dtypes.float32, (2, 3, 5, 2)) for n in "xyz")
    transform = Operation("DFT", (x,), (y,), attributes, version=17)
    alone = float_graph(transform, inputs=[x], outputs=[y])
    newer = Operation("Gelu", (x,), (z,), version=20)
    both = float_graph(transform, newer, inputs=[x], outputs=[y, z])
    feeds = {"x": np.random.default_rng(0).normal(size=(2, 3, 5, 2)).astype("f")}
    (want,) = ort_run(tw.to_onnx(alone), feeds)
    model = tw.to_onnx(both)
    onnx.checker.check_model(model, full_check=True)
    assert model.opset_import[0].version == 20
    np.testing.assert_allclose(ort_run(model, feeds)[0], want, rtol=1e-6)


def test_no_two_nodes_have_one_name():
    """Rewrites give the parts of a node its name; ONNX Runtime refuses two of one."""
    x, y, z = (Value(n, dtypes.float32, (2,)) for n in "xyz")
    graph = float_graph(
        Operation("Neg", (x,), (y,), version=13, name="n"),
        Operation("Relu", (y,), (z,), version=14, name="n"),
        inputs=[x],
        outputs=[z],
    )
    model = tw.to_onnx(graph)
    assert [node.name for node in model.graph.node] == ["n", "n_2"]
    (found,) = ort_run(model, {"x": np.array([-1, 2], "f")})
    np.testing.assert_array_equal(found, np.array([1, 0], "f"))


ROWS = "agraph (float[rows, n] x, float[m, 2] y) => (float[rows, n] z) { z = Neg(x) }"
MADE_FOR = {
    "tilewright_ranges": '{"rows": [2, 8, 2, 2], "n": [2, null, 1, 0]}',
    "tilewright_conditions": '[[">", "rows", ["+", "m", 1]]]',
}


def made_for(**held: str):
    model = text(ROWS)
    onnx.helper.set_model_props(model, held)
    return model


def test_extents_for_which_a_model_is_made_go_there_and_back() -> None:
    graph = load(made_for(**MADE_FOR), standard=True)
    assert graph.ranges == {"rows": (2, 8, 2, 2), "n": (2, None, 1, 0)}
    assert [str(c) for c in graph.conditions] == ["rows > (m + 1)"]
    written = tw.to_onnx(graph)
    assert {p.key: p.value for p in written.metadata_props} == MADE_FOR
    again = load(written.SerializeToString(), standard=True)
    assert (again.ranges, again.conditions) == (graph.ranges, graph.conditions)
    assert not tw.to_onnx(load(text(ROWS), standard=True)).metadata_props


def test_extents_for_which_a_model_is_not_made_are_refused() -> None:
    exe = tw.compile(made_for(**MADE_FOR), threads=1, cache=False)

    def call(rows: int, m: int):
        return exe(np.ones((rows, 3), "f"), np.ones((m, 2), "f"))

    np.testing.assert_array_equal(call(4, 2), -np.ones((4, 3), "f"))
    for rows, m, message in (
        (3, 1, "rows is 3"),
        (10, 1, "rows is 10"),
        (4, 3, "made for rows >"),
    ):
        with pytest.raises(InputError, match=message):
            call(rows, m)
    with pytest.raises(InputError, match="rows is 5"):
        tw.compile(made_for(**MADE_FOR), dims={"rows": 5})


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ({"tilewright_ranges": "{"}, "Expecting"),
        ({"tilewright_ranges": "[]"}, "ranges does not say"),
        ({"tilewright_conditions": "{}"}, "conditions does not say"),
        ({"tilewright_conditions": "[" * 100_000}, "conditions does not say"),
        ({"tilewright_conditions": "[" + "1," * 600_000 + "1]"}, "it is too long"),
        ({"tilewright_ranges": '{"rows": [2, 1, 1, 0]}'}, r"'rows' is \[2, 1, 1, 0\]"),
        ({"tilewright_ranges": '{"rows": [0, 1, 1, -1]}'}, "'rows' is"),
        ({"tilewright_ranges": '{"rows": [1, 2, 0, 1]}'}, "'rows' is"),
        ({"tilewright_ranges": '{"rows": [1, 2.5, 1, 1]}'}, "'rows' is"),
        ({"tilewright_ranges": '{"rows": [true, 2, 1, 1]}'}, "'rows' is"),
        ({"tilewright_ranges": '{"rows": [1, 2, 1, 2]}'}, "'rows' is"),
        ({"tilewright_ranges": '{"rows": [1, 2, 1]}'}, "'rows' is"),
        ({"tilewright_ranges": '{"rows": 2}'}, "'rows' is 2"),
        ({"tilewright_ranges": '{"other": [1, 2, 1, 1]}'}, "no input has a dimension 'other'"),
        ({"tilewright_conditions": '[["<", "o", 2]]'}, "no input has a dimension 'o'"),
        ({"tilewright_conditions": '[["exec", "rows"]]'}, "has the function 'exec'"),
        ({"tilewright_conditions": '[["<", "rows", null]]'}, "has the part 'None'"),
    ],
)  # fmt: skip
def test_metadata_that_says_nothing_of_extents_is_refused(held, message) -> None:
    with pytest.raises(ModelError, match=message):
        load(made_for(**held))
