"""Func, Pipeline and ImageParam: what a program in Halide's notation is written with."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.errors import (
    InputError,
)
from tilewright.expr.nodes import fixed
from tilewright.lang.halide.apart import (
    contents,
    remembered,
)
from tilewright.lang.halide.extern import extern
from tilewright.lang.halide.levels import Scheduled
from tilewright.lang.halide.parts import parts
from tilewright.lang.halide.runs import Runnable, check_data, number
from tilewright.lang.halide.syntax.absent import absent
from tilewright.lang.halide.syntax.domain import Var
from tilewright.lang.halide.syntax.image import ImageParam as Given
from tilewright.lang.halide.syntax.output import OutputImageParam
from tilewright.lang.halide.syntax.pipeline import Pipeline as Stages
from tilewright.lang.halide.syntax.pipeline import ordered
from tilewright.lang.halide.syntax.types import plain as plain_type
from tilewright.lang.halide.syntax.wrap import cloned, wrapped
from tilewright.lang.halide.update import Update


class Pipeline(Runnable):
    """Several output Funcs that are computed together; what they share is computed once."""

    __getattr__ = absent("Pipeline")

    def __init__(self, outputs: Sequence[Scheduled] | Scheduled) -> None:
        several = outputs if isinstance(outputs, Sequence) else (outputs,)
        self._outputs = tuple(several)
        self._compiled = {}
        self._requirements = []

    def outputs(self) -> list[Scheduled]:
        """The Funcs that it computes."""
        return list(self._outputs)

    def defined(self) -> bool:
        """Whether there is something to compute."""
        return bool(self._outputs)

    def get_func(self, index: int) -> Any:
        """A Func of the pipeline, counted in the order of computation."""
        return ordered(self._outputs)[0][index]


class Func(Scheduled, Runnable):
    """A Halide Func: `f[x, y] = ...`, then verbs on it, then `f.realize([w, h])`."""

    __getattr__ = absent("Func")

    def __init__(self, *declared: Any) -> None:
        self._outputs = (self,)
        self._compiled = {}
        self._requirements = []
        self._memory: OrderedDict[Any, tuple[Any, ...]] = OrderedDict()
        self._wrappers: dict[Any, Func] = {}
        self._clones: dict[Any, Func] = {}
        super().__init__(*declared)

    def _apart(
        self, stages: Stages, target: Any, threads: int | None
    ) -> tuple[Any, ...]:
        """The arrays of its values, as a pipeline needs them: remembered, or computed now."""
        box = list(reversed(stages.boxes[self]))

        def make() -> tuple[Any, ...]:
            found = self._realized(box, target, threads)
            several = found if isinstance(found, tuple) else (found,)
            return tuple(np.asarray(b) for b in several)

        if self.extern is not None:

            def read(f: Func, region: Sequence[Any]) -> list[Any]:
                found = f.realize(list(region), target, threads)
                several = found if isinstance(found, tuple) else (found,)
                return [np.asarray(b) for b in several]

            dtypes = [s.dtype for s in self.symbols]
            own, *regions = (
                [(fixed(a, self.name()), fixed(n, self.name())) for a, n in part[::-1]]
                for part in (stages.boxes[self], *parts(self, stages))
            )
            return self.extern.compute(dtypes, own, regions, read, evaluate)
        if not self.remembers:
            return make()
        whole = self._whole(box)
        check_data(whole.images)
        made_by = tuple(
            f.schedule_key() if isinstance(f, Scheduled) else f for f in whole.funcs
        )
        key = (tuple(box), str(target), made_by, contents(whole.images))
        return remembered(self._memory, key, make)

    def define_extern(
        self,
        function_name: Any,
        params: Sequence[Any],
        types: Any,
        arguments: Any,
        mangling: Any = None,
        device_api: Any = None,
    ) -> None:
        """Be what a C function computes, with the interface of Halide's (see `extern.py`).

        function_name: of a function in this process, or one of ctypes. params: Funcs, images and
        numbers that it is given. types: of its values. arguments: Vars, or how many dimensions.
        It is computed before its readers, at a loop for the region of each iteration. Raises
        InputError where there is no such function.
        """
        if self.defined():
            raise InputError(
                "it has a definition",
                where=f"Func {self.name()}",
                hint="define_extern of a new Func",
            )
        several = types if isinstance(types, list | tuple) else [types]
        if hasattr(arguments, "__index__"):
            arguments = [Var() for _ in range(arguments.__index__())]
        self.extern = extern(function_name, params)
        self.args = tuple(arguments)
        self.symbols = self._named([plain_type(t) for t in several])

    def defined(self) -> bool:
        """Whether it has a pure definition, or a C function computes it."""
        return self.extern is not None or super().defined()

    def extern_function_name(self) -> str:
        """The C function that computes it; empty where none does."""
        return "" if self.extern is None else self.extern.name

    def _check_unread(self) -> None:
        if self.extern is not None:
            raise InputError(
                "a C function computes it, so it has no updates",
                where=f"Func {self.name()}",
                hint="update another Func: g[x] = f[x]",
            )
        super()._check_unread()

    def in_(self, *readers: Any) -> Func:
        """A Func of the same values that `readers` (none named: all there are) read instead.

        It is scheduled separately: `f.in_(g).compute_at(g, x)` stages what g reads of f. Raises
        InputError for a Func that does not read this one.
        """
        return _once(self._wrappers, wrapped, self, _readers(readers))

    def clone_in(self, *readers: Any) -> Func:
        """A separately scheduled Func with the same definitions, which `readers` read instead.

        Raises InputError for a Func that does not read this one.
        """
        return _once(self._clones, cloned, self, _readers(readers) or ())

    def output_buffer(self) -> OutputImageParam:
        """The array that it is computed into."""
        return OutputImageParam(self)

    def output_buffers(self) -> list[OutputImageParam]:
        """The arrays that its values are computed into."""
        return [OutputImageParam(self, n) for n in range(len(self.symbols))]

    def update(self, n: int = 0) -> Update:
        """The n-th update, for its schedule."""
        return Update(self.plan(n + 1))


class ImageParam(Given):
    """An image that is given later, with `set`; its size may be promised before by its bounds."""

    def __init__(
        self,
        type: Any,
        dimensions: int,
        name: str | None = None,
    ) -> None:
        self._wrappers: dict[Any, Func] = {}
        super().__init__(type, dimensions, name)

    def in_(self, *readers: Any) -> Func:
        """A Func of its elements that `readers` (none named: all there are) read instead."""
        return _once(self._wrappers, wrapped, self, _readers(readers))


def _readers(given: Sequence[Any]) -> tuple[Func, ...] | None:
    """The Funcs of `in_(g)` or `in_([g, h])`; None of `in_()`."""
    readers = given
    if len(given) == 1 and isinstance(given[0], list | tuple):
        readers = given[0]
    for reader in readers:
        if not isinstance(reader, Func):
            raise InputError(
                f"{reader!r} is not a Func",
                where="in_",
                hint="name Funcs that read it",
            )
    return tuple(readers) if given else None


def _once(
    known: dict[Any, Func], make: Any, source: Any, readers: tuple[Func, ...] | None
) -> Func:
    """The Func made before for these readers, in any order, or a new one."""
    key = None if readers is None else frozenset(readers)
    if key not in known:
        known[key] = make(source, readers, Func)
    return known[key]


def evaluate(value: Any) -> Any:
    """The number that an expression of constants and Params is."""
    return number(value, Func)
