"""Arrays that callers provide for outputs (`out=`), and outputs as PyTorch tensors."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dtypes import dtype_of
from tilewright.base.errors import InputError, placed
from tilewright.base.text import plural
from tilewright.runtime import buffer, dlpack, inputs
from tilewright.runtime.device_tensor import DeviceTensor
from tilewright.runtime.model import CompiledModel, Tensor, listed


def targets(out: Any, outputs: Sequence[Tensor]) -> tuple[list[Any], list[Any]]:
    """What the caller gave for each output, and its memory as NumPy arrays, checked.

    None in both where a new array is wanted. Raises InputError.
    """
    given = in_order(out, outputs)
    arrays = [
        None if target is None else checked(target, tensor)
        for target, tensor in zip(given, outputs)
    ]
    check_apart(arrays, outputs)
    return given, arrays


def listed_out(out: Any) -> list[Any]:
    """What `out=` has, in any order."""
    if isinstance(out, Mapping):
        return list(out.values())
    return list(out) if isinstance(out, (list, tuple)) else [out]


def in_order(out: Any, outputs: Sequence[Tensor]) -> list[Any]:
    """What the caller gave for each output; None where nothing. Raises InputError."""
    if out is None:
        return [None] * len(outputs)
    if isinstance(out, Mapping):
        names = [t.name for t in outputs]
        unknown = [name for name in out if name not in names]
        if unknown:
            raise InputError(
                f"no output is called {unknown[0]!r}: expected {listed(outputs)}"
            )
        return [out.get(name) for name in names]
    given = listed_out(out)
    if len(given) != len(outputs):
        raise InputError(
            f"out= has {plural(len(given), 'array')}, the model {plural(len(outputs), 'output')}"
        )
    return given


def check_target(target: Any, tensor: Tensor) -> None:
    """Raise InputError for an output of unknown shape, and a target that cannot be written."""
    if not tensor.is_static:
        raise InputError("the shape is known only at run time: take the result instead")
    if getattr(target, "requires_grad", False):
        raise InputError("it requires gradients", hint="give its .detach()")
    if hasattr(target, "is_neg") and target.is_neg():
        raise InputError("it is a negated view", hint="give a tensor of its own")


def checked(target: Any, tensor: Tensor) -> NDArray[Any]:
    """The memory of a target on the host. Raises InputError unless the output can be copied
    there."""
    with placed(f"out= for {tensor.name!r}"):
        check_target(target, tensor)
        array = _memory(target)
        _check_layout(array, tensor)
        if not array.flags.writeable:
            raise InputError("the array is read-only")
        if not _elements_apart(array):
            raise InputError("its elements share memory", hint="give np.empty(...)")
    return array


def _memory(target: Any) -> NDArray[Any]:
    """The memory of an array or tensor that will be written. Raises InputError."""
    if isinstance(target, np.ndarray):
        return target
    if not hasattr(target, "__dlpack__") or isinstance(target, np.generic):
        raise InputError(f"expected an array or a tensor, got {type(target).__name__}")
    return dlpack.read(target)


def _check_layout(array: NDArray[Any], tensor: Tensor) -> None:
    """Raise InputError unless an array has a tensor's dtype and shape."""
    if array.dtype != dtype_of(tensor.dtype).numpy or array.shape != tensor.extents:
        found = f"{array.dtype}{list(array.shape)}"
        raise InputError(f"expected {tensor.layout}, got {found}", code="TW-SHAPE")


def _elements_apart(array: NDArray[Any]) -> bool:
    """Whether no two elements share memory, as the strides of views and transposes show it."""
    if array.flags.c_contiguous:
        return True
    span = array.itemsize
    axes = ((abs(s), n) for s, n in zip(array.strides, array.shape) if n > 1)
    for stride, extent in sorted(axes):
        if stride < span:
            return False
        span += stride * (extent - 1)
    return True


def check_apart(given: Sequence[Any], outputs: Sequence[Tensor]) -> None:
    """Raise InputError if two of the arrays share memory; None for those that are not there."""
    arrays = [(a, t.name) for a, t in zip(given, outputs) if a is not None]
    for (one, name), (other, second) in combinations(arrays, 2):
        # Comparing their ranges is cheap; the elements matter only if the ranges overlap.
        if buffer.overlap(one, other) and np.shares_memory(one, other):
            raise InputError(
                "the arrays share memory, so that one would overwrite the other",
                where=f"out= for {name!r} and {second!r}",
                hint="give each output a separate array",
            )


def donate(
    model: CompiledModel,
    values: Sequence[Any],
    converted: Sequence[Any],
    wanted: list[Any],
    arrays: list[Any],
) -> None:
    """Write outputs into the inputs of `model.aliases`: put these in `wanted` and `arrays`.

    values, converted: the inputs as given and as they are read; wanted, arrays: from `targets`.
    Raises InputError for memory that cannot be written in place or that another array of the call
    shares, and for another array that is wanted.
    """
    own = {given for _, given in model.aliases}
    others = [a for n, a in enumerate(converted) if n not in own]
    others += [a for n, a in enumerate(arrays) if wanted[n] is not None]
    for output, given in model.aliases:
        tensor, name = model.inputs[given], model.outputs[output].name
        with placed(f"input {tensor.name!r}, in whose memory {name!r} is written"):
            check_target(values[given], tensor)
            _check_donated(_memory(values[given]), tensor)
            array = converted[given]  # the same memory, as it needs no conversion
            asked = arrays[output]
            if wanted[output] is not None and wanted[output] is not values[given]:
                raise InputError(
                    "out= has another array for it",
                    hint="leave it out, or give the input's array",
                )
            wanted[output], arrays[output] = values[given], array
            rest = (a for a in others if isinstance(a, np.ndarray) and a is not asked)
            if any(buffer.overlap(array, a) for a in rest):
                raise InputError(
                    "it shares memory with another array of the call",
                    hint="give it a separate array",
                )
        others.append(array)


def _check_donated(array: NDArray[Any], tensor: Tensor) -> None:
    """Raise InputError unless native code can write into this array."""
    _check_layout(array, tensor)
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned and flags.writeable):
        raise InputError(
            "the array is read-only, or not contiguous",
            hint="give np.array(x, order='C'), and what the call returns at the next one",
        )


def writable(target: Any, values: Sequence[Any]) -> Any:
    """The target if native code may write to it while it reads the inputs, else None."""
    if target is None or not (target.flags.c_contiguous and target.flags.aligned):
        return None
    arrays = (v for v in values if isinstance(v, np.ndarray))
    return None if any(buffer.overlap(target, a) for a in arrays) else target


def count_change(target: Any) -> None:
    """Tell PyTorch that a tensor was written: gradients refuse values that changed meanwhile."""
    if inputs.is_torch(target) and not target.is_inference():
        sys.modules["torch"].autograd.graph.increment_version(target)


def to_torch(array: Any) -> Any:
    """An output as a PyTorch tensor that shares its memory; only numeric arrays change."""
    torch: Any = sys.modules["torch"]
    if isinstance(array, DeviceTensor):
        return torch.from_dlpack(array)
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
