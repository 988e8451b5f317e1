"""Options of the test suite: golden files and the lists of ONNX's own tests, updated by a flag.

Golden files are the expected text of printers, kept in tests/golden. Hypothesis draws the same
examples every time, so that nothing fails by chance; `--hypothesis-profile explore` draws others.
"""

from __future__ import annotations

import copy
import gc
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from tests import shared_objects
from tests.conformance import lists, node_cases
from tests.selection import (
    draw_fewer,
    mark_covering,
    mark_representatives,
    mark_sampled,
)
from tilewright.base import collector, flags
from tilewright.base.roomy import roomy
from tilewright.runtime.threads import available
from tilewright.targets.cpu import compile as cpu

GOLDEN = Path(__file__).parent / "golden"

# What these measure is how busy the machine is, or how an example was drawn; no property of ours.
CHANCE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile(
    "same", deadline=None, derandomize=True, suppress_health_check=CHANCE
)
settings.register_profile("explore", deadline=None, suppress_health_check=CHANCE)
settings.load_profile("same")
# Hypothesis also tries constants from the source of every module that is imported, and so draws
# other examples when fewer tests are collected. Parsing them takes seconds, too.
if hasattr(providers, "_local_constants"):  # not public: another version may lack them
    providers._get_local_constants = lambda: providers._local_constants


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the golden files instead of comparing",
    )
    parser.addoption(
        "--update-conformance",
        action="store_true",
        help="write tests/conformance/*.txt and the row of docs/status.md instead of comparing",
    )


def pytest_configure(config: pytest.Config) -> None:
    """What schedules and forms are chosen must not depend on where the tests run.

    The machine keeps its instructions, and is given the caches, cores and costs of one that is
    usual.
    """
    from tilewright.targets.cpu import machine

    machine._caches = lambda: (32 << 10, 1 << 20, 32 << 20)
    machine._physical_cores = lambda: 2
    machine._costs = lambda features: ()
    # Otherwise each compilation would count all objects of the collected tests.
    collector._MANY = sys.maxsize
    # And TorchDynamo would look through them after each of its own.
    os.environ.setdefault("TORCH_DYNAMO_RUN_GC_AFTER_COMPILE", "0")
    # Threads of NumPy's products wait busily for processors that other workers are using.
    # Workers and other processes inherit this; NumPy is loaded here already.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if config.pluginmanager.hasplugin("cacheprovider"):
        node_cases.folder = config.cache.mkdir("onnx")
        shared_objects.folder = config.cache.mkdir("objects")
    if "PYTEST_XDIST_WORKER" in os.environ:
        # The other processors are at work on other tests, and a large process forks slowly.
        from tilewright.driver import early_kernels, kernels

        kernels.workers = lambda jobs, processors: 1
        early_kernels.can_fork = lambda: False
    # A shell runs background jobs with interrupts ignored; some tests send them.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    mark_representatives(items, whole=not any("::" in a for a in config.args))
    mark_sampled(items)
    mark_covering(items)
    if config.option.markexpr == "not slow":
        draw_fewer(items)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, Any, Any]:
    """Collecting allocates much and leaves little garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was collected lives to the end, so the garbage collector need not look at it again.

    Tests allocate much and leave few cycles, so it runs less often than by Python's default.
    """
    gc.freeze()
    gc.set_threshold(1_000_000, 20, 100)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    _run_and_report(item, nextitem)
    return True


@roomy
def _run_and_report(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """As pytest does, but a worker of xdist sends one report of a test that passes, not three.

    Sending and reading reports takes as long as an empty test. JUnit's files have the times of all.
    """
    option, where = (
        item.config.option,
        {"nodeid": item.nodeid, "location": item.location},
    )
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    whole = not is_worker or option.xmlpath or option.verbose > 0
    if whole:
        item.ihook.pytest_runtest_logstart(**where)
    for report in runtestprotocol(item, log=whole, nextitem=nextitem):
        if not whole and (report.when == "call" or not report.passed):
            item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(**where)


@pytest.fixture(scope="session", autouse=True)
def settings_of_the_tests(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Tests see none of the user's settings, and write to no home folder; workers share a cache.

    TILEWRIGHT_MCPU stays: with it, the tests run as on a lesser processor.
    """
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with pytest.MonkeyPatch.context() as patch:
        for flag in flags.TABLE:
            if flag is not flags.MCPU:
                patch.delenv(flag.name, raising=False)
        patch.setenv("TILEWRIGHT_CACHE_DIR", str(shared / "cache"))
        patch.setenv("TILEWRIGHT_RECORDS", "off")
        objects = shared_objects.folder or shared / "objects"
        objects.mkdir(exist_ok=True)
        object_code = shared_objects.shared(cpu.object_code, objects)
        patch.setattr(cpu, "object_code", object_code)
        if pytestconfig.option.markexpr == "not slow":
            # PoCL takes twice as long to optimize kernels as small as these.
            patch.setenv("POCL_EXTRA_BUILD_FLAGS", "-cl-opt-disable")
        patch.setenv("TILEWRIGHT_NUM_THREADS", str(min(2, available())))
        yield


@pytest.fixture(autouse=True)
def same_numbers(request: pytest.FixtureRequest) -> None:
    """A test draws the same numbers, whichever tests of its module ran before."""
    for name in ("RNG", "rng"):
        generator = getattr(request.module, name, None)
        if isinstance(generator, np.random.Generator):
            source = generator.bit_generator
            _DRAWN.setdefault(request.module.__name__, copy.deepcopy(source.state))
            source.state = _DRAWN[request.module.__name__]


# What the generator of each module was like before its first test.
_DRAWN: dict[str, Any] = {}


def pytest_sessionfinish() -> None:
    """Nothing that is left is examined by collections while pytest and Python end."""
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    if shared_objects.folder is not None and "PYTEST_XDIST_WORKER" not in os.environ:
        shared_objects.delete_unused(shared_objects.folder)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The counts of ONNX's own tests; here because workers of xdist cannot write the lists."""
    reports = [
        r for rs in terminalreporter.stats.values() for r in rs if hasattr(r, "when")
    ]
    outcomes = [
        lists.Outcome(*value)
        for r in reports
        if r.when == "call"
        for key, value in r.user_properties
        if key == "conformance"
    ]
    if not outcomes:
        return
    text = lists.summary(outcomes)
    terminalreporter.write_line(f"ONNX's own tests passed: {text}")
    if config.getoption("--update-conformance"):
        from tests.conformance.test_onnx import TESTS

        lists.write(outcomes)
        lists.write_status_row(lists.counts(TESTS))
        terminalreporter.write_line(
            "wrote tests/conformance/*.txt and the row of docs/status.md"
        )


@pytest.fixture
def own_garbage() -> None:
    """The garbage collector examines only objects that the test makes."""
    gc.freeze()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)` compares `text` with tests/golden/<name>.txt."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text + "\n")
            return
        assert path.exists(), (
            f"{path.name} is missing; run pytest --update-golden and read it"
        )
        assert text + "\n" == path.read_text(), (
            f"differs from {path.name} (--update-golden)"
        )

    return compare
