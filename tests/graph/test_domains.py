"""An operator of another domain is never treated as ONNX's of the same name."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

import tilewright as tw
from tilewright.compute.build import map_
from tilewright.expr.nodes import Buffer
from tilewright.frontends.onnx.load import load
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph import interp
from tilewright.graph.nodes import Operation, Value
from tilewright.graph.ops import registry
from tilewright.graph.ops.registry import OpCall, OpDef, Trait
from tilewright.graph.pipeline import graph_pipeline

OWN = "test.reversed"  # its operators do what ONNX's of that name do, and negate or complement it
OPSET = 21
SOURCES = Path(tw.__file__).parent
RNG = np.random.default_rng(7)


def drawn(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


QDQ = {
    "s": np.float32(0.05), "z": np.uint8(128), "ws": np.float32(0.02), "wz": np.int8(0),
}  # fmt: skip
DQ = "r = DequantizeLinear(x, s, z) v = DequantizeLinear(w, ws, wz)"
# Models that passes rewrite: inputs and results, nodes, constants.
PATTERNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "no-ops": (
        "float[2, 3, 4] x) => (float[2, 3, 4] y",
        "a = Identity(x) b = Dropout(a) c = Cast<to = 1>(b) d = Reshape(c, shape) "
        "e = Expand(d, shape) f = Transpose<perm = [0, 1, 2]>(e) "
        "y = Relu(f)",
        {"shape": np.array([2, 3, 4])},
    ),
    "signed bytes": (
        "float[4, 8] x) => (float[4, 5] y",
        "q = QuantizeLinear(x, s, wz) m = MatMulInteger(q, w) y = Cast<to = 1>(m)",
        QDQ | {"w": np.arange(-20, 20, dtype=np.int8).reshape(8, 5)},
    ),
    "signed images": (
        "float[1, 2, 5, 5] x) => (float[1, 3, 3, 3] y",
        "q = QuantizeLinear(x, s, wz) m = ConvInteger(q, w) y = Cast<to = 1>(m)",
        QDQ | {"w": np.arange(-27, 27, dtype=np.int8).reshape(3, 2, 3, 3)},
    ),
    "ranks": (
        "float[6, 4] x) => (float[6, 4] y",
        "a = Flatten(x) b = Squeeze(a, none) c = Unsqueeze(b, none) y = Relu(c)",
        {"none": np.zeros(0, np.int64)},
    ),
    "batch norm": (
        "float[1, 3, 6, 6] x) => (float[1, 4, 6, 6] y",
        "a = Conv<pads = [1, 1, 1, 1]>(x, w) b = BatchNormalization(a, g, h, m, v) y = Relu(b)",
        {
            "w": drawn(4, 3, 3, 3), "g": drawn(4), "h": drawn(4), "m": drawn(4),
            "v": np.abs(drawn(4)) + 1,
        },
    ),
    "layer norm": (
        "float[2, 5, 33] x) => (float[2, 5, 33] y",
        "m = ReduceMean(x, last) d = Sub(x, m) q = Pow(d, two) v = ReduceMean(q, last) "
        "e = Add(v, eps) f = Sqrt(e) n = Div(d, f) ns = Mul(n, scale) y = Add(ns, bias)",
        {
            "last": np.array([-1]), "two": np.float32(2), "eps": np.float32(1e-2),
            "scale": drawn(33), "bias": drawn(33),
        },
    ),
    "layer norm of a product": (
        "float[2, 5, 33] x) => (float[2, 5, 33] y",
        "m = ReduceMean(x, last) d = Sub(x, m) q = Mul(d, d) v = ReduceMean(q, last) "
        "e = Add(v, eps) f = Sqrt(e) y = Div(d, f)",
        {"last": np.array([-1]), "eps": np.float32(1e-2)},
    ),
    "attention": (
        "float[2, 6, 4] q, float[2, 4, 6] k, float[2, 6, 4] v) => (float[2, 6, 4] y",
        "a = Div(q, root) s = MatMul(a, k) t = Mul(s, two) u = Add(t, mask) w = Tanh(u) "
        "p = Softmax<axis = -1>(w) y = MatMul(p, v)",
        {"root": np.float32(2), "two": np.float32(2), "mask": drawn(6, 6)},
    ),
    "attention with guards": (
        "float[2, 6, 4] q, float[2, 4, 6] k, float[2, 6, 4] v) => (float[2, 6, 4] y",
        "s = MatMul(q, k) a = Min(s, two) b = Max(a, low) c = Clip(b, low, two) d = Sub(c, low) "
        "e = CastLike(d, two) p = Softmax<axis = -1>(e) n = IsNaN(p) g = Where(n, low, p) "
        "y = MatMul(g, v)",
        {"two": np.float32(2), "low": np.float32(-1)},
    ),
    "bytes, convolution": (
        "uint8[1, 4, 6, 6] x) => (uint8[1, 8, 6, 6] y",
        f"{DQ} a = Conv<pads = [1, 1, 1, 1]>(r, v) b = Relu(a) y = QuantizeLinear(b, t, o)",
        {**QDQ, "w": RNG.integers(-128, 128, (8, 4, 3, 3)).astype(np.int8), "t": np.float32(0.3),
         "o": np.uint8(0)},
    ),
    "bytes, product": (
        "uint8[6, 12] x) => (uint8[6, 20] y",
        f"{DQ} a = MatMul(r, v) b = Clip(a, low) y = QuantizeLinear(b, t, o)",
        {**QDQ, "w": RNG.integers(-128, 128, (12, 20)).astype(np.int8), "t": np.float32(0.3),
         "o": np.uint8(0), "low": np.float32(0)},
    ),
    "bytes, Gemm": (
        "uint8[6, 12] x) => (float[6, 20] y",
        f"{DQ} y = Gemm<transB = 1>(r, v)",
        {**QDQ, "w": RNG.integers(-128, 128, (20, 12)).astype(np.int8)},
    ),
}  # fmt: skip
# Operators that select elements of their input, between equal quantizations.
SELECTIONS = {
    "MaxPool<kernel_shape = [2, 2]>(r)": [1, 4, 5, 5],
    "Reshape(r, shape)": [1, 4, 36],
    "Flatten(r)": [1, 144],
    "Squeeze(r, zero)": [4, 6, 6],
    "Unsqueeze(r, zero)": [1, 1, 4, 6, 6],
    "Transpose<perm = [0, 2, 3, 1]>(r)": [1, 6, 6, 4],
    "Slice(r, zero, two, two)": [1, 4, 2, 6],
    "Identity(r)": [1, 4, 6, 6],
    "Expand(r, twice)": [2, 4, 6, 6],
    "Gather<axis = 2>(r, two)": [1, 4, 1, 6],
    "DepthToSpace<blocksize = 2>(r)": [1, 1, 12, 12],
    "SpaceToDepth<blocksize = 2>(r)": [1, 16, 3, 3],
    "GlobalMaxPool(r)": [1, 4, 1, 1],
    "Tile(r, tiles)": [1, 8, 6, 6],
    "GatherElements<axis = 3>(r, columns)": [1, 4, 1, 2],
    "GatherND(r, zeros)": [6, 6],
    "ReverseSequence<batch_axis = 0, time_axis = 1>(r, lengths)": [1, 4, 6, 6],
}
for _nodes, _shape in SELECTIONS.items():
    PATTERNS[f"bytes, {_nodes.partition('(')[0].partition('<')[0]}"] = (
        f"uint8[1, 4, 6, 6] x) => (uint8{_shape} y",
        f"r = DequantizeLinear(x, s, z) a = {_nodes} y = QuantizeLinear(a, s, z)",
        {
            **QDQ, "shape": np.array([1, 4, 36]), "zero": np.array([0]), "two": np.array([2]),
            "twice": np.array([2, 4, 6, 6]), "tiles": np.array([1, 2, 1, 1]),
            "columns": np.arange(8).reshape(1, 4, 1, 2) % 6, "zeros": np.array([0, 0]),
            "lengths": np.array([3]),
        },
    )  # fmt: skip
# Operators on feature maps, between two convolutions that decide how those are stored.
SPATIAL = {
    "ConvTranspose(a, square)": 4,
    "MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(a)": 4,
    "AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(a)": 4,
    "LpPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(a)": 4,
    "GlobalAveragePool(a)": 4,
    "GlobalMaxPool(a)": 4,
    "InstanceNormalization(a, ones, ones)": 4,
    "LRN<size = 3>(a)": 4,
    "Resize(a, , scales)": 4,
    "DepthToSpace<blocksize = 2>(a)": 1,
    "SpaceToDepth<blocksize = 2>(a)": 16,
}
PATTERNS["bytes, Concat"] = (
    "uint8[2, 4] x, uint8[2, 4] x2) => (uint8[2, 8] y",
    "r = DequantizeLinear(x, s, z) r2 = DequantizeLinear(x2, s, z) "
    "a = Concat<axis = 1>(r, r2) y = QuantizeLinear(a, s, z)",
    {"s": np.float32(0.25), "z": np.uint8(7)},
)
PATTERNS["root mean square"] = (
    "float[2, 8] x) => (float[2, 8] y",
    "q = Mul(x, x) m = ReduceMean<keepdims = 1>(q, last) e = Add(m, eps) r = Sqrt(e) "
    "i = Reciprocal(r) y = Mul(x, i)",
    {"last": np.array([-1]), "eps": np.float32(1e-3)},
)
PATTERNS["products that mixed precision refuses"] = (
    "float[1, 2, 5, 5] x, float[1, 8, 4, 4] o) => (float[1, 3, 4, 4] y",
    "a = DeformConv<kernel_shape = [2, 2]>(x, w, o) "
    'y = Einsum<equation = "nchw,cd->ndhw">(a, e)',
    {"w": drawn(3, 2, 2, 2), "e": drawn(3, 3)},
)
for _nodes, _channels in SPATIAL.items():
    PATTERNS[f"between convolutions, {_nodes.partition('(')[0].partition('<')[0]}"] = (
        "float[1, 4, 6, 6] x) => (float[a, b, c, d] y",
        f"a = Conv<pads = [1, 1, 1, 1]>(x, w) b = {_nodes} "
        "y = Conv(b, out)",
        {
            "w": drawn(4, 4, 3, 3), "out": drawn(4, _channels, 1, 1), "square": drawn(4, 4, 1, 1),
            "ones": np.ones(4, np.float32), "scales": np.array([1, 1, 2, 2], np.float32),
        },
    )  # fmt: skip


def model_of(name: str) -> Any:
    signature, nodes, constants = PATTERNS[name]
    opsets = f'["" : {OPSET}, "{OWN}" : {OPSET}]'
    model = onnx.parser.parse_model(
        f"<ir_version: 10, opset_import: {opsets}> f ({signature}) {{ {nodes} }}"
    )
    arrays = (numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items())
    model.graph.initializer.extend(arrays)
    return model


FORMULAS = {"patterns.py", "axioms.py"}
# What passes make.
MADE = {"LayerNormalization", "RMSNormalization"}
MAPS = {"ConvTranspose", "Resize"}  # those without Computations of their own

CASES = [(p, n) for p in PATTERNS for n, _ in enumerate(model_of(p).graph.node)]
NAMES = sorted({node.op_type for p in PATTERNS for node in model_of(p).graph.node})


def turned(value: Any) -> Any:
    """What the own operators make of a result: nothing that a rewrite could pass by."""
    if value.dtype == np.bool_:
        return ~value
    return (255 - value if value.dtype == np.uint8 else -value).astype(value.dtype)


def own(name: str) -> OpDef:
    """ONNX's operator of that name with its result reversed, as a custom operator.

    Those in MAPS return their first input reversed.
    """
    if name in MAPS:
        return OpDef(
            name,
            lambda call: [(call.dtype(0), call.shape(0))],
            OWN,
            compute=lambda call, inputs, outputs: [
                map_("turned", outputs[0], lambda *i: -inputs[0][i])
            ],
            reference=lambda call, x, *rest: [-x],
        )

    def plain(call: OpCall) -> tuple[OpDef, OpCall]:
        op = call.operation
        attributes = {**op.attributes}
        standard = Operation(
            name, op.inputs, op.outputs, attributes, "", op.version, op.name
        )
        definition = registry.definition_of(standard)
        assert definition is not None
        return definition, OpCall(standard, call.known)

    def infer(call: OpCall) -> Sequence[Any]:
        definition, inner = plain(call)
        return definition.infer(inner)

    def reference(call: OpCall, *arrays: Any) -> list[Any]:
        values = [v for v in call.operation.inputs if v is not None]
        known = {v: np.asarray(a) for v, a in zip(values, arrays, strict=False)}
        inner = plain(OpCall(call.operation, known))[1]
        found = interp.run_on(inner.operation, arrays, None)
        return [turned(np.asarray(a)) for a in found]

    def compute(call: OpCall, inputs: Any, outputs: Any) -> Any:
        definition, inner = plain(call)
        out = outputs[0]
        first = Buffer(f"{out.name}_plain", out.shape, out.dtype)
        assert definition.compute is not None
        program = definition.compute(inner, inputs, [first, *outputs[1:]])
        assert program is not None, name

        def value(*i: Any) -> Any:
            if out.dtype.name == "bool":
                return ~first[i]
            return 255 - first[i] if out.dtype.name == "uint8" else -first[i]

        return [*program, map_("turned", out, value)]

    return OpDef(name, infer, OWN, compute=compute, reference=reference)


@pytest.fixture(scope="module", autouse=True)
def definitions() -> Iterator[None]:
    for name in NAMES:
        registry.register(own(name))
    yield
    for name in NAMES:
        del registry._definitions[OWN, name]


@pytest.mark.sampled(17)
@pytest.mark.parametrize(("pattern", "n"), CASES)
def test_an_own_operator_in_a_pattern_keeps_its_meaning(pattern: str, n: int) -> None:
    model = model_of(pattern)
    model.graph.node[n].domain = OWN
    graph = load(model)
    feeds = {v.name: _fed(v) for v in graph.inputs}
    (expected,) = interp.evaluate(graph, feeds).values()
    passed = graph_pipeline("default", OnnxFallback(), byte_products=True).run(graph)
    (found,) = interp.evaluate(passed, feeds).values()
    _compare(found, expected)
    found = tw.compile(model, threads=1, mcpu="x86-64-v3")(*feeds.values())
    _compare(found, expected)


def _compare(found: Any, expected: Any) -> None:
    if expected.dtype == np.uint8:
        assert (
            np.abs(found.astype(int) - expected.astype(int)).max() <= 1
        )  # one rounding
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def _fed(v: Value) -> Any:
    random = np.random.default_rng(3)
    if v.dtype is not None and v.dtype.name == "uint8":
        return random.integers(0, 256, v.extents).astype(np.uint8)
    return random.standard_normal(v.extents).astype(np.float32)


def test_every_operator_that_a_pass_looks_for_is_in_a_pattern() -> None:
    """Whoever teaches a pass another operator adds it to the patterns above."""
    folders = [SOURCES / "graph" / "passes", SOURCES / "graph" / "rules"]
    # What a formula is written with is not an operator that is looked for.
    files = [
        f for folder in folders for f in folder.glob("*.py") if f.name not in FORMULAS
    ]
    sought = {word for f in files for word in _sought(ast.parse(f.read_text()))}
    known = {d.op_type for d in registry.registered() if not d.domain}
    asked = Trait.MOVES_DATA | Trait.SELECTS | Trait.JOINS
    sought |= {d.op_type for d in registry.registered() if d.traits & asked} - {"Split"}
    assert sorted(sought & known - {*NAMES} - MADE) == []
    assert {"Identity", "Conv", "BatchNormalization", "Softmax", "ReduceMean"} <= sought


def _sought(tree: ast.AST) -> Iterator[str]:
    """Words in texts of a file, but for the names of operators that it makes."""
    made = {
        id(call.args[0])
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and call.args
        if getattr(call.func, "attr", getattr(call.func, "id", ""))
        in ("op", "ops", "Operation")
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "onnx":
            yield node.attr
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in made
        ):
            yield from node.value.split() if "\n" not in node.value else ()


def test_nothing_asks_for_the_bare_name_of_an_operator() -> None:
    """`op.op_type` is for copies and texts: comparing it or looking it up ignores the domain."""
    found = []
    for path in SOURCES.rglob("*.py"):
        source = path.read_text()
        if "op_type" in source:
            lines = _bare(ast.parse(source))
            found += [f"{path.relative_to(SOURCES)}:{n}" for n in lines]
    assert found == []


def _bare(tree: ast.AST) -> Iterator[int]:
    """Lines where `.op_type` is compared, looked up, kept under a name or asked for its text."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare():
                parts = [node.left, *node.comparators]
            case ast.Subscript(slice=part) | ast.Match(subject=part):
                parts = [part]
            case (
                ast.Assign(value=part)
                | ast.AnnAssign(value=part)
                | ast.NamedExpr(value=part)
            ):
                parts = [part]
            case (
                ast.comprehension(iter=part)
                | ast.SetComp(elt=part)
                | ast.DictComp(key=part)
            ):
                parts = [part]
            case ast.Call(
                func=ast.Attribute(attr="get" | "setdefault" | "pop"), args=[part, *_]
            ):
                parts = [part]
            case ast.Call(
                func=ast.Attribute(attr="count" | "index" | "fromkeys"), args=[part, *_]
            ):
                parts = [part]
            case ast.Call(
                func=ast.Attribute(attr="startswith" | "endswith", value=part)
            ):
                parts = [part]
            case _:
                continue
        for part in parts:
            if isinstance(part, ast.Attribute) and part.attr == "op_type":
                yield part.lineno


@pytest.mark.parametrize(
    "line",
    [
        'op.op_type == "Conv"',
        'op.op_type in ("Conv", "Gemm")',
        'if "Conv" != made.op_type: pass',
        "rules.get(op.op_type)",
        "rules[op.op_type]",
        "kind = op.op_type",
        "{op.op_type for op in graph.operations}",
        'op.op_type.startswith("Reduce")',
        "match op.op_type:\n    case _: pass",
    ],
)
def test_the_bare_name_is_found(line: str) -> None:
    assert [*_bare(ast.parse(line))] == [1]
