"""The shortest way through a model of one native call: no object is made that is not returned."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import addressof
from typing import Any, Final

import numpy as np

from tilewright.runtime import abi
from tilewright.runtime.buffer import from_buffer
from tilewright.runtime.call import Frame, Plan

# NumPy's flag bits that native code and the way its address is taken rely on.
_PLAIN: Final = 0x1 | 0x100 | 0x400  # C-contiguous, aligned, writable

Direct = Callable[[tuple[Any, ...], Any], Any]


def shortest(plan: Plan, frames: list[Frame]) -> Direct | None:
    """A function of (args, out) for the plan, or None if the model is not one plain native call.

    The function returns None, with nothing done, if some argument is not a plain array of the
    expected type: the general way then converts it or says what is wrong.
    """
    found = plan.single()
    if found is None:
        return None
    step, in_specs, out_specs = found
    if any(dtype.isbuiltin != 1 for _, dtype, _, _ in (*in_specs, *out_specs)):
        return None  # arrays of types that are not NumPy's own are no buffers
    function, pool, workers = step.function, plan.pool, plan.threads - 1
    count, one, number = len(in_specs), len(out_specs) == 1, step.number
    ndarray, empty, byte = np.ndarray, np.empty, np.dtype(np.uint8)
    last = abi.ALIGNMENT - 1

    def place_targets(table: Any, out: Any) -> bool:
        targets = (out,) if one else out
        if type(targets) not in (tuple, list) or len(targets) != len(out_specs):
            return False
        for (position, dtype, shape, size), a in zip(out_specs, targets):
            if type(a) is not ndarray or a.dtype is not dtype or a.shape != shape or not size:
                return False
            if a.flags.num & _PLAIN != _PLAIN:
                return False
            start = addressof(from_buffer(a))
            for other, _, _, length in in_specs:
                if start < table[other] + length and table[other] < start + size:
                    return False
            table[position] = start
        return True

    def call(args: tuple[Any, ...], out: Any) -> Any:
        if len(args) != count:
            return None
        try:
            frame = frames.pop()
        except IndexError:
            frame = Frame(plan)
        try:
            table = frame.tables[number]
            for (position, dtype, shape, _), a in zip(in_specs, args):
                if type(a) is not ndarray or a.dtype is not dtype or a.shape != shape:
                    return None
                if a.flags.num & _PLAIN != _PLAIN:
                    return None
                table[position] = addressof(from_buffer(a))
            if out is None:
                outputs = []
                for position, dtype, shape, size in out_specs:
                    raw = empty(size + last, byte)
                    start = addressof(from_buffer(raw))
                    shift = -start & last
                    table[position] = start + shift
                    outputs.append(ndarray(shape, dtype, raw, shift))
                result = outputs[0] if one else tuple(outputs)
            elif place_targets(table, out):
                result = out if one else tuple(out)
            else:
                return None
            if pool is not None and pool.workers < workers:
                pool.ensure(workers + 1)
            function(frame.context_address, frame.table_addresses[number])
            if frame.context[abi.CTX_STATUS]:
                frame.fail()
            return result
        finally:
            frames.append(frame)

    return call
