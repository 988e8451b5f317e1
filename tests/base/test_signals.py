"""Signals that wait are handled afterwards, and an interrupt never leaves them waiting."""

import signal
import threading

import pytest

from tests.interrupts import at_every_moment
from tilewright.base import signals


def waiting():
    return signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_signal_is_handled_afterwards():
    inside = False
    with pytest.raises(KeyboardInterrupt):
        with signals.held():
            signal.raise_signal(signal.SIGINT)
            inside = True
    assert inside and signal.SIGINT not in waiting()


def test_threads_made_meanwhile_handle_none():
    seen = []
    with signals.held():
        thread = threading.Thread(target=lambda: seen.append(waiting()))
        thread.start()
        thread.join()
    assert signal.SIGTERM in seen[0] and signal.SIGSEGV not in seen[0]


def test_an_interrupt_at_any_moment_leaves_none_waiting():
    def action():
        with signals.held():
            pass

    before = waiting()
    for moment in at_every_moment(signals.held.__wrapped__, action):
        assert waiting() == before
    assert moment > 3
