"""Calls in a large piece of Python's stack ask the system for no memory."""

import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.roomy import roomy

CALLS = 500


def nothing() -> None:
    pass


def faults_below(depth: int) -> int:
    """The page faults of calls at this depth: some for each one that asks for memory."""
    if depth:
        return faults_below(depth - 1)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for _ in range(CALLS):
        nothing()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def most_faults(run: Callable[[int], int]) -> int:
    return max(run(depth) for depth in range(300))


def test_calls_at_any_depth_ask_for_no_memory() -> None:
    with ThreadPoolExecutor(1) as pool:  # whose thread has a stack of its own
        assert pool.submit(most_faults, roomy(faults_below)).result() < CALLS
