"""Several processes, signals and a full disk: nothing is lost, and nothing remains."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import onnx
import pytest

import tilewright as tw
from tests.robust.models import FLOAT, model, node
from tests.waiting import PATIENCE, until
from tilewright.base import store
from tilewright.base.errors import TilewrightWarning

X = np.random.default_rng(0).standard_normal((1, 4, 12, 12), dtype=np.float32)


def convolutions(count=4):
    """As many kernels as there are layers: each has other channels."""
    rng = np.random.default_rng(1)
    nodes, weights = [], {}
    for n in range(count):
        weights[f"w{n}"] = rng.standard_normal((5 + n, 4 + n, 3, 3), dtype=np.float32)
        nodes.append(
            node("Conv", [f"r{n}" if n else "x", f"w{n}"], [f"c{n}"], pads=[1] * 4)
        )
        nodes.append(node("Relu", [f"c{n}"], [f"r{n + 1}"]))
    return model(nodes, {"x": (FLOAT, X.shape)}, [f"r{count}"], weights)


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A model as a file; the cache is a folder of this test."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    place = tmp_path / "m.onnx"
    onnx.save(convolutions(2), place)
    return place


def compiling(path, target, **environment):
    """A process that compiles `path` to the artifact `target`."""
    # If an interrupt hits an import, Python leaves the file open.
    strict = ["-W", "error", "-W", "ignore::ResourceWarning"]
    arguments = [
        sys.executable,
        *strict,
        "-m",
        "tilewright",
        "compile",
        path,
        "-o",
        target,
    ]
    return subprocess.Popen(
        list(map(str, arguments)),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **environment},
    )


def but_progress(err):
    """What was written on stderr but for the progress that a busy machine has time to show."""
    return [s for s in err.splitlines() if "tilewright: compiling m.onnx" not in s]


def entries(folder):
    """Whole entries of a cache, and files that writers left."""
    files = [p for p in folder.rglob("*") if p.is_file() and p.name != ".lock"]
    whole = [p for p in files if not p.name.startswith(".")]
    return whole, [p for p in files if p.name.startswith(".")]


@pytest.mark.parametrize("sharing", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_many_processes_compile_the_same_model_to_the_same_bytes(
    path, tmp_path, sharing
):
    """Some at once on one cache, one without a cache: hash seeds and sharing play no part."""
    made = [tmp_path / f"{n}.tw" for n in range(sharing + 1)]
    seeds = [{"PYTHONHASHSEED": str(n)} for n in range(sharing)]
    seeds.append({"PYTHONHASHSEED": "9", "TILEWRIGHT_CACHE": "off"})
    running = [compiling(path, t, **e) for t, e in zip(made, seeds, strict=True)]
    for process in running:
        _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0 and not but_progress(err), err
    assert len({t.read_bytes() for t in made}) == 1
    whole, left = entries(tmp_path / "cache")
    assert len(whole) >= 2 and not left


@pytest.mark.slow
@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGKILL], ids=lambda s: s.name)
def test_a_blow_in_the_middle_of_compiling(path, tmp_path, blow):
    source = convolutions()
    onnx.save(source, path)
    process = compiling(path, tmp_path / "m.tw")
    until(lambda: entries(tmp_path / "cache")[0] or process.poll() is not None)
    process.send_signal(blow)
    _, err = process.communicate(timeout=PATIENCE)
    assert "Traceback" not in err, err
    if process.returncode == 0:
        pytest.skip("it was done before the signal came")
    assert not (tmp_path / "m.tw").exists() and not list(tmp_path.glob(".*"))
    whole, left = entries(tmp_path / "cache")
    assert whole and (blow == signal.SIGKILL or not left)
    again = compiling(path, tmp_path / "m.tw")
    _, err = again.communicate(timeout=PATIENCE)
    assert again.returncode == 0 and not but_progress(err), err
    expected = tw.compile(source, cache=False)(X)
    np.testing.assert_array_equal(tw.load(tmp_path / "m.tw")(X), expected)


# If an interrupt hits llvmlite while it frees an object, llvmlite frees it again.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupts_leave_the_compiler_whole():
    """Ctrl-C at many moments of many compilations in one process; then it compiles as before."""
    source = convolutions(2)
    before = time.perf_counter()
    expected = tw.compile(source, cache=False)(X)
    whole = time.perf_counter() - before

    def on_alarm(*_):
        raise KeyboardInterrupt

    handler = signal.signal(signal.SIGALRM, on_alarm)
    interrupted = 0
    try:
        for n in range(7):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.002 + whole * n / 9)
                tw.compile(source, cache=False)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert interrupted
    np.testing.assert_array_equal(tw.compile(source, cache=False)(X), expected)


def test_a_full_disk_is_one_warning(path, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store.os, "replace", full)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        first = tw.compile(path)(X)
        second = tw.compile(path)(X)
    ours = [w for w in seen if w.category is TilewrightWarning]
    assert len(ours) == 1 and "No space left" in str(ours[0].message)
    np.testing.assert_array_equal(first, second)
    assert entries(tmp_path / "cache") == ([], [])


def ended_well(child):
    """Whether a child of ours ended with 0; one that hangs is ended."""
    status = None

    def ended():
        nonlocal status
        number, status = os.waitpid(child, os.WNOHANG)
        return number

    try:
        until(ended)
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        raise
    return status == 0


def test_executables_from_many_threads_and_forks():
    """Three executables that share the pool, called from five threads, while children fork off."""
    source = convolutions(1)
    exes = [tw.compile(source, cache=False, threads=n) for n in (1, 2, 2)]
    expected = exes[0](X)
    wrong, stop = [], threading.Event()

    def work(seed):
        n = seed
        while not stop.is_set():
            if not np.array_equal(exes[n % 3](X), expected):
                wrong.append(n)
            n += 1

    threads = [threading.Thread(target=work, args=(n,)) for n in range(5)]
    for t in threads:
        t.start()
    try:
        for n in range(3):
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", DeprecationWarning
                )  # 3.12: fork among threads
                child = os.fork()
            if child == 0:
                same = False
                try:
                    same = np.array_equal(exes[n % 3](X), expected)
                    if n == 0:
                        same &= np.array_equal(
                            tw.compile(source, cache=False)(X), expected
                        )
                finally:
                    os._exit(0 if same else 1)
            assert ended_well(child)
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert not wrong


@pytest.mark.sampled(3)
@pytest.mark.parametrize("end", ["sys.exit(3)", "raise ValueError", "os._exit(3)"])
def test_ending_while_a_daemon_thread_runs(tmp_path, end):
    """No hang and no crash, whatever the pool and other threads do."""
    tw.compile(convolutions(2), cache=False, threads=2).save(tmp_path / "m.tw")
    code = f"""
import os, sys, threading, time, numpy, tilewright as tw
exe = tw.load({str(tmp_path / "m.tw")!r}, threads=2)
x = numpy.zeros((1, 4, 12, 12), numpy.float32)
def work():
    while True: exe(x)
threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
{end}
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=PATIENCE
    )
    assert done.returncode == (1 if "raise" in end else 3), done.stderr


def test_pickling_says_what_to_do_instead():
    import pickle

    for source in (
        convolutions(1),
        model([node("Relu", ["x"], ["y"])], {"x": (FLOAT, ["n"])}),
    ):
        with pytest.raises(TypeError, match="the other process"):
            pickle.dumps(tw.compile(source, cache=False))


def test_importing_is_light():
    code = (
        "import sys, tilewright; print(*sorted(m for m in sys.modules if '.' not in m))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert not loaded & {
        "onnx",
        "torch",
        "llvmlite",
        "islpy",
        "rich",
        "click",
        "ml_dtypes",
    }
