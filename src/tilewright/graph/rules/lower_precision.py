"""Products whose constant matrix is stored in float16 or bfloat16, summed in float32.

    a @ w  =  a @ float32(bfloat16(w))        the matrix rounds, once, when it is stored
    a @ w  =  bfloat16(a) @ bfloat16(w)       where the machine multiplies pairs of bfloat16

A product with one row is limited by reading its matrix, which is now half as large. The second form
is for more rows; it rounds the activations, too. Both are used only on request.
"""

from __future__ import annotations

import numpy as np

from tilewright.base.dtypes import DType, bfloat16, dtype_of, float16, float32
from tilewright.base.errors import InputError
from tilewright.graph.nodes import Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.matmul import MIXED
from tilewright.graph.ops.registry import Array
from tilewright.graph.rules.block_weights import added
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import (
    constants,
    maybe,
    one_of,
    onnx,
    tensors,
)
from tilewright.graph.rules.rule import Rule, Sample, SampleApplication, normals

a, bias = tensors("a bias")
(w,) = constants("w")
product = one_of(onnx.MatMul, onnx.Gemm)(a, w, maybe(bias)).with_attributes()


def _of_matrices(m: Match) -> bool:
    """float32 times a matrix; a is not transposed"""
    gemm = m.root.qualified == "Gemm"
    floats = m[a].dtype is float32 and m[w].dtype is float32
    transposed = gemm and m.root.attr("transA", 0)
    return floats and m[a].static and m.array(w).ndim == 2 and not transposed


def _matrix(m: Match) -> Array:
    """The matrix [K, N]."""
    matrix = m.array(w)
    if m.root.qualified == "Gemm" and m.root.attr("transB", 0):
        matrix = matrix.T
    return matrix


def stored(m: Match, v: Value, array: Array, dtype: DType) -> Array:
    """The constant `v` in the lower type. Raises InputError for numbers out of its range."""
    with np.errstate(over="ignore"):
        rounded = array.astype(dtype.numpy)
    finite = np.isfinite(array)
    if not np.isfinite(rounded[finite]).all():
        largest = np.abs(array[finite]).max()
        other = "" if dtype is bfloat16 else 'with precision="bfloat16", or '
        raise InputError(
            f"the weights {v.name!r} are as large as {largest:.4g}, beyond {dtype}",
            where=f"node {m.root.label!r}",
            hint=f"compile {other}without precision",
        )
    return np.ascontiguousarray(rounded)


def _rows(v: Value) -> int:
    return int(np.prod(v.extents[:-1]))


def precision_rules(precision: str, pairs: bool) -> tuple[Rule, ...]:
    """precision: "float16" or "bfloat16". pairs: the machine multiplies pairs of bfloat16."""
    dtype = dtype_of(precision)

    def build(m: Match, f: Fragment) -> Value:
        """a product with the matrix in the lower type"""
        x = m[a]
        weights = f.constant(stored(m, m[w], _matrix(m), dtype))
        if pairs and dtype is bfloat16 and _rows(x) > 1:
            x = f.cast(x, bfloat16)
        y = f.ops(MIXED, x, weights, domain="tilewright")[0]
        gemm = m.root.attributes if m.root.qualified == "Gemm" else {}
        return added(f, y, m.get(bias), gemm)

    name = f"product-of-{precision}"
    return (
        Rule(
            name,
            product,
            build,
            when=[_of_matrices],
            exact=False,
            samples=_samples,
        ),
    )


def _samples(rng: np.random.Generator) -> Sample:
    """Matrices that the lower types represent exactly."""
    turned = bool(rng.integers(2))
    matrix = rng.integers(-8, 9, (6, 5)).astype(np.float32)
    gemm = SampleApplication({"transB": 1, "alpha": 0.5, "beta": 2.0}, (), onnx.Gemm)
    return {
        a: rng.integers(-8, 9, (3, 6)).astype(np.float32),
        w: matrix.T if turned else matrix,
        bias: normals(rng, 5) if turned else None,
        product: gemm if turned else SampleApplication({}, (), onnx.MatMul),
    }


LOWER_PRECISION = tuple(
    rule
    for dtype in (float16, bfloat16)
    for rule in precision_rules(dtype.name, pairs=True)
)
