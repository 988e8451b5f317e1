"""blockize: a nest kept together as one piece."""

from __future__ import annotations

from tilewright.loops.nodes import Kernel, Unit
from tilewright.schedule import edit, tree
from tilewright.schedule.registry import primitive_with


@primitive_with(options=["unit"])
def blockize(kernel: Kernel, loop: str, unit: str | None = None) -> tuple[Kernel, None]:
    """Keep the nest at a loop together as one piece, which no later primitive reaches into.

    args: the loop; a name for the piece (default: the loop's).
    requires: the loop exists and is not inside such a piece already.
    before: for i: for j: B(i, j)
    after:  for i: block j: for j: B(i, j)
    """
    f, place = tree.find_loop(kernel, loop, "blockize")
    piece = Unit(unit or loop, None, (), f)
    return edit.put(kernel, place, piece), None
