"""The values of symbolic sizes, as the shapes of a call's arrays tell them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.base.errors import InputError
from tilewright.base.text import plural
from tilewright.expr.nodes import Var
from tilewright.lang.te.syntax.nodes import Tensor
from tilewright.lang.te.syntax.program import ProgramNames


def values_of(
    params: Sequence[Tensor], arrays: Sequence[Any], known: Mapping[Var, int]
) -> dict[Var, int]:
    """The sizes that are extents of parameters, and those known before.

    Raises InputError unless there is one array for each parameter, of a shape that fits.
    """
    if len(arrays) != len(params):
        expected = ", ".join(map(repr, params))
        raise InputError(
            f"{plural(len(arrays), 'array')} given, {len(params)} expected: {expected}",
            where="call",
            hint="one for each argument of build, in its order",
        )
    sizes = dict(known)
    for t, a in zip(params, arrays, strict=True):
        shape = getattr(a, "shape", ())
        if len(shape) != t.ndim:
            raise InputError(
                f"{t!r} was given an array of shape {tuple(shape)}",
                where=t.name,
                hint=f"it has {t.ndim} dimension(s)",
            )
        for e, n in zip(t.shape, shape, strict=True):
            if isinstance(e, Var):
                sizes.setdefault(e, int(n))
    scope = ProgramNames(sizes)
    for t, a in zip(params, arrays, strict=True):
        wanted = tuple(scope.extent(e) for e in t.shape)
        if tuple(a.shape) != wanted:
            values = ", ".join(f"{v.name} = {n}" for v, n in sizes.items())
            raise InputError(
                f"expected shape {wanted}{values and f' where {values}'}, "
                f"got {tuple(a.shape)}",
                where=t.name,
                hint="one size has one value in all arguments",
            )
    return sizes
