"""The pool of worker threads, which runs native code from artifacts: one pool per such code.

All artifacts of one version bring the same code and share one pool; code that differs in a byte
serves none but the models that brought it. Making a pool maps its code; none of it runs before the
first call that needs a worker.

Workers are plain POSIX threads without a Python thread state: they never touch the interpreter or
its lock. Their code and memory are never unmapped, so they may be asleep, or even running, at any
moment of the interpreter's end; the system ends them with the process.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import sys
import threading
import time
import warnings
from functools import cached_property
from typing import Final
from weakref import WeakValueDictionary

from tilewright.base import signals
from tilewright.base.errors import ArtifactError, TilewrightWarning
from tilewright.runtime import abi
from tilewright.runtime.loader import CodeImage, link
from tilewright.runtime.threads import MAX_THREADS, affinity

_SPIN_SECONDS: Final = 50e-6
_FOREVER: Final = 1 << 50  # ticks; the pool multiplies it
_CALIBRATION_NS: Final = 200_000
_STACK_BYTES: Final = 4 << 20
# `sizeof(pthread_attr_t)` is 56 on x86-64 and 64 on AArch64 glibc.
_ATTRIBUTES_BYTES: Final = 256
_BLOCK_BYTES: Final = abi.POOL_FIRST_WORKER + MAX_THREADS * abi.POOL_WORKER_SIZE


class Pool:
    """The worker threads and the block of memory that they and `parallel` share."""

    def __init__(self, image: CodeImage) -> None:
        self.parallel: Final = image.address(abi.POOL_PARALLEL_SYMBOL)
        self.traced: Final = image.address(abi.POOL_TRACED_SYMBOL)
        self._worker = image.address(abi.POOL_WORKER_SYMBOL)
        self._ticks = image.address(abi.POOL_TICKS_SYMBOL)
        self._image = image
        self._memory = mmap.mmap(
            -1, _BLOCK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
        self.state: Final = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._lock = threading.Lock()
        self._failed = False
        self._awake = _SPIN_SECONDS
        self.workers = 0

    @cached_property
    def ticks_per_second(self) -> float:
        """The rate of the clock that native code reads. Raises ArtifactError if the clock does not
        advance."""
        return _calibrate(ctypes.CFUNCTYPE(ctypes.c_uint64)(self._ticks))

    def ensure(self, threads: int) -> None:
        """Have workers for `threads` participants. With fewer, these run everything.

        Warns once if the system refuses a thread.
        """
        if self.workers >= threads - 1 or self._failed:
            return
        with self._lock:
            if not self.workers:
                _never_free(self)
            self._set_spin(threads)
            while self.workers < threads - 1 and not self._failed:
                self._start(self.workers)

    def stay_awake(self, seconds: float | None) -> None:
        """Have idle workers wait so long before they sleep, if there are processors for all.

        seconds: None for the usual time. It holds for all programs, at once, and for workers that
        start later: with the first call, or in the child of a fork.
        """
        with self._lock:
            self._awake = _SPIN_SECONDS if seconds is None else seconds
            if self.workers:
                self._set_spin(self.workers + 1)

    def _set_spin(self, threads: int) -> None:
        # With more threads than processors, whoever spins takes time from whoever works.
        fits = max(threads, self.workers + 1) <= len(affinity())
        usual, awake = (
            int(min(seconds * self.ticks_per_second, _FOREVER)) if fits else 0
            for seconds in (_SPIN_SECONDS, self._awake)
        )
        self._write(abi.POOL_SPIN, ctypes.c_int64, usual)
        for number in range(max(threads - 1, self.workers)):
            at = _line(number) + abi.WORKER_AWAKE
            self._write(at, ctypes.c_int64, awake)

    def _start(self, number: int) -> None:
        line = _line(number)
        self._write(line + abi.WORKER_POOL, ctypes.c_uint64, self.state)
        self._write(line + abi.WORKER_INDEX, ctypes.c_int64, number + 1)
        with signals.held():
            error = _create_thread(
                self._worker, self.state + line, f"tilewright-{number + 1}"
            )
            if not error:
                self.workers = number + 1
                self._write(abi.POOL_WORKERS, ctypes.c_int64, self.workers)
                return
        self._failed = True
        warnings.warn(
            f"the system provides no more threads ({os.strerror(error)}): running on {number + 1}",
            TilewrightWarning,
            stacklevel=5,
        )

    def _write(
        self, offset: int, kind: type[ctypes._SimpleCData[int]], value: int
    ) -> None:
        kind.from_address(self.state + offset).value = value

    def forget_workers(self) -> None:
        """In the child of a fork: the threads are gone; start again when needed."""
        ctypes.memset(self.state, 0, _BLOCK_BYTES)
        self.workers = 0
        self._failed = False
        self._lock = threading.Lock()


# By the digest of their code. A pool without workers is freed with its last executable.
_pools: Final[WeakValueDictionary[str, Pool]] = WeakValueDictionary()
_starting = threading.Lock()


def shared(code: bytes | memoryview) -> Pool:
    """The pool of the process that runs the pool object `code`; nothing of it runs yet.

    Raises ArtifactError if the object is damaged or defines no pool.
    """
    key = hashlib.sha256(code).hexdigest()
    with _starting:
        found = _pools.get(key)
        if found is None:
            found = _pools[key] = Pool(link([code], ["the thread pool"]))
        return found


def _after_fork() -> None:
    global _starting
    _starting = threading.Lock()
    for pool in _pools.values():
        pool.forget_workers()


os.register_at_fork(after_in_child=_after_fork)


def _line(number: int) -> int:
    """Where in the block a worker's line is."""
    return abi.POOL_FIRST_WORKER + number * abi.POOL_WORKER_SIZE


def _never_free(thing: object) -> None:
    """Keep an object even when the interpreter clears its modules: workers still use its memory."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _calibrate(ticks: ctypes._FuncPointer) -> float:
    """Ticks per second of the clock that native code reads."""
    start, first = time.perf_counter_ns(), ticks()
    while (elapsed := time.perf_counter_ns() - start) < _CALIBRATION_NS:
        pass
    rate = (ticks() - first) * 1e9 / elapsed
    if rate <= 0:
        raise ArtifactError("the pool's clock does not run", code="TW-OBJECT")
    return float(rate)


def _create_thread(function: int, argument: int, name: str) -> int:
    """Start a detached POSIX thread at an address; the error number, or 0.

    It inherits which signals wait: they must reach Python's own threads only.
    """
    libc = ctypes.CDLL(None)
    attributes = (ctypes.c_uint64 * (_ATTRIBUTES_BYTES // 8))()
    thread = ctypes.c_uint64()
    libc.pthread_attr_init(attributes)
    libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(_STACK_BYTES))
    libc.pthread_attr_setdetachstate(attributes, 1)
    try:
        error = libc.pthread_create(
            ctypes.byref(thread),
            attributes,
            ctypes.c_void_p(function),
            ctypes.c_void_p(argument),
        )
    finally:
        libc.pthread_attr_destroy(attributes)
    if error == 0 and sys.platform == "linux":
        libc.pthread_setname_np(thread, name.encode()[:15])
    return int(error)
