"""Features of a Kernel, extracted before code generation: the input of cost models.

    Fast(facts).extract_all(kernels)      # our own, thousands of kernels per second
    PerStore().extract(kernel)            # Ansor's: a row per stored tensor
    LoopContext(), Relation()             # AutoTVM's
    Halide(facts)                         # of the schedule and of the pipeline
    Flattened.fit(candidates)             # only the values of the parameters

docs/tuning-features.md lists every column with its unit.
"""

from tilewright.tune.features.autotvm import LoopContext, RelationRow
from tilewright.tune.features.base import Column, FeatureSet, Matrix, names
from tilewright.tune.features.configuration import Flattened, WithoutLoops
from tilewright.tune.features.facts import USUAL, Facts
from tilewright.tune.features.fast import ExtraColumn, Fast
from tilewright.tune.features.halide import Halide
from tilewright.tune.features.per_store import PerStore


def feature_sets(facts: Facts = USUAL) -> tuple[FeatureSet, ...]:
    """One instance of each set that reads a Kernel, for a machine."""
    return (
        Fast(facts),
        PerStore(),
        LoopContext(),
        RelationRow(),
        Halide(facts),
        WithoutLoops(),
    )


__all__ = [
    "Column",
    "Facts",
    "Fast",
    "FeatureSet",
    "Flattened",
    "Halide",
    "LoopContext",
    "Matrix",
    "PerStore",
    "RelationRow",
    "ExtraColumn",
    "WithoutLoops",
    "feature_sets",
    "names",
]
