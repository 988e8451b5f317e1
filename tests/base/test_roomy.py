"""Calls in a large piece of Python's stack ask the system for no memory."""

import resource
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tilewright.base.roomy import roomy
from tilewright.driver import background, compile, stages, steps, text
from tilewright.driver.compile import schedules
from tilewright.tune.measure.builder import ProgramBuilder

CALLS = 500


def nothing() -> None:
    pass


# Its frame is larger than that of `faults_below`, so one of some depths has no room for it.
nothing.__code__ = nothing.__code__.replace(co_stacksize=100)


def faults_below(depth: int) -> int:
    """The page faults of calls at this depth: some for each one that asks for memory."""
    if depth:
        return faults_below(depth - 1)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for _ in range(CALLS):
        nothing()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def most_faults(*_: Any) -> int:
    return max(map(faults_below, range(300)))


def in_thread(run: Callable[[], int]) -> int:
    """`run()` in a thread, which has a stack of its own, not the one of this test."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


def test_calls_at_any_depth_ask_for_no_memory() -> None:
    if sys.version_info < (3, 14):  # others may keep frames otherwise
        assert in_thread(most_faults) >= CALLS
    assert in_thread(roomy(lambda: most_faults())) < CALLS


def test_the_function_is_the_same_to_its_callers() -> None:
    def two(a: int, /, *, b: int = 2) -> int:
        """Adds."""
        return a + b

    assert roomy(two) is two and two(1) == 3 and two.__doc__ == "Adds."


@pytest.mark.parametrize(
    ("entry", "module", "step"),
    [
        (partial(compile, cache=False), steps, "executable"),
        (partial(text, kind="graph"), stages, "text"),
        (schedules, stages, "schedules"),
    ],
)
def test_compilation_has_room(
    entry: Callable[..., Any],
    module: ModuleType,
    step: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []

    def measured(*_: Any) -> Any:
        found.append(most_faults())
        return SimpleNamespace(defaults=())

    monkeypatch.setattr(module, step, measured)
    in_thread(partial(entry, "model.onnx"))
    assert found[0] < CALLS


def test_compilation_in_the_background_has_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background.processes, "can_fork", lambda: False)
    found: list[int] = []
    work = background.start(lambda: found.append(most_faults()))  # type: ignore[arg-type, func-returns-value]
    work.begin()
    assert work.ended(True) and found[0] < CALLS


def test_processes_that_build_programs_have_room() -> None:
    def built() -> int:
        [(_, result)] = ProgramBuilder().build([(0, lambda: b"%d" % most_faults())])
        return int(result.data)

    assert in_thread(built) < CALLS
