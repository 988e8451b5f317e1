"""From a torch.fx graph of ATen operators to a Graph, node by node."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final

import numpy as np

from tilewright.base import limits
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import (
    InputError,
    MemoryLimitError,
    TilewrightError,
    UnsupportedError,
)
from tilewright.base.names import fresh
from tilewright.frontends.torch.aten.builder import AtenBuilder
from tilewright.frontends.torch.aten.complex_numbers import (
    Complex,
    apply_complex,
    complex_rule_of,
    is_complex,
)
from tilewright.frontends.torch.aten.grouped import with_grouped_products
from tilewright.frontends.torch.aten.in_place import changed, functional_forms
from tilewright.frontends.torch.aten.rules import (
    GETITEM,
    AtenCall,
    Result,
    dtype_of_torch,
    name_of,
    rule_of,
)
from tilewright.graph.infer import FallbackProvider, Typer, check_size
from tilewright.graph.nodes import Graph, Value
from tilewright.graph.renaming import name_outputs
from tilewright.runtime.dlpack import require_data

_INLINED: Final = ("wrap_with_set_grad_enabled", "wrap_with_autocast")
HINT: Final = "write the model without it, or export it to ONNX by another way"


class RuleRefused(Exception):
    """A rule rejects a use of an operator. target: the operator; error: the reason and place."""

    def __init__(self, target: Any, error: UnsupportedError) -> None:
        super().__init__(str(error))
        self.target = target
        self.error = error


@dataclass(frozen=True)
class FxSource:
    """A torch.fx graph and its context.

    held: the tensors of placeholders that become constants, with the constants' names. numbers: the
    other placeholders that are not tensors. outputs: names, if there are any.
    """

    module: Any
    held: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    numbers: Mapping[str, Any] = field(default_factory=dict)
    outputs: Sequence[str] = ()


@dataclass(frozen=True)
class ImportSettings:
    """limit: bytes of memory. fallback: runs operators without a definition. standard: keep ONNX's
    operators, for `to_onnx`. symbols: names for PyTorch's dimensions s0, s1, ... trained: names of
    constants that will change: nothing is computed from them in advance.
    """

    limit: int
    fallback: FallbackProvider | None = None
    standard: bool = False
    symbols: Mapping[str, str] = field(default_factory=dict)
    trained: Collection[str] = ()


def import_graph(source: FxSource, settings: ImportSettings) -> Graph:
    """The Graph of a source whose operators all have rules.

    Raises Refused for a use that a rule rejects, MemoryLimitError for constants or tensors beyond
    the limit.
    """
    with limits.compilation():
        module = with_grouped_products(source.module)
        return _Import(replace(source, module=module), settings).graph()


def missing(module: Any) -> dict[str, str]:
    """The operators without a rule, each with its first use in the program."""
    place = AtenBuilder(Typer()).place
    found: dict[str, str] = {}
    for n, target in nodes(module):
        if not has_rule(target):
            found.setdefault(name_of(target), place(n))
    return found


def unsupported(operators: Mapping[str, str]) -> UnsupportedError:
    """The error for operators without a rule."""
    what = "; ".join(f"{name} ({where})" for name, where in operators.items())
    return UnsupportedError(
        f"no rule imports the operators {what}",
        code="TW-OPERATOR",
        items=list(operators),
        hint=HINT,
    )


def nodes(module: Any) -> Iterator[tuple[Any, Any]]:
    """The (node, operator) pairs in the program and in the subprograms that it runs."""
    forms = functional_forms(module)
    for n in module.graph.nodes:
        if n.op == "get_attr":
            inner = _attribute_of(module, n)
            if hasattr(inner, "graph"):
                yield from nodes(inner)
        elif n.op == "call_function" and not _inlined(n.target):
            if name_of(n.target) != GETITEM:
                target = forms.get(n, n.target)
                yield n, target


def has_rule(target: Any) -> bool:
    """Whether a rule handles an operator that changes nothing in place."""
    schema = getattr(target, "_schema", None)
    known = rule_of(target) or complex_rule_of(target)
    return known is not None and not (schema and schema.is_mutable)


def stops_gradients(node: Any) -> bool:
    """Whether a node is `detach`, or what runs under `torch.no_grad`."""
    if getattr(node.target, "_name", "") == _INLINED[0]:
        return node.args[0] is False
    return name_of(node.target).startswith("aten.detach")


def _attribute_of(module: Any, node: Any) -> Any:
    held = module
    for part in str(node.target).split("."):
        held = getattr(held, part)
    return held


def _inlined(target: Any) -> bool:
    return getattr(target, "_name", "") in _INLINED


class _Import:
    """The import of one program. env: maps its nodes to new values."""

    def __init__(self, source: FxSource, settings: ImportSettings) -> None:
        self.source = source
        self.settings = settings
        decompose = not settings.standard
        typer = Typer(settings.fallback, settings.limit, decompose=decompose)
        self.build = AtenBuilder(typer, self._apart, bool(settings.trained))
        self.env: dict[Any, Any] = {}
        self._shared: dict[Any, Value] = {}
        self._trained: dict[Value, np.ndarray[Any, Any]] = {}
        self._bytes = 0

    def graph(self) -> Graph:
        """The whole program."""
        inputs = self._inputs()
        given = self._run(self.source.module)
        outputs, names = self._outputs(given)
        typer = self.build.typer
        used = {v for op in typer.operations for v in op.reads} | set(outputs)
        known = {**self._trained, **typer.known}
        constants = {v: a for v, a in known.items() if v in used}
        made = Graph(
            "main", tuple(inputs), tuple(outputs), tuple(typer.operations), constants
        )
        return name_outputs(made, names)

    # -- the interface

    def _inputs(self) -> list[Value]:
        """Placeholders: the user's inputs, and the module's tensors as constants."""
        found: list[Value] = []
        sizes = []
        for n in self.source.module.graph.nodes:
            if n.op != "placeholder":
                continue
            if n.name in self.source.held:
                self.env[n] = self._held(*self.source.held[n.name])
            elif n.name in self.source.numbers:
                self.env[n] = self.source.numbers[n.name]
            elif hasattr(n.meta.get("val"), "shape"):
                self.env[n] = self._input(n)
                found.append(self.env[n])
            else:
                sizes.append(n)
        for n in sizes:
            self.env[n] = self._size(n)
        return found

    def _input(self, node: Any) -> Value:
        held = node.meta["val"]
        if held.is_complex():
            raise UnsupportedError(
                f"input {node.name!r} is complex",
                hint="pass torch.view_as_real of it, and apply torch.view_as_complex inside",
            )
        shape = tuple(map(self._extent, held.shape))
        name = fresh(self.build.names, node.name)
        dtype = dtype_of_torch(held.dtype)
        value = Value(name, dtype, shape)
        check_size(value, self.settings.limit, f"input {name!r}")
        return value

    def _size(self, node: Any) -> Value:
        """A number that is passed at each call: it must be the extent of an input."""
        held = node.meta.get("val")
        for n in self.source.module.graph.nodes:
            if n.op == "placeholder" and hasattr(n.meta.get("val"), "shape"):
                for axis, extent in enumerate(n.meta["val"].shape):
                    if type(extent) is not int and str(extent) == str(held):
                        self.build.at(node)
                        x = self.env[n]
                        found = self.build.op(
                            "Shape",
                            x,
                            start=axis,
                            end=axis + 1,
                        )
                        first = self.build.constant(np.asarray([0], np.int64))
                        return self.build.op(
                            "Squeeze",
                            found,
                            first,
                        )
        raise UnsupportedError(
            f"input {node.name!r} is a number that changes with each call",
            hint="pass a tensor, or a fixed number",
        )

    def _extent(self, n: Any) -> int | str:
        known = n if type(n) is int else n.node.maybe_as_int()
        if known is not None:
            return int(known)
        text = str(n.node.expr)
        return self.settings.symbols.get(
            text,
            text,
        )

    def _held(self, held: Any, name: str) -> Value | Complex:
        """A tensor of the module; complex ones by their parts."""
        if not held.is_complex():
            return self._constant(held, name)
        parts = ("real", held.real), ("imag", held.imag)
        real, imag = (self._constant(p.clone(), f"{name}.{n}") for n, p in parts)
        return Complex(
            real,
            imag,
        )

    def _constant(self, held: Any, name: str) -> Value:
        key = held.data_ptr(), tuple(held.shape), tuple(held.stride()), held.dtype
        if held.numel() and key in self._shared:
            return self._shared[key]
        self._bytes += held.numel() * held.element_size()
        if self._bytes > self.settings.limit:
            raise MemoryLimitError(
                f"the weights up to here take {self._bytes:,} bytes, over the memory limit of "
                f"{self.settings.limit:,} bytes",
                where=name,
                hint=limits.MORE_MEMORY,
            )
        try:
            array = numpy_of(held)
        except InputError as error:
            raise error.at(name) from None
        own = fresh(self.build.names, name)
        if name in self.settings.trained:
            value = Value(own, dtype_of_torch(held.dtype), array.shape)
            self._trained[value] = array
        else:
            value = self.build.typer.constant(own, array)
        self._shared[key] = value
        return value

    def _outputs(self, given: Sequence[Any]) -> tuple[list[Value], list[str]]:
        """The outputs, with unique names and without None."""
        self.build.prefix = "output"
        values = []
        names = []
        taken = set(self.build.names)
        wanted = self.source.outputs or [""] * len(given)
        for n, (name, node) in enumerate(zip(wanted, given, strict=True)):
            value = self._value(node)
            if value is None:
                continue
            if isinstance(value, Complex):
                raise UnsupportedError(
                    f"output {node.name!r} is complex",
                    hint="return torch.view_as_real of it",
                )
            if not isinstance(value, Value):
                value = self.build.constant(np.asarray(value))
            values.append(value)
            names.append(
                fresh(taken, name or str(getattr(node, "name", f"output_{n}")))
            )
        return values, names

    # -- the nodes

    def _run(self, module: Any) -> Any:
        """Run the nodes in order; returns the last one's result."""
        forms = functional_forms(module)
        for n in module.graph.nodes:
            if n.op == "get_attr":
                self._attribute(module, n)
            elif n.op == "call_function":
                limits.check()
                target = forms.get(
                    n,
                    n.target,
                )
                self.env[n] = self._call(
                    n,
                    target,
                )
                self.env |= dict.fromkeys(changed(n, forms), self.env[n])
            elif n.op == "output":
                return n.args[0]
        return None

    def _attribute(self, module: Any, node: Any) -> None:
        held = _attribute_of(module, node)
        if hasattr(held, "dtype"):
            name = str(node.target)
            held = self._held(held, name)
        self.env[node] = held

    def _call(self, node: Any, target: Any) -> Any:
        if name_of(target) == GETITEM:
            return self._part(node)
        if _inlined(node.target):
            return self._inline(node)
        self.build.at(node)
        given = _arguments(node, target)
        arguments = {name: self._value(a) for name, a in given.items()}
        try:
            call = AtenCall(
                self.build,
                node,
                target,
                arguments,
                given,
            )
            return self._applied(call)
        except UnsupportedError as error:
            raise RuleRefused(node.target, error) from error
        except TypeError as error:
            if not (call.open_numbers and _uses_value(error)):
                raise
            named = " and ".join(map(repr, call.open_numbers))
            refused = call.refuse(f"{named} is known only at run time")
            raise RuleRefused(node.target, refused) from error
        except TilewrightError as error:
            raise error.at(self.build.place(node)) from error.__cause__

    def _applied(self, call: AtenCall) -> Any:
        if is_complex(call):
            return apply_complex(call)
        apply = rule_of(call.target)
        if apply is None:
            raise call.refuse("its numbers are not complex")
        return self._checked(call.node, apply(call))

    def _part(self, node: Any) -> Any:
        """One of several results. Raises Refused for one that the rule omits."""
        maker, index = node.args
        found = self._value(maker)[index]
        if found is None and node.meta.get("val") is not None and node.users:
            where = self.build.place(node)
            what = f"{name_of(maker.target)}: its result {index} is not computed"
            raise RuleRefused(maker.target, UnsupportedError(what, where=where))
        return found

    def _inline(self, node: Any) -> Any:
        args = [self._value(a) for a in node.args]
        place = next(n for n, a in enumerate(args) if hasattr(a, "graph"))
        found = self._program(args[place], args[place + 1 :])
        if stops_gradients(node):
            return [self._detached(x) for x in found]
        return found

    def _detached(self, x: Any) -> Any:
        if isinstance(x, Complex):
            real = self.build.detached(x.real)
            imag = self.build.detached(x.imag)
            return Complex(real, imag)
        if isinstance(x, Value):
            return self.build.detached(x)
        return x

    def _program(self, module: Any, operands: Sequence[Any]) -> Any:
        """The results of a subprogram on these operands."""
        inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
        self.env.update(zip(inputs, operands, strict=True))
        result = self._run(module)
        return self._value(result)

    def _apart(self, module: Any, operands: Sequence[Any]) -> Any:
        """The same in a subgraph, whose constants no other graph shares."""
        shared = dict(self._shared)
        try:
            return self._program(module, operands)
        finally:
            self._shared = shared

    def _checked(self, node: Any, result: Result) -> Any:
        """Check that a rule's result has PyTorch's type; anything else is a bug in the rule."""
        held = node.meta.get("val")
        if isinstance(held, list | tuple) and isinstance(result, list | tuple):
            return [self._typed(*both) for both in zip(held, result, strict=False)]
        return self._typed(held, result)

    def _typed(self, held: Any, result: Any) -> Any:
        if isinstance(result, Value) and hasattr(held, "dtype"):
            wanted = dtype_of_torch(held.dtype)
            if result.dtype is not None and result.dtype is not wanted:
                result = self.build.cast(result, wanted)
        return result

    def _value(self, x: Any) -> Any:
        """An argument with nodes replaced by their values; numbers and strings are unchanged."""
        if isinstance(x, list | tuple):
            return [self._value(a) for a in x]
        if hasattr(x, "meta") and hasattr(x, "op"):
            return self.build.known_size(x, self.env[x])
        return x


def _arguments(node: Any, target: Any) -> dict[str, Any]:
    """The arguments of a call by name, including defaults."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return {str(n): a for n, a in enumerate(node.args)} | dict(node.kwargs)
    found = {}
    for n, argument in enumerate(schema.arguments):
        if n < len(node.args):
            found[argument.name] = node.args[n]
        else:
            found[argument.name] = node.kwargs.get(
                argument.name, argument.default_value
            )
    return found


def _uses_value(error: TypeError) -> bool:
    """Whether a Value was used as a number: Python names the type of what is none, unless it is a
    bound of a slice. Other errors are faults of a rule."""
    said = str(error)
    return Value.__name__ in said or said.startswith("slice indices must be")


def numpy_of(tensor: Any) -> np.ndarray[Any, Any]:
    """A tensor's elements in NumPy's memory order. Raises InputError if it has no data."""
    import torch

    require_data(tensor)
    dtype = dtype_of_torch(tensor.dtype).numpy
    whole = tensor.detach().cpu().contiguous()
    flat = whole.as_strided((whole.numel(),), (1,))  # one element may have any stride
    if flat.numel():
        raw = flat.view(torch.uint8)
    else:
        raw = torch.empty(0, dtype=torch.uint8)
    found: np.ndarray[Any, Any] = raw.numpy().view(dtype)
    return found.reshape(tuple(tensor.shape))
