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
    """Warn if `graph` multiplies bfloat16 and `host` must convert to float32 to do so.

    A model of 512 x 512 products took 1.2 (AVX-512) to 1.5 times (AVX2) as long as in float32. A
    model with only its weights in bfloat16 gets no warning: it saves memory traffic.
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
            "without instructions for them: each is converted to float32 and takes longer than "
            'in a float32 model; a float32 model with precision="bfloat16" saves as much memory',
            TilewrightWarning,
            stacklevel=7,
        )
