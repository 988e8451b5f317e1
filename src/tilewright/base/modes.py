"""The modes of a compilation: how far results may differ, and what happens without native code."""

from __future__ import annotations

from typing import Final

# Each allows what those before it allow.
MATH: Final = ("exact", "default", "fast")
# What constant matrices of products are held in, where not as written.
WEIGHTS: Final = ("bfloat16", "float16")
# By target: these, or what its tensor cores round both factors of a float32 product to.
PRECISIONS: Final = {"cpu": WEIGHTS, "cuda": ("tf32",)}
PRECISION: Final = (*WEIGHTS, "tf32")
# What an operator without native code is: a warning or an error.
FALLBACK: Final = ("warn", "error")

# How the graph is searched for an equal one that costs less, before it is compiled.
OPTIMIZE: Final = ("off", "fast", "search", "saturate")
# Of these, those that search no graphs by the time of their kernels.
UNSEARCHED: Final = ("off", "fast")

# How a part of a graph is searched.
STRATEGIES: Final = ("backtrack", "saturate")

# Spellings that were replaced, and the present ones.
REPLACED: Final = {
    'math="strict"': 'math="default"',
    "strict=True": 'fallback="error"',
    "strict=False": 'fallback="warn"',
    "--math strict": "--math default",
    "--strict": "--fallback error",
    "--no-strict": "--fallback warn",
}

# What `text` and `--emit` show of a compilation, in its order.
STAGES: Final = (
    "graph",
    "plan",
    "memory",
    "computation",
    "schedule",
    "kernel",
    "llvm",
    "asm",
)
