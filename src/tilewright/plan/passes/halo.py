"""Padding without a copy: a feature map is stored with the border that its convolutions read.

A convolution that reads outside its input gets zeros there, or the zero point for bytes. If an
intermediate tensor is read like this, it gets a halo of that constant in memory: its producers
write the inside, a small group fills the border, and every guarded read becomes a plain one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.compute.build import map_
from tilewright.compute.contraction import is_contraction
from tilewright.compute.guards import read_or_constant
from tilewright.compute.nodes import Computation, Output
from tilewright.compute.transforms import environment
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import (
    INDEX,
    Buffer,
    Const,
    Expr,
    Load,
    Select,
    const,
)
from tilewright.expr.simplify import simplify
from tilewright.ir.node import Node, unseen
from tilewright.plan.decisions import GUARDED, STORED, Choose, estimated
from tilewright.plan.nodes import DefUse, FusionGroup, Step
from tilewright.plan.questions import Decided

Pads = tuple[tuple[int, int], ...]


def add_halos(
    steps: Sequence[Step],
    keep: Collection[Buffer],
    most: float,
    decided: Decided | None = None,
    choose: Choose = estimated,
) -> list[Step]:
    """The groups with halos where they pay; buffers in `keep` are unchanged.

    most: limit for the size of a tensor with its border, relative to its own size. decided: as in
    `Questions`. choose: who decides instead of the size; see `plan.decisions`.

    A tensor t gets a border if it is not in `keep`, only Computations write and read it, and none
    looks up a place in t: with a border, a place outside of t would be inside the buffer. A read
    `c if outside(t, i) else t[i]` becomes plain if its guard says exactly that i is inside t and
    the border holds c; every other read keeps its guard. The border covers all these reads. Writers
    write the inside as before; a separate group writes the border once, before the first of them.
    """
    flow = DefUse(steps)
    found: dict[Buffer, _Halo] = {}
    for tensor, writers in flow.writers.items():
        readers = flow.readers.get(tensor, [])
        if tensor in keep:
            continue
        if not readers:
            continue
        if any(s.kernel or s.looks_up(tensor) for s in (*writers, *readers)):
            continue
        halo = _wanted(tensor, [c for s in readers for c in s.computations])
        if halo is None:
            continue
        usual = STORED if _size(tensor, halo) <= most * tensor.size else GUARDED
        groups = tuple(dict.fromkeys((*writers, *readers)))
        pays = choose(groups, usual, tensor) == STORED
        if pays if decided is None else decided(f"{tensor.name}.halo", pays):
            found[tensor] = halo
    padded = {
        t: Buffer(
            t.name,
            tuple(n + a + b for n, (a, b) in zip(t.shape, h.pads, strict=True)),
            t.dtype,
        )
        for t, h in found.items()
    }
    out: list[Step] = []
    filled: set[Buffer] = set()
    for step in steps:
        if not isinstance(step, FusionGroup) or not (
            {*step.reads, *step.writes} & found.keys()
        ):
            out.append(step)
            continue
        for t in step.writes:
            if t in found and t not in filled:
                filled.add(t)
                out.append(_border(t, padded[t], found[t], decided is not None))
                events.emit("padded", tensor=t.name, pads=found[t].pads)
        moved = tuple(_moved(c, found, padded) for c in step.computations)
        out.append(replace(step, computations=moved))
    return out


@dataclass(frozen=True, slots=True)
class _Halo:
    """The halo's extent before and after each axis, and its value."""

    pads: Pads
    constant: Const


def _wanted(tensor: Buffer, readers: Sequence[Computation]) -> _Halo | None:
    """The border that the readers' guarded reads need; None if it does not pay.

    It holds the outside value of the reads for which it pays; reads with another constant stay
    guarded.
    """
    guarded = [(c, g) for c in readers for g in _guarded_reads(c, tensor)]
    paying = {g.otherwise for c, g in guarded if is_contraction(c) or _is_wide_map(c)}
    if len(paying) != 1:
        return None
    (constant,) = paying
    assert isinstance(constant, Const)
    pads = [(0, 0)] * len(tensor.shape)
    for c, g in guarded:
        if g.otherwise is not constant:
            continue
        env = environment(c.dims)
        for n, i in enumerate(g.then.index):  # type: ignore[attr-defined]
            low, high = bounds(i, env)
            if low is None or high is None:
                return None
            before, after = pads[n]
            pads[n] = (max(before, -low), max(after, high - tensor.shape[n] + 1))
    return _Halo(tuple(pads), constant)


def _size(tensor: Buffer, halo: _Halo) -> int:
    """The elements of a tensor with its border."""
    pairs = zip(tensor.shape, halo.pads, strict=True)
    return prod(extent + a + b for extent, (a, b) in pairs)


def _is_wide_map(c: Computation) -> bool:
    return c.is_map and len(c.outputs) > 1


@lru_cache(maxsize=256)
def _guarded_reads(c: Computation, tensor: Buffer) -> tuple[Select, ...]:
    """Reads that are a constant outside the tensor: `Select(inside, tensor[index], c)`.

    Used to decide whether a halo pays, and again for rewriting.
    """
    env = environment(c.dims)
    found = []
    seen: set[Node] = set()
    for o in c.outputs:
        for node in unseen(o.value, seen):
            if not isinstance(node, Select):
                continue
            if not isinstance(node.then, Load):
                continue
            if node.then.buffer is tensor and read_or_constant(node, env) is not None:
                found.append(node)
    return tuple(found)


@dataclass(frozen=True)
class _Shift:
    """Translates an index into the tensor to one into the tensor with a halo."""

    pads: Pads

    def __call__(self, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        pairs = zip(index, self.pads, strict=True)
        return tuple(simplify(i + const(a)) if a else i for i, (a, _) in pairs)


def _moved(
    c: Computation, found: Mapping[Buffer, _Halo], padded: Mapping[Buffer, Buffer]
) -> Computation:
    env = environment(c.dims)
    guards = {
        g
        for t in c.inputs
        if t in found
        for g in _guarded_reads(c, t)
        if g.otherwise is found[t].constant
    }

    done: dict[Node, Any] = {}
    seen: set[Node] = set()

    def rewrite(root: Expr) -> Expr:
        for node in unseen(root, seen):
            new: Any = node.map(done.__getitem__)
            if isinstance(new, Load) and new.buffer in found:
                new = Load(
                    padded[new.buffer], _Shift(found[new.buffer].pads)(new.index)
                )
            elif node in guards:
                new = new.then
            done[node] = new
        result: Expr = done[root]
        return simplify(result, env)

    outputs = []
    for o in c.outputs:
        index = o.index
        if o.tensor in found:
            index = _Shift(found[o.tensor].pads)(index)
        tensor = padded.get(o.tensor, o.tensor)
        outputs.append(Output(tensor, index, rewrite(o.value)))
    return replace(c, outputs=tuple(outputs))


def _border(
    tensor: Buffer, padded: Buffer, halo: _Halo, empty: bool = False
) -> FusionGroup:
    """The group that writes the border: a Computation for each padded axis, or one for each of its
    sides where their sizes differ; all are disjoint.

    empty: each side has a Computation, and so have the axes without padding: what the group has
    does not depend on sizes.
    """
    parts: list[Computation] = []
    for axis, (before, after) in enumerate(halo.pads):
        behind = before + tensor.shape[axis]
        sides: list[tuple[int, list[int]]] = []
        if before == after and not empty:
            sides.append((before, [0, behind]))
        else:
            sides.append((before, [0]))
            sides.append((after, [behind]))
        for size, places in sides:
            if size or empty:
                name = f"border{len(parts)}"
                parts.append(_slabs(name, padded, halo, axis, size, places))
    return FusionGroup(f"{tensor.name}.halo", tuple(parts))


def _slabs(
    name: str,
    padded: Buffer,
    halo: _Halo,
    axis: int,
    size: int,
    places: Sequence[int],
) -> Computation:
    """Writes the constant at one or two places of an axis, inside of the borders of axes before it.

    Which of two places is a dimension outside of that of the place's size.
    """
    inside = halo.pads[:axis]
    behind = padded.shape[axis + 1 :]
    starts = [before for before, _ in inside]
    starts.append(places[0])
    starts += [0] * len(behind)
    extents = [n - sum(pads) for n, pads in zip(padded.shape, inside)]
    extents.append(len(places))
    extents.append(size)
    extents += behind
    apart = const(places[-1] - places[0], INDEX)

    def index(*point: Expr) -> tuple[Expr, ...]:
        at = list(point)
        which = at.pop(axis)
        at[axis] += which * apart
        for n, start in enumerate(starts):
            if start or n == axis:  # another place is as it was
                at[n] = simplify(at[n] + const(start, INDEX))
        return tuple(at)

    return map_(name, padded, lambda *i: halo.constant, extents=extents, index=index)
