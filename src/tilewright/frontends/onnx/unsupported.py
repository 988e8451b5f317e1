"""Reporting all unsupported operators of a model at once."""

from __future__ import annotations

from dataclasses import field
from typing import Final

from onnx.defs import get_all_schemas_with_history

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import UnsupportedError
from tilewright.base.text import nearest, plural
from tilewright.frontends.onnx.functions import newest_opset
from tilewright.graph.nodes import Operation
from tilewright.graph.ops.registry import registered

_DEFINE = (
    "define an operator with tilewright.operators.register(OpDef(...)) before "
    "loading the model"
)
_INTERNAL: Final = "tilewright"  # the domain of operators that no model has
# Simpler alternatives, if they are known.
_INSTEAD = {
    (
        "ai.onnx.ml",
        "ZipMap",
    ): "Results are arrays, not dictionaries: convert the model with "
    "skl2onnx.to_onnx(model, X, options={'zipmap': False})",
}


@dataclass
class Unsupported:
    """Collects unsupported operators while the whole model is read."""

    found: dict[tuple[str, str], list[tuple[Operation, int | None]]] = field(
        default_factory=dict
    )

    def add(self, op: Operation, opset: int | None) -> None:
        """Record a node. opset: the version of its domain that the model imports."""
        self.found.setdefault((op.domain, op.op_type), []).append((op, opset))

    def raise_if_any(self) -> None:
        """Raise UnsupportedError with one item per operator."""
        if not self.found:
            return
        items = [self._item(uses) for uses in self.found.values()]
        nodes = sum(len(uses) for uses in self.found.values())
        raise UnsupportedError(
            f"{plural(len(items), 'unsupported operator')} "
            f"in {plural(nodes, 'node')}: {'; '.join(items)}",
            items=items,
            hint=self._hint(),
        )

    def _hint(self) -> str:
        """The simplest advice, which may be that the first operator is another one."""
        for key in self.found:
            if key in _INSTEAD:
                return _INSTEAD[key]
        op, opset = next(iter(self.found.values()))[0]
        other = _other(op.domain, op.op_type, opset)
        return (
            f"{other} Else {_DEFINE}"
            if other
            else f"{_DEFINE[:1].upper()}{_DEFINE[1:]}"
        )

    @staticmethod
    def _item(uses: list[tuple[Operation, int | None]]) -> str:
        op, opset = uses[0]
        types = ", ".join("-" if v is None else v.type_text for v in op.inputs)
        count = f", {plural(len(uses), 'node')}" if len(uses) > 1 else ""
        known = newest_opset(op.domain)
        if opset is None:
            version = "its domain is not imported"
        elif known and opset > known:
            version = f"opset {opset}, the newest known is {known}"
        else:
            version = f"opset {opset}"
        return f"{op.qualified} ({version}{count}) at node {op.label!r} on ({types})"


def _other(domain: str, op_type: str, opset: int | None) -> str | None:
    """The operator that was probably meant: of a later version, another domain or spelling."""
    known = _known()
    here = known.get(domain, {})
    since = here.get(op_type)
    if since is not None:
        is_later = opset is not None and since > opset
        return (
            f"Import opset {since} of its domain, the first with it."
            if is_later
            else None
        )
    others = [of for of, names in sorted(known.items()) if op_type in names]
    if others:
        where = others[0] or "ai.onnx"
        return f"Did you mean the one of domain {where!r}?"
    near = nearest(op_type, here)
    return f"Did you mean {near!r}?" if near else None


def _known() -> dict[str, dict[str, int]]:
    """Domain -> operator -> its first version, as ONNX or a definition has them."""
    found: dict[str, dict[str, int]] = {}
    defined = [(d.domain, d.op_type, d.since) for d in registered()]
    schemas = [
        (s.domain, s.name, s.since_version) for s in get_all_schemas_with_history()
    ]
    for domain, name, since in (*defined, *schemas):
        if domain != _INTERNAL:
            names = found.setdefault(domain, {})
            names[name] = min(since, names.get(name, since))
    return found
