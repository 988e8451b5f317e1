"""The rules by ATen operator, and a use of an operator as its rule sees it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tilewright.base.dtypes import DType, bool_, dtype_of, int64
from tilewright.base.errors import UnsupportedError
from tilewright.graph.nodes import Value

if TYPE_CHECKING:
    from tilewright.frontends.torch.aten.builder import AtenBuilder

# The result of an operator: a tensor, several, or nothing for one that only checks.
Result = Value | Sequence["Value | None"] | None
Rule = Callable[["AtenCall"], Result]

_RULES: Final[dict[str, Rule]] = {}
# Operators that select one of several results.
GETITEM: Final = "operator.getitem"
_HERE: Final = "tilewright.frontends.torch.aten"


class AtenCall:
    """One use of an operator.

    arguments: by the names in its schema, including defaults; tensors and sizes known only at run
    time are Values. node: of torch.fx, with PyTorch's types for its results.
    """

    def __init__(
        self,
        build: AtenBuilder,
        node: Any,
        target: Any,
        arguments: Mapping[str, Any],
        given: Any,
    ) -> None:
        self.build = build
        self.node = node
        self.target = target
        self.name = name_of(target)
        self.arguments = arguments
        self.given = given  # the arguments as nodes of torch.fx, by name

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)

    @property
    def open_numbers(self) -> list[str]:
        """The arguments that are, or contain, numbers known only at run time."""

        def is_open(given: Any, held: Any) -> bool:
            if isinstance(held, list | tuple):
                pairs = zip(given, held, strict=True)
                return any(is_open(*pair) for pair in pairs)
            return isinstance(held, Value) and not hasattr(
                given.meta.get("val"), "shape"
            )

        return [n for n, held in self.arguments.items() if is_open(self.given[n], held)]

    def has(self, name: str) -> bool:
        """Whether the argument is present and not None."""
        return self.arguments.get(name) is not None

    def uses(self, n: int) -> bool:
        """Whether the program reads result `n` of several."""
        parts = [u for u in self.node.users if name_of(u.target) == GETITEM]
        return any(u.args[1] == n and u.users for u in parts)

    def op(self, op_type: str, *inputs: Value | None, **attributes: Any) -> Value:
        """Apply an operator with one result."""
        return self.build.op(op_type, *inputs, **attributes)

    def run(self, program: Any, operands: Sequence[Any]) -> list[Value]:
        """The results of a subprogram that the operator takes."""
        assert self.build.run is not None
        found = self.build.run(program, operands)
        parts = found if isinstance(found, list) else [found]
        return [self.value(v) for v in parts]

    # -- types

    @property
    def result(self) -> Any:
        """PyTorch's description of the result, or of the first one of several."""
        found = self.node.meta["val"]
        if isinstance(found, tuple | list):
            return found[0]
        return found

    @property
    def dtype(self) -> DType:
        """The element type of the result; of its parts if it is complex."""
        return dtype_of_torch(self.result.dtype.to_real())

    def fixed(self) -> list[int] | None:
        """The extents of the result; None if one is known only at run time."""
        shape = list(self.result.shape)
        if all(type(n) is int for n in shape):
            return shape
        return None

    def of(self, name: str) -> Any:
        """PyTorch's description of an argument: a tensor without data, or a number."""
        given = self.given[name]
        if hasattr(given, "meta"):
            return given.meta["val"]
        return given

    def rank(self, name: str = "self") -> int:
        """The number of axes of an argument."""
        return len(self.of(name).shape)

    def extent(self, axis: int, name: str = "self") -> int | None:
        """An extent of an argument; None if it is known only at run time."""
        found = self.of(name).shape[axis]
        return found if type(found) is int else None

    def promoted(self, a: str, b: str) -> DType:
        """The type in which PyTorch compares two arguments; of its parts if it is complex."""
        import torch

        dtype = torch.result_type(self.of(a), self.of(b))
        return dtype_of_torch(dtype.to_real())

    # -- operands

    def tensor(self, name: str = "self", dtype: DType | None = None) -> Value:
        """An argument as a tensor, of the given type."""
        return self.value(self.arguments[name], dtype)

    def value(self, x: Any, dtype: DType | None = None) -> Value:
        """A tensor or a number as a tensor of the given type."""
        if isinstance(x, Value):
            if dtype is None:
                return x
            return self.cast(x, dtype)
        return self.number(x, dtype or int64)

    def number(self, x: Any, dtype: DType | None = None) -> Value:
        """A scalar constant of the result's type, with integers wrapped around."""
        return self.build.constant(np.asarray(x).astype((dtype or self.dtype).numpy))

    def cast(self, x: Value, dtype: DType) -> Value:
        """`x` in another type; unchanged if it has it."""
        return self.build.cast(x, dtype)

    def axis(self, name: str = "dim", of: str = "self") -> int:
        """An argument that is an axis, counted from the front."""
        return positive(int(self[name]), self.rank(of))

    def axes(self, name: str = "dim", of: str = "self") -> list[int]:
        """An argument that lists axes, counted from the front; all axes if it lists none."""
        given = self[name]
        rank = self.rank(of)
        if given is None or given == []:
            return list(range(rank))
        if isinstance(given, list | tuple):
            numbers = given
        else:
            numbers = [given]
        return [positive(int(n), rank) for n in numbers]

    def sizes(self, numbers: Sequence[Any]) -> Value:
        """Numbers, some of which may be known only at run time, as one vector."""
        return self.build.sizes(numbers)

    def ints(self, *numbers: int) -> Value:
        """A constant vector."""
        return self.build.constant(np.asarray(numbers, np.int64))

    def unsqueeze(self, x: Value, *axes: int) -> Value:
        """`x` with further axes of extent 1."""
        places = self.ints(*axes)
        return self.op("Unsqueeze", x, places)

    def squeeze(self, x: Value, *axes: int) -> Value:
        """`x` without these axes."""
        places = self.ints(*axes)
        return self.op("Squeeze", x, places)

    def reshape(self, x: Value, sizes: Sequence[Any]) -> Value:
        """`x` in another shape, given by numbers, one of which may be -1, or Values."""
        numbers = [n for n in sizes if isinstance(n, int)]
        if -1 not in numbers:
            zeros = {"allowzero": 1}
        else:
            zeros = {}
        shape = self.sizes(sizes)
        return self.op("Reshape", x, shape, **zeros)

    def spread(self, name: str, count: int) -> list[int]:
        """An argument with one number for each of `count` axes; a single number is repeated."""
        given = self[name]
        if isinstance(given, list | tuple):
            numbers = list(given)
        else:
            numbers = [given]
        return [int(n) for n in (numbers * count if len(numbers) == 1 else numbers)]

    def refuse(self, what: str) -> UnsupportedError:
        """The error for a use that the graph's operators cannot express."""
        where = self.build.place(self.node)
        return UnsupportedError(f"{self.name}: {what}", where=where)


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for operators: `aten.add` for all overloads, `aten.add.Tensor` for one."""

    def register(function: Rule) -> Rule:
        _RULES.update(dict.fromkeys(names, function))
        return function

    return register


def rule_of(target: Any) -> Rule | None:
    """The rule for the operator that a node calls; None if there is none."""
    _load()
    name = name_of(target)
    return _RULES.get(name) or _RULES.get(name.rpartition(".")[0])


def rule_named(name: str) -> Rule:
    """The rule registered under a name, for a rule of an operator with the same meaning."""
    _load()
    return _RULES[name]


def name_of(target: Any) -> str:
    """`aten.add.Tensor` for an operator, `math.ceil` for a function."""
    if hasattr(target, "_schema"):
        return str(target)
    module = getattr(target, "__module__", "").lstrip("_")
    return f"{module}.{getattr(target, '__name__', target)}"


def positive(axis: int, rank: int) -> int:
    """An axis counted from the front."""
    if axis < 0:
        return axis + max(rank, 1)
    return axis


def dtype_of_torch(dtype: Any) -> DType:
    """The element type of a `torch.dtype`."""
    name = str(dtype).removeprefix("torch.")
    return bool_ if name == "bool" else dtype_of(name)


@cache
def _load() -> None:
    package = importlib.import_module(f"{_HERE}.operators")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{_HERE}.operators.{module.name}")
