"""A Func as Halide source text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.expr import nodes
from tilewright.expr.printer import show as show_expr
from tilewright.ir.node import Node, transform
from tilewright.lang.halide.syntax.image import Symbol

if TYPE_CHECKING:
    from tilewright.lang.halide.syntax.definition import Definition
    from tilewright.lang.halide.syntax.func import Func


def show(f: Func) -> str:
    """One line per definition, indices in Halide's order; of an RDom its ranges."""
    if not f.defined():
        return f"{f.name()} (not defined)"
    return "\n".join(_line(f, d) for d in f.definitions)


def _line(f: Func, d: Definition) -> str:
    left = f"{f.name()}[{', '.join(map(text, reversed(d.args)))}]"
    values = ", ".join(map(text, d.values))
    right = values if len(d.values) == 1 else f"({values})"
    line = f"{left} = {right}" if d.reducer is None else f"{left} {d.reducer}= {right}"
    if d.domain is not None:
        ranges = ", ".join(
            f"{v.name()} in {v.min}..{v.min + v.extent - 1}" for v in d.domain.vars
        )
        conditions = "".join(f" where {text(c.node)}" for c in d.domain.conditions)
        line += f"  over {ranges}{conditions}"
    return line


def text(root: nodes.Expr) -> str:
    """The expression with the indices of Funcs and images turned into Halide's order."""

    def step(node: Node) -> Node:
        if isinstance(node, nodes.Load) and isinstance(node.buffer, Symbol):
            return nodes.Load(node.buffer, tuple(reversed(node.index)))
        return node

    turned: nodes.Expr = transform(root, step)
    return show_expr(turned)
