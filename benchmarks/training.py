"""Training steps against PyTorch: one step of SGD on one thread, rounds interleaved.

python -m benchmarks.training [--rounds 7] [--compile] [--only lenet]

Each network is one torch.nn.Module: PyTorch trains it unchanged, and with --compile by
torch.compile; Tilewright what torch.export makes of it. The first losses are compared. Times are of
the calling thread (`time.thread_time`), so that other work on the machine counts little.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

import tilewright as tw
from benchmarks.turns import by_turns, clock_of, stopwatch

RATE = 0.01


def lenet() -> tuple[nn.Module, Any, Any]:
    """LeNet-5 on 64 images of 28x28."""
    module = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )
    return module, torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))


def convolution(
    before: int, after: int, size: int, stride: int, normalized: bool
) -> nn.Module:
    """With a bias, or normalized by the batch, of which no running mean is kept."""
    made = nn.Conv2d(before, after, size, stride, size // 2, bias=not normalized)
    if not normalized:
        return made
    return nn.Sequential(made, nn.BatchNorm2d(after, track_running_stats=False))


class Residual(nn.Module):
    """Two convolutions next to a shortcut."""

    def __init__(self, before: int, after: int, stride: int, normalized: bool) -> None:
        super().__init__()
        self.first = convolution(before, after, 3, stride, normalized)
        self.second = convolution(after, after, 3, 1, normalized)
        same = stride == 1 and before == after
        self.short = (
            nn.Identity() if same else convolution(before, after, 1, stride, normalized)
        )

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.first(x))
        return torch.relu(self.second(y) + self.short(x))


def resnet18(normalized: bool = False) -> tuple[nn.Module, Any, Any]:
    """ResNet-18 on 4 images of 64x64, without normalizations or with those by batch."""
    widths = (64, 64, 128, 256, 512)
    layers: list[nn.Module] = [
        convolution(3, 64, 7, 2, normalized),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    for n in range(4):
        stride = 1 if n == 0 else 2
        layers.append(Residual(widths[n], widths[n + 1], stride, normalized))
        layers.append(Residual(widths[n + 1], widths[n + 1], 1, normalized))
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)]
    module = nn.Sequential(*layers)
    return module, torch.randn(4, 3, 64, 64), torch.randint(0, 10, (4,))


def encoder() -> tuple[nn.Module, Any, Any]:
    """A 4-layer encoder of width 128 on 8 sequences of 64."""
    layer = nn.TransformerEncoderLayer(
        128, 4, 512, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    module = nn.Sequential(
        nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(128, 10)
    )
    return module, torch.randn(8, 64, 128), torch.randint(0, 10, (8, 64))


NETWORKS = {
    "lenet": lenet,
    "resnet18": resnet18,
    "resnet18_norm": lambda: resnet18(normalized=True),
    "encoder": encoder,
}


def by_torch(module: nn.Module, x: Any, t: Any) -> Callable[[], float]:
    """A step of PyTorch's."""
    optimizer = torch.optim.SGD(module.parameters(), RATE)

    def step() -> float:
        y = module(x)
        loss = nn.functional.cross_entropy(y.reshape(-1, y.shape[-1]), t.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def compare(name: str, rounds: int, compiled: bool) -> None:
    """Print the losses of the first step, the medians, and PyTorch's over ours."""
    torch.manual_seed(0)
    module, x, t = NETWORKS[name]()
    ours = tw.compile_training_step(
        module, "cross_entropy", tw.optim.SGD(RATE), (x,), threads=1
    )
    module.train()
    steps: dict[str, Callable[[], float]] = {
        "tilewright": lambda: ours.step(x.numpy(), t.numpy())
    }
    if compiled:
        import copy

        fast = torch.compile(copy.deepcopy(module))
        steps["torch.compile"] = by_torch(fast, x, t)
    steps["torch eager"] = by_torch(module, x, t)
    first = {k: step() for k, step in steps.items()}
    if not np.allclose(list(first.values()), first["torch eager"], rtol=1e-3):
        raise SystemExit(f"{name}: the losses differ: {first}")
    timed = {k: stopwatch(step, clock_of(1)) for k, step in steps.items()}
    times = by_turns(timed, rounds)
    median = {k: statistics.median(v) * 1e3 for k, v in times.items()}
    for k, ms in median.items():
        ratio = ms / median["tilewright"]
        print(f"{name:13} {k:14} {ms:9.2f} ms  {ratio:5.2f}  loss {first[k]:.5f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--compile", action="store_true", help="torch.compile too")
    parser.add_argument("--only", choices=NETWORKS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in [given.only] if given.only else NETWORKS:
        compare(name, given.rounds, given.compile)


if __name__ == "__main__":
    main()
