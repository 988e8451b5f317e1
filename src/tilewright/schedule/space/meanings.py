"""What the parameters of sketches mean: one table, by the form of their names.

A form has its own words and, in angle brackets, names of the kernel: of a loop, a buffer or a
Computation. A name is of the first form that it fits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from tilewright.base.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ChoiceMeaning:
    """form: the pattern of the names. text: the meaning of a value. values: the possible ones.
    where: the sketches that make this choice."""

    form: str
    text: str
    values: str
    where: str

    @property
    def row(self) -> str:
        """The row of a table in Markdown."""
        return f"| `{self.form}` | {self.text} | {self.values} | {self.where} |"


YES_NO = "yes, no"
ALL = "all"
PARTS = "sequences"
MEANINGS: Sequence[ChoiceMeaning] = (
    ChoiceMeaning(
        "pack.<buffer>.tiles",
        "whether such a copy is transposed in registers",
        YES_NO,
        "tiled",
    ),
    ChoiceMeaning(
        "pack.<buffer>.strip",
        "the rows of a strip of it",
        "64, 256, 1024",
        "tiled",
    ),
    ChoiceMeaning(
        "pack.<buffer>",
        "whether an operand is copied in the order in which it is read",
        YES_NO,
        "tiled, blocked, attention, streaming_attention",
    ),
    ChoiceMeaning(
        "convert.<buffer>.tiles",
        "whether a copy that converts is transposed in registers",
        YES_NO,
        "tiled, attention",
    ),
    ChoiceMeaning(
        "convert.<buffer>.made",
        "whether the kernel writes an operand of 16 bits as its reads convert it (`convert`)",
        YES_NO,
        "tiled, attention, streaming_attention",
    ),
    ChoiceMeaning(
        "convert.<buffer>",
        "whether rows of 16 bits are copied as their reads convert them",
        YES_NO,
        "tiled, attention",
    ),
    ChoiceMeaning(
        "pad.<buffer>",
        "whether an input is copied with its padding (`cache_read`)",
        YES_NO,
        "tiled",
    ),
    ChoiceMeaning(
        "turn.<buffer>",
        "whether an operand that windows share is copied with the vectors' axis last",
        YES_NO,
        "tiled",
    ),
    ChoiceMeaning(
        "turn.<buffer>.rows",
        "the rows of results per block of such a copy; 0: it is made whole",
        "rows",
        "tiled",
    ),
    ChoiceMeaning(
        "inline.<buffer>",
        "whether a map is recomputed wherever it is read",
        YES_NO,
        PARTS,
    ),
    ChoiceMeaning(
        "at.<buffer>",
        "the loop over blocks in which a part is computed",
        "root, loops",
        PARTS,
    ),
    ChoiceMeaning(
        "slide.<buffer>",
        "the loop over inner blocks along which a map reuses what earlier "
        "blocks computed",
        "none, loops",
        PARTS,
    ),
    ChoiceMeaning(
        "stage.<buffer>.<loop>",
        "whether the part of an input that a block reads is copied first "
        "(`cache_read`)",
        YES_NO,
        PARTS,
    ),
    ChoiceMeaning(
        "stream.<buffer>",
        "whether a result is stored past the caches (`annotate`)",
        YES_NO,
        ALL,
    ),
    ChoiceMeaning(
        "fuse.<last>.<dim>.inner",
        "the block size inside that block",
        "divisors",
        PARTS,
    ),
    ChoiceMeaning(
        "fuse.<last>.<dim>",
        "the block size along a dimension; the whole extent means no blocks",
        "2^n, 3 * 2^n, all",
        PARTS,
    ),
    ChoiceMeaning(
        "<buffer>.in_place",
        "whether an intermediate row uses the memory of the result (`store_with`)",
        YES_NO,
        "rows, attention, streaming_attention",
    ),
    ChoiceMeaning(
        "<last>.parallel",
        "whether the outer loops run in parallel; `<loop>.parallel` of a "
        "kernel that an operator supplies",
        YES_NO,
        ALL,
    ),
    ChoiceMeaning(
        "<last>.shared",
        "how many of these loops threads share",
        "1 to all",
        ALL,
    ),
    ChoiceMeaning(
        "<reduction>.unroll",
        "the steps of the innermost loop that are written out; "
        "`<loop>.unroll` of `kernel`",
        "divisors up to 8",
        ALL,
    ),
    ChoiceMeaning(
        "<computation>.vectors",
        "the number of vectors in flight; for a reduction, of partial results "
        "(`rfactor`)",
        "1 to 8",
        "map, rows, columns, joint, scan, plain, kernel",
    ),
    ChoiceMeaning(
        "<computation>.prefetch",
        "how many bytes ahead of its loads a vector loop fetches (`annotate`)",
        "0, 256 to 4096",
        "tiled, map, rows",
    ),
    ChoiceMeaning(
        "<map>.inner",
        "the dimension of the vectors",
        "dimensions",
        "map",
    ),
    ChoiceMeaning(
        "<map>.chunk",
        "the vectors of a part of a single loop that a thread takes",
        "8 to 256",
        "map",
    ),
    ChoiceMeaning(
        "<map>.tiles",
        "whether strided reads are transposed in registers",
        YES_NO,
        "map",
    ),
    ChoiceMeaning(
        "<map>.strip",
        "the rows of a strip of such tiles",
        "64, 256, 1024",
        "map",
    ),
    ChoiceMeaning(
        "<reduction>.parts",
        "the number of partial results computed in parallel (`rfactor`)",
        "divisors",
        "rows (totals), columns, streaming_attention",
    ),
    ChoiceMeaning(
        "<reduction>.keys",
        "the number of interleaved keys, each a separate row (`vthread`)",
        "1, 2, 4, 8",
        "streaming_attention",
    ),
    ChoiceMeaning(
        "<computation>.joins",
        "whether it shares the loop of the previous pass over a row (`merge`)",
        YES_NO,
        "rows, attention, streaming_attention",
    ),
    ChoiceMeaning(
        "<computation>.rows",
        "the number of interleaved rows (`vthread`); of a block; of a "
        "register tile of `kernel`",
        "1 to all",
        "rows, attention, streaming_attention, winograd, scan, kernel",
    ),
    ChoiceMeaning(
        "<reduction>.intrinsic",
        "the tensor intrinsic to use (`tensorize`)",
        "none, names",
        "tiled",
    ),
    ChoiceMeaning(
        "<reduction>.vector",
        "the dimension that is vectorized",
        "dimensions",
        "tiled",
    ),
    ChoiceMeaning(
        "<reduction>.tile",
        "rows by dimension and vectors of the register tile",
        "that fit the registers",
        "tiled, blocked, winograd, windows",
    ),
    ChoiceMeaning(
        "<reduction>.block_tile",
        "the same, inside a block",
        "that fit the registers",
        "attention, streaming_attention",
    ),
    ChoiceMeaning(
        "<reduction>.lanes",
        "the lanes of these vectors",
        "all, a half, a quarter",
        "tiled, blocked, kernel",
    ),
    ChoiceMeaning(
        "<reduction>.order",
        "the order of the reduction loops",
        "permutations",
        "tiled, blocked",
    ),
    ChoiceMeaning(
        "<reduction>.interleaved",
        "whether a tile visits all elements of a batch whose results share "
        "cache lines (shuffled channels)",
        YES_NO,
        "tiled",
    ),
    ChoiceMeaning(
        "<reduction>.in_order",
        "whether tiles are made in the order of the result's memory",
        YES_NO,
        "tiled",
    ),
    ChoiceMeaning(
        "<reduction>.within",
        "whether a batch within rows is visited for each step of the rows",
        YES_NO,
        "tiled",
    ),
    ChoiceMeaning(
        "<reduction>.block",
        "the number of row tiles per panel of columns; rows of a block of windows",
        "divisors; 1 to all",
        "tiled, windows",
    ),
    ChoiceMeaning(
        "<reduction>.columns",
        "the number of column tiles in a panel",
        "divisors",
        "tiled",
    ),
    ChoiceMeaning(
        "<reduction>.apart",
        "whether parts of a batch have separate padded copies; tiles at "
        "edges separate loops",
        YES_NO,
        "tiled, winograd",
    ),
    ChoiceMeaning(
        "<reduction>.panels",
        "whether all rows of a block are visited per panel of columns",
        YES_NO,
        "blocked, attention, streaming_attention, sized",
    ),
    ChoiceMeaning(
        "<reduction>.panel",
        "the vectors of a panel of channels",
        "of whole vectors 1 to 4, or all if none but 1 divides them; else any that divide the "
        "channels",
        "winograd",
    ),
    ChoiceMeaning(
        "<reduction>.depth",
        "the steps of the reduction before the next tile of the block",
        "divisors",
        "blocked",
    ),
    ChoiceMeaning(
        "<reduction>.block_rows",
        "the tiles of a block along the rows",
        "1 to 32",
        "blocked",
    ),
    ChoiceMeaning(
        "<reduction>.block_columns",
        "the tiles of a block along the columns",
        "1 to 32",
        "blocked",
    ),
    ChoiceMeaning(
        "<reduction>.height",
        "the rows of the first windows that are in registers at a time",
        "2 to 8",
        "windows",
    ),
    ChoiceMeaning(
        "<inputs>.at",
        "where the inputs are transformed: for each block, or all before",
        "block, root",
        "winograd",
    ),
    ChoiceMeaning(
        "<computation>.points",
        "whether the points of a tile are adjacent (`transform_layout`)",
        YES_NO,
        "winograd",
    ),
)
HEADER = "| parameter | choice | values | sketches |\n|---|---|---|---|"


@cache
def _pattern(form: str) -> re.Pattern[str]:
    words = re.split(r"<\w+>", form)
    return re.compile(r"\S+".join(map(re.escape, words)))


@cache
def meaning(name: str) -> ChoiceMeaning | None:
    """The first row whose form the name has; None for a parameter of some other space."""
    return next((m for m in MEANINGS if _pattern(m.form).fullmatch(name)), None)


def page() -> str:
    """The table in Markdown."""
    return "\n".join([HEADER, *(m.row for m in MEANINGS)])
