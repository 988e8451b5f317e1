"""Substitutions: rules that can pay in either direction, for a search to choose from.

Unlike the rules of the passes, they are not applied until none matches, as many undo one another.
Operators that they apply to weights (a Concat, a Pad, a product of two weights) have only constant
operands and disappear when constants are folded; until then they count as free.
"""

from __future__ import annotations

from tilewright.graph.rules.rule import Rule
from tilewright.graph.rules.substitutions.convolutions import (
    CONVOLUTIONS,
)
from tilewright.graph.rules.substitutions.filters import (
    FILTERS,
)
from tilewright.graph.rules.substitutions.lookups import LOOKUPS
from tilewright.graph.rules.substitutions.merged_products import MERGED_PRODUCTS
from tilewright.graph.rules.substitutions.motion import (
    MOTION,
)
from tilewright.graph.rules.substitutions.products import (
    PRODUCTS,
)
from tilewright.graph.rules.substitutions.shapes import SHAPES
from tilewright.graph.rules.substitutions.slices import SLICES
from tilewright.graph.rules.substitutions.splits import SPLITS
from tilewright.graph.rules.substitutions.strength import (
    STRENGTH,
)
from tilewright.graph.rules.substitutions.sums import SUMS

SUBSTITUTIONS: tuple[Rule, ...] = (
    *SUMS,
    *STRENGTH,
    *PRODUCTS,
    *MERGED_PRODUCTS,
    *MOTION,
    *SPLITS,
    *SLICES,
    *SHAPES,
    *LOOKUPS,
    *CONVOLUTIONS,
    *FILTERS,
)
"""All of them, in the order in which a search tries them."""
