"""Rules put together: strategies that do in one step what is always done together."""

from __future__ import annotations

from tilewright.ir.strategy import Strategy
from tilewright.notation.lift.strategies import at, rule, then


def tile_map_map(rows: int, columns: int) -> Strategy:
    """`xs | Map(lambda x: ys | Map(f x))` in tiles of rows by columns (Steuwer et al., 2016).

        xs | Split(rows) | Map(lambda X:
          ys | Split(columns) | Map(lambda Y: X | Map(lambda x: Y | Map(f x)) | Transpose)
          | Join | Transpose) | Join

    Where `ys` does not depend on x, and both lengths are divided.
    """
    inner = at((1, 0, 0), rule("interchange"))
    across = at((1, 0, 0, 1, 1), rule("split-join", m=columns))
    back = at((1, 0, 0, 1, 1, 1, 0, 0), rule("interchange"))
    return then(rule("split-join", m=rows), inner, across, back)
