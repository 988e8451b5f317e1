"""What the Funcs of a pipeline have in common: they are compiled for sizes, and run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tilewright.base.errors import (
    ExecutionError,
    InputError,
    ScheduleError,
    TilewrightError,
)
from tilewright.compute.nodes import Computation
from tilewright.driver.compile_lock import exclusive
from tilewright.driver.options import Options
from tilewright.driver.schedulable import Plain
from tilewright.driver.schedule_records import by_hand
from tilewright.expr.nodes import fixed
from tilewright.lang.function import Function
from tilewright.lang.function.choosing import by_hand_or_record, by_lines, is_native
from tilewright.lang.halide.apart import (
    check_outputs,
    separated,
    values,
    write_files,
)
from tilewright.lang.halide.autoschedule import (
    AutoOptions,
    AutoschedulerParams,
    AutoSchedulerResults,
    autoscheduled,
    bare,
    results,
)
from tilewright.lang.halide.conditions import decided
from tilewright.lang.halide.levels import Scheduled
from tilewright.lang.halide.loop_nest import show as show_loop_nest
from tilewright.lang.halide.realizations import marked
from tilewright.lang.halide.replay import replay
from tilewright.lang.halide.syntax import lower
from tilewright.lang.halide.syntax.expr import Expr, as_expr
from tilewright.lang.halide.syntax.image import Buffer, Image
from tilewright.lang.halide.syntax.image import ImageParam as Given
from tilewright.lang.halide.syntax.memory import in_dimensions, in_memory
from tilewright.lang.halide.syntax.pipeline import Pipeline as Stages
from tilewright.lang.halide.syntax.pipeline import open_size, pipeline
from tilewright.lang.halide.syntax.strict import is_strict
from tilewright.lang.halide.syntax.tracing import tells
from tilewright.lang.halide.target import compile_for
from tilewright.lang.halide.texts import FileVerbs
from tilewright.loops.nodes import Kernel
from tilewright.runtime.buffer import empty
from tilewright.schedule import Schedule
from tilewright.targets import registry


class Runnable(FileVerbs):
    """What can be compiled and run: a Func, or a Pipeline of several.

    `sizes` says what to compute: of each dimension, x first, an extent or a (min, extent); or it is
    the Buffer to compute into, or a list of them, one per value.
    """

    _outputs: tuple[Scheduled, ...]
    _compiled: dict[tuple[Any, ...], tuple[Function, Stages]]
    _requirements: list[tuple[Expr, tuple[Any, ...]]]
    _records: Any = None
    _published: str = ""
    _auto: AutoschedulerParams | None = None

    def name(self) -> str:
        """The name of the kernel."""
        return "_".join(f.name() for f in self._outputs)

    def regions(self, sizes: Any) -> Stages:
        """The Funcs after the outputs and their regions, to compute `sizes` (None: whatever).

        Excludes Funcs that are computed separately, and all their producers.
        """
        return separated(self._whole(sizes))

    def _whole(self, sizes: Any) -> Stages:
        buffers = _buffers(sizes)
        wanted: list[Any]
        if sizes is None:
            wanted = [open_size(f) for f in self._outputs]
        elif buffers is None:
            wanted = [list(sizes)] * len(self._outputs)
        else:
            wanted = self._sizes(buffers)
        return pipeline(self._outputs, wanted)

    def _sizes(self, buffers: Sequence[Buffer]) -> list[list[tuple[int, int]]]:
        """The region of each output, from the Buffers of its values."""
        values = [(f, n) for f in self._outputs for n in range(max(1, len(f.symbols)))]
        if len(buffers) != len(values):
            raise InputError(
                f"{len(buffers)} buffers given, {len(values)} expected",
                where=self.name(),
                hint="one for each value of each output",
            )
        found: dict[Scheduled, list[tuple[int, int]]] = {}
        for (f, n), b in zip(values, buffers, strict=True):
            box = [(d.min(), d.extent()) for d in map(b.dim, range(b.dimensions()))]
            if found.setdefault(f, box) != box:
                raise InputError(
                    f"value {n} is needed over {box}, value 0 over {found[f]}",
                    where=f"Func {f.name()}",
                    hint="buffers of one Func have the same mins and extents",
                )
        return list(found.values())

    def computations(self, sizes: Any) -> list[Computation]:
        """What is computed: one Computation per Func, producers first.

        Raises UnsupportedError where a Func is not a homomorphism; `kernel` has its nest.
        """
        return lower.computations(self.regions(sizes))[0]

    def schedule(self, sizes: Any) -> Schedule:
        """The kernel with all directives replayed as primitives.

        Raises ScheduleError where a verb is not legal, with the user's line.
        """
        with exclusive():
            return replay(self.regions(sizes), self.name()).schedule

    def kernel(self, sizes: Any) -> Kernel:
        """The scheduled loops that compute `sizes`."""
        return self.schedule(sizes).kernel

    def compile_jit(
        self,
        sizes: Any = None,
        target: Any = "cpu",
        threads: int | None = None,
        records: Any = None,
    ) -> Function:
        """A function on arrays: the images in order of first use, then the outputs.

        sizes: None for a function that computes outputs of any size, with coordinates from 0; an
        image without its own bounds must cover the region that is read. records: as for
        `tilewright.compile`; the best recorded schedule is used unless directives specify one, also
        by `realize` from then on.
        """
        digest = Options.of({"records": records}).published.digest
        if (digest, records) != (self._published, self._records):
            self._compiled.clear()
            self._published, self._records = digest, records
        return self._function(sizes, compile_for(target), threads)[0]

    def apply_autoscheduler(
        self, target: Any, autoscheduler_params: AutoschedulerParams
    ) -> AutoSchedulerResults:
        """Choose a schedule automatically, for all sizes that are computed from now on.

        The results describe what runs; their schedule is the one for the estimates. Raises
        InputError without estimates and for names other than those of `autoschedule.RUNS`,
        ScheduleError if a Func has directives, UnsupportedError for a pipeline that the scheduler
        does not take: the rules, all but maps and reductions.
        """
        params = autoscheduler_params
        _ = params.runs, params.threads, params.beam  # what is wrong is said at once
        before, self._auto = self._auto, params
        try:
            made = self._function(self.expected_sizes(), compile_for(target), None)[0]
            return results(target, params, made)
        except TilewrightError:
            self._auto = before
            raise

    def _function(
        self, sizes: Any, target: str, threads: int | None
    ) -> tuple[Function, Stages]:
        """The function and its pipeline, made again only after a new directive."""
        with exclusive():
            found = self.regions(sizes)
            directives = tuple(
                f.schedule_key() if isinstance(f, Scheduled) else f for f in found.funcs
            )
            boxes = None if sizes is None else tuple(found.boxes.items())
            strided = [f for f in found.boxes if f.strides]
            promised = [(f, *sorted(f.strides.items())) for f in strided]
            key = (directives, boxes, target, threads, self._auto, *promised)
            if key not in self._compiled:
                self._compiled[key] = self._built(found, target, threads), found
            return self._compiled[key]

    def _built(self, found: Stages, target: str, threads: int | None) -> Function:
        strict = any(is_strict(d) for f in found.funcs for d in f.definitions)

        def plain() -> Plain:
            return bare(found, self.name(), registry.target(target, exact=strict))

        records, touched = self._records, _touched(found)
        if self._auto is not None and is_native(target):
            if touched is not None:
                raise ScheduleError(
                    f"{self._auto.name} schedules all, so its directives would be lost",
                    where=f"Func {touched.name()}",
                    hint="drop them, or write the schedule of all Funcs",
                )
            options = AutoOptions(target, threads, strict, records)
            return autoscheduled(self._auto, found, self.name(), plain, options)
        state = replay(found, self.name())
        made = state.schedule
        if tells(made.kernel.body):
            account = partial(by_hand, made.kernel.name, made.trace)
            kernel = marked(state, self.name())
            return Function(kernel, "interp", threads, account=account, exact=strict)
        if touched is not None:
            return by_lines(made, target, threads, exact=strict, records=records)
        return by_hand_or_record(made, plain, target, threads, strict, records)

    def realize(
        self, sizes: Any = (), target: Any = "cpu", threads: int | None = None
    ) -> Any:
        """Compute the outputs: a Buffer, or a tuple of them, one per value.

        Given Buffers are computed into, and None is returned. Raises InputError where an image has
        no data, ExecutionError where a requirement does not hold, and ScheduleError for an output
        that is to be remembered.
        """
        check_outputs(self._outputs)
        return self._realized(sizes, target, threads)

    def _realized(self, sizes: Any, target: Any, threads: int | None) -> Any:
        """As `realize`, of what is remembered, too."""
        self._check_requirements()
        function, stages = self._function(sizes, compile_for(target), threads)
        self._check_special(stages)
        check_data(stages.images)

        def compute(f: Any) -> tuple[Any, ...]:
            return f._apart(stages, target, threads)  # type: ignore[no-any-return]

        with values(stages.images, compute) as inputs:
            given = _buffers(sizes)
            strides = [f.strides for f in stages.outputs for _ in f.symbols]
            if given is not None:
                pairs = zip(given, strides, strict=True)
                function(*inputs, *(in_memory(np.asarray(b), s) for b, s in pairs))
                write_files(stages.outputs, given)
                return None
            results_of = function.kernel.outputs
            # At a cache line: vectors that cross two of them are stored half as fast.
            outputs = [empty(b.shape, b.dtype.numpy) for b in results_of]
            for output in outputs:
                output.fill(0)
            function(*inputs, *outputs)
        boxes = [stages.boxes[f] for f in stages.outputs for _ in f.symbols]
        arrays = map(in_dimensions, outputs, strides)
        results = tuple(Buffer(array) for array in arrays)
        for buffer, box in zip(results, boxes, strict=True):
            buffer.set_min(
                [fixed(low, f"Func {self.name()}") for low, _ in reversed(box)]
            )
        write_files(stages.outputs, results)
        return results[0] if len(results) == 1 else results

    def _expected(self, var: str) -> tuple[int, int]:
        f = self._outputs[0]
        low, extent = f.estimates.get(var) or f.promised.get(var) or (None, 0)
        if low is None:
            raise InputError(
                f"the extent of {var} is not known",
                where=f"Func {f.name()}",
                hint="set_estimates before, or give sizes where they are taken",
            )
        return low, extent

    def expected_sizes(self) -> list[tuple[int, int]]:
        """The sizes of `set_estimates` or `bound`. Raises InputError where there are none."""
        return [self._expected(v.name()) for v in self._outputs[0].args]

    def loop_nest(self, sizes: Any = None) -> str:
        """The text of `print_loop_nest`."""
        wanted = self.expected_sizes() if sizes is None else sizes
        return show_loop_nest(replay(self.regions(wanted), self.name()))

    def print_loop_nest(self, sizes: Any = None) -> None:
        """Print the loops as Halide does: where each Func is stored, produced and consumed.

        sizes: None for those of `set_estimates` or `bound`. Raises InputError if there are none.
        """
        print(self.loop_nest(sizes))

    def infer_input_bounds(self, sizes: Any, target: Any = None) -> None:
        """Give every ImageParam without data a Buffer for the region read for these sizes."""
        stages = self._whole(sizes)
        for image in stages.images:
            if isinstance(image, Given) and image.data is None:
                name = f"image {image.name()}"
                box = [[fixed(end, name) for end in r] for r in stages.boxes[image]]
                made = Buffer(image.dtype, [extent for _, extent in reversed(box)])
                made.set_min([low for low, _ in reversed(box)])
                image.set(made)

    def add_requirement(self, condition: Any, *message: Any) -> None:
        """Compute only where `condition`, of Params, holds; else `realize` raises the message."""
        self._requirements.append((as_expr(condition), message))

    def _check_requirements(self) -> None:
        for condition, message in self._requirements:
            if not self._number(condition):
                parts = (self._number(m) if isinstance(m, Expr) else m for m in message)
                raise ExecutionError(
                    " ".join(map(str, parts)) or f"{condition!r} does not hold",
                    where=self.name(),
                )

    def _check_special(self, stages: Stages) -> None:
        """Raise the error of `specialize_fail` where none of the conditions before it holds."""
        plans = [p for f in stages.funcs if isinstance(f, Scheduled) for p in f.plans]
        for plan in plans:
            if plan.fails is None:
                continue
            conditions = [s.condition for s in plan.special]
            known = [decided(c, stages) for c in conditions]
            pairs = zip(conditions, known, strict=True)
            holds = (self._number(c) if k is None else k for c, k in pairs)
            if not any(holds):
                raise ExecutionError(plan.fails, where=plan.title)

    def _number(self, value: Any) -> Any:
        return number(value, type(self._outputs[0]))


def _touched(stages: Stages) -> Scheduled | None:
    """A Func with directives, if there is one."""
    return next(
        (f for f in stages.funcs if isinstance(f, Scheduled) and f.touched), None
    )


def check_data(inputs: Sequence[Any]) -> None:
    """Raise InputError for an image without data."""
    for image in inputs:
        if isinstance(image, Image) and image.data is None:
            raise InputError(
                "it has no data",
                where=f"image {image.name()}",
                hint="set(buffer) first",
            )


def number(value: Any, func: Callable[[Any], Any]) -> Any:
    """The number that an expression of constants and Params is; func: makes a Func of one."""
    return np.asarray(func(as_expr(value)).realize((), target="interp")).item()


def _buffers(sizes: Any) -> list[Buffer] | None:
    """The Buffers to compute into; None if it is a size."""
    several = [sizes] if isinstance(sizes, Buffer) else sizes
    if several and all(isinstance(b, Buffer) for b in several):
        return list(several)
    return None
