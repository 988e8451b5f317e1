"""Reporting all unsupported operators of a model at once."""

from __future__ import annotations

from dataclasses import field

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import UnsupportedError
from tilewright.base.text import plural
from tilewright.frontends.onnx.functions import newest_opset
from tilewright.graph.nodes import Operation

_DEFINE = (
    "Define an operator with tilewright.operators.register(OpDef(...)) before "
    "loading the model"
)
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
        """The simplest advice."""
        return next((_INSTEAD[key] for key in self.found if key in _INSTEAD), _DEFINE)

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
