"""The constants of cost of single kinds of kernels and of single rewrites of a plan.

Those of what every kernel does (threads, caches, register tiles) are in `cost.py`, whose
`CostModel` has these too and lists all of them.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, Final

from tilewright.base.dataclass import dataclass

RANGES: Final = "python -m benchmarks.shape_range"
PREDICTIONS: Final = "python -m benchmarks.predictions"


def constant(value: float, unit: str, meaning: str, source: str = "") -> Any:
    """A field that is a constant of cost: its default, its unit, what it means, and the command
    that measures it or shows its effect (by default the sweep over its values)."""
    return field(
        default=value, metadata={"unit": unit, "meaning": meaning, "source": source}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCosts:
    """Constants that one kind of kernel, or one rewrite, is decided by; in cycles of one core."""

    # Padding: a window's elements are read under guards, or from a copy that needs none.
    guarded_taps: int = constant(
        9, "elements", "of a window, at most, that are read under guards"
    )
    guarded_reads: float = constant(
        4.0, "vectors", "that are read under guards in the time of one of a copy"
    )
    masked_reads: float = constant(
        9.0, "vectors", "that are, where masks have registers of their own"
    )

    # Copies, transpositions, sums, rows.
    in_flight: int = constant(
        4, "vectors", "in loops without reuse: enough to hide a load's latency"
    )
    function: int = constant(
        10, "operations", "on vectors, of a division or a function", PREDICTIONS
    )
    crossed: float = constant(
        0.6,
        "cycles",
        "an element that is read or written across the order of vectors",
        PREDICTIONS,
    )
    cheap_calls: int = constant(
        2, "functions and divisions", "of a map that waits for memory, at most"
    )
    panel_uses: int = constant(
        64, "uses", "of a panel of columns that is worth copying first"
    )
    useful: float = constant(
        0.5, "of the depth", "of a product of tiles that must be needed"
    )
    recomputed: float = constant(
        1.1, "times the work", "that is allowed where neighboring blocks need the same"
    )
    new_line: float = constant(
        0.9, "cycles", "a line of a vector's lanes that was not read just before"
    )
    apart_load: float = constant(
        0.5, "cycles", "a lane that is loaded by itself, without its line"
    )
    apart_store: float = constant(1.0, "cycles", "a lane that is stored by itself")
    ahead: int = constant(
        64,
        "lines",
        "that loads and stores fetch ahead: if fewer fit the first cache, they are lost again",
    )
    far_load: float = constant(
        2.7,
        "cycles",
        "a lane of a vector that is read where its lanes displace one another",
    )
    far_store: float = constant(8.0, "cycles", "a lane of one that is written so")
    turned: float = constant(
        1.2, "times the speed", "is expected before vectors leave the last dimension"
    )
    few_across: int = constant(
        4, "elements", "side by side that vectors are read out of, and not transposed"
    )
    transpose_side: int = constant(
        16, "elements", "of a side of a transposed tile: whole lines of four-byte ones"
    )
    strip_rows: int = constant(
        256, "rows", "that are transposed before the next columns"
    )
    long_sum: int = constant(
        32, "terms", "of a sum down columns whose rows go by in order, at least"
    )
    short_row: int = constant(
        256, "elements", "of a row whose reductions' ends take as long as the rest"
    )
    chained_row: int = constant(
        896, "elements", "of a row whose reductions wait for one another, likewise"
    )
    many_rows: int = constant(
        16, "rows", "that justify longer code, or a separate part, at least"
    )
    row_blocks: int = constant(
        4, "blocks of vectors", "of a row that is worth several in flight, at least"
    )

    # What hardware does by itself; a Zen 5 gains by more.
    fetched: int = constant(
        64, "bytes", "ahead that rows of data beyond the second cache are fetched"
    )

    # Windows along one axis after another.
    window_rows: int = constant(4, "rows", "of the first reduction at a time")
    window_results: int = constant(8, "results", "of a tile along the windows, at most")
    window_vectors: int = constant(2, "vectors", "of a tile of windows, at most")
    window_registers: int = constant(3, "registers", "besides those of such a tile")
    window_around: int = constant(6, "operations", "around such a tile")
    window_load: int = constant(2, "operations", "for each vector that it loads")
    reread: int = constant(
        5, "operations", "a result that is stored and read off the lines' boundaries"
    )

    # Winograd's convolution.
    panel_vectors: int = constant(
        4, "vectors", "of a panel of whole ones, at most, unless it is all of them"
    )
    exposed_traffic: float = constant(
        0.5, "of the cycles", "of traffic that arithmetic does not hide"
    )
    cleared: float = constant(
        3, "cycles", "a vector of products: cleared, stored, and the loop"
    )
    kept_weights: int = constant(
        8 << 20,
        "bytes",
        "of weights, at most, that the last cache keeps for all blocks",
    )
    # Shows for small images, where a weight is used little. A transformed 3x3 filter has 16/9 as
    # many bytes. The default keeps the choices that were timed on a Zen 4.
    cold_byte: float = constant(
        1 / 32,
        "cycles",
        "a byte of weights that a core gets first, not hidden: other kernels displaced it",
    )
    winograd_gain: float = constant(
        0.85, "of the cycles", "of the direct convolution: at most so many must be left"
    )
    # A Zen 4 takes 0.9 to 2.6 ns to read a line that the other core made, and a Zen 5 16 ns to
    # exchange one of a block whose panels the cores share.
    exchanged: float = constant(
        0.05,
        "cycles",
        "a byte that a core made and all of them read, while second caches keep it",
    )

    # Rewrites of the plan.
    repeated: int = constant(
        4, "times", "that cheap arithmetic is done again rather than its result stored"
    )
    side_by_side: int = constant(
        16, "elements", "in memory, at least, of a tensor that lives in another"
    )
    # Copies of large images took a Zen 5 0.3 to 0.4 ns, and two cores as long as one in some runs.
    # Estimates of direct convolutions whose channels are first are up to half too high.
    moved_element_ns: float = constant(
        0.6,
        "ns",
        "an element of a tensor beyond the second cache, in a copy with channels last",
    )
    deep_sum: int = constant(
        256, "products", "of a part of a sum, at least: it is written and read again"
    )
    window_gain: float = constant(
        0.75,
        "of the time",
        "of a convolution with padding: at most so much is left by window position",
    )
    halo: float = constant(
        2.0, "times", "its size that a tensor may take with its border"
    )
    few_keys: int = constant(
        64, "keys", "of a block of attention, at least: its mean has exponentials too"
    )
    streamed_keys: int = constant(
        128,
        "keys",
        "of a block for few queries, at most: a block is read if one key counts",
    )
    few_queries: int = constant(
        16,
        "queries",
        "of a key, at most, that read it along its row and not from a copy",
    )
    few_vectors: int = constant(
        8, "vectors", "at most, for which a matrix that comes from memory is not copied"
    )
    vector_terms: int = constant(
        32,
        "terms",
        "of a row for each sum that ends with it, at least, where tiles need no copy",
    )
    key_block: int = constant(
        1024, "keys", "of a block of attention, at most: enough to pay for its mean"
    )
    mean_keys: int = constant(
        12, "keys", "that a block of attention takes besides its own, for its mean"
    )
    results: int = constant(
        4, "results", "of one map or reduction, at most: each is a stream of stores"
    )
    row_results: int = constant(
        12, "results", "over one row, at most, of the parts of one kernel"
    )
    long_row: int = constant(
        1 << 16,
        "elements",
        "of a row of such parts, at most: threads share a longer one",
    )

    # Ranges of shapes: units, such as the images of a batch, in kernels of fixed sizes.
    many_units: int = constant(
        64, "units", "of products at a time, at most: more gain nothing", RANGES
    )
    unit_gain: float = constant(
        1.1, "times the speed", "per unit that a kernel of more units needs", RANGES
    )
    few_units: int = constant(
        4,
        "units",
        "one by one, at least, as fast as many: else tiles are empty",
        RANGES,
    )
    row_step: int = constant(
        4, "times", "the rows of a block that the next larger one has", RANGES
    )
    many_positions: int = constant(
        64, "positions", "of an image at a time, at most: more gain nothing", RANGES
    )
    gathered: int = constant(
        1 << 20,
        "bytes",
        "that are gathered at a time, at most: a second cache of 1 MiB",
        RANGES,
    )
    block_gain: float = constant(
        1.03,
        "times the speed",
        "on average that a kernel of another number of positions needs",
        RANGES,
    )
