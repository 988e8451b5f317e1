"""The result of quantizing a model: its layers, those kept in floats and why, the agreement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from typing import Any, NamedTuple

from tilewright.base.dataclass import dataclass
from tilewright.base.text import columns, plural
from tilewright.graph.nodes import Graph
from tilewright.graph.quantize.metrics import Agreement


@dataclass(frozen=True, slots=True)
class LayerReport:
    """A layer: whether it computes in bytes, or why not, and its measured loss, if any."""

    name: str
    operator: str
    quantized: bool
    why: str = ""
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class QuantizationReport:
    """agreement: with the float model; if `held_out`, on samples not used for scales.

    notes: what each method left out, by tensor or layer. samples: number used for scales.
    """

    layers: Sequence[LayerReport]
    agreement: Agreement
    samples: int
    held_out: int
    notes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def kept(self) -> list[LayerReport]:
        """The layers that stay in floats."""
        return [layer for layer in self.layers if not layer.quantized]

    def __str__(self) -> str:
        done = len(self.layers) - len(self.kept)
        where = (
            plural(self.held_out, "held-out sample")
            if self.held_out
            else "the same data"
        )
        lines = [
            f"{done} of {len(self.layers)} layers in 8 bits, "
            f"ranges from {plural(self.samples, 'sample')}",
            f"{self.agreement}, on {where}",
        ]
        rows = [(x.name, x.operator, x.why) for x in self.kept]
        if rows:
            lines.append(columns([("in floats", "operator", "why"), *rows], "<<<"))
        for method, left in self.notes.items():
            if left:
                lines.append(
                    f"{method}: not at {len(left)} places, such as {_first(left)}"
                )
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """A form for JSON."""
        found = asdict(self)
        found["agreement"]["drop"] = self.agreement.drop
        return found


def _first(left: Mapping[str, str]) -> str:
    name, why = next(iter(left.items()))
    return f"{name}: {why}"


class Quantized(NamedTuple):
    """A model in QDQ form, and its report."""

    graph: Graph
    report: QuantizationReport
