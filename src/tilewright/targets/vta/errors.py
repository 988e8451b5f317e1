"""The errors of programs for the accelerator."""

from __future__ import annotations

from tilewright.base.errors import TilewrightError

__all__ = ["DeadlockError", "VTAError"]


class VTAError(TilewrightError):
    """An instruction stream, or a request to make one, that the machine cannot carry out.

    `where` is the instruction's index in the stream and its text, as far as there is one.
    """

    code = "TW-VTA"


class DeadlockError(VTAError):
    """Instructions wait for tokens that never come; the message names the queues."""

    code = "TW-VTA-DEADLOCK"
