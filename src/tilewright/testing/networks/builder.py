"""A network in the making: operators are added one by one, and their results are typed at once.

    x = n.input(1, 3, 33, 33)
    x = x.conv(12, 3, stride=2)
    return (x + x.depthwise()).Relu().head()

A tensor's methods add a layer after it. Layers have their own names; by its own name in ONNX,
any operator is a method of its first operand.

Weights are normal with variance gain / fan-in (He et al. 2015), so that a signal neither fades nor
explodes and a wrong kernel shows in the output. Each network has its own generator.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tilewright.base import dtypes
from tilewright.base.dataclass import dataclass
from tilewright.frontends.onnx.functions import schema_of
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph.infer import Typer
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.testing.graphs import Case

Array = np.ndarray[Any, Any]
OPSET = 21

# name -> what builds it again, the same each time
NETWORKS: dict[str, Callable[[], Case]] = {}


def network(
    make: Callable[[Net], NetTensor | Sequence[NetTensor]],
) -> Callable[[], Case]:
    """Registers a function that adds a network to a Net and returns its outputs."""
    name = make.__name__

    def build() -> Case:
        net = Net(name)
        made = make(net)
        if isinstance(made, NetTensor):
            made = [made]
        return net.case(made)

    NETWORKS[name] = build
    return build


class Net:
    """See the module's docstring. Images are [batch, channels, height, width]."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rng = np.random.default_rng(zlib.crc32(name.encode()))
        self._typer = Typer(OnnxFallback())
        self._inputs: dict[Value, Array] = {}
        self._count = 0

    # -- inputs and weights

    def input(self, *shape: int) -> NetTensor:
        """A new float32 input, normal."""
        drawn = self.rng.standard_normal(shape)
        array = drawn.astype(np.float32)
        return self.given(array)

    def ids(self, *shape: int, below: int) -> NetTensor:
        """A new int64 input of random indices."""
        drawn = self.rng.integers(0, below, shape)
        return self.given(drawn)

    def flags(self, *shape: int) -> NetTensor:
        """A new bool input; the first of each row is true."""
        found = self.rng.random(shape) < 0.7
        found[..., 0] = True
        return self.given(found)

    def weight(
        self,
        *shape: int,
        gain: float = 1.0,
        fan: int | None = None,
    ) -> NetTensor:
        """A constant of variance gain / fan; fan: by default the product of shape[1:]."""
        if fan is None:
            fan = math.prod(shape[1:])
        spread = math.sqrt(gain / fan)
        return self.near(0, *shape, spread=spread)

    def near(
        self,
        mean: float,
        *shape: int,
        spread: float = 0.1,
    ) -> NetTensor:
        """A constant around a mean: scales, shifts, statistics."""
        drawn = self.rng.standard_normal(shape)
        return self.const(mean + spread * drawn)

    def uniform(
        self,
        low: float,
        high: float,
        *shape: int,
    ) -> NetTensor:
        """A constant of equally likely numbers."""
        drawn = self.rng.uniform(low, high, shape)
        return self.const(drawn)

    def const(self, value: Any) -> NetTensor:
        """A constant: float32 for floats of Python and of NumPy, int64 for a list of integers.

        Other arrays keep their dtype.
        """
        array = np.asarray(value)
        if not hasattr(value, "dtype"):
            listed = isinstance(value, Sequence)
            whole = listed and array.dtype.kind == "i"
            array = array.astype(np.int64 if whole else np.float32)
        elif array.dtype.kind == "f":
            array = array.astype(np.float32)
        value = self._typer.constant(self._fresh("c"), array)
        return NetTensor(self, value)

    # -- operators

    @property
    def operations(self) -> Sequence[Operation]:
        """The operations added so far."""
        return self._typer.operations

    def __call__(
        self,
        op_type: str,
        *inputs: Operand,
        **attributes: Any,
    ) -> NetTensor:
        """Add an operator with one result."""
        (made,) = self.many(op_type, 1, *inputs, **attributes)
        return made

    def many(
        self,
        op_type: str,
        count: int,
        *inputs: Operand,
        **attributes: Any,
    ) -> list[NetTensor]:
        """Add an operator of the default domain; `count` of its results."""
        schema = schema_of(op_type, "", OPSET)
        assert schema is not None, op_type
        operands = tuple(map(self._operand, inputs))
        stem = op_type.lower()
        drafts = tuple(Value(self._fresh(stem)) for _ in range(count))
        version = schema.since_version
        draft = Operation(op_type, operands, drafts, attributes, "", version, "")
        made = self._typer.apply(draft)
        return [NetTensor(self, v) for v in made if v is not None]

    def cat(self, *parts: NetTensor, axis: int = 1) -> NetTensor:
        """Concatenation."""
        return self("Concat", *parts, axis=axis)

    def add(self, first: NetTensor, *others: Operand) -> NetTensor:
        """A sum of several."""
        for other in others:
            first = self("Add", first, other)
        return first

    # -- the result

    def case(self, outputs: Sequence[NetTensor]) -> Case:
        """The graph so far, and arrays for its inputs."""
        given = tuple(self._inputs)
        made = tuple(x.value for x in outputs)
        known = dict(self._typer.known)
        bare = Graph(self.name, given, made, (), known)
        graph = bare.with_operations(self._typer.operations)
        arrays = {v.name: a for v, a in self._inputs.items()}
        return Case(graph, arrays)

    def given(self, array: Array) -> NetTensor:
        """A new input with this array."""
        name = self._fresh("x")
        dtype = dtypes.dtype_of(array.dtype)
        value = Value(name, dtype, array.shape)
        self._inputs[value] = array
        return NetTensor(self, value)

    def _operand(self, x: Operand) -> Value | None:
        if x is None:
            return None
        if isinstance(x, NetTensor):
            return x.value
        return self.const(x).value

    def _fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"


@dataclass(frozen=True, eq=False)
class NetTensor:
    """A value of a network, and what can follow it."""

    net: Net
    value: Value

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the tensor."""
        return self.value.extents

    def __getattr__(self, op_type: str) -> Callable[..., NetTensor]:
        """An operator of ONNX on this tensor: `x.Softmax(axis=-1)`."""
        if schema_of(op_type, "", OPSET) is None:
            raise AttributeError(op_type)
        return partial(self.net, op_type, self)

    def __add__(self, other: Operand) -> NetTensor:
        return self.net("Add", self, other)

    def __sub__(self, other: Operand) -> NetTensor:
        return self.net("Sub", self, other)

    def __rsub__(self, other: float) -> NetTensor:
        return self.net("Sub", other, self)

    def __mul__(self, other: Operand) -> NetTensor:
        return self.net("Mul", self, other)

    def __truediv__(self, other: Operand) -> NetTensor:
        return self.net("Div", self, other)

    def __matmul__(self, other: Operand) -> NetTensor:
        return self.net("MatMul", self, other)

    def __neg__(self) -> NetTensor:
        return self.net("Neg", self)

    # -- convolutions and linear layers

    def conv(
        self,
        out: int,
        size: int | Sequence[int] = 3,
        stride: int | Sequence[int] = 1,
        *,
        dilation: int = 1,
        groups: int = 1,
        pads: int | Sequence[int] | None = None,
        norm: bool = True,
        act: str = "Relu",
        gain: float | None = None,
    ) -> NetTensor:
        """A convolution over all axes after the channels that keeps extents over its stride, then
        BatchNormalization, or a bias instead, then an activation ("" for none)."""
        rank = len(self.shape) - 2
        kernel = _per_axis(size, rank)
        if pads is None:
            spans = [dilation * (k - 1) for k in kernel]
            before = [span // 2 for span in spans]
            after = [span - first for span, first in zip(spans, before, strict=True)]
            pads = [*before, *after]
        if gain is None:
            gain = _usual_gain(act)
        per_group = self.shape[1] // groups
        weights = self.net.weight(out, per_group, *kernel, gain=gain)
        operands = [weights]
        if not norm:
            operands.append(self.net.near(0, out))
        strides = _per_axis(stride, rank)
        y = self.Conv(
            *operands,
            kernel_shape=kernel,
            strides=strides,
            pads=_per_axis(pads, 2 * rank),
            group=groups,
            dilations=[dilation] * rank,
        )
        if norm:
            y = y.batch_norm()
        return y.act(act)

    def conv_bias(
        self,
        out: int,
        *sizes: Any,
        **options: Any,
    ) -> NetTensor:
        """As `conv`, without normalization."""
        return self.conv(out, *sizes, norm=False, **options)

    def project(
        self,
        out: int,
        *sizes: Any,
        **options: Any,
    ) -> NetTensor:
        """As `conv`, with a bias and nothing after it."""
        return self.conv_bias(out, *sizes, act="", **options)

    def depthwise(
        self,
        size: int = 3,
        stride: int = 1,
        **options: Any,
    ) -> NetTensor:
        """As `conv`, depthwise."""
        channels = self.shape[1]
        return self.conv(channels, size, stride, groups=channels, **options)

    def linear(
        self,
        out: int,
        act: str = "",
        *,
        bias: bool = True,
        gain: float | None = None,
    ) -> NetTensor:
        """A product with a matrix along the last axis, a bias, an activation."""
        width = self.shape[-1]
        if gain is None:
            gain = _usual_gain(act)
        y = self @ self.net.weight(width, out, gain=gain, fan=width)
        if bias:
            y = y + self.net.near(0, out)
        return y.act(act)

    def gemm(self, out: int, act: str = "") -> NetTensor:
        """A Gemm of a matrix with transposed weights."""
        gain = _usual_gain(act)
        w = self.net.weight(out, self.shape[1], gain=gain)
        bias = self.net.near(0, out)
        y = self.Gemm(w, bias, transB=1)
        return y.act(act)

    def head(self, classes: int = 10) -> NetTensor:
        """Global average pooling and a linear classifier."""
        means = self.GlobalAveragePool()
        return means.Flatten().gemm(classes)

    # -- normalizations and activations

    def norm_relu(self) -> NetTensor:
        """Normalized and rectified, before a convolution."""
        y = self.batch_norm()
        return y.Relu()

    def batch_norm(self) -> NetTensor:
        """BatchNormalization with its own statistics."""
        c = self.shape[1]
        n = self.net
        variance = n.uniform(0.5, 1.5, c)
        scale = n.near(1, c)
        bias = n.near(0, c)
        mean = n.near(0, c)
        return self.BatchNormalization(scale, bias, mean, variance)

    def layer_norm(self, epsilon: float = 1e-5) -> NetTensor:
        """LayerNormalization over the last axis."""
        c = self.shape[-1]
        n = self.net
        scale = n.near(1, c)
        shift = n.near(0, c)
        return self.LayerNormalization(scale, shift, epsilon=epsilon)

    def instance_norm(self) -> NetTensor:
        """InstanceNormalization with a scale and a shift of each channel."""
        c = self.shape[1]
        n = self.net
        scale = n.near(1, c)
        shift = n.near(0, c)
        return self.InstanceNormalization(scale, shift)

    def group_norm(self, groups: int) -> NetTensor:
        """Groups of channels normalized together, as PyTorch writes it out."""
        n = self.net
        b, c, *rest = self.shape
        places = [1] * len(rest)
        y = self.reshape(b, groups, -1)
        ones = n.const([1.0] * groups)
        zeros = n.const([0.0] * groups)
        y = y.InstanceNormalization(ones, zeros)
        y = y.reshape(b, c, *rest)
        scale = n.near(1, c, *places)
        shift = n.near(0, c, *places)
        return y * scale + shift

    def rms_norm(self) -> NetTensor:
        """x / sqrt(mean(x^2) + eps) * scale over the last axis, as primitive operators."""
        mean = self.Pow(2.0).ReduceMean([-1])
        root = (mean + 1e-5).Sqrt()
        scale = self.net.near(1, self.shape[-1])
        return self / root * scale

    def act(self, kind: str) -> NetTensor:
        """An activation by name; "" for none."""
        match kind:
            case "":
                return self
            case "Relu6":
                return self.Clip(0.0, 6.0)
            case "Silu":
                return self * self.Sigmoid()
            case "Erf":  # GELU written out
                half = self * 0.5
                share = (self / 2**0.5).Erf()
                return half * (share + 1.0)
            case "PRelu":
                _, channels, *rest = self.shape
                places = [1] * len(rest)
                slope = self.net.near(0.2, channels, *places)
                return self.PRelu(slope)
        return self.net(kind, self)

    # -- windows and shapes

    def max_pool(
        self,
        size: int = 3,
        stride: int = 2,
        pad: int = 0,
        kind: str = "MaxPool",
        **more: Any,
    ) -> NetTensor:
        """A pooling over all axes after the channels."""
        rank = len(self.shape) - 2
        kernel_shape = [size] * rank
        strides = [stride] * rank
        pads = [pad] * 2 * rank
        return self.net(
            kind,
            self,
            kernel_shape=kernel_shape,
            strides=strides,
            pads=pads,
            **more,
        )

    def average_pool(
        self,
        size: int = 3,
        stride: int = 2,
        pad: int = 0,
        **more: Any,
    ) -> NetTensor:
        """The mean of each window."""
        return self.max_pool(size, stride, pad, "AveragePool", **more)

    def reshape(self, *extents: int) -> NetTensor:
        """Other extents of the same elements."""
        return self.Reshape(list(extents))

    @property
    def mT(self) -> NetTensor:
        """The last two axes exchanged."""
        *lead, rows, columns = range(len(self.shape))
        return self.transpose(*lead, columns, rows)

    def transpose(self, *axes: int) -> NetTensor:
        """Another order of axes."""
        return self.Transpose(perm=list(axes))

    def tokens(self) -> NetTensor:
        """[batch, channels, ...] as [batch, places, channels]."""
        b, c, *rest = self.shape
        places = math.prod(rest)
        return self.reshape(b, c, places).mT

    def image(self, *extents: int) -> NetTensor:
        """[batch, places, channels] as [batch, channels, *extents]."""
        b, _, c = self.shape
        return self.mT.reshape(b, c, *extents)

    def split(self, *sizes: int, axis: int = 1) -> list[NetTensor]:
        """Parts along an axis."""
        count = len(sizes)
        return self.net.many("Split", count, self, list(sizes), axis=axis)

    def resize(
        self,
        *sizes: int,
        mode: str = "nearest",
        **more: Any,
    ) -> NetTensor:
        """Other extents of the last axes, interpolated."""
        rank = len(self.shape)
        lead = self.shape[: rank - len(sizes)]
        if mode == "nearest":
            floor = {
                "coordinate_transformation_mode": "asymmetric",
                "nearest_mode": "floor",
            }
            more = {**floor, **more}
        extents = [*lead, *sizes]
        return self.Resize(None, None, extents, mode=mode, **more)


Operand = NetTensor | Array | Sequence[int] | Sequence[float] | float | None


def _per_axis(number: int | Sequence[int], count: int) -> list[int]:
    """One number for each axis, or the numbers themselves."""
    if isinstance(number, int):
        return [number] * count
    return list(number)


def _usual_gain(act: str) -> float:
    """A rectifier halves the variance."""
    return 2.0 if act else 1.0
