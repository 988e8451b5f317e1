"""A built program as a function on arrays: what `build` of every notation returns."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack

import numpy as np

from tilewright.base import events, flags
from tilewright.base.errors import InputError
from tilewright.base.html import element, join, table
from tilewright.base.text import plural
from tilewright.driver import c_library
from tilewright.driver.advice import KernelRun, advice
from tilewright.driver.compile import compile
from tilewright.driver.schedule_records import ScheduleRecord, by_hand
from tilewright.driver.sized import SizedExecutable
from tilewright.expr.nodes import Buffer
from tilewright.lang.function.origin import ProgramOrigin
from tilewright.lang.function.program import Program
from tilewright.loops import interp
from tilewright.loops.nodes import Kernel
from tilewright.loops.printer import show_buffer
from tilewright.loops.sizes import solve, with_sizes
from tilewright.loops.verify import verify
from tilewright.runtime.executable import Executable
from tilewright.schedule import Schedule
from tilewright.schedule.trace import Trace
from tilewright.targets import registry
from tilewright.targets.base import Target

if TYPE_CHECKING:
    from tilewright.driver.keywords import Math, TuneSettings
    from tilewright.driver.tuned import TunedModel
    from tilewright.runtime.profile import Profile

Run = Callable[[tuple[Any, ...]], object]


class Function(Program):
    """`kernel` as a function on NumPy arrays: inputs first, outputs last, written in place.

    Arrays are in C order. Any other is copied at each call, which a `copy` event records; with
    TILEWRIGHT_FALLBACK=error it is an error.

    target: a target's name, that of a simulated machine, or "interp" for the interpreter (slow; it
    defines the meaning).
    threads: as for `tilewright.compile`. description: fields of a simulated machine that differ
    from its defaults. account: how the kernel was scheduled, for `why`; called once. exact: as
    `math="exact"` of `tilewright.compile`. records: as for it. origin: the program from which other
    schedules are made; None: the kernel is already scheduled.

    Raises VerifyError for a kernel that breaks an invariant (an access outside its buffer, parallel
    iterations that depend on one another), and UnsupportedError for an unknown target or a program
    that it cannot compile.
    """

    def __init__(
        self,
        kernel: Kernel,
        target: str = "cpu",
        threads: int | None = None,
        description: Mapping[str, Any] | None = None,
        account: Callable[[], ScheduleRecord] | None = None,
        exact: bool = False,
        records: Any = None,
        origin: ProgramOrigin | None = None,
    ) -> None:
        self._account = account
        self.origin: Final = origin
        self._exact = exact
        self.kernel: Final = kernel
        self.target: Final = target
        self._tuned: TunedModel | None = None
        # What the notation has in place of a schedule by hand, as a profile's last advice.
        self.otherwise: str | None = None
        self._quick: Callable[[tuple[Any, ...]], bool] | None = None
        self._executable: Executable | SizedExecutable | None = None
        self._run: Run
        simulated = target != "interp" and registry.programs(target) == "kernel"
        if description is not None and not simulated:
            raise InputError(
                f"{target!r} is not a simulated machine, and takes no description here",
                where=kernel.name,
            )
        if target == "interp":
            verify(kernel)
            self._run = _interpreted(kernel)
        elif simulated:
            verify(kernel)
            self._run = registry.target(target, description=description).load(kernel)
        else:
            math: Math = "exact" if exact else "default"
            executable = compile(
                kernel, target=target, threads=threads, math=math, records=records
            )
            assert isinstance(executable, Executable | SizedExecutable)
            self._executable = executable
            self._quick = executable.in_place
            self._run = _general(kernel, executable)

    def __call__(self, *arrays: Any) -> None:
        """Run on one array per parameter. Raises InputError for a wrong number, shape or dtype."""
        if self._quick is not None and self._quick(arrays):
            return
        self._expect_all(arrays)
        self._run(arrays)

    @property
    def executable(self) -> Executable | SizedExecutable:
        """The function as a compiled model, whose calls return new outputs.

        Raises InputError for one that is interpreted or simulated.
        """
        if self._executable is None:
            raise InputError(
                f"a function for {self.target!r} has no native code",
                where=self.kernel.name,
                hint='build it with target="cpu"',
            )
        return self._executable

    @property
    def tuned(self) -> TunedModel | None:
        """See `Program`."""
        return self._tuned

    @property
    def functions(self) -> tuple[Function, ...]:
        """The function itself."""
        return (self,)

    @property
    def machine(self) -> Target:
        """The machine that its code is for."""
        return registry.target(self.target, exact=self._exact)

    @cached_property
    def record(self) -> ScheduleRecord:
        """How the kernel is scheduled, and why."""
        name = self.kernel.name
        return self._account() if self._account else by_hand(name, Trace())

    def profile(self, *arrays: Any, repeat: int = 20, **peaks: Any) -> Profile:
        """See `Program`."""
        executable = self.executable
        self._expect_all(arrays)
        inputs = arrays[: len(self.kernel.inputs)]
        found = executable.profile(*inputs, repeat=repeat, **peaks)
        if len(found.rows) != 1:  # copies to a device and back are rows too
            return found
        [row] = found.rows
        run = KernelRun(found.threads, row.seconds, row.mix)
        shapes = [np.shape(a) for a in arrays]
        kernel = with_sizes(self.kernel, solve(self.kernel, shapes))
        said = advice(kernel, run)
        more = () if self.otherwise is None or not said else (self.otherwise,)
        return replace(found, advice=(*said, *more))

    def having(self, found: TunedModel) -> Function:
        """The function, with this result of tuning."""
        self._tuned = found
        return self

    def tune(self, *arrays: Any, **settings: Unpack[TuneSettings]) -> Function:
        """See `Program`."""
        if self.origin is None:
            raise InputError(
                f"its schedule for {self.target!r} is given, so there is nothing to choose",
                where=f"tune {self.kernel.name}",
                hint="build it for the cpu without lines, split loops in them, "
                "or write a template with knobs",
            )
        inputs = arrays[: len(self.kernel.inputs)]
        return self.origin.tuned(inputs, settings)

    def save(self, path: str | os.PathLike[str]) -> None:
        """See `Program`."""
        self.executable.save(path)

    def export_c(
        self, path: str | os.PathLike[str], name: str | None = None
    ) -> tuple[Path, Path]:
        """See `Program`."""
        return c_library.export_c(self.kernel, self.machine, Path(path), name)

    def source(self, kind: str = "kernel") -> str:
        """The program as text: `kernel`, or `llvm` or `asm` if the target has it."""
        if kind == "kernel":
            return repr(self.kernel)
        if kind not in ("llvm", "asm") or self.target == "interp":
            raise InputError(f"no {kind!r} text of a function for {self.target!r}")
        return self.machine.text(self.kernel, self.kernel.name, kind)

    def _expect_all(self, arrays: tuple[Any, ...]) -> None:
        kernel = self.kernel
        if len(arrays) != len(kernel.params):
            expected = ", ".join(map(show_buffer, kernel.params))
            raise InputError(
                f"{plural(len(arrays), 'array')} given, {len(kernel.params)} expected: {expected}",
                where=kernel.name,
                hint="inputs come first, outputs last",
            )

    def __repr__(self) -> str:
        return f"Function({self.kernel.name}, {self.target})"

    def _repr_html_(self) -> str:
        """For notebooks: its parameters, and its loops in a collapsible block."""
        params = ((show_buffer(b),) for b in self.kernel.params)
        loops = element("pre", repr(self.kernel))
        return join(
            [
                element("p", element("b", f"{self.kernel.name} for {self.target}")),
                table(("parameter",), params),
                element("details", element("summary", "loops"), loops),
            ]
        )


def scheduled(
    made: Schedule,
    target: str = "cpu",
    threads: int | None = None,
    description: Mapping[str, Any] | None = None,
    exact: bool = False,
    records: Any = None,
) -> Function:
    """The function of a schedule, which tells of its primitives; arguments as of `Function`."""
    account = partial(by_hand, made.kernel.name, made.trace)
    return Function(made.kernel, target, threads, description, account, exact, records)


def _general(kernel: Kernel, executable: Executable | SizedExecutable) -> Run:
    count = len(kernel.inputs)
    one = len(kernel.outputs) == 1

    def run(arrays: tuple[Any, ...]) -> object:
        for b, a in zip(kernel.outputs, arrays[count:], strict=True):
            if a is None:
                raise InputError(f"{b!r} was given no array", where=kernel.name)
        for b, a in zip(kernel.params, arrays, strict=True):
            _report_copy(kernel, b, a)
        return executable(*arrays[:count], out=arrays[count] if one else arrays[count:])

    return run


def _report_copy(kernel: Kernel, b: Buffer, array: Any) -> None:
    """An event for an array that native code cannot take unchanged; an error where copies are."""
    if not isinstance(array, np.ndarray) or (
        array.flags.c_contiguous and array.flags.aligned
    ):
        return
    if flags.FALLBACK.get() == "error":
        raise InputError(
            f"{b!r} was given an array of strides {array.strides}, which each call would copy",
            code="TW-FALLBACK",
            where=kernel.name,
            hint=f"give numpy.ascontiguousarray of it, or set {flags.FALLBACK.name}=warn",
        )
    events.emit("copy", kernel=kernel.name, array=b.name, bytes=array.nbytes)


def _interpreted(kernel: Kernel) -> Run:
    def run(arrays: tuple[Any, ...]) -> None:
        for b, a in zip(kernel.params, arrays, strict=True):
            if not isinstance(a, np.ndarray):
                raise InputError(
                    f"{b!r} was given a {type(a).__name__}", where=kernel.name
                )
        interp.run(kernel, dict(zip(kernel.params, arrays, strict=True)))

    return run
