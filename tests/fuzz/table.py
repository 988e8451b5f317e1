"""Generators that fail as they are told: by their seeds."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter

from tilewright.testing.fuzz.campaign import FIRST
from tilewright.testing.fuzz.worker import CaseGenerator, FuzzFinding, Tell


def well(seed: int, tell: Tell) -> None:
    return None


def faulty(seed: int, tell: Tell) -> FuzzFinding | None:
    """Every third is wrong, in one way or another."""
    number = seed - FIRST
    if number % 3 != 1:
        return None
    if number == 4:
        raise KeyError("four")
    return FuzzFinding(
        f"value {number} is wrong", f"def test_it():\n    assert {number} == 0\n"
    )


def fatal(seed: int, tell: Tell) -> None:
    """The second takes its process with it."""
    if seed == FIRST + 1:
        tell("steps of it")
        os.kill(os.getpid(), signal.SIGSEGV)


def fatal_again(seed: int, told: str) -> FuzzFinding | None:
    return FuzzFinding(f"again: {told}", "")


def endless(seed: int, tell: Tell) -> None:
    if seed == FIRST:
        time.sleep(1000)


def greedy(seed: int, tell: Tell) -> None:
    bytearray(1 << 40)


def patient(seed: int, tell: Tell) -> None:
    tell("still")
    time.sleep(1000)


SEEN: Counter[tuple[str, str]] = Counter()  # of the process that runs it


def led(seed: int, tell: Tell) -> FuzzFinding | None:
    """Goes on from the pairs that met: each program adds the first that did not."""
    new = next(n for n in range(100) if not SEEN["a", f"{n}"])
    SEEN["a", f"{new}"] += 1
    return FuzzFinding(f"pair {new}", "") if new == 5 else None


def seen_by_led() -> Counter[tuple[str, str]]:
    return SEEN


LED = CaseGenerator("led", led, met=seen_by_led)
WELL = CaseGenerator("well", well)
FAULTY = CaseGenerator("faulty", faulty)
FATAL = CaseGenerator("fatal", fatal, fatal_again)
ENDLESS = CaseGenerator("endless", endless, seconds=0.2)
GREEDY = CaseGenerator("greedy", greedy)
PATIENT = CaseGenerator("patient", patient, seconds=1000)
