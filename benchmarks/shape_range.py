"""One executable for a range of shapes against one per shape: time ratios on 20 shapes each.

    python -m benchmarks.shape_range [--models bert,mlp] [--threads 1] [--shapes N] [--rounds N]

Both run interleaved, on one thread timed by its processor time; a ratio only counts if both outputs
agree with PyTorch's. Above 1, the shared code is slower. The whole networks (resnet18, mobilenetv2,
minilm) are those of `benchmarks.models`; code for a shape alone takes seconds to compile.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import nn

import tilewright as tw
from benchmarks import conv_nets, sequence_nets
from benchmarks.turns import by_turns, clock_of, stopwatch

RELATIVE: Final = 2e-4
ABSOLUTE: Final = 2e-5  # of the greatest value, if that is above 1
CALLS: Final = 0.005  # seconds of calls at a time


class Encoder(nn.Module):
    """One layer of a transformer on [batch, length, width], with 4 heads."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        """The layer, with a softmax of scores scaled by the root of a head's width."""
        b, t, d = x.shape
        q, k, v = (
            part(x).view(b, t, 4, d // 4).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        weights = torch.softmax(q @ k.transpose(-1, -2) / (d // 4) ** 0.5, -1)
        mixed = (weights @ v).transpose(1, 2).reshape(b, t, d)
        x = self.norm(x + self.o(mixed))
        return x + self.down(nn.functional.gelu(self.up(x)))


class Bert(nn.Module):
    """Embeddings of words and their places, and two layers, on [batch, length] of words."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(1000, width), nn.Embedding(4096, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(Encoder(width), Encoder(width))

    def forward(self, words: Any) -> Any:
        """The last layer's result."""
        places = self.places(torch.arange(words.shape[1]))
        return self.layers(self.norm(self.words(words) + places))


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


class Inverted(nn.Module):
    """A wider image, a depthwise convolution of it, and as many channels as before."""

    def __init__(self, channels: int, wide: int) -> None:
        super().__init__()
        self.steps = nn.Sequential(
            nn.Conv2d(channels, wide, 1),
            nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide),
            nn.ReLU6(),
            nn.Conv2d(wide, channels, 1),
        )

    def forward(self, x: Any) -> Any:
        """The block on [batch, channels, height, width]."""
        return x + self.steps(x)


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


def mobilenet() -> nn.Module:
    """A stem as MobileNet's and two of its blocks on [1, 3, height, width]."""
    return nn.Sequential(
        nn.Conv2d(3, 24, 3, stride=2, padding=1),
        nn.ReLU6(),
        Inverted(24, 144),
        nn.Conv2d(24, 64, 3, stride=2, padding=1),
        Inverted(64, 384),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


class MiniLM(nn.Module):
    """An encoder of six layers of width 384, on [batch, length] of words."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = sequence_nets.Bert(384, 12, 6)

    def forward(self, words: Any) -> Any:
        """The last layer's result; all words count, and are of one segment."""
        ones = torch.ones_like(words)
        return self.encoder(words, torch.zeros_like(words), ones)[0]


@dataclass(frozen=True)
class Case:
    """A model and the shapes it is timed at.

    shape: of an example. ends: the least and the greatest extent of each open axis. words: the
    input is numbers of words; extents are then spaced by factors, as those of sentences are.
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    ends: dict[int, tuple[int, int]]
    words: bool = False

    def extents(self, count: int) -> list[dict[int, int]]:
        """The extents of the open axes; of two, the second one falls as the first one rises."""
        spaced = np.geomspace if self.words else np.linspace
        lines = [
            spaced(*ends, count).round().astype(int) for ends in self.ends.values()
        ]
        if len(lines) > 1:
            lines[1] = lines[1][::-1]
        return [
            dict(zip(self.ends, map(int, point), strict=True))
            for point in zip(*lines, strict=True)
        ]

    def input(self, extents: dict[int, int]) -> torch.Tensor:
        """A random one."""
        shape = [extents.get(a, d) for a, d in enumerate(self.shape)]
        return torch.randint(0, 1000, shape) if self.words else torch.randn(shape)


CASES: dict[str, Case] = {
    "encoder": Case(Encoder, (1, 16, 64), {1: (2, 40)}),
    "bert": Case(Bert, (2, 16), {0: (1, 64), 1: (1, 4096)}, words=True),
    "mlp": Case(mlp, (16, 64), {0: (2, 40)}),
    "cnn": Case(cnn, (4, 3, 16, 16), {0: (2, 40)}),
    "image": Case(image, (1, 3, 32, 32), {2: (16, 54)}),
    "mobilenet": Case(mobilenet, (1, 3, 96, 96), {2: (64, 197), 3: (64, 197)}),
    "resnet": Case(resnet, (1, 3, 96, 96), {2: (64, 197), 3: (64, 197)}),
    "resnet18": Case(conv_nets.ResNet18, (1, 3, 96, 96), {2: (64, 256), 3: (64, 256)}),
    "mobilenetv2": Case(
        conv_nets.MobileNetV2, (1, 3, 96, 96), {2: (64, 256), 3: (64, 256)}
    ),
    "minilm": Case(MiniLM, (2, 16), {0: (1, 8), 1: (8, 256)}, words=True),
}


def ratios(
    name: str, shapes: int, rounds: int, threads: int
) -> list[tuple[str, float, float]]:
    """The extents, microseconds of code for them alone, and the ratio, for each shape.

    Prints the seconds that the compilation of the range took.
    """
    case = CASES[name]
    torch.manual_seed(0)
    module = case.make().eval()
    dims = {
        a: torch.export.Dim(f"n{a}", min=least, max=2 * most)
        for a, (least, most) in case.ends.items()
    }
    example = (case.input({}),)
    how: dict[str, Any] = {"threads": threads, "dynamic_shapes": (dims,)}
    open_dims = {f"n{a}": ends for a, ends in case.ends.items()}
    begin = time.perf_counter()
    shared = tw.compile(module, example, dims=open_dims, jit=False, cache=False, **how)
    took = time.perf_counter() - begin
    print(f"{name:11} the range took {took:.1f} s to compile", flush=True)
    found = []
    for extents in case.extents(shapes):
        x = case.input(extents)
        fixed = {f"n{a}": extent for a, extent in extents.items()}
        alone = tw.compile(module, example, dims=fixed, **how)
        with torch.no_grad():
            want = module(x).numpy()
        runs = [shared.specialized({shared.inputs[0].name: x.numpy()}), alone]
        for run in (shared, alone):
            most = max(1.0, float(np.abs(want).max()))
            np.testing.assert_allclose(run(x.numpy()), want, RELATIVE, ABSOLUTE * most)
        generic, special = medians(runs, x.numpy(), rounds, threads)
        shown = " x ".join(map(str, extents.values()))
        found.append((shown, special * 1e6, generic / special))
    return found


def medians(runs: Sequence[Any], x: Any, rounds: int, threads: int) -> list[float]:
    """Seconds per call, interleaved; of processor time on one thread."""
    clock = clock_of(threads)
    once = stopwatch(partial(runs[-1], x), clock)()
    calls = 1 + int(CALLS / max(once, 1e-6))
    timed = {n: stopwatch(partial(run, x), clock, calls) for n, run in enumerate(runs)}
    return [float(np.median(t)) for t in by_turns(timed, rounds).values()]


def main() -> None:
    """Print a row per shape, and the geometric mean of each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--models", default=",".join(CASES), help="separated by commas")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    names = given.models.split(",")
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"no models {', '.join(unknown)}; there are {', '.join(CASES)}")
    for name in names:
        rows = ratios(name, given.shapes, given.rounds, given.threads)
        for shown, micros, ratio in rows:
            print(f"{name:11} {shown:9} {micros:8.1f} us alone  ratio {ratio:.2f}")
        mean = float(np.exp(np.mean([np.log(r) for *_, r in rows])))
        print(
            f"{name:11} geometric mean {mean:.2f}, worst {max(r for *_, r in rows):.2f}"
        )


if __name__ == "__main__":
    main()
