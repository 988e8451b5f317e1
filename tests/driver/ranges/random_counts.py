"""Random networks of numbers that two or three sizes give, as one executable for ranges of sizes.

    python -m tests.driver.ranges.random_counts 0 200

Divisors of means, products, quotients and maxima of sizes, reshapes, concatenations, borders and
windows with strides. Few sizes are planned, so that most are told by proofs. Each network is
compared with ONNX's reference; what is refused is counted, and what is wrong raises.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tests.driver.ranges import random_windows
from tilewright.base.errors import ModelError, TilewrightWarning, UnsupportedError
from tilewright.driver.ranges import sample_points

H, W = 2, 3


class Network(random_windows.Network):
    """Layers on [b, c, h, w]; `x` is their last tensor, with these four axes."""

    def ints(self, *numbers: int) -> str:
        array = np.array(numbers, np.int64)
        self.weights.append(numpy_helper.from_array(array, f"i{len(self.weights)}"))
        return f"i{len(self.weights) - 1}"

    def extent(self, x: str, axis: int) -> str:
        """One number, in an array of one axis."""
        return self.op("Shape", x, start=axis, end=axis + 1)

    def number(self, x: str) -> str:
        """A positive number that sizes give, of up to three of them."""
        h, w = self.extent(x, H), self.extent(x, W)
        one, two, four = self.ints(1), self.ints(2), self.ints(4)
        area = self.op("Mul", h, w)
        return self.r.choice(
            (
                lambda: h,
                lambda: area,
                lambda: area,
                lambda: self.op("Mul", area, self.extent(x, 0)),
                lambda: self.op("Mul", self.op("Add", h, one), w),
                lambda: self.op("Add", self.op("Div", h, two), w),
                lambda: self.op("Mul", self.op("Div", h, two), self.op("Div", w, four)),
                lambda: self.op("Mul", self.op("Add", h, w), self.extent(x, 0)),
                lambda: self.op("ReduceProd", self.op("Shape", x), keepdims=1),
                lambda: self.op("Reshape", self.op("Size", x), one),
                lambda: self.op("Div", area, four),
                lambda: self.op("Max", h, w),
                lambda: self.op("Add", self.op("Mod", h, w), one),
            )
        )()

    def place(self, axis: int) -> str:
        """A number below an extent."""
        n, other = self.extent(self.x, axis), self.extent(self.x, 5 - axis)
        one, two = self.ints(1), self.ints(2)
        return self.r.choice(
            (
                lambda: self.ints(0),
                lambda: one,
                lambda: self.op("Div", n, two),
                lambda: self.op("Div", n, self.ints(3)),
                lambda: self.op("Sub", n, one),
                lambda: self.op("Sub", self.op("Min", n, other), one),
            )
        )()

    def scaled(self) -> None:
        n = self.op("Cast", self.number(self.x), to=TensorProto.FLOAT)
        self.x = self.op(self.r.choice(("Div", "Mul", "Add")), self.x, n)

    def mean(self) -> None:
        axes = self.r.choice(
            ((H,), (W,), (H, W), (H, W), (0, H, W), (1, H), (0, 1, H, W))
        )
        kind = self.r.choice(
            ("ReduceMean", "ReduceMean", "ReduceL2", "ReduceLogSumExp")
        )
        m = self.op(kind, self.x, self.ints(*axes), keepdims=1)
        self.x = self.op(self.r.choice(("Add", "Mul")), self.x, m)

    def norm(self) -> None:
        c = self.channels
        self.x = self.op(
            "InstanceNormalization", self.x, self.weight(c), self.weight(c)
        )

    def longer(self) -> None:
        axis = self.r.choice((H, W))
        other = self.r.choice(
            (
                lambda: self.x,
                lambda: self.op("Relu", self.x),
                lambda: self.op(
                    "MaxPool", self.x, kernel_shape=[3, 1] if axis == H else [1, 3]
                ),
                lambda: self.sliced(axis),
            )
        )()
        self.x = self.op("Concat", *self.r.sample((self.x, other), 2), axis=axis)

    def sliced(self, axis: int) -> str:
        start = self.place(axis)
        end = self.extent(self.x, axis)
        step = self.ints(self.r.choice((1, 1, 1, 2, 3)))
        return self.op("Slice", self.x, start, end, self.ints(axis), step)

    def cut(self) -> None:
        self.x = self.sliced(self.r.choice((H, W)))

    def one_line(self) -> None:
        axis = self.r.choice((H, W))
        row = self.op("Gather", self.x, self.place(axis), axis=axis)
        self.x = self.op("Add", self.x, row)

    def border(self) -> None:
        h, w, two = self.extent(self.x, H), self.extent(self.x, W), self.ints(2)
        amounts = self.r.choice(
            (
                lambda: [self.ints(0, 0, 1, 2), self.ints(0, 0, 0, 1)],
                lambda: [
                    self.ints(0, 0),
                    self.op("Mod", h, two),
                    self.ints(0, 0, 0, 0),
                    self.op("Mod", w, two),
                ],
                lambda: [
                    self.ints(0, 0, 0, 2),
                    self.ints(0, 0),
                    self.op("Div", h, two),
                    self.ints(1),
                ],
                lambda: [
                    self.ints(0, 0),
                    self.op("Div", w, two),
                    self.ints(0, 0, 0, 1, 0),
                ],
            )
        )()
        self.x = self.op("Pad", self.x, self.op("Concat", *amounts, axis=0))

    def rows(self) -> None:
        """On one axis of h * w, then as before."""
        shape = self.op("Shape", self.x)
        b, c = self.extent(self.x, 0), self.extent(self.x, 1)
        flat = self.op(
            "Reshape", self.x, self.op("Concat", b, c, self.ints(-1), axis=0)
        )
        y = self.r.choice(
            (
                lambda: self.op("Softmax", flat, axis=2),
                lambda: self.op("CumSum", flat, self.op("Squeeze", self.ints(2))),
                lambda: self.op("Add", flat, self.op("ReduceMean", flat, self.ints(2))),
                lambda: self.op(
                    "Add",
                    flat,
                    self.op(
                        "Cast", self.op("ArgMax", flat, axis=2), to=TensorProto.FLOAT
                    ),
                ),
                lambda: self.op(
                    "Add",
                    flat,
                    self.counted(
                        self.op(
                            "Size",
                            self.op("ReduceMax", flat, self.ints(0, 1), keepdims=0),
                        )
                    ),
                ),
                lambda: self.op(
                    "Slice",
                    self.op("Concat", flat, flat, axis=2),
                    self.extent(flat, 2),
                    self.ints(1 << 30),
                    self.ints(2),
                ),
            )
        )()
        self.x = self.op("Reshape", y, shape)

    def counted(self, n: str) -> str:
        i = self.op(
            "Range",
            self.op("Squeeze", self.ints(0)),
            n,
            self.op("Squeeze", self.ints(1)),
        )
        f = self.op("Cast", i, to=TensorProto.FLOAT)
        return self.op("Mul", f, self.weight(1))

    def positions(self) -> None:
        axis = self.r.choice((H, W))
        p = self.counted(self.op("Squeeze", self.extent(self.x, axis)))
        if axis == H:
            p = self.op("Unsqueeze", p, self.ints(1))
        self.x = self.op("Add", self.x, p)

    def blocks(self) -> None:
        """Of two rows, of what is left of a whole number of them."""
        two = self.ints(2)
        half = self.op("Div", self.extent(self.x, H), two)
        even = self.op(
            "Slice", self.x, self.ints(0), self.op("Mul", half, two), self.ints(H)
        )
        b, c, w = (self.extent(self.x, n) for n in (0, 1, W))
        blocks = self.op("Reshape", even, self.op("Concat", b, c, half, two, w, axis=0))
        y = self.op("Transpose", blocks, perm=[0, 1, 3, 2, 4])
        if self.r.random() < 0.5:
            self.x = self.op("ReduceMean", y, self.ints(2), keepdims=0)
        else:
            self.x = self.op(
                "Reshape", y, self.op("Concat", b, c, self.ints(-1), w, axis=0)
            )

    def turned(self) -> None:
        self.x = self.op("Transpose", self.x, perm=[0, 1, 3, 2])

    def squares(self) -> None:
        t = self.op("Transpose", self.x, perm=[0, 1, 3, 2])
        self.x = self.op(
            "Mul", self.op("MatMul", self.x, t), self.op("MatMul", self.x, t)
        )

    def larger(self) -> None:
        mode = {
            "mode": "nearest",
            "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": "floor",
        }
        if self.r.random() < 0.5:
            self.weights.append(
                numpy_helper.from_array(
                    np.array([1, 1, 2, 2], "f"), f"s{len(self.weights)}"
                )
            )
            self.x = self.op("Resize", self.x, "", f"s{len(self.weights) - 1}", **mode)
            return
        small = self.op("MaxPool", self.x, kernel_shape=[2, 2], strides=[2, 2])
        y = self.op("Resize", small, "", "", self.op("Shape", self.x), **mode)
        self.x = self.op("Add", self.x, y)

    def triangle(self) -> None:
        h, w = (self.op("Squeeze", self.extent(self.x, a)) for a in (H, W))
        k = self.r.choice(
            (lambda: self.op("Sub", w, h), lambda: self.op("Squeeze", self.ints(0)))
        )()
        self.x = self.op("Trilu", self.x, k, upper=self.r.choice((0, 1)))


LAYERS: Sequence[str] = (
    *("scaled", "mean", "mean", "mean", "mean", "norm", "longer", "longer", "cut"),
    *("one_line", "border", "rows", "rows", "positions", "blocks", "turned", "squares"),
    *("larger", "triangle", "convolution", "convolution", "pooling", "pooling"),
)


def network(seed: int, batch: int | str) -> onnx.ModelProto:
    """The model number `seed`."""
    n = Network(random.Random(seed))
    for _ in range(n.r.randint(1, 4)):
        getattr(n, n.r.choice(LAYERS))()
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, "h", "w"])
    made = helper.make_tensor_value_info(n.x, TensorProto.FLOAT, None)
    graph = helper.make_graph(n.nodes, "net", [given], [made], n.weights)
    opset = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8)


def run(seed: int) -> str:
    """What became of it: right, apart (with code of their own, which a warning says), refused, or
    no model at some of the sizes."""
    pick = random.Random(seed + 7)
    few, most, sampled = pick.choice(((4, 4, 8), (4, 4, 4), (8, 64, 8)))
    dims = {
        "h": (least := pick.choice((5, 8, 16)), least + pick.choice((9, 21))),
        "w": (least := pick.choice((5, 7, 16)), least + pick.choice((9, 21))),
    }
    if three := pick.random() < 0.3:
        dims["b"] = (1, pick.choice((3, 9)))
    source = network(seed, "b" if three else pick.choice((1, 2)))
    how: Any = {
        "jit": False,
        "cache": False,
        "threads": 1,
        "mcpu": random_windows.LEVEL,
    }
    try:
        with (
            mock.patch.multiple(sample_points, FEW=few, COMPARED=most, SAMPLED=sampled),
            warnings.catch_warnings(record=True, category=TilewrightWarning) as said,
        ):
            warnings.simplefilter("always", TilewrightWarning)
            exe: Any = tw.compile(source, dims=dims, **how)
    except UnsupportedError:
        return "refused"
    except ModelError:
        return "no model"
    theirs = ReferenceEvaluator(source)
    corners = [{n: pick.choice(ends) for n, ends in dims.items()} for _ in range(4)]
    inner = [{n: pick.randint(*ends) for n, ends in dims.items()} for _ in range(16)]
    for extents in (*corners, *inner):
        declared = source.graph.input[0].type.tensor_type.shape.dim
        shape = [extents.get(d.dim_param, d.dim_value) for d in declared]
        x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
        with np.errstate(all="ignore"):
            (want,) = theirs.run(None, {"x": x})
        if not np.isfinite(want).all():  # a divisor of 0
            continue
        found = exe(x)
        assert found.shape == want.shape, (seed, extents)
        scale = max(float(np.abs(want).max(initial=0)), 1e-3)
        away = float(np.abs(found - want).max(initial=0))
        assert away <= 1e-3 * scale, (seed, extents, away, scale)
    return "apart" if said else "right"


if __name__ == "__main__":
    first, programs = map(int, sys.argv[1:])
    print(Counter(run(seed) for seed in range(first, first + programs)))
