"""Every operator has the traits that its definition gives, and a wrong one is noticed."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tilewright.base.dtypes import float32
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops import registry
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import OpDef, Trait, has_trait
from tilewright.testing.traits import OperatorUse, wrong_traits

RNG = np.random.default_rng(5)


def real(*shape: int) -> Any:
    """Numbers in (0, 1), where every function of one number is defined."""
    return RNG.uniform(0.1, 0.9, shape).astype(np.float32)


def signed(*shape: int) -> Any:
    return (4 * RNG.standard_normal(shape)).astype(np.float32)


def whole(*shape: int) -> Any:
    return RNG.integers(-9, 9, shape).astype(np.int32)


def truth(*shape: int) -> Any:
    return RNG.integers(0, 2, shape).astype(bool)


def longs(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


BIT = np.uint8(3)
LOGIC = ("And", "Or", "Xor")
BITS = ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
TWO = "Add Sub Mul Div Max Min Sum Mean Equal Less LessOrEqual Greater GreaterOrEqual PRelu".split()


def attended(*shapes: tuple[int, ...]) -> Graph:
    """Attention's body, softmax(q k) v, for operands of these shapes."""
    q, k, v = (Value(n, float32, s) for n, s in zip("qkv", shapes, strict=True))
    f = Fragment("body", {})
    weights = f.op("Softmax", f.op("MatMul", q, k), axis=-1)
    return Graph("body", (q, k, v), (f.op("MatMul", weights, v),), tuple(f.operations))


# Operands and attributes to try an operator on; those of one operand that are not here get numbers
# of both signs where they are defined.
USES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    **{name: ((signed(2, 3, 4), signed(3, 1)), {}) for name in TWO},
    **{name: ((truth(2, 3), truth(3)), {}) for name in LOGIC},
    **{name: ((whole(2, 3), whole(3)), {}) for name in BITS},
    "Attention": ((signed(2, 5, 3), signed(2, 3, 6), signed(2, 6, 4)),
                  {"body": attended((2, 5, 3), (2, 3, 6), (2, 6, 4))}),
    "Acosh": ((1 + real(5),), {}),
    "BatchNormalization": ((signed(2, 3, 4, 5), *(real(3) for _ in range(4))), {}),
    "Bernoulli": ((real(50),), {}),
    "BitCast": ((signed(2, 3),), {"to": 6}),
    "BitShift": ((np.array([1, 8], np.uint8), BIT), {"direction": "LEFT"}),
    "BitwiseNot": ((whole(4),), {}),
    "Cast": ((signed(2, 3),), {"to": 6}),
    "CastLike": ((signed(2, 3), np.int32(1)), {}),
    "Concat": ((signed(2, 3), signed(2, 1)), {"axis": 1}),
    "Clip": ((signed(2, 3), np.float32(-1), np.float32(2)), {}),
    "Conv": ((signed(2, 3, 4, 5), signed(2, 3, 3, 3)), {}),
    "ConvInteger": (
        (RNG.integers(0, 9, (2, 3, 4, 5)).astype(np.uint8), np.ones((2, 3, 3, 3), np.int8)), {},
    ),
    "ConvTranspose": ((signed(2, 3, 4, 5), signed(3, 2, 3, 3)), {}),
    "DepthToSpace": ((signed(2, 4, 3, 3),), {"blocksize": 2}),
    "DequantizeLinear": ((np.arange(9, dtype=np.uint8), np.float32(0.5), np.uint8(3)), {}),
    "Dropout": ((real(50), np.float32(0.5), np.array(True)), {}),
    "Einsum": ((signed(2, 3), signed(3, 4)), {"equation": "ij,jk->ik"}),
    "Expand": ((signed(3, 1), longs(2, 3, 4)), {}),
    "Flatten": ((signed(2, 3, 4),), {"axis": 1}),
    "Gather": ((signed(3, 4), longs(2, 0, 2)), {"axis": 0}),
    "GatherElements": ((signed(3, 4), longs(2, 0, 1, 2).reshape(1, 4)), {"axis": 0}),
    "GatherND": ((signed(3, 4), longs(2, 0, 1, 3).reshape(2, 2)), {}),
    "Gemm": ((signed(2, 3), signed(3, 4)), {}),
    "InstanceNormalization": ((signed(2, 3, 4, 5), real(3), real(3)), {}),
    "LRN": ((signed(2, 3, 4, 5),), {"size": 3}),
    "LpPool": ((signed(2, 3, 4, 5),), {"kernel_shape": [2, 2]}),
    "MaxPoolGradient": (
        (np.ones((2, 3, 4, 6), np.float32), np.ones((2, 3, 2, 3), np.float32), signed(2, 3, 2, 3)),
        {"kernel_shape": [2, 2], "strides": [2, 2]},
    ),
    "MatMul": ((signed(2, 2, 3), signed(2, 3, 4)), {}),
    "MixedConv": (
        (signed(2, 3, 4, 5).astype(np.float16), signed(2, 3, 3, 3).astype(np.float16)), {},
    ),
    "MixedMatMul": ((signed(2, 2, 3), signed(2, 3, 4).astype(np.float16)), {}),
    "MaxPool": ((signed(2, 3, 4, 5),), {"kernel_shape": [2, 2], "pads": [1, 0, 0, 1]}),
    "AveragePool": ((signed(2, 3, 4, 5),), {"kernel_shape": [2, 2]}),
    "Mod": ((whole(2, 3), np.int32(4)), {}),
    "Not": ((truth(4),), {}),
    "Pow": ((real(2, 3), real(3)), {}),
    "QLinearConv": (
        (
            RNG.integers(0, 9, (2, 3, 4, 5)).astype(np.uint8), np.float32(0.5), np.uint8(3),
            np.ones((2, 3, 3, 3), np.int8), np.float32(0.5), np.int8(0),
            np.float32(0.5), np.uint8(3),
        ),
        {},
    ),
    "RandomNormal": ((), {"shape": [50]}),
    "RandomNormalLike": ((real(50),), {}),
    "RandomUniform": ((), {"shape": [50]}),
    "RandomUniformLike": ((real(50),), {}),
    "Reshape": ((signed(2, 6), longs(3, 4)), {}),
    "Resize": ((signed(2, 3, 4, 5), None, np.array([1, 1, 2, 2], np.float32)), {}),
    "ReverseSequence": ((signed(4, 3), longs(4, 2, 1)), {}),
    "Shape": ((signed(2, 3),), {}),
    "Size": ((signed(2, 3),), {}),
    "Slice": ((signed(4, 5), longs(1), longs(4), longs(0), longs(2)), {}),
    "SpaceToDepth": ((signed(2, 3, 4, 4),), {"blocksize": 2}),
    "Split": ((signed(4, 3), longs(1, 3)), {"axis": 0}),
    "Squeeze": ((signed(2, 1, 3), longs(1)), {}),
    "Tile": ((signed(2, 3), longs(2, 1)), {}),
    "Transpose": ((signed(3, 3),), {"perm": [1, 0]}),
    "Unsqueeze": ((signed(2, 3), longs(1)), {}),
    "Upsample": ((signed(2, 3, 4, 5), np.array([1, 1, 2, 2], np.float32)), {}),
    "Where": ((truth(2, 3), signed(3), signed(2, 1)), {}),
}  # fmt: skip
USES |= {n: ((signed(2, 3, 4, 5),), {}) for n in
         ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")}  # fmt: skip
POSITIVE = set("Log Sqrt Acos Asin Atanh Reciprocal".split())
# Traits of one version, with a use of it.
OLD = {("Clip", 6): ((signed(2, 3),), {"min": -1.0, "max": 2.0})}

# Nothing draws from a Multinomial without a seed here: that it is impure, the schemas say.
GIVEN = [d for d in registry.registered() if d.traits and d.op_type != "Multinomial"]
# Random numbers without a seed are drawn by ONNX's kernels.
FALLBACK = OnnxFallback()


def use_of(d: OpDef) -> OperatorUse:
    numbers = real(2, 3) if d.op_type in POSITIVE else signed(2, 3)
    known = OLD.get((d.op_type, d.since)) or USES.get(d.op_type) or ((numbers,), {})
    operands = [None if a is None else np.asarray(a) for a in known[0]]
    version = min(d.until or 99, max(d.since, 21))
    count = 2 if d.op_type == "Split" else 1
    return OperatorUse(
        d.op_type, operands, known[1], d.domain, version, count, FALLBACK
    )


@pytest.mark.parametrize("d", GIVEN, ids=lambda d: f"{d.op_type}-{d.since}")
def test_traits_hold(d: OpDef) -> None:
    assert wrong_traits(use_of(d), d.traits) == []


WRONG = [
    ("Softmax", Trait.POINTWISE),
    ("CumSum", Trait.POINTWISE),
    ("Sub", Trait.COMMUTATIVE),
    ("MatMul", Trait.COMMUTATIVE),
    ("Neg", Trait.IDEMPOTENT),
    ("HardSigmoid", Trait.IDEMPOTENT),
    ("Abs", Trait.MOVES_DATA),
    ("MaxPool", Trait.MOVES_DATA),
    ("Pad", Trait.MOVES_DATA),
    ("Trilu", Trait.MOVES_DATA),
    ("Add", Trait.JOINS),
    ("Max", Trait.JOINS),
    ("Where", Trait.JOINS),
    ("AveragePool", Trait.SELECTS),
    ("Relu", Trait.SELECTS),
    ("Hardmax", Trait.SPATIAL),
    ("Flatten", Trait.SPATIAL),
    ("Relu", Trait.CHANGES_AXES),
    ("Softmax", Trait.CHANGES_AXES),
    ("CumSum", Trait.STACKS),
    ("Transpose", Trait.STACKS),
    ("Relu", Trait.IMPURE),
    ("Cast", Trait.DEQUANTIZES),
    ("Mul", Trait.DEQUANTIZES),
    ("Add", Trait.MIXES_TYPES),
    ("PRelu", Trait.MIXES_TYPES),
]
MORE: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "CumSum": ((signed(2, 3, 4), longs(0)[0]), {}),
    "Hardmax": ((signed(2, 3),), {}),
    "MatMul": ((signed(3, 3), signed(3, 3)), {}),
    "Pad": ((signed(2, 3), longs(1, 0, 0, 1), np.float32(-7)), {}),
    "Softmax": ((signed(2, 3),), {}),
    "Trilu": ((signed(3, 3),), {}),
}


@pytest.mark.parametrize(("name", "trait"), WRONG, ids=str)
def test_a_wrong_trait_is_noticed(name: str, trait: Trait) -> None:
    operands, attributes = MORE.get(name) or USES.get(name) or ((signed(2, 3),), {})
    if trait is Trait.DEQUANTIZES:
        operands = (np.arange(4, dtype=np.int32), np.int32(2))[: len(operands)]
    use = OperatorUse(name, [np.asarray(a) for a in operands], attributes)
    assert wrong_traits(use, trait)


def test_whatever_onnx_calls_random_is_impure_and_nothing_else() -> None:
    """AffineGrid is called so too, in error: it computes a grid of coordinates."""
    drawing = {
        s.name
        for s in onnx.defs.get_all_schemas_with_history()
        if not s.domain and s.node_determinism.name == "NonDeterministic"
    } - {"AffineGrid"}
    defined = {d.op_type for d in registry.registered() if not d.domain}
    impure = {d.op_type for d in registry.registered() if d.traits & Trait.IMPURE}
    assert impure == drawing & defined


def test_a_version_without_a_definition_is_like_the_others() -> None:
    x, y = Value("x"), Value("y")
    assert has_trait(Operation("Dropout", (x,), (y,), version=1), Trait.IMPURE)
    assert not has_trait(Operation("Dropout", (x,), (y,), version=1), Trait.POINTWISE)


def test_an_own_operator_has_the_traits_that_it_is_given() -> None:
    x, y = Value("x"), Value("y")
    own = Operation("Relu", (x,), (y,), domain="com.acme")
    assert not has_trait(own, Trait.POINTWISE)
    registry.register(OpDef("Relu", lambda c: [(c.dtype(0), c.shape(0))], "com.acme",
                            traits=Trait.POINTWISE))  # fmt: skip
    try:
        assert has_trait(own, Trait.POINTWISE)
        assert not has_trait(own, Trait.IDEMPOTENT)
    finally:
        del registry._definitions["com.acme", "Relu"]
