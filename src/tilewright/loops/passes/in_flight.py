"""What goes on beside the threads of a block until these wait for it.

    copies      what an `async` loop writes is in shared memory later
    products    a unit beside the threads still reads its factors and adds to its accumulators

Each thread ends a group of what it has started by a `Commit`, and `Wait`s for all groups but the
latest ones; where, follows from the dependences (`barriers.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tilewright.expr.nodes import Buffer
from tilewright.loops.analysis.access import Access
from tilewright.loops.nodes import ASYNC, For, Stmt, Unit
from tilewright.loops.passes.warp_units import warp_units
from tilewright.loops.walk import StatementPlace

COPIES: Final = "copies"
PRODUCTS: Final = "products"
FLIGHTS: Final = (COPIES, PRODUCTS)
COMMITTED: Final = (PRODUCTS,)  # of which a wait knows those in ended groups only


def runs_beside(s: Stmt) -> bool:
    """Whether threads go on while a unit runs."""
    if not isinstance(s, Unit) or s.intrinsic is None:
        return False
    return s.intrinsic.intrinsic.by_proxy and s.intrinsic.part != "reset"


def flight(a: Access) -> str:
    """As what an access goes on when its thread does; empty if it is over then."""
    found = flight_of(a.place)
    return found if a.writes or found != COPIES else ""


def flight_of(at: StatementPlace) -> str:
    """As what a statement goes on when its thread does."""
    around = (*at.above, at.stmt)
    if any(isinstance(s, For) and s.kind == ASYNC for s in around):
        return COPIES
    return PRODUCTS if any(map(runs_beside, around)) else ""


def accumulators(units: Iterable[Unit]) -> frozenset[Buffer]:
    """What units beside the threads add to."""
    return frozenset(s.operands[-1].buffer for s in units if runs_beside(s))


def accumulators_of(body: Stmt) -> frozenset[Buffer]:
    """Those of the units in a program of a thread."""
    return accumulators(warp_units(body))
