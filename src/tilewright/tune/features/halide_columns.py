"""The columns of Halide's features: 40 rows by 7 types of the pipeline, 39 of the schedule."""

from __future__ import annotations

from tilewright.tune.features.base import Column

TYPES = ("bool", "uint8", "uint16", "uint32", "uint64", "float", "double")
OPERATIONS = (
    "const cast variable param add sub mod mul div min max eq ne lt le and or not select "
    "image_call func_call self_call extern_call let"
).split()
CLASSES = ("pointwise", "transpose", "broadcast", "slice")
ACCESSES = ("load_func", "load_self", "load_image", "store")

COUNT, BYTES, LINES = "count", "bytes", "lines"
# Name: unit, description. A realization is one lifetime of the stage's buffer, a production one
# computation of what a consumer needs, a task one iteration of all parallel loops.
SCHEDULE = {
    "num_realizations": (COUNT, "realizations"),
    "num_productions": (COUNT, "productions"),
    "points_computed_per_realization": (COUNT, "executions per realization"),
    "points_computed_per_production": (COUNT, "executions per production"),
    "points_computed_total": (COUNT, "executions"),
    "points_computed_minimum": (
        COUNT,
        "executions without loops that nothing depends on",
    ),
    "innermost_loop_extent": (
        COUNT,
        "trips of the innermost loops, without vector loops",
    ),
    "innermost_pure_loop_extent": (
        COUNT,
        "trips of those that are not reductions",
    ),
    "unrolled_loop_extent": (COUNT, "trips of the unrolled loops"),
    "inner_parallelism": (COUNT, "trips of parallel loops in a production"),
    "outer_parallelism": (COUNT, "trips of parallel loops around productions"),
    "bytes_at_realization": (BYTES, "of the buffer"),
    "bytes_at_production": (BYTES, "stored by a production"),
    "bytes_at_root": (BYTES, "of all distinct results"),
    "innermost_bytes_at_realization": (BYTES, "of the buffer along its last axis"),
    "innermost_bytes_at_production": (BYTES, "the same for a production"),
    "innermost_bytes_at_root": (BYTES, "the same for all distinct results"),
    "inlined_calls": (COUNT, "0: an inlined function is not a stage of a Kernel"),
    "unique_bytes_read_per_realization": (BYTES, "distinct, read in a realization"),
    "unique_lines_read_per_realization": (LINES, "the same in contiguous runs"),
    "allocation_bytes_read_per_realization": (BYTES, "of the buffers read"),
    "working_set": (BYTES, "of buffers that live in a production"),
    "vector_size": (COUNT, "trips of the vector loops"),
    "native_vector_size": (COUNT, "lanes of a register of its narrowest type"),
    "num_vectors": (COUNT, "executions by vectors"),
    "num_scalars": (COUNT, "executions outside vector loops"),
    "scalar_loads_per_vector": (COUNT, "broadcasts, and lanes of gathers"),
    "vector_loads_per_vector": (COUNT, "loads of consecutive elements; s for stride s"),
    "scalar_loads_per_scalar": (COUNT, "loads per execution"),
    "bytes_at_task": (BYTES, "stored by a task"),
    "innermost_bytes_at_task": (BYTES, "the same along the last axis"),
    "unique_bytes_read_per_vector": (BYTES, "distinct, read for a vector of results"),
    "unique_lines_read_per_vector": (LINES, "the same in contiguous runs"),
    "unique_bytes_read_per_task": (
        BYTES,
        "distinct, read by a task from outside it",
    ),
    "unique_lines_read_per_task": (LINES, "the same in contiguous runs"),
    "working_set_at_task": (BYTES, "of buffers that live in a task"),
    "working_set_at_production": (BYTES, "of buffers in the loops around a production"),
    "working_set_at_realization": (
        BYTES,
        "of buffers in the loops around a realization",
    ),
    "working_set_at_root": (BYTES, "of all buffers of the kernel"),
}


def _pipeline() -> list[Column]:
    rows = [(f"op_{name}", f"{name} operations") for name in OPERATIONS]
    for shape in CLASSES:
        for way in ACCESSES:
            rows.append((f"{shape}_{way}", f"{way} accesses that are {shape}"))
    return [
        Column(f"{name}_{type_}", COUNT, f"{doc} of {type_}")
        for name, doc in rows
        for type_ in TYPES
    ]


PIPELINE_COLUMNS = tuple(_pipeline())
SCHEDULE_COLUMNS = tuple(
    Column(name, unit, doc) for name, (unit, doc) in SCHEDULE.items()
)
