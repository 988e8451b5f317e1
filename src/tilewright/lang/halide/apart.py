"""Funcs that are computed separately: `memoize` remembers them, `async_` has them next to others,
`debug_to_file` writes them.

A Func that a C function computes is another. The rest of the pipeline reads their values like those
of an image, so they are computed before it. At a loop, too, all that its iterations need is made
first: remembered as a whole, or by a call of the C function for the region of each iteration.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tilewright.base.errors import InputError, ScheduleError
from tilewright.lang.halide.levels import Level, Scheduled
from tilewright.lang.halide.parts import check_place
from tilewright.lang.halide.syntax.image import Image
from tilewright.lang.halide.syntax.memory import in_memory
from tilewright.lang.halide.syntax.pipeline import Pipeline, ordered

REMEMBERED: Final = 16  # results of one Func, the least recently used out

Arrays = tuple[Any, ...]
Compute = Callable[[Scheduled], Arrays]


def separated(whole: Pipeline) -> Pipeline:
    """The pipeline in which the separately computed Funcs are inputs.

    Raises ScheduleError for one that is to be computed where it cannot be, and InputError for an
    output that a C function computes.
    """
    for f in whole.outputs:
        if isinstance(f, Scheduled) and f.extern is not None:
            raise InputError(
                "an output is computed by a C function",
                where=f"Func {f.name()}",
                hint="read it in another Func: out[x] = f[x]",
            )
    given: list[Any] = [
        f for f in whole.funcs if f not in whole.outputs and _is_apart(f)
    ]
    if not given:
        return whole
    for f in given:
        _check_level(f, whole)
    funcs, images = ordered(whole.outputs, given)
    return replace(whole, funcs=funcs, images=images)


def check_outputs(outputs: Sequence[Any]) -> None:
    """Raise ScheduleError for an output that is to be remembered."""
    for f in outputs:
        if isinstance(f, Scheduled) and f.remembers:
            raise ScheduleError(
                "memoize: it is an output, which is written to the caller's memory",
                where=f"Func {f.name()}",
                hint="keep the realized Buffer, or memoize a Func that the output reads",
            )


def _check_level(f: Scheduled, whole: Pipeline) -> None:
    level = f.compute
    inside = level is not None and level.func is not None
    if f.extern is not None and f.remembers:
        raise ScheduleError(
            "memoize: a C function computes it, once in each run",
            where=f"Func {f.name()}",
            hint="memoize a Func that reads it",
        )
    if f.extern is None and (level is None or (inside and f.file is not None)):
        verbs = {"memoize": f.remembers, "debug_to_file": f.file, "async_": True}
        verb = next(name for name, said in verbs.items() if said)
        raise ScheduleError(
            f"{verb}: it is computed where it is used",
            where=f"Func {f.name()}",
            hint="compute_root() too: it is computed separately, before its consumers",
        )
    if f.remembers and f.store is not None and not _same(level, f.store):
        raise ScheduleError(
            "memoize: it is computed at one loop and stored at another",
            where=f"Func {f.name()}, {f.store.line}",
            hint="without store_at: all its values are remembered",
        )
    check_place(f, whole)


def _same(a: Level | None, b: Level) -> bool:
    return a is not None and a.func is b.func and a.var == b.var


def _is_apart(f: Any) -> bool:
    if not isinstance(f, Scheduled):
        return False
    beside = f.is_async and (f.compute is None or f.compute.func is None)
    return f.remembers or beside or f.file is not None or f.extern is not None


def write_files(outputs: Sequence[Any], results: Sequence[Any]) -> None:
    """The files of `debug_to_file`, of the values of Funcs that have been computed."""
    owners = [f for f in outputs for _ in f.symbols]
    for f, result in zip(owners, results, strict=True):
        if isinstance(f, Scheduled) and f.file is not None:
            np.save(f.file, np.asarray(result))


@contextmanager
def values(inputs: Sequence[Any], compute: Compute) -> Iterator[list[Any]]:
    """The arrays of a pipeline's inputs, in order: data of images, values of Funcs.

    All asynchronous Funcs are computed on their own threads, at the same time.
    """
    later = [f for f in inputs if not isinstance(f, Image) and f.is_async]
    with ThreadPoolExecutor(max(1, len(later))) as threads:
        running: dict[Any, Future[Arrays]] = {
            f: threads.submit(compute, f) for f in later
        }
        found: list[Any] = []
        for f in inputs:
            if isinstance(f, Image):
                found.append(None if f.data is None else in_memory(f.data, f.strides))
            else:
                found += running[f].result() if f in running else compute(f)
        yield found


def remembered(
    memory: OrderedDict[Any, Arrays], key: Any, make: Callable[[], Arrays]
) -> Arrays:
    """What was made for a key, or is made now."""
    if key not in memory:
        memory[key] = make()
        if len(memory) > REMEMBERED:
            memory.popitem(last=False)
    memory.move_to_end(key)
    return memory[key]


def contents(images: Sequence[Image]) -> tuple[Any, ...]:
    """The data of images and Params, as a key."""
    found = []
    for image in images:
        array = np.ascontiguousarray(image.data)
        digest = hashlib.blake2b(array.tobytes()).digest()
        found.append((image, tuple(image.bounds), digest))
    return tuple(found)
