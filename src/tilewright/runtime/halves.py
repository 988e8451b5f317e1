"""Work on a range by two threads, for what NumPy or the system does without Python."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread

from tilewright.runtime.threads import affinity


def in_halves(work: Callable[[int, int], None], count: int, middle: int) -> None:
    """Do `work(0, middle)` and `work(middle, count)` at the same time, on two processors.

    Raises what either does.
    """
    if not 0 < middle < count or len(affinity()) < 2:
        work(0, count)
        return
    raised: list[BaseException] = []

    def second() -> None:
        try:
            work(middle, count)
        except BaseException as error:
            raised.append(error)

    thread = Thread(target=second, name="tilewright-half")
    try:
        thread.start()
    except RuntimeError:  # no thread can be started, as at the end of the program
        second()
        work(0, middle)
    else:
        try:
            work(0, middle)
        finally:
            thread.join()
    for error in raised:
        raise error
