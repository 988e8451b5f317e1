"""Tiered compilation: calls are interpreted until compiled code replaces the interpreter."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import tilewright as tw
from tests.waiting import PATIENCE, until
from tilewright.base import events
from tilewright.base.dtypes import float32
from tilewright.base.errors import (
    CompileError,
    InputError,
    TilewrightWarning,
    UnsupportedError,
)
from tilewright.driver import background, first_tier, processes, sources
from tilewright.driver.options import Options
from tilewright.driver.tiered import TieredExecutable
from tilewright.expr.nodes import Buffer
from tilewright.loops.nodes import Block, Kernel

RNG = np.random.default_rng(0)
X, W, B = (
    RNG.standard_normal(shape).astype(np.float32) for shape in ((5, 8), (8, 6), (6,))
)
TEXT = """
(float[5, 8] x) => (float[5, 6] y) { h = MatMul(x, w) a = Add(h, b) y = Tanh(a) }
"""
Y = np.tanh(X @ W + B)
CLOSE = 1e-5


def model(text: str = TEXT, **constants: Any) -> onnx.ModelProto:
    made = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 18, "own" : 1]> f {text}'
    )
    made.graph.initializer.extend(
        numpy_helper.from_array(a, name) for name, a in constants.items()
    )
    return made


MODEL = model(w=W, b=B)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only other thread is one that the tests are distributed by, and idle."""
    idle = threading.active_count()
    monkeypatch.setattr(processes, "can_fork", lambda: threading.active_count() == idle)


class Held:
    """A background compilation that ends when the test says so."""

    def __init__(self, build: Callable[[], Any]) -> None:
        self.build = build
        self.begun = self.over = False

    def begin(self) -> None:
        self.begun = True

    def ended(self, wait: bool) -> bool:
        self.over |= wait
        return self.over

    def model(self) -> Any:
        return self.build()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[Held]:
    """All background compilations, each of which ends when the test says so."""
    made: list[Held] = []

    def start(build: Callable[[], Any]) -> Held:
        made.append(Held(build))
        return made[-1]

    monkeypatch.setattr(background, "start", start)
    return made


def tiered(source: Any = MODEL, **options: Any) -> TieredExecutable:
    made = tw.compile(source, tiered=True, **options)
    assert isinstance(made, TieredExecutable)
    return made


def test_calls_are_interpreted_until_the_code_is_ready(held: list[Held]) -> None:
    source = sources.import_model(MODEL, (), Options())
    graph = weakref.ref(source)
    exe = tiered(source)
    del source
    assert [str(t) for t in (*exe.inputs, *exe.outputs)] == [
        "x: float32[5, 8]",
        "y: float32[5, 6]",
    ]
    out = np.empty_like(Y)
    assert exe(X, out=out) is out
    np.testing.assert_allclose(out, Y, atol=CLOSE)
    assert not exe.ready and "interpreted" in repr(exe)
    held.pop().over = True
    np.testing.assert_allclose(exe(x=X), Y, atol=CLOSE)
    assert exe.ready and "compiled" in repr(exe)
    gc.collect()
    assert graph() is None, "the weights are held twice"
    full = exe.wait()
    assert full.model.kernels
    np.testing.assert_array_equal(exe(X), full(X))
    np.testing.assert_array_equal(exe.run({"x": X})[0], full(X))


def test_the_compilation_begins_after_the_first_call(held: list[Held]) -> None:
    exe = tiered()
    assert not exe.ready and not held[0].begun
    exe(X)
    assert held[0].begun
    other = tiered()
    other.wait()
    assert held[1].begun


def at_step(monkeypatch: pytest.MonkeyPatch, do: Callable[[str], object]) -> list[str]:
    """Call `do` with each value that is interpreted, before it is used; lists their names."""
    names: list[str] = []
    steps = first_tier.steps

    def watched(*args: Any) -> Iterator[Any]:
        for value, array in steps(*args):
            names.append(value.name)
            do(value.name)
            yield value, array

    monkeypatch.setattr(first_tier, "steps", watched)
    return names


def test_an_interpreted_call_is_run_again_by_the_code(
    held: list[Held], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long an operator takes, whose thread then ends without the rest."""
    exe = tiered()
    go = threading.Event()

    def pause(name: str) -> None:
        if name == "h":
            held[0].over = True
            assert go.wait(PATIENCE)

    names = at_step(monkeypatch, pause)
    before = threading.active_count()
    result = exe(X)
    assert exe.ready
    np.testing.assert_array_equal(result, exe.wait()(X))
    go.set()
    until(lambda: threading.active_count() == before)
    assert "h" in names and "y" not in names


def test_an_interpreted_call_has_the_context_of_its_caller(
    held: list[Held], monkeypatch: pytest.MonkeyPatch
) -> None:
    variable: ContextVar[int] = ContextVar("variable", default=0)
    seen: set[int] = set()
    at_step(monkeypatch, lambda _: seen.add(variable.get()))
    exe = tiered()
    variable.set(1)
    exe(X)
    assert seen == {1}


def test_a_call_does_not_wait_for_a_thread_that_waits(
    held: list[Held], monkeypatch: pytest.MonkeyPatch
) -> None:
    exe = tiered()
    met, go = threading.Event(), threading.Event()

    def ended(wait: bool) -> bool:
        met.set()
        return go.wait(PATIENCE) if wait else False

    monkeypatch.setattr(held[0], "ended", ended)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(exe.wait()))
    thread.start()
    assert met.wait(PATIENCE)
    np.testing.assert_allclose(exe(X), Y, atol=CLOSE)
    assert not exe.ready
    go.set()
    thread.join()
    np.testing.assert_array_equal(found[0](X), exe(X))


def test_threads_call_at_once_while_a_process_compiles() -> None:
    exe = tiered()
    wrong: list[Any] = []

    def call() -> None:
        while not exe.ready:
            if np.abs(exe(X) - Y).max() > CLOSE:
                wrong.append(exe)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    np.testing.assert_allclose(exe(X), Y, atol=CLOSE)


def test_a_program_with_threads_has_a_thread_compile() -> None:
    go = threading.Event()
    other = threading.Thread(target=go.wait)
    other.start()
    try:
        exe = tiered()
        assert any(t.name == "tilewright-background" for t in threading.enumerate())
        np.testing.assert_allclose(exe(X), Y, atol=CLOSE)
        np.testing.assert_allclose(exe.wait()(X), Y, atol=CLOSE)
    finally:
        go.set()
        other.join()


def test_an_error_of_the_compilation_is_a_warning_once(
    held: list[Held], monkeypatch: pytest.MonkeyPatch
) -> None:
    exe = tiered()

    asked = []

    def fail() -> Any:
        asked.append(1)
        raise CompileError("no room", where="kernel k")

    monkeypatch.setattr(held[0], "model", fail)
    held[0].over = True
    with pytest.warns(TilewrightWarning, match="stays interpreted.*kernel k: no room"):
        np.testing.assert_allclose(exe(X), Y, atol=CLOSE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(exe(X), Y, atol=CLOSE)
    assert not exe.ready
    for waits in (exe.wait, lambda: exe.save("x.tw"), lambda: exe.profile(X)):
        with pytest.raises(CompileError, match="no room"):
            waits()
    assert len(asked) == 1


HOSTED = model(
    "(string[2] s, float[5, 8] x) => (string[2] t, float[5, 8] y) "
    "{ t = StringConcat(s, s) y = Relu(x) }"
)
HOSTED.opset_import[0].version = 20
WORDS = np.array(["a", "b"], object)


def test_random_numbers_with_a_seed_are_the_same_in_both_tiers(
    held: list[Held],
) -> None:
    draws = [
        "n = RandomNormal<shape=[8], seed=3.0>()",
        "u = RandomUniformLike<seed=3.0>(x)",
        "b = Bernoulli<seed=3.0>(x)",
    ]
    ends = "(float[8] x) => (float[8] n, float[8] u, float[8] b)"
    exe = tiered(model(f"{ends} {{ {' '.join(draws)} }}"))
    x = np.full(8, 0.5, np.float32)
    first = exe(x)
    for one, other in zip(first, exe.wait()(x), strict=True):
        np.testing.assert_allclose(one, other, atol=CLOSE)
        assert len(set(one.tolist())) > 1


def test_what_the_process_raises_and_warns_of_arrives_here() -> None:
    exe = tiered(HOSTED, fallback="error")
    with pytest.raises(UnsupportedError, match="StringConcat"):
        exe.wait()
    exe = tiered(HOSTED)
    with pytest.warns(TilewrightWarning, match="falls back to the host.*StringConcat"):
        exe.wait()
    words, y = exe(WORDS, X)
    assert words.tolist() == ["aa", "bb"]
    np.testing.assert_array_equal(y, np.maximum(X, 0))


def child_of(exe: TieredExecutable) -> int:
    """The process that compiles it."""
    running: Any = exe._compiled and exe._compiled._running
    (number,) = running._running
    return int(number)


def is_gone(number: int) -> bool:
    return not Path(f"/proc/{number}").exists()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilations take until they are killed."""
    monkeypatch.setattr(first_tier, "_build", lambda *_: threading.Event().wait())


@pytest.mark.usefixtures("slow")
def test_a_process_that_is_killed_leaves_the_model_interpreted() -> None:
    exe = tiered()
    os.kill(child_of(exe), signal.SIGKILL)
    with pytest.raises(CompileError, match="was killed"):
        exe.wait()
    np.testing.assert_allclose(exe(X), Y, atol=CLOSE)


@pytest.mark.usefixtures("slow")
def test_nobody_waits_for_what_nobody_needs() -> None:
    exe = tiered()
    child = child_of(exe)
    del exe
    gc.collect()
    assert is_gone(child)


def test_the_files_of_the_process_are_closed() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        tiered().wait()
        tiered()  # which nobody holds
        gc.collect()
    assert not [w for w in said if issubclass(w.category, ResourceWarning)]


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the program, in functions of `atexit`, for Python 3.12 and later."""

    def refuse(*_: object) -> None:
        raise RuntimeError("at interpreter shutdown")

    monkeypatch.setattr(os, "fork", refuse)
    monkeypatch.setattr(threading.Thread, "start", refuse)


@pytest.mark.usefixtures("late")
def test_models_run_at_the_end_of_the_program(held: list[Held]) -> None:
    np.testing.assert_allclose(tiered()(X), Y, atol=CLOSE)


@pytest.mark.usefixtures("late")
def test_models_are_compiled_at_the_end_of_the_program() -> None:
    exe = tiered()
    assert exe.ready
    np.testing.assert_allclose(exe(X), Y, atol=CLOSE)


PROGRAM = """
import os, signal, sys, threading
import tilewright as tw
from tilewright.driver import first_tier
first_tier._build = lambda *_: {build}
exe = tw.compile(sys.argv[1], tiered=True)
(child,) = exe._compiled._running._running
print(child, flush=True)
{end}
"""


@pytest.mark.parametrize(
    ("build", "end", "status"),
    [
        ("threading.Event().wait()", "", 0),
        (
            "[tw.base.events.emit('still here') for _ in iter(int, 1)]",
            "os.kill(os.getpid(), signal.SIGKILL)",
            -signal.SIGKILL,
        ),
    ],
    ids=["ends", "is-killed"],
)
def test_the_process_ends_with_the_program(
    build: str, end: str, status: int, tmp_path: Path
) -> None:
    onnx.save(MODEL, tmp_path / "m.onnx")
    code = PROGRAM.format(build=build, end=end)
    run = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "m.onnx"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert run.returncode == status
    until(lambda: is_gone(int(run.stdout)))


@pytest.mark.parametrize("calls", [0, 2])
def test_a_fork_of_the_program_compiles_for_itself(calls: int) -> None:
    """Once, at its first call or when it waits."""
    exe = tiered()
    compiled = exe._compiled
    assert compiled is not None and compiled._start is not None
    start, begun = compiled._start, []

    def again() -> Any:
        begun.append(1)
        return start()

    compiled._start = again
    lock = compiled._lock
    lock.acquire()  # as if another thread were about to take the result
    pid = os.fork()
    if pid == 0:
        status = 1
        signal.alarm(int(PATIENCE))  # of a lock that nobody gives back
        try:
            found = [*(exe(X) for _ in range(calls)), exe.wait()(X)]
            right = all(np.abs(y - Y).max() < CLOSE for y in found)
            status = 0 if right and len(begun) == 1 else 2
        finally:
            os._exit(status)
    lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    np.testing.assert_allclose(exe.wait()(X), Y, atol=CLOSE)
    assert not begun


def test_a_saved_model_and_a_profile_are_of_the_compiled_code(
    held: list[Held], tmp_path: Path
) -> None:
    exe = tiered()
    exe.save(tmp_path / "m.tw")
    np.testing.assert_array_equal(tw.load(tmp_path / "m.tw")(X), exe(X))
    exe = tiered(cache=False)
    assert [row.name for row in exe.profile(X).rows]
    assert exe.ready


def test_the_cache_gets_the_compiled_code_only(held: list[Held], folder: Path) -> None:
    source = MODEL.SerializeToString()
    exe = tiered(source)
    exe(X)
    assert not list(folder.rglob("model-*"))
    exe.wait()
    with events.record() as log:
        again, plain = tiered(source), tw.compile(source)
    assert sum(e.kind == "model-cached" for e in log) == 2
    assert again.ready and len(held) == 1
    np.testing.assert_array_equal(again(X), plain(X))


def test_inputs_with_defaults_have_tiers_of_their_own(held: list[Held]) -> None:
    source = model(
        "(float[5, 8] x, float[6] b) => (float[5, 6] y) { h = MatMul(x, w) y = Add(h, b) }",
        w=W,
        b=B,
    )
    exe = tiered(source)
    assert list(exe.defaults) == ["b", "w"] or set(exe.defaults) == {"b"}
    for over in (False, True):
        for one in held:
            one.over = over
        np.testing.assert_allclose(exe(X), X @ W + B, atol=CLOSE)
        np.testing.assert_allclose(exe(X, b=-B), X @ W - B, atol=CLOSE)
    assert len(held) >= 2 and exe.ready


def test_a_caller_may_change_every_result(held: list[Held]) -> None:
    """Also one that is a constant of the model, or its input."""
    exe = tiered(
        model(
            "(float[6] x) => (float[6] y, float[6] z) { y = Identity(b) z = Identity(x) }",
            b=B,
        )
    )
    x = B.copy()
    for _ in range(2):
        y, z = exe(x)
        np.testing.assert_array_equal(y, B)
        np.testing.assert_array_equal(z, B)
        y += 1
        z += 1
    np.testing.assert_array_equal(x, B)


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        (Kernel("k", (), (Buffer("x", (4,), float32),), Block(())), {}, "Kernel"),
        (MODEL, {"target": "vta"}, "target 'vta' has one tier"),
        (MODEL, {"aliases": {"y": "x"}}, "in place"),
        (model("(float[n] x) => (float[n] y) { y = Relu(x) }"), {}, "'?x'?"),
        (
            model("(float[n] x) => (float[n] y) { y = Relu(x) }"),
            {"dims": {"n": (1, 4)}},
            "another shape.*dims=",
        ),
        (
            model("(float[4] x, int64[2] s) => (float[p, q] y) { y = Reshape(x, s) }"),
            {},
            "depend on the values of s",
        ),
        (MODEL, {"tiered": "yes"}, "tiered='yes'.*True or False"),
    ],
)
def test_what_has_one_tier_is_refused(
    source: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        tw.compile(source, **{"tiered": True, **options})


def test_one_value_for_each_dimension_is_enough(held: list[Held]) -> None:
    exe = tiered(model("(float[n] x) => (float[n] y) { y = Relu(x) }"), dims={"n": 8})
    np.testing.assert_array_equal(exe(X[0]), np.maximum(X[0], 0))
