"""Runs a model for the shapes of ranges, compiled in this process or loaded: no call compiles."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from tilewright.base.dims_hint import DimsHint
from tilewright.base.errors import ArtifactError, InputError
from tilewright.base.once import ComputeOnceCache
from tilewright.base.text import plural
from tilewright.runtime.dispatch import ShapeDispatch
from tilewright.runtime.executable import Executable
from tilewright.runtime.nesting import ArgumentNesting
from tilewright.runtime.open_model import OpenModel
from tilewright.runtime.overrides import Overrides
from tilewright.runtime.ranged_model import RangedModel
from tilewright.runtime.threads import has_threads, keep_threads, thread_count

# Sets of sizes of shared code that are laid out, least recently used out.
KEPT: Final = 64


class RangedExecutable(ShapeDispatch):
    """Runs a RangedModel; the interface of `Executable`. Raises ArtifactError as that does."""

    def __init__(
        self, model: RangedModel, *, threads: int | None = None, device: int = 0
    ) -> None:
        super().__init__(
            model.inputs,
            model.outputs,
            ArgumentNesting.of(
                model.meta,
                [v.name for v in model.inputs],
                [v.name for v in model.outputs],
            ),
            Overrides.of(model.meta),
            model.allowed,
            model.conditions,
        )
        self.model: Final = model
        self._asked: Final = threads
        if threads is None and has_threads(model.meta):
            threads = thread_count(None, model.meta)
        self._threads: Final = threads
        self._single = {
            key: Executable(m, threads=threads, lazy=True, device=device)
            for key, m in model.single.items()
        }
        self._first = [
            Executable(s.opened.model, threads=threads) for s in model.shared
        ]
        self._kept: ComputeOnceCache[Executable] = ComputeOnceCache(
            lambda kept: max(0, len(kept) - KEPT)
        )
        self.threads: Final = max((e.threads for e in self._all), default=1)
        self._names: Final = tuple(v.name for v in model.inputs)
        self._recent: dict[tuple[Any, ...], Executable] = {}

    def __call__(self, *args: Any, out: Any = None, **named: Any) -> Any:
        """As `Executable.__call__`. Shapes of a recent call are not looked up again."""
        given = self._in_order(args, named) if self.nesting is None else ()
        try:
            key = tuple([a.shape for a in given])
            found = self._recent.get(key)
        except (AttributeError, TypeError):  # not arrays
            return super().__call__(*args, out=out, **named)
        if found is not None:
            return found(*given, out=out)
        results = super().__call__(*args, out=out, **named)
        if given:
            if len(self._recent) >= KEPT:
                self._recent.clear()
            inputs = dict(zip(self._names, given, strict=True))
            self._recent[key] = self.specialized(inputs)
        return results

    def _in_order(
        self, args: tuple[Any, ...], named: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """All inputs, in order; none if the call gives others, or some of either kind."""
        if len(args) + len(named) != len(self._names):
            return ()
        if not named:
            return args
        found = tuple(named.get(name) for name in self._names)
        return () if args else found

    @property
    def _all(self) -> list[Executable]:
        return [*self._single.values(), *self._first]

    def specialized(self, inputs: Mapping[str, Any]) -> Executable:
        """The Executable for the shapes of these inputs; compiles nothing."""
        return self.at(self.extents(self.shapes_of(inputs)))

    def at(self, extents: Mapping[str, int]) -> Executable:
        """The Executable for extents by name. Raises InputError where there is no code."""
        key = tuple(extents[name] for name in self.allowed)
        found = self._single.get(key)
        if found is not None:
            return found
        for shared, first in zip(self.model.shared, self._first, strict=True):
            if key in shared.covers:
                make = partial(self._laid_out, shared.opened, first, extents)
                return self._kept.get(key, make)
        given = ", ".join(f"{name} = {n}" for name, n in extents.items())
        raise InputError(
            f"there is no code for {given}, and jit=False compiles none in a call",
            code="TW-JIT",
            hint=DimsHint("compile with these values too").of(
                {name: [n] for name, n in extents.items()}
            ),
        )

    def _laid_out(
        self, opened: OpenModel, first: Executable, extents: Mapping[str, int]
    ) -> Executable:
        return Executable(opened.at(extents), threads=self._threads, code=first)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all of it as one artifact that `load` reads, whole or not at all."""
        from tilewright.runtime import ranged_bundle

        meta = keep_threads(self.model.meta, self._asked)
        ranged_bundle.save(replace(self.model, meta=meta), path)

    def release(self) -> None:
        """Give back the memory kept between calls."""
        for made in (*self._all, *self._kept.values()):
            made.release()
        self._kept.clear()
        self._recent.clear()
        self.overrides.clear()

    def __repr__(self) -> str:
        """Its inputs with the names of their open extents, and how much code there is."""
        ends = (", ".join(map(str, vs)) for vs in (self.given, self.made))
        alone = plural(len(self._single), "shape")
        shared = plural(sum(len(s.covers) for s in self.model.shared), "shape")
        signature = " -> ".join(f"({e})" for e in ends)
        return f"RangedExecutable({signature}, {alone} alone, {shared} in shared code)"


def load(
    path: str | os.PathLike[str],
    *,
    threads: int | None = None,
    verify: bool = False,
    device: int = 0,
) -> Executable | RangedExecutable:
    """The artifact at `path`, ready to run, without any compiler; of ranges of shapes too.

    threads: if None, those that it was compiled for, if `compile` was given a number.
    verify: check the constants' checksum even where they are large. device: the number of the GPU
    that it runs on, if there are several. Raises ArtifactError, also for a number with an artifact
    of the processor alone.
    """
    from tilewright.base.arguments import expect
    from tilewright.runtime import ranged_bundle

    expect(threads=threads, verify=verify, device=device)
    found = ranged_bundle.load(path, verify=verify)
    models = found.models if isinstance(found, RangedModel) else (found,)
    if device and not any(model.devices for model in models):
        raise ArtifactError(
            f"the model runs on the host alone, but device={device} asks for a GPU",
            code="TW-DEVICE",
            where=os.fspath(path),
            hint="leave device= out, or compile the model for a GPU with target=",
        )
    if isinstance(found, RangedModel):
        return RangedExecutable(found, threads=threads, device=device)
    return Executable(found, threads=threads, device=device)
