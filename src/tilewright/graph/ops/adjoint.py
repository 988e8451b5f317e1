"""The adjoint of an operator, derived from its Computations: `tilewright::Adjoint`.

Inputs: the operator's inputs, its results, and the gradients of its results (omitted if zero).
Outputs: the gradients of the inputs listed in the attribute `wanted`. The attributes `operator`,
`operator_domain` and `operator_version` identify the operator, and `arity` holds the numbers of its
inputs and outputs. Its own attributes are stored with the prefix `of_`, so that an adjoint can have
an adjoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.base.errors import UnsupportedError
from tilewright.compute.adjoint import ScatterAdd, Step, adjoint
from tilewright.compute.build import cast
from tilewright.compute.gathered import Contribution
from tilewright.compute.nodes import Computation
from tilewright.compute.reducer import reducer
from tilewright.compute.transforms import map_loads, map_outputs
from tilewright.expr.nodes import Buffer, Expr, const
from tilewright.graph.nodes import Operation, Value
from tilewright.graph.ops.errors import place
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import (
    Array,
    OpCall,
    OpDef,
    Type,
    program_of,
    register,
)
from tilewright.ir.node import substitute
from tilewright.loops.nests import LoopNests, kernel
from tilewright.loops.nodes import If, Kernel, Stmt, Update, block

ADJOINT, DOMAIN = "Adjoint", "tilewright"
_OWN = "of_"  # prefix of the operator's own attributes


def derived(
    f: Fragment,
    op: Operation,
    flows: Sequence[Value | None],
    wanted: Sequence[int],
) -> list[Value]:
    """The gradients of the wanted inputs of `op`, by the adjoint of its Computations.

    flows: one gradient per output, None if zero. Raises UnsupportedError if its definition is a
    Kernel or has no derivative.
    """
    attributes = {
        "operator": op.op_type,
        "operator_domain": op.domain,
        "operator_version": op.version,
        "arity": [len(op.inputs), len(op.outputs)],
        "wanted": list(wanted),
        **{_OWN + name: value for name, value in op.attributes.items()},
    }
    operands = (*op.inputs, *op.outputs, *flows)
    found = Operation(ADJOINT, operands, (), attributes, DOMAIN, name=op.label)
    call = OpCall(found, f.known)
    results = [_buffer(op.inputs[i]) for i in wanted]
    _steps(
        call, [_buffer(v) for v in operands], results
    )  # raise now rather than during compilation
    return f.ops(
        ADJOINT, *operands, domain=DOMAIN, version=1, count=len(wanted), **attributes
    )


def _buffer(v: Value | None) -> Buffer | None:
    if v is None or v.dtype is None:
        return None
    return Buffer(v.name, v.extents, v.dtype)


def _operator(call: OpCall) -> Operation:
    """The operator that the adjoint belongs to."""
    arity, count = call.attr("arity")
    operands = call.operation.inputs
    attributes = call.operation.attributes
    own = {
        name.removeprefix(_OWN): value
        for name, value in attributes.items()
        if name.startswith(_OWN)
    }
    return Operation(
        call.attr("operator"),
        operands[:arity],
        operands[arity : arity + count],
        own,
        call.attr("operator_domain"),
        call.attr("operator_version"),
        call.operation.name,
    )


def _steps(
    call: OpCall,
    inputs: Sequence[Buffer | None],
    outputs: Sequence[Buffer | None],
) -> list[Computation | Kernel]:
    found = _backward(call, inputs, outputs)
    return [_scattered(s) if isinstance(s, ScatterAdd) else s for s in found]


def _backward(
    call: OpCall,
    inputs: Sequence[Buffer | None],
    outputs: Sequence[Buffer | None],
) -> list[Step]:
    op = _operator(call)
    arity, count = call.attr("arity")
    aliases = _Aliases()
    operands = aliases.of(inputs[:arity])
    results = inputs[arity : arity + count]
    # A known scalar is written into the Computations, which then have no derivative by it.
    moving = {op.inputs[i] for i in call.attr("wanted")}
    known_operands = {v: a for v, a in call.known.items() if v not in moving}
    steps = _forward(op, known_operands, operands, results)
    flows = {
        y: g
        for y, g in zip(results, inputs[arity + count :], strict=False)
        if y is not None and g is not None
    }
    wanted = {
        b: out
        for i, out in zip(call.attr("wanted"), outputs, strict=True)
        if (b := operands[i]) is not None and out is not None
    }
    known = [b for b in results if b is not None]
    return [aliases.undone(s) for s in adjoint(steps, flows, wanted, known)]


def _forward(
    op: Operation,
    known: Mapping[Value, Array],
    inputs: Sequence[Buffer | None],
    outputs: Sequence[Buffer | None],
) -> Sequence[Step]:
    """What an operator computes. Raises UnsupportedError if that is a Kernel."""
    if (op.op_type, op.domain) == (ADJOINT, DOMAIN):
        return _backward(OpCall(op, known), inputs, outputs)
    program = program_of(op, known, inputs, outputs) or []
    steps = [s for s in program if isinstance(s, Computation)]
    if not steps or len(steps) < len(program):
        raise UnsupportedError(
            f"{op.qualified} is not defined by Computations, of which an adjoint can be derived",
            where=place(op),
            hint="give its OpDef a gradient=",
        )
    return steps


class _Aliases:
    """A separate buffer for each further position at which a buffer is an operand.

    The gradients of the positions are distinguished by their buffers, as passes merge equal
    operands.
    """

    def __init__(self) -> None:
        self.real: dict[Buffer, Buffer] = {}

    def of(
        self,
        operands: Sequence[Buffer | None],
    ) -> list[Buffer | None]:
        """The operands as distinct buffers."""
        found: list[Buffer | None] = []
        for b in operands:
            if b is not None and b in found:
                other = Buffer(f"{b.name}_{len(found)}", b.shape, b.dtype)
                self.real[other] = b
                b = other
            found.append(b)
        return found

    def undone(
        self,
        s: Step,
    ) -> Step:
        """Replace the aliases in a step by the operands themselves."""
        if self.real.keys().isdisjoint(s.inputs):
            return s
        if isinstance(s, Computation):
            return replace(s, outputs=map_outputs(s, self._undo))
        parts = [
            Contribution(
                self._undo(p.read),  # type: ignore[arg-type]
                p.dims,
                self._undo(p.flow),
                tuple(
                    (tuple(map(self._undo, conditions)), self._undo(value))
                    for conditions, value in p.cases
                ),
            )
            for p in s.parts
        ]
        return replace(s, parts=tuple(parts))

    def _undo(
        self,
        e: Expr,
    ) -> Expr:
        rewrite = {
            other: lambda load, b=b: b[load.index] for other, b in self.real.items()
        }
        return map_loads(e, rewrite)


def _scattered(s: ScatterAdd) -> Kernel:
    """The loop program: zeros, then each point of each part adds to the element that it reads."""
    nests = LoopNests()
    out = s.tensor
    add = reducer("add", out.dtype)
    body = [nests.copy(out, lambda *i: const(0.0, out.dtype))]
    for part in s.parts:

        def step(
            *i: Expr,
            part: Contribution = part,
        ) -> Stmt:
            env = dict(zip((d.var for d in part.dims), i, strict=True))
            at = tuple(substitute(e, env) for e in part.read.index)
            updates: list[Stmt] = []
            for conditions, value in part.cases:
                value = cast(substitute(value, env), out.dtype)
                update: Stmt = Update((out,), (at,), (value,), add)
                for c in reversed(conditions):
                    update = If(substitute(c, env), update, None)
                updates.append(update)
            return block(*updates)

        body.append(nests.over([d.extent for d in part.dims], step))
    return kernel(s.name, s.inputs, [out], block(*body), nests.notes)


def _types(call: OpCall) -> Sequence[Type]:
    wanted = call.attr("wanted")
    return [(call.dtype(i), call.shape(i)) for i in wanted]


register(OpDef(ADJOINT, _types, domain=DOMAIN, compute=_steps))
