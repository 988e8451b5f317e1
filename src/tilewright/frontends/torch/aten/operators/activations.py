"""Activations."""

from __future__ import annotations

from tilewright.frontends.torch.aten.rules import AtenCall, rule
from tilewright.frontends.torch.aten.terms import argument
from tilewright.frontends.torch.aten.wide import in_float32
from tilewright.graph.nodes import Value


@rule("aten.gelu")
def _gelu(c: AtenCall) -> Value:
    return c.op("Gelu", c.tensor(), approximate=c["approximate"])


@rule("aten.silu")
@in_float32
def _silu(c: AtenCall) -> Value:
    x = argument(c)
    return (x * x.op("Sigmoid")).value


# PyTorch would decompose these two, but complex numbers have rules of the same names.


@rule("aten.tanh_backward")
@in_float32
def _tanh_gradient(c: AtenCall) -> Value:
    flow = argument(c, "grad_output")
    y = argument(c, "output")
    return (flow * (1 - y * y)).value


@rule("aten.sigmoid_backward")
@in_float32
def _sigmoid_gradient(c: AtenCall) -> Value:
    flow = argument(c, "grad_output")
    y = argument(c, "output")
    return (flow * (y * (1 - y))).value


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
@in_float32
def _elu(c: AtenCall) -> Value:
    x = argument(c)
    alpha, scale, inner = (float(c[n]) for n in ("alpha", "scale", "input_scale"))
    if scale == inner == 1:
        return c.op("Elu", x.value, alpha=alpha)
    low = (x * inner).op("Exp") - 1
    return (x > 0).chosen(x * scale, low * (alpha * scale)).value


@rule("aten.softplus")
@in_float32
def _softplus(c: AtenCall) -> Value:
    x = argument(c)
    scaled = x * float(c["beta"])
    found = scaled.op("Softplus") / float(c["beta"])
    limit: float = c["threshold"]
    return (scaled > limit).chosen(x, found).value


@rule("aten.log_sigmoid")
def _log_sigmoid(c: AtenCall) -> Value:
    negative = -argument(c)
    return (-negative.op("Softplus")).value


@rule("aten.prelu", "aten._prelu_kernel")
def _prelu(c: AtenCall) -> Value:
    """One slope per channel, along axis 1."""
    slope = c.tensor("weight")
    if c.rank("weight") == 1 and c.rank() > 2 and c.extent(0, "weight") != 1:
        slope = c.reshape(slope, [-1, *[1] * (c.rank() - 2)])
    return c.op("PRelu", c.tensor(), slope)


@rule("aten.glu")
@in_float32
def _glu(c: AtenCall) -> Value:
    axis = c.axis()
    value, gate = c.build.ops("Split", c.tensor(), count=2, axis=axis, num_outputs=2)
    share = c.op("Sigmoid", gate)
    return c.op("Mul", value, share)


@rule("aten.lerp")
@in_float32
def _lerp(c: AtenCall) -> Value:
    """Interpolate from the nearer end, so that weight 1 yields the other end exactly."""
    start, end, weight = (argument(c, n) for n in ("self", "end", "weight"))
    away = end - start
    near = start + weight * away
    far = end - (1 - weight) * away
    return (abs(weight) < 0.5).chosen(near, far).value


@rule("aten.addcmul", "aten.addcdiv")
@in_float32
def _addcmul(c: AtenCall) -> Value:
    op_type = "Mul" if "addcmul" in c.name else "Div"
    found = argument(c, "tensor1").op(op_type, argument(c, "tensor2"))
    if c["value"] != 1:
        found = found * c["value"]
    return (argument(c) + found).value
