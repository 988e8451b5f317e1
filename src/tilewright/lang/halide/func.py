"""Func: what to compute, how, and running it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.errors import InputError, ScheduleError
from tilewright.compute.nodes import Computation
from tilewright.lang.function import Function
from tilewright.lang.halide.levels import Scheduled
from tilewright.lang.halide.loop_nest import show as show_loop_nest
from tilewright.lang.halide.replay import replay
from tilewright.lang.halide.verbs import Stage, line, plan_of, var_name
from tilewright.loops.nodes import Kernel
from tilewright.notation.halide import lower
from tilewright.notation.halide.expr import Expr
from tilewright.notation.halide.factor import factored
from tilewright.notation.halide.image import Buffer
from tilewright.notation.halide.pipeline import Pipeline as Stages
from tilewright.notation.halide.pipeline import pipeline
from tilewright.schedule import Schedule


class Runs:
    """What can be compiled and run: a Func, or a Pipeline of several."""

    _outputs: tuple[Scheduled, ...]
    _functions: dict[tuple[str, str, int | None], Function]

    def name(self) -> str:
        """The name of the kernel."""
        return "_".join(f.name() for f in self._outputs)

    def regions(self, sizes: Sequence[int]) -> Stages:
        """The Funcs behind the outputs and their regions, to compute `sizes` (x first) of each."""
        return pipeline(self._outputs, [list(sizes)] * len(self._outputs))

    def computations(self, sizes: Sequence[int]) -> list[Computation]:
        """What is computed: one Computation per Func, producers first.

        Raises UnsupportedError where a Func is no homomorphism; `kernel` has its nest.
        """
        return lower.computations(self.regions(sizes))[0]

    def schedule(self, sizes: Sequence[int]) -> Schedule:
        """The kernel with all that was said replayed as primitives.

        Raises ScheduleError where a verb is not legal, with the user's line.
        """
        return replay(self.regions(sizes), self.name()).schedule

    def kernel(self, sizes: Sequence[int]) -> Kernel:
        """The scheduled loops that compute `sizes` (x first)."""
        return self.schedule(sizes).kernel

    def compile_jit(
        self, sizes: Sequence[int], target: str = "cpu", threads: int | None = None
    ) -> Function:
        """A function on arrays: the images in order of first use, then the outputs."""
        kernel = self.kernel(sizes)
        key = (repr(kernel), target, threads)
        if key not in self._functions:
            self._functions[key] = Function(kernel, target, threads)
        return self._functions[key]

    def realize(
        self, sizes: Sequence[int] = (), target: str = "cpu", threads: int | None = None
    ) -> Any:
        """Compute `sizes` (x first) of each output: a Buffer, or a tuple of them, one per value.

        Raises InputError where an image has no data.
        """
        function = self.compile_jit(sizes, target, threads)
        images = self.regions(sizes).images
        for image in images:
            if image.data is None:
                raise InputError(
                    "it has no data", where=f"image {image.name()}", hint="set(buffer) first"
                )
        outputs = [np.zeros(b.shape, b.dtype.numpy) for b in function.kernel.outputs]
        function(*(np.asarray(i.data, order="C") for i in images), *outputs)
        results = tuple(Buffer(o) for o in outputs)
        return results[0] if len(results) == 1 else results

    def print_loop_nest(self, sizes: Sequence[int]) -> None:
        """Print the loops as Halide does: where each Func is stored, produced and consumed."""
        print(show_loop_nest(replay(self.regions(sizes), self.name())))


class Pipeline(Runs):
    """Several output Funcs that are computed together; what they share is computed once."""

    def __init__(self, outputs: Sequence[Scheduled]) -> None:
        self._outputs, self._functions = tuple(outputs), {}


class Func(Scheduled, Runs):
    """A Halide Func: `f[x, y] = ...`, then verbs on it, then `f.realize([w, h])`."""

    def __init__(self, name: str | Expr | None = None) -> None:
        self._outputs, self._functions = (self,), {}
        super().__init__(name)

    def update(self, n: int = 0) -> Update:
        """The n-th update, for its schedule."""
        return Update(self.plan(n + 1))


class Update(Stage):
    """An update definition, for its schedule."""

    def rfactor(self, *kept: Any) -> Func:
        """A Func of partial results, one for each point of some RVars: `rfactor(r.y, v)`.

        kept: an RVar and a new Var, or a list of such pairs. The update becomes the combination of
        the partial results, which can be computed in parallel. Raises InputError where the update
        is no step of a commutative operator, ScheduleError where it has been scheduled before.
        """
        pairs = kept[0] if len(kept) == 1 else [kept]
        plan = self._plan()
        if plan.directives:
            raise ScheduleError(
                "rfactor: the update has been scheduled already",
                where=f"{plan.title}, {line()}",
                hint="rfactor before the other verbs",
            )
        named = [(var_name(r), v) for r, v in pairs]
        partial = factored(plan.func, plan.stage, named, Func)
        plan.vars[:] = plan_of(plan.func, plan.stage).vars
        return partial
