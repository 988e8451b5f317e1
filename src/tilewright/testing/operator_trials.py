"""Random uses of single operators: every definition of ours, all versions and dtypes of ONNX's
schemas, extents, attributes and values at the edge.

A trial begins with one of ONNX's own tests of the operator, because that is valid, and changes it
as the schema of a version allows: element types, extents (0 and 1 too), attributes, operands left
out, special values. Much of it stays valid; the engines that judge it sort out the rest.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper

from tilewright.base import dtypes
from tilewright.base.dataclass import dataclass
from tilewright.frontends.onnx.author import IR_VERSION
from tilewright.graph.nodes import Operation
from tilewright.graph.ops import registry

Array = np.ndarray[Any, Any]
MOST: Final = 4000  # elements of an operand
EXTENTS: Final = (0, 1, 1, 2, 3, 4, 5, 7, 8, 17)
# No kernel of ONNX Runtime guards a division by zero: the process would end.
DIVIDES: Final = frozenset({"Div", "Mod"})
# What they make of values that an integer type has no place for is left open.
ROUNDS: Final = frozenset(
    {"Cast", "CastLike", "QuantizeLinear", "DynamicQuantizeLinear", "Pow", "Shrink"}
)
# Zeros are put around data, and 0 times infinity is NaN: operands that may have it.
# Whether a NaN is the largest of a window is left open, and which index an infinite one is.
INFINITE: Final[Mapping[str, Sequence[int]]] = {
    "Conv": (0,),
    "ConvTranspose": (0,),
} | dict.fromkeys(("DFT", "GridSample", "MaxPool", "OneHot", "RoiAlign"), ())
# Elements that go to one place more than once, in no order.
PLACES: Final = frozenset({"MaxUnpool", "ScatterElements", "ScatterND", "Scatter"})
# Operands that say where or how many: no extremes.
SIZES: Final = frozenset({"tensor(int64)", "tensor(int32)"})


@dataclass(frozen=True)
class OperatorTrial:
    """One use of an operator. inputs: an array for each of the model's inputs, by name."""

    seed: int
    model: Any
    inputs: Mapping[str, Array]
    special: bool

    @property
    def op(self) -> str:
        """The operator and its version."""
        return (
            f"{self.model.graph.node[0].op_type}-{self.model.opset_import[0].version}"
        )


@dataclass
class _Draft:
    """A trial under construction. operands: an array for each input of the node; None: omitted."""

    rng: random.Random
    schema: Any
    operands: list[Array | None]
    attributes: dict[str, Any]
    outputs: list[str]


def trial(seed: int) -> OperatorTrial | None:
    """The use number `seed` of an operator; None if the drawn use fits no schema."""
    rng = random.Random(seed)
    op_type = rng.choice(_operators())
    schema = rng.choice(_schemas(op_type))
    case = rng.choice(_cases()[op_type])
    node = case.model.graph.node[0]
    names = [i.name for i in case.model.graph.input]
    inputs = case.data[0][0]
    fed = dict(zip(names, inputs, strict=False))
    operands = [fed.get(name) for name in node.input]
    if not all(a is None or isinstance(a, np.ndarray | np.generic) for a in operands):
        return None
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    arrays = [None if a is None else np.asarray(a) for a in operands]
    outputs = list(node.output)
    draft = _Draft(
        rng=rng,
        schema=schema,
        operands=arrays,
        attributes=attributes,
        outputs=outputs,
    )
    _to_version(draft)
    _other_types(draft)
    if rng.random() < 0.5 and op_type not in PLACES:
        _other_extents(draft)
    if rng.random() < 0.3:
        _other_attribute(draft)
    if rng.random() < 0.2:
        _left_out(draft)
    special = rng.random() < 0.25 and _special_values(draft)
    _without_zero_divisors(draft)
    if op_type in ROUNDS:
        _representable(draft)
    if not _fits_first(draft):
        return None
    if any(
        a is not None and (a.size > MOST or a.dtype == object) for a in draft.operands
    ):
        return None
    try:
        return OperatorTrial(seed, *_model(draft), special)
    except (
        TypeError,
        ValueError,
    ):  # an attribute that is of another kind in this version
        return None


@cache
def _cases() -> Mapping[str, Sequence[Any]]:
    """ONNX's tests of single operators that we define, by operator."""
    from tilewright.frontends.onnx.conformance import cases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        every = cases("node")
    found: dict[str, list[Any]] = {}
    for case in every:
        nodes = case.model.graph.node
        if len(nodes) == 1:
            name = standard_name(nodes[0])
        else:
            name = None
        if name is None or case.random or not case.data:
            continue
        if any(a.type == onnx.AttributeProto.GRAPH for a in nodes[0].attribute):
            continue
        if not _is_drawn(name) and _schemas(name):
            found.setdefault(name, []).append(case)
    return found


def _is_drawn(name: str) -> bool:
    """Whether nothing fixes the results of ONNX's operator of that name."""
    operation = Operation(name, (), ())
    return registry.has_trait(operation, registry.Trait.IMPURE)


def standard_name(node: onnx.NodeProto) -> str | None:
    """The name of an operator of ONNX; None for one of another domain."""
    if node.domain:
        return None
    return str(node.op_type)


@cache
def _operators() -> Sequence[str]:
    return sorted(_cases())


@cache
def _schemas(op_type: str) -> Sequence[Any]:
    """Every version of an operator that we define."""
    return [
        s
        for s in sorted(_history(), key=lambda s: int(s.since_version))
        if s.name == op_type
        and not s.deprecated
        and registry.lookup(op_type, "", s.since_version) is not None
    ]


@cache
def _history() -> Sequence[Any]:
    return [s for s in onnx.defs.get_all_schemas_with_history() if not s.domain]


def _to_version(d: _Draft) -> None:
    """What was an attribute in an older version and is an input now, or the other way round."""
    named = _formals(d)
    newest = onnx.defs.get_schema(d.schema.name)
    for n in reversed(range(len(d.operands))):
        a = d.operands[n]
        name = newest.inputs[min(n, len(newest.inputs) - 1)].name
        is_input = n < len(named) and named[n].name == name
        if is_input or name not in d.schema.attributes:
            continue
        if a is not None and a.ndim <= 1:
            d.attributes[name] = a.tolist()
        del d.operands[n]
    for n, formal in enumerate(named[len(d.operands) :], len(d.operands)):
        value = d.attributes.pop(formal.name, None)
        if value is None:
            break
        integral = isinstance(np.asarray(value).flat[0], np.integer)
        dtype = "int64" if integral else "float32"
        d.operands[n:] = [np.asarray(value, dtype)]
    d.operands = d.operands[: d.schema.max_input]
    d.outputs = d.outputs[: d.schema.max_output]
    d.attributes = {k: v for k, v in d.attributes.items() if k in d.schema.attributes}


def _formals(d: _Draft) -> list[Any]:
    """The formal parameter of each operand, the variadic one as often as there are operands."""
    formals = list(d.schema.inputs)
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    if formals and formals[-1].option == variadic:
        formals += [formals[-1]] * max(0, len(d.operands) - len(formals))
    return formals


def _other_types(d: _Draft) -> None:
    """Change element types if they do not fit the version, and often if they do."""
    constraints = d.schema.type_constraints
    allowed = {c.type_param_str: list(c.allowed_type_strs) for c in constraints}
    chosen: dict[str, np.dtype[Any]] = {}
    for n, (formal, a) in enumerate(zip(_formals(d), d.operands, strict=False)):
        if a is None:
            continue
        if a.dtype == object:
            continue
        if a.dtype.kind in "USO":
            continue
        types = sorted(allowed.get(formal.type_str, [formal.type_str]))
        names = [t for t in types if t in NUMPY]
        fits = _type_string(a) in types
        if not names:
            continue
        if formal.type_str not in chosen:
            keep = fits and d.rng.random() < 0.6
            chosen[formal.type_str] = a.dtype if keep else NUMPY[d.rng.choice(names)]
        dtype = chosen[formal.type_str]
        d.operands[n] = _converted(a, dtype)


_NUMBERS = (
    "float16 bfloat16 float32 float64 bool "
    "int8 int16 int32 int64 uint8 uint16 uint32 uint64"
).split()
_ONNX_NAMES = {"float32": "float", "float64": "double"}
NUMPY: Final[Mapping[str, np.dtype[Any]]] = {
    f"tensor({_ONNX_NAMES.get(name, name)})": np.dtype(dtypes.dtype_of(name).numpy)
    for name in _NUMBERS
}


def _type_string(a: Array) -> str:
    return next((s for s, t in NUMPY.items() if t == a.dtype), "")


def _converted(a: Array, dtype: np.dtype[Any]) -> Array:
    if a.dtype == dtype:
        return a
    plain = a.astype(np.float64)
    if a.dtype.kind == "f" and dtype.kind in "iu":
        plain = np.round(plain * 3)  # values below one stay different
    if dtype.kind in "iub":
        plain = np.nan_to_num(
            plain,
            nan=0,
            posinf=100,
            neginf=-100,
        )
    if dtype.kind == "u":
        plain = np.abs(plain)
    with np.errstate(all="ignore"):
        return plain.astype(dtype)


def _other_extents(d: _Draft) -> None:
    """Every extent of one size becomes another size, mostly; values go round."""
    sizes = sorted({e for a in d.operands if a is not None for e in a.shape})
    if not sizes:
        return
    old = d.rng.choice(sizes)
    new = d.rng.choice((*EXTENTS, old + 1))
    if d.rng.random() < 0.2:
        alone = d.rng.randrange(len(d.operands))
    else:
        alone = None
    for n, a in enumerate(d.operands):
        if a is None or alone not in (None, n):
            continue
        shape = [new if e == old else e for e in a.shape]
        if a.size:
            d.operands[n] = np.resize(a, shape)
        else:
            d.operands[n] = np.zeros(shape, a.dtype)


def _other_attribute(d: _Draft) -> None:
    """Omit an attribute, or set it to the edge of its range or beyond."""
    names = [n for n, a in d.schema.attributes.items() if a.type in CHANGES]
    if not names:
        return
    name = d.rng.choice(sorted(names))
    meant = d.schema.attributes[name]
    if name in d.attributes and not meant.required and d.rng.random() < 0.3:
        del d.attributes[name]
        return
    value = d.attributes.get(name)
    if value is None and meant.default_value.type:
        value = helper.get_attribute_value(meant.default_value)
    changed = CHANGES[meant.type](d, name, value)
    if changed is not None:
        d.attributes[name] = changed


def _an_int(
    d: _Draft,
    name: str,
    value: int | None,
) -> int | None:
    if name in ("to", "dtype", "output_dtype", "stash_type"):
        return d.rng.choice((1, 2, 3, 5, 6, 7, 9, 10, 11))
    return d.rng.choice((0, 1, -1, 2, (value or 0) + 1, (value or 0) - 1))


def _ints(
    d: _Draft,
    name: str,
    value: Sequence[int] | None,
) -> Sequence[int] | None:
    if not value:
        return None
    found = list(value)
    at = d.rng.randrange(len(found))
    found[at] = d.rng.choice((0, 1, 2, -1, found[at] + 1, found[at] - 1))
    return found


def _a_float(
    d: _Draft,
    name: str,
    value: float | None,
) -> float:
    chosen = d.rng.choice((0.0, 1.0, -1.0, 0.5, 1e-3, 2.5))
    return abs(chosen) if name == "clip" else chosen  # between x and -x


def _text(
    d: _Draft,
    name: str,
    value: bytes | None,
) -> str | None:
    """A value that one of ONNX's tests of the operator has."""
    known: set[str] = set()
    for case in _cases()[d.schema.name]:
        attributes = case.model.graph.node[0].attribute
        known |= {helper.get_attribute_value(a) for a in attributes if a.name == name}
    if known:
        return d.rng.choice(sorted(known))
    return None


_Types = onnx.defs.OpSchema.AttrType
CHANGES: Final[Mapping[Any, Any]] = {
    _Types.INT: _an_int,
    _Types.INTS: _ints,
    _Types.FLOAT: _a_float,
    _Types.STRING: _text,
}


def _left_out(d: _Draft) -> None:
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    used = _formals(d)[: len(d.operands)]
    places = [n for n, formal in enumerate(used) if formal.option == optional]
    if places:
        n = d.rng.choice(places)
        d.operands[n] = None
    while d.operands and d.operands[-1] is None:
        d.operands.pop()


def _special_values(d: _Draft) -> bool:
    """Some elements of one operand at the end of its type, or none of its numbers."""
    formals = _formals(d)
    fit = []
    for n, (f, a) in enumerate(zip(formals, d.operands, strict=False)):
        if a is None or not a.size:
            continue
        is_float = a.dtype.kind == "f"
        first_integers = n == 0 and a.dtype.kind in "iu" and f.type_str not in SIZES
        if is_float or first_integers:
            fit.append(n)
    fit = [n for n in fit if n in INFINITE.get(d.schema.name, fit)]
    if not fit or d.schema.name in DIVIDES | ROUNDS:
        return False
    n = d.rng.choice(fit)
    chosen = d.operands[n]
    assert chosen is not None
    a = np.array(chosen)
    for _ in range(d.rng.randint(1, 3)):
        if a.dtype.kind == "f":
            top = float(np.finfo(a.dtype).max)
            value = d.rng.choice((np.nan, np.inf, -np.inf, -0.0, 0.0, top, -top, 1e-30))
        else:
            info = np.iinfo(a.dtype)
            value = d.rng.choice((info.min, info.max))
        a.flat[d.rng.randrange(a.size)] = value
    d.operands[n] = a
    return True


def _without_zero_divisors(d: _Draft) -> None:
    if d.schema.name in DIVIDES and len(d.operands) == 2:
        a = d.operands[1]
        if a is not None and a.dtype.kind in "iu":
            d.operands[1] = np.where(a == 0, np.ones((), a.dtype), a)


def _representable(d: _Draft) -> None:
    """Floats that each integer type has a place for."""
    for n, a in enumerate(d.operands):
        if a is not None and a.dtype.kind in "fV":
            if d.schema.name == "Pow":
                largest = 3
            else:
                largest = 100
            plain = np.nan_to_num(np.abs(a.astype(np.float64)))
            d.operands[n] = np.clip(plain, 0, largest).astype(a.dtype)
        elif a is not None and d.schema.name == "Pow":
            d.operands[n] = np.clip(a, 0, 3).astype(a.dtype)


def _fits_first(d: _Draft) -> bool:
    """Whether operands broadcast as old versions allow it: the second one to the first."""
    if "broadcast" not in d.schema.attributes:
        return True
    if len(d.operands) < 2:
        return True
    first, second = d.operands[:2]
    if first is None:
        return False
    if second is None:
        return False
    if second.ndim > first.ndim:
        return False
    pairs = zip(first.shape[::-1], second.shape[::-1], strict=False)
    return all(n in (1, m) for m, n in pairs)


def _model(d: _Draft) -> tuple[Any, Mapping[str, Array]]:
    """Some operands that say how, not what, are constants, as models have them."""
    names = ["" if a is None else f"x{n}" for n, a in enumerate(d.operands)]
    given = []
    constants = []
    inputs = {}
    for n, (name, a) in enumerate(zip(names, d.operands, strict=True)):
        if a is None:
            continue
        kind = helper.np_dtype_to_tensor_dtype(a.dtype)
        dense = np.ascontiguousarray(a)
        if n and d.rng.random() < 0.5:
            constant = onnx.numpy_helper.from_array(dense, name)
            constant.dims[:] = a.shape
            constants.append(constant)
        else:
            given.append(helper.make_tensor_value_info(name, kind, a.shape))
            inputs[name] = dense.reshape(a.shape)
    node = helper.make_node(d.schema.name, names, d.outputs, "n")
    for key, value in d.attributes.items():
        kind = d.schema.attributes[key].type.value
        node.attribute.append(helper.make_attribute(key, value, attr_type=kind))
    results = [onnx.ValueInfoProto(name=name) for name in d.outputs if name]
    graph = helper.make_graph([node], "one", given, results, constants)
    opsets = [helper.make_opsetid("", d.schema.since_version)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    return model, inputs
