"""The records of a stage's methods, and the handles of loops."""

from __future__ import annotations

from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.lang.te.syntax.nodes import Axis
from tilewright.loops.scopes import Scope, check_scope
from tilewright.schedule.primitives.split import Tail


class Loop:
    """A loop made by a verb, as the axes of an operation are loops too."""

    __slots__ = ("combine", "name")

    def __init__(self, name: str, combine: str) -> None:
        self.name = name
        self.combine = combine

    def __repr__(self) -> str:
        return self.name


Handle = Axis | Loop


@dataclass(frozen=True, slots=True)
class ThreadAxis:
    """An axis to bind loops to. tag: such as "threadIdx.x". name: for TVM's sake."""

    tag: str
    name: str = ""

    @property
    def thread_tag(self) -> str:
        """The axis."""
        return self.tag


# TVM's name of the memory that each thread of a GPU has for itself.
_SCOPES: Final = {"local": "register"}


def scope_of(name: Scope, line: Line) -> Scope:
    """The memory of that name, or of that name in TVM. Raises ScheduleError for an unknown one."""
    found = _SCOPES.get(name, name) if isinstance(name, str) else name
    check_scope(found, str(line))
    return found


def thread_axis(
    domain: Any = None, tag: str | None = None, name: str = ""
) -> ThreadAxis:
    """An axis of a GPU's threads or blocks to bind a loop to: `thread_axis("threadIdx.x")`.

    tag: "blockIdx.x", "threadIdx.y", "vthread", ...; alone, it may come first. domain: an extent,
    as TVM takes one; it is not used, since the loop has one. name: for TVM's sake.
    """
    return ThreadAxis(tag if tag is not None else str(domain), name)


@dataclass(frozen=True, eq=False, slots=True)
class Line:
    """A verb as it was written, and where."""

    text: str
    place: str

    def __str__(self) -> str:
        return f"{self.text} ({self.place})" if self.place else self.text


@dataclass(frozen=True, eq=False, slots=True)
class Split:
    """`parent` as tiles of `factor`, or as `nparts` tiles."""

    line: Line
    parent: Handle
    outer: Loop
    inner: Loop
    factor: int | None
    nparts: int | None
    tail: Tail | None


@dataclass(frozen=True, eq=False, slots=True)
class Fuse:
    """Two loops as one."""

    line: Line
    outer: Handle
    inner: Handle
    fused: Loop


@dataclass(frozen=True, eq=False, slots=True)
class Mark:
    """A primitive of the same name on the loop, or on the stage's buffer where there is none."""

    line: Line
    verb: str
    loop: Handle | None
    args: tuple[Any, ...]


def consumed(relation: Split | Fuse) -> tuple[Handle, ...]:
    """The loops that are none any more, once it is applied."""
    if isinstance(relation, Split):
        return (relation.parent,)
    return relation.outer, relation.inner
