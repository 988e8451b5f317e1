"""Cache stages as steps of the trace: the default program, and cache_read and cache_write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError
from tilewright.lang.te.syntax.nodes import Tensor
from tilewright.lang.te.syntax.program import PlainProgram
from tilewright.loops.nodes import For, Kernel
from tilewright.loops.walk import walk
from tilewright.schedule import Schedule


@dataclass(frozen=True, eq=False, slots=True)
class Cache:
    """The primitive `verb` on a whole tensor, which made another."""

    verb: Literal["cache_read", "cache_write"]
    source: Tensor
    made: Tensor


def begin(staged: PlainProgram, plain: Kernel, caches: Sequence[Cache]) -> Schedule:
    """The program of the stages, derived from the plain one by a step per cache, and their loops'
    names.

    If the primitives produce a different program, the one that the stages describe is used, without
    steps: primitives serve all readers at once, store no more than is read, place caches as far out
    as possible, and write an intermediate only once.
    """
    s = Schedule(plain)
    try:
        for c in _in_order(caches):
            made = staged.buffers[c.made]
            source = staged.buffers[c.source].name
            if c.verb == "cache_read":
                s.cache_read(source, None, made.scope, name=made.name)
            else:
                s.cache_write(source, None, made.scope, name=made.name)
        s.rename(*_other_names(s.kernel, staged.kernel))
    except ScheduleError:
        return Schedule(staged.kernel)
    if repr(s.kernel) == repr(staged.kernel):
        return s
    return Schedule(staged.kernel)


def _in_order(caches: Sequence[Cache]) -> Iterator[Cache]:
    """The last first, since each is placed in front of the existing ones, but none before its
    source."""
    rest = list(caches)
    while rest:
        missing = {c.made for c in rest}
        found = [c for c in rest if c.source not in missing][-1]
        rest.remove(found)
        yield found


def _other_names(one: Kernel, other: Kernel) -> list[str]:
    """The loops of `one` that are called otherwise in `other`, each with its name there."""
    here, there = (
        [p.stmt.var.name for p in walk(k.body) if isinstance(p.stmt, For)]
        for k in (one, other)
    )
    return [
        name
        for pair in zip(here, there, strict=False)
        if pair[0] != pair[1]
        for name in pair
    ]
