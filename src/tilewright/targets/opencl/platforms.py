"""Which OpenCL devices there are, and which one is taken."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tilewright.base import flags
from tilewright.base.errors import ArtifactError
from tilewright.base.text import listing

_INSTALL: Final = (
    "install your GPU's driver; for a processor, pip install pocl-binary-distribution"
)
# Simulators that check programs: never the device that is taken unasked.
_CHECKERS: Final = ("oclgrind",)


def imported() -> Any:
    """The module pyopencl. Raises ArtifactError (TW-DEVICE) where it is not installed."""
    try:
        import pyopencl
    except ImportError as error:
        raise ArtifactError(
            f"OpenCL needs the package pyopencl: {error}",
            code="TW-DEVICE",
            hint="pip install 'tilewright[opencl]'",
        ) from error
    return pyopencl


def listed() -> list[Any]:
    """All devices, best first: GPUs, then other accelerators, then processors.

    Raises ArtifactError (TW-DEVICE) without pyopencl, and where nothing supplies OpenCL.
    """
    cl = imported()
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        raise ArtifactError(
            f"nothing here supplies OpenCL: {error}", code="TW-DEVICE", hint=_INSTALL
        ) from error
    found = [d for platform in platforms for d in _of(cl, platform)]
    kinds = cl.device_type
    order = (kinds.GPU, kinds.ACCELERATOR, kinds.CPU)

    def rank(device: Any) -> tuple[bool, int]:
        kind = next((n for n, k in enumerate(order) if device.type & k), len(order))
        return any(c in shown(device).lower() for c in _CHECKERS), kind

    return sorted(found, key=rank)


def _of(cl: Any, platform: Any) -> Iterator[Any]:
    try:
        yield from platform.get_devices()
    except cl.Error:  # a platform whose hardware is not there
        return


def shown(device: Any) -> str:
    """A device as `TILEWRIGHT_OPENCL_DEVICE` names it."""
    return f"{device.platform.name.strip()}: {device.name.strip()}"


def names() -> list[str]:
    """The devices as `shown`, the one that is taken first. Raises as `chosen`."""
    first = chosen()
    return [shown(first), *(shown(d) for d in listed() if d != first)]


def kind_here() -> str:
    """The row of `simt.machine.MACHINES` that describes the selected device.

    A CPU is treated as one with any driver. Checkers should see the code that a GPU runs; without a
    device, code is generic.
    """
    try:
        device = chosen()
    except ArtifactError:
        return "generic"
    name = shown(device).lower()
    if any(c in name for c in _CHECKERS):
        return "generic"
    if device.type & imported().device_type.CPU:
        return "pocl"
    return "mali" if "mali" in name else "generic"


def chosen() -> Any:
    """The device that TILEWRIGHT_OPENCL_DEVICE names in part, or the best one.

    Raises ArtifactError (TW-DEVICE) where there is none, and as `listed`.
    """
    found = listed()
    wanted = flags.OPENCL_DEVICE.get()
    fits = [d for d in found if wanted is None or wanted.lower() in shown(d).lower()]
    if fits:
        return fits[0]
    if not found:
        raise ArtifactError(
            "no OpenCL device is there", code="TW-DEVICE", hint=_INSTALL
        )
    raise ArtifactError(
        f"{flags.OPENCL_DEVICE.name}={wanted!r} names no OpenCL device",
        code="TW-DEVICE",
        hint=f"there are: {listing([shown(d) for d in found])}",
    )
