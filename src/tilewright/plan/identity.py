"""What a kernel computes, independent of names: as text, and with neutral names.

Sketches name their parameters after the kernel's tensors, which have the model's names. A choice
made for one layer fits another layer or model only if tensors are named by position: `anonymous`
renames them, and `with_names` translates a choice back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from tilewright.compute.canonical import canonical
from tilewright.compute.transforms import on_tensors
from tilewright.expr.nodes import Buffer
from tilewright.ir.node import postorder
from tilewright.loops.nodes import Kernel, Update
from tilewright.loops.printer import show_kernel, show_units
from tilewright.plan.normalize import KernelSignature

_PLACE: Final = re.compile(r"(?<![A-Za-z0-9])tensor(0|[1-9]\d*)(?!\d)")


def structure(signature: KernelSignature) -> str:
    """A text of all that determines a kernel's results; equal for equal programs.

    It includes the names of Computations but not those of tensors, except for a hand-written
    Kernel.
    """
    if signature.kernel is not None:
        kernel = signature.kernel
        program = f"{show_kernel(kernel)}\n{show_units(kernel)}\n{_operators(kernel)}"
    else:
        program = canonical(signature.computations, signature.params)
    names = " ".join(c.name for c in signature.computations)
    outputs = [signature.params.index(o) for o in signature.outputs]
    return f"{names}\n{outputs}\n{program}"


def _operators(kernel: Kernel) -> str:
    """The definitions of reducers that a kernel's text only names."""
    used = dict.fromkeys(
        n.reducer for n in postorder(kernel.body) if isinstance(n, Update)
    )
    return "\n".join(
        f"{r} {r.lhs} {r.rhs} {r.dtypes} {r.result} {r.identity}" for r in used
    )


def anonymous(signature: KernelSignature) -> KernelSignature:
    """The same kernel on tensors called tensor0, tensor1, ...: parameters first, then local ones.

    What a search finds for it, `with_names` translates for every kernel with the same structure. A
    hand-written Kernel keeps its names, which are part of its identity.
    """
    if signature.kernel is not None:
        return signature
    of = {
        b: Buffer(f"tensor{n}", b.extents, b.dtype, b.scope)
        for n, b in enumerate(tensors(signature))
    }
    return replace(
        signature,
        computations=tuple(on_tensors(c, of) for c in signature.computations),
        params=tuple(of[b] for b in signature.params),
        outputs=tuple(of[b] for b in signature.outputs),
    )


def tensors(signature: KernelSignature) -> tuple[Buffer, ...]:
    """The tensors of a kernel: its parameters, then local ones in order of first use."""
    found = dict.fromkeys(signature.params)
    for c in signature.computations:
        found |= dict.fromkeys(c.inputs)
        found |= dict.fromkeys(o.tensor for o in c.outputs)
    return tuple(found)


def with_names(values: Mapping[str, Any], signature: KernelSignature) -> dict[str, Any]:
    """Parameter values found for the anonymous kernel, translated to this one's tensor names."""
    if signature.kernel is not None:
        return dict(values)
    names = [b.name for b in tensors(signature)]

    def name(found: re.Match[str]) -> str:
        place = int(found[1])
        return names[place] if place < len(names) else found[0]

    def named(value: Any) -> Any:
        if isinstance(value, str):
            return _PLACE.sub(name, value)
        if isinstance(value, list | tuple):
            return type(value)(map(named, value))
        return value

    return {named(parameter): named(value) for parameter, value in values.items()}
