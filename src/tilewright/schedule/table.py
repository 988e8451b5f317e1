"""The table of primitives: name -> rewrite `(kernel, arguments...) -> (kernel, new names)`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from tilewright.ir.node import postorder
from tilewright.loops.nodes import For, Kernel
from tilewright.schedule.legality import check_steps, check_tiles
from tilewright.schedule.units import settled

Primitive = Callable[..., tuple[Kernel, Any]]

PRIMITIVES: dict[str, Primitive] = {}

_P = ParamSpec("_P")
_T = TypeVar("_T")


def primitive(f: Callable[_P, tuple[Kernel, _T]]) -> Callable[_P, tuple[Kernel, _T]]:
    """Register a rewrite under its own name.

    The notes of loops that it removes go with them, and Units whose bodies it changes are matched
    with their intrinsics again. Steps of a reduction of several results are checked again where
    these have been parted, and loops that rely on overlapping tiles where they have changed.
    """

    @wraps(f)
    def rewrite(*args: _P.args, **options: _P.kwargs) -> tuple[Kernel, _T]:
        kernel, made = f(*args, **options)
        before = args[0]
        assert isinstance(before, Kernel)
        kernel = settled(before, kernel, f.__name__)
        check_steps(kernel, f.__name__)
        check_tiles(before, kernel, f.__name__)
        return _without_lost_notes(kernel), made

    PRIMITIVES[f.__name__] = rewrite
    return rewrite


def _without_lost_notes(kernel: Kernel) -> Kernel:
    if not kernel.notes:
        return kernel
    loops = {s.var.name for s in postorder(kernel.body) if isinstance(s, For)}
    kept = {name: said for name, said in kernel.notes.items() if name in loops}
    return kernel if len(kept) == len(kernel.notes) else replace(kernel, notes=kept)
