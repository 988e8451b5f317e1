"""Inlining intermediate maps into their readers."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.errors import ScheduleError
from tilewright.compute.nodes import Computation
from tilewright.compute.transforms import inline
from tilewright.expr.nodes import Buffer
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.patterns import uses


def inlined(
    s: Schedule, computations: Sequence[Computation], choose: Choices
) -> tuple[Schedule, list[Computation]]:
    """The schedule and the Computations that are left.

    parameters: `inline.<buffer>`, of each map whose result the kernel does not return; by default
    where each element of it is read once.
    """
    rest = list(computations)
    for tensor in [c.outputs[0].tensor for c in computations[:-1]]:
        at = next(n for n, c in enumerate(rest) if c.outputs[0].tensor is tensor)
        c = rest[at]
        if not c.is_map or len(c.outputs) != 1 or tensor in s.kernel.params:
            continue
        readers = {n: inline(c, r) for n, r in enumerate(rest) if tensor in r.inputs}
        if None in readers.values() or not readers:
            continue
        once = len(readers) == 1 and _read_once(rest[next(iter(readers))], tensor)
        if not choose(f"inline.{tensor.name}", (True, False), once):
            continue
        trial = s.fork()
        try:
            trial.compute_inline(tensor.name)
        except ScheduleError:
            continue  # it is read where its operands have changed: it stays in memory
        s = trial
        rest = [readers.get(n) or r for n, r in enumerate(rest) if n != at]
    return s, rest


def _read_once(reader: Computation, tensor: Buffer) -> bool:
    """Whether the reader needs each element at one of its points only."""
    reads = [a for a in reader.accesses if a.buffer is tensor]
    wide = [d for d in reader.dims if d.extent > 1]
    return len(reads) == 1 and all(
        any(uses(i, d.var) for i in reads[0].index) for d in wide
    )
