"""Products of matrices, convolutions and attention."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tilewright.frontends.torch.aten.rules import AtenCall, rule
from tilewright.frontends.torch.aten.wide import in_float32
from tilewright.graph.nodes import Value


def _expect_one_dtype(c: AtenCall, operands: Iterable[Value]) -> None:
    """Raise UnsupportedError for a product of several dtypes.

    PyTorch refuses it as well, but only when it runs: tracing checks nothing but shapes.
    """
    found = sorted({str(x.dtype) for x in operands})
    if len(found) > 1:
        raise c.refuse(f"its operands are {' and '.join(found)}; convert one of them")


@rule("aten.matmul", "aten.mm", "aten.bmm", "aten.mv", "aten.dot")
def _matmul(c: AtenCall) -> Value:
    """A product; the second operand is called `other`, `mat2`, `vec` or `tensor`."""
    other = next(n for n in ("other", "mat2", "vec", "tensor") if c.has(n))
    a, b = c.tensor(), c.tensor(other)
    _expect_one_dtype(c, (a, b))
    return c.op("MatMul", a, b)


@rule("aten.linear")
def _linear(c: AtenCall) -> Value:
    weight = c.tensor("weight")
    names = [n for n in ("input", "weight", "bias") if c.has(n)]
    _expect_one_dtype(c, map(c.tensor, names))
    if c.rank("weight") == 2:
        weight = c.op("Transpose", weight, perm=[1, 0])
    found = c.op("MatMul", c.tensor("input"), weight)
    if c.has("bias"):
        return c.op("Add", found, c.tensor("bias"))
    return found


@rule("aten.addmm", "aten.baddbmm", "aten.addmv")
def _added_product(c: AtenCall) -> Value:
    """`beta * self + alpha * (a @ b)`; with beta 0 the contents of `self` do not matter."""
    plain = c["alpha"] == 1 and c["beta"] in (0, 1)
    if plain:
        return _scaled_sum(c)
    wide = in_float32(_scaled_sum)
    return wide(c)


@rule("aten.addbmm")
@in_float32
def _added_sum_of_products(c: AtenCall) -> Value:
    return _scaled_sum(c)


def _scaled_sum(c: AtenCall) -> Value:
    known = ("mat1", "mat2", "batch1", "batch2", "mat", "vec")
    names = [n for n in c.arguments if n in known]
    operands = [c[n] for n in names]
    _expect_one_dtype(c, [c["self"], *operands])
    a, b = map(c.tensor, names)
    found = c.op("MatMul", a, b)
    if ".addbmm" in c.name:
        found = c.op("ReduceSum", found, c.ints(0), keepdims=0)
    if c["alpha"] != 1:
        found = c.op("Mul", found, c.number(c["alpha"]))
    if c["beta"] == 0:
        return found
    added = c.tensor()
    if c["beta"] != 1:
        added = c.op("Mul", added, c.number(c["beta"]))
    return c.op("Add", found, added)


@rule("aten.einsum")
def _einsum(c: AtenCall) -> Value:
    return c.op("Einsum", *c["tensors"], equation=c["equation"])


@rule("aten.outer", "aten.ger")
def _outer(c: AtenCall) -> Value:
    other = "vec2"
    column = c.unsqueeze(c.tensor("self", c.dtype), 1)
    return c.op("Mul", column, c.tensor(other, c.dtype))


# -- convolutions


@rule("aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.convolution")
def _conv(c: AtenCall) -> Value:
    if c["transposed"]:
        return _transposed(c)
    axes = c.rank("weight") - 2
    how = _geometry(c, axes)
    padding = c["padding"]
    if padding == "valid":
        how["pads"] = [0] * 2 * axes
    elif padding == "same":
        # An odd remainder goes to the end.
        kernel = c.of("weight").shape[2:]
        whole = [
            d * (int(k) - 1) for d, k in zip(how["dilations"], kernel, strict=True)
        ]
        how["pads"] = [n // 2 for n in whole] + [n - n // 2 for n in whole]
    else:
        how["pads"] = c.spread("padding", axes) * 2
    return _batched(c, "Conv", axes, how)


@rule("aten.conv_transpose1d", "aten.conv_transpose2d", "aten.conv_transpose3d")
def _conv_transpose(c: AtenCall) -> Value:
    return _transposed(c)


def _transposed(c: AtenCall) -> Value:
    axes = c.rank("weight") - 2
    how = _geometry(c, axes)
    how["pads"] = c.spread("padding", axes) * 2
    how["output_padding"] = c.spread("output_padding", axes)
    return _batched(c, "ConvTranspose", axes, how)


def _geometry(c: AtenCall, axes: int) -> dict[str, Any]:
    return {
        "strides": c.spread("stride", axes),
        "dilations": c.spread("dilation", axes),
        "group": int(c["groups"]),
        "kernel_shape": [int(n) for n in c.of("weight").shape[2:]],
    }


def _batched(c: AtenCall, op_type: str, axes: int, how: dict[str, Any]) -> Value:
    """One image without a batch becomes a batch of one."""
    x = c.tensor("input")
    alone = c.rank("input") == axes + 1
    if alone:
        x = c.unsqueeze(x, 0)
    if c.has("bias"):
        bias = c.tensor("bias")
    else:
        bias = None
    found = c.op(op_type, x, c.tensor("weight"), bias, **how)
    if alone:
        return c.squeeze(found, 0)
    return found
