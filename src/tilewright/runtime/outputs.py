"""Arrays that callers provide for outputs (`out=`), and outputs as PyTorch tensors."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from tilewright.base.dtypes import dtype_of
from tilewright.base.errors import InputError
from tilewright.base.text import plural
from tilewright.runtime import buffer
from tilewright.runtime.model import CompiledModel, Tensor, listed


def targets(out: Any, outputs: Sequence[Tensor]) -> list[Any]:
    """The arrays to write each output to, checked; None where a new one is wanted."""
    if out is None:
        return [None] * len(outputs)
    if isinstance(out, Mapping):
        names = [t.name for t in outputs]
        unknown = [name for name in out if name not in names]
        if unknown:
            raise InputError(
                f"no output is called {unknown[0]!r}: expected {listed(outputs)}"
            )
        given = [out.get(name) for name in names]
    elif isinstance(out, (list, tuple)):
        given = list(out)
    else:
        given = [out]
    if len(given) != len(outputs):
        raise InputError(
            f"out= has {plural(len(given), 'array')}, the model {plural(len(outputs), 'output')}"
        )
    for target, tensor in zip(given, outputs):
        if target is not None:
            _check_target(target, tensor)
    _check_apart(given, outputs)
    return given


def _check_target(target: Any, tensor: Tensor) -> None:
    where = f"out= for {tensor.name!r}"
    if not tensor.is_static:
        raise InputError(
            "the shape is known only at run time: take the result instead"
        ).at(where)
    if not isinstance(target, np.ndarray):
        raise InputError(f"expected a NumPy array, got {type(target).__name__}").at(
            where
        )
    if target.dtype != dtype_of(tensor.dtype).numpy or target.shape != tensor.extents:
        raise InputError(
            f"expected {tensor.layout}, got {target.dtype}{list(target.shape)}",
            code="TW-SHAPE",
        ).at(where)
    if not target.flags.writeable:
        raise InputError("the array is read-only").at(where)


def _check_apart(given: Sequence[Any], outputs: Sequence[Tensor]) -> None:
    arrays = [(a, t.name) for a, t in zip(given, outputs) if a is not None]
    for (one, name), (other, second) in combinations(arrays, 2):
        # Comparing their ranges is cheap; the elements matter only if the ranges overlap.
        if buffer.overlap(one, other) and np.shares_memory(one, other):
            raise InputError(
                "the arrays share memory, so that one would overwrite the other",
                where=f"out= for {name!r} and {second!r}",
                hint="give each output a separate array",
            )


def donate(model: CompiledModel, values: Sequence[Any], wanted: list[Any]) -> None:
    """Put the arrays of inputs that outputs are written into where these are `wanted`.

    Raises InputError for an array that cannot be written in place, that shares memory with another
    one of the call, or for another array that is wanted.
    """
    own = {given for _, given in model.aliases}
    others = [a for n, a in enumerate(values) if n not in own]
    arrays = [a for a in (*others, *wanted) if isinstance(a, np.ndarray)]
    for output, given in model.aliases:
        array, tensor = values[given], model.inputs[given]
        name = model.outputs[output].name
        where = f"input {tensor.name!r}, in whose memory {name!r} is written"
        _check_donated(array, tensor, where)
        asked = wanted[output]
        if asked is not None and asked is not array:
            raise InputError(
                "out= has another array for it",
                where=where,
                hint="leave it out, or give the input's array",
            )
        wanted[output] = array
        if any(a is not asked and buffer.overlap(array, a) for a in arrays):
            raise InputError(
                "it shares memory with another array of the call",
                where=where,
                hint="give it a separate array",
            )
        arrays.append(array)


def _check_donated(array: Any, tensor: Tensor, where: str) -> None:
    """Raise InputError unless native code can write into this array."""
    if not isinstance(array, np.ndarray):
        raise InputError(
            f"expected a NumPy array, got {type(array).__name__}", where=where
        )
    dtype = dtype_of(tensor.dtype).numpy
    if array.dtype != dtype or array.shape != tensor.extents:
        found = f"{array.dtype}{list(array.shape)}"
        raise InputError(
            f"expected {tensor.layout}, got {found}", where=where, code="TW-SHAPE"
        )
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned and flags.writeable):
        raise InputError(
            "the array is read-only, or not contiguous",
            where=where,
            hint="give np.array(x, order='C'), and what the call returns at the next one",
        )


def writable(target: Any, values: Sequence[Any]) -> Any:
    """The target if native code may write to it while it reads the inputs, else None."""
    if target is None or not (target.flags.c_contiguous and target.flags.aligned):
        return None
    arrays = (v for v in values if isinstance(v, np.ndarray))
    return None if any(buffer.overlap(target, a) for a in arrays) else target


def to_torch(array: Any) -> Any:
    """An output as a PyTorch tensor that shares its memory; only numeric arrays change."""
    torch: Any = sys.modules["torch"]
    if not isinstance(array, np.ndarray) or array.dtype == object:
        return array
    name = dtype_of(array.dtype).name
    if array.dtype.kind in "biufc" and array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    kind = getattr(torch, name, None)
    if kind is None:
        return array
    bits = array.view(np.dtype(f"int{array.dtype.itemsize * 8}"))
    return torch.from_numpy(bits).view(kind)
