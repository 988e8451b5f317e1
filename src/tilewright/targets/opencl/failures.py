"""What an error of OpenCL means: one line of ours for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tilewright.base.errors import ExecutionError, MemoryLimitError, TilewrightError

Row = tuple[type[TilewrightError], str, str, str]
_FULL: Final = (
    MemoryLimitError,
    "TW-DEVICE-MEMORY",
    "it is out of memory or resources",
    "take a smaller batch, or close what else uses the device",
)
_ENDED: Final = (
    ExecutionError,
    "TW-DEVICE",
    "its driver ended a kernel, which ran for too long or needed more than it has",
    "take a smaller batch; a driver that also draws a screen ends kernels after seconds",
)
_LOST: Final = (
    ExecutionError,
    "TW-DEVICE",
    "it takes no more commands after an earlier error",
    "restart the process",
)
# Words of the error, all of them: our class, its code, the message, the hint. The first row that
# fits counts: memory that is lacking is told before or when a kernel begins, and so is no reason
# for OUT_OF_RESOURCES of one that was waited for, which is what drivers say of one they ended.
FAILURES: Final[Sequence[tuple[tuple[str, ...], Row]]] = (
    (("clWaitForEvents", "OUT_OF_RESOURCES"), _ENDED),
    (("EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST",), _ENDED),
    (("OUT_OF_RESOURCES",), _FULL),
    (("MEM_OBJECT_ALLOCATION_FAILURE",), _FULL),
    (("OUT_OF_HOST_MEMORY",), _FULL),
    (("INVALID_CONTEXT",), _LOST),
    (("INVALID_COMMAND_QUEUE",), _LOST),
    (("DEVICE_NOT_AVAILABLE",), _LOST),
)


def failure(error: Exception, doing: str, device: str) -> TilewrightError:
    """The error of ours. doing: what failed, on which device."""
    text = first_line(error)
    for words, (kind, code, message, hint) in FAILURES:
        if all(word in text for word in words):
            return kind(
                f"{doing} on {device}: {message} ({text})", code=code, hint=hint
            )
    return ExecutionError(f"{doing}: {text}", code="TW-DEVICE")


def first_line(error: Exception) -> str:
    """What an error of OpenCL says first; of a compiler's log the first error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    wrong = [line for line in lines if "error:" in line]
    return (wrong or lines or [type(error).__name__])[0]
