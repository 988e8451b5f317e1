"""The errors of programs and machines."""

from __future__ import annotations

from tilewright.base.errors import TilewrightError

CAPACITY = "TW-NPU-CAPACITY"


class NPUError(TilewrightError):
    """A program that the machine cannot run; `where` names the instruction or the operator.

    Its code is CAPACITY for values that do not fit on the chip.
    """

    code = "TW-NPU"
