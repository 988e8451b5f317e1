"""Copies of boxes between DRAM and the chip as LOAD and STORE instructions of rectangles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import CompileError
from tilewright.targets.vta.commands import Commands
from tilewright.targets.vta.config import MemoryId
from tilewright.targets.vta.dram import DramBuffer
from tilewright.targets.vta.pieces import AccessLoop, Tiles

_ONE = AccessLoop(1, (0, 0), (0, 1))
MOST_PADS = 15  # the field has four bits


@dataclass(frozen=True, slots=True)
class _Rectangle:
    """Rows and columns; `chip`, `dram`: where they begin on both sides."""

    chip: int
    dram: int
    rows: AccessLoop
    columns: AccessLoop
    filled: bool  # of zeros alone


def load(
    c: Commands, memory: MemoryId, source: DramBuffer, box: Tiles, where: str
) -> None:
    """Load a box; its accesses are on the chip and in DRAM, and elements outside are zero.

    Raises CompileError for padding that the instruction does not support.
    """
    for r in _rectangles(box):
        _load(c, memory, source, r, where)


def _load(
    c: Commands, memory: MemoryId, source: DramBuffer, r: _Rectangle, where: str
) -> None:
    (top, bottom), (left, right) = r.rows.inside, r.columns.inside
    if r.filled or top >= bottom or left >= right:
        _fill(c, memory, source, r.chip, r.rows.extent * r.columns.extent)
        return
    pads = (top, r.rows.extent - bottom), (left, r.columns.extent - right)
    if max(pads[1]) > MOST_PADS:
        raise CompileError(
            f"{max(pads[1])} columns of padding, and a load does {MOST_PADS}",
            code="TW-VTA-PADDING",
            where=where,
        )
    above, below = (max(0, p - MOST_PADS) for p in pads[0])
    width = r.columns.extent
    _fill(c, memory, source, r.chip, above * width)
    _fill(c, memory, source, r.chip + (r.rows.extent - below) * width, below * width)
    c.load(
        memory,
        r.chip + above * width,
        source,
        r.dram + top * r.rows.steps[1] + left * r.columns.steps[1],
        (bottom - top, right - left),
        r.rows.steps[1] if bottom - top > 1 else right - left,
        ((pads[0][0] - above, pads[0][1] - below), pads[1]),
    )


def _fill(
    c: Commands, memory: MemoryId, source: DramBuffer, first: int, count: int
) -> None:
    """Zeros: a load of no rows, with one of padding above."""
    if count:
        c.load(memory, first, source, 0, (0, count), count, ((1, 0), (0, 0)))


def store(c: Commands, target: DramBuffer, box: Tiles) -> None:
    """Store a box; its accesses are the chip's and DRAM's."""
    for r in _rectangles(box):
        if r.rows.extent > 1:
            step = r.rows.steps[1]
        else:
            step = r.columns.extent
        c.store(r.chip, target, r.dram, (r.rows.extent, r.columns.extent), step)


def _rectangles(box: Tiles) -> Iterator[_Rectangle]:
    """The box in rectangles that are without gaps on the chip."""
    axes = list(box.axes)
    columns = _taken(axes, 1, lambda a: a.steps[1] == 1)
    rows = _taken(axes, columns.extent, lambda a: a.steps[1] >= 0)
    chip, dram = box.firsts
    for turns in product(*(range(a.extent) for a in axes)):
        moved = [
            sum(a.steps[side] * n for a, n in zip(axes, turns, strict=True))
            for side in (0, 1)
        ]
        filled = any(
            not a.inside[0] <= n < a.inside[1] for a, n in zip(axes, turns, strict=True)
        )
        yield _Rectangle(
            chip=chip + moved[0],
            dram=dram + moved[1],
            rows=rows,
            columns=columns,
            filled=filled,
        )


def _taken(
    axes: list[AccessLoop], step: int, able: Callable[[AccessLoop], bool]
) -> AccessLoop:
    """The axis that moves so on the chip, out of the list; else one of a single turn."""
    for a in axes:
        if a.steps[0] == step and able(a):
            axes.remove(a)
            return a
    return _ONE
