"""The operators that are timed on their own, each a torch module and the shapes of its inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.sequence_nets import attend

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Operator:
    """make: the module that is timed; shapes: of its float32 inputs x0, x1, …"""

    make: Callable[[], nn.Module]
    shapes: tuple[Shape, ...]


class Apply(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor) -> Tensor:
        return self.function(*tensors)


class Bfloat16(nn.Module):
    """A module with bfloat16 weights that computes in bfloat16, between float32 tensors."""

    opset = 22  # the first whose Conv takes bfloat16

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner.bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.bfloat16()).float()


def attention_mask(column: Tensor, row: Tensor) -> Tensor:
    """BERT's additive mask of a column [b, m, 1] and a row [b, 1, n] of ones and zeros."""
    return (1.0 - (column * row)[:, None]) * -10000.0


CHAIN: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x * 1.5,
    lambda x: x + 0.25,
    torch.relu,
    lambda x: 1.0 - x,
    lambda x: torch.clamp(x, -2.0, 2.0),
)


def chain(length: int, x: Tensor) -> Tensor:
    """`length` cheap elementwise operators, one after another."""
    for place in range(length):
        x = CHAIN[place % len(CHAIN)](x)
    return x


def _apply(function: Callable[..., Tensor], *shapes: Shape) -> Operator:
    return Operator(partial(Apply, function), shapes)


def _conv(
    image: tuple[int, int], out: int, size: int, stride: int = 1, groups: int = 1
) -> Operator:
    """A convolution with bias that keeps the size (over its stride); image: channels, width."""
    channels, width = image
    make = partial(nn.Conv2d, channels, out, size, stride, size // 2, groups=groups)
    return Operator(make, ((1, channels, width, width),))


def _norm(width: int) -> Operator:
    return Operator(partial(nn.LayerNorm, width), ((4096, width),))


def _bfloat16(make: Callable[[], nn.Module], shape: Shape) -> Operator:
    return Operator(lambda: Bfloat16(make()), (shape,))


def _heads(heads: int, length: int) -> Operator:
    one = (1, heads, length, 64)
    return _apply(partial(attend, mask=None), one, one, one)


FLOAT32: dict[str, Operator] = {
    **{f"matmul_{n}": _apply(torch.matmul, (n, n), (n, n)) for n in (512, 1024, 2048)},
    **{f"linear_128x{k}x{n}": Operator(partial(nn.Linear, k, n), ((128, k),))
       for k, n in ((768, 768), (768, 3072), (3072, 768))},
    "bmm_12x128x64x128": _apply(torch.matmul, (12, 128, 64), (12, 64, 128)),
    "bmm_12x128x128x64": _apply(torch.matmul, (12, 128, 128), (12, 128, 64)),
    "bmm_192x128x64x128": _apply(torch.matmul, (192, 128, 64), (192, 64, 128)),
    "bmm_192x128x128x64": _apply(torch.matmul, (192, 128, 128), (192, 128, 64)),
    **{f"bias_grad_{m}x{n}": _apply(partial(torch.sum, dim=0), (m, n))
       for m, n in ((4096, 768), (4096, 3072), (16384, 1024))},
    **{f"attention_{h}x{n}": _heads(h, n) for h in (8, 12) for n in (128, 1024)},
    **{f"softmax_4096x{n}": _apply(partial(F.softmax, dim=-1), (4096, n)) for n in (768, 4096)},
    **{f"layernorm_4096x{n}": _norm(n) for n in (768, 4096)},
    "conv3x3_64x56": _conv((64, 56), 64, 3),
    "conv3x3_128x28": _conv((128, 28), 128, 3),
    "conv3x3_256x14": _conv((256, 14), 256, 3),
    "conv3x3_512x7": _conv((512, 7), 512, 3),
    "conv1x1_256x56_64": _conv((256, 56), 64, 1),
    "conv1x1_1024x14_256": _conv((1024, 14), 256, 1),
    "depthwise3x3_144x56": _conv((144, 56), 144, 3, groups=144),
    "depthwise7x7_96x56": _conv((96, 56), 96, 7, groups=96),
    "conv7x7s2_3x224": _conv((3, 224), 64, 7, 2),
    "transpose_2048x2048": _apply(lambda x: x.t().contiguous(), (2048, 2048)),
    "transpose_heads": _apply(lambda x: x.transpose(1, 2).contiguous(), (8, 128, 12, 64)),
    "transpose_nchw_nhwc": _apply(lambda x: x.permute(0, 2, 3, 1).contiguous(), (8, 64, 56, 56)),
    "bert_mask_16x384": _apply(attention_mask, (16, 384, 1), (16, 1, 384)),
    **{f"elementwise_{n}": _apply(partial(chain, n), (4096, 1024)) for n in (1, 5, 20)},
}  # fmt: skip

BFLOAT16: dict[str, Operator] = {
    **{
        f"bf16_linear_{n}": _bfloat16(partial(nn.Linear, n, n), (n, n))
        for n in (1024, 2048)
    },
    "bf16_conv3x3_128x28": _bfloat16(
        partial(nn.Conv2d, 128, 128, 3, padding=1), (1, 128, 28, 28)
    ),
}

OPERATORS: dict[str, Operator] = FLOAT32 | BFLOAT16
