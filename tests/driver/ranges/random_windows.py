"""Random networks of windows with strides, as one executable for ranges of sizes.

    python -m tests.driver.ranges.random_windows 0 200

Each is compared with float64 at its sizes; what is refused is counted, and what is wrong raises.
"""

from __future__ import annotations

import random
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.base.errors import ModelError, TilewrightWarning, UnsupportedError
from tilewright.driver import text
from tilewright.driver.options import Options
from tilewright.driver.ranges import sample_points
from tilewright.driver.sources import import_model
from tilewright.graph.interp import evaluate
from tilewright.graph.specialize import specialize

LEVEL = "x86-64-v3"  # what borders pay depends on the processor


@dataclass
class Network:
    """A chain of layers on [1, 3, h, w]; `x` is its last tensor, of so many channels."""

    r: random.Random
    x: str = "x"
    channels: int = 3
    nodes: list[Any] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)

    def weight(self, *shape: int) -> str:
        rng = np.random.default_rng(self.r.randrange(1 << 30))
        scale = np.sqrt(max(1, int(np.prod(shape[1:]))))
        array = (rng.standard_normal(shape) / scale).astype(np.float32)
        self.weights.append(numpy_helper.from_array(array, f"w{len(self.weights)}"))
        return f"w{len(self.weights) - 1}"

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def geometry(self, kernels: tuple[int, ...]) -> dict[str, Any]:
        kernel = [self.r.choice(kernels) for _ in "hw"]
        found: dict[str, Any] = {
            "kernel_shape": kernel,
            "strides": [self.r.choice((1, 2, 2, 3)) for _ in "hw"],
        }
        if self.r.random() < 0.15:
            found["auto_pad"] = self.r.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
            # Windows that do not touch have negative borders, which ONNX Runtime refuses and ONNX's
            # reference takes in another way.
            pairs = zip(kernel, found["strides"], strict=True)
            found["strides"] = [min(pair) for pair in pairs]
        elif self.r.random() < 0.7:
            found["pads"] = [k // 2 for k in kernel] * 2
        else:
            found["pads"] = [self.r.randint(0, k // 2) for k in (*kernel, *kernel)]
        return found

    def convolution(self) -> None:
        made = self.r.choice((2, 4, 8))
        shape = self.geometry((1, 2, 3, 3, 5))
        w = self.weight(made, self.channels, *shape["kernel_shape"])
        self.x, self.channels = self.op("Conv", self.x, w, **shape), made

    def pooling(self) -> None:
        kind = self.r.choice(("MaxPool", "AveragePool"))
        shape = self.geometry((2, 2, 3))
        if "pads" in shape and self.r.random() < 0.4 and shape["strides"] != [1, 1]:
            shape["ceil_mode"] = (
                1  # ONNX's reference adds it to extents without strides
            )
        if kind == "AveragePool" and self.r.random() < 0.5:
            shape["count_include_pad"] = 1
        self.x = self.op(kind, self.x, **shape)

    def activation(self) -> None:
        self.x = self.op(self.r.choice(("Relu", "Sigmoid", "Neg")), self.x)

    def residual(self) -> None:
        steps, k = [self.r.choice((1, 2, 3))] * 2, self.r.choice((3, 5))
        c = self.channels
        a = self.op(
            "Conv", self.x, self.weight(c, c, k, k), strides=steps, pads=[k // 2] * 4
        )
        b = self.op("Conv", self.x, self.weight(c, c, 1, 1), strides=steps)
        self.x = self.op("Add", self.op("Relu", a), b)

    def head(self) -> None:
        f = self.op("Flatten", self.op("GlobalAveragePool", self.x))
        self.x = self.op("Gemm", f, self.weight(self.channels, 5), self.weight(5))


def network(seed: int, width: int | str) -> onnx.ModelProto:
    """The model number `seed`."""
    n = Network(random.Random(seed))
    layers = [n.convolution] * 4 + [n.pooling] * 3 + [n.activation, n.residual]
    for _ in range(n.r.randint(1, 4)):
        n.r.choice(layers)()
    if n.r.random() < 0.4:
        n.head()
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, "h", width])
    made = helper.make_tensor_value_info(n.x, TensorProto.FLOAT, None)
    graph = helper.make_graph(n.nodes, "net", [given], [made], n.weights)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8
    )


def forms(
    source: onnx.ModelProto, points: Iterable[dict[str, int]], threads: int = 1
) -> int:
    """How many plans the sizes have that differ in more than numbers: borders are made only where
    windows reach them, and where that pays."""
    plans = (text(source, "plan", dims=p, mcpu=LEVEL, threads=threads) for p in points)
    return len({re.sub(r"\d+", "", plan) for plan in plans})


def run(seed: int) -> str:
    """What became of it: right, apart (right, but sizes share no code, which a warning says, and
    not all of their plans have one form), refused, or no model at some of the sizes."""
    pick = random.Random(seed + 7)
    two, wide = pick.random() < 0.3, pick.random() < 0.3
    # All are compared; or some; or some, and all only if these do not tell.
    few, most = pick.choice(((24, 24), (8, 256))) if wide else (64, 256)
    least = pick.choice((16, 24, 31))
    dims = {"h": (least, least + pick.choice((13, 24)))}
    if two:
        dims["w"] = (16, 22)
    source = network(seed, "w" if two else pick.choice((16, 17, 33)))
    how: Any = {
        "jit": False,
        "cache": False,
        "threads": pick.choice((1, 2)),
        "mcpu": LEVEL,
    }
    try:
        with (
            mock.patch.multiple(sample_points, FEW=few, COMPARED=most),
            warnings.catch_warnings(record=True, category=TilewrightWarning) as said,
        ):
            warnings.simplefilter("always", TilewrightWarning)
            exe: Any = tw.compile(source, dims=dims, **how)
    except UnsupportedError:
        return "refused"
    except ModelError:
        return "no model"
    assert all("share none" in str(w.message) for w in said), (seed, said)
    graph = import_model(source, (), Options.of({}))
    points = [{"h": h} for h in range(dims["h"][0], dims["h"][1] + 1)]
    if two:
        points = [p | {"w": w} for p in points for w in range(16, 23)]
    assert not said or forms(source, points, how["threads"]) > 1, seed
    for extents in pick.sample(points, min(12, len(points))):
        sized = specialize(graph, extents)
        shape = [int(d) for d in sized.inputs[0].extents]
        x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
        (want,) = evaluate(sized, {"x": x}, float64=True).values()
        found = exe(x)
        assert found.shape == want.shape, (seed, extents)
        most = max(float(np.abs(want).max()), 1e-3)
        assert float(np.abs(found - want).max()) <= 2e-4 * most, (seed, extents)
    return "apart" if said else "right"


if __name__ == "__main__":
    first, programs = map(int, sys.argv[1:])
    print(Counter(run(seed) for seed in range(first, first + programs)))
