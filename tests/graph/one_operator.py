"""Models of one operator, run by Tilewright and by ONNX's reference implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tilewright.runtime.model import HostFallbackStep


def model_of(
    op_type: str,
    inputs: Sequence[Any],
    *,
    known: Sequence[int] = (),
    outputs: int = 1,
    opset: int = 21,
    domain: str = "",
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node. inputs: arrays, None for one left out; `known` become initializers."""
    names = ["" if a is None else f"x{n}" for n, a in enumerate(inputs)]
    results = [f"y{n}" for n in range(outputs)]
    node = helper.make_node(op_type, names, results, domain=domain, **attributes)
    given, constants = [], []
    for n, (name, a) in enumerate(zip(names, inputs, strict=True)):
        if a is None:
            continue
        if n in known:
            constants.append(numpy_helper.from_array(np.asarray(a), name))
        else:
            dtype = helper.np_dtype_to_tensor_dtype(np.asarray(a).dtype)
            given.append(helper.make_tensor_value_info(name, dtype, np.shape(a)))
    made = [onnx.ValueInfoProto(name=name) for name in results]
    graph = helper.make_graph([node], "one", given, made, constants)
    imports = [helper.make_opsetid(domain, opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def run(model: onnx.ModelProto, inputs: Sequence[Any]) -> list[Any]:
    """The results of compiled native code; a host fallback in it is a failure."""
    exe = tw.compile(model, threads=1, cache=False)
    fed = {f"x{n}": a for n, a in enumerate(inputs) if a is not None}
    given = {v.name: fed[v.name] for v in model.graph.input}
    results = exe(*given.values())
    built = exe.specialized(given) if hasattr(exe, "specialized") else exe
    host = [s.op for s in built.model.steps if isinstance(s, HostFallbackStep)]
    assert not host, f"{host} fall back to the host"
    return [results] if len(exe.outputs) == 1 else list(results)


def agree(
    op_type: str,
    inputs: Sequence[Any],
    *,
    rtol: float = 1e-5,
    atol: float = 1e-6,
    expected: Sequence[Any] | None = None,
    **options: Any,
) -> list[Any]:
    """Check native results against ONNX's reference (or `expected`); gives the former."""
    model = model_of(op_type, inputs, **options)
    found = run(model, inputs)
    if expected is None:
        feeds: Mapping[str, Any] = {
            v.name: inputs[int(v.name[1:])] for v in model.graph.input
        }
        expected = ReferenceEvaluator(model).run(None, dict(feeds))
    for a, b in zip(found, expected, strict=True):
        b = np.asarray(b)
        assert (
            a.dtype == b.dtype or a.dtype.kind == b.dtype.kind == "f"
        )  # it computes in float64
        assert a.shape == b.shape
        if (
            b.dtype.kind == "V"
        ):  # NumPy's comparison does not know the types of ml_dtypes
            a, b = a.astype(np.float64), b.astype(np.float64)
        if b.dtype.kind in "biu":
            rtol = atol = 0
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)
    return found
