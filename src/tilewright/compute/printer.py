"""Computations as text, in the form that defines them: out_view o md_hom o inp_view."""

from __future__ import annotations

from tilewright.compute.nodes import CC, Computation, Dim
from tilewright.expr.nodes import Buffer, Expr
from tilewright.expr.printer import show as show_expr


def show(c: Computation) -> str:
    """The Computation over one line per part.

    matmul(i < 4, j < 6, k < 8) =
      out_view[C[i, j]] o
      md_hom[f(x0, x1) = x0 * x1, (cc, cc, pw(add))] o
      inp_view[x0 = A[i, k], x1 = B[k, j]]
    """
    args, values = c.function
    dims = ", ".join(f"{d.var.name} < {d.extent}" for d in c.dims)
    results = ", ".join(map(show_expr, values))
    f = f"f({', '.join(a.name for a in args)}) = {results if len(values) == 1 else f'({results})'}"
    operators = ", ".join(_combine(c, d) for d in c.dims)
    outputs = ", ".join(_place(o.tensor, o.index) for o in c.outputs)
    inputs = ", ".join(
        f"{x.name} = {_place(a.buffer, a.index)}" for x, a in zip(args, c.accesses, strict=True)
    )
    return "\n".join(
        [
            f"{c.name}({dims}) =",
            f"  out_view[{outputs}] o",
            f"  md_hom[{f}, ({operators})] o",
            f"  inp_view[{inputs}]",
        ]
    )


def _combine(c: Computation, d: Dim) -> str:
    return CC if d.combine == CC else f"{d.combine}({c.reducer})"


def _place(buffer: Buffer, index: tuple[Expr, ...]) -> str:
    return f"{buffer.name}[{', '.join(map(show_expr, index))}]"
