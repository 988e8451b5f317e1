"""The columns of Ansor's per-store features, in their original order."""

from __future__ import annotations

from tilewright.tune.features.base import LOG, Column

BUFFERS = 5
SAMPLES = 10
FLAG = "0 or 1"

# Operation group: what it counts, over all executions.
ARITHMETIC = {
    "float_mad": "fused multiply-adds of floats; none before code generation",
    "float_addsub": "additions and subtractions of floats",
    "float_mul": "products of floats",
    "float_divmod": "divisions and remainders of floats",
    "float_cmp": "comparisons, minima and maxima of floats",
    "float_mathfunc": "calls of functions on floats",
    "float_otherfunc": "other calls that return floats; none",
    "int_mad": "fused multiply-adds of integers; none",
    "int_addsub": "additions of integers, including those in load indices",
    "int_mul": "products of integers, including those in load indices",
    "int_divmod": "divisions and remainders of integers",
    "int_cmp": "comparisons, minima and maxima of integers",
    "int_mathfunc": "calls of functions on integers, shifts and bit operations",
    "int_otherfunc": "other calls that return integers; none",
    "bool_op": "operations on booleans",
    "select_op": "selections",
}
# The position of the innermost loop of a kind: on the last axis of the stored tensor, and so on.
POSITIONS = (
    "none",
    "inner_spatial",
    "middle_spatial",
    "outer_spatial",
    "inner_reduce",
    "middle_reduce",
    "outer_reduce",
    "mixed",
)
SPREAD = (
    *(f"{level}_{axis}_len" for level in ("blockIdx", "threadIdx") for axis in "xyz"),
    "vthread_len",
)
ACCESS = ("read", "write", "read_write")
REUSE = ("loop_multiple_read", "serial_multiple_read_write", "no_reuse")
TOUCHED = {
    "bytes": "bytes of all executions",
    "unique_bytes": "bytes of distinct elements",
    "lines": "cache lines of all executions",
    "unique_lines": "distinct cache lines",
}
DISTANCE = {
    "reuse_dis_iter": "executions until an element is used again",
    "reuse_dis_bytes": "bytes touched until then",
    "reuse_ct": "number of consecutive uses",
}
DIVIDED = {
    f"{name}_d_reuse_ct": f"{doc}, divided by `reuse_ct`; times 2 without reuse"
    for name, doc in TOUCHED.items()
}


def _annotation(kind: str, what: str) -> list[Column]:
    sizes = {
        "num": "number of enclosing {}",
        "prod": "trips of all of these",
        "len": "trips of the innermost of these",
    }
    found = [
        Column(f"{kind}_{name}", LOG, doc.format(what)) for name, doc in sizes.items()
    ]
    for position in POSITIONS:
        doc = f"whether the innermost of these is at position {position.replace('_', ' ')}"
        found.append(Column(f"{kind}_type_{position}", FLAG, doc))
    return found


def _buffer(n: int) -> list[Column]:
    texts = {**TOUCHED}
    kinds = [Column(f"acc_type_{a}", FLAG, f"whether it is {a}") for a in ACCESS]
    found = [*kinds, *(Column(name, LOG, doc) for name, doc in texts.items())]
    found += [Column(f"reuse_type_{r}", FLAG, f"reuse is {r}") for r in REUSE]
    found += [Column(name, LOG, doc) for name, doc in (DISTANCE | DIVIDED).items()]
    found.append(Column("stride", LOG, "elements that the innermost loop moves by"))
    return [Column(f"B{n}_{c.name}", c.unit, f"of tensor {n}: {c.doc}") for c in found]


_INTENSITY = [
    Column(
        f"curve_{n}",
        LOG,
        f"operations per byte, at {n + 1}/{SAMPLES} of all operations",
    )
    for n in range(SAMPLES)
]
_ALLOCATED = {
    "alloc_size": "bytes of the stored tensor, if it is allocated",
    "alloc_prod": "its elements, times the number of allocations",
    "alloc_outer_prod": "number of allocations",
    "alloc_inner_prod": "executions per allocation",
}
_OUTER = {
    "outer_prod": "executions",
    "num_loops": "enclosing loops",
    "auto_unroll_max_step": "steps that the compiler may unroll automatically: 0, ours does not",
}
ARITHMETIC_COLUMNS = (
    *(Column(name, LOG, doc) for name, doc in ARITHMETIC.items()),
    *_annotation("vec", "vector loops"),
    *_annotation("unroll", "unrolled loops"),
    *_annotation("parallel", "parallel loops"),
    Column("is_gpu", FLAG, "whether a loop is a GPU axis"),
    *(
        Column(name, LOG, "trips of the loops on this axis; 1 for none")
        for name in SPREAD
    ),
)
COLUMNS = (
    *ARITHMETIC_COLUMNS,
    *(c for n in range(BUFFERS) for c in _buffer(n)),
    *_INTENSITY,
    *(Column(name, LOG, doc) for name, doc in _ALLOCATED.items()),
    *(Column(name, LOG, doc) for name, doc in _OUTER.items()),
)
