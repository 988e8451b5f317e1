"""Conditions of specializations, as text for `specialize`."""

from __future__ import annotations

from tilewright.base.errors import ScheduleError
from tilewright.expr import nodes
from tilewright.expr.bounds import proves
from tilewright.ir.node import postorder
from tilewright.lang.halide.syntax.expr import Expr
from tilewright.lang.halide.syntax.image import Symbol
from tilewright.lang.halide.syntax.output import OutputBound
from tilewright.lang.halide.syntax.pipeline import Pipeline

_SIGNS: dict[type[nodes.Expr], str] = {
    nodes.Lt: "<",
    nodes.Le: "<=",
    nodes.Eq: "==",
    nodes.Ne: "!=",
    nodes.And: "and",
    nodes.Or: "or",
    nodes.Add: "+",
    nodes.Sub: "-",
    nodes.Mul: "*",
    nodes.FloorDiv: "//",
    nodes.Mod: "%",
}


def decided(condition: Expr, pipeline: Pipeline) -> bool | None:
    """What a condition is for the sizes to compute; None where it depends on Params."""
    sizes: dict[nodes.Expr, tuple[int, int]] = {}
    for node in postorder(condition.node):
        if isinstance(node, nodes.Load) and isinstance(node.buffer, OutputBound):
            size = _size(node.buffer, pipeline)
            sizes[node] = size, size
    return proves(condition.node, sizes)


def _size(bound: OutputBound, pipeline: Pipeline) -> int:
    if bound.owner not in pipeline.outputs:
        raise ScheduleError(
            f"specialize: {bound.owner.name()} is not the output",
            hint="ask the output for its output_buffer()",
        )
    found = pipeline.boxes[bound.owner][bound.dimension][bound.end]
    return nodes.fixed(found, f"specialize of {bound.owner.name()}")


def condition_text(condition: Expr, pipeline: Pipeline) -> str:
    """Comparisons of Params, sizes and whole numbers; ScheduleError for anything else."""

    def text(e: nodes.Expr) -> str:
        if isinstance(e, nodes.Binary) and type(e) in _SIGNS:
            return f"({text(e.lhs)} {_SIGNS[type(e)]} {text(e.rhs)})"
        if isinstance(e, nodes.Not):
            return f"(not {text(e.value)})"
        if isinstance(e, nodes.Const) and e.value.real == int(e.value.real):
            return str(int(e.value.real))
        if isinstance(e, nodes.Load) and isinstance(e.buffer, OutputBound):
            return str(_size(e.buffer, pipeline))
        if isinstance(e, nodes.Load) and isinstance(e.buffer, Symbol) and not e.index:
            return f"{pipeline.names[e.buffer.owner]}[()]"
        raise ScheduleError(
            f"specialize: {e!r} is not understood in {condition!r}",
            hint="compare Params, or the sizes of output_buffer(), with integers",
        )

    return text(condition.node)
