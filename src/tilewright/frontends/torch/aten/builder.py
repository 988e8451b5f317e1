"""Adding operations to a graph under construction, with names derived from their modules."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from tilewright.base.dtypes import DType, int32, int64
from tilewright.base.names import fresh
from tilewright.frontends.torch.user_line import user_line
from tilewright.graph.infer import Typer
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.dtype_numbers import number_of

# (a subprogram, the values of its placeholders) -> its results, in the graph under construction.
Run = Callable[[Any, Sequence[Any]], Any]
# Prefix of a module's path in torch.compile: the variable that holds it.
_CAPTURED: Final = re.compile(r"^L\['\w+'\]\.?")
NEWEST: Final = 26  # versions of the operator sets that the rules use


class AtenBuilder:
    """Adds operations through a Typer, which folds constants and infers types."""

    def __init__(
        self, typer: Typer, run: Run | None = None, trains: bool = False
    ) -> None:
        self.typer = typer
        self.run = run
        self.trains = trains
        self.prefix = ""
        self.names: set[str] = set()

    def at(self, node: Any) -> None:
        """Set the current node, whose module path prefixes all new names."""
        path = module_of(node)
        self.prefix = f"{path}.{node.name}" if path else str(node.name)

    def place(self, node: Any) -> str:
        """A node's place in the user's program: its module and source line."""
        path = module_of(node)
        line = source_of(node)
        return ", ".join(part for part in (path or str(node.name), line) if part)

    def op(self, op_type: str, *inputs: Value | None, **attributes: Any) -> Value:
        """Apply an operator with one result."""
        return self.ops(op_type, *inputs, count=1, **attributes)[0]

    def ops(
        self,
        op_type: str,
        *inputs: Value | None,
        count: int,
        domain: str = "",
        **attributes: Any,
    ) -> list[Value]:
        """Apply an operator with several results."""
        name = fresh(self.names, f"{self.prefix}/{op_type}")
        outputs = tuple(
            Value(fresh(self.names, f"{name}.{n}") if n else name) for n in range(count)
        )
        draft = Operation(
            op_type,
            inputs,
            outputs,
            attributes,
            domain,
            1 if domain else NEWEST,
            name,
        )
        return [v for v in self.typer.apply(draft) if v is not None]

    def body(
        self, inputs: Sequence[Value], make: Callable[[], Sequence[Value]]
    ) -> Graph:
        """A subgraph of the operations that `make` adds, whose results are its outputs."""
        outer = self.typer
        self.typer = outer.inner()
        try:
            results = make()
            # A value of another graph, or one that is two outputs, gets a name of its own.
            outputs = tuple(self.op("Identity", v) for v in results)
            known = self.typer.own
            name = fresh(self.names, f"{self.prefix}/body")
            return Graph(
                name, tuple(inputs), outputs, tuple(self.typer.operations), known
            )
        finally:
            self.typer = outer

    def constant(self, array: np.ndarray[Any, Any]) -> Value:
        """A constant operand."""
        return self.typer.constant(fresh(self.names, f"{self.prefix}/constant"), array)

    def cast(self, x: Value, dtype: DType) -> Value:
        """`x` in another type; unchanged if it has it.

        PyTorch wraps floats around in integers of 8 and 16 bits; ours saturate in each type.
        """
        if x.dtype is dtype:
            return x
        narrow = dtype.is_int and dtype.bits < int32.bits
        if narrow and x.dtype is not None and x.dtype.is_float:
            wide = number_of(int32.name)
            x = self.op("Cast", x, to=wide)
        return self.op("Cast", x, to=number_of(dtype.name))

    def detached(self, x: Value) -> Value:
        """`x` without its gradient, if the graph is trained: none flow through integers."""
        if not self.trains or x.dtype is None or not x.dtype.is_float:
            return x
        integer = number_of(f"int{x.dtype.bits}")
        bits = self.op("BitCast", x, to=integer)
        return self.op("BitCast", bits, to=number_of(x.dtype.name))

    def sizes(self, numbers: Sequence[Any]) -> Value:
        """Integers and scalar Values as one vector."""
        if all(isinstance(n, int) for n in numbers):
            array = np.asarray(list(numbers), np.int64)
            return self.constant(array)
        array = np.asarray([1], np.int64)
        one = self.constant(array)
        parts = [
            self.constant(np.asarray([n], np.int64))
            if isinstance(n, int)
            else self.op("Reshape", self.cast(n, int64), one)
            for n in numbers
        ]
        return self.op("Concat", *parts, axis=0)

    def known_size(self, node: Any, value: Any) -> Any:
        """A size of the program as a number, if it is known."""
        if isinstance(value, Value) and not hasattr(node.meta.get("val"), "shape"):
            found = self.typer.known.get(value)
            if found is None or found.size != 1:
                return value
            return found.item()
        return value


def module_of(node: Any) -> str:
    """The path of a node's module, `layers.0.attention`; empty for the top level."""
    stack: Mapping[str, Any] = node.meta.get("nn_module_stack") or {}
    paths = [str(entry[0]) for entry in stack.values()]
    if paths:
        found = _CAPTURED.sub("", paths[-1])
    else:
        found = ""
    return "" if found.startswith("_empty_nn_module") else found


def source_of(node: Any) -> str:
    """The user's source line of a node, `model.py:12`; empty if PyTorch does not know it."""
    trace = node.meta.get("stack_trace")
    found = user_line(trace)
    return "" if found is None else f"{found[0]}:{found[1]}"
