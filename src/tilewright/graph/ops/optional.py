"""Optional: a value that may be absent, which is the value itself or None."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.graph.nodes import DataDependent
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register


def _type(call: OpCall) -> Sequence[Type]:
    """The type of an absent value is an attribute, which ONNX's own inference reads."""
    raise DataDependent(call.name)


def _reference(call: OpCall, *given: Any) -> list[Any]:
    """onnx.reference wraps the value in a list, which its OptionalGetElement does not undo."""
    return list(given) or [None]


register(OpDef("Optional", _type, since=15, reference=_reference))
