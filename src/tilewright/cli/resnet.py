"""ResNet-50 as an ONNX model with seeded weights: the network of `tilewright demo`.

The architecture is that of He et al., "Deep Residual Learning for Image Recognition" (2016), with
the stride in the 3x3 convolution (v1.5). The weights are drawn as in He et al. (2015), so that the
signal neither fades nor explodes and a wrong kernel shows in the output.
"""

from __future__ import annotations

import math
import zlib
from typing import Any, Final

import numpy as np

from tilewright.base.dtypes import float32

Array = np.ndarray[Any, Any]

IMAGE: Final = (1, 3, 224, 224)
CLASSES: Final = 1000
# Blocks, and channels inside a block, of the four stages.
STAGES: Final = ((3, 64), (4, 128), (6, 256), (3, 512))
EXPANSION: Final = 4
# A branch is added with this factor, so that sixteen blocks keep the scale of the stream.
RESIDUAL: Final = 0.3
LOGIT_GAIN: Final = 0.25


def image(seed: int = 0) -> Array:
    """A random normalized image."""
    return np.random.default_rng(seed).standard_normal(IMAGE, dtype=np.float32)


def build(seed: int = 0) -> bytes:
    """The model, serialized: `image` float32[1, 3, 224, 224] to `logits` float32[1, 1000]."""
    net = _Net(seed)
    x = net.convolution(
        net.author.input("image", float32, IMAGE), "stem", 3, 64, 7, 2, relu=True
    )
    x = net.author.node(
        "MaxPool",
        [x],
        "stem.pool",
        kernel_shape=[3, 3],
        strides=[2, 2],
        pads=[1, 1, 1, 1],
    )
    channels = 64
    for number, (blocks, width) in enumerate(STAGES, 1):
        for block in range(blocks):
            stride = 2 if number > 1 and block == 0 else 1
            x = net.bottleneck(x, f"stage{number}.{block}", channels, width, stride)
            channels = width * EXPANSION
    x = net.author.node("GlobalAveragePool", [x], "pool")
    x = net.author.node("Flatten", [x], "flat")
    weight = net.matrix("classes.weight", (CLASSES, channels), LOGIT_GAIN)
    bias = net.normal("classes.bias", (CLASSES,), 0.0, 0.05)
    net.author.node("Gemm", [x, weight, bias], "logits", transB=1)
    net.author.output("logits", float32, (1, CLASSES))
    return net.author.model()


class _Net:
    """Layers with weights; each tensor has a generator seeded by its name."""

    def __init__(self, seed: int) -> None:
        from tilewright.frontends.onnx.author import Author

        self.author = Author("resnet50")
        self._seed = seed

    def bottleneck(
        self, x: str, name: str, channels: int, width: int, stride: int
    ) -> str:
        """1x1, 3x3, 1x1 convolutions next to the stream, which is projected where it changes."""
        out = width * EXPANSION
        y = self.convolution(x, f"{name}.reduce", channels, width, 1, 1, relu=True)
        y = self.convolution(y, f"{name}.spatial", width, width, 3, stride, relu=True)
        y = self.convolution(y, f"{name}.expand", width, out, 1, 1, scale=RESIDUAL)
        if channels != out or stride != 1:
            x = self.convolution(x, f"{name}.project", channels, out, 1, stride)
        total = self.author.node("Add", [y, x], f"{name}.sum")
        return self.author.node("Relu", [total], f"{name}.out")

    def convolution(
        self,
        x: str,
        name: str,
        channels: int,
        out: int,
        size: int,
        stride: int,
        *,
        relu: bool = False,
        scale: float = 1.0,
    ) -> str:
        """Convolution with BatchNorm and, on request, a rectifier."""
        gain = 2.0 if relu else 1.0
        weight = self.matrix(f"{name}.weight", (out, channels, size, size), gain)
        y = self.author.node(
            "Conv",
            [x, weight],
            f"{name}.conv",
            kernel_shape=[size, size],
            strides=[stride, stride],
            pads=[size // 2] * 4,
        )
        statistics = [
            self.normal(f"{name}.scale", (out,), scale, 0.1 * scale),
            self.normal(f"{name}.shift", (out,), 0.0, 0.1 * scale),
            self.normal(f"{name}.mean", (out,), 0.0, 0.1),
            self.author.weight(f"{name}.var", self._draw(f"{name}.var").uniform(0.5, 1.5, out)
                               .astype(np.float32)),
        ]  # fmt: skip
        y = self.author.node("BatchNormalization", [y, *statistics], f"{name}.norm")
        return self.author.node("Relu", [y], f"{name}.relu") if relu else y

    def matrix(self, name: str, shape: tuple[int, ...], gain: float) -> str:
        """Normally distributed weights of variance gain / fan-in."""
        return self.normal(name, shape, 0.0, math.sqrt(gain / math.prod(shape[1:])))

    def normal(
        self, name: str, shape: tuple[int, ...], mean: float, spread: float
    ) -> str:
        """Normally distributed weights."""
        values = self._draw(name).standard_normal(shape, dtype=np.float32)
        return self.author.weight(name, np.float32(mean) + np.float32(spread) * values)

    def _draw(self, name: str) -> np.random.Generator:
        return np.random.default_rng([zlib.crc32(name.encode()), self._seed])
