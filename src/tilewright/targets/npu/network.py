"""Running a whole model on the processor: one Lift program, mapped and simulated."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.base.dtypes import float32
from tilewright.base.errors import UnsupportedError
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.recurrent_steps import DOMAIN
from tilewright.graph.ops.registry import OpCall
from tilewright.graph.passes.simplify import remove_unused
from tilewright.graph.rules.batchnorm import BATCHNORM
from tilewright.graph.rules.driver import rewrite
from tilewright.graph.rules.no_ops import NO_OPS
from tilewright.lift.nodes import Lambda, Param
from tilewright.lift.patterns import WORDS, Tuple, let
from tilewright.lift.types import Type
from tilewright.targets.npu.cells import CELLS
from tilewright.targets.npu.description import machine as described
from tilewright.targets.npu.layers import Term
from tilewright.targets.npu.listing import show
from tilewright.targets.npu.machine import Machine
from tilewright.targets.npu.mapping import Mapped, map_onto
from tilewright.targets.npu.simulator import run
from tilewright.targets.npu.terms import BROADCAST, OPERATORS, Layer, Refused


class Network:
    """A model of float32 tensors on a machine, as a function of its inputs.

    machine: itself, its name in the catalog, or a file that describes it. Raises InputError for
    another one, UnsupportedError listing the operators that it cannot do, NPUError where something
    does not fit.
    """

    def __init__(self, graph: Graph, machine: Machine | str = "full") -> None:
        graph = remove_unused(rewrite(rewrite(graph, NO_OPS), [BATCHNORM]))
        self.graph = graph
        self.machine = described(machine) if isinstance(machine, str) else machine
        self.operands = operands(graph)
        self.mapped: Mapped = map_onto(program(graph), self.machine)

    @property
    def text(self) -> str:
        """The listing of the instructions."""
        return show(self.mapped.program)

    @property
    def report(self) -> str:
        """What operations became of the model, and what they take."""
        kinds = Counter(_layer(op.qualified) for op in self.graph.operations)
        names = ", ".join(f"{count} {name}" for name, count in kinds.items())
        return f"npu  {names} -> {self.mapped.summary}\n{self.mapped.timing}"

    def __call__(self, inputs: Mapping[str, Any]) -> list[Any]:
        """The outputs for an array per input."""
        known = self.graph.constants
        given = [known[v] if v in known else inputs[v.name] for v in self.operands]
        outputs = run(self.mapped.program, self.machine, [np.asarray(a) for a in given])
        return [
            array.reshape(v.extents)
            for v, array in zip(self.graph.outputs, outputs, strict=True)
        ]


def operands(graph: Graph) -> list[Value]:
    """The inputs of the program: those of the model, and its constants but for single numbers."""
    read: dict[Value, None] = {}
    for op in graph.operations:
        numbers = op.qualified in BROADCAST
        for v in op.reads:
            known = graph.constants.get(v)
            if (
                known is not None
                and v.dtype is float32
                and not (numbers and known.size == 1)
            ):
                read[v] = None
    return [*graph.inputs, *read]


def program(graph: Graph) -> Lambda:
    """The model as one Lift program. Raises UnsupportedError as Network."""
    _check(graph)
    params = {v: Param(_name(v), _type(v)) for v in operands(graph)}

    def after(n: int, terms: Mapping[Value, Term]) -> Term:
        """What follows the first `n` operations."""
        if n == len(graph.operations):
            found = [terms[v] for v in graph.outputs]
            return found[0] if len(found) == 1 else Tuple(*found)
        op = graph.operations[n]
        layer = Layer(OpCall(op, graph.constants), terms)
        try:
            if op.qualified in CELLS:
                return CELLS[op.qualified](
                    layer,
                    lambda made: after(n + 1, {**terms, **dict(_pairs(op, made))}),
                )
            made = OPERATORS[op.qualified](layer)
        except Refused as why:
            raise UnsupportedError(
                f"the npu cannot do it: {why}",
                where=f"node {op.label!r} ({op.qualified})",
                hint="run the model on the cpu",
            ) from None
        (v,) = op.writes
        uses = len(graph.users(v)) + graph.outputs.count(v)
        if uses > 1:
            return let(made, lambda x: after(n + 1, {**terms, v: x}))
        return after(n + 1, {**terms, v: made})

    return Lambda(tuple(params.values()), after(0, params))


def _pairs(op: Operation, made: Any) -> list[tuple[Value, Term]]:
    return [(v, t) for v, t in zip(op.outputs, made, strict=False) if v is not None]


def _layer(qualified: str) -> str:
    """The operator as the model's author knows it: of a recurrence's steps, the layer."""
    return qualified.removeprefix(f"{DOMAIN}::").removesuffix("Steps")


def _check(graph: Graph) -> None:
    """Every operator is one that the machine has terms for, on float32."""
    kinds = dict.fromkeys(op.qualified for op in graph.operations)
    unknown = [name for name in kinds if name not in OPERATORS and name not in CELLS]
    if unknown:
        known = sorted(_layer(name) for name in (*OPERATORS, *CELLS))
        raise UnsupportedError(
            f"the npu does not do {', '.join(map(_layer, unknown))}",
            where=f"graph {graph.name!r}",
            hint=f"it does {', '.join(known)}",
        )
    for v in (*graph.inputs, *graph.outputs):
        if not v.static or v.dtype is not float32:
            raise UnsupportedError(
                f"{v!r} is not a float32 tensor of known shape",
                where=f"graph {graph.name!r}",
                hint="the npu takes nothing else",
            )


def _type(v: Value) -> Type:
    found: Type = WORDS["f32"][v.extents] if v.extents else WORDS["f32"].type
    return found


def _name(v: Value) -> str:
    return re.sub(r"\W", "_", v.name)
