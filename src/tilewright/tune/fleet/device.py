"""Devices that workers offer, as Dask resources.

A resource's name contains everything that a program must be built for, so that Dask never sends a
program to an incompatible worker, whoever joins later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from tilewright import __version__
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.runtime.machine import processor_name

_SEPARATOR: Final = "|"
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,40}")


@dataclass(frozen=True, slots=True)
class FleetDevice:
    """A kind of device. threads: the most for a program on it. version: of this package there."""

    name: str
    threads: int
    processor: str
    version: str

    @staticmethod
    def here(name: str, threads: int) -> FleetDevice:
        """A device of this machine. Raises InputError for a name with other characters."""
        if not _NAME.fullmatch(name):
            raise InputError(
                f"{name!r} is not a valid device name",
                where="fleet",
                hint="use 1 to 40 letters, digits and _.-",
            )
        processor = processor_name().replace(_SEPARATOR, " ")
        return FleetDevice(name, threads, processor, __version__)

    @property
    def resource(self) -> str:
        """Its name as a Dask resource."""
        parts = (self.name, str(self.threads), self.processor, self.version)
        return _SEPARATOR.join(parts)

    @staticmethod
    def parse(resource: str) -> FleetDevice | None:
        """The device of a resource; None if it is another kind of resource."""
        parts = resource.split(_SEPARATOR)
        if len(parts) != 4 or not parts[1].isdecimal():
            return None
        name, threads, processor, version = parts
        return FleetDevice(name, int(threads), processor, version)

    def __str__(self) -> str:
        what = f"{self.name}: {self.processor}, {self.threads} threads"
        return what if self.version == __version__ else f"{what}, {self.version}"


Offered = Mapping[FleetDevice, int]


def chosen(offered: Offered, name: str, threads: int) -> FleetDevice | None:
    """The device with this name for programs of `threads` threads; None if not offered yet.

    Among several that fit, the one with the most places. Raises InputError if all devices with the
    name have another version, or fewer threads.
    """
    named = {d: count for d, count in offered.items() if d.name == name}
    ours = {d: count for d, count in named.items() if d.version == __version__}
    if named and not ours:
        versions = ", ".join(sorted({d.version for d in named}))
        raise InputError(
            f"the workers that offer {name!r} have version {versions}, this is {__version__}",
            where="fleet",
            hint="install the same version everywhere",
        )
    fit = {d: count for d, count in ours.items() if d.threads >= threads}
    if ours and not fit:
        most = max(d.threads for d in ours)
        raise InputError(
            f"programs of {threads} threads do not fit {name!r}, which has {most}",
            where="fleet",
            hint="start its worker with --threads, or tune with fewer",
        )
    order = sorted(fit, key=lambda d: (-fit[d], d.threads, d.processor))
    return order[0] if order else None
