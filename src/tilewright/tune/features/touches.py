"""AutoTVM's touches: for each loop and each access below it, how often and how far it moves.

After Chen et al., Learning to Optimize Tensor Programs, NeurIPS 2018, and TVM's
`touch_extractor.cc`. For an access and a loop around it: `count` is the product of the trips of the
loops from this one inwards that move the access, `reuse` that of the loops that do not. The thread
counts of a parallel loop (on a GPU, of a block's or a thread's axis) are those of the loop divided
by those of the first loop inside it that is not parallel at that level.

TVM uses the last factor found as the stride; this uses the stride of the address.
"""

from __future__ import annotations

from tilewright.base.dataclass import dataclass
from tilewright.expr.nodes import Add, Div, Expr, FloorDiv, Mod, Mul, Rem, Sub
from tilewright.tune.features.program import FeatureLine, FeatureLoop, KernelNests
from tilewright.tune.features.regions import TensorAccess

_LEVELS = {"parallel": 1, **{f"threadIdx.{axis}": 1 for axis in "xyz"}}
_LEVELS |= {f"blockIdx.{axis}": 2 for axis in "xyz"}


def spread(kind: str) -> int:
    """The level that a kind of loop is parallel at: 2: blocks, 1: threads, 0: serial."""
    return _LEVELS.get(kind, 0)


@dataclass(slots=True)
class AccessPattern:
    """An access relative to a loop.

    stride: elements per iteration. mod: the modulus of its index; -1 for none.
    """

    stride: float
    mod: float = -1.0
    count: float = 1.0
    reuse: float = 1.0
    thread_count: float = 0.0
    thread_reuse: float = 0.0


@dataclass(slots=True, eq=False)
class LoopAccesses:
    """A loop with the accesses below it, and the operations of the statements directly in it.

    level: number of enclosing loops and itself. outside: their iterations. inside: iterations of
    the loops from this one inwards, along the longest path. patterns: one per access of each
    statement below, in a fixed order.
    """

    loop: FeatureLoop
    level: int
    outside: float
    inside: float
    additions: int
    products: int
    divisions: int
    patterns: list[AccessPattern]


_ADDED: tuple[type[Expr], ...] = (Add, Sub)
_DIVIDED: tuple[type[Expr], ...] = (Div, FloorDiv, Mod, Rem)


def around(found: KernelNests) -> list[LoopAccesses]:
    """All loops in program order."""
    loops: dict[int, LoopAccesses] = {}
    for f in found.loops:
        outer = 1.0 if f.outer is None else loops[id(f.outer)].outside
        made = LoopAccesses(f, f.depth + 1, outer * f.trips, -1.0, 0, 0, 0, [])
        loops[id(f)] = made
    for line in found.lines:
        own = [loops[id(f)] for f in line.loops]
        for access in touches(line):
            _add(access, own)
        if own:
            _count(line, own[-1])
    for made in loops.values():
        products = [p.count * p.reuse for p in made.patterns]
        made.inside = max(products, default=-1.0)
    return list(loops.values())


def touches(line: FeatureLine) -> list[TensorAccess]:
    """The accesses of a statement: writes, then the reads of updates, then other reads."""
    again = [a for a in line.accesses if a.writes and a.reads]
    return [*(a for a in line.accesses if a.writes), *again] + [
        a for a in line.accesses if not a.writes
    ]


def _add(access: TensorAccess, loops: list[LoopAccesses]) -> None:
    count = reuse = 1.0
    level, base = 0, (1.0, 1.0)
    for at in reversed(loops):
        f = at.loop
        stride = access.strides.get(f.depth, 0.0)
        moves = access.moves(f.depth)
        spread_ = spread(f.kind)
        if spread_ > level:
            base = (count, reuse)
        level = spread_
        if moves:
            count *= f.trips
        else:
            reuse *= f.trips
        pattern = AccessPattern(stride, _wraps(access, f.depth), count, reuse)
        if spread_:
            pattern.thread_count = count / base[0]
            pattern.thread_reuse = reuse / base[1]
        at.patterns.append(pattern)


def _wraps(access: TensorAccess, depth: int) -> float:
    limits = [at.limits[depth] for at in access.index if depth in at.limits]
    return min(limits) + 1 if limits else -1.0


def _count(line: FeatureLine, at: LoopAccesses) -> None:
    for (kind, dtype), n in line.operations.items():
        if not dtype.is_float:
            continue
        if kind in _ADDED:
            at.additions += n
        elif kind is Mul:
            at.products += n
        elif kind in _DIVIDED:
            at.divisions += n
