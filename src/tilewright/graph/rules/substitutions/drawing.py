"""Drawing random graphs to try substitutions on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilewright.base import dtypes
from tilewright.base.errors import ModelError
from tilewright.graph.nodes import Graph, Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.rules.patterns import Tensor
from tilewright.graph.rules.rule import Sample

REALS = (
    dtypes.float32,
    dtypes.float64,
    dtypes.float16,
    dtypes.bfloat16,
)
Shape = tuple[int, ...]


class RandomGraph:
    """A graph under construction by random choices: inputs of one type, and operators on them."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.f = Fragment("drawn", {})
        self.inputs: list[Value] = []
        self.dtype = self.one_of(*REALS)

    def one_of(self, *choices: Any) -> Any:
        """One of them."""
        return choices[int(self.rng.integers(len(choices)))]

    def maybe(self, share: float = 0.5) -> bool:
        """Whether to do something that happens in a share of the draws."""
        return bool(self.rng.random() < share)

    def extent(self, low: int = 1, high: int = 4) -> int:
        """An extent from low to high, rarely 0 where low is 1."""
        if low == 1 and self.maybe(0.03):
            return 0
        return int(self.rng.integers(low, high + 1))

    def typed(self, shapes: Mapping[Tensor, Shape]) -> Sample:
        """Tensors of these shapes and one type."""
        return {t: Value(t.name, self.dtype, shape) for t, shape in shapes.items()}

    def input(self, *shape: int) -> Value:
        """A new input, or equally often a constant."""
        value = Value(f"x{len(self.inputs)}", self.dtype, shape)
        self.inputs.append(value)
        return value

    def weight(self, *shape: int) -> Value:
        """A new constant with few digits."""
        drawn = self.rng.integers(-8, 9, shape) / 4
        return self.f.constant(drawn, self.dtype)

    def graph(self, *results: Value) -> Graph:
        """The drawn graph, with these results."""
        operations = tuple(self.f.operations)
        return Graph(
            "drawn",
            tuple(self.inputs),
            results,
            operations,
            self.f.constants,
        )


def drawn(
    draw: Callable[[RandomGraph], list[Value]],
) -> Callable[..., Graph]:
    """Samples of a rule, from a function that draws the results of a graph."""

    def samples(rng: np.random.Generator) -> Graph:
        while True:
            drawing = RandomGraph(rng)
            try:
                return drawing.graph(*draw(drawing))
            except ModelError:
                continue  # operands that an operator rejects; another draw may fit

    return samples
