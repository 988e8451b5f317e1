"""The memory scopes that a buffer may be in, by name.

A processor has `global` (the caller's memory or the arena), `stack` (per call) and `register`; a
block of a GPU has `shared`, which its threads see, and a warp has `warp`: its threads hold parts of
it in registers, for intrinsics that they do together. A machine has more: those in the `scopes` of
its tensor intrinsics, or those that it declares here.
"""

from __future__ import annotations

from typing import TypeAlias

from tilewright.base.errors import ScheduleError

# A `str` that has been declared: the primitives' arguments of this type are checked.
Scope: TypeAlias = str

_known: dict[str, None] = dict.fromkeys(
    ("global", "stack", "register", "shared", "warp")
)


def declare_scopes(*names: str) -> None:
    """Make memory scopes known; a name may be declared again."""
    _known.update(dict.fromkeys(names))


def known_scopes() -> tuple[str, ...]:
    """The scopes declared so far, a processor's first."""
    return tuple(_known)


def check_scope(scope: object, where: str) -> None:
    """Raise ScheduleError for a scope that nothing has declared."""
    if not isinstance(scope, str) or scope not in _known:
        raise ScheduleError(
            f"there is no memory scope {scope!r}; known: {', '.join(_known)}",
            code="TW-SCOPE",
            where=where,
            hint="import the target that has it; declare_scopes(name) makes one of your own known",
        )
