"""Activations."""

from __future__ import annotations

from tilewright.frontends.torch.aten.rules import AtenCall, rule
from tilewright.graph.nodes import Value


@rule("aten.gelu")
def _gelu(c: AtenCall) -> Value:
    return c.op("Gelu", c.tensor(), approximate=c["approximate"])


@rule("aten.silu")
def _silu(c: AtenCall) -> Value:
    x = c.tensor()
    return c.op("Mul", x, c.op("Sigmoid", x))


@rule("aten.hardsigmoid")
def _hardsigmoid(c: AtenCall) -> Value:
    return c.op("HardSigmoid", c.tensor(), alpha=1 / 6, beta=0.5)


@rule("aten.leaky_relu")
def _leaky_relu(c: AtenCall) -> Value:
    alpha = float(c["negative_slope"])
    return c.op("LeakyRelu", c.tensor(), alpha=alpha)


@rule("aten.celu")
def _celu(c: AtenCall) -> Value:
    alpha = float(c["alpha"])
    return c.op("Celu", c.tensor(), alpha=alpha)


@rule("aten.elu")
def _elu(c: AtenCall) -> Value:
    x = c.tensor()
    scale = float(c["scale"])
    inner = float(c["input_scale"])
    if scale == inner == 1:
        alpha = float(c["alpha"])
        return c.op("Elu", x, alpha=alpha)
    low = c.op("Mul", x, c.number(inner))
    low = c.op("Exp", low)
    low = c.op("Sub", low, c.number(1))
    low = c.op("Mul", low, c.number(float(c["alpha"]) * scale))
    high = c.op("Mul", x, c.number(scale))
    condition = c.op("Greater", x, c.number(0))
    return c.op("Where", condition, high, low)


@rule("aten.softplus")
def _softplus(c: AtenCall) -> Value:
    x = c.tensor()
    scaled = c.op("Mul", x, c.number(c["beta"]))
    found = c.op("Softplus", scaled)
    found = c.op("Div", found, c.number(c["beta"]))
    condition = c.op("Greater", scaled, c.number(c["threshold"]))
    return c.op("Where", condition, x, found)


@rule("aten.log_sigmoid")
def _log_sigmoid(c: AtenCall) -> Value:
    negative = c.op("Neg", c.tensor())
    found = c.op("Softplus", negative)
    return c.op("Neg", found)


@rule("aten.prelu", "aten._prelu_kernel")
def _prelu(c: AtenCall) -> Value:
    """One slope per channel, along axis 1."""
    slope = c.tensor("weight")
    if c.rank("weight") == 1 and c.rank() > 2 and c.extent(0, "weight") != 1:
        slope = c.reshape(slope, [-1, *[1] * (c.rank() - 2)])
    return c.op("PRelu", c.tensor(), slope)


@rule("aten.glu")
def _glu(c: AtenCall) -> Value:
    axis = c.axis()
    value, gate = c.build.ops("Split", c.tensor(), count=2, axis=axis, num_outputs=2)
    share = c.op("Sigmoid", gate)
    return c.op("Mul", value, share)


@rule("aten.lerp")
def _lerp(c: AtenCall) -> Value:
    """Interpolate from the nearer end, so that weight 1 yields the other end exactly."""
    start = c.tensor("self")
    end = c.tensor("end")
    weight = c.tensor("weight", c.dtype)
    away = c.op("Sub", end, start)
    rest = c.op("Sub", c.number(1), weight)
    near = c.op("Add", start, c.op("Mul", weight, away))
    far = c.op("Sub", end, c.op("Mul", rest, away))
    half = c.op("Less", c.op("Abs", weight), c.number(0.5))
    return c.op("Where", half, near, far)


@rule("aten.addcmul", "aten.addcdiv")
def _addcmul(c: AtenCall) -> Value:
    op_type = "Mul" if "addcmul" in c.name else "Div"
    found = c.op(op_type, c.tensor("tensor1", c.dtype), c.tensor("tensor2", c.dtype))
    if c["value"] != 1:
        found = c.op("Mul", found, c.number(c["value"]))
    return c.op("Add", c.tensor("self", c.dtype), found)
