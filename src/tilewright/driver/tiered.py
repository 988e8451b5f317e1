"""Tiered compilation: a model is interpreted at once, until its compiled code is ready.

Reading a model takes a tenth of the time of compiling it. The first tier is the interpreter that
defines the meaning of a graph, so it needs no plan, no kernels and no LLVM. The second is what
`compile` makes without tiers. It replaces the first between two calls; a call that is interpreted
when it comes is run again by it as a whole, and so takes no longer than to wait for it.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from tilewright.base.errors import TilewrightWarning
from tilewright.driver.background import BackgroundCompilation
from tilewright.runtime.executable import Executable
from tilewright.runtime.model import CompiledModel, SymbolicType, Tensor, listed
from tilewright.runtime.overrides import Overrides

if TYPE_CHECKING:
    from tilewright.runtime.profile import Profile

Start = Callable[[], BackgroundCompilation]


class CompiledTier:
    """The compiled code of a model, as soon as the compilation that `start` begins has made it.

    ready: makes it of the model. Safe for several threads. A process that is forked from the
    program compiles for itself.
    """

    def __init__(
        self, start: Start, ready: Callable[[CompiledModel], Executable]
    ) -> None:
        self._start: Start | None = start
        self._ready = ready
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._running: BackgroundCompilation | None = start()
        self._executable: Executable | None = None
        self._error: Exception | None = None
        self._said = False

    def poll(self) -> Executable | None:
        """The executable if it is ready. Warns once if the compilation has failed."""
        if self._running is not None:
            self._follow_fork()
            if self._lock.acquire(blocking=False):
                try:
                    self._advance(wait=False)
                finally:
                    self._lock.release()
        if self._error is not None and not self._said:
            self._said = True
            warnings.warn(
                f"the model stays interpreted, as it cannot be compiled: {self._error}",
                TilewrightWarning,
                stacklevel=4,
            )
        return self._executable

    def begin(self) -> None:
        """Compile now: the first call has ended, or is not waited for."""
        running = self._running
        if running is not None:
            running.begin()

    def wait(self) -> Executable:
        """The executable, when it is ready. Raises what the compilation raised."""
        self._follow_fork()
        self.begin()
        with self._lock:
            self._advance(wait=True)
        if self._error is not None:
            self._said = True
            raise self._error
        assert self._executable is not None
        return self._executable

    def _advance(self, wait: bool) -> None:
        """Take the result if there is one. requires: the lock."""
        running = self._running
        if running is None or not running.ended(wait):
            return
        try:
            self._executable = self._ready(running.model())
        except Exception as error:
            self._error = error
        # After the result: other threads look at this first. `start` holds the whole model.
        self._running = self._start = None

    def _follow_fork(self) -> None:
        """Compile again in a fork of the program, which has neither its threads nor its children.

        The lock may be held for ever by a thread that does not exist here.
        """
        start = self._start
        if start is not None and self._owner != os.getpid():
            self._owner = os.getpid()
            self._lock = threading.Lock()
            self._running = start()


class TieredExecutable:
    """A model that is interpreted until its compiled code is ready; called as an `Executable`."""

    def __init__(self, first: Executable, compiled: CompiledTier | None) -> None:
        """compiled: None if `first` is compiled already."""
        self._now = first
        self._compiled = compiled

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Name, dtype and shape of each input, in order."""
        return self._now.inputs

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Name, dtype and shape of each output, in order."""
        return self._now.outputs

    @property
    def made(self) -> tuple[SymbolicType, ...]:
        """As `Executable.made`."""
        return self._now.made

    @property
    def overrides(self) -> Overrides:
        """The variants for calls that pass inputs with defaults."""
        return self._now.overrides

    @property
    def defaults(self) -> Mapping[str, str]:
        """As `Executable.defaults`."""
        return self._now.defaults

    @property
    def ready(self) -> bool:
        """Whether calls run compiled code."""
        self._best()
        return self._compiled is None

    def wait(self) -> Executable:
        """The compiled model, when it is ready. Raises what compiling it raised."""
        compiled = self._compiled
        if compiled is not None:
            self._replace(compiled.wait())
        return self._now

    def __call__(self, *args: Any, out: Any = None, **named: Any) -> Any:
        """As `Executable.__call__`."""
        found = self._best()(*args, out=out, **named)
        self._called()
        return found

    def run(self, feeds: Mapping[str, Any], out: Any = None) -> list[Any]:
        """As `Executable.run`."""
        found = self._best().run(feeds, out)
        self._called()
        return found

    def profile(self, *args: Any, **options: Any) -> Profile:
        """As `Executable.profile`, of the compiled code, which it waits for."""
        return self.wait().profile(*args, **options)

    def save(self, path: str | os.PathLike[str]) -> None:
        """As `Executable.save`, of the compiled code, which it waits for."""
        self.wait().save(path)

    def release(self) -> None:
        """Give back the memory kept between calls."""
        self._now.release()

    def __reduce__(self) -> NoReturn:
        self._now.__reduce__()

    def __repr__(self) -> str:
        tier = "compiled" if self._compiled is None else "interpreted"
        ends = f"({listed(self.inputs)}) -> ({listed(self.made)})"
        return f"TieredExecutable({ends}, {tier})"

    def _best(self) -> Executable:
        """The compiled code if it is ready, else what interprets the model."""
        compiled = self._compiled  # which another thread may set to None
        found = None if compiled is None else compiled.poll()
        if found is not None:
            self._replace(found)
        return self._now

    def _called(self) -> None:
        compiled = self._compiled
        if compiled is not None:
            compiled.begin()

    def _replace(self, made: Executable) -> None:
        """Run `made` from now on. Frees the graph."""
        made.overrides.compile = self._now.overrides.compile
        self._now = made
        self._compiled = None
