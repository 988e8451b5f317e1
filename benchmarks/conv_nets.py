"""Convolutional benchmark networks in plain torch.nn."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from benchmarks.weights import RESIDUAL, gained


class LeNet(nn.Sequential):
    """The LeNet-5 form of PyTorch's tutorials: 1x32x32 in, 10 logits out."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(400, 120), nn.ReLU(),
            nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
        )  # fmt: skip


def _conv_norm(
    channels: int, out: int, kernel: int, stride: int = 1, *, groups: int = 1,
    gain: float = 2.0, scale: float = 1.0,
) -> list[nn.Module]:  # fmt: skip
    pad = kernel // 2
    conv = nn.Conv2d(channels, out, kernel, stride, pad, groups=groups, bias=False)
    return [gained(conv, gain), gained(nn.BatchNorm2d(out), scale)]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut (He et al. 2016)."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        project = stride != 1 or channels != out
        scale = math.sqrt(0.5) if project else RESIDUAL
        first = _conv_norm(channels, out, 3, stride)
        self.branch = nn.Sequential(
            *first, nn.ReLU(), *_conv_norm(out, out, 3, scale=scale)
        )
        shortcut = _conv_norm(channels, out, 1, stride, scale=scale) if project else []
        self.shortcut = nn.Sequential(*shortcut)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.branch(x) + self.shortcut(x))


class ResNet18(nn.Sequential):
    """ResNet-18: 3x224x224 in, 1000 logits out."""

    def __init__(self) -> None:
        blocks: list[nn.Module] = []
        channels = 64
        for out, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [BasicBlock(channels, out, stride), BasicBlock(out, out, 1)]
            channels = out
        super().__init__(
            *_conv_norm(3, 64, 7, 2, gain=1.0), nn.ReLU(), nn.MaxPool2d(3, 2, 1), *blocks,
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000),
        )  # fmt: skip


class InvertedResidual(nn.Module):
    """Expand, depthwise, project; a shortcut if the shapes agree (Sandler et al. 2018)."""

    def __init__(self, channels: int, out: int, stride: int, expand: int) -> None:
        super().__init__()
        wide = channels * expand
        self.shortcut = stride == 1 and channels == out
        layers: list[nn.Module] = []
        if expand != 1:
            layers += [*_conv_norm(channels, wide, 1, gain=1.0), nn.ReLU6()]
        layers += [*_conv_norm(wide, wide, 3, stride, groups=wide), nn.ReLU6()]
        layers += _conv_norm(wide, out, 1, scale=RESIDUAL if self.shortcut else 1.0)
        self.branch = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x) if self.shortcut else self.branch(x)


# expansion, output channels, repeats, stride of the first: table 2 of the MobileNetV2 paper.
MOBILE_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
                 (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip


class MobileNetV2(nn.Sequential):
    """MobileNetV2 at width 1: 3x224x224 in, 1000 logits out."""

    def __init__(self) -> None:
        layers = [*_conv_norm(3, 32, 3, 2, gain=1.0), nn.ReLU6()]
        channels = 32
        for expand, out, repeats, stride in MOBILE_STAGES:
            for i in range(repeats):
                layers.append(
                    InvertedResidual(channels, out, stride if i == 0 else 1, expand)
                )
                channels = out
        layers += [*_conv_norm(channels, 1280, 1, gain=1.0), nn.ReLU6()]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000)]
        super().__init__(*layers)


class UNetSmall(nn.Module):
    """A U-Net of three levels: 3 channels in, one map of the same size out (Ronneberger 2015)."""

    def __init__(self, widths: tuple[int, ...] = (16, 32, 64, 128)) -> None:
        super().__init__()
        into = (3, *widths)
        self.down = nn.ModuleList(
            self._pair(into[i], widths[i]) for i in range(len(widths))
        )
        # A transposed 2x2 convolution of stride 2 sums over its input channels only.
        self.lift = nn.ModuleList(
            gained(nn.ConvTranspose2d(2 * w, w, 2, 2), 4.0) for w in widths[:-1]
        )
        self.up = nn.ModuleList(self._pair(2 * w, w) for w in widths[:-1])
        self.head = nn.Conv2d(widths[0], 1, 1)

    @staticmethod
    def _pair(channels: int, out: int) -> nn.Module:
        return nn.Sequential(
            *_conv_norm(channels, out, 3),
            nn.ReLU(),
            *_conv_norm(out, out, 3),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for index, pair in enumerate(self.down):
            x = pair(torch.max_pool2d(x, 2) if index else x)
            kept.append(x)
        for level in reversed(range(len(self.up))):
            x = self.up[level](torch.cat([kept[level], self.lift[level](x)], dim=1))
        return self.head(x)


class ConvNextBlock(nn.Module):
    """Depthwise 7x7, then a perceptron over channels, scaled and added (Liu et al. 2022)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight_gain = RESIDUAL
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, 1e-6)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = gained(nn.Linear(4 * width, width), 2.0)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.narrow(nn.functional.gelu(self.widen(y)))
        return x + y.permute(0, 3, 1, 2)


class ChannelNorm(nn.LayerNorm):
    """Layer normalization over the channels of NCHW images."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNextTiny(nn.Sequential):
    """ConvNeXt at its smallest published size: 3x224x224 in, 1000 logits out."""

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        channels, kernel = 3, 4
        for width, depth in ((96, 3), (192, 3), (384, 9), (768, 3)):
            conv = gained(nn.Conv2d(channels, width, kernel, kernel), 1.0)
            norm = ChannelNorm(width if channels == 3 else channels, 1e-6)
            layers += [conv, norm] if channels == 3 else [norm, conv]
            layers += [ConvNextBlock(width) for _ in range(depth)]
            channels, kernel = width, 2
        pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(768, 1e-6)]
        super().__init__(*layers, *pool, nn.Linear(768, 1000))
