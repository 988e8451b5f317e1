"""How a loop's iterations run: what vectorize, unroll, parallel, serial and bind have in common."""

from __future__ import annotations

from tilewright.loops.nodes import For, Kernel
from tilewright.schedule import edit, tree
from tilewright.schedule.legality import check_kinds


def with_kind(
    kernel: Kernel,
    name: str,
    kind: str,
    verb: str,
    hint: str,
) -> Kernel:
    """Run a loop's iterations as `kind` says, or raise ScheduleError in the name of `verb`."""
    f, place = tree.find_loop(kernel, name, verb)
    if kind not in ("parallel", "serial"):
        tree.trips(f, verb)
    result = edit.put(kernel, place, For(f.var, f.extent, kind, f.body))
    check_kinds(result, (name,), verb, hint)
    return result
