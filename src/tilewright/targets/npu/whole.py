"""A whole model as one program of the processor: an operator that a device runs.

    Program(inputs and constants...) -> outputs...           domain npu

A Graph that the machine has terms for becomes one Lift program, which is mapped onto the machine.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import float32
from tilewright.base.errors import UnsupportedError
from tilewright.graph.interp import evaluate
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.recurrent_panels import DOMAIN
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register
from tilewright.graph.ops.traits import CHANGES_AXES
from tilewright.graph.passes.simplify import merge_repeated, remove_unused
from tilewright.graph.rules.batchnorm import BATCHNORM
from tilewright.graph.rules.driver import rewrite
from tilewright.graph.rules.no_ops import NO_OPS
from tilewright.ir.passes import Pass
from tilewright.lift.nodes import Lambda, Param
from tilewright.lift.patterns import WORDS, Tuple, let
from tilewright.lift.types import Type as LiftType
from tilewright.targets.npu.cells import CELLS
from tilewright.targets.npu.device import encode
from tilewright.targets.npu.layers import Term
from tilewright.targets.npu.listing import show
from tilewright.targets.npu.machine import NpuMachine
from tilewright.targets.npu.mapping import MappedNpuProgram, map_onto
from tilewright.targets.npu.terms import (
    BROADCAST,
    OPERATORS,
    OperationTerm,
    TermRefused,
)

OWN: Final = "npu"
OPERATOR: Final = "Program"


@dataclass(frozen=True, eq=False)
class LazyNpuModel:
    """A model for a machine; it is mapped when that is first asked for."""

    graph: Graph
    machine: NpuMachine

    @cached_property
    def mapped(self) -> MappedNpuProgram:
        """The model on the machine. Raises NPUError where something does not fit."""
        return map_onto(program(self.graph), self.machine)

    @property
    def code(self) -> bytes:
        """What the device loads."""
        return encode(self.mapped.program, self.machine)

    @property
    def text(self) -> str:
        """The listing of the instructions."""
        return show(self.mapped.program)

    def __repr__(self) -> str:
        kinds = Counter(_layer(op.qualified) for op in self.graph.operations)
        return ", ".join(f"{count} {name}" for name, count in kinds.items())


@dataclass(frozen=True)
class AsProgram(Pass[Graph]):
    """The model as one operation. Raises UnsupportedError listing what the machine cannot do."""

    machine: NpuMachine

    def run(self, program: Graph) -> Graph:
        graph = remove_unused(rewrite(rewrite(program, NO_OPS), [BATCHNORM]))
        # Equal constants, such as an LSTM's two states of zeros, are one operand.
        graph = merge_repeated(graph)
        whole = LazyNpuModel(graph, self.machine)
        _check(graph)
        op = Operation(
            OPERATOR,
            tuple(operands(graph)),
            graph.outputs,
            {"model": whole},
            OWN,
            1,
            graph.name,
        )
        return graph.with_operations([op])


def whole_of(op: Operation) -> LazyNpuModel | None:
    """The model that an operation is; None for any other."""
    found = op.attributes.get("model")
    if op.domain == OWN and isinstance(found, LazyNpuModel):
        return found
    return None


def _infer(call: OpCall) -> Sequence[Type]:
    graph = call.attr("model").graph
    return [(v.dtype, v.shape) for v in graph.outputs]


def _reference(call: OpCall, *arrays: Any) -> list[Any]:
    graph = call.attr("model").graph
    named = dict(zip(operands(graph), arrays, strict=True))
    inputs = {v.name: named[v] for v in graph.inputs}
    found = evaluate(graph, inputs)
    return [found[v.name] for v in graph.outputs]


register(
    OpDef(
        op_type=OPERATOR,
        domain=OWN,
        infer=_infer,
        reference=_reference,
        traits=CHANGES_AXES,
    )
)


def operands(graph: Graph) -> list[Value]:
    """The inputs of the program: the model's inputs, and its constants except scalars."""
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
    """The model as one Lift program. Raises UnsupportedError for an operator without a term."""
    _check(graph)
    params = {v: Param(_name(v), _type(v)) for v in operands(graph)}

    def after(n: int, terms: Mapping[Value, Term]) -> Term:
        """What follows the first `n` operations."""
        if n == len(graph.operations):
            found = [terms[v] for v in graph.outputs]
            if len(found) == 1:
                return found[0]
            return Tuple(*found)
        op = graph.operations[n]
        layer = OperationTerm(OpCall(op, graph.constants), terms)
        try:
            if op.qualified in CELLS:
                return CELLS[op.qualified](
                    layer,
                    lambda made: after(n + 1, {**terms, **dict(_pairs(op, made))}),
                )
            made = OPERATORS[op.qualified](layer)
        except TermRefused as why:
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


def _type(v: Value) -> LiftType:
    found: LiftType = WORDS["f32"][v.extents] if v.extents else WORDS["f32"].type
    return found


def _name(v: Value) -> str:
    return re.sub(r"\W", "_", v.name)
