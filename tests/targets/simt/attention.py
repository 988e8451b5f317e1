"""Attention over blocks of keys as GPUs are given it: groups, their arrays, and models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tilewright.base.dtypes import DType, float32
from tilewright.compute.build import cast, map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.compute.online_softmax import online_softmax
from tilewright.expr.nodes import Buffer, Call, Le, Select, const
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel

Group = tuple[Kernel, Sequence[Computation]]


def attention(
    rows: int,
    keys: int,
    block: int,
    depth: int,
    heads: int = 1,
    group: int = 1,
    causal: bool = False,
    columns: int | None = None,
    of: DType = float32,
    bias: bool = False,
) -> Group:
    """softmax(q @ k * 0.25) @ v over blocks of keys; group: heads of queries for one of keys. of:
    the dtype of operands, scores and weights. bias: added to the scores."""
    n = heads * group
    wide = columns or depth
    q, k, v, t, u, e, p, y, z32, more = (
        Buffer(name, shape, dtype)
        for name, shape, dtype in (
            ("q", (n, rows, depth), of),
            ("k", (heads, keys, depth), of),
            ("v", (heads, keys, wide), of),
            ("t", (n, rows, keys), float32),
            ("u", (n, rows, keys), of),
            ("e", (n, rows, keys), float32),
            ("p", (n, rows, keys), of),
            ("y", (n, rows, wide), of),
            ("y32", (n, rows, wide), float32),
            ("bias", (rows, keys), of),
        )
    )
    m, z = Buffer("m", (n, rows, 1), float32), Buffer("z", (n, rows, 1), float32)
    low = const(of.min if causal else 0.0, of)
    if of is float32:
        z32 = y

    def scaled(h: Any, i: Any, j: Any) -> Any:
        score = t[h, i, j] * const(0.25, float32)
        if bias:
            score = score + cast(more[i, j], float32)
        score = cast(score, of)
        return Select(Le(j, i), score, low) if causal else score

    made = [
        reduce_(
            "score",
            t,
            (depth,),
            "add",
            lambda h, i, j, d: (
                cast(q[h, i, d], float32) * cast(k[h // group, j, d], float32)
            ),
        ),
        map_("scaled", u, scaled),
        reduce_(
            "peak",
            m,
            (keys,),
            "max_number",
            lambda h, i, o, j: cast(u[h, i, j], float32),
        ),
        map_(
            "exp",
            e,
            lambda h, i, j: Call("exp", (cast(u[h, i, j], float32) - m[h, i, 0],)),
        ),
        reduce_("total", z, (keys,), "add", lambda h, i, o, j: e[h, i, j]),
        map_(
            "share",
            p,
            lambda h, i, j: cast(e[h, i, j] * (const(1.0, float32) / z[h, i, 0]), of),
        ),
        reduce_(
            "mean",
            z32,
            (keys,),
            "add",
            lambda h, i, c, j: (
                cast(p[h, i, j], float32) * cast(v[h // group, j, c], float32)
            ),
        ),
    ]
    if z32 is not y:
        made.append(map_("round", y, lambda h, i, c: cast(z32[h, i, c], of)))
    found = online_softmax(made, block, narrow=of is not float32)
    assert found is not None
    params = [q, k, v, *([more] if bias else []), y]
    return lower("attention", found, params=params, outputs=[y]), found


def model(
    rows: int,
    keys: int,
    depth: int,
    heads: int,
    group: int,
    causal: bool,
    of: int = TensorProto.FLOAT,
) -> Any:
    """The same as operators of ONNX, causal by a constant mask. of: the element type."""
    number = helper.tensor_dtype_to_np_dtype(of).type
    n = heads * group
    shapes = {
        "q": (n, rows, depth),
        "k": (heads, keys, depth),
        "v": (heads, keys, depth),
    }
    inputs = [helper.make_tensor_value_info(x, of, (1, *s)) for x, s in shapes.items()]
    fixed = {"c": number(depth**-0.5), "m": np.tril(np.ones((rows, keys), bool))}
    fixed |= {"low": number(-np.inf), "axis": np.array([2])}
    fixed |= {"repeats": np.array([1, heads, group, keys, depth])}
    fixed |= {"flat": np.array([1, n, keys, depth])}
    nodes = []
    for x in "kv":
        nodes.append(helper.make_node("Unsqueeze", [x, "axis"], [f"{x}1"]))
        nodes.append(helper.make_node("Expand", [f"{x}1", "repeats"], [f"{x}2"]))
        nodes.append(helper.make_node("Reshape", [f"{x}2", "flat"], [f"{x}3"]))
    scores = "masked" if causal else "scaled"
    nodes += [
        helper.make_node("Transpose", ["k3"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "kt"], ["s"]),
        helper.make_node("Mul", ["s", "c"], ["scaled"]),
        helper.make_node("Where", ["m", "scaled", "low"], ["masked"]),
        helper.make_node("Softmax", [scores], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v3"], ["y"]),
    ]
    out = helper.make_tensor_value_info("y", of, (1, *shapes["q"]))
    held = [numpy_helper.from_array(np.asarray(a), name) for name, a in fixed.items()]
    graph = helper.make_graph(nodes, "attention", inputs, [out], held)
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8)


def reference(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """In float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, group, 1) for x in (k, v))
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if causal:
        s = np.where(np.tril(np.ones(s.shape[-2:], bool)), s, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v
