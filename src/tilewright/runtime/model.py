"""The compiled model as data: what the compiler returns and what a bundle stores.

A model is a list of steps over places. A place is a part of the arena or of the constants, an
input, an output, an object slot (a Python variable between host steps), or a part of the arena of
the device that the step is for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import dtype_of
from tilewright.base.errors import ArtifactError
from tilewright.runtime.abi import ABI_VERSION
from tilewright.runtime.packed import Constants, PackedConstant

PlaceKind = Literal["arena", "constant", "input", "output", "object", "device"]

# A dtype name outside tilewright.base.dtypes: any Python value (a sequence, an optional).
OBJECT = "object"


@dataclass(frozen=True, slots=True)
class Tensor:
    """Name, dtype name and shape of a value.

    An extent that is None is known at run time only; so is the whole shape when it is None.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None

    @property
    def is_static(self) -> bool:
        """Native memory can be laid out for it: a plain dtype and every extent known."""
        if self.shape is None or self.dtype in (OBJECT, "string"):
            return False
        return None not in self.shape

    @property
    def extents(self) -> tuple[int, ...]:
        """The shape of a static tensor. Raises ValueError for any other."""
        if not self.is_static or self.shape is None:
            raise ValueError(f"{self} has no static shape")
        return tuple(n for n in self.shape if n is not None)

    @property
    def nbytes(self) -> int:
        """Bytes of a static tensor."""
        return math.prod(self.extents) * dtype_of(self.dtype).itemsize

    @property
    def layout(self) -> str:
        """Dtype and shape as text, such as ``float32[1, 3]``."""
        if self.shape is None:
            return f"{self.dtype}[...]"
        return f"{self.dtype}[{', '.join('?' if n is None else str(n) for n in self.shape)}]"

    def __str__(self) -> str:
        return f"{self.name}: {self.layout}"


@dataclass(frozen=True, slots=True)
class SymbolicType:
    """A value whose extents may be names, or None where they have none; a dtype's name."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None

    @property
    def tensor(self) -> Tensor:
        """It with None for each extent known only at a call."""
        if self.shape is None:
            return Tensor(self.name, self.dtype, None)
        shape = tuple(d if isinstance(d, int) else None for d in self.shape)
        return Tensor(self.name, self.dtype, shape)

    @property
    def is_open(self) -> bool:
        """Whether its shape is a tensor's and not all of it is numbers."""
        shape = (None,) if self.shape is None else self.shape
        return self.dtype != OBJECT and not all(isinstance(d, int) for d in shape)

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{self.layout}"

    @property
    def layout(self) -> str:
        """`[n, 3]`, with ? for an extent without a name."""
        if self.shape is None:
            return "[...]"
        return f"[{', '.join('?' if d is None else str(d) for d in self.shape)}]"


def known_or_named(
    shape: tuple[int | str | None, ...] | None, names: object
) -> tuple[int | str | None, ...] | None:
    """The shape with names instead of None, if `names` is a sequence with one for each extent."""
    if shape is None or not isinstance(names, Sequence) or len(names) != len(shape):
        return shape
    return tuple(n if d is None else d for d, n in zip(shape, names, strict=True))


def listed(tensors: Iterable[object]) -> str:
    """Tensors, or their symbolic types, as one line of text for messages."""
    return ", ".join(map(str, tensors)) or "none"


@dataclass(frozen=True, slots=True)
class ValueSlot:
    """Where a value lives: byte offset `at` in an arena or the constants, else an index."""

    kind: PlaceKind
    at: int
    tensor: Tensor


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """What is known of one kernel call; `number` is its index among the model's kernels.

    nodes: the operators it computes. flops, bytes: per call, as the compiler counts them. symbol:
    its function in one of the model's objects; empty if unspecified.
    """

    number: int
    name: str
    nodes: tuple[str, ...] = ()
    flops: int = 0
    bytes: int = 0
    symbol: str = ""


@dataclass(frozen=True, slots=True)
class NativeStep:
    """One native call, `symbol(ctx, table)`; `values` fill the table after arena and constants."""

    symbol: str
    values: tuple[ValueSlot, ...]
    kernels: tuple[KernelRecord, ...]


@dataclass(frozen=True, slots=True)
class HostFallbackStep:
    """One operator that runs as a host fallback, in Python.

    provider, op, attributes: what `runtime.host.resolve` takes; attributes hold None, bools,
    numbers, strings, bytes, arrays, and lists and dicts of them. An input or output that the node
    leaves out is None.
    """

    provider: str
    op: str
    attributes: Mapping[str, Any]
    inputs: tuple[ValueSlot | None, ...]
    outputs: tuple[ValueSlot | None, ...]
    node: str


@dataclass(frozen=True, slots=True)
class CopyStep:
    """Copy a value from one place to another, such as an input that is an output too."""

    source: ValueSlot
    target: ValueSlot


@dataclass(frozen=True, slots=True)
class DeviceCopyStep:
    """Copy a tensor to a device or from it; the place there is of the kind "device"."""

    device: str
    source: ValueSlot
    target: ValueSlot

    @property
    def inward(self) -> bool:
        """Whether it goes to the device."""
        return self.target.kind == "device"


@dataclass(frozen=True, slots=True)
class LaunchStep:
    """Run a program of a device; `program` is its index among the model's programs.

    arguments: in the order of its parameters, then its workspace: places of the kind "device", and
    "constant" for constants, which are copied to the device once. name, nodes, flops, bytes: as
    KernelRecord.
    """

    device: str
    program: int
    arguments: tuple[ValueSlot, ...]
    name: str
    nodes: tuple[str, ...] = ()
    flops: int = 0
    bytes: int = 0


Step = NativeStep | HostFallbackStep | CopyStep | DeviceCopyStep | LaunchStep


@dataclass(frozen=True, slots=True)
class CompiledModel:
    """Everything needed to run.

    objects: ELF objects of kernels and segments, linked together; support: the thread pool's.
    constants: uint8 array that slots of kind "constant" point into; may be a mapped file. packed,
    weights: which of them a file has as weights instead; see `runtime.packed`.
    shares_constants: the block is that of several models; code finds its own by its steps.
    arena_bytes: of tensors between kernels; `workspace` bytes and `threads` times
    `thread_workspace` bytes follow in the same block. aliases: outputs, by index, that are written
    into the memory of an input, by index. object_slots: Python variables between
    steps. sizes: values of the sizes of a kernel whose code is for all of them.
    requirements: `arch` and CPU `features` that the code needs. programs: code of devices.
    devices: for each device the bytes of its arena. meta: free for the compiler (name, version,
    options), JSON-able.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    steps: tuple[Step, ...]
    objects: tuple[bytes, ...] = ()
    support: tuple[bytes, ...] = ()
    constants: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))
    packed: tuple[PackedConstant, ...] = ()
    weights: tuple[NDArray[np.uint8], ...] = ()
    shares_constants: bool = False
    arena_bytes: int = 0
    workspace: int = 0
    thread_workspace: int = 0
    aliases: tuple[tuple[int, int], ...] = ()
    object_slots: int = 0
    sizes: tuple[int, ...] = ()
    requirements: Mapping[str, Any] = field(default_factory=dict)
    programs: tuple[bytes, ...] = ()
    devices: Mapping[str, int] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shown_outputs(self) -> tuple[SymbolicType, ...]:
        """The outputs to be shown: unknown extents have the names that `meta` gives them."""
        found = self.meta.get("declared")
        names = found if isinstance(found, Mapping) else {}
        return tuple(
            SymbolicType(t.name, t.dtype, known_or_named(t.shape, names.get(t.name)))
            for t in self.outputs
        )

    abi: int = ABI_VERSION

    @property
    def held(self) -> Constants:
        """The constants with what a file has of them."""
        return Constants(self.constants, self.packed, self.weights)

    def with_constants(self, held: Constants) -> CompiledModel:
        """The model with these constants."""
        return replace(
            self, constants=held.block, packed=held.packed, weights=held.weights
        )

    @property
    def slots(self) -> Iterator[ValueSlot]:
        """Each place that a step names."""
        for step in self.steps:
            yield from _slots_of(step)

    @property
    def kernels(self) -> tuple[KernelRecord, ...]:
        """All native kernel calls in order."""
        return tuple(
            k for s in self.steps if isinstance(s, NativeStep) for k in s.kernels
        )

    @property
    def launches(self) -> tuple[LaunchStep, ...]:
        """All launches of programs of devices, in order."""
        return tuple(s for s in self.steps if isinstance(s, LaunchStep))

    def memory_on(self, device: str) -> int:
        """Bytes that a call needs on a device: its arena, and the constants of its programs."""
        return self.devices[device] + constants_on(device, self.steps)

    def memory(self, threads: int) -> int:
        """Bytes of the block that one running call needs."""
        return self.arena_bytes + self.workspace + threads * self.thread_workspace

    def fits(self, limit: int, threads: int) -> bool:
        """Whether a call and the constants need at most `limit` bytes."""
        return self.memory(threads) + len(self.constants) <= limit


def constants_on(device: str, steps: Iterable[Step]) -> int:
    """Bytes of the constants that launches on a device read, each stored once."""
    launches = (s for s in steps if isinstance(s, LaunchStep) and s.device == device)
    slots = (a for s in launches for a in s.arguments)
    fixed = {(a.at, a.tensor.nbytes) for a in slots if a.kind == "constant"}
    return sum(size for _, size in fixed)


def check(model: CompiledModel) -> None:
    """Raise ArtifactError if a step reaches outside the memory or slots that the model has."""
    limits = {
        "arena": model.arena_bytes,
        "constant": len(model.constants),
        "input": len(model.inputs),
        "output": len(model.outputs),
        "object": model.object_slots,
    }
    for sizes in (
        model.arena_bytes,
        model.workspace,
        model.thread_workspace,
        model.object_slots,
        *model.devices.values(),
    ):
        if sizes < 0:
            raise ArtifactError(f"the model asks for {sizes} bytes of memory")
    _check_aliases(model)
    objects = sum(slot.kind == "object" for slot in model.slots)
    if model.object_slots > objects:
        raise ArtifactError(
            f"the model has {model.object_slots} objects, of which it names {objects}"
        )
    for step in model.steps:
        known = limits | _device_limits(model, step)
        for slot in _slots_of(step):
            _check_slot(slot, known)
    numbers = [k.number for k in model.kernels]
    if numbers != list(range(len(numbers))):
        raise ArtifactError("the model's kernels are not numbered in order")


def _check_aliases(model: CompiledModel) -> None:
    """Raise ArtifactError for an alias of tensors that differ, or of one tensor twice."""
    for out, given in model.aliases:
        if out >= len(model.outputs) or given >= len(model.inputs):
            raise ArtifactError(f"the model has no output {out} or no input {given}")
        target, source = model.outputs[out], model.inputs[given]
        if not target.is_static or target.layout != source.layout:
            raise ArtifactError(f"{target} cannot live in the memory of {source}")
    for ends in zip(*model.aliases, strict=True):
        if len(set(ends)) < len(ends):
            raise ArtifactError("an input or output is aliased twice")


def _device_limits(model: CompiledModel, step: Step) -> dict[str, int]:
    """What a step for a device may use there. Raises ArtifactError for a wrong step."""
    if not isinstance(step, DeviceCopyStep | LaunchStep):
        return {}
    if step.device not in model.devices:
        raise ArtifactError(f"a step is for {step.device!r}, no device of the model")
    if isinstance(step, DeviceCopyStep):
        kinds = {step.source.kind, step.target.kind}
        if "device" not in kinds or kinds == {"device"}:
            raise ArtifactError(
                f"a copy to or from {step.device!r} is from {step.source.kind} "
                f"to {step.target.kind}"
            )
        if step.source.tensor.layout != step.target.tensor.layout:
            raise ArtifactError(
                f"a copy makes {step.target.tensor} of {step.source.tensor}"
            )
    else:
        if not 0 <= step.program < len(model.programs):
            raise ArtifactError(
                f"{step.name!r} is program {step.program}, of {len(model.programs)}"
            )
        if any(s.kind not in ("device", "constant") for s in step.arguments):
            raise ArtifactError(f"{step.name!r} uses memory outside {step.device!r}")
    return {"device": model.devices[step.device]}


def _check_slot(slot: ValueSlot, limits: Mapping[str, int]) -> None:
    if slot.kind not in limits:
        raise ArtifactError(f"{slot.tensor} lives in an unknown place {slot.kind!r}")
    in_memory = slot.kind in ("arena", "constant", "device")
    if in_memory and not slot.tensor.is_static:
        raise ArtifactError(f"{slot.tensor} has no size, but is in the {slot.kind}")
    end = slot.at + (slot.tensor.nbytes if in_memory else 1)
    if slot.at < 0 or end > limits[slot.kind]:
        raise ArtifactError(
            f"{slot.tensor} is at {slot.kind} {slot.at} to {end}, "
            f"outside the model's {limits[slot.kind]}"
        )


def _slots_of(step: Step) -> Iterator[ValueSlot]:
    match step:
        case NativeStep(values=values):
            yield from values
        case CopyStep(source=source, target=target):
            yield from (source, target)
        case DeviceCopyStep(source=source, target=target):
            yield from (source, target)
        case LaunchStep(arguments=arguments):
            yield from arguments
        case HostFallbackStep(inputs=inputs, outputs=outputs):
            yield from (s for s in (*inputs, *outputs) if s is not None)
