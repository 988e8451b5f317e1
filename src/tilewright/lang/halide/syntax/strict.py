"""strict_float: expressions whose operations are not fused or reordered.

A mark that is kept until a pipeline is lowered to loops; such a pipeline is compiled as a whole
with `math="exact"`, which is at least as strict.
"""

from __future__ import annotations

from typing import Any, Final, cast

from tilewright.expr import nodes
from tilewright.expr.functions import FUNCTIONS, Function
from tilewright.ir.node import Node, postorder
from tilewright.lang.halide.syntax.definition import Definition
from tilewright.lang.halide.syntax.expr import Expr, as_expr, as_value

_STRICT: Final = "halide_strict"
FUNCTIONS[_STRICT] = Function(_STRICT, 1, None, lambda value: value)


def strict_float(value: Any) -> Expr:
    """The value, with each operation rounded separately: no fused multiply-add."""
    found = as_expr(value)
    return Expr(nodes.Call(_STRICT, (as_value(found),)), found.dtype)


def unmarked(node: Node) -> Node:
    """A node without the mark."""
    if isinstance(node, nodes.Call) and node.function == _STRICT:
        return cast(Node, node.args[0])
    return node


def is_strict(definition: Definition) -> bool:
    """Whether some value of it is marked."""
    return any(
        isinstance(n, nodes.Call) and n.function == _STRICT
        for root in definition.roots
        for n in postorder(root)
    )
