"""Building a piece of a graph out of operators, with types inferred on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tilewright.base.dtypes import DType, int64
from tilewright.graph.nodes import Operation, Value, constant
from tilewright.graph.ops.dtype_numbers import number_of
from tilewright.graph.ops.registry import Array, OpCall, definition_of
from tilewright.graph.ops.terms import TensorTerm


class AnyOperator(Protocol):
    """Anything that identifies an operator: an operation, or an operator in a rule."""

    @property
    def op_type(self) -> str: ...

    @property
    def domain(self) -> str: ...

    @property
    def version(self) -> int: ...


class Fragment:
    """Operations under construction. `known`: the constants, including the enclosing graph's.

    prefix: of the names of values made here, so that they are unique.
    """

    def __init__(self, prefix: str, known: Mapping[Value, Array]) -> None:
        self.prefix = prefix
        self.operations: list[Operation] = []
        self.constants: dict[Value, Array] = {}
        self._outer = known
        self._count = 0

    @property
    def known(self) -> Mapping[Value, Array]:
        """Every visible constant."""
        return {**self._outer, **self.constants}

    def constant(self, array: Any, dtype: Any = None) -> Value:
        """A constant operand."""
        a = np.asarray(array, None if dtype is None else dtype.numpy)
        value = constant(self._fresh("const"), a)
        self.constants[value] = a
        return value

    def number(self, x: Any, dtype: DType | None = None) -> Value:
        """A scalar constant."""
        return self.constant(x, dtype)

    def term(self, x: Value) -> TensorTerm:
        """`x` in a formula."""
        return TensorTerm(self, x)

    def cast(self, x: Value, dtype: DType) -> Value:
        """`x` in another type; unchanged if it has it."""
        if x.dtype is dtype:
            return x
        return self.op("Cast", x, to=number_of(dtype.name))

    def transpose(self, x: Value, *perm: int) -> Value:
        """`x` with its axes in another order."""
        return self.op("Transpose", x, perm=list(perm))

    def unsqueeze(self, x: Value, *axes: int) -> Value:
        """`x` with further axes of extent 1."""
        return self.op("Unsqueeze", x, self.ints(*axes))

    def squeeze(self, x: Value, *axes: int) -> Value:
        """`x` without these axes."""
        return self.op("Squeeze", x, self.ints(*axes))

    def split(self, x: Value, extents: Sequence[int], axis: int) -> list[Value]:
        """`x` cut into parts with these extents along an axis."""
        sizes = self.ints(*extents)
        return self.ops("Split", x, sizes, count=len(extents), axis=axis)

    def ints(self, *numbers: int) -> Value:
        """Add a constant int64 vector: a shape, axes or positions."""
        return self.constant(numbers, int64)

    def reshape(self, x: Value, *shape: int) -> Value:
        """`x` in another shape, by the rules of Reshape."""
        return self.op("Reshape", x, self.ints(*shape))

    def op(
        self,
        op_type: str,
        *inputs: Value | None,
        version: int = 21,
        **attributes: Any,
    ) -> Value:
        """Apply an operator that has one result and a definition here; returns the result."""
        return self.ops(op_type, *inputs, version=version, count=1, **attributes)[0]

    def apply(
        self,
        operator: AnyOperator,
        inputs: Sequence[Value | None],
        attributes: Mapping[str, Any],
    ) -> Value:
        """As `op`, with the type, domain and version of an operation or of a rule's operator."""
        (result,) = self.ops(
            operator.op_type,
            *inputs,
            version=operator.version,
            domain=operator.domain,
            count=1,
            **attributes,
        )
        return result

    def ops(
        self,
        op_type: str,
        *inputs: Value | None,
        version: int = 21,
        domain: str = "",
        count: int | None = None,
        **attributes: Any,
    ) -> list[Value]:
        """As `op`, for an operator of several results."""
        name = f"{self.prefix}/{op_type}_{len(self.operations)}"
        drafts = tuple(Value(f"{n}") for n in range(count or 0))
        op = Operation(
            op_type,
            inputs,
            drafts,
            attributes,
            domain,
            version,
            name,
        )
        definition = definition_of(op)
        if definition is None:
            raise LookupError(f"{op.qualified} has no definition")
        types = list(definition.infer(OpCall(op, self.known)))[:count]
        outputs = tuple(
            Value(self._fresh(op_type), dtype, shape) for dtype, shape in types
        )
        self.operations.append(
            Operation(
                op_type,
                inputs,
                outputs,
                attributes,
                domain,
                version,
                name,
            )
        )
        return list(outputs)

    def _fresh(self, stem: str) -> str:
        self._count += 1
        return f"{self.prefix}/{stem}.{self._count}"
