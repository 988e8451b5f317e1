"""Machine descriptions: what a file says of a processor, its caches and its costs.

A description changes what `machine(mcpu)` and the cost model assume, and says nothing of
instructions: those are what the processor has. `python -m benchmarks.calibrate` writes one.

    l1 = 32768            # any of FACTS
    clock = 3.7

    [costs]
    share_ns = 8000       # any constant of cost.py
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from tilewright.base.errors import InputError
from tilewright.base.text import did_you_mean
from tilewright.targets.cpu.cost import constants
from tilewright.targets.cpu.machine import CpuMachine

# Fields of CpuMachine, and the type of each.
FACTS: Final[Mapping[str, type]] = {
    "l1": int,
    "l2": int,
    "l3": int,
    "line": int,
    "clock": float,
}
_FOR_PEOPLE: Final = "processor"


def described(machine: CpuMachine, given: Mapping[str, Any]) -> CpuMachine:
    """The machine with what a description says of it.

    Raises InputError, which names the field, for one that is unknown or has no sensible value.
    """
    costs = given.get("costs", {})
    if not isinstance(costs, Mapping):
        raise InputError(
            "costs is not a table", hint="write [costs] and a constant per line"
        )
    facts = {k: v for k, v in given.items() if k not in ("costs", _FOR_PEOPLE)}
    known = {c.name: int if c.whole else float for c in constants()}
    _check(facts, FACTS, "")
    _check(costs, known, "costs.")
    measured = dict(machine.measured) | dict(costs)
    return replace(machine, **facts, measured=tuple(sorted(measured.items())))


def _check(given: Mapping[str, Any], known: Mapping[str, type], prefix: str) -> None:
    for name, value in given.items():
        if name not in known:
            hint = did_you_mean(name, known)
            raise InputError(
                f"{prefix}{name} is not a field of a machine description", hint=hint
            )
        whole = known[name] is int
        number = isinstance(value, int if whole else int | float) and not isinstance(
            value, bool
        )
        if not number or not 0 < value < math.inf:
            expected = "an integer of at least 1" if whole else "a number above 0"
            raise InputError(
                f"{prefix}{name} is {value!r}",
                hint=f"give {expected}, or leave the field out",
            )
