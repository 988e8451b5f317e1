"""One compilation at a time: whatever interrupts it lets go of the lock and of the collector."""

import gc
import threading

from tests.interrupts import at_every_moment
from tilewright.driver import compile_lock


def another_thread_may_compile() -> bool:
    seen = []

    def work() -> None:
        seen.append(compile_lock._lock.acquire(blocking=False))
        if seen[0]:
            compile_lock._lock.release()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return seen[0]


def test_it_is_alone_and_without_a_collector() -> None:
    with compile_lock.exclusive():
        with compile_lock.exclusive():
            assert not gc.isenabled()
        assert not gc.isenabled() and not another_thread_may_compile()
    assert gc.isenabled() and another_thread_may_compile()


def test_an_interrupt_at_any_moment_lets_go() -> None:
    def action() -> None:
        with compile_lock.exclusive():
            pass

    for moment in at_every_moment(compile_lock.exclusive.__wrapped__, action):
        assert gc.isenabled() and another_thread_may_compile()
    assert moment > 3
