"""Random graphs in which substitutions have much to do: siblings, sums of products, moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilewright.base.dtypes import DType, float32, float64
from tilewright.graph.infer import Typer
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.testing.graphs import Case

CHANNELS = 4
SIDE = 5


@dataclass
class _Random:
    """A graph in the making, of images [1, CHANNELS, SIDE, SIDE] and of matrices [6, 6]."""

    rng: np.random.Generator
    dtype: DType

    def __post_init__(self) -> None:
        self.typer = Typer()
        self.count = 0
        self.images: list[Value] = []
        self.matrices: list[Value] = []

    def op(
        self, kind: str, *inputs: Value, count: int = 1, **attributes: object
    ) -> Value:
        """An operator's first result."""
        names = [self._name() for _ in range(count)]
        draft = Operation(
            kind, inputs, tuple(Value(n) for n in names), attributes, version=21
        )
        made = self.typer.apply(draft)
        assert made[0] is not None
        return made[0]

    def weight(self, *shape: int) -> Value:
        """A constant of normal elements."""
        array = self.rng.standard_normal(shape).astype(self.dtype.numpy)
        scale = np.sqrt(max(1, array.size // max(shape[0], 1)))
        return self.typer.constant(self._name(), array / array.dtype.type(scale))

    def one(self, values: list[Value]) -> Value:
        """One of some values, a later one more often."""
        n = len(values)
        return values[n - 1 - int(abs(self.rng.normal()) * n / 2) % n]

    def _name(self) -> str:
        self.count += 1
        return f"t{self.count}"


def _convolve(r: _Random, x: Value) -> Value:
    side = int(r.rng.choice([1, 1, 3, 3, 5]))
    pads = [side // 2] * 4
    out = r.op("Conv", x, r.weight(CHANNELS, CHANNELS, side, side), pads=pads)
    return r.op("Relu", out) if r.rng.random() < 0.5 else out


def _siblings(r: _Random) -> None:
    x = r.one(r.images)
    r.images += [_convolve(r, x) for _ in range(int(r.rng.integers(2, 4)))]


def _residual(r: _Random) -> None:
    x = r.one(r.images)
    out = r.op("Conv", x, r.weight(CHANNELS, CHANNELS, 3, 3), pads=[1] * 4)
    r.images.append(r.op("Add", out, x))


def _sum_of_convolutions(r: _Random) -> None:
    made = [
        r.op("Conv", r.one(r.images), r.weight(CHANNELS, CHANNELS, 3, 3), pads=[1] * 4)
        for _ in range(2)
    ]
    r.images.append(r.op("Add", *made))


def _elementwise_image(r: _Random) -> None:
    kind = str(r.rng.choice(["Add", "Mul", "Sub"]))
    r.images.append(r.op(kind, r.one(r.images), r.one(r.images)))


def _concat_and_back(r: _Random) -> None:
    whole = r.op("Concat", r.one(r.images), r.one(r.images), axis=1)
    whole = r.op("Relu", whole) if r.rng.random() < 0.7 else whole
    r.images.append(
        r.op("Conv", whole, r.weight(CHANNELS, 2 * CHANNELS, 1, 1))
        if r.rng.random() < 0.5
        else r.op("Split", whole, count=2, axis=1, num_outputs=2)
    )


def _scaled(r: _Random) -> None:
    x = _convolve(r, r.one(r.images))
    kind = str(r.rng.choice(["Add", "Mul"]))
    r.images.append(r.op(kind, x, r.weight(1, CHANNELS, 1, 1)))


def _products(r: _Random) -> None:
    x = r.one(r.matrices)
    r.matrices += [r.op("MatMul", x, r.weight(6, 6)) for _ in range(2)]


def _chain(r: _Random) -> None:
    a = r.op("MatMul", r.one(r.matrices), r.weight(6, 6))
    r.matrices.append(r.op("MatMul", a, r.weight(6, 6)))


def _distributed(r: _Random) -> None:
    a, b, c = (r.one(r.matrices) for _ in range(3))
    kind = str(r.rng.choice(["Mul", "MatMul"]))
    r.matrices.append(r.op("Add", r.op(kind, a, b), r.op(kind, a, c)))


def _transposed(r: _Random) -> None:
    x = r.op("Transpose", r.one(r.matrices), perm=[1, 0])
    kind = str(r.rng.choice(["MatMul", "Add", "Mul"]))
    y = r.op(kind, x, r.one(r.matrices))
    r.matrices.append(r.op("Transpose", y, perm=[1, 0]))


def _tempered(r: _Random) -> None:
    kind = str(r.rng.choice(["Relu", "Tanh", "Sigmoid"]))
    values = r.images if r.rng.random() < 0.5 else r.matrices
    values.append(r.op(kind, r.one(values)))


PIECES: tuple[Callable[[_Random], None], ...] = (
    _siblings,
    _residual,
    _sum_of_convolutions,
    _elementwise_image,
    _concat_and_back,
    _scaled,
    _products,
    _chain,
    _distributed,
    _transposed,
    _tempered,
)


def random_substitutable(seed: int, pieces: int = 5) -> Case:
    """The graph number `seed` of so many pieces, in float64 or, one in three, float32."""
    rng = np.random.default_rng(seed)
    r = _Random(rng, float32 if seed % 3 == 0 else float64)
    image = Value("image", r.dtype, (1, CHANNELS, SIDE, SIDE))
    matrix = Value("matrix", r.dtype, (6, 6))
    r.images.append(image)
    r.matrices.append(matrix)
    for n in rng.integers(len(PIECES), size=pieces):
        PIECES[int(n)](r)
    operations = tuple(r.typer.operations)
    read = {v for op in operations for v in op.reads}
    # What nothing reads is an output, and here and there what is read as well.
    ends = [
        v for op in operations for v in op.writes if v not in read or rng.random() < 0.1
    ]
    used = {v for v in r.typer.known if v in read}
    constants = {v: np.asarray(r.typer.known[v]) for v in used}
    ordered = {v: constants[v] for v in r.typer.known if v in used}
    graph = Graph(f"g{seed}", (image, matrix), tuple(ends), operations, ordered)
    inputs = {
        v.name: rng.standard_normal(v.extents).astype(r.dtype.numpy)
        for v in graph.inputs
    }
    return Case(graph, inputs)
