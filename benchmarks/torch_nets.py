"""The networks that are defined in torch: drawn weights, export to ONNX."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

from benchmarks import conv_nets, operators, sequence_nets
from benchmarks.weights import draw

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "lenet": conv_nets.LeNet,
    "lenet_b64": conv_nets.LeNet,
    "resnet18": conv_nets.ResNet18,
    "mobilenet_v2": conv_nets.MobileNetV2,
    "unet_small": conv_nets.UNetSmall,
    "convnext_tiny": conv_nets.ConvNextTiny,
    "bert_base": partial(sequence_nets.Bert, 768, 12, 12),
    "minilm": partial(sequence_nets.Bert, 384, 12, 6),
    "vit_small": sequence_nets.VitSmall,
    "gpt2_6l": sequence_nets.Gpt2,
    "gpt2_6l_step": sequence_nets.Gpt2,
    "lstm2": sequence_nets.Lstm,
}

ROLE_OF_PARAMETER: dict[tuple[type[nn.Module], str], str] = {
    (nn.Conv2d, "weight"): "matrix",
    (nn.Conv2d, "bias"): "bias",
    (nn.ConvTranspose2d, "weight"): "matrix",
    (nn.ConvTranspose2d, "bias"): "bias",
    (nn.Linear, "weight"): "matrix",
    (nn.Linear, "bias"): "bias",
    (nn.BatchNorm2d, "weight"): "scale",
    (nn.BatchNorm2d, "bias"): "shift",
    (nn.BatchNorm2d, "running_mean"): "mean",
    (nn.BatchNorm2d, "running_var"): "var",
    (nn.LayerNorm, "weight"): "scale",
    (nn.LayerNorm, "bias"): "shift",
    (conv_nets.ChannelNorm, "weight"): "scale",
    (conv_nets.ChannelNorm, "bias"): "shift",
    (conv_nets.ConvNextBlock, "scale"): "scale",
    (nn.Embedding, "weight"): "table",
    (sequence_nets.VitSmall, "token"): "table",
    (sequence_nets.VitSmall, "places"): "table",
    **{
        (nn.LSTM, f"weight_{side}_l{n}"): "matrix"
        for side in ("ih", "hh")
        for n in (0, 1)
    },
    **{(nn.LSTM, f"bias_{side}_l{n}"): "bias" for side in ("ih", "hh") for n in (0, 1)},
}

# Roles that a module's noted gain applies to.
GAINED = {"matrix", "scale", "shift", "table"}


def fill(network: str, model: nn.Module, logit_gain: float) -> None:
    """Draws every parameter and statistic of the model; the last matrix by logit_gain too."""
    matrices = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    last = matrices[-1] if matrices else None
    rectified = isinstance(model, conv_nets.LeNet)
    for path, module in model.named_modules():
        tensors = [
            *module.named_parameters(recurse=False),
            *module.named_buffers(recurse=False),
        ]
        default = 2.0 if isinstance(module, nn.Conv2d) or rectified else 1.0
        for name, tensor in tensors:
            role = ROLE_OF_PARAMETER.get((type(module), name))
            if role is None:
                continue
            gain = getattr(module, "weight_gain", default if role == "matrix" else 1.0)
            gain = gain * logit_gain if module is last and role == "matrix" else gain
            value = draw(network, f"{path}.{name}", role, tuple(tensor.shape),
                         gain if role in GAINED else 1.0)  # fmt: skip
            tensor.data.copy_(torch.from_numpy(value))


def module(name: str, logit_gain: float = 1.0) -> nn.Module:
    """The network or operator of this name as a torch module with its drawn weights."""
    make = NETWORKS.get(name) or operators.OPERATORS[name].make
    model = make().eval()
    fill(name, model, logit_gain)
    return model


def build(
    network: str, example: dict[str, torch.Tensor], logit_gain: float, path: Path
) -> None:
    """Exports the network to `path` with drawn weights; `example` names and shapes the inputs."""
    model = module(network, logit_gain)
    # The exporter warns of absent torchvision and its own deprecations, which do not concern us.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", UserWarning)
        torch.onnx.export(
            model, tuple(example.values()), path, dynamo=True, external_data=False,
            verbose=False, opset_version=getattr(model, "opset", 18), input_names=list(example),
            output_names=getattr(model, "outputs", ["output"]),
        )  # fmt: skip
