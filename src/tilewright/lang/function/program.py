"""The interface of built programs: one kernel, several with calls between, or one per size."""

from __future__ import annotations

import os
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Unpack

from tilewright.base.errors import InputError

if TYPE_CHECKING:
    from tilewright.driver.keywords import TuneSettings
    from tilewright.driver.sized import SizedExecutable
    from tilewright.driver.tuned import TunedModel
    from tilewright.lang.function import Function
    from tilewright.runtime.executable import Executable
    from tilewright.runtime.profile import KernelTime, Profile


class Program(ABC):
    """A program as a function on arrays. `functions` are its kernels, each a separate function.

    Members that need a single kernel (`executable`, `tune`, `save`, `export_c`) raise InputError if
    there are several, or none yet because it is compiled for the sizes of a call.
    """

    @abstractmethod
    def __call__(self, *arrays: Any) -> object:
        """Run on one array per argument. Raises InputError for those that do not fit."""

    @property
    @abstractmethod
    def functions(self) -> tuple[Function, ...]:
        """The kernels, in execution or compilation order."""

    @abstractmethod
    def profile(self, *arrays: Any, repeat: int = 20, **peaks: float) -> Profile:
        """Time `repeat` runs on one array per argument, which stay unchanged.

        peaks: as for `Executable.profile`. The profile also suggests improvements if the schedule
        is slow. Raises InputError as a call does, and for a program without native code.
        """

    @property
    def tuned(self) -> TunedModel | None:
        """The result of tuning, for a program that `tune` returned."""
        return self._only.tuned

    @property
    def executable(self) -> Executable | SizedExecutable:
        """The function as a compiled model, whose calls return new outputs.

        Raises InputError for one that is interpreted or simulated.
        """
        return self._only.executable

    def tune(self, *arrays: Any, **settings: Unpack[TuneSettings]) -> Program:
        """Search for a faster schedule; returns the program with it, whose `tuned` describes the
        result.

        It is never slower: the result is compared with this program in interleaved runs, with equal
        outputs, and the old schedule stays if the new one is not faster. Builds of the same program
        use it too.

        arrays: for that comparison; random ones by default. settings: `trials`, `seconds`,
        `expected_gain`, `records`, `until`, `how`, as for `tilewright.tune`. Raises InputError for
        a schedule that leaves nothing to choose and as `tilewright.tune` does, VerifyError for
        results that differ.
        """
        return self._only.tune(*arrays, **settings)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an artifact: `tilewright.load(path)` is the `executable`, without the compiler."""
        self._only.save(path)

    def export_c(
        self, path: str | os.PathLike[str], name: str | None = None
    ) -> tuple[Path, Path]:
        """Write `path`.h and `path`.o for C programs; returns their paths. See `driver.c_library`.

        name: of the C function; by default that of the file.
        """
        return self._only.export_c(path, name)

    def source(self, kind: str = "kernel") -> str:
        """The program as text: `kernel`, or `llvm` or `asm` if the target has it."""
        return "\n\n".join(f.source(kind) for f in self.functions)

    def why(self) -> str:
        """How each kernel is scheduled, and why: the lines of `tilewright run --profile --why`.

        The chosen sketch, the sketches that failed, its parameters, and the primitives; or "by
        hand" and the primitives.
        """
        return "\n\n".join(str(f.record) for f in self.functions)

    def explain(self, *arrays: Any, repeat: int = 20, **peaks: float) -> str:
        """The kernels, the reasons for their schedules, and with arrays a `profile`, as text."""
        parts = {}
        if arrays:
            found = self.profile(*arrays, repeat=repeat, **peaks)
            parts[f"Profile, the median of {repeat} runs"] = str(found)
        parts = {"Program": self.source(), "Schedule": self.why(), **parts}
        return "\n\n".join(f"== {title} ==\n{text}" for title, text in parts.items())

    @property
    def _only(self) -> Function:
        found = self.functions
        if len(found) == 1:
            return found[0]
        raise InputError(
            f"{len(found)} kernels, but one is needed"
            if found
            else "no kernel yet: it is compiled for the sizes of each call",
            where=repr(self),
            hint="take one of its `functions`; call it first where it compiles for sizes",
        )


def joined(profiles: Sequence[Profile]) -> Profile:
    """The profile of programs that run one after the other; shares are of the time of all."""
    from tilewright.runtime.timeline import Timeline

    rows: list[KernelTime] = []
    lines: list[Timeline] = []
    start = 0.0
    for p in profiles:
        lines.append(p.timeline.moved(start, len(rows)))
        rows += [replace(row, start=start + row.start) for row in p.rows]
        start += p.total
    seconds = start or 1.0
    advice = dict.fromkeys(a for p in profiles for a in p.advice or ())
    return replace(
        profiles[0],
        rows=tuple(replace(row, share=row.seconds / seconds) for row in rows),
        total=start,
        threads=max(p.threads for p in profiles),
        runs=(),
        timeline=Timeline(start, tuple(s for line in lines for s in line.spans)),
        advice=tuple(advice),
    )


def host_profile(
    name: str, call: Callable[[], object], repeat: int, moved: int
) -> Profile:
    """The profile of a call of a function; moved: bytes of the arrays that it is given."""
    from tilewright.runtime.profile import KernelTime, Profile
    from tilewright.runtime.timeline import KernelSpan, Timeline

    seconds = []
    for _ in range(max(repeat, 1)):
        start = perf_counter()
        call()
        seconds.append(perf_counter() - start)
    median = statistics.median(seconds)
    row = KernelTime(name, "host", (name,), 1, median, 0.0, 0, moved, 1.0, None)
    line = Timeline(median, (KernelSpan(0, 0.0, median), KernelSpan(0, 0.0, median, 0)))
    return Profile((row,), median, repeat, 1, (), tuple(seconds), line)
