"""MDH: multi-dimensional homomorphisms in the notation of Rasch (TOPLAS 2024).

    out_view[float32](w=[lambda i, k: (i)]) @
    md_hom[I, K](mul, (cc, pw(add))) @
    inp_view[float32, float32](M=[lambda i, k: (i, k)], v=[lambda i, k: (k)])

is a Computation. `show` prints any Computation like this, `parse` reads it back.
"""

from __future__ import annotations

from tilewright.lang.mdh.syntax.directive import Buffer, combine_ops, inp, mdh, out
from tilewright.lang.mdh.syntax.generic import Generic, generic
from tilewright.lang.mdh.syntax.operators import (
    cc,
    ps,
    pw,
    pw_custom_func,
    scalar_function,
)
from tilewright.lang.mdh.syntax.parts import buffer, size
from tilewright.lang.mdh.syntax.printer import SCOPE, parse, show
from tilewright.lang.mdh.syntax.program import Expression
from tilewright.lang.mdh.syntax.views import inp_view, md_hom, out_view

__all__ = [
    "SCOPE",
    "Buffer",
    "Expression",
    "Generic",
    "buffer",
    "cc",
    "combine_ops",
    "generic",
    "inp",
    "inp_view",
    "md_hom",
    "mdh",
    "out",
    "out_view",
    "parse",
    "ps",
    "pw",
    "pw_custom_func",
    "scalar_function",
    "show",
    "size",
]
