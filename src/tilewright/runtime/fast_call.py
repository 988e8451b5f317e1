"""The fast path for models with one native call, which creates no objects but the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import addressof
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from tilewright.runtime import abi
from tilewright.runtime.array_view import PLAIN, views
from tilewright.runtime.buffer import address, fresh, from_buffer
from tilewright.runtime.call import CallFrame, CallPlan, ValueSpec

Direct = Callable[[tuple[Any, ...], Any], Any]
InPlace = Callable[[tuple[Any, ...]], bool]


class _Single(NamedTuple):
    """The native call of a plan, with what its inputs and outputs have to be.

    cut: outputs that are not among `outputs`, because they are cut to their counts behind it.
    """

    invoke: Callable[[int, int], None]
    number: int
    inputs: list[ValueSpec]
    outputs: list[ValueSpec]
    cut: bool


def _single(plan: CallPlan) -> _Single | None:
    found = plan.single()
    if found is None or views is None:
        return None
    step, inputs, outputs = found
    if any(dtype.isbuiltin != 1 for _, dtype, _, _ in (*inputs, *outputs)):
        return None  # arrays of types that are not NumPy's own are not buffers
    return _Single(step.function, step.number, inputs, outputs, bool(plan.cuts))


def shortest(
    plan: CallPlan, frames: list[CallFrame], filled: Callable[[], InPlace | None]
) -> Direct | None:
    """A function of (args, out) for the plan, or None if the model is not one plain native call.

    filled: returns the corresponding `in_place` function, for calls with outputs.
    The function does nothing and returns None if some argument is not a plain array of the expected
    type: the general path then converts it or reports the error.
    """
    single, found = _single(plan), views
    if single is None or found is None:
        return None
    invoke, number, takes, results, cut = single
    pool, workers, status = plan.pool, plan.threads - 1, abi.CTX_STATUS
    count, one = len(takes), len(plan.model.outputs) == 1
    ndarray, plain = np.ndarray, PLAIN
    last: Final = abi.ALIGNMENT - 1
    new = [(at, dtype, shape, fresh(size + last)) for at, dtype, shape, size in results]

    def call(args: tuple[Any, ...], out: Any) -> Any:
        if len(args) != count:
            return None
        if out is not None:
            targets = (out,) if one else out
            fill = filled() if type(targets) in (tuple, list) else None
            if fill is None or not fill((*args, *targets)):
                return None
            return out if one else tuple(out)
        try:
            frame = frames.pop()
        except IndexError:
            frame = CallFrame(plan)
        try:
            table = frame.tables[number]
            for (position, dtype, shape, _), a in zip(takes, args):
                if type(a) is not ndarray or a.dtype is not dtype or a.shape != shape:
                    return None
                data, flags = found[id(a)]
                if flags.value & plain != plain:
                    return None
                table[position] = data.value
            outputs = []
            for position, dtype, shape, memory in new:
                raw = memory()
                start = addressof(from_buffer(raw))
                shift = -start & last
                table[position] = start + shift
                outputs.append(ndarray(shape, dtype, raw, shift))
            if pool is not None and pool.workers < workers:
                pool.ensure(workers + 1)
            invoke(frame.context_address, frame.table_addresses[number])
            if frame.context[status]:
                frame.fail()
            if cut:
                frame.insert_cuts(outputs)
            return outputs[0] if one else tuple(outputs)
        finally:
            frames.append(frame)

    return call


def in_place(plan: CallPlan, frames: list[CallFrame]) -> InPlace | None:
    """A function of (inputs..., outputs...), or None if the model is not one plain native call, or
    results are cut behind it.

    It computes into the outputs and returns True; or False, with nothing done, if some array is
    not a plain one of the expected type, or an output shares memory with another array.
    """
    single = _single(plan)
    if single is None or single.cut or not all(size for *_, size in single.outputs):
        return None
    specs = [*single.inputs, *single.outputs]
    first, total = len(single.inputs), len(specs)
    if not 0 < total <= _WRITTEN_OUT:
        return None
    scope: dict[str, Any] = {
        "ndarray": np.ndarray,
        "views": views,
        "plan": plan,
        "frames": frames,
        "CallFrame": CallFrame,
        "invoke": single.invoke,
        "ready": _ready(plan),
    }
    for n, (_, dtype, shape, _) in enumerate(specs):
        scope |= {f"dtype{n}": dtype, f"shape{n}": shape}
    checks = [_CHECK.format(n=n, plain=PLAIN) for n in range(total)]
    checks += _apart([size for *_, size in specs], first)
    stores = [f"        table[{spec[0]}] = s{n}\n" for n, spec in enumerate(specs)]
    names = "".join(f"a{n}, " for n in range(total))
    source = _CALL.format(
        names=names,
        checks="".join(checks),
        stores="".join(stores),
        number=single.number,
        status=abi.CTX_STATUS,
    )
    exec(compile(source, f"<in place, {total} arrays>", "exec"), scope)
    made: InPlace = scope["call"]
    return made


def bound(plan: CallPlan, arrays: Sequence[Any]) -> Callable[[], object] | None:
    """A call on these arrays (inputs..., outputs...), with nothing around it: for timing.

    requires: plain arrays of the expected types, which the caller keeps. None if the model is not
    one plain native call, or results are cut behind it.
    """
    single = _single(plan)
    if single is None or single.cut:
        return None
    frame = CallFrame(plan)
    table = frame.tables[single.number]
    for (position, *_), array in zip((*single.inputs, *single.outputs), arrays):
        table[position] = address(array)
    plan.prepare()
    place = frame.table_addresses[single.number]
    call: Any = partial(single.invoke, frame.context_address, place)
    call.frame = frame  # which owns the memory that the addresses are of
    found: Callable[[], object] = call
    return found


def _apart(sizes: list[int], first: int) -> list[str]:
    """Text that returns if an output, `first` and those after it, overlaps any other array.

    A few arrays are compared in pairs, many in the order of their addresses.
    """
    total = len(sizes)
    pairs = [(i, o) for o in range(first, total) for i in range(o)]
    if len(pairs) <= _PAIRS:
        return [
            _APART.format(i=i, length=sizes[i], o=o, size=sizes[o]) for i, o in pairs
        ]
    spans = [f"(s{n}, s{n} + {size}, {n >= first}), " for n, size in enumerate(sizes)]
    return [_ALL_APART.format(spans="".join(spans))]


def _ready(plan: CallPlan) -> Callable[[], None] | None:
    """What must be done before a call: worker threads, which a fork may have taken away."""
    return plan.prepare if plan.pool is not None else None


# The function is written out for its arrays: half of a loop's time would go into the loop.
_WRITTEN_OUT: Final = 160
_PAIRS: Final = 64
_CHECK: Final = """\
    if type(a{n}) is not ndarray or a{n}.dtype is not dtype{n} or a{n}.shape != shape{n}:
        return False
    data, flags = views[id(a{n})]
    if flags.value & {plain} != {plain}:
        return False
    s{n} = data.value
"""
_APART: Final = """\
    if s{o} < s{i} + {length} and s{i} < s{o} + {size}:
        return False
"""
_ALL_APART: Final = """\
    seen = written = 0
    for start, end, output in sorted([{spans}]):
        if start < (seen if output else written):
            return False
        if end > seen:
            seen = end
        if output and end > written:
            written = end
"""
_CALL: Final = """\
def call(arrays):
    try:
        {names} = arrays
    except ValueError:
        return False
{checks}
    try:
        frame = frames.pop()
    except IndexError:
        frame = CallFrame(plan)
    try:
        table = frame.tables[{number}]
{stores}
        if ready is not None:
            ready()
        invoke(frame.context_address, frame.table_addresses[{number}])
        if frame.context[{status}]:
            frame.fail()
        return True
    finally:
        frames.append(frame)
"""
