"""One executable for a range of shapes against one per shape: time ratios on 20 shapes each.

    python -m benchmarks.shape_range [--shapes 20] [--rounds 15] [--models image,resnet]

Both run interleaved on one thread and are timed by its processor time; a ratio only counts if both
outputs agree with PyTorch's. Above 1, the shared code is slower.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

import tilewright as tw

TOLERANCE = {"rtol": 2e-4, "atol": 2e-5}


class Encoder(nn.Module):
    """One layer of a transformer on [1, length, 64]."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(64, 64) for _ in range(4))
        self.norm = nn.LayerNorm(64)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: Any) -> Any:
        """The layer, with 4 heads."""
        b, t, d = x.shape
        q, k, v = (
            part(x).view(b, t, 4, 16).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        weights = torch.softmax(q @ k.transpose(-1, -2) / 4, -1)
        mixed = (weights @ v).transpose(1, 2).reshape(b, t, d)
        x = self.norm(x + self.o(mixed))
        return x + self.down(nn.functional.gelu(self.up(x)))


def mlp() -> nn.Module:
    """Three layers on [batch, 64]."""
    return nn.Sequential(
        nn.Linear(64, 256),
        nn.ReLU(),
        nn.Linear(256, 256),
        nn.GELU(),
        nn.Linear(256, 10),
    )


def cnn() -> nn.Module:
    """Two convolutions on [batch, 3, 16, 16]."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def image() -> nn.Module:
    """Convolutions and a pooling with strides on [1, 3, height, 32]."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


class Residual(nn.Module):
    """Two convolutions and what they are added to."""

    def __init__(self, given: int, made: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(given, made, 3, stride, padding=1)
        self.second = nn.Conv2d(made, made, 3, padding=1)
        self.beside = nn.Conv2d(given, made, 1, stride)

    def forward(self, x: Any) -> Any:
        """The block on [batch, given, height, width]."""
        inner = self.second(torch.relu(self.first(x)))
        return torch.relu(inner + self.beside(x))


def resnet() -> nn.Module:
    """A stem as ResNet's and two blocks on [1, 3, height, width]."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, stride=2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        Residual(64, 64, 1),
        Residual(64, 128, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


# Model, shape of its input, the axes that are open, their least extent, and the step to the next.
Case = tuple[Callable[[], nn.Module], tuple[int, ...], tuple[int, ...], int, int]
CASES: dict[str, Case] = {
    "encoder": (Encoder, (1, 16, 64), (1,), 2, 2),
    "mlp": (mlp, (16, 64), (0,), 2, 2),
    "cnn": (cnn, (4, 3, 16, 16), (0,), 2, 2),
    "image": (image, (1, 3, 32, 32), (2,), 16, 2),
    "resnet": (resnet, (1, 3, 96, 96), (2, 3), 64, 7),
}


def ratios(name: str, shapes: int, rounds: int) -> list[tuple[int, float, float]]:
    """The extent, microseconds of code for it alone, and the ratio, for each shape.

    Of two open axes, the second one has the extents in the opposite order.
    """
    make, shape, axes, least, step = CASES[name]
    module = make().eval()
    dims = {a: torch.export.Dim(f"n{a}", min=least, max=512) for a in axes}
    example = (torch.randn(shape),)
    how: dict[str, Any] = {"threads": 1, "dynamic_shapes": (dims,)}
    most = least + step * (shapes - 1)
    open_dims = {f"n{a}": (least, most + 1) for a in axes}
    shared = tw.compile(module, example, dims=open_dims, jit=False, **how)
    found = []
    for n in range(least, most + 1, step):
        extents = dict(zip(axes, (n, most + least - n), strict=False))
        x = torch.randn([extents.get(a, d) for a, d in enumerate(shape)])
        fixed = {f"n{a}": extent for a, extent in extents.items()}
        alone = tw.compile(module, example, dims=fixed, **how)
        with torch.no_grad():
            want = module(x).numpy()
        runs = [run.specialized({run.inputs[0].name: x.numpy()}) for run in (shared,)]
        runs.append(alone)
        for run in (shared, alone):
            np.testing.assert_allclose(run(x.numpy()), want, **TOLERANCE)
        times: list[list[float]] = [[], []]
        for _ in range(rounds):
            for run, taken in zip(runs, times, strict=True):
                began = time.thread_time()
                for _ in range(10):
                    run(x.numpy())
                taken.append((time.thread_time() - began) / 10)
        generic, special = (float(np.median(t)) for t in times)
        found.append((n, special * 1e6, generic / special))
    return found


def main() -> None:
    """Print a row per shape, and the geometric mean of each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--models", default=",".join(CASES), help="separated by commas")
    given = parser.parse_args()
    for name in given.models.split(","):
        rows = ratios(name, given.shapes, given.rounds)
        for n, micros, ratio in rows:
            print(f"{name:8} n = {n:3}  {micros:8.1f} us alone  ratio {ratio:.2f}")
        mean = float(np.exp(np.mean([np.log(r) for *_, r in rows])))
        print(
            f"{name:8} geometric mean {mean:.2f}, worst {max(r for *_, r in rows):.2f}"
        )


if __name__ == "__main__":
    main()
