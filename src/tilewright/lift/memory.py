"""The on-chip values of an accelerator while a program runs, and which values leave the chip."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.errors import InputError
from tilewright.lift.lengths import evaluate
from tilewright.lift.nodes import (
    AnyMap,
    AnyReduce,
    AnyScan,
    Apply,
    AsScalar,
    AsVector,
    Compose,
    Concat,
    DeviceOp,
    Drop,
    Filter,
    Fun,
    Gather,
    Get,
    Iterate,
    Join,
    Lambda,
    PartRed,
    Scatter,
    Slide,
    Split,
    Take,
    Term,
    To,
    Transpose,
    Tuple,
    Unzip,
    Zip,
)
from tilewright.lift.sites import Site, root_site
from tilewright.lift.types import Array, Scalar, TupleType, Type, Vector

# Patterns that say where values are read, and compute nothing.
MOVES: tuple[type[Fun], ...] = (
    AsScalar, AsVector, Concat, Drop, Filter, Gather, Get, Join, Scatter, Slide, Split, Take,
    Transpose, Unzip, Zip,
)  # fmt: skip


def nbytes(t: Type) -> int:
    """The size of a value. Raises InputError if its lengths are not numbers."""
    match t:
        case Scalar(dtype):
            return dtype.bits // 8
        case Vector(dtype, width):
            return dtype.bits // 8 * width
        case TupleType(items):
            return sum(map(nbytes, items))
        case Array(item, n):
            return evaluate(n, {}) * nbytes(item)
    raise InputError(
        f"{t!r} has no size",
        where="memory",
        hint="specialize the program first: every length a number",
    )


def resident(program: Fun, space: str = "chip") -> int:
    """The most bytes that are in the space at once: every value until it has been used.

    A function that is applied again and again uses the same memory each time.
    """
    return _peak(root_site(program), space)[0]


def _peak(at: Site, space: str) -> tuple[int, int]:
    """The most bytes while the part is evaluated or applied, and those that its result keeps.

    A map is run where its result is read, element by element, and so keeps one element.
    """
    known, key = at.scope.peaks, (at.node, at.args, space)
    if key not in known:
        known[key] = _found_peak(at, space)
    return known[key]


def _found_peak(at: Site, space: str) -> tuple[int, int]:
    node = at.node
    below = at.iterations if isinstance(node, Iterate) else at.children
    match node:
        case To():
            assert at.args is not None
            inner, _ = _peak(below[0], space)
            if node.space == space:
                own = nbytes(at.result_of(node, at.args))
            else:
                own = 0
            return inner + own, own
        case Apply():
            most, held = _together(below[1:], space)
            inner, kept = _peak(below[0], space)
            # What these read is free once they are done; others are views of their operands.
            done = isinstance(node.fun, To | DeviceOp | AnyReduce | AnyScan | PartRed)
            peak = max(most, held + inner)
            return peak, kept if done else held + kept
        case Tuple():
            return _together(below, space)
        case AnyReduce() | AnyScan() | PartRed():
            peaks = [_peak(child, space)[0] for child in below]
            return max(peaks, default=0), 0
    if not below:
        return 0, 0
    found = [_peak(child, space) for child in below]
    _, last_kept = found[-1]
    return max(peak for peak, _ in found), last_kept


def _together(sites: Sequence[Site], space: str) -> tuple[int, int]:
    """Values made one after the other and kept: the most bytes meanwhile, and in the end."""
    most = held = 0
    for at in sites:
        peak, kept = _peak(at, space)
        most = max(most, held + peak)
        held = held + kept
    return most, held


def moves_only(f: Fun) -> bool:
    """Whether a function only says where values are read."""
    match f:
        case AnyMap(g):
            return moves_only(g)
        case Compose(funs):
            return all(map(moves_only, funs))
        case Lambda(params, body):
            return _moved(body, frozenset(params))
    return isinstance(f, MOVES)


def _moved(term: Term, params: frozenset[Term]) -> bool:
    match term:
        case Apply(f, args):
            return moves_only(f) and all(_moved(a, params) for a in args)
        case Tuple(items):
            return all(_moved(i, params) for i in items)
    return term in params


def space_of_result(f: Fun) -> str | None:
    """The address space that the elements of a function's result are written in, if it says so."""
    match f:
        case To(space, _):
            return space
        case AnyMap(g):
            return space_of_result(g)
        case Compose(funs):
            writing = [g for g in funs if not moves_only(g)]
            return space_of_result(writing[-1]) if writing else None
        case Lambda(_, body):
            while isinstance(body, Apply) and moves_only(body.fun):
                body = body.args[0]
            return space_of_result(body.fun) if isinstance(body, Apply) else None
    return None


def is_result(at: Site) -> bool:
    """Whether the value at a site is the program's result, or a part of it."""
    for n in range(len(at.above) - 1, -1, -1):
        node = at.above[n]
        step = at.path[n]
        match node:
            case Apply(f, _) if step > 0 and not moves_only(f):
                return False
            case Apply() | Lambda() | AnyMap() | To() | Tuple() | Compose():
                continue
            case _:
                return False
    return True
