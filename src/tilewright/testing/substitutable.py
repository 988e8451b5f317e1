"""Random graphs with many opportunities for substitutions: siblings, sums of products, moves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.base.dataclass import dataclass
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
        self,
        kind: str,
        *inputs: Value,
        count: int = 1,
        **attributes: object,
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

    def image(self) -> Value:
        """One of the images, a later one more often."""
        return self._one(self.images)

    def matrix(self) -> Value:
        """One of the matrices, a later one more often."""
        return self._one(self.matrices)

    def convolved(self, x: Value, side: int = 3) -> Value:
        """An image convolved, of the same extents."""
        weight = self.weight(CHANNELS, CHANNELS, side, side)
        border = [side // 2] * 4
        return self.op("Conv", x, weight, pads=border)

    def chance(self) -> bool:
        """Heads or tails."""
        drawn = self.rng.random()
        return drawn < 0.5

    def kind(self, *kinds: str) -> str:
        """One of some operators."""
        drawn = self.rng.integers(len(kinds))
        return kinds[int(drawn)]

    def _one(self, values: list[Value]) -> Value:
        count = len(values)
        back = abs(self.rng.normal()) * count / 2
        place = count - 1 - int(back) % count
        return values[place]

    def _name(self) -> str:
        self.count += 1
        return f"t{self.count}"


def _siblings(r: _Random) -> None:
    x = r.image()
    count = 2 + int(r.chance())
    for _ in range(count):
        side = r.rng.choice([1, 1, 3, 3, 5])
        made = r.convolved(x, int(side))
        if r.chance():
            made = r.op("Relu", made)
        r.images.append(made)


def _residual(r: _Random) -> None:
    x = r.image()
    made = r.convolved(x)
    made = r.op("Add", made, x)
    r.images.append(made)


def _sum_of_convolutions(r: _Random) -> None:
    one = r.convolved(r.image())
    other = r.convolved(r.image())
    made = r.op("Add", one, other)
    r.images.append(made)


def _elementwise(r: _Random) -> None:
    kind = r.kind("Add", "Mul", "Sub")
    made = r.op(kind, r.image(), r.image())
    r.images.append(made)


def _joined(r: _Random) -> None:
    whole = r.op("Concat", r.image(), r.image(), axis=1)
    if r.chance():
        whole = r.op("Relu", whole)
    if r.chance():
        weight = r.weight(CHANNELS, 2 * CHANNELS, 1, 1)
        made = r.op("Conv", whole, weight)
    else:
        made = r.op("Split", whole, count=2, axis=1, num_outputs=2)
    r.images.append(made)


def _scaled(r: _Random) -> None:
    x = r.convolved(r.image())
    kind = r.kind("Add", "Mul")
    scale = r.weight(1, CHANNELS, 1, 1)
    made = r.op(kind, x, scale)
    r.images.append(made)


def _products(r: _Random) -> None:
    x = r.matrix()
    for _ in range(2):
        weight = r.weight(6, 6)
        made = r.op("MatMul", x, weight)
        r.matrices.append(made)


def _chain(r: _Random) -> None:
    made = r.matrix()
    for _ in range(2):
        weight = r.weight(6, 6)
        made = r.op("MatMul", made, weight)
    r.matrices.append(made)


def _distributed(r: _Random) -> None:
    a = r.matrix()
    kind = r.kind("Mul", "MatMul")
    one = r.op(kind, a, r.matrix())
    other = r.op(kind, a, r.matrix())
    made = r.op("Add", one, other)
    r.matrices.append(made)


def _transposed(r: _Random) -> None:
    x = r.op("Transpose", r.matrix(), perm=[1, 0])
    kind = r.kind("MatMul", "Add", "Mul")
    y = r.op(kind, x, r.matrix())
    made = r.op("Transpose", y, perm=[1, 0])
    r.matrices.append(made)


def _activated(r: _Random) -> None:
    kind = r.kind("Relu", "Tanh", "Sigmoid")
    if r.chance():
        values = r.images
    else:
        values = r.matrices
    x = values[-1]
    made = r.op(kind, x)
    values.append(made)


PIECES: tuple[Callable[[_Random], None], ...] = (
    _siblings,
    _residual,
    _sum_of_convolutions,
    _elementwise,
    _joined,
    _scaled,
    _products,
    _chain,
    _distributed,
    _transposed,
    _activated,
)


def random_substitutable(seed: int, pieces: int = 5) -> Case:
    """The graph number `seed` with this many pieces, in float64 or, one in three, float32."""
    rng = np.random.default_rng(seed)
    r = _Random(rng, float32 if seed % 3 == 0 else float64)
    image = Value("image", r.dtype, (1, CHANNELS, SIDE, SIDE))
    matrix = Value("matrix", r.dtype, (6, 6))
    r.images.append(image)
    r.matrices.append(matrix)
    for n in rng.integers(len(PIECES), size=pieces):
        PIECES[int(n)](r)
    operations = tuple(r.typer.operations)
    graph = Graph(f"g{seed}", (image, matrix), (), operations)
    outputs = []
    for op in operations:
        for v in op.writes:
            # Values without readers are outputs, and sometimes values with readers, too.
            if not graph.users(v) or rng.random() < 0.1:
                outputs.append(v)
    graph = graph.with_operations(operations, r.typer.known, outputs)
    inputs = {
        v.name: rng.standard_normal(v.extents).astype(r.dtype.numpy)
        for v in graph.inputs
    }
    return Case(graph, inputs)
