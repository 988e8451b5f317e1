"""Models with dynamic shapes: one Executable per set of shapes.

Each new combination of symbolic extents (and of the values of inputs that decide shapes, such as
the `shape` of a Reshape) is compiled on first use and kept, least recently used out; calls that
have their code do not wait meanwhile. The kernel cache on disk makes a combination that was seen in
an earlier process cheap. Without compilation at run time (`jit=False`) all combinations that may
come are compiled in advance.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from tilewright.base.dtypes import dtype_of
from tilewright.base.errors import (
    ArtifactError,
    InputError,
    MemoryLimitError,
    UnsupportedError,
)
from tilewright.base.text import listing, plural
from tilewright.driver.once import Once
from tilewright.driver.ranged import COMPARED, Ranged
from tilewright.driver.ranges import (
    Allowed,
    check_allowed,
    combinations,
    count,
    show,
)
from tilewright.graph.infer import Fallback, specialize
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.registry import definition_of, has_trait
from tilewright.graph.ops.traits import POINTWISE
from tilewright.runtime.executable import Executable
from tilewright.runtime.inputs import convert
from tilewright.runtime.model import CompiledModel, Tensor, listed
from tilewright.runtime.overrides import Overrides

KEPT = 16  # compiled shape combinations per model
VALUE_ELEMENTS = 64  # an input that decides shapes is at most this long
# Operators whose shapes follow from those of their operands, whatever these hold.
SHAPED_BY_TYPES = frozenset(
    (
        *("BatchNormalization", "Concat", "Conv", "ConvTranspose", "Einsum"),
        *("Gather", "GatherElements", "GatherND", "Gemm", "GridSample"),
        *("GroupNormalization", "InstanceNormalization", "LayerNormalization"),
        *("MatMul", "RMSNormalization", "RoiAlign", "ScatterElements", "ScatterND"),
    )
)
CONTROL = {"If": (0,), "Loop": (0, 1)}  # inputs that decide which operations run


def shape_inputs(graph: Graph) -> tuple[Value, ...]:
    """Small inputs that decide a value without which an operator cannot be typed or compiled."""
    deciding = {
        v
        for op in graph.operations
        for n, v in enumerate(op.inputs)
        if v is not None and v.static and _decides(op, n)
    }
    if not deciding:
        return ()
    # The inputs that each value is computed from; None if one of them is too large to be a key.
    sources: dict[Value, frozenset[Value] | None] = {
        v: frozenset([v]) if _may_decide(v) else None for v in graph.inputs
    }
    for op in graph.operations:
        definition = definition_of(op)
        by_type = definition is not None and definition.static_value is not None
        typed = definition is not None or op.qualified in CONTROL
        found: frozenset[Value] | None = frozenset() if typed else None
        for v in () if by_type else op.reads:
            more = sources.get(v, frozenset())
            found = None if found is None or more is None else found | more
        sources |= dict.fromkeys(op.writes, found)
    needed = frozenset[Value]().union(*(sources.get(v) or () for v in deciding))
    return tuple(v for v in graph.inputs if v in needed)


def _decides(op: Operation, n: int) -> bool:
    """Whether the value of input `n` decides the shapes of results, or the code."""
    definition = definition_of(op)
    if definition is None:
        return n in CONTROL.get(op.qualified, ())
    if n in definition.by_value:
        return True
    if op.qualified in SHAPED_BY_TYPES or has_trait(op, POINTWISE):
        return False
    after_data = n > 0 or len(op.inputs) == 1 or op.qualified == "Range"
    return after_data and not all(o.static for o in op.writes)


def _may_decide(v: Value) -> bool:
    if v.kind != "tensor" or v.dtype is None or v.shape is None or len(v.shape) > 1:
        return False
    return all(isinstance(d, int) and d <= VALUE_ELEMENTS for d in v.shape)


class DynamicExecutable:
    """Runs a graph with symbolic shapes; the interface of `runtime.Executable`."""

    def __init__(
        self,
        graph: Graph,
        build: Callable[[Callable[[], Graph]], CompiledModel],
        threads: int | None,
        fallback: Fallback,
        memory_limit: int | None = None,
        allowed: Allowed = MappingProxyType({}),
        jit: bool = True,
        ranged: Callable[[], Ranged] | None = None,
    ) -> None:
        """allowed: the extents that dimensions may have, where they are limited. jit: whether a
        call may compile; if not, everything that is allowed is compiled here, which raises
        InputError and UnsupportedError (TW-JIT) naming what is without a limit, or too many.
        ranged: makes one executable for many shapes, where there are more than are kept.
        """
        self._graph = graph
        self.nesting = graph.nesting
        self._build = build
        self._threads = threads
        self._fallback = fallback
        self._memory_limit = memory_limit
        self._deciding = shape_inputs(graph)
        self._allowed = allowed
        self._jit = jit
        self._make_ranged = ranged
        self._ranged: Ranged | None = None
        self._kept: Once[Executable] = Once(self._surplus)
        layouts = {v.name: v.type_text for v in graph.defaults}
        self.overrides = Overrides(layouts, graph.origin)
        if not jit:
            self._compile_all()

    @property
    def graph(self) -> Graph:
        """The model, whose inputs have names for the extents that calls decide."""
        return self._graph

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Name, dtype and shape of each input; None for an extent known only at a call."""
        return tuple(_tensor(v) for v in self._graph.inputs)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Name, dtype and shape of each output."""
        return tuple(_tensor(v) for v in self._graph.outputs)

    @property
    def defaults(self) -> Mapping[str, str]:
        """As `Executable.defaults`."""
        return self.overrides.layouts

    def __call__(self, *args: Any, out: Any = None, **named: Any) -> Any:
        """As `Executable.__call__`; compiles first if these shapes are new."""
        if self.nesting is None:
            found = self.run(self._named(args, named), out)
            return found[0] if len(found) == 1 else tuple(found)
        found = self.run(self.nesting.bind(args, named), out)
        return self.nesting.restore(
            {v.name: a for v, a in zip(self._graph.outputs, found, strict=True)}
        )

    def run(self, feeds: Mapping[str, Any], out: Any = None) -> list[Any]:
        """As `Executable.run`."""
        given = self._named((), feeds)
        form = self.overrides.form(given)
        results: list[Any] = (form or self.specialized(given)).run(given, out)
        return results

    def profile(self, *args: Any, **options: Any) -> Any:
        """As `Executable.profile`, for the shapes of these inputs."""
        names = {v.name for v in self._graph.inputs} | self.defaults.keys()
        if self.nesting is not None:
            names |= {name for name, _ in self.nesting.arguments}
        named = {k: options.pop(k) for k in list(options) if k in names}
        if self.nesting is None:
            given = self._named(args, named)
        else:
            given = self._named((), self.nesting.bind(args, named))
        form = self.overrides.form(given)
        return (form or self.specialized(given)).profile(given, **options)

    def specialized(self, inputs: Mapping[str, Any]) -> Executable:
        """The Executable for the shapes of these inputs."""
        arrays = {
            v.name: inputs[v.name] for v in self._graph.inputs if v.name in inputs
        }
        shapes = {
            v.name: np.shape(arrays[v.name])
            for v in self._graph.inputs
            if v.kind == "tensor" and v.name in arrays and not v.static
        }
        # Of the dtype that the model says: the bytes of another are other numbers.
        values = {
            v.name: convert(arrays[v.name], _tensor(v))
            for v in self._deciding
            if v.name in arrays
        }
        key = (
            tuple(shapes.items()),
            tuple((k, a.tobytes()) for k, a in values.items()),
        )
        if self._ranged is not None:
            self._check(shapes)
            found = self._ranged.at(self._extents(shapes))
            if found is not None:
                return found
        return self._kept.get(key, lambda: self._for_call(shapes, values))

    def _extents(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """The extents of symbolic dimensions by name."""
        return {
            d: n
            for v in self._graph.inputs
            for d, n in zip(v.shape or (), shapes.get(v.name, ()), strict=False)
            if isinstance(d, str)
        }

    def _for_call(
        self, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, Any]
    ) -> Executable:
        """What a call of new shapes runs. Raises InputError (TW-JIT) if it may not compile."""
        self._check(shapes)
        if not self._jit:
            given = ", ".join(f"{name}: {list(s)}" for name, s in shapes.items())
            raise InputError(
                f"there is no code for {given}, and jit=False compiles none in a call",
                code="TW-JIT",
                hint="name all values in dims={...}, or leave jit=False out",
            )
        return self._compiled(shapes, values)

    def _compile_all(self) -> None:
        """Code for every combination of extents: of many, one code for those that it can be of."""
        self._check_countable()
        left = list(combinations(self._allowed))
        if len(left) > KEPT and self._make_ranged is not None:
            self._ranged = self._make_ranged()
            left = [e for e in left if self._ranged.at(e) is None]
            if len(left) > KEPT:
                raise UnsupportedError(
                    f"{len(left)} combinations of extents need code of their own, {KEPT} at most "
                    f"can have it; the first is {left[0]}",
                    code="TW-JIT",
                    hint="name fewer: dims={'batch': [1, 8, 64]}",
                )
        for extents in left:
            shapes = {
                v.name: tuple(
                    d if isinstance(d, int) else extents[str(d)] for d in v.shape
                )
                for v in self._graph.inputs
                if v.kind == "tensor" and v.shape is not None and not v.static
            }
            self._kept.get(
                (tuple(shapes.items()), ()), partial(self._compiled, shapes, {})
            )

    def _check_countable(self) -> None:
        """Raise InputError or UnsupportedError (TW-JIT) unless all shapes are known, and few."""
        if self._deciding:
            names = listing([repr(v.name) for v in self._deciding])
            raise UnsupportedError(
                f"the values of {names} decide shapes, which only a call knows",
                code="TW-JIT",
                hint="leave jit=False out, or make them initializers of the model",
            )
        for v in self._graph.inputs:
            open_dims = (None,) if v.shape is None else v.shape
            for d in open_dims if v.kind == "tensor" else ():
                if not isinstance(d, int) and d not in self._allowed:
                    raise InputError(
                        f"{'a dimension without a name' if d is None else repr(d)} may have "
                        "any extent, and jit=False compiles none in a call",
                        code="TW-JIT",
                        where=f"input {v.name!r}",
                        hint="say which: dims={'batch': (1, 8)}",
                    )
        total = count(self._allowed)
        most = KEPT if self._make_ranged is None else COMPARED
        if total > most:
            ranges = ", ".join(f"{d}: {show(e)}" for d, e in self._allowed.items())
            raise InputError(
                f"{total} combinations of extents ({ranges}) are to be compiled in advance, "
                f"{most} at most can",
                code="TW-JIT",
                hint="name fewer: dims={'batch': [1, 8, 64]}",
            )

    def _compiled(
        self, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, Any]
    ) -> Executable:
        model = self._build(
            lambda: specialize(
                self._graph,
                shapes=shapes,
                values=values,
                fallback=self._fallback,
                memory_limit=self._memory_limit,
            )
        )
        return Executable(model, threads=self._threads)

    def _surplus(self, kept: Sequence[Executable]) -> int:
        """Keep a few combinations, and together no more than half of the memory allowed.

        Raises MemoryLimitError where nothing may be forgotten.
        """
        most = None if self._memory_limit is None else self._memory_limit // 2
        sizes = [e.peak_bytes for e in kept]
        first = 0
        while len(sizes) - first > 1 and (
            len(sizes) - first > KEPT
            or (most is not None and sum(sizes[first:]) > most)
        ):
            first += 1
        if first and not self._jit:
            raise MemoryLimitError(
                f"the code for all shapes needs {sum(sizes):,} bytes, over half of the memory "
                f"limit of {self._memory_limit:,}",
                hint="Raise --memory-limit, or name fewer extents",
            )
        return first

    def save(self, path: str | os.PathLike[str]) -> None:
        """Refused: an artifact has fixed shapes. Raises ArtifactError."""
        raise ArtifactError(
            f"the model has symbolic shapes, so {os.fspath(path)!r} cannot hold it",
            hint="compile with dims={...} (or --dim NAME=N) first",
        )

    def __repr__(self) -> str:
        """Its inputs with the names of their open extents, and how much code is kept."""
        ends = (
            ", ".join(f"{v.name}: {v.type_text}" for v in vs)
            for vs in (self._graph.inputs, self._graph.outputs)
        )
        kept = plural(len(self._kept.values()), "compiled shape")
        signature = " -> ".join(f"({e})" for e in ends)
        return f"DynamicExecutable({signature}, {kept})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a compiled model cannot be pickled: compile it in the other process"
        )

    def release(self) -> None:
        """Give back memory, and compiled shapes where a call may compile them again."""
        if self._jit:
            self._kept.clear()
        for made in self._kept.values():
            made.release()
        if self._ranged is not None:
            self._ranged.executable.release()
        self.overrides.clear()

    def _named(self, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """The tensors of a call by name.

        Raises InputError for a name that no input has, or too many, before anything compiles.
        """
        only = args[0] if len(args) == 1 and not named else None
        if isinstance(only, Mapping):
            args, named = (), only
        names = [v.name for v in self._graph.inputs]
        for name in named:
            if name not in names and name not in self.defaults:
                also = f", with defaults {self.overrides}" if self.defaults else ""
                raise InputError(
                    f"no input is called {name!r}: expected {listed(self.inputs)}{also}"
                )
        twice = [repr(n) for n in names[: len(args)] if n in named]
        if twice:
            raise InputError(f"input {twice[0]} is given by position and by name")
        if len(args) > len(names):
            raise InputError(f"{len(args)} inputs given, the model has {len(names)}")
        given = dict(zip(names, args, strict=False)) | dict(named)
        if missing := [t for t in self.inputs if t.name not in given]:
            raise InputError(f"missing inputs: {listed(missing)}")
        return given

    def _check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """One symbol has one extent in a call, which is one that it may have."""
        seen: dict[str, tuple[int, str]] = {}
        for v in self._graph.inputs:
            got = shapes.get(v.name)
            if got is None or v.shape is None:
                continue
            expected = ", ".join("?" if d is None else str(d) for d in v.shape)
            if len(got) != len(v.shape):
                raise InputError(
                    f"expected [{expected}], got {list(got)}", where=f"input {v.name!r}"
                )
            for d, n in zip(v.shape, got, strict=True):
                known, where = (
                    seen.setdefault(d, (n, v.name)) if isinstance(d, str) else (d, "")
                )
                if known is not None and known != n:
                    hint = (
                        f"{d} is {known} in input {where!r}; {_RENAME}"
                        if where
                        else None
                    )
                    raise InputError(
                        f"expected [{expected}], got {list(got)}",
                        where=f"input {v.name!r}",
                        hint=hint,
                    )
        check_allowed(self._graph.inputs, shapes, self._allowed)


_RENAME = (
    "dimensions that may differ, or are broadcast, need different names in the model"
)


def _tensor(v: Value) -> Tensor:
    if v.kind != "tensor" or v.dtype is None:
        return Tensor(v.name, "object", None)
    shape = (
        None
        if v.shape is None
        else tuple(d if isinstance(d, int) else None for d in v.shape)
    )
    return Tensor(v.name, dtype_of(v.dtype).name, shape)
