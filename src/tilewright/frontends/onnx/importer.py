"""GraphProto to Graph: names resolved, functions inlined, types inferred, node by node."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tilewright.base.errors import (
    ModelError,
    TilewrightError,
    UnsupportedError,
)
from tilewright.base.text import plural
from tilewright.frontends.onnx import functions, tensors
from tilewright.frontends.onnx.attributes import attribute_value, resolved
from tilewright.frontends.onnx.bodies import check_bodies
from tilewright.frontends.onnx.declared import (
    check_default,
    check_results,
    names_of_extents,
)
from tilewright.frontends.onnx.initializers import NO_DATA, Data
from tilewright.frontends.onnx.order import check_text, ordered
from tilewright.frontends.onnx.protos import domain_of, qualified, value_from_onnx
from tilewright.frontends.onnx.scope import FunctionKey, ModelContext, NameScope
from tilewright.frontends.onnx.signature import check_signature
from tilewright.graph.gradient import derivatives
from tilewright.graph.infer import Typer, check_size
from tilewright.graph.nodes import Graph, Operation, Shape, Value, constant
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import lookup
from tilewright.graph.renaming import name_outputs


def import_graph(
    proto: Any, context: ModelContext, free: Collection[str] = ()
) -> Graph:
    """The model's main graph. free: inputs with defaults that remain inputs."""
    check_text(proto)
    for body in context.local.values():
        check_text(body)
    typer = Typer(context.fallback, context.limit, decompose=not context.standard)
    scope = NameScope(context, typer)
    inputs = _inputs(proto, scope, free=free)
    _initializers(proto, scope, free, context.data)
    _nodes(proto.node, scope, f"graph {proto.name!r}")
    outputs = _outputs(proto, scope)
    context.unsupported.raise_if_any()
    graph = _graph(proto.name or "main", inputs, outputs, typer.operations, typer.known)
    graph = replace(graph, declared=names_of_extents(proto.output))
    return name_outputs(graph, [info.name for info in proto.output])


def _graph(
    name: str,
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    operations: Sequence[Operation],
    known: Mapping[Value, Any],
) -> Graph:
    used = {v for op in operations for v in op.reads} | set(outputs)
    constants = {v: a for v, a in known.items() if v in used}
    return Graph(name, tuple(inputs), tuple(outputs), tuple(operations), constants)


def _inputs(
    proto: Any,
    scope: NameScope,
    hints: Sequence[Value | None] = (),
    free: Collection[str] = (),
) -> list[Value]:
    """The inputs without a default and those in `free`; the others are constants."""
    constants = set(with_defaults(proto)).difference(free)
    found = []
    for n, info in enumerate(proto.input):
        if info.name in constants:
            continue
        where = f"input {info.name!r}"
        name = scope.fresh(info.name)
        value = value_from_onnx(name, info.type)
        if n < len(hints):
            hint = hints[n]
        else:
            hint = None
        if value.dtype is None and value.kind == "tensor" and hint is not None:
            value = replace(hint, name=value.name)
        check_size(value, scope.context.limit, where)
        scope.define(info.name, value, where)
        found.append(value)
    return found


def with_defaults(proto: Any) -> dict[str, Any]:
    """The inputs of a GraphProto that have an initializer with the same name, by name."""
    known = {t.name for t in proto.initializer} | {
        t.values.name for t in proto.sparse_initializer
    }
    return {info.name: info for info in proto.input if info.name in known}


def _initializers(
    proto: Any, scope: NameScope, free: Collection[str] = (), data: Data = NO_DATA
) -> None:
    context = scope.context
    rules = context.external
    inputs = {info.name: info for info in proto.input}
    reads: list[tuple[str, Callable[[str], Any]]] = []
    for n, t in enumerate(proto.initializer):
        raw = data.get(n)
        in_file = context.mapped and tensors.is_view(t, raw)
        limit = sys.maxsize if in_file else context.limit
        dense = partial(tensors.to_array, t, rules, limit, raw=raw)
        reads.append((t.name, dense))
    for t in proto.sparse_initializer:
        sparse = partial(tensors.from_sparse, t, rules, context.limit)
        reads.append((t.values.name, sparse))
    for name, read in reads:
        where = f"initializer {name!r}"
        array = read(where)
        if not (context.mapped and isinstance(array, np.memmap)):
            context.count_constant(array, where)
        if name in inputs:
            check_default(inputs[name], constant(name, array), where)
        if name not in free:
            scope.define(name, scope.typer.constant(scope.fresh(name), array), where)


def _outputs(proto: Any, scope: NameScope) -> list[Value]:
    check_results(proto, scope.values, scope.context.shapes.append)
    found = []
    for info in proto.output:
        value = scope.get(info.name, f"output {info.name!r}")
        if value is None:
            raise ModelError("an output has no name", where=f"graph {proto.name!r}")
        found.append(value)
    return found


def _nodes(nodes: Sequence[Any], scope: NameScope, where: str) -> None:
    scope.context.count_nodes(len(nodes))
    for node in ordered(nodes, scope.sees, scope.values, where):
        try:
            _node(node, scope)
        except TilewrightError as error:
            raise (
                error if error.where else error.at(_label(node, scope))
            ) from error.__cause__


def _label(node: Any, scope: NameScope) -> str:
    name = node.name or f"{node.op_type} -> {next(iter(node.output), '?')}"
    return f"node {scope.prefix + name!r}"


def _node(node: Any, scope: NameScope) -> None:
    """Add one node: as a constant, an operation, or the body of the function that it calls."""
    where = f"{_label(node, scope)} ({node.op_type})"
    domain = domain_of(node)
    kind = qualified(node)
    attributes = {a.name: a for a in resolved(node.attribute, scope.attributes)}
    if not any(node.output):
        raise ModelError("it has no output", where=where)
    key = (domain, node.op_type, getattr(node, "overload", ""))
    body = _own_function(key, scope)
    if body is not None:
        inputs = tuple(scope.get(name, where) for name in node.input)
        inlined = scope.inlined | {key}
        _inline(node, body, inputs, attributes, scope, inlined)
        return
    if kind == "Constant":
        opset = scope.opsets.get(domain)
        schema = functions.schema_of("Constant", domain, opset)
        if schema is not None:
            outputs = len(node.output)
            check_signature(schema, (), outputs, attributes, where)
        value = scope.typer.constant(
            scope.fresh(node.output[0]), constant_of(attributes, scope, where)
        )
        scope.define(node.output[0], value, where)
        return
    inputs = tuple(scope.get(name, where) for name in node.input)
    if kind == f"{functions.TRAINING}::Gradient":
        _gradient(node, inputs, attributes, scope)
        return
    opset = scope.opsets.get(domain)
    schema = functions.schema_of(node.op_type, domain, opset)
    if schema is not None:
        version = schema.since_version
    else:
        version = scope.opsets.get(domain, 1)
    if schema is not None:
        outputs = len(node.output)
        check_signature(schema, inputs, outputs, attributes, where)
        attributes = {n: a for n, a in attributes.items() if n in schema.attributes}
    if lookup(node.op_type, domain, version) is None and schema is not None:
        if not scope.context.standard:
            own = functions.own_operator(schema, node, attributes, inputs)
            if own is not None:
                call, taken = own
                _operation(call, call.domain, 1, taken, attributes, scope)
                return
        body = functions.body_of(schema, node, attributes, inputs, scope.opsets)
        if body is not None:
            standard = (
                scope.inlined | scope.context.local.keys()
            )  # not one of the model's functions
            _inline(node, body, inputs, attributes, scope, standard)
            return
    _operation(node, domain, version, inputs, attributes, scope)


def _own_function(key: FunctionKey, scope: NameScope) -> Any:
    """The model's function that a node calls; None if it means the standard's operator.

    A function of the model takes precedence over an operator with the same name. ONNX has no
    recursion: a body that calls its own name means the standard's operator, if there is one.
    """
    body = scope.context.local.get(key)
    domain, op_type, _ = key
    if key not in scope.inlined or body is None:
        return body
    opset = scope.opsets.get(domain)
    standard = functions.schema_of(op_type, domain, opset)
    return body if standard is None else None


def _operation(
    node: Any,
    domain: str,
    version: int,
    inputs: tuple[Value | None, ...],
    attributes: Mapping[str, Any],
    scope: NameScope,
) -> None:
    where = f"{_label(node, scope)} ({node.op_type})"
    context = scope.context
    outputs = tuple(Value(scope.fresh(name)) if name else None for name in node.output)
    hints = _hints(qualified(node), inputs, attributes)
    op = Operation(
        node.op_type,
        inputs,
        outputs,
        {name: _attribute(a, scope, where, hints) for name, a in attributes.items()},
        domain,
        version,
        f"{scope.prefix}{node.name}" if node.name else "",
    )
    check_bodies(op, where)
    if lookup(node.op_type, domain, version) is None and not context.fallback.knows(op):
        context.unsupported.add(op, scope.opsets.get(domain))
        results: tuple[Value | None, ...] = outputs
    else:
        results = scope.typer.apply(op)
    for name, value in zip(node.output, results, strict=False):
        if name:
            scope.define(name, value, where)


def _inline(
    node: Any,
    body: Any,
    inputs: Sequence[Value | None],
    attributes: Mapping[str, Any],
    scope: NameScope,
    inlined: frozenset[FunctionKey],
) -> None:
    """The nodes of a function in place of a call. inlined: the functions that contain them."""
    where = f"{_label(node, scope)} ({node.op_type})"
    defaults = {a.name: a for a in body.attribute_proto}
    opsets = {o.domain: o.version for o in body.opset_import} or scope.opsets
    prefix = f"{scope.prefix}{node.name or node.output[0] or node.op_type}/"
    depth = scope.depth + 1
    inner = NameScope(
        scope.context,
        scope.typer,
        prefix=prefix,
        opsets=opsets,
        attributes={**defaults, **attributes},
        depth=depth,
        inlined=inlined,
    )
    if len(inputs) > len(body.input):
        raise ModelError(
            f"has {plural(len(inputs), 'input')}, the function {len(body.input)}",
            where=where,
        )
    for n, name in enumerate(body.input):
        inner.define(name, inputs[n] if n < len(inputs) else None, where)
    _nodes(body.node, inner, where)
    for name, result in zip(node.output, body.output, strict=False):
        if name:
            scope.define(name, inner.get(result, where), where)


def _gradient(
    node: Any,
    inputs: Sequence[Value | None],
    attributes: Mapping[str, Any],
    scope: NameScope,
) -> None:
    """Derivatives of a tensor of this graph with respect to given inputs, for a Gradient node."""
    where = f"{_label(node, scope)} ({node.op_type})"
    named = {name: list(a.strings) for name, a in attributes.items()}
    xs = [raw.decode() for raw in named.get("xs", [])]
    rest = [raw.decode() for raw in named.get("zs", [])]
    y = scope.get(attributes["y"].s.decode(), where)
    places = {
        scope.get(name, where): v for name, v in zip([*xs, *rest], inputs, strict=False)
    }
    found = {
        old: new for old, new in places.items() if old is not None and new is not None
    }
    if y is None or len(found) != len(inputs):
        raise ModelError("xs and zs name one tensor per input", where=where)
    for old in found:
        if old in scope.typer.known:
            raise UnsupportedError(
                f"the derivative with respect to {old.name!r}, a constant", where=where
            )
    prefix = scope.fresh(node.name or "Gradient")
    fragment = Fragment(prefix, scope.typer.known)
    results = derivatives(scope.typer.operations, y, found, len(xs), fragment)
    env = scope.typer.add(fragment.operations, fragment.constants)
    for name, result in zip(node.output, results, strict=False):
        if name:
            scope.define(name, env.get(result, result), where)


def _hints(
    kind: str, inputs: Sequence[Value | None], attributes: Mapping[str, Any]
) -> Sequence[Value | None]:
    """The required types of a body's inputs: those of the values passed to it."""
    if kind == "Loop":
        return (None, None, *(v and replace(v, shape=None) for v in inputs[2:]))
    if kind != "Scan" or "num_scan_inputs" not in attributes or None in inputs:
        return ()
    count = attributes["num_scan_inputs"].i
    axes = [0] * count
    if "scan_input_axes" in attributes:
        axes = list(attributes["scan_input_axes"].ints)
    slices = [
        replace(v, shape=_without(v.shape, axis))
        for v, axis in zip(inputs[len(inputs) - count :], axes, strict=False)
        if v is not None
    ]
    return (*inputs[: len(inputs) - count], *slices)


def _without(shape: Shape | None, axis: int) -> Shape | None:
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    at = axis % len(shape)
    return shape[:at] + shape[at + 1 :]


def _attribute(
    proto: Any, scope: NameScope, where: str, hints: Sequence[Value | None] = ()
) -> Any:
    context = scope.context
    place = f"{where}, attribute {proto.name!r}"
    return attribute_value(
        proto,
        lambda g: _subgraph(g, scope, place, hints),
        context.external,
        context.limit,
        place,
    )


def _subgraph(
    proto: Any, outer: NameScope, where: str, hints: Sequence[Value | None] = ()
) -> Graph:
    """A subgraph. hints: the types of its inputs if it does not declare them."""
    typer = outer.typer.inner()
    depth = outer.depth + 1
    inner = NameScope(
        outer.context,
        typer,
        prefix=outer.prefix,
        opsets=outer.opsets,
        attributes=outer.attributes,
        outer=outer,
        depth=depth,
        inlined=outer.inlined,
    )
    inputs = _inputs(proto, inner, hints)
    _initializers(proto, inner)
    _nodes(proto.node, inner, where)
    outputs = _outputs(proto, inner)
    name = proto.name or "subgraph"
    return _graph(name, inputs, outputs, inner.typer.operations, typer.own)


def constant_of(attributes: Mapping[str, Any], scope: NameScope, where: str) -> Any:
    """The array of a Constant node, from whichever attribute holds it."""
    for name, proto in attributes.items():
        value = _attribute(proto, scope, where)
        match name:
            case "value" | "sparse_value":
                return value
            case "value_float" | "value_floats":
                return np.array(value, np.float32)
            case "value_int" | "value_ints":
                return np.array(value, np.int64)
            case "value_string" | "value_strings":
                return np.array(value, object)
    raise ModelError("a Constant without a value", where=where)
