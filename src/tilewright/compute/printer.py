"""Computations as text, in the form that defines them: out_view o md_hom o inp_view.

`compute/parser.py` reads it back, if every buffer, variable and operator has its own name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from tilewright.compute.nodes import CC, Computation, Dim
from tilewright.compute.reducer import Reducer
from tilewright.expr.nodes import Buffer, Expr, Var
from tilewright.expr.printer import short
from tilewright.expr.printer import show as show_expr
from tilewright.ir.node import Node, postorder, substitute

# Nodes of a value that is printed in full, with shared nodes counted at each use.
PLAIN: Final = 60
_INDEX: Final = 20_000  # nodes of an index that are written out


def show(c: Computation) -> str:
    """The Computation over one line per part.

    matmul(i < 4, j < 6, k < 8) =
      out_view[C[i, j]] o
      md_hom[f(x0, x1) = x0 * x1, (cc, cc, pw(add))] o
      inp_view[x0 = A[i, k], x1 = B[k, j]]

    What a long value uses several times is named first: `f(x0) = let t0 = exp(x0) in t0 / (...)`.
    """
    args, values = c.function
    dims = ", ".join(f"{d.var.name} < {d.size}" for d in c.dims)
    operators = ", ".join(_combine(c, d) for d in c.dims)
    outputs = ", ".join(_place(o.tensor, o.index) for o in c.outputs)
    inputs = ", ".join(
        f"{x.name} = {_place(a.buffer, a.index)}"
        for x, a in zip(args, c.accesses, strict=True)
    )
    body = _values(values, len(values) > 1)
    return "\n".join(
        [
            f"{c.name}({dims}) =",
            f"  out_view[{outputs}] o",
            f"  md_hom[f({', '.join(a.name for a in args)}) = {body}, ({operators})] o",
            f"  inp_view[{inputs}]",
        ]
    )


def show_reducer(op: Reducer) -> str:
    """`argmax(a: f32, i: i64)(b: f32, j: i64) = (result, result) from (identity, identity)`.

    `in order` follows where operands may not be swapped.
    """
    sides = []
    for operands in (op.lhs, op.rhs):
        typed = (f"{v.name}: {short(v.dtype)}" for v in operands)
        sides.append(", ".join(typed))
    start = ", ".join(map(show_expr, op.identity))
    order = "" if op.commutative else " in order"
    return f"{op.name}({sides[0]})({sides[1]}) = {_values(op.result, True)} from ({start}){order}"


def _values(values: Sequence[Expr], brackets: bool) -> str:
    bindings, results = _bound(values)
    text = ", ".join(show_expr(r, _INDEX) for r in results)
    text = f"({text})" if brackets else text
    named = ", ".join(f"{v.name} = {show_expr(e, _INDEX)}" for v, e in bindings)
    return f"let {named} in {text}" if named else text


def _bound(values: Sequence[Expr]) -> tuple[list[tuple[Var, Expr]], Sequence[Expr]]:
    """Shared parts of long values by name, each over those before it, and the values over them."""
    nodes = dict.fromkeys(n for v in values for n in postorder(v))
    uses = Counter(values)
    sizes: dict[Node, int] = {}
    for n in nodes:
        uses.update(n.children())  # type: ignore[arg-type]
        sizes[n] = 1 + sum(sizes[c] for c in n.children())
    if sum(sizes[v] for v in values) <= PLAIN:
        return [], values
    found: list[tuple[Var, Expr]] = []
    names: dict[object, object] = {}
    for n in nodes:
        if isinstance(n, Expr) and uses[n] > 1 and n.children():
            name = Var(f"t{len(found)}", n.dtype)
            found.append((name, substitute(n, names)))
            names[n] = name
    return found, [substitute(v, names) for v in values]


def _combine(c: Computation, d: Dim) -> str:
    return CC if d.combine == CC else f"{d.combine}({c.reducer})"


def _place(buffer: Buffer, index: tuple[Expr, ...]) -> str:
    return f"{buffer.name}[{', '.join(show_expr(i, _INDEX) for i in index)}]"
