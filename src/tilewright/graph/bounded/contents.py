"""The elements of small integer tensors, such as shapes, as far as they are statically known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.graph.bounded.builder import BoundedBuilder
from tilewright.graph.bounded.extents import ARITHMETIC, Dim, least, most
from tilewright.graph.infer import run_operation
from tilewright.graph.nodes import Operation, Value

MAX_NUMBERS = 64
Numbers = np.ndarray[Any, Any]  # elements are of type Dim, in the tensor's shape

# Operators whose results consist of elements of their operands, whatever these are.
_MOVES = {
    "Concat": None,
    "Expand": 1,
    "Flatten": 1,
    "Gather": 1,
    "Identity": 1,
    "Reshape": 1,
    "Slice": 1,
    "Split": 1,
    "Squeeze": 1,
    "Transpose": 1,
    "Unsqueeze": 1,
}
_REDUCTIONS = {
    "ReduceMax": "Max",
    "ReduceMin": "Min",
    "ReduceProd": "Mul",
    "ReduceSum": "Add",
}


class KnownContents:
    """What is known about the elements of integer tensors."""

    def __init__(
        self,
        builder: BoundedBuilder,
    ) -> None:
        self._builder = builder
        self._found: dict[Value, Numbers] = {}

    def inner(
        self,
        builder: BoundedBuilder,
    ) -> KnownContents:
        """A copy for a subgraph that the builder makes."""
        made = KnownContents(builder)
        made._found = dict(self._found)
        return made

    def of(
        self,
        v: Value | None,
    ) -> Numbers | None:
        """The elements of a tensor; None if nothing is known about them."""
        if v is None:
            return None
        known = self._builder.typer.known.get(v)
        if known is None:
            return self._found.get(v)
        if known.size > MAX_NUMBERS or known.dtype.kind not in "biu":
            return None
        return _objects([int(n) for n in known.reshape(-1)], known.shape)

    def ints(
        self,
        v: Value | None,
    ) -> list[Dim] | None:
        """The elements of a vector or scalar in order."""
        found = self.of(v)
        return None if found is None else list(found.reshape(-1))

    def put(
        self,
        v: Value,
        numbers: Any,
        shape: tuple[int, ...],
    ) -> None:
        """Record the elements of a tensor."""
        self._found[v] = _objects(list(numbers), shape)

    def settled(
        self,
        v: Value,
    ) -> Value:
        """A constant in place of a tensor whose elements are the same in every run."""
        found = self._found.get(v)
        if found is None or v.dtype is None or v in self._builder.typer.known:
            return v
        if not all(isinstance(d, int) for d in found.reshape(-1)):
            return v
        return self._builder.constant(found, v.dtype)

    def note(
        self,
        op: Operation,
    ) -> None:
        """Record the elements of an operator's results, if they can be derived."""
        out = op.outputs[0]
        small = all(v.static and np.prod(v.extents) <= MAX_NUMBERS for v in op.writes)
        if (
            out is None
            or not small
            or out in self._found
            or out in self._builder.typer.known
        ):
            return
        rules = (
            self._moved,
            self._cast,
            self._computed,
            self._reduced,
            self._compared,
            self._selected,
        )
        for rule in rules:
            found = rule(op)
            if found is None:
                continue
            for v, numbers in zip(op.outputs, found, strict=False):
                if v is not None:
                    self._found[v] = numbers

    def _moved(
        self,
        op: Operation,
    ) -> list[Numbers] | None:
        """Run the operator on the numbers of the elements to see where each one moves."""
        if op.qualified not in _MOVES:
            return None
        count = _MOVES[op.qualified] or len(op.inputs)
        held = [self.of(v) for v in op.inputs[:count]]
        rest = [self._array(v) for v in op.inputs[count:]]
        if any(h is None for h in held) or any(r is _UNKNOWN for r in rest):
            return None
        table: list[Dim] = []
        places = []
        for h in held:
            assert h is not None
            places.append(np.arange(h.size).reshape(h.shape) + len(table))
            table += list(h.reshape(-1))
        fallback = self._builder.typer.fallback
        found = run_operation(op, [*places, *rest], fallback)
        if found is None:
            return None
        return [
            _objects([table[int(n)] for n in np.reshape(p, -1)], np.shape(p))
            for p in found
        ]

    def _array(
        self,
        v: Value | None,
    ) -> Any:
        if v is None:
            return None
        return self._builder.typer.known.get(v, _UNKNOWN)

    def _cast(
        self,
        op: Operation,
    ) -> list[Numbers] | None:
        """A cast keeps numbers that the dtype can represent."""
        out = op.outputs[0]
        if op.qualified != "Cast" or out is None or out.dtype is None:
            return None
        found = self.of(op.inputs[0])
        return None if found is None else _fitting(out, found)

    def _computed(
        self,
        op: Operation,
    ) -> list[Numbers] | None:
        out = op.outputs[0]
        operands = self._operands(op)
        if op.qualified not in ARITHMETIC or out is None or not operands:
            return None
        if op.qualified == "Div" and any(least(d) <= 0 for d in operands[1].flat):
            return None
        total = operands[0]
        for other in operands[1:]:
            total = self._pairwise(op.qualified, total, other)
        return _fitting(out, total)

    def _operands(
        self,
        op: Operation,
    ) -> list[Numbers] | None:
        """The elements of all operands."""
        found = [self.of(v) for v in op.inputs]
        held = [f for f in found if f is not None]
        return held if len(held) == len(found) else None

    def _pairwise(
        self,
        op: str,
        a: Any,
        b: Any,
    ) -> Any:
        number = self._builder.number
        return _together([a, b], lambda x, y: number(op, x, y))

    def _compared(
        self,
        op: Operation,
    ) -> list[Numbers] | None:
        """Whether numbers are equal, if their bounds decide it."""
        operands = self._operands(op)
        if op.qualified != "Equal" or operands is None:
            return None
        found = _together(operands, _equal)
        return None if any(d is None for d in found.flat) else [found]

    def _selected(
        self,
        op: Operation,
    ) -> list[Numbers] | None:
        """Each number from one of two tensors, if it is known from which."""
        operands = self._operands(op)
        if op.qualified != "Where" or operands is None:
            return None
        if not all(isinstance(d, int) for d in operands[0].flat):
            return None
        return [_together(operands, lambda take, one, other: one if take else other)]

    def _reduced(
        self,
        op: Operation,
    ) -> list[Numbers] | None:
        """A reduction of a whole vector to one number."""
        kind = _REDUCTIONS.get(op.qualified)
        if kind is None:
            return None
        out = op.outputs[0]
        found = self.of(op.inputs[0])
        if out is None or found is None or found.ndim != 1:
            return None
        if not found.size or np.prod(out.extents) != 1:
            return None
        total: Dim = found[0]
        for d in found[1:]:
            total = self._builder.number(kind, total, d)
        return _fitting(out, _objects([total], out.extents))


def _fitting(
    out: Value,
    numbers: Numbers,
) -> list[Numbers] | None:
    """The numbers as a result; None if they may exceed the dtype's range and wrap around."""
    if out.dtype is None or not out.dtype.is_int:
        return None
    limits = np.iinfo(out.dtype.numpy)
    fit = all(limits.min <= least(d) and most(d) <= limits.max for d in numbers.flat)
    return [numbers] if fit else None


class _Unknown:
    """No array."""


_UNKNOWN = _Unknown()


def _equal(
    a: Dim,
    b: Dim,
) -> int | None:
    if a is b or (isinstance(a, int) and a == b):
        return 1
    return 0 if least(a) > most(b) or least(b) > most(a) else None


def _together(
    operands: Sequence[Any],
    f: Callable[..., Any],
) -> Numbers:
    """A function of elements, applied to broadcast tensors."""
    shape = np.broadcast_shapes(*(o.shape for o in operands))
    rows = zip(*(np.broadcast_to(o, shape).reshape(-1) for o in operands), strict=True)
    return _objects([f(*row) for row in rows], shape)


def _objects(
    items: list[Dim],
    shape: tuple[int, ...],
) -> Numbers:
    found = np.empty(len(items), object)
    for n, d in enumerate(items):
        found[n] = d
    return found.reshape(shape)
