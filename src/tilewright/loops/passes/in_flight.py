"""What goes on beside the threads of a block until these wait for it.

    copies      what an `async` loop writes is in shared memory later
    bulk        so is what a `bulk` loop of one thread writes; it is there for all threads of the
                block that wait, without a barrier; what a `multicast` loop writes, for those of
                the cluster
    products    a unit beside the threads still reads its factors and adds to its accumulators

Each thread ends a group of what it has started by a `Commit`, and `Wait`s for all groups but the
latest ones; where, follows from the dependences (`barriers.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tilewright.expr.nodes import Buffer
from tilewright.loops.analysis.access import Access
from tilewright.loops.nodes import ASYNC, BULK, MULTICAST, For, Stmt, Unit
from tilewright.loops.passes.warp_units import warp_units
from tilewright.loops.walk import StatementPlace

COPIES: Final = "copies"
BOXES: Final = "bulk"
PRODUCTS: Final = "products"
FLIGHTS: Final = (COPIES, BOXES, PRODUCTS)
COMMITTED: Final = (BOXES, PRODUCTS)  # of which a wait knows those in ended groups only
_KINDS: Final = {ASYNC: COPIES, BULK: BOXES, MULTICAST: BOXES}


def runs_beside(s: Stmt) -> bool:
    """Whether threads go on while a unit runs."""
    if not isinstance(s, Unit) or s.intrinsic is None:
        return False
    return s.intrinsic.intrinsic.by_proxy and s.intrinsic.part != "reset"


def flight(a: Access) -> str:
    """As what an access goes on when its thread does; empty if it is over then."""
    found = flight_of(a.place)
    return found if a.writes or found == PRODUCTS else ""


def flight_of(at: StatementPlace) -> str:
    """As what a statement goes on when its thread does."""
    around = (*at.above, at.stmt)
    for s in around:
        if isinstance(s, For) and s.kind in _KINDS:
            return _KINDS[s.kind]
    return PRODUCTS if any(map(runs_beside, around)) else ""


def is_multicast(a: Access) -> bool:
    """Whether an access writes the memory of all blocks of a cluster."""
    around = (*a.place.above, a.place.stmt)
    return a.writes and any(isinstance(s, For) and s.kind == MULTICAST for s in around)


def accumulators(units: Iterable[Unit]) -> frozenset[Buffer]:
    """What units beside the threads add to."""
    return frozenset(s.operands[-1].buffer for s in units if runs_beside(s))


def accumulators_of(body: Stmt) -> frozenset[Buffer]:
    """Those of the units in a program of a thread."""
    return accumulators(warp_units(body))
