"""One compilation at a time: whatever interrupts it lets go of the lock and of the collector."""

import gc
import threading

from tests.interrupts import at_every_moment
from tilewright.driver import alone


def another_thread_may_compile() -> bool:
    seen = []

    def work() -> None:
        seen.append(alone._lock.acquire(blocking=False))
        if seen[0]:
            alone._lock.release()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return seen[0]


def test_it_is_alone_and_without_a_collector() -> None:
    with alone.alone():
        with alone.alone():
            assert not gc.isenabled()
        assert not gc.isenabled() and not another_thread_may_compile()
    assert gc.isenabled() and another_thread_may_compile()


def test_an_interrupt_at_any_moment_lets_go() -> None:
    def action() -> None:
        with alone.alone():
            pass

    for moment in at_every_moment(alone.alone.__wrapped__, action):
        assert gc.isenabled() and another_thread_may_compile()
    assert moment > 3
