"""The registry of targets by name, the only way to reach them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.loops.intrinsic import INTRINSICS, TensorIntrinsic
from tilewright.targets.base import Target, TargetSettings

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


GROUP = "tilewright.targets"  # of entry points
Make = Callable[[TargetSettings], Target]


@dataclass(frozen=True, slots=True)
class TargetEntry:
    """Where to find a target.

    make: what makes one, or its place as "module:function", which is imported when used.
    intrinsics: the module that declares its tensor intrinsics. machines: "table" if it takes a
    machine description, "name" if it is a kind of machines that have names, else empty.
    """

    make: str | Make
    intrinsics: str = ""
    machines: str = ""


_OWN = {
    "amdgpu": TargetEntry("tilewright.targets.amdgpu.target:make"),
    "cpu": TargetEntry(
        "tilewright.targets.cpu.target:make",
        "tilewright.targets.cpu.intrinsics",
        machines="table",
    ),
    "cuda": TargetEntry(
        "tilewright.targets.cuda.target:make",
        intrinsics="tilewright.targets.cuda.group_intrinsics",
    ),
    "npu": TargetEntry("tilewright.targets.npu.target:make", machines="name"),
    "opencl": TargetEntry("tilewright.targets.opencl.target:make", machines="table"),
    "spirv": TargetEntry("tilewright.targets.spirv.target:make", machines="table"),
    "vdla": TargetEntry(
        "tilewright.targets.vdla.target:make", "tilewright.targets.vdla.intrinsics"
    ),
    "vta": TargetEntry(
        "tilewright.targets.vta.target:make",
        "tilewright.targets.vta.intrinsics",
        machines="table",
    ),
}
_ROWS = dict(_OWN)


def register(name: str, row: TargetEntry) -> None:
    """Add a target, or replace one.

    An installed package says it in its metadata instead: an entry point `name` of the group
    `tilewright.targets`, which is a `TargetEntry`. Raises InputError for anything else.
    """
    if not isinstance(row, TargetEntry):
        raise InputError(
            f"register takes a TargetEntry, not {row!r}",
            code="TW-TARGET",
            where=f"target {name!r}",
            hint="register(name, TargetEntry(lambda settings: MyTarget()))",
        )
    _ROWS[name] = row


def names() -> tuple[str, ...]:
    """All targets."""
    return tuple(sorted({*_ROWS, *_installed()}))


def registered(name: str) -> bool:
    """Whether a program or an installed package supplies the target, and not this package."""
    return _find(name) is not _OWN.get(name)


def machines(name: str) -> str:
    """What `TargetEntry.machines` says of a target; empty for one that does not exist."""
    row = _find(name)
    return "" if row is None else row.machines


def programs(name: str) -> str:
    """What the target's `load` takes, "kernel" or "lift"; empty for none, and for the host."""
    if _find(name) is None:
        return ""
    return target(name).programs


def target(
    name: str = "cpu",
    mcpu: str = "native",
    exact: bool = False,
    threads: int | None = None,
    description: Mapping[str, Any] | None = None,
    machine: str | None = None,
    triple: str | None = None,
    fast: bool = False,
    precision: str | None = None,
) -> Target:
    """The target `name`; the others are fields of `TargetSettings`.

    Raises UnsupportedError for an unknown target or one that takes no description, InputError for
    a bad description.
    """
    row = _row(name)
    settings = TargetSettings(
        mcpu=mcpu,
        exact=exact,
        threads=threads,
        machine=machine,
        description=description,
        triple=triple,
        fast=fast,
        precision=precision,
    )
    for given, kind in ((description, "table"), (machine, "name")):
        if given is not None and row.machines != kind:
            able = [n for n in names() if machines(n)]
            raise UnsupportedError(
                f"target {name!r} takes no machine description",
                code="TW-TARGET",
                hint=f"for {', '.join(able)}; leave out --machine, unset TILEWRIGHT_MACHINE",
            )
    _declare(row)
    if not isinstance(row.make, str):
        return row.make(settings)
    module, function = row.make.split(":")
    made: Target = getattr(importlib.import_module(module), function)(settings)
    return made


def intrinsics(name: str) -> dict[str, TensorIntrinsic]:
    """The tensor intrinsics of a target by name, declared from now on; those of users included.

    Raises UnsupportedError for an unknown target.
    """
    _declare(_row(name))
    return {i.name: i for i in INTRINSICS.values() if i.target == name}


def _declare(row: TargetEntry) -> None:
    """Declare the tensor intrinsics of a target: its schedules name them."""
    if row.intrinsics:
        importlib.import_module(row.intrinsics)


@cache
def _installed() -> dict[str, EntryPoint]:
    """What other packages supply, by name."""
    from importlib.metadata import entry_points

    return {p.name: p for p in entry_points(group=GROUP)}


def _find(name: str) -> TargetEntry | None:
    if name not in _ROWS and name in _installed():
        place = _installed()[name]
        try:
            found = place.load()
        except Exception as error:
            raise _broken(name, place, f"it cannot be imported: {error}") from error
        if not isinstance(found, TargetEntry):
            raise _broken(name, place, f"it is a {type(found).__name__}")
        _ROWS[name] = found
    return _ROWS.get(name)


def _broken(name: str, place: EntryPoint, why: str) -> UnsupportedError:
    package = place.dist.name if place.dist else "a package"
    return UnsupportedError(
        f"target {name!r} is supplied by {package} as {place.value}: {why}",
        code="TW-TARGET",
        hint="its place is that of a targets.registry.TargetEntry; fix or uninstall the package",
    )


def _row(name: str) -> TargetEntry:
    found = _find(name)
    if found is None:
        raise UnsupportedError(
            f"unknown target {name!r}",
            code="TW-TARGET",
            hint=f"known: {', '.join(names())}",
        )
    return found
