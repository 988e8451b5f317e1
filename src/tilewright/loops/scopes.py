"""The memory scopes that a buffer may be in, by name.

A processor has `global` (the caller's memory or the arena), `stack` (per call) and `register`; a
block of a GPU has `shared`, which its threads see, and a warp has `warp`: its threads hold parts of
it in registers, for intrinsics that they do together. Neighboring blocks that run at the same time
have `cluster`: of such a buffer, whose first index is the number of a block in its cluster, each
block has its own slice, which it alone writes and the others read. Parameters that are never
written may be in a GPU's `constant` memory, which gives all threads one element at a time. A
machine has more: those in the `scopes` of its tensor intrinsics, or those that it declares here.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from tilewright.base.errors import ScheduleError

# A `str` that has been declared: the primitives' arguments of these types are checked. A kernel
# writes the buffers that it has in a Scope; it only reads those in constant memory.
Scope: TypeAlias = str
AnyScope: TypeAlias = str

CONSTANT: Final = "constant"
# Shared memory of the blocks of a cluster.
OF_CLUSTER: Final = "cluster"
_known: dict[str, None] = dict.fromkeys(
    ("global", "stack", "register", "shared", "warp", OF_CLUSTER, CONSTANT)
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


def check_written(scope: str, where: str) -> None:
    """Raise ScheduleError for a scope whose buffers a kernel cannot write."""
    if scope == CONSTANT:
        raise ScheduleError(
            "constant memory is for parameters, as a kernel cannot write to it",
            code="TW-SCOPE",
            where=where,
            hint="move a parameter that is only read there, by set_scope",
        )
