"""annotate: something to say about a loop to whoever reads the kernel later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.loops.nodes import Kernel
from tilewright.schedule import tree
from tilewright.schedule.legality import refuse
from tilewright.schedule.registry import primitive


@primitive
def annotate(
    kernel: Kernel, loop: str, key: str, value: int | float | str | None
) -> tuple[Kernel, None]:
    """Note `key: value` at a loop, for what reads the kernel later (a target, a tuner).

    args: the loop; a key, an earlier note of which is replaced; a number or text (None: no note).
    requires: the value can be part of a trace.
    A note never changes what the program computes. It stays while the loop exists, through reorder
    and the rest. Primitives that make other loops of one (split, fuse, tile, partition_loop,
    pipeline, vthread) refuse a loop with notes: annotate what they make.
    before: for i in n: B(i)
    after:  for i in n {key: value}: B(i)
    """
    tree.find_loop(kernel, loop, "annotate")
    if not isinstance(value, int | float | str | None) or not isinstance(key, str):
        raise refuse(
            "annotate",
            loop,
            f"{key!r}: {value!r} cannot be noted",
            "take a number or text",
        )
    said = {**kernel.notes.get(loop, {}), key: value}
    if value is None:
        del said[key]
    notes = {**kernel.notes, loop: said}
    if not said:
        del notes[loop]
    return replace(kernel, notes=notes), None


def check_unmarked(kernel: Kernel, names: Sequence[str], primitive_: str) -> None:
    """Raise ScheduleError if one of the loops, which will not exist any more, has notes."""
    for name in names:
        if name in kernel.notes:
            raise refuse(
                primitive_,
                name,
                f"the loop has the notes {', '.join(kernel.notes[name])}, and would be replaced",
                f"{primitive_} first, then annotate the loop that it makes",
            )
