"""Networks written in plain torch.nn and exported to ONNX: CNNs and two encoders."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.weights import RESIDUAL, draw


def _gain(module: nn.Module, gain: float) -> nn.Module:
    """Notes on a module what its drawn weights are multiplied with (the variance of matrices)."""
    module.weight_gain = gain
    return module


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
    return [_gain(conv, gain), _gain(nn.BatchNorm2d(out), scale)]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut (He et al. 2016)."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        project = stride != 1 or channels != out
        scale = math.sqrt(0.5) if project else RESIDUAL
        first = _conv_norm(channels, out, 3, stride)
        self.branch = nn.Sequential(*first, nn.ReLU(), *_conv_norm(out, out, 3, scale=scale))
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
    """Expand, depthwise, project; a shortcut where the shapes agree (Sandler et al. 2018)."""

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
                layers.append(InvertedResidual(channels, out, stride if i == 0 else 1, expand))
                channels = out
        layers += [*_conv_norm(channels, 1280, 1, gain=1.0), nn.ReLU6()]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000)]
        super().__init__(*layers)


class SelfAttention(nn.Module):
    """Multi-head attention with an explicit softmax; an additive mask may be given."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        batch, length, width = x.shape

        def split(y: Tensor) -> Tensor:
            return y.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // self.heads)
        if mask is not None:
            scores = scores + mask
        context = torch.softmax(scores, dim=-1) @ v
        return self.out(context.transpose(1, 2).reshape(batch, length, width))


class EncoderLayer(nn.Module):
    """Attention and a two-layer perceptron; normalised after each (BERT) or before each (ViT)."""

    def __init__(self, width: int, heads: int, *, norm_first: bool) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.attention = SelfAttention(width, heads)
        self.norm1, self.norm2 = nn.LayerNorm(width, 1e-6), nn.LayerNorm(width, 1e-6)
        widen, narrow = nn.Linear(width, 4 * width), _gain(nn.Linear(4 * width, width), 2.0)
        self.perceptron = nn.Sequential(widen, nn.GELU(), narrow)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.norm_first:
            x = x + self.attention(self.norm1(x), mask)
            return x + self.perceptron(self.norm2(x))
        x = self.norm1(x + self.attention(x, mask))
        return self.norm2(x + self.perceptron(x))


class BertBase(nn.Module):
    """A BERT-base-sized encoder: ids, segments and a mask in; states and the pooled state out."""

    def __init__(self, width: int = 768, heads: int = 12, layers: int = 12) -> None:
        super().__init__()
        self.words = nn.Embedding(30522, width)
        self.positions = nn.Embedding(512, width)
        self.segments = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, 1e-12)
        self.layers = nn.ModuleList(
            EncoderLayer(width, heads, norm_first=False) for _ in range(layers)
        )
        self.pooler = nn.Linear(width, width)

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        places = torch.arange(input_ids.shape[1])
        x = self.words(input_ids) + self.segments(token_type_ids) + self.positions(places)
        x = self.norm(x)
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, mask)
        return x, torch.tanh(self.pooler(x[:, 0]))


class VitSmall(nn.Module):
    """ViT-S/16: 3x224x224 in, 1000 logits out (Dosovitskiy et al. 2021; DeiT-S)."""

    def __init__(self, width: int = 384, heads: int = 6, layers: int = 12) -> None:
        super().__init__()
        self.patches = _gain(nn.Conv2d(3, width, 16, 16), 1.0)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, 197, width))
        self.layers = nn.Sequential(
            *(EncoderLayer(width, heads, norm_first=True) for _ in range(layers))
        )
        self.norm = nn.LayerNorm(width, 1e-6)
        self.head = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.places
        return self.head(self.norm(self.layers(x))[:, 0])


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "lenet": LeNet,
    "lenet_b64": LeNet,
    "resnet18": ResNet18,
    "mobilenet_v2": MobileNetV2,
    "bert_base": BertBase,
    "vit_small": VitSmall,
}

ROLE_OF_PARAMETER: dict[tuple[type[nn.Module], str], str] = {
    (nn.Conv2d, "weight"): "matrix",
    (nn.Conv2d, "bias"): "bias",
    (nn.Linear, "weight"): "matrix",
    (nn.Linear, "bias"): "bias",
    (nn.BatchNorm2d, "weight"): "scale",
    (nn.BatchNorm2d, "bias"): "shift",
    (nn.BatchNorm2d, "running_mean"): "mean",
    (nn.BatchNorm2d, "running_var"): "var",
    (nn.LayerNorm, "weight"): "scale",
    (nn.LayerNorm, "bias"): "shift",
    (nn.Embedding, "weight"): "table",
    (VitSmall, "token"): "table",
    (VitSmall, "places"): "table",
}

# Roles that a module's noted gain applies to.
GAINED = {"matrix", "scale", "shift"}


def fill(network: str, model: nn.Module, logit_gain: float) -> None:
    """Draws every parameter and statistic of the model; the last Linear by logit_gain too."""
    last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    for path, module in model.named_modules():
        tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        default = 2.0 if isinstance(module, nn.Conv2d) or isinstance(model, LeNet) else 1.0
        for name, tensor in tensors:
            role = ROLE_OF_PARAMETER.get((type(module), name))
            if role is None:
                continue
            gain = getattr(module, "weight_gain", default if role == "matrix" else 1.0)
            gain = gain * logit_gain if module is last and role == "matrix" else gain
            value = draw(network, f"{path}.{name}", role, tuple(tensor.shape),
                         gain if role in GAINED else 1.0)  # fmt: skip
            tensor.data.copy_(torch.from_numpy(value))


def build(network: str, example: dict[str, torch.Tensor], logit_gain: float, path: Path) -> None:
    """Exports the network to `path` with drawn weights; `example` names and shapes the inputs."""
    model = NETWORKS[network]().eval()
    fill(network, model, logit_gain)
    outputs = ["states", "pooled"] if network == "bert_base" else ["logits"]
    # The exporter tells of absent torchvision and of its own deprecations: nothing about us.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        torch.onnx.export(
            model, tuple(example.values()), path, dynamo=True, external_data=False, verbose=False,
            input_names=list(example), output_names=outputs, opset_version=18,
        )  # fmt: skip
