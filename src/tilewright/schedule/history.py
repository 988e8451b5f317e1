"""The history of a schedule: its kernels and steps, with undo and diff.

All earlier programs are kept (rewrites share unchanged nodes), so a schedule can show the effect of
its last step, find where a loop went, and check that it still computes the same results.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from numbers import Integral
from typing import Any, Self

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError
from tilewright.loops.nodes import SIZE, Kernel
from tilewright.loops.printer import show_kernel
from tilewright.loops.walk import loops_of, names_of
from tilewright.schedule import tree
from tilewright.schedule.trace import Step, Trace, apply


@dataclass(frozen=True, eq=False, slots=True)
class Handle:
    """A loop or buffer of a schedule, by the name it had when it was looked up.

    It can be used wherever a name can. It stays valid while that loop or buffer exists, through
    every step that leaves it in place; afterwards its use raises a ScheduleError that names the
    step that took it away.
    """

    schedule: History
    name: str
    since: int

    @property
    def valid(self) -> bool:
        """Whether it still exists."""
        return self.schedule.lost(self.name, self.since) is None

    def __str__(self) -> str:
        """Its name. Raises ScheduleError if it is gone."""
        gone = self.schedule.lost(self.name, self.since)
        if gone is not None:
            raise ScheduleError(
                f"{self.name} is gone: {gone}",
                where=f"kernel {self.schedule.kernel.name}",
                hint="look the loop or buffer up again",
            )
        return self.name

    def __repr__(self) -> str:
        gone = self.schedule.lost(self.name, self.since)
        return f"<{self.name}: {gone}>" if gone else f"<{self.name}>"


class History:
    """A kernel under recorded steps; see `Schedule`, which adds a method per primitive."""

    __slots__ = ("_before", "_steps", "kernel")

    def __init__(self, kernel: Kernel, trace: Trace | None = None) -> None:
        self.kernel = kernel
        self._steps: tuple[Step, ...] = ()
        self._before: tuple[Kernel, ...] = ()
        for step in () if trace is None else trace.steps:
            self.apply(step)

    @property
    def trace(self) -> Trace:
        """The steps so far."""
        return Trace(self._steps)

    @property
    def original(self) -> Kernel:
        """The program before the first step."""
        if self._before:
            return self._before[0]
        return self.kernel

    def fork(self) -> Self:
        """Another schedule in the same state; nothing is copied."""
        other = type(self)(self.kernel)
        other._steps, other._before = self._steps, self._before
        return other

    def undo(self) -> None:
        """Take the last step back. Raises ScheduleError where there is none."""
        if not self._steps:
            raise ScheduleError(
                "undo: no step has been made", where=f"kernel {self.kernel.name}"
            )
        self.kernel = self._before[-1]
        self._steps, self._before = self._steps[:-1], self._before[:-1]

    def apply(self, step: Step) -> Any:
        """Apply one step, record it, return the names it made.

        Raises ScheduleError, and changes nothing, where it is illegal; `error.program` is then the
        program with the loops and buffers in question marked.
        """
        try:
            after, made = apply(self.kernel, step)
        except ScheduleError as error:
            if error.program is None:
                error.program = MarkedKernel(self.kernel, _subjects(error))
                self._explain(step, error)
            raise
        self._before += (self.kernel,)
        self.kernel = after
        self._steps += (step,)
        return made

    def perform(
        self, primitive: str, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """Apply a primitive, as `apply` does; names and numbers may be handles and NumPy's."""
        plain = tuple(map(_plain, args))
        return self.apply(
            Step(primitive, plain, {k: _plain(v) for k, v in options.items()})
        )

    def _explain(self, step: Step, error: ScheduleError) -> None:
        """Add to an error about a missing name which step took it away."""
        for name in step.args:
            if isinstance(name, str) and f"{name!r}" in error.message:
                gone = self.lost(name, 0)
                if gone is not None and "there is no" not in gone:
                    error.hint = f"{gone}; {error.hint}"

    def lost(self, name: str, since: int) -> str | None:
        """Why there is no loop or buffer `name` any more; None while there is one.

        since: the number of steps made when the name was known to exist.
        """
        seen = False
        programs = (*self._before, self.kernel)
        for n, kernel in enumerate(programs[since:], since):
            if name in names_of(kernel):
                seen = True
            elif seen:
                return f"step {n}, {self._steps[n - 1]}, took {name} away"
        return None if seen else f"there is no {name}"

    def loop(self, name: str) -> Handle:
        """A handle on the loop called `name`. Raises ScheduleError with the names there are."""
        tree.find_loop(self.kernel, name, "loop")
        return Handle(self, name, len(self._steps))

    def buffer(self, name: str) -> Handle:
        """A handle on the buffer called `name`. Raises ScheduleError with the names there are."""
        tree.find_buffer(self.kernel, name, "buffer")
        return Handle(self, name, len(self._steps))

    @property
    def loops(self) -> tuple[str, ...]:
        """The names of all loops, in the order of the program."""
        found = loops_of(self.kernel.body)
        return tuple(f.var.name for f in found if f.kind != SIZE)

    def diff(self, steps: int = 1) -> str:
        """What the last `steps` steps changed, line by line; empty if they changed nothing."""
        programs = (*self._before, self.kernel)
        old = programs[max(len(programs) - 1 - steps, 0)]
        lines = difflib.ndiff(
            show_kernel(old).split("\n"), show_kernel(self.kernel).split("\n")
        )
        return "\n".join(_changes(lines))

    def verify(self, seed: int = 0) -> None:
        """Run the program before the first step and this one in the interpreter, on random inputs.

        Raises VerifyError that names the first output, element and values that differ. Slow (about
        a million statements a second): for small sizes.
        """
        from tilewright.schedule.equal import check_equal

        check_equal(self.original, self.kernel, seed)

    def __str__(self) -> str:
        """The program as it is now; `str(schedule.trace)` is the Python that leads to it."""
        return show_kernel(self.kernel)


@dataclass(frozen=True, slots=True)
class MarkedKernel:
    """A kernel printed with `>` in front of the loops and buffers that an error is about."""

    kernel: Kernel
    names: frozenset[str]

    def __str__(self) -> str:
        lines = show_kernel(self.kernel).split("\n")
        marked = [f"{'>' if _about(x, self.names) else ' '} {x}" for x in lines]
        return "\n".join(marked)


def _subjects(error: ScheduleError) -> frozenset[str]:
    """The statement at an error, and what its message quotes."""
    quoted = re.findall(r"'([^']+)'", f"{error.where} {error.message}")
    named = (error.where or "").replace(",", " ").split()
    return frozenset([*quoted, *named])


def _about(line: str, marks: frozenset[str]) -> bool:
    words = line.split()
    return (
        len(words) > 1
        and words[0] in ("for", "alloc")
        and words[1].rstrip(":") in marks
    )


def _changes(lines: Iterator[str]) -> Iterator[str]:
    """Changed lines and the nearest unchanged line before each run of them."""
    context: str | None = None
    for line in lines:
        if line.startswith("  "):
            context = line
        elif not line.startswith("?"):
            if context is not None:
                yield context
                context = None
            yield line


def _plain(value: Any) -> Any:
    """What a trace can hold: the name of a handle, an integer of Python for one of NumPy."""
    if isinstance(value, Handle):
        return str(value)
    if isinstance(value, bool) or not isinstance(value, Integral):
        return value
    return int(value)
