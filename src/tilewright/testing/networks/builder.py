"""A network in the making: operators are added one by one, and their results are typed at once.

Weights are normal with variance gain / fan-in (He et al. 2015), so that a signal neither fades nor
explodes and a wrong kernel shows in the output. Each network has a generator of its own.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.base import dtypes
from tilewright.frontends.onnx.functions import schema_of
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph.infer import Typer
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.testing.graphs import Case

Array = np.ndarray[Any, Any]
Operand = Value | Array | Sequence[int] | float | None
OPSET = 21

# name -> what builds it anew, the same each time
NETWORKS: dict[str, Callable[[], Case]] = {}


def network(make: Callable[[Net], Value | Sequence[Value]]) -> Callable[[], Case]:
    """Registers a function that adds a network to a Net and gives its outputs."""
    name = make.__name__

    def build() -> Case:
        net = Net(name)
        made = make(net)
        return net.case([made] if isinstance(made, Value) else made)

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

    def input(self, *shape: int) -> Value:
        """A new float32 input, normal."""
        return self._given(self.rng.standard_normal(shape).astype(np.float32))

    def ids(self, *shape: int, below: int) -> Value:
        """A new int64 input of random indices."""
        return self._given(self.rng.integers(0, below, shape))

    def flags(self, *shape: int) -> Value:
        """A new bool input; the first of each row is true."""
        found = self.rng.random(shape) < 0.7
        found[..., 0] = True
        return self._given(found)

    def weight(self, *shape: int, gain: float = 1.0, fan: int | None = None) -> Value:
        """A constant of variance gain / fan; fan: by default the product of shape[1:]."""
        spread = math.sqrt(gain / (math.prod(shape[1:]) if fan is None else fan))
        return self.const((spread * self.rng.standard_normal(shape)).astype(np.float32))

    def near(self, mean: float, *shape: int, spread: float = 0.1) -> Value:
        """A constant around a mean: scales, shifts, statistics."""
        return self.const((mean + spread * self.rng.standard_normal(shape)).astype(np.float32))

    def const(self, value: Any) -> Value:
        """A constant: float32, or int64 of a list of integers, where it has no dtype."""
        array = np.asarray(value)
        if not hasattr(value, "dtype"):
            whole = isinstance(value, Sequence) and array.dtype.kind == "i"
            array = array.astype(np.int64 if whole else np.float32)
        return self._typer.constant(self._fresh("c"), array)

    # -- operators

    def __call__(self, op_type: str, *inputs: Operand, **attributes: Any) -> Value:
        """Add an operator with one result."""
        (made,) = self.many(op_type, 1, *inputs, **attributes)
        return made

    def many(self, op_type: str, count: int, *inputs: Operand, **attributes: Any) -> list[Value]:
        """Add an operator of the default domain; `count` of its results."""
        schema = schema_of(op_type, "", OPSET)
        assert schema is not None, op_type
        operands = tuple(v if v is None or isinstance(v, Value) else self.const(v) for v in inputs)
        drafts = tuple(Value(self._fresh(op_type.lower())) for _ in range(count))
        draft = Operation(op_type, operands, drafts, attributes, "", schema.since_version, "")
        return [v for v in self._typer.apply(draft) if v is not None]

    def conv(
        self,
        x: Value,
        out: int,
        size: int | Sequence[int] = 3,
        stride: int | Sequence[int] = 1,
        *,
        dilation: int = 1,
        groups: int = 1,
        pads: Sequence[int] | None = None,
        norm: bool = True,
        act: str = "Relu",
        gain: float | None = None,
    ) -> Value:
        """A convolution over all axes behind the channels that keeps extents over its stride, then
        BatchNormalization, or a bias instead, then an activation ("" for none)."""
        rank = len(x.extents) - 2
        kernel = [size] * rank if isinstance(size, int) else list(size)
        steps = [stride] * rank if isinstance(stride, int) else list(stride)
        if pads is None:
            pads = [dilation * (k - 1) // 2 for k in kernel]
            pads = [*pads, *(dilation * (k - 1) - p for k, p in zip(kernel, pads))]
        gain = (2.0 if act else 1.0) if gain is None else gain
        w = self.weight(out, x.extents[1] // groups, *kernel, gain=gain)
        bias = [] if norm else [self.near(0, out)]
        y = self(
            "Conv", x, w, *bias, kernel_shape=kernel, strides=steps, pads=list(pads), group=groups,
            dilations=[dilation] * rank,
        )  # fmt: skip
        return self.act(self.batch_norm(y) if norm else y, act)

    def depthwise(self, x: Value, size: int = 3, stride: int = 1, **options: Any) -> Value:
        """A convolution of each channel by itself."""
        channels = x.extents[1]
        return self.conv(x, channels, size, stride, groups=channels, **options)

    def batch_norm(self, x: Value) -> Value:
        """BatchNormalization with statistics of its own."""
        c = x.extents[1]
        variance = self.const(self.rng.uniform(0.5, 1.5, c).astype(np.float32))
        return self(
            "BatchNormalization", x, self.near(1, c), self.near(0, c), self.near(0, c), variance
        )

    def layer_norm(self, x: Value, epsilon: float = 1e-5) -> Value:
        """LayerNormalization over the last axis."""
        c = x.extents[-1]
        scale, shift = self.near(1, c), self.near(0, c)
        return self("LayerNormalization", x, scale, shift, epsilon=epsilon)

    def group_norm(self, x: Value, groups: int) -> Value:
        """Groups of channels normalized together, as PyTorch writes it out."""
        b, c, *rest = x.extents
        y = self.shape(x, b, groups, -1)
        y = self("InstanceNormalization", y, self.const([1.0] * groups), self.const([0.0] * groups))
        places = [1] * len(rest)
        y = self("Mul", self.shape(y, b, c, *rest), self.near(1, c, *places))
        return self("Add", y, self.near(0, c, *places))

    def rms_norm(self, x: Value) -> Value:
        """x / sqrt(mean(x^2) + eps) * scale over the last axis, written out."""
        mean = self("ReduceMean", self("Pow", x, 2.0), [-1])
        root = self("Sqrt", self("Add", mean, 1e-5))
        return self("Mul", self("Div", x, root), self.near(1, x.extents[-1]))

    def act(self, x: Value, kind: str) -> Value:
        """An activation by name; "" for none."""
        match kind:
            case "":
                return x
            case "Relu6":
                return self("Clip", x, 0.0, 6.0)
            case "Silu":
                return self("Mul", x, self("Sigmoid", x))
            case "Erf":  # GELU written out
                half = self("Mul", x, 0.5)
                return self("Mul", half, self("Add", self("Erf", self("Div", x, 2**0.5)), 1.0))
            case "PRelu":
                return self("PRelu", x, self.near(0.2, x.extents[1], *[1] * (len(x.extents) - 2)))
        return self(kind, x)

    def linear(
        self, x: Value, out: int, act: str = "", *, bias: bool = True, gain: float | None = None
    ) -> Value:
        """A product with a matrix along the last axis, a bias, an activation."""
        width = x.extents[-1]
        gain = (2.0 if act else 1.0) if gain is None else gain
        y = self("MatMul", x, self.weight(width, out, gain=gain, fan=width))
        return self.act(self("Add", y, self.near(0, out)) if bias else y, act)

    def gemm(self, x: Value, out: int, act: str = "") -> Value:
        """A Gemm of a matrix with transposed weights."""
        w = self.weight(out, x.extents[1], gain=2.0 if act else 1.0)
        return self.act(self("Gemm", x, w, self.near(0, out), transB=1), act)

    def pool(
        self, x: Value, size: int = 3, stride: int = 2, pad: int = 0, kind: str = "MaxPool",
        **more: Any,
    ) -> Value:  # fmt: skip
        """A pooling over all axes behind the channels."""
        rank = len(x.extents) - 2
        windows = {"kernel_shape": [size] * rank, "strides": [stride] * rank}
        return self(kind, x, **windows, pads=[pad] * 2 * rank, **more)

    def mean(self, x: Value, size: int = 3, stride: int = 2, pad: int = 0, **more: Any) -> Value:
        """An average pooling."""
        return self.pool(x, size, stride, pad, "AveragePool", **more)

    def head(self, x: Value, classes: int = 10) -> Value:
        """Global average pooling and a linear classifier."""
        return self.gemm(self("Flatten", self("GlobalAveragePool", x)), classes)

    def cat(self, *parts: Value, axis: int = 1) -> Value:
        """Concatenation."""
        return self("Concat", *parts, axis=axis)

    def add(self, first: Value, *others: Operand) -> Value:
        """A sum of several."""
        for other in others:
            first = self("Add", first, other)
        return first

    def shape(self, x: Value, *extents: int) -> Value:
        """Reshape."""
        return self("Reshape", x, list(extents))

    def order(self, x: Value, *axes: int) -> Value:
        """Transpose."""
        return self("Transpose", x, perm=list(axes))

    def split(self, x: Value, *sizes: int, axis: int = 1) -> list[Value]:
        """Split into parts."""
        return self.many("Split", len(sizes), x, list(sizes), axis=axis)

    def resize(self, x: Value, *sizes: int, mode: str = "nearest", **more: Any) -> Value:
        """Resize the last axes."""
        lead = x.extents[: len(x.extents) - len(sizes)]
        if mode == "nearest":
            more = {
                "coordinate_transformation_mode": "asymmetric",
                "nearest_mode": "floor",
                **more,
            }
        return self("Resize", x, None, None, [*lead, *sizes], mode=mode, **more)

    # -- the result

    def case(self, outputs: Sequence[Value]) -> Case:
        """The graph so far, and arrays for its inputs."""
        bare = Graph(self.name, tuple(self._inputs), tuple(outputs), (), dict(self._typer.known))
        graph = bare.with_operations(self._typer.operations)
        return Case(graph, {v.name: a for v, a in self._inputs.items()})

    def _given(self, array: Array) -> Value:
        value = Value(self._fresh("x"), dtypes.dtype_of(array.dtype), array.shape)
        self._inputs[value] = array
        return value

    def _fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"
