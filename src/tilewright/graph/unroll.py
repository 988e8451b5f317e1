"""Unrolling loops with a small, known number of iterations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from tilewright.graph.control import same_length
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.renaming import rewire

MAX_TRIPS = 64
MAX_OPERATIONS = 1024  # most operations of all copies together

Env = dict[Value, Value]


class Sink(Protocol):
    """Receives the operations: `graph.infer.Typer`."""

    operations: list[Operation]
    known: Any

    def constant(self, name: str, array: np.ndarray[Any, Any]) -> Value: ...

    def apply(self, draft: Operation) -> tuple[Value | None, ...]: ...


Inline = Callable[[Graph], None]


def unroll(
    op: Operation,
    sink: Sink,
    env: Env,
    inline: Inline,
) -> bool:
    """Unroll `op` into `sink` if it is a Loop or Scan that can be; `env` gains its results.

    inline: adds a graph's operations to the enclosing graph, with its inputs in `env`.

    ONNX's own Loop(n, c, state) = body(n - 1, ... body(0, state)), if the number of iterations is
    known: see `loop` and `scan`. Only tensors flow: copies are typed again, which does not affect
    others. What is given up leaves no operation after.
    """
    unroller = {"Loop": _Unroller.loop, "Scan": _Unroller.scan}.get(op.qualified)
    if unroller is None:
        return False
    body: Graph = op.attributes["body"]
    flowing = (*op.reads, *op.writes, *body.inputs, *body.outputs)
    if any(v.kind != "tensor" for v in flowing):
        return False
    mark = len(sink.operations)
    results = unroller(_Unroller(op, body, sink, env, inline))
    if results is None:
        del sink.operations[mark:]
        return False
    env.update(
        (old, new)
        for old, new in zip(op.outputs, results, strict=False)
        if old is not None
    )
    return True


class _Unroller:
    def __init__(
        self,
        op: Operation,
        body: Graph,
        sink: Sink,
        env: Env,
        inline: Inline,
    ) -> None:
        self.op = op
        self.body = body
        self.sink = sink
        self.env = env
        self.inline = inline
        self.tag = ""  # part of the names of new values
        self.inputs = [None if v is None else env.get(v, v) for v in op.inputs]

    def loop(self) -> list[Value] | None:
        """The results of a Loop; None if its iterations cannot be counted.

        The count and the first condition are constants or omitted, and so is every condition that a
        copy computes. Without iterations only the state remains, as the shape of an empty scan
        output is unknown.
        """
        trips = self.number(0)
        going = self.number(1)
        if trips is _UNKNOWN or going is _UNKNOWN:
            return None
        state = [v for v in self.inputs[2:] if v is not None]
        scans: list[list[Value]] = [[] for _ in self.body.outputs[1 + len(state) :]]
        n = 0
        while (going is None or going) and (trips is None or n < trips):
            if self.is_long(n + 1):
                return None
            first = [self.counter(0, n, np.int64), self.counter(1, n, np.bool_)]
            condition, *results = self.iteration(n, [*first, *state])
            if condition not in self.sink.known:
                return None
            going = bool(self.sink.known[condition].reshape(-1)[0])
            state = results[: len(state)]
            for scan, item in zip(scans, results[len(state) :], strict=True):
                scan.append(item)
            n += 1
        if scans and not n:
            return None
        return [*state, *(self.stacked(f"scan{k}", s, 0) for k, s in enumerate(scans))]

    def scan(self) -> list[Value] | None:
        """The results of a Scan; None if it is too long.

        Its operands are static, so its length is known, and not 0 (see `loop`); in version 8 the
        same holds for the batches, whose sequences are all as long as their axis.
        """
        given = [v for v in self.inputs if v is not None]
        if not all(v.static for v in given):
            return None
        if self.op.version >= 9:
            return self.scan_once(given, "scan_input_directions")
        if self.inputs[0] is not None or not given[0].extents[0]:
            return None  # sequences of different lengths, or none
        batches: list[list[Value]] = []
        for n in range(given[0].extents[0]):
            self.tag = f"batch{n}/"
            one = [self.item(f"operand{k}", n, v, 0, n) for k, v in enumerate(given)]
            results = self.scan_once(one, "directions", given[0].extents[0])
            if results is None:
                return None
            batches.append(results)
        self.tag = ""
        columns = zip(*batches, strict=True)
        return [self.stacked(f"batches{k}", c, 0) for k, c in enumerate(columns)]

    def scan_once(
        self,
        given: Sequence[Value],
        directions: str,
        times: int = 1,
    ) -> list[Value] | None:
        """The results on state and sequences. times: how often this is done in total."""
        count = int(self.op.attributes["num_scan_inputs"])
        first_sequence = len(given) - count
        state = list(given[:first_sequence])
        axes = self.per_scan("scan_input_axes", count)
        backwards = self.per_scan(directions, count)
        sequences = list(zip(given[first_sequence:], axes, backwards, strict=True))
        lengths = [s.extents[axis] for s, axis, _ in sequences]
        length = same_length(self.op, lengths)
        if not length or self.is_long(length * times):
            return None
        produced = len(self.body.outputs) - len(state)
        scans: list[list[Value]] = [[] for _ in range(produced)]
        for n in range(length):
            items = []
            for k, (sequence, axis, back) in enumerate(sequences):
                at = length - 1 - n if back else n
                items.append(self.item(f"item{k}", n, sequence, axis, at))
            results = self.iteration(n, [*state, *items])
            state = results[: len(state)]
            for scan, item in zip(scans, results[len(state) :], strict=True):
                scan.append(item)
        axes = self.per_scan("scan_output_axes", produced)
        backwards = self.per_scan("scan_output_directions", produced)
        stacked = []
        for k, (scan, axis, back) in enumerate(
            zip(scans, axes, backwards, strict=True)
        ):
            ordered = scan[::-1] if back else scan
            stacked.append(self.stacked(f"scan{k}", ordered, axis))
        return [*state, *stacked]

    def number(self, i: int) -> Any:
        """The value of a scalar input; None if it is omitted, _UNKNOWN if it is unknown."""
        v = self.inputs[i]
        if v is None:
            return None
        if v in self.sink.known:
            return self.sink.known[v].reshape(-1)[0].item()
        return _UNKNOWN

    def counter(
        self,
        k: int,
        n: int,
        dtype: Any,
    ) -> Value:
        """Input `k` of the body in iteration `n`: its number, or the condition true."""
        shape = (1,) * len(self.body.inputs[k].shape or ())
        return self.sink.constant(
            self.name(f"counter{k}", n), np.full(shape, n if k == 0 else 1, dtype)
        )

    def is_long(self, trips: int) -> bool:
        size = max(1, len(self.body.operations))
        return trips > MAX_TRIPS or trips * size > MAX_OPERATIONS

    def per_scan(self, name: str, count: int) -> list[int]:
        return list(self.op.attr(name) or [0] * count)

    def name(self, what: str, n: int) -> str:
        first = next(v.name for v in self.op.writes)
        return f"{first}/{self.tag}{what}.{n}"

    def iteration(self, n: int, operands: Sequence[Value]) -> list[Value]:
        """The outputs of one more copy of the body."""
        copy = copied(self.body, self.name("step", n))
        self.env.update(zip(copy.inputs, operands, strict=True))
        self.inline(copy)
        return [self.env.get(v, v) for v in copy.outputs]

    def item(
        self,
        what: str,
        n: int,
        sequence: Value,
        axis: int,
        at: int,
    ) -> Value:
        """Element `at` of a sequence along its axis."""
        index = self.sink.constant(
            self.name(f"at/{what}", n),
            np.array(at, np.int64),
        )
        return self.apply(
            "Gather",
            (sequence, index),
            self.name(what, n),
            axis=axis,
        )

    def stacked(
        self,
        what: str,
        items: Sequence[Value],
        axis: int,
    ) -> Value:
        """The items along a new axis."""
        where = self.sink.constant(
            self.name(f"axis/{what}", 0), np.array([axis], np.int64)
        )
        parts = tuple(
            self.apply("Unsqueeze", (v, where), self.name(f"part/{what}", n))
            for n, v in enumerate(items)
        )
        return self.apply("Concat", parts, self.name(what, 0), axis=axis)

    def apply(
        self,
        op_type: str,
        inputs: tuple[Value, ...],
        name: str,
        **attributes: Any,
    ) -> Value:
        draft = Operation(
            op_type,
            inputs,
            (Value(name),),
            attributes=attributes,
            version=13,
            name=name,
        )
        [result] = self.sink.apply(draft)
        assert result is not None
        return result


_UNKNOWN = object()


def copied(body: Graph, prefix: str) -> Graph:
    """The body with new values and operations."""
    swap = {v: replace(v, name=f"{prefix}/{v.name}") for v in _own(body)}
    copy = rewire(body, swap)
    operations = tuple(
        replace(op, name=f"{prefix}/{op.name}") if op.name else op
        for op in copy.operations
    )
    return replace(copy, operations=operations)


def _own(graph: Graph) -> list[Value]:
    """Every value defined in a graph or its subgraphs."""
    inner = [v for op in graph.operations for g in op.subgraphs for v in _own(g)]
    return [*graph.values, *inner]
