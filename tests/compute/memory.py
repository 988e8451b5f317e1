"""Groups of Computations before and after a rewrite, on the same memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.compute.interp import run
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer

Group = Sequence[Computation]
Arrays = Mapping[Buffer, Any]


def buffers(group: Group) -> tuple[Buffer, ...]:
    """All tensors that a group reads or writes, each once."""
    outputs = (o.tensor for c in group for o in c.outputs)
    return tuple(dict.fromkeys((*(b for c in group for b in c.inputs), *outputs)))


def filled(b: Buffer, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Numbers that sums of floats round, and sums of integers wrap; some are -0.0."""
    if b.dtype.kind == "bool":
        return rng.integers(0, 2, b.shape).astype(b.dtype.numpy)
    if b.dtype.is_float:
        found = rng.standard_normal(b.shape) * 10.0 ** rng.integers(-3, 4, b.shape)
        return np.where(rng.random(b.shape) < 0.1, -0.0, found).astype(b.dtype.numpy)
    info = np.iinfo(b.dtype.numpy)
    return rng.integers(info.min, info.max, b.shape, b.dtype.numpy, endpoint=True)


def same(
    before: Group,
    after: Group,
    views: Mapping[Buffer, Buffer] | None = None,
    given: Arrays | None = None,
) -> None:
    """Every byte of the tensors of `before` is the same afterwards, of those not written, too.

    views: what `after` has for a tensor of `before`: the same memory in another shape.
    """
    seen = views or {}
    rng = np.random.default_rng(0)
    start = {b: filled(b, rng) for b in buffers(before)} | dict(given or {})
    ends = []
    for group, view in ((before, {}), (after, seen)):
        memory = {b: a.copy() for b, a in start.items()}
        shown = {
            view.get(b, b): a.reshape(view.get(b, b).shape) for b, a in memory.items()
        }
        for b in buffers(group):
            shown.setdefault(b, filled(b, rng))
        run(group, shown)
        ends.append(memory)
    for b, a in ends[0].items():
        assert a.tobytes() == ends[1][b].tobytes(), f"{b!r}:\n{a}\n{ends[1][b]}"
