"""The thread pool: every iteration runs once, under contention, nesting, fork and any exit."""

import ctypes
import math
import os
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from tests.runtime import native
from tests.waiting import PATIENCE, until
from tilewright.base.errors import TilewrightWarning, UnsupportedError
from tilewright.runtime import abi, pool
from tilewright.runtime.executable import Executable
from tilewright.runtime.loader import link
from tilewright.runtime.threads import affinity
from tilewright.targets.cpu.pool import ir, pool_object

# closure: i64 hits[extent], then (for `nest`) the context. A region of i64 iterations.
REGIONS = """
define internal void @pause() noinline {
  fence seq_cst
  ret void
}
define void @hit(ptr %closure, i64 %thread, i64 %begin, i64 %end) {
entry:
  %any = icmp slt i64 %begin, %end
  br i1 %any, label %loop, label %done
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %p = getelementptr i64, ptr %closure, i64 %i
  %old = atomicrmw add ptr %p, i64 1 seq_cst
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}
define void @call(ptr %ctx, ptr %closure, i64 %extent) {
  %parallel = load ptr, ptr %ctx
  call void %parallel(ptr %ctx, ptr @hit, ptr %closure, i64 %extent)
  ret void
}
define internal void @inner(ptr %closure, i64 %thread, i64 %begin, i64 %end) {
  %ctx = load ptr, ptr %closure
  %hits = getelementptr i64, ptr %closure, i64 1
  call void @call(ptr %ctx, ptr %hits, i64 2)
  ret void
}
define void @nest(ptr %ctx, ptr %closure, i64 %extent) {
  store ptr %ctx, ptr %closure
  %parallel = load ptr, ptr %ctx
  call void %parallel(ptr %ctx, ptr @inner, ptr %closure, i64 %extent)
  ret void
}
define internal void @slow_region(ptr %closure, i64 %thread, i64 %begin, i64 %end) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %next = add i64 %i, 1
  call void @pause()
  %more = icmp slt i64 %next, 3000000
  br i1 %more, label %loop, label %done
done:
  call void @hit(ptr %closure, i64 %thread, i64 %begin, i64 %end)
  ret void
}
define void @slow(ptr %ctx, ptr %closure, i64 %extent) {
  %parallel = load ptr, ptr %ctx
  call void %parallel(ptr %ctx, ptr @slow_region, ptr %closure, i64 %extent)
  ret void
}
"""
# closure: i64 iterations of thread 0, i64 iterations of the other threads, which are slow.
UNEVEN = """
define internal void @uneven_region(ptr %closure, i64 %thread, i64 %begin, i64 %end) {
entry:
  %first = icmp eq i64 %thread, 0
  %slot = select i1 %first, i64 0, i64 1
  %p = getelementptr i64, ptr %closure, i64 %slot
  %size = sub i64 %end, %begin
  %old = atomicrmw add ptr %p, i64 %size seq_cst
  %steps = mul i64 %size, 1000000
  br i1 %first, label %done, label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %next = add i64 %i, 1
  fence seq_cst
  %more = icmp slt i64 %next, %steps
  br i1 %more, label %loop, label %done
done:
  ret void
}
define void @uneven(ptr %ctx, ptr %closure, i64 %extent) {
  %parallel = load ptr, ptr %ctx
  call void %parallel(ptr %ctx, ptr @uneven_region, ptr %closure, i64 %extent)
  ret void
}
"""
# closure: i64 iterations, i64 threads whose number another has, i64 that run now per number.
NUMBERS = """
define internal void @number_region(ptr %closure, i64 %thread, i64 %begin, i64 %end) {
  %size = sub i64 %end, %begin
  %all = atomicrmw add ptr %closure, i64 %size seq_cst
  %at = add i64 %thread, 2
  %own = getelementptr i64, ptr %closure, i64 %at
  %before = atomicrmw add ptr %own, i64 1 seq_cst
  %twice = getelementptr i64, ptr %closure, i64 1
  %wrong = atomicrmw add ptr %twice, i64 %before seq_cst
  %after = atomicrmw sub ptr %own, i64 1 seq_cst
  ret void
}
define void @numbers(ptr %ctx, ptr %closure, i64 %extent) {
  %parallel = load ptr, ptr %ctx
  call void %parallel(ptr %ctx, ptr @number_region, ptr %closure, i64 %extent)
  ret void
}
"""
IMAGE = link([native.assemble(REGIONS + UNEVEN + NUMBERS)])


def context(threads):
    the_pool = pool.shared(pool_object())
    ctx = (ctypes.c_uint64 * abi.CTX_SLOTS)()
    ctx[abi.CTX_PARALLEL] = the_pool.parallel
    ctx[abi.CTX_POOL] = the_pool.state
    ctx[abi.CTX_THREADS] = threads
    ctx.pool = the_pool  # lives as long as its addresses are in use
    return the_pool, ctx


_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


def caller(name, threads, extent=None, extra=0):
    """A function of no arguments that runs the region and returns the hits per iteration."""
    _, ctx = context(threads)
    extent = threads if extent is None else extent
    hits = (ctypes.c_int64 * (extent + extra))()
    function = _FUNCTION(IMAGE.address(name))

    def run():
        ctypes.memset(hits, 0, ctypes.sizeof(hits))
        function(ctypes.addressof(ctx), ctypes.addressof(hits), extent)
        return list(hits)[extra:]

    return run


@pytest.mark.parametrize("threads", [2, 3, 8])
@pytest.mark.parametrize("extent", [0, 1, 2, 3, 8, 33, 1000])
def test_every_iteration_runs_once(threads, extent):
    context(threads)[0].ensure(min(threads, 4))
    run = caller("call", threads, extent)
    for _ in range(500):
        assert run() == [1] * extent


def test_a_slow_thread_runs_less_than_its_part():
    the_pool, ctx = context(2)
    the_pool.ensure(2)
    counts = (ctypes.c_int64 * 2)()
    function = _FUNCTION(IMAGE.address("uneven"))
    function(ctypes.addressof(ctx), ctypes.addressof(counts), 64)
    assert sum(counts) == 64 and counts[0] >= 44


@pytest.mark.parametrize("extent", [1, 7, 2**31 - 1, 2**31, 2**33 + 5, 2**62])
def test_long_loops_and_numbers_of_threads(extent):
    """Each runs whole; threads that run at the same time have different numbers."""
    the_pool, ctx = context(3)
    the_pool.ensure(3)
    found = (ctypes.c_int64 * 5)()
    function = _FUNCTION(IMAGE.address("numbers"))
    for _ in range(20):
        ctypes.memset(found, 0, ctypes.sizeof(found))
        function(ctypes.addressof(ctx), ctypes.addressof(found), extent)
        assert list(found) == [extent, 0, 0, 0, 0]


def test_workers_sleep_and_wake():
    context(3)[0].ensure(3)
    run = caller("call", 3)
    for pause in (0, 1e-5, 1e-4, 1e-3, 5e-3) * 10:
        time.sleep(pause)
        assert run() == [1, 1, 1]


def field(the_pool, worker, offset, kind):
    line = abi.POOL_FIRST_WORKER + worker * abi.POOL_WORKER_SIZE
    return kind.from_address(the_pool.state + line + offset).value


def asleep(the_pool, worker):
    """Wait until a worker sleeps: it may not even have been let run yet."""
    until(lambda: field(the_pool, worker, abi.WORKER_ASLEEP, ctypes.c_int32))


@pytest.mark.skipif(len(affinity()) < 2, reason="there is nowhere else to go")
def test_a_worker_wakes_off_the_processor_of_its_caller():
    """Wherever the caller runs: a worker may use the caller's other processors only."""
    the_pool, _ = context(2)
    the_pool.ensure(2)
    run, allowed = caller("call", 2), os.sched_getaffinity(0)
    try:
        for here in sorted(allowed)[:2]:
            os.sched_setaffinity(0, {here})  # goes there
            os.sched_setaffinity(0, allowed)
            asleep(the_pool, 0)
            assert run() == [1, 1]
            thread = field(the_pool, 0, abi.WORKER_THREAD, ctypes.c_int64)
            apart = field(the_pool, 0, abi.WORKER_APART, ctypes.c_int32) - 1
            assert apart in allowed
            assert os.sched_getaffinity(thread) == allowed - {apart}
        before = os.sched_getaffinity(thread)
        os.sched_setaffinity(0, {here})  # nothing is left for a worker to be sent to
        asleep(the_pool, 0)
        assert run() == [1, 1]
        assert os.sched_getaffinity(thread) == before
    finally:
        os.sched_setaffinity(0, allowed)


def pool_of_ours(threads):
    """A separate pool without workers, and a function that calls regions and counts iterations."""
    own = pool.Pool(link([pool_object()]))
    ctx = (ctypes.c_uint64 * abi.CTX_SLOTS)()
    ctx[abi.CTX_PARALLEL], ctx[abi.CTX_POOL], ctx[abi.CTX_THREADS] = (
        own.parallel,
        own.state,
        threads,
    )
    hits = (ctypes.c_int64 * threads)()
    function = _FUNCTION(IMAGE.address("call"))

    def regions(count):
        ctypes.memset(hits, 0, ctypes.sizeof(hits))
        for _ in range(count):
            function(ctypes.addressof(ctx), ctypes.addressof(hits), threads)
        return list(hits)

    return own, regions


@pytest.mark.skipif(len(affinity()) < 2, reason="there is nowhere else to go")
def test_a_worker_that_comes_too_late_is_sent_away():
    """It is not asleep, so it is not woken. Here its thread never starts."""
    own, regions = pool_of_ours(2)
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        own._write(abi.POOL_WORKERS, ctypes.c_int64, 1)
        line = abi.POOL_FIRST_WORKER + abi.WORKER_THREAD
        own._write(line, ctypes.c_int64, thread.native_id)
        assert regions(1) == [1, 1]
        apart = field(own, 0, abi.WORKER_APART, ctypes.c_int32) - 1
        allowed = os.sched_getaffinity(0)
        assert apart in allowed
        assert os.sched_getaffinity(thread.native_id) == allowed - {apart}
    finally:
        stop.set()
        thread.join()


def test_a_caller_sleeps_while_workers_are_late():
    context(3)[0].ensure(3)
    run = caller("slow", 3)
    for _ in range(5):
        assert run() == [1, 1, 1]


def test_a_worker_that_is_not_let_run_loses_its_iterations():
    """Two workers whose threads start only after many regions were called: nothing waits for them.

    They find that the caller has run everything, and take part in the next regions.
    """
    own, regions = pool_of_ours(3)
    own._write(abi.POOL_WORKERS, ctypes.c_int64, 2)
    assert regions(1000) == [1000] * 3
    own.ensure(3)
    for _ in range(50):
        assert regions(200) == [200] * 3


def test_idle_workers_take_no_time():
    context(2)[0].ensure(4)
    caller("call", 4)()

    def busy():
        before = time.process_time()
        time.sleep(0.05)
        return time.process_time() - before

    # Others of this process may work a moment, and workers that were not let run yet.
    assert any(busy() < 0.01 for _ in range(40))


def test_a_region_inside_a_region_runs_in_its_caller():
    context(2)[0].ensure(2)
    run = caller("nest", 2, extent=2, extra=1)
    for _ in range(200):
        assert run() == [2, 2]


def test_two_threads_at_once():
    context(2)[0].ensure(3)
    wrong = []

    def work(shares):
        run = caller("call", shares, 9)
        wrong.extend(hits for _ in range(3000) if (hits := run()) != [1] * 9)

    threads = [threading.Thread(target=work, args=(shares,)) for shares in (2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_workers_sleep_where_others_run_alone():
    """One other caller takes one processor: of three participants, two are left."""
    the_pool, _ = context(3)
    the_pool.ensure(3)
    run = caller("call", 3)
    rivals = ctypes.c_int32.from_address(the_pool.state + abi.POOL_RIVALS)

    def called():
        before = [
            field(the_pool, n, abi.WORKER_TICKET, ctypes.c_int32) for n in range(2)
        ]
        assert run() == [1, 1, 1]
        after = [
            field(the_pool, n, abi.WORKER_TICKET, ctypes.c_int32) for n in range(2)
        ]
        return [a - b for a, b in zip(after, before, strict=True)]

    assert rivals.value == 0 and called() == [1, 1]
    try:
        for count, expected in ((1, [1, 0]), (2, [0, 0]), (9, [0, 0])):
            rivals.value = count
            assert called() == expected
    finally:
        rivals.value = 0


def test_executables_in_several_threads():
    exes = [Executable(native.model(n), threads=2) for n in (100, 1000)]
    wrong = []

    def work(exe, seed):
        rng = np.random.default_rng(seed)
        for _ in range(500):
            x = rng.standard_normal(exe.inputs[0].extents).astype(np.float32)
            if not (exe(x) == native.expected(x)).all():
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(exes[n % 2], n)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_more_threads_than_processors_do_not_spin():
    the_pool, _ = context(1)
    the_pool.ensure(len(affinity()) + 2)
    spin = ctypes.c_int64.from_address(the_pool.state + abi.POOL_SPIN)
    assert spin.value == 0


def test_workers_stay_awake_as_long_as_they_are_asked(monkeypatch):
    own, regions = pool_of_ours(2)
    lines = [abi.POOL_FIRST_WORKER + n * abi.POOL_WORKER_SIZE for n in range(2)]
    places = [*(line + abi.WORKER_AWAKE for line in lines), abi.POOL_SPIN]
    awake, second, spin = (ctypes.c_int64.from_address(own.state + p) for p in places)
    own.stay_awake(0.25)
    assert awake.value == 0  # nobody is there
    monkeypatch.setattr(pool, "affinity", lambda: {0, 1, 2})
    own.ensure(2)
    asked = int(0.25 * own.ticks_per_second)
    usual = (
        spin.value
    )  # a caller has work to do: it does not wait longer for the others
    assert awake.value == asked > usual > 0
    own.stay_awake(None)
    assert awake.value == usual
    own.stay_awake(math.inf)
    own.ensure(3)
    assert awake.value == second.value > 3600 * own.ticks_per_second
    assert spin.value == usual
    assert regions(3) == [3, 3]
    monkeypatch.setattr(pool, "affinity", lambda: {0})
    own.stay_awake(0.25)
    assert awake.value == second.value == 0  # they would take the caller's processor
    for n in range(2):
        asleep(own, n)  # also if it was to wait for ever


def test_without_more_threads_it_warns_once_and_runs(monkeypatch):
    fresh = pool.Pool(link([pool_object()]))
    monkeypatch.setattr(pool, "_create_thread", lambda *_: 11)
    with pytest.warns(TilewrightWarning, match="no more threads .* running on 1"):
        fresh.ensure(3)
    fresh.ensure(3)


TRAPS = """
define i64 @tilewright_ticks() { call void @llvm.trap() ret i64 0 }
define ptr @tilewright_worker(ptr %w) { call void @llvm.trap() ret ptr null }
define void @tilewright_parallel(ptr %c, ptr %r, ptr %d, i64 %n) { call void @llvm.trap() ret void }
define void @tilewright_traced(ptr %c, ptr %r, ptr %d, i64 %n) { call void @llvm.trap() ret void }
declare void @llvm.trap()
"""


def test_the_code_of_an_artifact_s_pool_does_not_run_when_it_is_loaded(tmp_path):
    run_python(
        f"""
        import dataclasses
        from tilewright.runtime import bundle
        from tilewright.runtime.executable import load
        evil = dataclasses.replace(native.model(), support=(native.assemble({TRAPS!r}),))
        path = {str(tmp_path / "evil.tw")!r}
        bundle.save(evil, path)
        loaded = load(path, threads=2)
        assert loaded.threads == 2
        assert (load(path, threads=1)(x) == y).all()
        assert loaded._pool is not exe._pool
        child = os.fork()
        if child == 0:
            import resource
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            loaded(x)  # here it does, and nowhere before
            os._exit(0)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
        """
    )


def test_the_pool_of_an_artifact_serves_no_other_model():
    """Whoever comes first: models share a pool only where its code is the same, byte by byte."""
    run_python(
        f"""
        import dataclasses
        evil = dataclasses.replace(native.model(), support=(native.assemble({TRAPS!r}),))
        first = Executable(evil, threads=2)
        one, two = (Executable(native.model(n), threads=2) for n in (100, 200))
        assert one._pool is two._pool is exe._pool and one._pool is not first._pool
        assert (one(x) == y).all()
        """
    )


def test_a_pool_without_workers_goes_away_and_one_with_workers_stays():
    import weakref

    other = native.assemble(TRAPS)
    gone = weakref.ref(pool.shared(other))
    assert gone() is None
    kept = Executable(native.model(), threads=2)
    kept(np.zeros(100, np.float32))
    stays = weakref.ref(kept._pool)
    del kept
    assert stays() is pool.shared(pool_object())


def test_the_pool_is_written_for_two_architectures():
    assert "cntvct" in ir("aarch64") and "syscall" in ir("x86_64")
    with pytest.raises(
        UnsupportedError, match="no thread pool for the architecture riscv64"
    ):
        ir("riscv64")


def test_fork():
    """In a separate process, so that the child inherits nothing from the test runner."""
    run_python(
        """
        import ctypes
        from tilewright.runtime import abi
        exe.stay_awake(0.25)
        at = exe._pool.state + abi.POOL_FIRST_WORKER + abi.WORKER_AWAKE
        exe(x)
        awake = ctypes.c_int64.from_address(at)
        asked = awake.value
        for generation in range(3):
            assert (exe(x) == y).all()
            child = os.fork()
            if child == 0:
                assert (exe(x) == y).all()
                assert exe._pool.workers == 1 and awake.value == asked > 0
                grandchild = os.fork()
                if grandchild == 0:
                    assert (exe(x) == y).all()
                    os._exit(0)
                assert os.waitpid(grandchild, 0)[1] == 0
                os._exit(0)
            assert (exe(x) == y).all()
            assert os.waitpid(child, 0)[1] == 0
        """
    )


def test_fork_while_another_thread_runs():
    run_python(
        """
        stop = False
        def forever():
            while not stop:
                exe(x)
        thread = threading.Thread(target=forever)
        thread.start()
        for _ in range(20):
            child = os.fork()
            if child == 0:
                assert (exe(x) == y).all()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        stop = True
        thread.join()
        """
    )


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        pytest.param("", 0, marks=pytest.mark.slow),
        pytest.param("sys.exit(3)", 3, marks=pytest.mark.slow),
        ("raise KeyError('x')", 1),
        ("os._exit(4)", 4),
        ("threading.Thread(target=forever, daemon=True).start(); time.sleep(0.05)", 0),
        pytest.param(
            "threading.Thread(target=forever, daemon=True).start(); sys.exit(5)",
            5,
            marks=pytest.mark.slow,
        ),
        ("import atexit; atexit.register(lambda: exe(x))", 0),
        ("sys.modules.clear(); del pool, exe", 0),
    ],
)
def test_every_exit_is_clean(ending, code):
    run_python("def forever():\n    while True: exe(x)\n" + ending, code)


def test_signals_reach_python():
    run_python(
        """
        import signal
        seen = []
        signal.signal(signal.SIGUSR1, lambda *_: seen.append(threading.current_thread()))
        for _ in range(50):
            os.kill(os.getpid(), signal.SIGUSR1)
            exe(x)
        assert set(seen) == {threading.main_thread()}
        """
    )


def run_python(body, code=0):
    head = """
    import os, sys, threading, time
    import numpy as np
    from tests.runtime import native
    from tilewright.runtime import pool
    from tilewright.runtime.executable import Executable
    exe = Executable(native.model(), threads=2)
    x = np.arange(100, dtype=np.float32)
    y = native.expected(x)
    assert (exe(x) == y).all()
    """
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    program = textwrap.dedent(head) + textwrap.dedent(body)
    result = subprocess.run(
        # Python 3.12 and later warn of a fork among threads, which these tests are about.
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],
        env={**os.environ, "PYTHONPATH": f"{root}:{root}/src"},
        capture_output=True,
        timeout=PATIENCE,
        text=True,
        check=False,
    )
    assert result.returncode == code, result.stderr
    if code != 1:
        assert result.stderr == ""
