"""Finding devices by name: built in, from installed packages, or registered by a program.

An installed package supplies a device through an entry point of the group `tilewright.devices`: the
entry point's name is the device's, and its value creates it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache
from inspect import signature
from typing import Any, Final

from tilewright.base.errors import ArtifactError, TilewrightError
from tilewright.runtime.device import Device, HostDevice

GROUP: Final = "tilewright.devices"  # of entry points
Make = Callable[[], Device]

# Only these modules are ever imported: an artifact names a device, never a module.
_OWN: Final[Mapping[str, str]] = {
    "cuda": "tilewright.targets.cuda.device:make",
    "npu": "tilewright.targets.npu.device:make",
    "opencl": "tilewright.targets.opencl.device:make",
    "vta": "tilewright.targets.vta.device:make",
}
# Devices that may be absent: functions that return the names of the present ones.
_PRESENT: Final[Mapping[str, str]] = {
    "opencl": "tilewright.targets.opencl.platforms:names",
}
_makers: dict[str, Make] = {}


def register(name: str, make: Make) -> None:
    """Make `make()` the device of that name, once it is first used."""
    _makers[name] = make
    find.cache_clear()


@cache
def find(name: str, number: int = 0) -> Device:
    """The device of that name, the same one each time. number: of several alike, from 0 on.

    Raises ArtifactError (TW-DEVICE) for one that is unknown or cannot be made.
    """
    try:
        made: Callable[..., Device] = _maker(name)
        if not number:
            return made()
        if not signature(made).parameters:
            raise ArtifactError(
                f"there is only one device {name!r}, but device={number} asks for another one",
                code="TW-DEVICE",
                hint="leave device= out",
            )
        return made(number)
    except ImportError as error:
        raise ArtifactError(
            f"the device {name!r} cannot be imported: {error}", code="TW-DEVICE"
        ) from error


def numbered(name: str, number: int) -> Device:
    """As `find`, of which 0 is the one that has no number: a device is there once."""
    return find(name, number) if number else find(name)


def is_simulated(name: str) -> bool:
    """Whether a program on the host plays the device of that name. Raises as `find`."""
    return isinstance(find(name), HostDevice)


def present() -> dict[str, list[str] | str]:
    """The devices that are here, best first, by what artifacts call them; or why there is none."""
    found: dict[str, list[str] | str] = {}
    for name, place in _PRESENT.items():
        try:
            found[name] = list(_imported(place)())
        except (TilewrightError, ImportError, OSError) as error:
            found[name] = str(error)
    return found


def _imported(place: str) -> Any:
    """The function at `module:function`."""
    module, function = place.split(":")
    return getattr(importlib.import_module(module), function)


def _maker(name: str) -> Make:
    if name in _makers:
        return _makers[name]
    if name in _OWN:
        make: Make = _imported(_OWN[name])
        return make
    # Loaded here: most programs have no such device, and it takes 20 ms.
    from importlib.metadata import entry_points

    for place in entry_points(group=GROUP, name=name):
        found: Make = place.load()
        return found
    raise ArtifactError(
        f"the model needs the device {name!r}, which is not there",
        code="TW-DEVICE",
        hint="install the package that supplies it, or register it before loading the model",
    )
