"""The columns of the set `fast`: sums over all statements, and the tile of the heaviest one.

The fields of two classes, in the order of the columns, each with its unit and description.
"""

from __future__ import annotations

from dataclasses import field, fields
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.tune.features.base import LOG, Column

LEVELS = 6  # loops around the tile with separate columns
SHARE = "ratio"


def _log(doc: str) -> Any:
    return field(default=0.0, metadata={"unit": LOG, "doc": doc})


def _ratio(doc: str) -> Any:
    return field(default=0.0, metadata={"unit": SHARE, "doc": doc})


@dataclass(slots=True)
class StatementTotals:
    """Sums over the statements of a nest or a kernel."""

    executions: float = _log("executions of all statements")
    multiply_adds: float = _log("multiply-adds of all executions")
    simple: float = _log(
        "other additions, products, comparisons, selections, bit operations"
    )
    divisions: float = _log("divisions and remainders")
    functions: float = _log("calls of functions such as exp")
    conversions: float = _log("casts between dtypes")
    instructions: float = _log(
        "arithmetic in vector instructions; a scalar operation counts as one"
    )
    scalar: float = _log("executions outside vector loops")
    vector_loads: float = _log("loads of consecutive elements into a register")
    broadcasts: float = _log("loads of one element into all lanes, and scalar loads")
    gathers: float = _log("elements loaded into a vector one by one")
    stores: float = _log("vectors stored; elements if lanes are not consecutive")
    copies: float = _log("statements in the code, with loops unrolled")
    control: float = _log(
        "iterations of loops that are neither unrolled nor vectorized"
    )
    conditions: float = _log("conditions around executions")
    regions: float = _log("starts of parallel loops")
    parallel: float = _log("executions inside parallel loops")
    from_l2: float = _log("bytes into the first cache")
    from_l3: float = _log("bytes into the second cache")
    from_memory: float = _log("bytes into the last cache")
    issue_cycles: float = _log("cycles of one core until all arithmetic has issued")
    load_cycles: float = _log("cycles of one core until all loads have issued")
    memory_cycles: float = _log("cycles of one core until all bytes have moved")
    least_cycles: float = _log(
        "cycles on all cores: of the slowest resource, with tasks shared"
    )
    register_bytes: float = _log("bytes of buffers in registers")
    stack_bytes: float = _log("bytes of buffers on the stack")
    other_bytes: float = _log("bytes of buffers allocated elsewhere")


@dataclass(slots=True)
class TileColumns:
    """The heaviest statement, and the loops inside its innermost serial loop.

    weight: its arithmetic and loads over all executions, which make it the heaviest. sizes: columns
    `trips_1` and so on, of the loops around the tile, innermost first, then `bytes_0` and so on.
    """

    weight: float
    width: float = _log("trips of its vector loops")
    unrolled: float = _log("trips of the unrolled loops in the tile")
    accumulators: float = _log("registers that hold the tile's results")
    steps: float = _log("trips of loops that reduce into the same elements")
    tasks: float = _log("trips of parallel loops around it")
    task_work: float = _log("executions per task")
    lanes_used: float = _ratio("useful lanes, relative to those of its registers")
    vector_loads_per: float = _ratio("vector loads per arithmetic instruction")
    broadcasts_per: float = _ratio("loads of one element per arithmetic instruction")
    gathers_per: float = _ratio("gathered elements per arithmetic instruction")
    pressure: float = _ratio("registers that the tile needs, relative to all")
    overlap: float = _ratio(
        "accumulators, relative to those that hide the latency; at most 1"
    )
    balance: float = _ratio("average work per thread, relative to the busiest")
    in_l1: float = _ratio("share of the loops around the tile whose data l1 holds")
    in_l2: float = _ratio("the same for the second cache")
    in_l3: float = _ratio("the same for the last cache")
    share: float = _ratio("its share of the weight of all statements")
    sizes: tuple[float, ...] = ()


def _columns(of: type, unit: str, prefix: str = "") -> list[Column]:
    found = []
    for f in fields(of):
        if f.metadata.get("unit") == unit:
            found.append(Column(prefix + f.name, unit, f.metadata["doc"]))
    return found


_AROUND = [
    Column(f"trips_{n}", LOG, f"trips of loop {n} around the tile, outwards")
    for n in range(1, LEVELS + 1)
]
_HELD = [
    Column(f"bytes_{n}", LOG, f"bytes touched inside loop {n}; by the tile for 0")
    for n in range(LEVELS + 1)
]
_WHOLE = [
    Column("parameter_bytes", LOG, "bytes of all parameters"),
    Column("loops", LOG, "loops"),
    Column("statements", LOG, "statements"),
    Column("prefetches", LOG, "loops that prefetch"),
    Column("streams", LOG, "loops that store bypassing the caches"),
]
# Sums divided by all executions: independent of the sizes of tensors.
RATES = {
    "issue_cycles": "cycles",
    "load_cycles": "cycles",
    "memory_cycles": "cycles",
    "least_cycles": "cycles",
    "from_l2": "bytes",
    "from_l3": "bytes",
    "from_memory": "bytes",
    "stores": "stores",
    "control": "iterations",
}
_RATES = [
    Column(f"{name}_per", f"{unit} per execution", f"`{name}` divided by `executions`")
    for name, unit in RATES.items()
]
# Columns in logarithms come first.
LOGS = (
    *_columns(StatementTotals, LOG),
    *_columns(TileColumns, LOG, "tile_"),
    *_AROUND,
    *_HELD,
    *_WHOLE,
)
COLUMNS = (*LOGS, *_columns(TileColumns, SHARE, "tile_"), *_RATES)
