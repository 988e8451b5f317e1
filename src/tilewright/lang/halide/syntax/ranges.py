"""Known ranges of a Func's values: they bound indices computed from it."""

from __future__ import annotations

from typing import Any

from tilewright.expr import nodes
from tilewright.expr.bounds import bounds
from tilewright.expr.intervals import Interval
from tilewright.ir.node import postorder
from tilewright.lang.halide.syntax.definition import Definition
from tilewright.lang.halide.syntax.image import Symbol

Known = dict[Symbol, Interval | None]


def with_values(
    e: nodes.Expr, env: dict[Any, Interval], known: Known | None = None
) -> dict[Any, Interval]:
    """`env`, and the range of each value of a Func in `e`.

    known: ranges that have been found already, None for those that are being looked for.
    """
    found = dict(env)
    known = {} if known is None else known
    for node in postorder(e):
        if isinstance(node, nodes.Load) and isinstance(node.buffer, Symbol):
            if node.buffer not in known:
                known[node.buffer] = None
                known[node.buffer] = _range(node.buffer, known)
            interval = known[node.buffer]
            if interval is not None:
                found[node] = interval
    return found


def _range(symbol: Symbol, known: Known) -> Interval | None:
    """The least and greatest value of a Func by all of its definitions, if that is known.

    Of a Func that is updated by an operator it is not, and an image has no definitions.
    """
    definitions: list[Definition] = getattr(symbol.owner, "definitions", [])
    if not definitions or any(d.reducer is not None for d in definitions):
        return None
    n = symbol.owner.symbols.index(symbol)
    values = [each[n] for d in definitions for _, each in d.stores]
    found = [bounds(v, with_values(v, {}, known)) for v in values]
    lows = [low for low, _ in found if low is not None]
    highs = [high for _, high in found if high is not None]
    if len(lows) + len(highs) < 2 * len(found):
        return None
    return min(lows), max(highs)
