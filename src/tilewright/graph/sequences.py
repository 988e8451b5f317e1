"""Sequences of known length, replaced by the values they hold.

Operators that read such a sequence (SequenceAt, SequenceLength, ConcatFromSequence) then no longer
need it; the operators that made it have no readers left and are removed.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, Protocol

import numpy as np

from tilewright.graph.nodes import Operation, Value

MAX_ITEMS = 256

Items = tuple[Value, ...]


class Sink(Protocol):
    """Receives the operations: `graph.infer.Typer`."""

    known: Any
    sequences: MutableMapping[Value, Items]

    def constant(self, name: str, array: np.ndarray[Any, Any]) -> Value: ...

    def apply(self, draft: Operation) -> tuple[Value | None, ...]: ...


def note(op: Operation, sink: Sink) -> None:
    """Store in `sink.sequences` the contents of the sequence that `op` makes, if they are known.

    They are known if the values and their number are: those of the sequence that it is made from,
    the position (within its bounds) or the sizes (which add up to the extent), and if there are
    few. Sequences are values that no operator changes, so what is stored holds wherever the
    sequence is read.
    """
    maker = _MAKERS.get(op.qualified)
    out = op.outputs[0] if op.outputs else None
    if maker is None or out is None or out.kind != "sequence":
        return
    items = maker(op, sink)
    if items is not None and len(items) <= MAX_ITEMS:
        sink.sequences[out] = items


def read(op: Operation, sink: Sink) -> Value | None:
    """The result of an operator that reads from a known sequence; None for any other.

    The position must be known and within the bounds; a concatenation needs at least one item, and
    items of known rank.
    """
    reader = _READERS.get(op.qualified)
    items = None if reader is None else _held(op, sink)
    if reader is None or items is None:
        return None
    return reader(op, items, sink)


def _number(v: Value | None, sink: Sink) -> int | None:
    if v in sink.known:
        return int(sink.known[v].reshape(-1)[0])
    return None


def _place(
    op: Operation,
    n: int,
    last: int,
    count: int,
    sink: Sink,
) -> int | None:
    """The position in input `n`, or `last` if it is omitted; None if it is unknown."""
    given = op.inputs[n] if n < len(op.inputs) else None
    place = last if given is None else _number(given, sink)
    if place is None or not -count <= place <= max(last, count - 1):
        return None
    return place + count if place < 0 else place


def _held(op: Operation, sink: Sink) -> Items | None:
    if op.inputs[0] is not None:
        return sink.sequences.get(op.inputs[0])
    return None


def _constructed(op: Operation, sink: Sink) -> Items | None:
    return tuple(v for v in op.inputs if v is not None)


def _inserted(op: Operation, sink: Sink) -> Items | None:
    items = _held(op, sink)
    value = op.inputs[1]
    if items is None or value is None:
        return None
    place = _place(op, 2, len(items), len(items), sink)
    if place is None:
        return None
    return (*items[:place], value, *items[place:])


def _erased(op: Operation, sink: Sink) -> Items | None:
    items = _held(op, sink)
    if items is None:
        return None
    place = _place(op, 1, len(items) - 1, len(items), sink)
    if place is None:
        return None
    return items[:place] + items[place + 1 :]


def _split(op: Operation, sink: Sink) -> Items | None:
    x = op.inputs[0]
    out = op.outputs[0]
    if x is None or out is None or not x.static:
        return None
    axis = int(op.attr("axis", 0))
    if not -len(x.extents) <= axis < len(x.extents):
        return None
    extent = x.extents[axis]
    given = op.inputs[1] if len(op.inputs) > 1 else None
    if given is not None and given not in sink.known:
        return None
    if given is None and not op.attr("keepdims", 1):
        if extent > MAX_ITEMS:
            return None
        return tuple(_item(x, n, axis, out, sink) for n in range(extent))
    sizes = _sizes(None if given is None else sink.known[given], extent)
    if sum(sizes) != extent or not 0 < len(sizes) <= MAX_ITEMS:
        return None
    lengths = sink.constant(f"{out.name}/sizes", np.array(sizes, np.int64))
    parts = tuple(Value(f"{out.name}/{n}") for n in range(len(sizes)))
    split = Operation(
        "Split",
        (x, lengths),
        parts,
        attributes={"axis": axis},
        version=13,
        name=f"{out.name}/split",
    )
    return tuple(v for v in sink.apply(split) if v is not None)


def _sizes(given: Any, extent: int) -> list[int]:
    """The extents of the parts: for one number, equal except the last; else as given."""
    if given is not None and np.ndim(given):
        return [int(n) for n in given]
    size = 1 if given is None else int(given)
    if size > 0:
        return [min(size, extent - n) for n in range(0, extent, size)]
    return []


def _item(
    x: Value,
    n: int,
    axis: int,
    out: Value,
    sink: Sink,
) -> Value:
    index = sink.constant(f"{out.name}/index_{n}", np.array(n, np.int64))
    name = f"{out.name}/{n}"
    return _one(
        Operation(
            "Gather",
            (x, index),
            (Value(name),),
            attributes={"axis": axis},
            version=13,
            name=name,
        ),
        sink,
    )


def _one(op: Operation, sink: Sink) -> Value:
    (found,) = sink.apply(op)
    assert found is not None
    return found


def _at(
    op: Operation,
    items: Items,
    sink: Sink,
) -> Value | None:
    place = _place(op, 1, len(items) - 1, len(items), sink)
    return None if place is None else items[place]


def _length(
    op: Operation,
    items: Items,
    sink: Sink,
) -> Value | None:
    (out,) = op.writes
    return sink.constant(out.name, np.array(len(items), np.int64))


def _concatenated(
    op: Operation,
    items: Items,
    sink: Sink,
) -> Value | None:
    (out,) = op.writes
    axis = int(op.attributes["axis"])
    parts = list(items)
    if not parts or any(v.shape is None for v in parts):
        return None
    if op.attr("new_axis", 0):
        axes = sink.constant(f"{out.name}/axes", np.array([axis], np.int64))
        for n, v in enumerate(items):
            name = f"{out.name}/{n}"
            thin = Operation(
                "Unsqueeze",
                (v, axes),
                (Value(name),),
                version=13,
                name=name,
            )
            parts[n] = _one(thin, sink)
    whole = Operation(
        "Concat",
        tuple(parts),
        (out,),
        attributes={"axis": axis},
        version=13,
        name=op.name,
    )
    return _one(whole, sink)


_MAKERS: dict[str, Callable[[Operation, Sink], Items | None]] = {
    "SequenceEmpty": lambda op, sink: (),
    "SequenceConstruct": _constructed,
    "SequenceInsert": _inserted,
    "SequenceErase": _erased,
    "SplitToSequence": _split,
    "Identity": _held,
}
_READERS: dict[str, Callable[[Operation, Items, Sink], Value | None]] = {
    "SequenceAt": _at,
    "SequenceLength": _length,
    "ConcatFromSequence": _concatenated,
}
