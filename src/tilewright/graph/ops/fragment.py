"""Building a piece of a graph out of operators, with types inferred on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.graph.nodes import Operation, Value, constant
from tilewright.graph.ops.registry import Array, OpCall, definition_of


class Fragment:
    """Operations in the making. `known` holds the constants, those of the graph around included.

    prefix: goes before the names of the values made here, so that they are unique.
    """

    def __init__(self, prefix: str, known: Mapping[Value, Array]) -> None:
        self.prefix = prefix
        self.operations: list[Operation] = []
        self.constants: dict[Value, Array] = {}
        self._outer = known
        self._count = 0

    @property
    def known(self) -> Mapping[Value, Array]:
        """Every constant in sight."""
        return {**self._outer, **self.constants}

    def constant(self, array: Any, dtype: Any = None) -> Value:
        """A constant operand."""
        a = np.asarray(array, None if dtype is None else dtype.numpy)
        value = constant(self._fresh("const"), a)
        self.constants[value] = a
        return value

    def op(
        self, op_type: str, *inputs: Value | None, version: int = 21, **attributes: Any
    ) -> Value:
        """Apply an operator of one result that has a definition here, and give the result."""
        return self.ops(op_type, *inputs, version=version, count=1, **attributes)[0]

    def pieces(
        self,
        op_type: str,
        *inputs: Value | None,
        count: int,
        version: int = 21,
        **attributes: Any,
    ) -> list[Value]:
        """As `op`, for an operator with `count` results (Split)."""
        return self.ops(op_type, *inputs, version=version, count=count, **attributes)

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
        drafts = () if count is None else tuple(Value(f"{n}") for n in range(count))
        op = Operation(op_type, inputs, drafts, attributes, domain, version)
        definition = definition_of(op)
        if definition is None:
            raise LookupError(f"{op.qualified} has no definition")
        types = list(definition.infer(OpCall(op, self.known)))[:count]
        outputs = tuple(
            Value(self._fresh(op_type), dtype, shape) for dtype, shape in types
        )
        name = f"{self.prefix}/{op_type}_{len(self.operations)}"
        self.operations.append(
            Operation(op_type, inputs, outputs, attributes, domain, version, name)
        )
        return list(outputs)

    def _fresh(self, stem: str) -> str:
        self._count += 1
        return f"{self.prefix}/{stem}.{self._count}"
