"""The one way to define an operator: an OpDef, registered by domain, name and version.

    register(OpDef(
        "Square", domain="com.acme",
        infer=lambda call: [(call.dtype(0), call.shape(0))],
        compute=lambda call, inputs, outputs: [
            map_("square", outputs[0], lambda *i: inputs[0][i] * inputs[0][i])
        ],
        reference=lambda call, x: [x * x],
        flops=lambda call: call.size_out(0),
    ))

Every module of this package defines a family of operators and registers them on import; the first
lookup imports all modules. Users register their own operators the same way, before loading a model
that uses them.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.base import limits
from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.base.errors import CompileError, InputError, ModelError
from tilewright.base.text import did_you_mean
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.graph.blocks import BlockCosts
from tilewright.graph.nodes import DataDependent, Dim, Graph, Operation, Shape, Value
from tilewright.graph.ops.errors import definition_of_node, place
from tilewright.graph.ops.traits import Trait
from tilewright.loops.nodes import Kernel

if TYPE_CHECKING:
    from tilewright.graph.ops.derivative import Backward
    from tilewright.graph.ops.fragment import Fragment

Array = np.ndarray[Any, Any]
Type = tuple[DType, Shape | None]
Program = Sequence[Computation | Kernel]


@dataclass(frozen=True, eq=False)
class OpCall:
    """One use of an operator, as its definition sees it.

    known: the values that are constants. An omitted input has no dtype or shape; check `has(i)`
    first. blocks: of the target, if its blocks of threads share memory.
    """

    operation: Operation
    known: Mapping[Value, Array] = field(default_factory=dict)
    blocks: BlockCosts | None = field(default=None, kw_only=True)

    def attr(self, name: str, default: Any = None) -> Any:
        """The attribute, or its default."""
        return self.operation.attr(name, default)

    @property
    def version(self) -> int:
        """The since_version of the operator that the model uses."""
        return self.operation.version

    @property
    def name(self) -> str:
        """A C identifier to name the computations by."""
        return re.sub(r"\W", "_", self.operation.op_type).lower()

    @property
    def arity(self) -> int:
        """The number of inputs, including omitted ones in the middle."""
        return len(self.operation.inputs)

    def has(self, i: int) -> bool:
        """Whether input `i` is present."""
        return i < self.arity and self.operation.inputs[i] is not None

    def wants(self, i: int) -> bool:
        """Whether output `i` is used."""
        return i < len(self.operation.outputs) and self.operation.outputs[i] is not None

    def value(self, i: int) -> Value:
        """Input `i`. Raises ModelError if it is omitted."""
        v = self.operation.inputs[i] if i < self.arity else None
        if v is None:
            raise self.error(f"input {i} is missing")
        return v

    def given(self, i: int) -> Value | None:
        """Input `i`; None if it is omitted."""
        return self.value(i) if self.has(i) else None

    def dtype(self, i: int) -> DType:
        """The element type of input `i`."""
        v = self.value(i)
        if v.dtype is None:
            raise DataDependent(v.name)
        return v.dtype

    def shape(self, i: int) -> tuple[int, ...]:
        """The extents of input `i`. Raises DataDependent if they are unknown."""
        v = self.value(i)
        if not v.static:
            raise DataDependent(v.name)
        return v.extents

    def rank(self, i: int) -> int:
        """The number of dimensions of input `i`."""
        shape = self.value(i).shape
        if shape is None:
            raise DataDependent(self.value(i).name)
        return len(shape)

    def lead(self, i: int) -> Shape:
        """The batch and channel extents of input `i`, as far as they are known."""
        self.rank(i)
        return (self.value(i).shape or ())[:2]

    def spatial(self, i: int) -> tuple[int, ...]:
        """The extents of input `i` after batch and channels.

        Raises DataDependent if they are unknown; batch and channels may be unknown.
        """
        self.rank(i)
        extents = (self.value(i).shape or ())[2:]
        known = tuple(d for d in extents if isinstance(d, int))
        if len(known) != len(extents):
            raise DataDependent(self.value(i).name)
        return known

    def size(self, i: int) -> int:
        """The number of elements of input `i`."""
        return math.prod(self.shape(i))

    def constant(self, i: int) -> Array | None:
        """The value of input `i` if it is present and known, else None."""
        v = self.operation.inputs[i] if i < self.arity else None
        return None if v is None else self.known.get(v)

    def need(self, i: int) -> Array:
        """The value of input `i`. Raises DataDependent if it is unknown."""
        found = self.constant(i)
        if found is None:
            raise DataDependent(self.value(i).name)
        return found

    def int_scalar(self, i: int) -> int:
        """The only element of input `i`. Raises DataDependent if it is unknown."""
        return int(self.need(i).reshape(-1)[0])

    def ints(self, i: int) -> list[int] | None:
        """The value of input `i` as a list of ints; None if it is omitted."""
        if self.has(i):
            return [int(n) for n in self.need(i).reshape(-1)]
        return None

    def out(self, i: int) -> Value:
        """Output `i`."""
        v = self.operation.outputs[i]
        assert v is not None
        return v

    def size_out(self, i: int) -> int:
        """The number of elements of output `i`."""
        return math.prod(self.out(i).extents)

    def axis(self, axis: int, rank: int) -> int:
        """`axis` counted from the front. Raises ModelError if it is out of range."""
        if not -rank <= axis < max(rank, 1):
            raise self.error(f"axis {axis} is out of range for {rank} dimensions")
        return axis + rank if axis < 0 else axis

    def own_axis(self, rank: int, default: int) -> int:
        """The attribute `axis`, counted from the front."""
        return self.axis(self.attr("axis", default), rank)

    def result(self, shape: Iterable[Dim]) -> Sequence[Type]:
        """The type of a single result: the element type of input 0, in this shape."""
        return [(self.dtype(0), tuple(shape))]

    def error(self, message: str) -> ModelError:
        """The error to raise for a use that breaks the operator's rules."""
        return ModelError(message, where=place(self.operation))

    def table(self, elements: int, what: str) -> None:
        """Announce a table of `elements` numbers of 8 bytes each before it is allocated.

        Raises MemoryLimitError if the compiler may not allocate it.
        """
        limits.table(8 * elements, what, place(self.operation))


Infer = Callable[[OpCall], Sequence[Type]]
Compute = Callable[[OpCall, Sequence[Buffer], Sequence[Buffer]], Program | None]
# (where to add operators, the call, its inputs, its first output, the gradient of that output); the
# call knows the other outputs' gradients. Returns the gradient of each input, None if there is
# none.
Gradient = Callable[
    ["Fragment", "Backward", Sequence[Value], Value, Value], Sequence[Value | None]
]


_FUNCTION = (Callable, "a function")
# What each argument of OpDef must be, where it is given.
_ARGUMENTS: Mapping[str, tuple[Any, str]] = {
    "op_type": (str, "a string"),
    "domain": (str, "a string"),
    "since": (int, "an integer"),
    "until": (int, "an integer"),
    "by_value": (tuple, "a tuple of numbers of inputs"),
    "traits": (Trait, "a Trait such as Trait.POINTWISE"),
    **dict.fromkeys(
        (
            "compute",
            "reference",
            "flops",
            "decompose",
            "static_value",
            "gradient",
            "newest",
        ),
        _FUNCTION,
    ),
}


@dataclass(frozen=True, eq=False)
class OpDef:
    """The definition of an operator for the versions since .. until (both included).

    infer: dtype and shape of each output (shape None: known only when it runs). It is called with
    static input shapes; it may use constant inputs (`call.need`).
    compute: the native form, reading and writing the given buffers; None, or a result of None,
    means that there is none for these attributes and dtypes. Buffers of omitted operands are None.
    reference: NumPy arrays in (None for an omitted input), list of arrays out; None if it does not
    support these types.
    flops: floating-point operations of one run (a multiply-add counts as two); 0 if not given.
    decompose: the operator in terms of others, used if there is no native form.
    static_value: the results if the types determine them (Shape, Size), else None.
    by_value: inputs whose values the native form needs; if one is an input of the model, the model
    is compiled for each of its values.
    traits: what passes and rules may rely on (`graph/ops/traits.py`).
    gradient: the gradients of the inputs from those of the outputs (`graph/ops/derivative.py`); by
    default that of the operators of `decompose`, else the adjoint of `compute`.
    newest: the operation as the newest version writes it, for host fallbacks that know no other.
    """

    op_type: str
    infer: Infer
    domain: str = ""
    since: int = 1
    until: int | None = None
    compute: Compute | None = None
    reference: Callable[..., Sequence[Any] | None] | None = None
    flops: Callable[[OpCall], int] | None = None
    decompose: Callable[[OpCall, Fragment], Sequence[Value] | None] | None = None
    static_value: Callable[[OpCall], Sequence[Array] | None] | None = None
    by_value: tuple[int, ...] = ()
    traits: Trait = Trait.NONE
    gradient: Gradient | None = None
    newest: Callable[[Operation], Operation] | None = None

    def __new__(cls, *args: Any, **named: Any) -> OpDef:
        for name in named:
            if name not in cls.__dataclass_fields__:
                raise InputError(
                    f"OpDef has no argument {name!r}",
                    hint=did_you_mean(name, cls.__dataclass_fields__),
                )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, (kind, what) in _ARGUMENTS.items():
            given = getattr(self, name)
            if given is not None and not isinstance(given, kind):
                words = (f"Trait.{n}" for n in Trait.__members__ if name == "traits")
                hint = did_you_mean(f"Trait.{str(given).upper()}", words)
                raise InputError(f"OpDef: {name} is {given!r}, not {what}", hint=hint)
        if not callable(self.infer):
            raise InputError(f"OpDef: infer is {self.infer!r}, not a function")

    @property
    def qualified(self) -> str:
        """The operator with its domain, as `Operation.qualified`."""
        return f"{self.domain}::{self.op_type}" if self.domain else self.op_type

    def covers(self, version: int) -> bool:
        """Whether it defines that version of the operator."""
        return self.since <= version and (self.until is None or version <= self.until)


_definitions: dict[tuple[str, str], list[OpDef]] = {}
_state = {"loaded": False}


def register(definition: OpDef, *, replace: bool = False) -> OpDef:
    """Add a definition. With `replace` it takes precedence over existing ones for its versions.

    Raises InputError if another definition covers one of its versions.
    """
    if not isinstance(definition, OpDef):
        raise InputError(f"register takes an OpDef, not {definition!r}")
    key = (definition.domain, definition.op_type)
    known = _definitions.setdefault(key, [])
    if not replace:
        for other in known:
            if _overlap(definition, other):
                raise InputError(
                    f"operator {definition.op_type!r} of domain {definition.domain!r} has a "
                    f"definition since version {other.since} already",
                    hint="Pass replace=True to put yours in its place",
                )
    known.insert(0, definition)
    return definition


def _overlap(a: OpDef, b: OpDef) -> bool:
    return (b.until is None or a.since <= b.until) and (
        a.until is None or b.since <= a.until
    )


def lookup(
    op_type: str,
    domain: str = "",
    version: int = 1,
) -> OpDef | None:
    """The definition of that operator and version, or None."""
    _load_families()
    domain = "" if domain == "ai.onnx" else domain
    for definition in _definitions.get((domain, op_type), ()):
        if definition.covers(version):
            return definition
    return None


def definition_of(operation: Operation) -> OpDef | None:
    """The definition of the operator that `operation` applies, or None."""
    return lookup(operation.op_type, operation.domain, operation.version)


def has_trait(operation: Operation, trait: Trait) -> bool:
    """Whether the operator that `operation` applies has one of the traits.

    A version without a definition has the traits of the nearest one that has a definition. An
    operator without any definition has no known traits.
    """
    definition = definition_of(operation)
    if definition is None:
        others = _definitions.get((operation.domain, operation.op_type))
        if not others:
            return False
        definition = min(others, key=lambda d: abs(d.since - operation.version))
    return bool(definition.traits & trait)


def definitions(op_type: str, domain: str = "") -> Sequence[OpDef]:
    """Every definition of an operator."""
    _load_families()
    return _definitions.get((domain, op_type), ())


def registered() -> list[OpDef]:
    """Every definition, by domain and name."""
    _load_families()
    return [d for key in sorted(_definitions) for d in _definitions[key]]


def user_defined() -> bool:
    """Whether someone outside this package has registered a definition."""
    return any(foreign(d) for known in _definitions.values() for d in known)


def foreign(definition: OpDef) -> bool:
    """Whether someone outside this package wrote it."""
    module = str(getattr(definition.infer, "__module__", None))
    return not module.startswith(("tilewright.", "functools"))


def program_of(
    operation: Operation,
    known: Mapping[Value, Array],
    inputs: Sequence[Buffer | None],
    outputs: Sequence[Buffer | None],
    *,
    blocks: BlockCosts | None = None,
) -> Program | None:
    """The native form of `operation` on the given buffers; None if it has none.

    blocks: as of OpCall.

    Operators on types without native code (strings, complex numbers, sequences) have none.
    Raises CompileError naming the node if its definition fails.
    """
    definition = definition_of(operation)
    if definition is None or definition.compute is None:
        return None
    values = [v for v in (*operation.inputs, *operation.outputs) if v is not None]
    if not all(v.static and native_dtype(v.dtype) for v in values):
        return None
    call = OpCall(operation, known, blocks=blocks)
    hint = None if foreign(definition) else "Please report it, with the model"
    try:
        with definition_of_node(operation, "its definition fails", CompileError, hint):
            program = definition.compute(call, inputs, outputs)  # type: ignore[arg-type]
            if program is None:
                return None
            return [_step(item) for item in program]
    except DataDependent:
        return None


def _step(item: Computation | Kernel) -> Computation | Kernel:
    if not isinstance(item, Computation | Kernel):
        raise TypeError(f"{item!r} is neither a Computation nor a Kernel")
    return item


def native_dtype(dtype: DType | None) -> bool:
    """Whether kernels can store values of this type in memory."""
    return dtype is not None and not (dtype.is_string or dtype.is_complex)


def _load_families() -> None:
    if _state["loaded"]:
        return
    package = importlib.import_module("tilewright.graph.ops")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"tilewright.graph.ops.{module.name}")
    _state["loaded"] = True


__all__ = [
    "Array",
    "DataDependent",
    "Gradient",
    "Graph",
    "OpCall",
    "OpDef",
    "Program",
    "Trait",
    "Type",
    "definition_of",
    "foreign",
    "has_trait",
    "lookup",
    "native_dtype",
    "program_of",
    "register",
    "registered",
    "user_defined",
]
