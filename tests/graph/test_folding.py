"""What is computed at compile time is what its operator was typed as, or it is not taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

from tilewright.base.dtypes import dtype_of
from tilewright.compute.build import map_
from tilewright.frontends.onnx import load
from tilewright.graph.folding import as_typed
from tilewright.graph.interp import evaluate
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops import registry
from tilewright.graph.ops.registry import OpDef, register, registered
from tilewright.graph.passes.simplify import fold_constants

W = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(autouse=True)
def own_definitions() -> Iterator[None]:
    registered()
    before = {k: list(v) for k, v in registry._definitions.items()}
    yield
    registry._definitions.clear()
    registry._definitions.update(before)


def own(**how: Any) -> None:
    """`com.acme::Twice`, which makes 2x of x."""
    register(
        OpDef(
            "Twice",
            lambda call: [(call.dtype(0), call.shape(0))],
            domain="com.acme",
            compute=lambda call, inputs, outputs: [
                map_("twice", outputs[0], lambda *i: inputs[0][i] + inputs[0][i])
            ],
            **how,
        )
    )


def graph_of(weights: Any) -> Graph:
    rows, columns = weights.shape
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18, "com.acme": 1]>
        g (float[{rows}, {columns}] x) => (float[{rows}, {columns}] y)
        {{ t = com.acme.Twice(w) y = Add(x, t) }}"""
    )
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return load(model)


GIVES: dict[str, tuple[Callable[[Any], list[Any]], bool]] = {
    "what it says": (lambda x: [x + x], True),
    "more than it says": (lambda x: [x + x, x], True),
    "another dtype": (lambda x: [(x + x).astype(np.float64)], False),
    "another shape": (lambda x: [(x + x)[:1]], False),
    "another rank": (lambda x: [(x + x)[..., None]], False),
    "no array": (lambda x: [(x + x).tolist()], False),
    "nothing": (lambda x: [], False),
}


@pytest.mark.parametrize("size", [1, 50])  # folded where it is typed, and by the pass
@pytest.mark.parametrize("name", GIVES)
def test_a_reference_that_gives(name: str, size: int) -> None:
    gives, folds = GIVES[name]
    own(reference=lambda call, x: gives(x))
    weights = np.tile(W, (size, size))
    graph = fold_constants(graph_of(weights))
    assert ("Twice" not in [op.op_type for op in graph.operations]) == folds
    if folds:
        found = evaluate(graph, {"x": weights})["y"]
        np.testing.assert_array_equal(found, 3 * weights)


@pytest.mark.parametrize("name", GIVES)
def test_a_value_by_type_that_is(name: str) -> None:
    gives, folds = GIVES[name]
    own(static_value=lambda call: gives(W))
    graph = graph_of(W)
    assert ("Twice" not in [op.op_type for op in graph.operations]) == folds


def test_scalars_and_shapes_known_in_part() -> None:
    def typed(*shape: Any, kind: str = "tensor") -> Operation:
        dtype = dtype_of("float32") if kind else None
        return Operation(
            "Own", (), (None, Value("y", dtype, shape, kind or "tensor"), None)
        )

    found = as_typed(typed(), [None, np.float32(3)])
    assert found is not None and [type(a) for a in found[:2]] == [
        type(None),
        np.ndarray,
    ]
    assert as_typed(typed("N", 3), [None, W]) is not None
    assert as_typed(typed(None, 2), [None, W]) is None
    assert as_typed(typed(2, 3, kind="sequence"), [None, W]) is None
    assert as_typed(typed(2, 3, kind=""), [None, W]) is None
    unknown = Operation("Own", (), (Value("y", dtype_of("float32"), None),))
    assert as_typed(unknown, [W]) is not None
