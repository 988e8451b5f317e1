"""One warning for products of a type that the processor has no instructions for."""

from __future__ import annotations

import warnings
from typing import Final

from tilewright.base.dtypes import bfloat16, float32
from tilewright.base.errors import TilewrightWarning
from tilewright.base.text import listing, plural
from tilewright.graph.nodes import Graph
from tilewright.targets.base import Target

_PRODUCTS: Final = frozenset({"MatMul", "Gemm", "Conv"})


def warn_of_emulation(graph: Graph, host: Target) -> None:
    """Warn where `graph` multiplies bfloat16 and `host` converts to float32 for it.

    Such a model of products of 512 x 512 took 1.2 (AVX-512) to 1.5 times (AVX2) the time of the
    same in float32. Weights alone in bfloat16 are no reason: they save traffic.
    """
    if host.products(bfloat16, bfloat16, float32):
        return
    found = [
        op.label
        for op in graph.operations
        if op.qualified in _PRODUCTS
        and all(v is not None and v.dtype is bfloat16 for v in op.inputs[:2])
    ]
    if found:
        warnings.warn(
            f"{plural(len(found), 'product')} of bfloat16 ({listing(found)}) on a processor "
            "without instructions for them: each is converted to float32, and takes longer than "
            'in a float32 model; precision="bfloat16" of a float32 model saves as much memory',
            TilewrightWarning,
            stacklevel=7,
        )
