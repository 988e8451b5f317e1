"""Checking a node against its operator's schema: operands, attributes, element types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from onnx import AttributeProto
from onnx.defs import OpSchema, get_all_schemas_with_history

from tilewright.base.dtypes import DType
from tilewright.base.errors import ModelError
from tilewright.base.text import plural
from tilewright.graph.nodes import Value

_OPTION = OpSchema.FormalParameterOption
# Versions that ONNX withdrew for a later one; models have them, and ONNX Runtime runs them.
_WITHDRAWN = frozenset({("GroupNormalization", 18)})


def check_signature(
    schema: Any,
    inputs: Sequence[Value | None],
    outputs: int,
    attributes: Mapping[str, Any],
    where: str,
) -> None:
    """Raise ModelError naming the operand, result or attribute that is missing or has a wrong type.

    outputs: the number of results listed. A result without readers may be listed without a name.

    Attributes that the operator never had are accepted, as exporters leave notes in them. An
    attribute of another version is rejected, as its meaning would be lost.
    """
    if schema.deprecated and (schema.name, schema.since_version) not in _WITHDRAWN:
        raise ModelError(
            f"{schema.name} is not an operator since version {schema.since_version}",
            where=where,
            hint="Export the model again, or for an older operator set",
        )
    _check_operands(schema, inputs, where)
    _check_results(schema, outputs, where)
    _check_attributes(schema, attributes, where)
    _check_types(schema, inputs, where)


def _check_operands(schema: Any, inputs: Sequence[Value | None], where: str) -> None:
    if len(inputs) > schema.max_input:
        most = schema.max_input
        raise ModelError(
            f"has {plural(len(inputs), 'input')}, {schema.name} takes at most {most}",
            where=where,
        )
    for n, formal in enumerate(schema.inputs):
        given = n < len(inputs) and inputs[n] is not None
        if formal.option == _OPTION.Single and not given:
            raise ModelError(f"input {n} ({formal.name}) is missing", where=where)


def _check_results(schema: Any, outputs: int, where: str) -> None:
    if outputs > schema.max_output:
        most = schema.max_output
        raise ModelError(
            f"has {plural(outputs, 'output')}, {schema.name} has at most {most}",
            where=where,
        )
    for n, formal in enumerate(schema.outputs):
        if formal.option == _OPTION.Single and n >= outputs:
            raise ModelError(
                f"output {n} ({formal.name}) is missing",
                where=where,
                hint="List it, with an empty name if nothing reads it",
            )


def _check_attributes(schema: Any, attributes: Mapping[str, Any], where: str) -> None:
    for name in attributes:
        if name not in schema.attributes and name in _of_all_versions(
            schema.name, schema.domain
        ):
            raise ModelError(
                f"attribute {name!r} belongs to another version of {schema.name}, "
                f"the model has version {schema.since_version}",
                where=where,
                hint="Make the model import the operator set that it was written for",
            )
    for name, formal in schema.attributes.items():
        given = attributes.get(name)
        if given is None:
            if formal.required:
                raise ModelError(f"attribute {name!r} is missing", where=where)
            continue
        expected = int(formal.type.value)
        if given.type != expected:
            kinds = AttributeProto.AttributeType
            raise ModelError(
                f"attribute {name!r}: expected {kinds.Name(expected)}, got {_kind(given.type)}",
                where=where,
            )


@cache
def _of_all_versions(op_type: str, domain: str) -> frozenset[str]:
    """The attributes of every version of an operator."""
    schemas = get_all_schemas_with_history()
    found = (s.attributes for s in schemas if s.name == op_type and s.domain == domain)
    return frozenset(name for attributes in found for name in attributes)


def _check_types(schema: Any, inputs: Sequence[Value | None], where: str) -> None:
    """Check that operands that share a type variable share an element type."""
    variables = {c.type_param_str for c in schema.type_constraints}
    seen: dict[str, tuple[int, str, DType]] = {}
    for n, v in enumerate(inputs):
        if v is None or v.dtype is None or v.kind != "tensor" or not schema.inputs:
            continue
        formal = schema.inputs[min(n, len(schema.inputs) - 1)]
        if formal.type_str not in variables or not formal.is_homogeneous:
            continue
        first, name, dtype = seen.setdefault(formal.type_str, (n, v.name, v.dtype))
        if dtype is not v.dtype:
            raise ModelError(
                f"input {first} ({name!r}) is {dtype.name}, input {n} ({v.name!r}) is "
                f"{v.dtype.name}: {schema.name} needs one element type",
                where=where,
                hint="Put a Cast before it",
            )


def _kind(number: int) -> str:
    known = AttributeProto.AttributeType
    if number in known.values():
        return str(known.Name(number))
    return f"kind {number}"
