"""A loop nest around one statement as the machine sees it: axes over elements of memories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import CompileError
from tilewright.expr.affine import Affine
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import Buffer, Expr, Var
from tilewright.expr.reads import variables
from tilewright.loops.nodes import For, Stmt
from tilewright.loops.operands import position

Values = Mapping[Var, int]
Index = tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class AccessLoop:
    """A loop: by how much each access moves per turn; `inside`: turns not in the padding."""

    extent: int
    steps: tuple[int, ...]
    inside: tuple[int, int]

    @property
    def padded(self) -> bool:
        """Whether some turns are in the padding."""
        return self.inside != (0, self.extent)


@dataclass(frozen=True, slots=True)
class LinearAccess:
    """An element of a buffer as a linear form: where all loops are at 0, and a step per loop."""

    buffer: Buffer
    first: int
    steps: Mapping[Var, int]


@dataclass(frozen=True, slots=True)
class Tiles:
    """A piece in elements: where each access begins, in its buffer, and its axes."""

    firsts: tuple[int, ...]
    axes: tuple[AccessLoop, ...]

    @property
    def outer(self) -> Tiles:
        """The same, all of it padding."""
        nowhere = AccessLoop(1, (0,) * len(self.firsts), (0, 0))
        return Tiles(self.firsts, (*self.axes, nowhere))

    @property
    def inner(self) -> Tiles:
        """The part that is not padding."""
        firsts = list(self.firsts)
        axes = []
        for a in self.axes:
            low, high = a.inside
            firsts = [
                first + low * step for first, step in zip(firsts, a.steps, strict=True)
            ]
            axes.append(
                AccessLoop(max(0, high - low), a.steps, (0, max(0, high - low)))
            )
        return Tiles(tuple(firsts), tuple(axes))


def peeled(s: Stmt) -> tuple[dict[Var, int], Stmt]:
    """The loops of a perfect nest, except virtual threads, and their body."""
    loops: dict[Var, int] = {}
    while isinstance(s, For) and s.trips is not None and s.kind != "vthread":
        loops[s.var] = s.trips
        s = s.body
    return loops, s


def linear(e: Affine, values: Values, where: str) -> tuple[int, dict[Var, int]]:
    """A form with all known variables at their values: the constant and a factor per variable.

    Raises CompileError where it is not linear in the others.
    """
    constant = e.const
    steps = dict[Var, int]()
    for atom, c in e.terms:
        if isinstance(atom, Var) and atom not in values:
            steps[atom] = c
        elif isinstance(atom, Var):
            constant += c * values[atom]
        elif all(v in values for v in variables(atom)):
            constant += c * int(evaluate(atom, {v: values[v] for v in variables(atom)}))
        else:
            raise CompileError(
                f"the index has {atom!r}, which is not linear in the loops around",
                code="TW-VTA-INDEX",
                where=where,
                hint="split loops exactly, so that indices are sums of multiples of them",
            )
    return constant, steps


def access(buffer: Buffer, index: Index, values: Values, where: str) -> LinearAccess:
    """An access with the loops outside its piece at `values`."""
    return LinearAccess(buffer, *linear(position(buffer, index), values, where))


def tiles(
    loops: Mapping[Var, int],
    accesses: Sequence[LinearAccess],
    inside: Mapping[Var, tuple[int, int]],
    lanes: int,
    where: str,
) -> Tiles:
    """A piece over numbers as one over elements of `lanes` neighboring numbers.

    Raises CompileError if it does not work on whole elements.
    """
    axes = [
        AccessLoop(n, tuple(a.steps.get(v, 0) for a in accesses), inside.get(v, (0, n)))
        for v, n in loops.items()
        if n != 1 or v in inside
    ]
    unit = 1
    while unit < lanes:
        wanted = (unit,) * len(accesses)
        found = next((a for a in axes if a.steps == wanted and not a.padded), None)
        width = lanes // unit
        if found is None or (width % found.extent and found.extent % width):
            raise _no_elements(accesses, lanes, where)
        axes.remove(found)
        if found.extent > width:
            n = found.extent // width
            axes.append(AccessLoop(n, tuple(s * width for s in found.steps), (0, n)))
        unit *= min(found.extent, width)
    moves = [s for a in axes for s in a.steps] + [a.first for a in accesses]
    if any(m % lanes for m in moves):
        raise _no_elements(accesses, lanes, where)
    axes = [replace(a, steps=tuple(s // lanes for s in a.steps)) for a in axes]
    return Tiles(tuple(a.first // lanes for a in accesses), _merged(axes))


def _no_elements(
    accesses: Sequence[LinearAccess], lanes: int, where: str
) -> CompileError:
    names = ", ".join(dict.fromkeys(a.buffer.name for a in accesses))
    return CompileError(
        f"the nest does not work on whole elements of {lanes} neighbors of {names}",
        code="TW-VTA-TILE",
        where=where,
        hint="let the innermost dimensions of all of them be those of a tile",
    )


def _merged(axes: Sequence[AccessLoop]) -> tuple[AccessLoop, ...]:
    """Axes from the largest step of the first access to the smallest, neighbors as one."""
    done: list[AccessLoop] = []
    for a in sorted(axes, key=lambda a: a.steps, reverse=True):
        outer = done[-1] if done else None
        if (
            outer is not None
            and not (outer.padded or a.padded)
            and all(o == i * a.extent for o, i in zip(outer.steps, a.steps))
        ):
            n = outer.extent * a.extent
            done[-1] = AccessLoop(n, a.steps, (0, n))
        else:
            done.append(a)
    return tuple(done)


def touched(first: int, moves: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """All elements that an access touches; moves: an extent and a step per axis."""
    return first + _offsets(tuple(m for m in moves if m[1]))


@lru_cache(maxsize=1024)
def _offsets(moves: tuple[tuple[int, int], ...]) -> NDArray[np.int64]:
    total = np.zeros(1, np.int64)
    for extent, step in moves:
        total = (total[:, None] + np.arange(extent) * step).reshape(-1)
    return np.unique(total)


def apart(first: int, moves: Sequence[tuple[int, int]]) -> bool:
    """Whether no two turns touch the same element."""
    return len(touched(first, moves)) == prod(extent for extent, _ in moves)
