"""One call of a model: its memory (Frame), its values, and the steps prepared for it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dtypes import dtype_of
from tilewright.base.errors import ArtifactError, ExecutionError, TilewrightError
from tilewright.base.text import plural
from tilewright.runtime import abi, buffer, host
from tilewright.runtime.device_steps import (
    CopyRun,
    LaunchRun,
    OpenDevice,
    Transfers,
    open_devices,
)
from tilewright.runtime.device_tensor import DeviceTensor
from tilewright.runtime.loader import CodeImage
from tilewright.runtime.model import (
    OBJECT,
    CompiledModel,
    CopyStep,
    DeviceCopyStep,
    HostFallbackStep,
    LaunchStep,
    NativeStep,
    PlaceKind,
    Tensor,
    ValueSlot,
)
from tilewright.runtime.pool import Pool

NativeFunction = Callable[[int, int], None]

_STATUS: Final = {
    abi.STATUS_INDEX: "an index in the data is out of range",
    abi.STATUS_BOUNDS: "an access outside a buffer",
    abi.STATUS_TILES: "the system does not permit the tiles (AMX) that the model was compiled for",
}


class CallFrame:
    """What one running call owns: context, pointer tables, arena. Reused by later calls."""

    __slots__ = (
        "arena",
        "context",
        "context_address",
        "devices",
        "plan",
        "table_addresses",
        "tables",
    )

    def __init__(self, plan: CallPlan) -> None:
        model = plan.model
        self.plan = plan
        self.arena = buffer.arena(model.memory(plan.threads))
        self.devices = {n: d.memory() for n, d in plan.devices.items()}
        slots: Any = buffer.empty((abi.CTX_SLOTS,), np.dtype(np.uint64))
        slots[:] = 0
        self.context = (ctypes.c_uint64 * abi.CTX_SLOTS).from_buffer(slots)
        self.context_address = ctypes.addressof(self.context)
        self.context[abi.CTX_THREADS] = plan.threads
        self.context[abi.CTX_SIZES] = buffer.address(plan.sizes)
        if plan.pool is not None:
            self.context[abi.CTX_PARALLEL] = plan.pool.parallel
            self.context[abi.CTX_POOL] = plan.pool.state
        native = [s for s in plan.steps if isinstance(s, NativeCall)]
        self.tables = [self._table(s) for s in native]
        self.table_addresses = [ctypes.addressof(t) for t in self.tables]

    def _table(self, step: NativeCall) -> ctypes.Array[ctypes.c_uint64]:
        # One entry more than the code reads: where unused inputs go.
        table = (
            ctypes.c_uint64 * (abi.TABLE_FIRST_VALUE + len(step.step.values) + 1)
        )()
        arena, constants = (
            buffer.address(self.arena),
            buffer.address(self.plan.constants),
        )
        table[abi.TABLE_ARENA], table[abi.TABLE_CONSTANTS] = arena, constants
        for position, slot in step.fixed:
            table[position] = (arena if slot.kind == "arena" else constants) + slot.at
        return table

    def fail(self) -> NoReturn:
        """Raise the ExecutionError that the status word describes, and clear the word."""
        status = self.context[abi.CTX_STATUS]
        self.context[abi.CTX_STATUS] = 0
        number, code = (status >> 8) - 1, status & 0xFF
        kernels = self.plan.model.kernels
        reason = _STATUS.get(code, f"failure code {code}")
        if code == abi.STATUS_BOUNDS and self.context[abi.CTX_REPORT]:
            reason = report(self.context[abi.CTX_REPORT])
        kind = "TW-BOUNDS" if code == abi.STATUS_BOUNDS else None
        if not 0 <= number < len(kernels):
            raise ExecutionError(reason, code=kind)
        record = kernels[number]
        nodes = ", ".join(record.nodes)
        place = f"kernel {record.name!r}" + (f" (nodes {nodes})" if nodes else "")
        raise ExecutionError(reason, where=place, code=kind)


def report(address: int) -> str:
    """What sanitized code says at an address: the text with its numbers."""
    words = (ctypes.c_int64 * (abi.REPORT_NUMBERS + 2)).from_address(address)
    first, *rest = ctypes.string_at(words[0]).decode().split(abi.REPORT_MARK)
    return first + "".join(
        f"{n}{text}" for n, text in zip(words[2 : 2 + words[1]], rest)
    )


class CallValues:
    """The inputs, outputs and objects of one running call. `fixed` outputs are the caller's.

    timed: events of devices know how long their commands took.
    """

    __slots__ = (
        "fixed",
        "frame",
        "inputs",
        "objects",
        "outputs",
        "timed",
        "transfers",
    )

    def __init__(
        self,
        frame: CallFrame,
        inputs: Sequence[Any],
        targets: Sequence[Any],
        timed: bool = False,
    ) -> None:
        self.frame = frame
        self.timed = timed
        self.transfers = Transfers()
        self.inputs = list(inputs)
        self.outputs: list[Any] = list(targets)
        self.fixed = tuple(t is not None for t in targets)
        self.objects: list[Any] = [None] * frame.plan.model.object_slots

    def _store_of(self, slot: ValueSlot) -> list[Any]:
        match slot.kind:
            case "input":
                return self.inputs
            case "output":
                return self.outputs
            case _:
                return self.objects

    def native(self, slot: ValueSlot) -> int:
        """The address of an input, output or object, which is allocated if it has no value yet."""
        return buffer.address(self.array(slot))

    def array(self, slot: ValueSlot) -> NDArray[Any]:
        """The memory of a value in C order, which is allocated if it has no value yet."""
        if slot.kind in ("arena", "constant"):
            return self._view(slot)
        store = self._store_of(slot)
        value = store[slot.at]
        if isinstance(value, DeviceTensor):  # which a step on the host uses
            queue = self.frame.devices[value.device.name].queue(self.timed)
            value = value.copied(queue)
        elif value is None:
            value = buffer.empty(slot.tensor.extents, dtype_of(slot.tensor.dtype).numpy)
        else:
            value = np.require(_conforming(value, slot.tensor), None, ["C", "A"])
        store[slot.at] = value
        return value

    def read(self, slot: ValueSlot) -> Any:
        """A value for Python: arrays as read-only views."""
        value: Any
        if slot.kind in ("arena", "constant"):
            value = self._view(slot)
        else:
            value = self._store_of(slot)[slot.at]
        if isinstance(value, DeviceTensor):
            value = self.array(slot)
        if isinstance(value, np.ndarray):
            value = value.view()
            value.flags.writeable = False
        return value

    def write(self, slot: ValueSlot, value: Any) -> None:
        """Put a value made in Python in its place. Raises ExecutionError if it does not fit."""
        if slot.tensor.dtype != OBJECT:
            value = _conforming(value, slot.tensor)
        if slot.kind == "arena":
            np.copyto(self._view(slot), value)
        elif slot.kind == "object":
            self.objects[slot.at] = _detached(value, self.frame.arena)
        elif slot.kind == "output" and self.fixed[slot.at]:
            np.copyto(self.outputs[slot.at], value)
        elif slot.kind == "output":
            self.outputs[slot.at] = _owned(value)
        else:
            raise ExecutionError(
                f"a step writes to the {slot.kind} {slot.tensor.name!r}"
            )

    def _view(self, slot: ValueSlot) -> NDArray[Any]:
        dtype = dtype_of(slot.tensor.dtype).numpy
        if slot.tensor.nbytes == 0:
            return np.empty(slot.tensor.extents, dtype)
        memory = self.frame.arena if slot.kind == "arena" else self.frame.plan.constants
        return np.ndarray(slot.tensor.extents, dtype, memory, slot.at)


class NativeCall:
    """A native step with its function; `number` counts native steps."""

    def __init__(self, number: int, step: NativeStep, function: NativeFunction) -> None:
        self.number = number
        self.step = step
        self.function = function
        placed = list(enumerate(step.values, abi.TABLE_FIRST_VALUE))
        self.fixed = [(p, s) for p, s in placed if s.kind in ("arena", "constant")]
        self.varying = [
            (p, s) for p, s in placed if s.kind not in ("arena", "constant")
        ]

    def run(self, values: CallValues) -> None:
        """Make the call. Raises ExecutionError if a kernel reports a failure."""
        frame = values.frame
        table = frame.tables[self.number]
        for position, slot in self.varying:
            table[position] = values.native(slot)
        frame.plan.prepare()
        self.function(frame.context_address, frame.table_addresses[self.number])
        if frame.context[abi.CTX_STATUS]:
            frame.fail()


class FallbackCall:
    """A host step with its kernel."""

    def __init__(self, step: HostFallbackStep) -> None:
        self.step = step
        try:
            self.kernel = host.resolve(step.provider, step.op, step.attributes)
        except TilewrightError as error:
            raise error.at(f"node {step.node!r}") from error.__cause__

    def run(self, values: CallValues) -> None:
        """Run the host fallback. Raises ExecutionError naming the node if it fails."""
        step, where = self.step, f"node {self.step.node!r}"
        given = [None if s is None else values.read(s) for s in step.inputs]
        try:
            results = self.kernel(given)
            if len(results) < len(step.outputs):
                got, wanted = plural(len(results), "output"), len(step.outputs)
                raise ExecutionError(f"{step.op} gives {got}, expected {wanted}")
            for slot, result in zip(step.outputs, results):
                if slot is not None:
                    values.write(slot, result)
        except TilewrightError as error:
            if (error.where or "").startswith(where):  # it names the type as well
                raise
            raise error.at(where) from error.__cause__
        except Exception as error:
            raise ExecutionError(
                f"the host fallback of {step.op} failed: {type(error).__name__}: {error}",
                where=where,
            ) from error


class CallCopy:
    """A copy step."""

    def __init__(self, step: CopyStep) -> None:
        self.step = step

    def run(self, values: CallValues) -> None:
        """Copy the value."""
        values.write(self.step.target, values.read(self.step.source))


PreparedStep = NativeCall | FallbackCall | CallCopy | CopyRun | LaunchRun

# Position in the table, NumPy dtype, shape, bytes.
ValueSpec = tuple[int, np.dtype[Any], tuple[int, ...], int]


class CallPlan:
    """A model prepared for running: functions and kernels found, constants aligned.

    image: the native code of the functions, which lives as long as the plan does. lazy: devices are
    opened when they are first used.
    """

    def __init__(
        self,
        model: CompiledModel,
        functions: Mapping[str, NativeFunction],
        pool: Pool | None,
        threads: int,
        image: CodeImage | None,
        lazy: bool = False,
    ) -> None:
        self.image: Final = image
        self.model: Final = model
        self.pool: Final = pool
        self.threads: Final = threads
        self.constants: Final = _aligned(model.constants)
        self.sizes: Final = np.array(model.sizes, np.int64)
        if not lazy:
            self.devices  # noqa: B018 - raises if something is missing
        self.steps: Final[list[PreparedStep]] = []
        natives = 0
        for step in model.steps:
            match step:
                case NativeStep():
                    call = NativeCall(natives, step, functions[step.symbol])
                    self.steps.append(call)
                    natives += 1
                case HostFallbackStep():
                    self.steps.append(FallbackCall(step))
                case CopyStep():
                    self.steps.append(CallCopy(step))
                case DeviceCopyStep():
                    self.steps.append(CopyRun(step))
                case LaunchStep():
                    self.steps.append(LaunchRun(step))

    @cached_property
    def devices(self) -> dict[str, OpenDevice]:
        """The devices, with what the model needs there. Raises as `open_devices`."""
        return open_devices(self.model, self.constants)

    def prepare(self) -> None:
        """Have the worker threads, which a fork may have taken away."""
        if self.pool is not None and self.pool.workers < self.threads - 1:
            self.pool.ensure(self.threads)

    def single(self) -> tuple[NativeCall, list[ValueSpec], list[ValueSpec]] | None:
        """The only step with the types of its values, if the model is one plain native call."""
        if len(self.steps) != 1 or not isinstance(self.steps[0], NativeCall):
            return None
        step = self.steps[0]
        model = self.model
        if model.aliases or any(
            not t.is_static for t in (*model.inputs, *model.outputs)
        ):
            return None
        places = {(s.kind, s.at): p for p, s in step.varying}
        if len(places) != len(step.varying) or any(
            kind == "object" for kind, _ in places
        ):
            return None
        if any(t.nbytes == 0 for t in model.inputs):
            return None
        if any(("output", n) not in places for n in range(len(model.outputs))):
            return None
        unused = abi.TABLE_FIRST_VALUE + len(step.step.values)

        def specs(kind: PlaceKind, tensors: Sequence[Tensor]) -> list[ValueSpec]:
            return [
                (
                    places.get((kind, n), unused),
                    dtype_of(t.dtype).numpy,
                    t.extents,
                    t.nbytes,
                )
                for n, t in enumerate(tensors)
            ]

        return step, specs("input", model.inputs), specs("output", model.outputs)


def run(
    plan: CallPlan,
    frame: CallFrame,
    inputs: Sequence[Any],
    targets: Sequence[Any],
    watch: Callable[[PreparedStep, CallValues], None] | None = None,
) -> list[Any]:
    """All steps on converted inputs; the outputs, in `targets` where one is not None.

    Outputs that are aliases are written into their inputs. `watch`, if given, is called for each
    step and has to run it; devices are timed then.
    """
    places = list(targets)
    for output, given in plan.model.aliases:
        places[output] = inputs[given]
    values = CallValues(frame, inputs, places, watch is not None)
    transfers = values.transfers
    try:
        for step in plan.steps:
            if not isinstance(step, CopyRun | LaunchRun):
                transfers.settle()
            if watch is None:
                step.run(values)
            else:
                watch(step, values)
    finally:  # whoever has the frame or the arrays next finds them at rest
        transfers.settle()
    for n, (tensor, value) in enumerate(zip(plan.model.outputs, values.outputs)):
        if value is None and tensor.is_static and tensor.nbytes == 0:
            values.outputs[n] = np.empty(tensor.extents, dtype_of(tensor.dtype).numpy)
        elif value is None and tensor.dtype != OBJECT:
            raise ExecutionError(f"no step produces the output {tensor.name!r}")
    return values.outputs


def _aligned(constants: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if not isinstance(constants, np.ndarray) or constants.dtype != np.uint8:
        raise ArtifactError("the constants are not an array of bytes")
    if buffer.address(constants) % abi.ALIGNMENT == 0:
        return constants
    copy = buffer.arena(len(constants))
    copy[:] = constants
    return copy


def _conforming(value: Any, tensor: Tensor) -> NDArray[Any]:
    """A host fallback's result as an array of the declared type, or ExecutionError."""
    array = np.asarray(value)
    dtype = dtype_of(tensor.dtype)
    if dtype.is_string and array.dtype.kind in "UST":
        array = array.astype(object)
    expected = tensor.shape
    fits = expected is None or (
        array.ndim == len(expected)
        and all(e in (None, n) for e, n in zip(expected, array.shape))
    )
    if array.dtype != dtype.numpy or not fits:
        raise ExecutionError(
            f"{tensor.name!r} is {array.dtype}{list(array.shape)}, expected {tensor.layout}",
            hint="The operator's reference gives what its type rule does not say: one is wrong",
        )
    return array


def _owned(value: Any) -> Any:
    """The value with its own memory, so that the caller may keep and change it."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(_owned, value))
    if isinstance(value, np.ndarray) and not (
        value.flags.owndata and value.flags.c_contiguous
    ):
        return np.array(value, order="C")
    return value


def _detached(value: Any, arena: NDArray[np.uint8]) -> Any:
    """The value without memory in the arena, where other values will be written."""
    if isinstance(value, (list, tuple)):
        return type(value)(_detached(v, arena) for v in value)
    if isinstance(value, np.ndarray) and buffer.overlap(value, arena):
        return np.array(value, order="C")
    return value
