"""scatter and gather: updates that store several values at once, at different places.

`f[hl.scatter([3, 5])] = hl.gather([f[5], f[3]])` swaps two values: all operands of a gather are
computed before the first element of the scatter is stored, from left to right. Both are expressions
with several values; expressions built from them have as many, computed element-wise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tilewright.base.errors import InputError
from tilewright.expr import nodes
from tilewright.expr.functions import FUNCTIONS, Function
from tilewright.ir.node import Node, postorder, transform
from tilewright.lang.halide.syntax.expr import Expr, together

_PREFIX: Final = "gather_"


def gather(values: Sequence[Any]) -> Expr:
    """Several values, for an update that stores as many. Raises InputError for none."""
    if not isinstance(values, Sequence) or not values:
        raise InputError(f"gather of {values!r}", hint="gather([f[5], f[3]])")
    parts, type_ = together(values)
    name = f"{_PREFIX}{len(parts)}"
    FUNCTIONS.setdefault(name, Function(name, len(parts), None, lambda *found: found))
    return Expr(nodes.Call(name, tuple(parts)), type_)


def scatter(places: Sequence[Any]) -> Expr:
    """Several coordinates, for an update that stores at all of them."""
    return gather(places)


def is_gathered(roots: Sequence[nodes.Expr]) -> bool:
    """Whether an expression is of several numbers."""
    return any(_is_gather(n) for root in roots for n in postorder(root))


def one_by_one(roots: tuple[nodes.Expr, ...]) -> list[tuple[nodes.Expr, ...]]:
    """The expressions for each of the values; unchanged if they have only one.

    Raises InputError if they have different numbers of values.
    """
    every = (n for root in roots for n in postorder(root))
    counts = {len(n.args) for n in every if isinstance(n, nodes.Call) and _is_gather(n)}
    if len(counts) > 1:
        raise InputError(
            f"scatters and gathers of {' and '.join(map(str, sorted(counts)))} numbers",
            where="scatter",
            hint="give each the same number of arguments",
        )
    if not counts:
        return [roots]
    return [
        tuple(transform(root, _Chosen(n)) for root in roots) for n in range(*counts)
    ]


class _Chosen:
    """A rewrite that takes the n-th of several numbers."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __call__(self, node: Node) -> Node:
        if isinstance(node, nodes.Call) and _is_gather(node):
            return node.args[self.n]
        return node


def _is_gather(node: Node) -> bool:
    return isinstance(node, nodes.Call) and node.function.startswith(_PREFIX)
