"""Real-time priority: other programs on a processor do not interrupt the one that is timed."""

from __future__ import annotations

import os
import resource
from typing import Final

from tilewright.base.errors import InputError

# The lowest real-time priority is above that of every normal program.
_PRIORITY: Final = 1
_GRACE: Final = 1.0  # seconds after which the system ends what nobody has ended in time


def check_realtime() -> None:
    """Raise InputError if this process may not have real-time priority."""
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_PRIORITY))
    except PermissionError:
        raise InputError(
            "this process may not use real-time priority",
            where="realtime",
            hint="run as root, with CAP_SYS_NICE or with `ulimit -r 1`; or leave the option out",
        ) from None
    os.sched_setscheduler(0, policy, priority)


def enter_realtime(seconds: float) -> None:
    """Run this process with real-time priority; the system ends it if it computes for longer than
    `seconds` and a grace period without waiting."""
    limit = int((seconds + _GRACE) * 1e6)
    resource.setrlimit(resource.RLIMIT_RTTIME, (limit, limit))
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_PRIORITY))
