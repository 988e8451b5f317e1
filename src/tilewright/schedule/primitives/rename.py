"""rename: what loops are called."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilewright.expr.nodes import INDEX, Var
from tilewright.ir.node import substitute
from tilewright.loops.nodes import Kernel
from tilewright.loops.walk import names_of
from tilewright.schedule import tree
from tilewright.schedule.legality import refuse
from tilewright.schedule.registry import primitive


@primitive
def rename(kernel: Kernel, *names: str) -> tuple[Kernel, None]:
    """Call loops otherwise.

    args: each loop, followed by its new name; all change at once, so that two may swap theirs.
    requires: no other loop or buffer has a new name.
    A name means nothing to the program, but steps that follow, and readers, find loops by it.
    before: for i in n: B(i)
    after:  for row in n: B(row)
    """
    pairs = dict(zip(names[::2], names[1::2], strict=False))
    if 2 * len(pairs) != len(names):
        raise refuse(
            "rename",
            " ".join(names),
            "these are not pairs",
            "give each loop once, and its name",
        )
    others = names_of(kernel) - pairs.keys()
    values: dict[Any, Any] = {}
    for old, new in pairs.items():
        found, _ = tree.find_loop(kernel, old, "rename")
        if new in others:
            raise refuse("rename", old, f"the name {new} is taken", "take another")
        others.add(new)
        values[found.var] = Var(new, INDEX)
    notes = {pairs.get(name, name): said for name, said in kernel.notes.items()}
    body = substitute(kernel.body, values)
    return replace(kernel, body=body, notes=notes), None
