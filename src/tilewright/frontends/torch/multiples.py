"""The multiples that extents are, from the guards of a program and from derived dimensions.

PyTorch resolves `n % 2 == 0` when it traces, and writes down that the program is right for even n
alone. Most of its other guards keep 0 and 1 apart, which no operator here treats otherwise. Some
exclude extents for which the program is wrong (`n != 6`, `n > m`): nothing checks those.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

# (3*L['x']['k'][1].size()[0]) % 6 is 0; no code can be written in this form.
_GUARD: Final = re.compile(
    r"\(\(?(?:(\d{1,9})\*)?L((?:\['\w+'\]|\[\d{1,9}\])+)\.size\(\)\[(\d{1,9})\]\)?"
    r" % (\d{1,9})\) (?:<=|==) 0"
)


def says_multiple(guard: str) -> bool:
    """Whether the text of a guard has this form."""
    return _GUARD.fullmatch(guard) is not None


def multiples(program: Any) -> dict[str, int]:
    """What divides each extent of the inputs, by PyTorch's text for the extent."""
    shapes = _shapes(program)
    found: dict[str, int] = {}
    for guard in getattr(program, "_guards_code", None) or ():
        parts = _GUARD.fullmatch(guard)
        if parts is None:
            continue
        factor, path, axis, divisor = parts.groups()
        name = "_".join(re.findall(r"\w+", path)).lower()
        shape = shapes.get(name, ())
        if int(axis) < len(shape) and int(divisor):
            step = int(divisor) // math.gcd(int(divisor), int(factor or 1))
            text = str(shape[int(axis)])
            found[text] = math.lcm(found.get(text, 1), step)
    for extent in program.range_constraints:
        factor = int(extent.as_coeff_Mul()[0]) if extent.is_Mul else 1
        if factor > 1:
            text = str(extent)
            found[text] = math.lcm(found.get(text, 1), factor)
    return found


def _shapes(program: Any) -> Mapping[str, Any]:
    """The shapes of the inputs, by the names that PyTorch makes of their paths."""
    held = {
        n.name.lower(): n.meta.get("val")
        for n in program.graph.nodes
        if n.op == "placeholder"
    }
    return {name: v.shape for name, v in held.items() if hasattr(v, "shape")}
