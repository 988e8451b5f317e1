"""Fusion of groups: maps are inlined into their consumers, epilogues join their producers.

There are three rules, each a law of `compute/transforms.py` with a condition for its profitability:

* inline: a map's value replaces its result in its consumers. Pure index maps (reshape, transpose,
  slice, expand) are always inlined if the consumers' accesses stay affine. A map that also reads a
  mask (the derivative of Relu) is inlined only into a single consumer that does not reread the mask
  too often. Arithmetic is inlined only into a single map, so that nothing is computed twice.
* prologue: a map whose only consumer reduces rows (softmax, layer normalization) becomes that
  group's first Computation.
* epilogue: a map that reads the result of a reduction, matrix product or convolution point by point
  becomes that group's last Computation.

Model outputs and values that several groups write stay in memory.

The output size is bounded by the input: at most as many Computations, each value of at most
MAX_NODES nodes and MAX_WRITTEN with shared parts expanded (or its original size), and each group
with the names of at most SOURCES operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tilewright.base import events
from tilewright.compute.contraction import is_contraction
from tilewright.compute.join_axes import join_axes
from tilewright.compute.nodes import Computation
from tilewright.compute.transforms import follow, identity_dims, inline
from tilewright.expr.affine import affine
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import Buffer, Call, Const, Div, Expr, Load, Select, Var
from tilewright.ir.node import Node, postorder, unseen
from tilewright.plan.nodes import DefUse, FusionGroup, Step, joined, merge
from tilewright.plan.questions import Decided, at_this_size

MAX_NODES = (
    300  # nodes of a fused value; beyond this, code size costs more than memory traffic
)
MAX_LOADS = 16
MAX_WRITTEN = (
    2000  # the same with shared parts expanded, as code of guarded reads is not shared
)


Rule = Callable[[FusionGroup, FusionGroup, Buffer], FusionGroup | None]


def fuse(
    groups: Sequence[Step],
    outputs: frozenset[Buffer],
    repeated: int,
    decided: Decided = at_this_size,
) -> list[Step]:
    """The groups after all three rules. `outputs`: the buffers that must exist in memory.

    repeated: how often cheap arithmetic may be recomputed instead of storing its result. decided:
    as in `Questions`, about what is recomputed more often.
    """
    out = _inline_maps(list(groups), outputs, repeated, decided=decided)
    out = _attach(out, outputs, _epilogue)
    out = _attach(out, outputs, _prologue)
    return without_unused(out, outputs)


def inline_views(groups: Sequence[Step], outputs: frozenset[Buffer]) -> list[Step]:
    """The groups without maps that keep the order in memory, such as a Reshape. `outputs`: the
    buffers that must exist."""
    return without_unused(_inline_maps(list(groups), outputs, 0, _is_view), outputs)


def without_unused(steps: Sequence[Step], outputs: frozenset[Buffer]) -> list[Step]:
    """Drop groups whose results are unused after index maps were inlined."""
    needed = set(outputs)
    kept: list[Step] = []
    for step in reversed(steps):
        if isinstance(step, FusionGroup):
            if not any(b in needed for b in step.writes):
                continue
            needed |= set(step.reads)
        kept.append(step)
    return kept[::-1]


def _is_index_map(computation: Computation) -> bool:
    """Whether a map only moves elements, possibly under a mask (`_is_masked`)."""
    value = computation.outputs[0].value
    if isinstance(value, Select) and isinstance(value.otherwise, Const):
        value = value.then
    checked = any(
        isinstance(n, Load) for i in getattr(value, "index", ()) for n in postorder(i)
    )
    return isinstance(value, Load | Const) and not checked


def _is_masked(index_map: Computation) -> bool:
    """Whether an index map reads a mask from memory, as in `m[i] > 0 ? x[i] : 0`."""
    value = index_map.outputs[0].value
    return isinstance(value, Select) and any(
        isinstance(n, Load) for n in postorder(value.condition)
    )


def _is_view(c: Computation) -> bool:
    """Whether a map copies a whole tensor in its memory order."""
    (out,) = c.outputs
    value = out.value
    if not isinstance(value, Load) or value.buffer.size != out.tensor.size:
        return False
    if not _is_index_map(c) or not out.tensor.size:
        return False
    axes = np.indices([d.extent for d in c.dims], sparse=True)
    grid = {d.var: axis for d, axis in zip(c.dims, axes, strict=True)}
    places = []
    for index, shape in (
        (out.index, out.tensor.shape),
        (value.index, value.buffer.shape),
    ):
        at = np.zeros((), np.int64)
        for i, extent in zip(index, shape, strict=True):
            at = at * extent + evaluate(i, grid)
        places.append(at)
    return bool(np.all(places[0] == places[1]))


def _affine_reads(computation: Computation) -> bool:
    variables = {d.var for d in computation.dims}
    return all(
        isinstance(atom, Var) and atom in variables
        for access in computation.accesses
        for i in access.index
        for atom, _ in affine(i).terms
    )


def is_small(computation: Computation) -> bool:
    """Whether a fused Computation is small enough: see MAX_NODES, MAX_LOADS, MAX_WRITTEN."""
    seen: set[Node] = set()
    written: dict[Node, int] = {}  # nodes below, each as often as it is used
    values = [o.value for o in computation.outputs]
    for value in values:
        for n in unseen(value, seen):
            written[n] = 1 + sum([written[c] for c in n.children()])
    return (
        len(written) <= MAX_NODES
        and sum(isinstance(n, Load) for n in written) <= MAX_LOADS
        and sum(written[value] for value in values) <= MAX_WRITTEN
    )


def _inlined(producer: Computation, group: FusionGroup) -> FusionGroup | None:
    """`group` with the producer inlined into every Computation that reads it, or None."""
    tensor = producer.outputs[0].tensor
    found = []
    for c in group.computations:
        if tensor in c.inputs:
            new = inline(producer, c)
            if new is None or not is_small(new):
                return None
            c = new
        found.append(c)
    before = _as_scheduled(group.computations)
    for old, new in zip(before, _as_scheduled(found), strict=True):
        if not old.is_map and _affine_reads(old) and not _affine_reads(new):
            return None
    return replace(group, computations=tuple(found))


def _as_scheduled(group: Sequence[Computation]) -> Sequence[Computation]:
    """The group with axes that a reshape split merged again, if some reads are not affine."""
    if all(c.is_map or _affine_reads(c) for c in group):
        return group
    return join_axes(group)[0]


def _inline_maps(
    groups: list[Step],
    outputs: frozenset[Buffer],
    repeated: int,
    eligible: Callable[[Computation], bool] = lambda computation: True,
    decided: Decided = at_this_size,
) -> list[Step]:
    flow = DefUse(groups)
    place: dict[Step, int] = {s: n for n, s in enumerate(groups)}
    slots: list[Step | None] = list(groups)
    for n in range(len(slots)):
        group = slots[n]
        if (
            not isinstance(group, FusionGroup)
            or not group.is_map
            or identity_dims(group.computations[0]) is None
            or not eligible(group.computations[0])
        ):
            continue
        tensor = group.writes[0]
        if tensor in outputs or len(flow.writers[tensor]) != 1:
            continue
        consumers = list(flow.readers.get(tensor, []))
        producer = group.computations[0]
        if any(c.kernel is not None for c in consumers) or not consumers:
            continue
        if not _pays(producer, consumers, repeated, decided):
            continue
        merged = [_inlined(producer, c) for c in consumers]
        if any(m is None for m in merged):
            continue
        events.emit(
            "fuse",
            rule="inline",
            producer=group.name,
            into=[c.name for c in consumers],
            sources=group.sources,
        )
        flow.remove(group)
        slots[n] = None
        for k, (old, new) in enumerate(zip(consumers, merged, strict=True)):
            assert new is not None
            flops = (
                0 if k else group.flops
            )  # an operator's flops count once, wherever it was inlined
            sources = joined(group.sources, new.sources)
            new = replace(new, sources=sources, flops=flops + new.flops)
            flow.remove(old)
            flow.add(new)
            place[new] = place.pop(old)
            slots[place[new]] = new
    return [s for s in slots if s is not None]


def _pays(
    producer: Computation,
    consumers: Sequence[FusionGroup],
    repeated: int,
    decided: Decided,
) -> bool:
    """Whether inlining a map into its consumers pays.

    Pure moves are free. A masked move adds a second read per element and prevents halos, so it is
    inlined only into a single consumer. So is arithmetic, if the consumer is a map.
    """
    moves = _is_index_map(producer)
    if moves and not _is_masked(producer):
        return True
    if len(consumers) != 1 or not (moves or consumers[0].is_map):
        return False
    often = _recomputes(producer, consumers[0], repeated)
    return not decided(f"{producer.outputs[0].tensor.name} is kept", often)


def _recomputes(producer: Computation, consumer: FusionGroup, repeated: int) -> bool:
    """Whether inlining would recompute an element too often (broadcast reads, windows, products):
    more than once if it is costly, else more than `repeated` times."""
    tensor = producer.outputs[0].tensor
    costly = any(
        isinstance(n, Call | Div) for n in postorder(producer.outputs[0].value)
    )
    return any(
        not _reads_once(c, tensor) and (costly or _points(c) > repeated * tensor.size)
        for c in consumer.computations
        if tensor in c.inputs
    )


def _may_wait(
    producer: FusionGroup,
    tensor: Buffer,
    flow: DefUse,
    out: Sequence[Step],
    outputs: frozenset[Buffer],
) -> bool:
    """Whether a producer may run at the place of the consumer of `tensor`, after all of `out`.

    No step in between uses anything that the producer writes. Host fallbacks, which are in no Flow,
    only use buffers in `outputs`.
    """
    others = {b for b in producer.writes if b is not tensor}
    if not any(b in outputs or flow.readers.get(b) for b in others):
        return True
    between = out[out.index(producer) + 1 :]
    return all(
        others.isdisjoint(s.reads)
        if isinstance(s, FusionGroup)
        else others.isdisjoint(outputs)
        for s in between
    )


def _attach(groups: list[Step], outputs: frozenset[Buffer], rule: Rule) -> list[Step]:
    """Apply a two-group rule along every producer-consumer edge until nothing changes."""
    flow = DefUse(groups)
    out: list[Step] = []
    for current in groups:
        while isinstance(current, FusionGroup):
            step = next(
                (
                    (producer, merged)
                    for b in current.reads
                    if b not in outputs
                    and flow.sole_reader(b) is current
                    and len(flow.writers.get(b, ())) == 1
                    for producer in flow.writers[b]
                    if _may_wait(producer, b, flow, out, outputs)
                    and (merged := rule(producer, current, b)) is not None
                ),
                None,
            )
            if step is None:
                break
            producer, merged = step
            events.emit(
                "fuse",
                rule=rule.__name__,
                producer=producer.name,
                into=current.name,
                sources=merged.sources,
            )
            flow.remove(producer)
            flow.remove(current)
            flow.add(merged)
            out.remove(producer)
            current = merged
        out.append(current)
    return out


def _epilogue(
    producer: FusionGroup, consumer: FusionGroup, tensor: Buffer
) -> FusionGroup | None:
    """reduction ; map  ->  one group, with the map indexed by the reduction's dimensions."""
    if not consumer.is_map or producer.is_map or producer.kernel is not None:
        return None
    last = producer.computations[-1]
    if tensor is not last.outputs[0].tensor:
        return None
    if len(last.outputs) != 1:
        return None
    others = set(producer.writes) - {tensor}
    if any(b in others for b in consumer.reads):
        return None
    new = follow(last, consumer.computations[0])
    if new is None or not is_small(new):
        return None
    if last.is_map:
        reader = new if _writes_along(new) else consumer.computations[0]
        combined = inline(last, reader)
        if combined is None or not is_small(combined):
            return None
        before = producer.computations[-2]
        if not before.is_map:
            combined = follow(before, combined) or combined
        return merge(producer, consumer, (*producer.computations[:-1], combined))
    return merge(producer, consumer, (*producer.computations, new))


def _writes_along(c: Computation) -> bool:
    """Whether results that are neighbors along the last dimension are neighbors in memory.

    A map of rows then stays over them, so that what the rows have in common is computed once,
    however they are ordered in its result.
    """
    if not c.parallel_dims or not all(o.index for o in c.outputs):
        return False  # of single elements
    last = c.parallel_dims[-1].var
    *outer, inner = (affine(i) for o in c.outputs for i in o.index)
    return inner.coefficient(last) == 1 and all(i.coefficient(last) == 0 for i in outer)


def _prologue(
    producer: FusionGroup, consumer: FusionGroup, tensor: Buffer
) -> FusionGroup | None:
    """map ; row reductions  ->  one group that computes the row once."""
    if not producer.is_map or consumer.is_map or consumer.kernel is not None:
        return None
    if any(is_contraction(c) for c in consumer.computations):
        return None
    first = producer.computations[0]
    if identity_dims(first) is None or _is_index_map(first):
        return None
    readers = [c for c in consumer.computations if tensor in c.inputs]
    if len(readers) == 1 and _reads_once(readers[0], tensor):
        combined = inline(first, readers[0])
        if combined is not None and is_small(combined):
            rest = [combined if c is readers[0] else c for c in consumer.computations]
            return merge(producer, consumer, rest)
        return None
    if not _rows(consumer, tensor):
        return None
    return merge(producer, consumer, (first, *consumer.computations))


def _points(computation: Computation) -> int:
    return math.prod(max(d.extent, 1) for d in computation.dims)


def _reads_once(computation: Computation, tensor: Buffer) -> bool:
    accesses = sum(a.buffer is tensor for a in computation.accesses)
    return _points(computation) * accesses <= tensor.size


def _rows(group: FusionGroup, tensor: Buffer) -> bool:
    """Whether `tensor` is only read by plain dimensions, its first axis by a shared free one."""
    for c in group.computations:
        for a in c.accesses:
            if a.buffer is tensor and not all(_plain(i) for i in a.index):
                return False
    return len(tensor.shape) >= 2


def _plain(index: Expr) -> bool:
    return isinstance(index, Var | Const)
