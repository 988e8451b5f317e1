"""CUDA's driver, through NVIDIA's Python bindings: its calls, and an error of ours for each.

The bindings (`cuda-bindings`) are imported when a device is first requested. `Driver` takes any
object with their functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tilewright.base.errors import (
    ArtifactError,
    ExecutionError,
    MemoryLimitError,
    TilewrightError,
)

_NAME: Final = 256  # bytes of a GPU's name, at most
_OLD: Final = "update the NVIDIA driver"
_AGAIN: Final = "restart the process: no CUDA call works after this"
_EARLIER: Final = "compile for it: mcpu is its architecture, such as sm_80"

Row = tuple[type[TilewrightError], str, str, str]
# the driver's error: our class, its code, the message, the hint
ERRORS: Final[Mapping[str, Row]] = {
    "NO_DEVICE": (ArtifactError, "TW-DEVICE", "there is no NVIDIA GPU", ""),
    "SYSTEM_DRIVER_MISMATCH": (
        ArtifactError,
        "TW-DEVICE",
        "the NVIDIA driver is not the one that the system has loaded",
        "restart the machine after an update of the driver",
    ),
    "UNSUPPORTED_PTX_VERSION": (
        ArtifactError,
        "TW-DEVICE",
        "the NVIDIA driver is too old for the code",
        _OLD,
    ),
    "JIT_COMPILER_NOT_FOUND": (
        ArtifactError,
        "TW-DEVICE",
        "the NVIDIA driver lacks its compiler of PTX",
        _OLD,
    ),
    "NO_BINARY_FOR_GPU": (
        ArtifactError,
        "TW-DEVICE",
        "the code is not for this GPU",
        _EARLIER,
    ),
    "INVALID_PTX": (ArtifactError, "TW-DEVICE", "the driver refuses the PTX", _OLD),
    "OUT_OF_MEMORY": (
        MemoryLimitError,
        "TW-MEMORY",
        "the GPU has no memory left",
        "use a smaller batch, or end what else runs on the GPU",
    ),
    "LAUNCH_OUT_OF_RESOURCES": (
        ExecutionError,
        "TW-DEVICE",
        "a block takes more registers or shared memory than the GPU has",
        "schedule fewer threads in a block",
    ),
    "LAUNCH_TIMEOUT": (
        ExecutionError,
        "TW-DEVICE",
        "a kernel ran for too long, and the system ended it",
        _AGAIN,
    ),
    "ILLEGAL_ADDRESS": (
        ExecutionError,
        "TW-DEVICE",
        "a kernel touched memory that it does not have",
        _AGAIN,
    ),
}


def bindings() -> Any:
    """NVIDIA's bindings of the driver. Raises ArtifactError (TW-DEVICE) without them, or it."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise ArtifactError(
            "the device 'cuda' needs the package cuda-bindings",
            code="TW-DEVICE",
            hint="pip install 'tilewright[cuda]'",
        ) from error
    except RuntimeError as error:
        raise _no_driver() from error
    return driver


def gpu_name(api: Any) -> str:
    """The name of the first GPU. api: the bindings, or an object with their functions.

    Raises an error of `ERRORS`.
    """
    driver = Driver(api)
    driver("Init", 0)
    name: bytes = driver("DeviceGetName", _NAME, driver("DeviceGet", 0))
    return name.partition(b"\0")[0].decode(errors="replace")


def _no_driver() -> ArtifactError:
    return ArtifactError(
        "the device 'cuda' needs NVIDIA's driver: there is no libcuda.so",
        code="TW-DEVICE",
        hint="install the driver, or compile for another target",
    )


class Driver:
    """The driver's functions; `api` comes from `bindings`."""

    def __init__(self, api: Any) -> None:
        self.api: Final = api

    def __call__(self, name: str, *arguments: Any) -> Any:
        """The results of `cu<name>` without its error: none, one, or several.

        Raises an error of `ERRORS`, or ExecutionError with the driver's name of the error.
        """
        try:
            failed, *found = getattr(self.api, f"cu{name}")(*arguments)
        except RuntimeError as error:
            raise _no_driver() from error
        if int(failed):
            raise _error(f"cu{name}", str(getattr(failed, "name", failed)))
        if len(found) < 2:
            return found[0] if found else None
        return tuple(found)


def _error(call: str, name: str) -> TilewrightError:
    short = name.removeprefix("CUDA_ERROR_")
    known = ERRORS.get(short)
    if known is None:
        return ExecutionError(f"{call} failed: {name}", code="TW-DEVICE", where="cuda")
    kind, code, message, hint = known
    return kind(f"{message} ({name} of {call})", code=code, hint=hint)
