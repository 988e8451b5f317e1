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
from tilewright.runtime import abi, buffer, host, trim
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
# Where a value has its place in every call.
FIXED: Final = ("arena", "constant")

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
        "cuts",
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
        self.cuts = [
            (cut, [self.view(s) for s in cut.step.inputs if s is not None])
            for cut in plan.cuts
        ]

    def insert_cuts(self, outputs: list[Any]) -> None:
        """Add the results that are cut to their counts to the others, each in its own memory."""

        def insert(slot: ValueSlot, found: Any) -> None:
            outputs.insert(slot.at, found.copy())

        for cut, operands in self.cuts:
            cut.apply(operands, insert)

    def view(self, slot: ValueSlot) -> NDArray[Any]:
        """The memory of a value in the arena or among the constants."""
        dtype = dtype_of(slot.tensor.dtype).numpy
        if slot.tensor.nbytes == 0:
            return np.empty(slot.tensor.extents, dtype)
        memory = self.arena if slot.kind == "arena" else self.plan.constants
        return np.ndarray(slot.tensor.extents, dtype, memory, slot.at)

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
        if slot.kind in FIXED:
            return self.frame.view(slot)
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
        if slot.kind in FIXED:
            value = self.frame.view(slot)
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
            np.copyto(self.frame.view(slot), value)
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


class NativeCall:
    """A native step with its function; `number` counts native steps."""

    def __init__(self, number: int, step: NativeStep, function: NativeFunction) -> None:
        self.number = number
        self.step = step
        self.function = function
        placed = list(enumerate(step.values, abi.TABLE_FIRST_VALUE))
        self.fixed = [(p, s) for p, s in placed if s.kind in FIXED]
        self.varying = [(p, s) for p, s in placed if s.kind not in FIXED]

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
        given = [None if s is None else values.read(s) for s in self.step.inputs]
        self.apply(given, values.write)

    def apply(
        self, given: Sequence[Any], write: Callable[[ValueSlot, Any], object]
    ) -> None:
        """Run it on these operands, and `write` each result. Raises as `run`."""
        step, where = self.step, f"node {self.step.node!r}"
        try:
            results = self.kernel(given)
            if len(results) < len(step.outputs):
                got, wanted = plural(len(results), "output"), len(step.outputs)
                raise ExecutionError(f"{step.op} gives {got}, expected {wanted}")
            for slot, result in zip(step.outputs, results):
                if slot is not None:
                    write(slot, result)
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
    opened when they are first used. device: which of several of one name.
    """

    def __init__(
        self,
        model: CompiledModel,
        functions: Mapping[str, NativeFunction],
        pool: Pool | None,
        threads: int,
        image: CodeImage | None,
        lazy: bool = False,
        device: int = 0,
    ) -> None:
        self.image: Final = image
        self.model: Final = model
        self.pool: Final = pool
        self.threads: Final = threads
        self.constants: Final = _aligned(model.constants)
        self.sizes: Final = np.array(model.sizes, np.int64)
        self.device: Final = device
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
        return open_devices(self.model, self.constants, self.device)

    def prepare(self) -> None:
        """Have the worker threads, which a fork may have taken away."""
        if self.pool is not None and self.pool.workers < self.threads - 1:
            self.pool.ensure(self.threads)

    @cached_property
    def cuts(self) -> list[FallbackCall]:
        """What cuts results to their counts, in the order of the results.

        requires: all steps behind the first do that, from values in the arena or constants; else
        there are none.
        """
        found: dict[int, FallbackCall] = {}
        for step in self.steps[1:]:
            if (
                not isinstance(step, FallbackCall)
                or step.step.provider != trim.PROVIDER
            ):
                return []
            (target,) = step.step.outputs
            fixed = (s is not None and s.kind in FIXED for s in step.step.inputs)
            if target is None or target.kind != "output" or not all(fixed):
                return []
            found[target.at] = step
        return [found[n] for n in sorted(found)]

    def single(self) -> tuple[NativeCall, list[ValueSpec], list[ValueSpec]] | None:
        """The native step with the types of its inputs and outputs, if it is the only step but for
        those that cut results to their counts (`cuts`), and plain.
        """
        step = self.steps[0] if len(self.steps) == 1 + len(self.cuts) else None
        model = self.model
        cut = {s.at for c in self.cuts for s in c.step.outputs if s is not None}
        made = [(n, t) for n, t in enumerate(model.outputs) if n not in cut]
        taken = list(enumerate(model.inputs))
        if not isinstance(step, NativeCall) or model.aliases:
            return None
        if not all(t.is_static for _, t in (*taken, *made)):
            return None
        places = {(s.kind, s.at): p for p, s in step.varying}
        if len(places) != len(step.varying) or any(
            kind == "object" for kind, _ in places
        ):
            return None
        if any(t.nbytes == 0 for t in model.inputs):
            return None
        if {n for kind, n in places if kind == "output"} != {n for n, _ in made}:
            return None
        unused = abi.TABLE_FIRST_VALUE + len(step.step.values)

        def specs(
            kind: PlaceKind, tensors: Sequence[tuple[int, Tensor]]
        ) -> list[ValueSpec]:
            return [
                (
                    places.get((kind, n), unused),
                    dtype_of(t.dtype).numpy,
                    t.extents,
                    t.nbytes,
                )
                for n, t in tensors
            ]

        return step, specs("input", taken), specs("output", made)


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
