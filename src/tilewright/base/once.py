"""Values computed once per key, by the first thread that needs them; other keys do not wait."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Generic, TypeVar

T = TypeVar("T")


class ComputeOnceCache(Generic[T]):
    """Values by key, least recently used first, and those that are being made.

    The lock is held for look-ups and insertions, never while a value is being made: a caller gets
    an existing value immediately, and waits only for the thread that makes the value it needs.
    forget: how many of the oldest to leave out, told all values, oldest first.
    """

    def __init__(self, forget: Callable[[Sequence[T]], int]) -> None:
        self._forget = forget
        self._kept: OrderedDict[Hashable, T] = OrderedDict()
        self._making: dict[Hashable, Future[T]] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of a key, made if it is new. Raises what `make` does, in each who waits."""
        while True:
            with self._lock:
                if key in self._kept:
                    self._kept.move_to_end(key)
                    return self._kept[key]
                running = self._making.get(key)
                if running is None:
                    mine = self._making[key] = Future()
            if running is None:
                return self._made(key, make, mine)
            try:
                return running.result()
            except CancelledError:
                continue  # the maker was interrupted, which is not the answer for others

    def _made(self, key: Hashable, make: Callable[[], T], mine: Future[T]) -> T:
        try:
            made = make()
            with self._lock:
                self._keep(key, made)
        except Exception as error:
            mine.set_exception(error)
            raise
        except BaseException:
            mine.cancel()
            raise
        else:
            mine.set_result(made)
            return made
        finally:
            with self._lock:
                self._making.pop(key, None)

    def _keep(self, key: Hashable, made: T) -> None:
        surplus = self._forget((*self._kept.values(), made))
        self._kept[key] = made
        for _ in range(surplus):
            self._kept.popitem(last=False)

    def values(self) -> tuple[T, ...]:
        """All that is kept, oldest first."""
        with self._lock:
            return tuple(self._kept.values())

    def clear(self) -> None:
        """Forget all values; those being computed are kept when they are ready."""
        with self._lock:
            self._kept.clear()
