"""Attention over blocks of keys as GPUs are given it: groups, their arrays, and models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tilewright.base.dtypes import float32
from tilewright.compute.build import map_, reduce_
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
) -> Group:
    """softmax(q @ k * 0.25) @ v over blocks of keys; group: heads of queries for one of keys."""
    n = heads * group
    wide = columns or depth
    q, k, v, t, u, e, p, y = (
        Buffer(name, shape, float32)
        for name, shape in (
            ("q", (n, rows, depth)),
            ("k", (heads, keys, depth)),
            ("v", (heads, keys, wide)),
            ("t", (n, rows, keys)),
            ("u", (n, rows, keys)),
            ("e", (n, rows, keys)),
            ("p", (n, rows, keys)),
            ("y", (n, rows, wide)),
        )
    )
    m, z = Buffer("m", (n, rows, 1), float32), Buffer("z", (n, rows, 1), float32)
    low = const(float32.min if causal else 0.0, float32)

    def scaled(h: Any, i: Any, j: Any) -> Any:
        score = t[h, i, j] * const(0.25, float32)
        return Select(Le(j, i), score, low) if causal else score

    made = [
        reduce_(
            "score",
            t,
            (depth,),
            "add",
            lambda h, i, j, d: q[h, i, d] * k[h // group, j, d],
        ),
        map_("scaled", u, scaled),
        reduce_("peak", m, (keys,), "max_number", lambda h, i, o, j: u[h, i, j]),
        map_("exp", e, lambda h, i, j: Call("exp", (u[h, i, j] - m[h, i, 0],))),
        reduce_("total", z, (keys,), "add", lambda h, i, o, j: e[h, i, j]),
        map_(
            "share", p, lambda h, i, j: e[h, i, j] * (const(1.0, float32) / z[h, i, 0])
        ),
        reduce_(
            "mean",
            y,
            (keys,),
            "add",
            lambda h, i, c, j: p[h, i, j] * v[h // group, j, c],
        ),
    ]
    found = online_softmax(made, block)
    assert found is not None
    return lower("attention", found, params=[q, k, v, y], outputs=[y]), found


def model(
    rows: int, keys: int, depth: int, heads: int, group: int, causal: bool
) -> Any:
    """The same as operators of ONNX, causal by a constant mask."""
    n = heads * group
    shapes = {
        "q": (n, rows, depth),
        "k": (heads, keys, depth),
        "v": (heads, keys, depth),
    }
    inputs = [
        helper.make_tensor_value_info(x, TensorProto.FLOAT, (1, *s))
        for x, s in shapes.items()
    ]
    fixed = {"c": np.float32(depth**-0.5), "m": np.tril(np.ones((rows, keys), bool))}
    fixed |= {"low": np.float32(-np.inf), "axis": np.array([2])}
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
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, *shapes["q"]))
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
