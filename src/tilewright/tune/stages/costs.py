"""The constants of the price of a program's stages: cycles of one core.

They were set on a Zen 4 (AVX-512) by `python -m benchmarks.autoschedulers`: its apps under the
schedules of this search, and those of `benchmarks.halide_apps` by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.tune.features.facts import USUAL, Facts

# Vector instructions that one operation takes, by its node or function; others take one.
OPERATIONS: Final[Mapping[str, float]] = MappingProxyType(
    {
        "Const": 0.0,
        "Var": 0.0,
        "Bitcast": 0.0,
        "Select": 1.0,
        "Cast": 1.0,
        "Div": 8.0,
        "sqrt": 8.0,
        "exp": 16.0,
        "log": 20.0,
        "pow": 40.0,
        "sin": 20.0,
        "cos": 20.0,
        "tan": 40.0,
        "tanh": 30.0,
        "erf": 30.0,
    }
)


@dataclass(frozen=True, slots=True)
class StageCosts:
    """The constants, for one processor.

    Operations: vector instructions that are issued per cycle; those of a whole division by a
    number (divided) and by anything else (whole_division); cycles of a scalar one.
    Loads: vectors that are loaded per cycle; unaligned: times as long as where a vector begins a
    line; spread: instructions more for each element between lanes, of which there are at most as
    many as are shuffled; cycles of a lane that a gather or scatter moves, and of one (far_lane)
    that data choose among planes of memory.
    Loops: cycles to start a row of vectors; idle: of a vector that is not computed, because an
    earlier row needed it.
    Registers: share of them that is for vectors that a tile reads again; written: operations of a
    tile, at most, whose values stay there.
    Memory: share of a cache that is near, for what is read again; second: share of the rate at
    which a core reads from the second cache (`Facts.l2_bytes`) that is left where it also writes;
    memory: bytes per cycle from and to memory, and at least from and to the third cache
    (`Facts.l3_bytes`), where so many streams of rows are read and written at a time, and slow: the
    share of that rate for a single one; exposed: share of the shorter of computing and moving that
    the other does not hide.
    """

    facts: Facts = USUAL
    issued: float = 1.2
    loaded: float = 1.0
    unaligned: float = 2.0
    divided: float = 3.0
    whole_division: float = 30.0
    scalar: float = 0.5
    lane: float = 0.8
    far_lane: float = 2.5
    spread: float = 1.0
    shuffled: float = 4.0
    start: float = 12.0
    idle: float = 1.0
    near: float = 0.6
    registers: float = 0.6
    written: float = 160.0
    second: float = 0.625
    streams: int = 6
    slow: float = 0.5
    memory: float = 9.5
    exposed: float = 0.3

    @property
    def kept(self) -> int:
        """The vectors that a tile loads and keeps in registers, at most."""
        return int(self.facts.registers * self.registers)

    def bytes_per_cycle(self, size: float, streams: int = 1) -> float:
        """How fast one core reads data of that size again, so many rows of them at a time."""
        facts = self.facts
        if size <= facts.l1 * self.near:
            return float("inf")  # a load's own cycles are all
        if size <= facts.l2 * self.near:
            return facts.l2_bytes * self.second
        full = min(
            1.0, self.slow + (1 - self.slow) * (streams - 1) / (self.streams - 1)
        )
        if size <= facts.l3 * self.near:
            return max(facts.l3_bytes, self.memory) * full
        return self.memory * full
