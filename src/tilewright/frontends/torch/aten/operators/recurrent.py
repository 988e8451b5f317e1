"""Recurrent networks: PyTorch's layers in sequence, with gates in ONNX's order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.frontends.torch.aten.rules import AtenCall, rule
from tilewright.graph.nodes import Value


@dataclass(frozen=True)
class _Cell:
    """kind: of ONNX. order: ONNX's gates in PyTorch's order. activation: if it has a choice."""

    kind: str
    order: tuple[int, ...]
    activation: str = ""


_CELLS: Final = {
    "lstm": _Cell("LSTM", (0, 3, 1, 2)),  # i f g o -> i o f c
    "gru": _Cell("GRU", (1, 0, 2)),  # r z n -> z r h
    "rnn_tanh": _Cell("RNN", (0,), "Tanh"),
    "rnn_relu": _Cell("RNN", (0,), "Relu"),
}


@rule("aten.lstm.input", "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input")
def _recurrent(c: AtenCall) -> list[Value]:
    cell = _CELLS[c.name.split(".")[1]]
    if c["train"] and c["dropout"]:
        raise c.refuse("it drops elements at random, in training mode")
    ways = 2 if c["bidirectional"] else 1
    x = c.tensor("input")
    if c["batch_first"]:
        x = c.op("Transpose", x, perm=[1, 0, 2])
    if isinstance(c["hx"], list | tuple):
        states = c["hx"]
    else:
        states = [c["hx"]]
    params = list(c["params"])
    per = 4 if c["has_biases"] else 2
    if len(params) != int(c["num_layers"]) * ways * per:
        raise c.refuse("it projects its states (proj_size)")
    last: list[list[Value]] = [[] for _ in states]
    for n in range(int(c["num_layers"])):
        mine = params[n * ways * per : (n + 1) * ways * per]
        parts = [mine[w * per : (w + 1) * per] for w in range(ways)]
        rows = c.ints(n * ways), c.ints((n + 1) * ways), c.ints(0)
        begin = [c.op("Slice", s, *rows) for s in states]
        x, ends = _layer(c, cell, x, parts, begin)
        for found, end in zip(last, ends, strict=True):
            found.append(end)
    if c["batch_first"]:
        x = c.op("Transpose", x, perm=[1, 0, 2])
    return [x, *(_joined(c, v) for v in last)]


def _layer(
    c: AtenCall,
    cell: _Cell,
    x: Value,
    parts: Sequence[Sequence[Value]],
    begin: Sequence[Value],
) -> tuple[Value, list[Value]]:
    """One layer in all directions: the sequence with concatenated directions, and last states."""
    hidden = int(parts[0][1].extents[1])
    weights = []
    for k in (0, 1):
        gates = [_gates(c, cell, p[k], hidden) for p in parts]
        weights.append(_stacked(c, gates))
    bias = None
    if len(parts[0]) == 4:
        both = [[_gates(c, cell, p[k], hidden) for k in (2, 3)] for p in parts]
        biases = [c.op("Concat", *b, axis=0) for b in both]
        bias = _stacked(c, biases)
    how: dict[str, Any] = {"hidden_size": hidden}
    if len(parts) == 2:
        how["direction"] = "bidirectional"
    if cell.activation:
        how["activations"] = [cell.activation] * len(parts)
    if cell.kind == "GRU":
        how["linear_before_reset"] = 1
    count = 1 + len(begin)
    found = c.build.ops(cell.kind, x, *weights, bias, None, *begin, count=count, **how)
    y = c.op("Transpose", found[0], perm=[0, 2, 1, 3])
    return c.op("Reshape", y, c.ints(0, 0, -1)), found[1:]


def _gates(c: AtenCall, cell: _Cell, x: Value, hidden: int) -> Value:
    """The rows of the gates in ONNX's order."""
    if len(cell.order) == 1:
        return x
    sizes = c.ints(*[hidden] * len(cell.order))
    count = len(cell.order)
    gates = c.build.ops("Split", x, sizes, count=count, axis=0)
    return c.op("Concat", *(gates[n] for n in cell.order), axis=0)


def _stacked(c: AtenCall, parts: Sequence[Value]) -> Value:
    wide = [c.unsqueeze(p, 0) for p in parts]
    return _joined(c, wide)


def _joined(c: AtenCall, parts: Sequence[Value]) -> Value:
    if len(parts) == 1:
        return parts[0]
    return c.op("Concat", *parts, axis=0)
