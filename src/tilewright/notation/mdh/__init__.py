"""MDH: multi-dimensional homomorphisms in the notation of Rasch (TOPLAS 2024).

    out_view[float32](w=[lambda i, k: (i)]) @
    md_hom[I, K](mul, (cc, pw(add))) @
    inp_view[float32, float32](M=[lambda i, k: (i, k)], v=[lambda i, k: (k)])

is a Computation. `show` prints any Computation like this, `parse` reads it back.
"""

from __future__ import annotations

from tilewright.notation.mdh.operators import cc, ps, pw, pw_custom_func
from tilewright.notation.mdh.parts import buffer
from tilewright.notation.mdh.printer import SCOPE, parse, show
from tilewright.notation.mdh.program import Expression
from tilewright.notation.mdh.views import inp_view, md_hom, mdh, out_view

__all__ = [
    "Expression",
    "SCOPE",
    "buffer",
    "cc",
    "inp_view",
    "md_hom",
    "mdh",
    "out_view",
    "parse",
    "ps",
    "pw",
    "pw_custom_func",
    "show",
]
