"""What `trace_realizations` prints: where each Func is realized, produced and consumed.

    Begin realization f.0(0, 4, 2, 1)        while its memory exists
    Produce f.0(0, 4, 2, 1)                  its loops, and what is computed in them
    Consume f.0(0, 4, 2, 1)                  what follows in the same block

with the (min, extent) of each dimension, x first. The marks are conditions that print and hold, in
the scheduled loops; the regions are those of the stores inside, whose coordinates `located` kept.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import bool_
from tilewright.expr.affine import affine
from tilewright.expr.nodes import INDEX, Expr, Extent, const
from tilewright.ir.node import postorder
from tilewright.lang.halide.levels import Scheduled
from tilewright.lang.halide.placing import Replay
from tilewright.lang.halide.syntax.ends import Ends, ends, tidy
from tilewright.lang.halide.syntax.tracing import point_of, told
from tilewright.lang.halide.syntax.types import Type
from tilewright.loops.nodes import (
    Alloc,
    Block,
    For,
    If,
    Kernel,
    Stmt,
    Store,
    Update,
    block,
)
from tilewright.loops.walk import walk

REALIZATIONS = "Realization"


def marked(state: Replay, name: str) -> Kernel:
    """The kernel of a replayed pipeline that is traced, with the marks of what is traced."""
    traced = [f for f in state.pipeline.boxes if f.traced and f in _stored(state)]
    kernel = state.schedule.kernel
    if not traced:
        return kernel
    marks = _Marks(state)
    body = block(*marks.sequence(_parts(kernel.body), ()))
    for f in reversed(state.pipeline.outputs):
        if REALIZATIONS in f.traced:
            body = marks.around("realization", f, body)
    traced.sort(key=lambda f: f.name())
    begin = _mark(f"Begin pipeline {name}.0()")
    tags = map(_mark, _tags(traced, state))
    end = _mark(f"End pipeline {name}.0()")
    return kernel.with_body(block(begin, *tags, body, end))


def _stored(state: Replay) -> set[Any]:
    """The images, and the Funcs that have memory."""
    return {*state.pipeline.images, *(nest.func for nest in state.nests)}


def _tags(traced: Sequence[Any], state: Replay) -> Iterator[str]:
    """What Halide tells of each Func and image first, and then the user's own texts."""
    for f in traced:
        yield _tag(f, _type_and_region(f, state))
    for f in traced:
        if isinstance(f, Scheduled):
            for text in f.tags:
                yield _tag(f, text)


def _tag(f: Any, text: str) -> str:
    return f'Tag {f.name()}.0() tag = "{text}"'


def _type_and_region(f: Any, state: Replay) -> str:
    """The types of the values of a Func or image and its region, as Halide writes them."""
    types = f.types() if isinstance(f, Scheduled) else [Type(f.dtype)]
    kinds = (f"{t.code().value} {t.bits()} 1" for t in types)
    box = state.pipeline.boxes[f]
    ranges = (f"{low} {extent}" for low, extent in reversed(box))
    numbers = [str(len(types)), *kinds, str(len(box)), *ranges]
    return f"func_type_and_dim: {' '.join(numbers)}"


@dataclass(slots=True)
class _Marks:
    """The traced Funcs of a pipeline, by the names of their loops and buffers."""

    state: Replay
    loops: dict[str, Any] = field(default_factory=dict)
    buffers: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for nest in self.state.nests:
            self.loops |= dict.fromkeys(nest.loops.values(), nest.func)
        for f, copies in self.state.buffers.items():
            for copy in copies:
                self.buffers |= dict.fromkeys(copy, f)

    def sequence(self, stmts: Sequence[Stmt], around: tuple[For, ...]) -> list[Stmt]:
        """Statements in order, with the marks of what they produce and what then follows."""
        if not stmts:
            return []
        f = self._produced(stmts[0], around)
        count = 1
        while f is not None and count < len(stmts):
            if self._produced(stmts[count], around) is not f:
                break
            count += 1
        made = block(*(self._inside(s, around) for s in stmts[:count]))
        rest = self.sequence(stmts[count:], around)
        if f is None or REALIZATIONS not in f.traced:
            return [made, *rest]
        label = f"{f.name()}.0"
        region = self._region(f, block(*stmts[:count]))
        begin = _mark(f"Produce {label}", region)
        end = _mark(f"End produce {label}", region)
        later = self._stores(f, block(*stmts[count:]))
        if f in self.state.pipeline.outputs or next(later, None) is not None:
            return [begin, made, end, *rest]
        uses = _mark(f"Consume {label}", region)
        used = _mark(f"End consume {label}", region)
        return [begin, made, end, uses, *rest, used]

    def around(self, what: str, f: Any, body: Stmt) -> Stmt:
        """The statement between the begin and the end of something of a Func."""
        region = self._region(f, body)
        begin = _mark(f"Begin {what} {f.name()}.0", region)
        return block(begin, body, _mark(f"End {what} {f.name()}.0", region))

    def _inside(self, s: Stmt, around: tuple[For, ...]) -> Stmt:
        """A statement, with the marks inside of it."""
        match s:
            case For():
                inner = self.sequence(_parts(s.body), (*around, s))
                return For(s.var, s.extent, s.kind, block(*inner))
            case If():
                then = block(*self.sequence(_parts(s.then), around))
                if s.otherwise is None:
                    return If(s.condition, then, None)
                other = self.sequence(_parts(s.otherwise), around)
                return If(s.condition, then, block(*other))
            case Alloc():
                body = block(*self.sequence(_parts(s.body), around))
                f = self.buffers.get(s.buffer.name)
                if f is not None and self._is_begun(f, s.buffer.name):
                    return self.around("realization", f, Alloc(s.buffer, body))
                return Alloc(s.buffer, body)
        return s

    def _is_begun(self, f: Any, name: str) -> bool:
        """Whether a traced Func is realized where this buffer is: its first one."""
        first = any(copy[0] == name for copy in self.state.buffers[f])
        return first and REALIZATIONS in f.traced

    def _produced(self, s: Stmt, around: tuple[For, ...]) -> Any:
        """The Func whose loops begin with a statement; None inside of them."""
        f = None
        match s:
            case For():
                f = self.loops.get(s.var.name)
            case Store():
                f = self.buffers.get(s.buffer.name)
            case Update():
                f = self.buffers.get(s.buffers[0].name)
        inside = any(self.loops.get(x.var.name) is f for x in around)
        return None if inside else f

    def _stores(self, f: Any, s: Stmt) -> Iterator[tuple[tuple[For, ...], Any]]:
        """The loops around each store of a Func in a statement, and the coordinates."""
        for place in walk(s):
            buffer: Any = None
            value: Any = None
            match place.stmt:
                case Store():
                    buffer = place.stmt.buffer
                    value = place.stmt.value
                case Update():
                    buffer = place.stmt.buffers[0]
                    value = place.stmt.values[0]
            if buffer is None or self.buffers.get(buffer.name) is not f:
                continue
            point = point_of(value)
            if point is not None:
                yield place.loops, point

    def _region(self, f: Any, s: Stmt) -> list[StoredRange]:
        """What a statement stores of a Func, within what is needed of it at all."""
        regions = []
        for low, extent in reversed(self.state.pipeline.boxes[f]):
            regions.append(StoredRange(low, tidy(low + extent - 1)))
        for loops, point in self._stores(f, s):
            inside: dict[Any, Ends] = {}
            for x in loops:
                inside[x.var] = 0, tidy(x.extent - 1)
            for region, index in zip(regions, point, strict=True):
                region.add(*_ends(index, inside))
        return regions


@dataclass(slots=True)
class StoredRange:
    """A dimension of a region: the ends of all that is stored, within a first and a last one."""

    first: Extent
    last: Extent
    lows: list[Extent] = field(default_factory=list)
    highs: list[Extent] = field(default_factory=list)

    def add(self, low: Extent | None, high: Extent | None) -> None:
        """What is stored from `low` to `high`; None: as far as there is something."""
        least = self.first if low is None else low
        most = self.last if high is None else high
        self.lows.append(least)
        self.highs.append(most)

    def range(self, numbers: Iterator[int]) -> str:
        """The min and extent as text, of the numbers of `values`."""
        first = next(numbers)
        last = next(numbers)
        lows = [next(numbers) for _ in self.lows]
        highs = [next(numbers) for _ in self.highs]
        low = max(first, min(lows, default=first))
        high = min(last, max(highs, default=last))
        return f"{low}, {high - low + 1}"

    @property
    def values(self) -> list[Extent]:
        """What decides the range, in the order in which `range` takes it."""
        return [self.first, self.last, *self.lows, *self.highs]


def _ends(index: Expr, inside: dict[Any, Ends]) -> Ends:
    """The ends of a coordinate over the loops inside; what these do not change is known."""
    env = dict(inside)
    for atom, _ in affine(index).terms:
        if not set(postorder(atom)) & set(inside):
            env[atom] = (atom, atom)
    return ends(index, env)


def _mark(text: str, several: Sequence[StoredRange] = ()) -> Stmt:
    """A statement that prints a line, with the ranges of a region."""

    def tell(_: Any, *found: int) -> None:
        numbers = iter(map(int, found))
        ranges = ", ".join(r.range(numbers) for r in several)
        builtins.print(f"{text}({ranges})" if several else text)

    values = [v for r in several for v in r.values]
    exprs = [const(v, INDEX) if isinstance(v, int) else v for v in values]
    return If(told(const(True, bool_), exprs, tell), block(), None)


def _parts(s: Stmt) -> Sequence[Stmt]:
    return s.stmts if isinstance(s, Block) else (s,)
