"""Results that pass the caches by: a note at the nests that store them, where they are large."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.expr.nodes import Buffer
from tilewright.loops.nodes import STREAM, Kernel, Store
from tilewright.loops.walk import summary, walk
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.targets.cpu.sketches.context import Context


def streamed(s: Schedule, at: Context, choose: Choices) -> Schedule:
    """The schedule with the note `stream` at the outermost loops of nests that store such results.

    parameters: `stream.<buffer>`, of each result that the first cache does not hold and that the
    kernel never reads: its stores need not read the lines that they write to, and leave the caches
    to other data. By default of those that are large.
    """
    machine = at.machine
    if not machine.has("avx"):
        return s
    results = [b for b in s.kernel.outputs if b.static]
    sizes = {b: b.size * b.dtype.itemsize for b in results}
    large = [b for b, n in sizes.items() if n > machine.l1]
    read = summary(s.kernel.body).reads
    for buffer in large:
        if buffer in read:
            continue
        loops = list(dict.fromkeys(_nests(s.kernel, buffer)))
        if not loops:
            continue
        good = at.costs.streams(sizes[buffer])
        if not choose(f"stream.{buffer.name}", (True, False), good):
            continue
        for loop in loops:
            noted = s.kernel.notes.get(loop, {}).get(STREAM)
            s.annotate(loop, STREAM, f"{noted},{buffer.name}" if noted else buffer.name)
    return s


def _nests(kernel: Kernel, buffer: Buffer) -> Iterator[str]:
    """The outermost loops around stores to a buffer."""
    for place in walk(kernel.body):
        if (
            isinstance(place.stmt, Store)
            and place.stmt.buffer is buffer
            and place.loops
        ):
            yield place.loops[0].var.name
