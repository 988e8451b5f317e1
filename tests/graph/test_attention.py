"""Attention written out becomes one operation and one kernel; what only looks like it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import parser

import tilewright as tw
from tilewright.base import events
from tilewright.driver import text
from tilewright.driver.planning import make_plan
from tilewright.frontends.onnx.load import load
from tilewright.graph.interp import evaluate
from tilewright.graph.pipeline import graph_pipeline
from tilewright.targets.registry import target

ROWS, KEYS, SIZE = 10, 37, 16
Q, K, V = (
    f"float[2,3,{n},{SIZE}] {name}"
    for name, n in (("q", ROWS), ("k", KEYS), ("v", KEYS))
)
ENDS = f"({Q}, {K}, {V}) => (float[2,3,{ROWS},{SIZE}] y)"
CONSTANTS = "c = Constant<value_float=4.0>() d = Constant<value_float=2.0>() "
TURN = "kt = Transpose<perm=[0,1,3,2]>(k) "
TAIL = "p = Softmax<axis=-1>(s) y = MatMul(p, v)"

# What stands between, by name: the inputs and the text of the graph.
FOUND = {
    "plain": f"{ENDS} {{ {TURN} s = MatMul(q, kt) {TAIL} }}",
    "divided": f"{ENDS} {{ {CONSTANTS} {TURN} t = MatMul(q, kt) s = Div(t, c) {TAIL} }}",
    "scaled q": f"{ENDS} {{ {CONSTANTS} {TURN} r = Div(q, c) s = MatMul(r, kt) {TAIL} }}",
    "scaled both": f"{ENDS} {{ {CONSTANTS} {TURN} a = Div(q, d) b = Div(kt, d) "
    f"s = MatMul(a, b) {TAIL} }}",
    "added mask": f"({Q}, {K}, {V}, float[2,1,1,{KEYS}] m) => (float[2,3,{ROWS},{SIZE}] y) "
    f"{{ {CONSTANTS} {TURN} t = MatMul(q, kt) u = Div(t, c) s = Add(m, u) {TAIL} }}",
    "chosen mask": f"({Q}, {K}, {V}, bool[{ROWS},{KEYS}] m) => (float[2,3,{ROWS},{SIZE}] y) "
    f"{{ {CONSTANTS} {TURN} t = MatMul(q, kt) low = Constant<value_float=-1e9>() "
    f"u = Mul(t, c) s = Where(m, u, low) {TAIL} }}",
    "capped": f"{ENDS} {{ {CONSTANTS} {TURN} t = MatMul(q, kt) u = Div(t, c) w = Tanh(u) "
    f"s = Mul(w, c) {TAIL} }}",
    "guarded": f"({Q}, {K}, {V}, float[{ROWS},{KEYS}] m) => (float[2,3,{ROWS},{SIZE}] y) "
    f"{{ {CONSTANTS} {TURN} zero = Constant<value_float=0.0>() t = MatMul(q, kt) s = Add(t, m) "
    "p = Softmax<axis=-1>(s) n = IsNaN(p) o = Where(n, zero, p) y = MatMul(o, v) }",
    "any step of one element": f"{ENDS} {{ {CONSTANTS} {TURN} t = MatMul(q, kt) u = Erf(t) "
    "w = Softplus(u) s = Pow(w, d) p = Softmax<axis=-1>(s) o = Sqrt(p) y = MatMul(o, v) }",
    "three axes": f"(float[6,{ROWS},{SIZE}] q, float[6,{KEYS},{SIZE}] k, float[6,{KEYS},{SIZE}] v)"
    f" => (float[6,{ROWS},{SIZE}] y) {{ kt = Transpose<perm=[0,2,1]>(k) "
    f"s = MatMul(q, kt) {TAIL} }}",
    "heads behind": f"(float[2,{ROWS},3,{SIZE}] q, float[2,{KEYS},3,{SIZE}] k, "
    f"float[2,{KEYS},3,{SIZE}] v) => (float[2,{ROWS},3,{SIZE}] y) {{ {CONSTANTS} "
    "qh = Transpose<perm=[0,2,1,3]>(q) kh = Transpose<perm=[0,2,3,1]>(k) "
    "vh = Transpose<perm=[0,2,1,3]>(v) t = MatMul(qh, kh) s = Div(t, c) "
    "p = Softmax<axis=-1>(s) o = MatMul(p, vh) y = Transpose<perm=[0,2,1,3]>(o) }",
    "one head of keys": f"({Q}, float[2,1,{SIZE},{KEYS}] k, float[2,1,{KEYS},{SIZE}] v) => "
    f"(float[2,3,{ROWS},{SIZE}] y) {{ s = MatMul(q, k) {TAIL} }}",
}

NOT_FOUND = {
    "wrong axis": f"{ENDS} {{ {TURN} s = MatMul(q, kt) p = Softmax<axis=-2>(s) y = MatMul(p, v) }}",
    "scores are read": f"({Q}, {K}, {V}) => "
    f"(float[2,3,{ROWS},{SIZE}] y, float[2,3,{ROWS},{KEYS}] z) "
    f"{{ {TURN} s = MatMul(q, kt) z = Neg(s) {TAIL} }}",
    "scores are a result": f"({Q}, {K}, {V}) => "
    f"(float[2,3,{ROWS},{SIZE}] y, float[2,3,{ROWS},{KEYS}] p) "
    f"{{ {TURN} s = MatMul(q, kt) {TAIL} }}",
    "probabilities on the right": f"(float[3,{ROWS},{SIZE}] q, float[3,{SIZE},{KEYS}] k, "
    f"float[3,5,{ROWS}] v) => (float[3,5,{KEYS}] y) "
    "{ s = MatMul(q, k) p = Softmax<axis=-1>(s) y = MatMul(v, p) }",
    "two products": f"({Q}, {K}, {V}) => (float[2,3,{ROWS},{SIZE}] y, float[2,3,{ROWS},{SIZE}] z)"
    f" {{ {TURN} s = MatMul(q, kt) p = Softmax<axis=-1>(s) y = MatMul(p, v) w = Neg(v) "
    "z = MatMul(p, w) }",
    "no first product": f"(float[2,3,{ROWS},{KEYS}] s, {V}) => (float[2,3,{ROWS},{SIZE}] y) "
    f"{{ {TAIL} }}",
}


def bytes_of(body: str) -> bytes:
    header = '<ir_version: 9, opset_import: ["" : 21]> g '
    found: bytes = parser.parse_model(header + body).SerializeToString()
    return found


def inputs_of(graph: Any, seed: int = 1) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    arrays = {}
    for v in graph.inputs:
        noise = rng.standard_normal(v.extents).astype(np.float32)
        arrays[v.name] = noise > 0 if v.dtype.name == "bool" else noise
    return arrays


def agree(
    body: str, change: Callable[[dict[str, Any]], None] | None = None
) -> list[Any]:
    """Compiles, compares with the float64 reference of the graph as written; the events."""
    model = bytes_of(body)
    graph = load(model)
    arrays = inputs_of(graph)
    if change is not None:
        change(arrays)
    with events.record() as log:
        exe = tw.compile(model, threads=1, cache=False, fallback="error")
    got = exe(**arrays)
    with np.errstate(invalid="ignore"):
        want = evaluate(graph, arrays, float64=True)
    results = got if isinstance(got, tuple | list) else [got]
    for a, v in zip(results, graph.outputs, strict=True):
        np.testing.assert_allclose(a, want[v.name], rtol=2e-5, atol=2e-5)
    assert not [e for e in log if e.kind == "sketch-refused"]
    return fired(log)


def fired(log: list[events.Event]) -> list[Any]:
    """The rules that made an idiom of a graph."""
    rules = [
        e.fields["rule"] for e in log if e.kind == "rule" and e.fields["set"] == "graph"
    ]
    return [name for name in rules if name == "attention"]


def kernels_of(body: str) -> list[list[str]]:
    plan = make_plan(
        graph_pipeline("default", None).run(load(bytes_of(body))), target("cpu")
    )
    return [[c.name for c in s.computations] for s in plan.groups]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", FOUND)
def test_written_out_attention_is_one_operation(name: str) -> None:
    assert agree(FOUND[name]) == ["attention"]


@pytest.mark.parametrize("name", FOUND)
def test_it_is_one_kernel(name: str) -> None:
    assert len(kernels_of(FOUND[name])) == 1


# As ONNX writes out its own operator: rows that the mask hides altogether are zeros.
ROWS_MASKED = (
    f"({Q}, {K}, {V}, float[{ROWS},{KEYS}] m) => (float[2,3,{ROWS},{SIZE}] y) "
    f"{{ {CONSTANTS} {TURN} nought = Constant<value_floats=[0.0]>() hidden = Log(nought) "
    "t = MatMul(q, kt) s = Add(t, m) p = Softmax<axis=-1>(s) "
    "last = Constant<value_ints=[-1]>() most = ReduceMax(m, last) low = CastLike(hidden, m) "
    "none = Equal(most, low) zero = CastLike(nought, p) o = Where(none, zero, p) "
    "y = MatMul(o, v) }"
)


def test_rows_that_a_mask_hides_are_zeros_in_the_operation() -> None:
    def hide(arrays: dict[str, Any]) -> None:
        arrays["m"][2] = -np.inf
        arrays["m"][3, ::2] = -np.inf

    assert agree(ROWS_MASKED, hide) == ["attention"]
    assert len(kernels_of(ROWS_MASKED)) == 2  # the rows, and attention


def test_a_cast_to_another_type_stays() -> None:
    body = "(float[3] x, float16[1] h, float[1] f) => (float16[3] y, float[3] z) "
    graph = load(
        bytes_of(body + "{ y = CastLike(x, h) v = CastLike(x, f) z = Neg(v) }")
    )
    names = [op.op_type for op in graph_pipeline("exact", None).run(graph).operations]
    assert names == ["CastLike", "Neg"]


@pytest.mark.parametrize("name", NOT_FOUND)
def test_what_only_looks_like_it_stays(name: str) -> None:
    assert agree(NOT_FOUND[name]) == []


def test_scales_of_the_operands_become_one_factor_of_the_scores() -> None:
    graph = graph_pipeline("default", None).run(load(bytes_of(FOUND["scaled both"])))
    (op,) = (op for op in graph.operations if op.domain == "tilewright")
    kinds = [o.op_type for o in op.attributes["body"].operations]
    assert kinds == ["MatMul", "Mul", "Softmax", "MatMul"]
    assert [float(graph.constants[v]) for v in op.reads if v in graph.constants] == [
        0.25
    ]


def test_a_scale_that_others_read_is_still_computed() -> None:
    body = (
        f"({Q}, {K}, {V}) => (float[2,3,{ROWS},{SIZE}] y, float[2,3,{ROWS},{SIZE}] r) "
    )
    inner = f"{{ {CONSTANTS} {TURN} r = Div(q, c) s = MatMul(r, kt) {TAIL} }}"
    assert agree(body + inner) == ["attention"]


def test_exact_mathematics_keeps_what_is_written() -> None:
    with events.record() as log:
        tw.compile(bytes_of(FOUND["divided"]), cache=False, math="exact")
    assert not fired(log)


def test_it_prints_with_its_body(golden: Any) -> None:
    golden("attention_graph", text(bytes_of(FOUND["added mask"]), "graph"))


def test_its_kernel(golden: Any) -> None:
    golden(
        "attention_kernel",
        text(bytes_of(FOUND["added mask"]), "kernel", mcpu="x86-64-v3"),
    )


def test_fully_masked_rows_are_nan_unless_guarded() -> None:
    def mask(arrays: dict[str, Any]) -> None:
        arrays["m"][..., 4, :] = -np.inf
        arrays["m"][..., 5, 1:] = -np.inf

    agree(FOUND["guarded"], mask)
    unguarded = FOUND["guarded"].replace("Where(n, zero, p)", "Where(n, p, p)")
    agree(unguarded, mask)


def test_infinite_and_nan_operands_reach_only_their_rows() -> None:
    def spoil(arrays: dict[str, Any]) -> None:
        arrays["q"][0, 0, 3, 0] = np.nan
        arrays["q"][1, 2, 4, 5] = np.inf

    agree(FOUND["divided"], spoil)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "rows,keys", [(1, 37), (5, 64), (37, 1), (197, 33), (130, 130)]
)
def test_shapes(rows: int, keys: int) -> None:
    body = (
        FOUND["added mask"]
        .replace(f",{KEYS}", f",{keys}")
        .replace(f",{ROWS},", f",{rows},")
    )
    assert agree(body) == ["attention"]


def test_rows_too_long_for_the_cache_are_one_kernel_over_blocks_of_keys() -> None:
    body = "(float[64,8] q, float[8,200000] k, float[200000,8] v) => (float[64,8] y) { "
    (names,) = kernels_of(body + "s = MatMul(q, k) " + TAIL + " }")
    assert names[-2:] == ["matmul_online", "matmul_result"]


def test_one_query_is_not_one_kernel() -> None:
    body = FOUND["plain"].replace(f",{ROWS},", ",1,")
    is_profitable = target("cpu").is_profitable
    plan = make_plan(
        graph_pipeline("default", None).run(load(bytes_of(body))), target("cpu")
    )
    assert all(is_profitable(s.computations) for s in plan.groups)
    assert len(plan.groups) == 3


def test_float16() -> None:
    model = bytes_of(
        FOUND["added mask"]
        .replace("float[", "float16[")
        .replace(CONSTANTS, "e = Constant<value_float=4.0>() c = Cast<to=10>(e) ")
    )
    graph = load(model)
    arrays = {k: a.astype(np.float16) for k, a in inputs_of(graph).items()}
    exe = tw.compile(model, threads=1, cache=False, fallback="error")
    assert len(exe.model.kernels) == 1
    want = evaluate(graph, arrays)["y"]
    np.testing.assert_allclose(
        exe(**arrays).astype(float), want.astype(float), atol=4e-3
    )


def test_the_operation_runs_in_the_interpreter() -> None:
    graph = load(bytes_of(FOUND["added mask"]))
    arrays = inputs_of(graph)
    one = graph_pipeline("default", None).run(graph, check=True)
    assert any(op.domain == "tilewright" for op in one.operations)
    want = evaluate(graph, arrays, float64=True)["y"]
    np.testing.assert_allclose(
        evaluate(one, arrays, float64=True)["y"], want, 1e-12, 1e-12
    )


@pytest.mark.parametrize("masked", [True, False], ids=["masked", "causal"])
def test_torch_exports_it_as_one_kernel(masked: bool) -> None:
    torch = pytest.importorskip("torch")

    class Attention(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
            sdpa = torch.nn.functional.scaled_dot_product_attention
            if masked:
                return sdpa(q, k, v, attn_mask=mask)
            return sdpa(q, k, v, is_causal=True) + mask[0, 0]

    torch.manual_seed(3)
    tensors = [torch.randn(2, 4, ROWS, SIZE) for _ in range(3)]
    tensors.append(torch.randn(ROWS, ROWS) + 0.5)
    if masked:
        tensors[-1][2] = -torch.inf  # PyTorch gives 0 for a query that sees no key
    exe = tw.compile(Attention().eval(), tuple(tensors), cache=False, fallback="error")
    with torch.no_grad():
        want = Attention()(*tensors).numpy()
    np.testing.assert_allclose(
        exe(*(t.numpy() for t in tensors)), want, rtol=2e-5, atol=2e-5
    )
    products = 2 * 2 * 2 * 4 * ROWS * ROWS * SIZE
    assert sum(k.flops > products for k in exe.model.kernels) == 1
    # Where an added mask hides a key is a kernel of its own.
    assert len(exe.model.kernels) == 1 + masked


@pytest.mark.covering(1)  # each mode of arithmetic, both readers
@pytest.mark.parametrize("math", ["exact", "default", "fast"])
@pytest.mark.parametrize(
    "behind", ["Conv<group = 4, pads = [1, 1]>(r, w)", "Conv<pads = [1, 1]>(r, u)"]
)
def test_attention_into_the_border_of_a_convolution(behind: str, math: Any) -> None:
    """Its second product is written inside of the halo that the convolution reads."""
    source = (
        "f (float[2,1,4,2] q, float[2,1,2,4] k, float[2,1,4,2] v, float[4,1,3] w, float[4,4,3] u) "
        "=> (float[2,4,2] y) <int64[3] n = {2,4,-1}> { s = MatMul(q, k) p = Softmax<axis=-1>(s) "
        f"a = MatMul(p, v) t = Transpose<perm=[0,2,1,3]>(a) r = Reshape(t, n) y = {behind} }}"
    )
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 15]> {source}')
    rng = np.random.default_rng(1)
    feeds = {
        v.name: rng.standard_normal(v.extents).astype(np.float32)
        for v in load(model).inputs
    }
    (expected,) = evaluate(load(model), feeds).values()
    found = tw.compile(model, math=math, threads=1)(feeds)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
