"""Halide's features of each stage: 39 of its schedule, then 40 by 7 of its computation.

After Adams et al., Learning to Optimize Halide with Tree Search and Random Programs, SIGGRAPH 2019:
`Featurization.h` and `LoopNest::compute_features`. Halide reads them from a pipeline during
scheduling; here they are read from the loops, so the regions required at the root are derived from
the loops of a stage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from tilewright.base.dataclass import dataclass
from tilewright.loops.nodes import Kernel
from tilewright.tune.features.base import Column, Matrix, Per, matrix
from tilewright.tune.features.facts import USUAL, Facts
from tilewright.tune.features.halide_columns import (
    PIPELINE_COLUMNS,
    SCHEDULE,
    SCHEDULE_COLUMNS,
)
from tilewright.tune.features.halide_pipeline import histogram
from tilewright.tune.features.program import UNIT, FeatureLoop, KernelNests, program
from tilewright.tune.features.regions import TensorAccess, TensorShape, TouchedTensor
from tilewright.tune.features.stages import FeatureStage, stages

TOGETHER = ("vector", UNIT)


@dataclass(frozen=True, slots=True)
class Halide:
    """See the module's docstring: 319 columns."""

    facts: Facts = USUAL
    name: ClassVar[str] = "halide"
    version: ClassVar[int] = 1
    per: ClassVar[Per] = "store"
    source: ClassVar[str] = "Adams et al. 2019; Halide's adams2019/Featurization.h"

    @property
    def columns(self) -> Sequence[Column]:
        """Those of the schedule, then those of the pipeline."""
        return (*SCHEDULE_COLUMNS, *PIPELINE_COLUMNS)

    def extract(self, kernel: Kernel) -> Matrix:
        """float32 [stages, 319], plain numbers: a model takes their logarithms."""
        found = program(kernel)
        all_stages = stages(found)
        inputs = frozenset(kernel.inputs)
        rows = []
        for stage in all_stages:
            schedule = _schedule(stage, found, self.facts)
            values = [schedule[name] for name in SCHEDULE]
            rows.append([*values, *histogram(stage, inputs)])
        return matrix(rows, len(self.columns))


def _schedule(
    stage: FeatureStage, found: KernelNests, facts: Facts
) -> dict[str, float]:
    row = dict.fromkeys(SCHEDULE, 0.0)
    row |= _points(stage)
    row |= _innermost(stage)
    row |= _results(stage)
    row |= _vectors(stage, facts)
    row |= _reads(stage)
    row |= _working_sets(stage, found)
    return row


def _points(stage: FeatureStage) -> dict[str, float]:
    lives, productions = stage.outside(stage.realized), stage.outside(stage.produced)
    kinds = [(f.depth, f.trips) for f in stage.main.loops if f.kind == "parallel"]
    return {
        "num_realizations": lives,
        "num_productions": productions,
        "points_computed_per_realization": stage.executions / lives,
        "points_computed_per_production": stage.executions / productions,
        "points_computed_total": stage.executions,
        "points_computed_minimum": math.prod(f.trips for f in _telling(stage)),
        "inner_parallelism": math.prod(n for d, n in kinds if d >= stage.produced),
        "outer_parallelism": math.prod(n for d, n in kinds if d < stage.produced),
    }


def _telling(stage: FeatureStage) -> list[FeatureLoop]:
    """The loops that some access of the statement depends on; the others repeat the computation."""
    main = stage.main
    return [f for f in main.loops if any(a.moves(f.depth) for a in main.accesses)]


def _innermost(stage: FeatureStage) -> dict[str, float]:
    inner: list[FeatureLoop] = []
    for f in reversed(stage.main.loops):
        if f.kind not in (*TOGETHER, "unroll"):
            if not any(g.kind == "unroll" for g in inner):
                inner.append(f)
            break
        inner.append(f)
    inner = [f for f in inner if f.kind not in TOGETHER]
    pure = [f for f in inner if stage.main.target.moves(f.depth)]
    unrolled = [f for f in pure if f.kind == "unroll"]
    return {
        "innermost_loop_extent": math.prod(f.trips for f in inner),
        "innermost_pure_loop_extent": math.prod(f.trips for f in pure),
        "unrolled_loop_extent": math.prod(f.trips for f in unrolled),
    }


def _results(stage: FeatureStage) -> dict[str, float]:
    main = stage.main
    written = main.touches[0]
    shape = written.shape
    size = shape.itemsize
    at_task = stage.task or 0
    sums = set(map(id, stage.sums))
    results = math.prod(f.trips for f in _telling(stage) if id(f) not in sums)
    along = [f.trips for f in _telling(stage) if _last_axis(main.target, f)]
    return {
        "bytes_at_realization": shape.size,
        "bytes_at_production": written.elements[stage.produced] * size,
        "bytes_at_root": results * size,
        "bytes_at_task": written.elements[at_task] * size,
        "innermost_bytes_at_realization": _row(shape),
        "innermost_bytes_at_production": _innermost_bytes(written, stage.produced),
        "innermost_bytes_at_root": max(
            _innermost_bytes(written, 0), math.prod(along) * size
        ),
        "innermost_bytes_at_task": _innermost_bytes(written, at_task),
    }


def _last_axis(target: TensorAccess, f: FeatureLoop) -> bool:
    return bool(target.index) and f.depth in target.index[-1].terms


def _row(shape: TensorShape) -> float:
    return shape.itemsize * (shape.extents[-1] if shape.extents else 1)


def _innermost_bytes(t: TouchedTensor, level: int) -> float:
    box = t.box(level)
    return t.shape.itemsize * (box[-1] if box else 1.0)


def _vectors(stage: FeatureStage, facts: Facts) -> dict[str, float]:
    main = stage.main
    lanes = [f for f in main.loops if f.kind in TOGETHER]
    width = math.prod(f.trips for f in lanes)
    scalars = vectors = 0.0
    for line in stage.lines:
        together = [f.trips for f in line.loops if f.kind in TOGETHER]
        if together:
            vectors += line.executions / math.prod(together)
        else:
            scalars += line.executions
    narrowest = min(a.shape.itemsize for a in main.accesses)
    loads = [a for a in main.accesses if a.reads]
    return {
        "vector_size": width,
        "native_vector_size": max(1, facts.vector // narrowest),
        "num_vectors": vectors,
        "num_scalars": scalars,
        "scalar_loads_per_scalar": float(len(loads)),
        **_loads(stage, loads, lanes[-1] if lanes else None, width),
    }


def _loads(
    stage: FeatureStage, loads: list[TensorAccess], lane: FeatureLoop | None, width: int
) -> dict[str, float]:
    """Loads per vector of results; loads shared by unrolled copies count once."""
    scalar = vector = 0.0
    unrolled = [f for f in stage.main.loops if f.kind == "unroll"]
    for a in loads:
        copies = math.prod(f.trips for f in unrolled if not a.moves(f.depth))
        stride = 0.0
        if lane is not None:
            erratic = lane.depth in a.erratic
            stride = math.inf if erratic else abs(a.strides.get(lane.depth, 0.0))
        if stride == 0:
            scalar += 1 / copies
        elif stride in (1, 2, 3, 4):
            vector += stride / copies
        else:
            scalar += width / copies
    return {"scalar_loads_per_vector": scalar, "vector_loads_per_vector": vector}


def _reads(stage: FeatureStage) -> dict[str, float]:
    main = stage.main
    reads = [t for t in main.touches if t.reads]
    lanes = [f.depth for f in main.loops if f.kind in TOGETHER]
    vector = min(lanes, default=len(main.loops))
    at_task = stage.task or 0
    far = [t for t in reads if not _made_inside(t, stage)]
    found: dict[str, float] = {
        "allocation_bytes_read_per_realization": sum(t.shape.size for t in reads)
    }
    places = (
        ("realization", reads, stage.realized),
        ("vector", reads, vector),
        ("task", far, at_task),
    )
    for name, touched, level in places:
        bytes_ = [t.elements[level] * t.shape.itemsize for t in touched]
        found[f"unique_bytes_read_per_{name}"] = sum(bytes_)
        pieces = [_pieces(t, level) for t in touched]
        found[f"unique_lines_read_per_{name}"] = sum(pieces)
    return found


def _made_inside(t: TouchedTensor, stage: FeatureStage) -> bool:
    """Whether a tensor lives within a task: in registers or on the stack."""
    return t.buffer.scope != "global" and bool(stage.task)


def _pieces(t: TouchedTensor, level: int) -> float:
    """The number of contiguous runs along the last axis."""
    return math.prod(t.box(level)[:-1])


def _working_sets(stage: FeatureStage, found: KernelNests) -> dict[str, float]:
    main = stage.main

    def inside(depth: int) -> float:
        around = main.loops[:depth]
        return sum(
            a.shape.size
            for a in found.all_allocations
            if a.loops[:depth] == around and len(a.loops) >= depth
        )

    return {
        "working_set": inside(stage.produced + 1) if stage.main.loops else 0.0,
        "working_set_at_task": inside(stage.task) if stage.task else inside(0),
        "working_set_at_production": inside(stage.produced),
        "working_set_at_realization": inside(stage.realized),
        "working_set_at_root": inside(0),
    }
