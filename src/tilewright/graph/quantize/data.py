"""Calibration data: arrays for a model's inputs, checked and cut into samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.base.errors import InputError
from tilewright.base.text import did_you_mean, plural
from tilewright.graph.nodes import Graph, Value
from tilewright.graph.quantize.calibrate import Sample

Array = NDArray[Any]
HELD_OUT = 4  # one in this many samples is held out for measuring


def samples_of(
    graph: Graph,
    data: Any,
) -> list[Sample]:
    """The samples, each with an array for every input of the graph.

    data: a sequence of such samples; or arrays by name that hold several samples: of the input's
    rank plus one [samples, *shape], or of its rank, with the samples concatenated along the first
    axis. Raises InputError for other names, shapes, counts and dtypes, for empty data, for numbers
    that are not finite, and for constant floats.
    """
    if isinstance(data, Mapping):
        samples = _cut(graph, data)
    elif not isinstance(data, Iterable):
        raise InputError(
            f"expected samples, got {type(data).__name__}",
            where="calibration data",
            hint="give arrays by the names of the model's inputs, or a list of such samples",
        )
    else:
        samples = [dict(_named(graph, sample)) for sample in data]
    if not samples:
        raise InputError("there are no samples", where="calibration data")
    for sample in samples:
        for v in graph.inputs:
            _check(v, sample[v.name])
    _check_varied(graph, samples)
    return samples


def held_out(samples: Sequence[Sample]) -> tuple[Sequence[Sample], Sequence[Sample]]:
    """The samples that determine scales, and the last ones, on which the result is measured.

    A single sample is used for both.
    """
    if len(samples) == 1:
        return samples, samples
    kept = len(samples) - max(1, len(samples) // HELD_OUT)
    return samples[:kept], samples[kept:]


def _named(
    graph: Graph,
    sample: Any,
) -> Mapping[str, Array]:
    """One sample by name, for exactly the model's inputs."""
    if not isinstance(sample, Mapping):
        raise InputError(
            f"a sample is a {type(sample).__name__}",
            where="calibration data",
            hint="give arrays by the names of the model's inputs",
        )
    names = [v.name for v in graph.inputs]
    for name in sample:
        if name not in names:
            raise InputError(
                f"the model has no input {name!r}",
                where="calibration data",
                hint=did_you_mean(name, names),
            )
    for name in names:
        if name not in sample:
            raise InputError(
                f"there is no array for input {name!r}",
                where="calibration data",
                hint=f"give an array for each of {', '.join(names)}",
            )
    return {name: np.asarray(sample[name]) for name in names}


def _cut(
    graph: Graph,
    data: Mapping[str, Any],
) -> list[Sample]:
    """Split arrays of several samples into one dictionary per sample."""
    arrays = _named(graph, data)
    parts = {v.name: list(_parts(v, arrays[v.name])) for v in graph.inputs}
    counts = {name: len(found) for name, found in parts.items()}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{n} for {name!r}" for name, n in counts.items())
        raise InputError(
            f"the inputs have different numbers of samples: {said}",
            where="calibration data",
        )
    count = next(iter(counts.values()), 0)
    return [{name: found[n] for name, found in parts.items()} for n in range(count)]


def _parts(
    v: Value,
    array: Array,
) -> Iterable[Array]:
    """The samples in one array."""
    rank = None if v.shape is None else len(v.shape)
    many = max(array.ndim, 1) if rank is None else rank + 1
    if array.ndim == many:
        return array
    first = v.shape[0] if v.shape else None
    if array.ndim != rank or rank == 0:
        raise _misfit(v, array)
    batch = first if isinstance(first, int) else 1
    if batch == 0 or len(array) % batch:
        raise InputError(
            f"{len(array)} rows are not a whole number of samples of {batch}",
            where=f"calibration data, input {v.name!r}",
            hint=f"the model takes {v.type_text}",
        )
    return (array[n : n + batch] for n in range(0, len(array), batch))


def _check(
    v: Value,
    array: Array,
) -> None:
    """Raise InputError for a sample that does not fit the input or carries no information."""
    fits = v.shape is None or (
        len(v.shape) == array.ndim
        and all(
            not isinstance(d, int) or d == n
            for d, n in zip(v.shape, array.shape, strict=True)
        )
    )
    if not fits or (v.dtype is not None and array.dtype != v.dtype.numpy):
        raise _misfit(v, array)
    if not array.size:
        raise InputError(
            "a sample is empty", where=f"calibration data, input {v.name!r}"
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        count = int((~np.isfinite(array)).sum())
        raise InputError(
            f"{plural(count, 'number is', 'numbers are')} NaN or infinite",
            where=f"calibration data, input {v.name!r}",
            hint="leave such samples out: they have no range",
        )


def _misfit(
    v: Value,
    array: Array,
) -> InputError:
    found = f"{array.dtype}[{', '.join(map(str, array.shape))}]"
    return InputError(
        f"expected {v.type_text}, or several of them along a first axis, got {found}",
        where=f"calibration data, input {v.name!r}",
    )


def _check_varied(
    graph: Graph,
    samples: Sequence[Sample],
) -> None:
    """Raise InputError if all elements of a float input are the same."""
    for v in graph.inputs:
        arrays = [sample[v.name] for sample in samples]
        first = arrays[0].reshape(-1)[0]
        varies = arrays[0].size == 1 or any((a != first).any() for a in arrays)
        if arrays[0].dtype.kind == "f" and not varies:
            raise InputError(
                f"all numbers are {first}: the data are constant",
                where=f"calibration data, input {v.name!r}",
                hint="give data like those that the model will see",
            )
