"""An operator, given by name and sizes instead of a model: `conv2d:1x28x28,6x5x5`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tilewright.base.errors import InputError

if TYPE_CHECKING:
    from tilewright.graph.nodes import Graph

_OPERATOR: Final = re.compile(r"(conv2d|matmul)(:[0-9x,]+)?")
_USUAL: Final = {"conv2d": "1x28x28,6x5x5", "matmul": "64x64x64"}


def is_operator(text: str) -> bool:
    """Whether the text has the form of an operator: a name, and optionally sizes after a colon."""
    return _OPERATOR.fullmatch(text) is not None


def operator_graph(named: str) -> Graph:
    """A model of one operator with zero weights, for uses in which its results do not matter.

    Raises InputError for malformed sizes.
    """
    import numpy as np

    from tilewright.base.dtypes import float32
    from tilewright.graph.nodes import Graph, Operation, Value

    name, _, sizes = named.partition(":")
    text = sizes or _USUAL[name]
    try:
        parts = [[int(n) for n in part.split("x")] for part in text.split(",")]
        if name == "conv2d":
            (channels, height, width), (filters, rows, columns) = parts
            shapes = [
                [1, channels, height, width],
                [filters, channels, rows, columns],
                [filters],
            ]
            result = [1, filters, height - rows + 1, width - columns + 1]
        else:
            ((n, k, m),) = parts
            shapes, result = [[n, k], [k, m]], [n, m]
        if min(n for shape in (*shapes, result) for n in shape) < 1:
            raise ValueError(text)
    except ValueError:
        raise InputError(
            f"the sizes of a {name} are malformed: {text}",
            where=named,
            hint="conv2d:1x28x28,6x5x5 (input, filters) or matmul:64x256x128 (N, K, M)",
        ) from None
    x, *fixed = (
        Value(label, float32, tuple(shape))
        for label, shape in zip("xwb", shapes, strict=False)
    )
    y = Value("y", float32, tuple(result))
    kind = "Conv" if name == "conv2d" else "MatMul"
    operation = Operation(kind, (x, *fixed), (y,), {}, "", 21, name)
    weights = {v: np.zeros(v.extents, np.float32) for v in fixed}
    return Graph(name, (x,), (y,), (operation,), weights)
