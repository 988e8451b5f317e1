"""The columns of Ansor's per-store features, in their order there."""

from __future__ import annotations

from tilewright.tune.features.base import LOG, Column

BUFFERS = 5
SAMPLES = 10
FLAG = "0 or 1"

# Field of `Arithmetic`: what it counts, over all executions.
ARITHMETIC = {
    "float_mad": "fused multiply-adds of floats, of which a Kernel has none before code",
    "float_addsub": "additions and subtractions of floats",
    "float_mul": "products of floats",
    "float_divmod": "divisions and remainders of floats",
    "float_cmp": "comparisons, minima and maxima of floats",
    "float_mathfunc": "functions of floats",
    "float_otherfunc": "other calls that give floats; there are none",
    "int_mad": "fused multiply-adds of integers; none",
    "int_addsub": "additions of integers, those of the indices of loads too",
    "int_mul": "products of integers, those of the indices of loads too",
    "int_divmod": "divisions and remainders of integers",
    "int_cmp": "comparisons, minima and maxima of integers",
    "int_mathfunc": "functions of integers, shifts and operations on bits",
    "int_otherfunc": "other calls that give integers; there are none",
    "bool_op": "operations on truth values",
    "select_op": "selections",
}
# Where the innermost loop of a kind is: of the last axis that is stored to, and so on.
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
    "reuse_ct": "how often it is used in a row",
}
DIVIDED = {
    f"{name}_d_reuse_ct": f"{doc}, by `reuse_ct`; times 2 without reuse"
    for name, doc in TOUCHED.items()
}


def _annotation(kind: str, what: str) -> list[Column]:
    sizes = {
        "num": "how many {} are around it",
        "prod": "trips of all of these",
        "len": "trips of the innermost of these",
    }
    found = [
        Column(f"{kind}_{name}", LOG, doc.format(what)) for name, doc in sizes.items()
    ]
    for position in POSITIONS:
        doc = f"whether the innermost of these is at {position.replace('_', ' ')}"
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
    "alloc_size": "bytes of what it stores to, if that is allocated",
    "alloc_prod": "elements of it, times how often it is allocated",
    "alloc_outer_prod": "how often it is allocated",
    "alloc_inner_prod": "executions per allocation",
}
_OUTER = {
    "outer_prod": "executions",
    "num_loops": "loops around it",
    "auto_unroll_max_step": "steps that a compiler may unroll by itself: 0, ours does not",
}
ARITHMETIC_COLUMNS = (
    *(Column(name, LOG, doc) for name, doc in ARITHMETIC.items()),
    *_annotation("vec", "vector loops"),
    *_annotation("unroll", "unrolled loops"),
    *_annotation("parallel", "parallel loops"),
    Column("is_gpu", FLAG, "whether a loop is an axis of a GPU"),
    *(
        Column(name, LOG, f"trips of the loop of `{name}`; 1 for none")
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
