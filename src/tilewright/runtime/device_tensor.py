"""Tensors on a device that other libraries share by DLPack: given as inputs, or kept as results."""

from __future__ import annotations

from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dtypes import dtype_of
from tilewright.base.errors import InputError
from tilewright.runtime import abi, capsule, dlpack
from tilewright.runtime.device import Device, Memory, MemoryRange, Queue
from tilewright.runtime.model import Tensor

_CPU: Final = (dlpack.CPU, 0)


@runtime_checkable
class SharingDevice(Device, Protocol):
    """A device that shares memory with other libraries.

    dlpack: its type and number in DLPack. stream: the handle of the stream that it works on, which
    producers make wait for their own work.
    """

    dlpack: tuple[int, int]
    stream_handle: int

    def adopt(self, address: int, nbytes: int, owner: object) -> Memory:
        """Memory of another library, which `owner` keeps alive."""
        ...

    def lend(self, memory: Memory, stream: int | None) -> int:
        """The address of memory that another library will use on a stream, numbered as DLPack
        does; None: the default one.

        It is freed after what that stream does with it. Raises InputError for no stream.
        """
        ...


class DeviceTensor:
    """A tensor in C order on a device, complete when it is made.

    Other libraries use its memory without a copy: `torch.from_dlpack(y)`, `cupy.from_dlpack(y)`.
    """

    def __init__(
        self,
        tensor: Tensor,
        place: MemoryRange,
        device: SharingDevice,
        source: object = None,
    ) -> None:
        self.tensor: Final = tensor
        self.place: Final = place
        self.device: Final = device
        self.source: Final = source  # the object that it was read from

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extents."""
        return self.tensor.extents

    @property
    def dtype(self) -> str:
        """The name of its dtype."""
        return self.tensor.dtype

    def numpy(self) -> NDArray[Any]:
        """A copy on the host."""
        return self.copied(self.device.queue())

    def copied(self, queue: Queue) -> NDArray[Any]:
        """A copy on the host, after what is in the queue."""
        found = np.empty(self.shape, dtype_of(self.dtype).numpy)
        queue.read(found.reshape(-1).view(np.uint8), self.place).wait()
        return found

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device.dlpack

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule; its consumer need not wait for any work. Raises InputError."""
        here = self.device.dlpack
        wanted = here if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
        if wanted == _CPU and copy is not False:
            return self.numpy().__dlpack__(max_version=max_version)
        if wanted != here or copy:
            raise InputError(
                f"the memory of {self} is only shared as it is, not copied on a device",
                hint="take it without dl_device= and copy=, and copy it then",
            )
        address = self.device.lend(self.place.memory, stream) + self.place.offset
        versioned = max_version is not None and max_version[0] >= 1
        dtype = dtype_of(self.dtype)
        return capsule.capsule(address, here, dtype, self.shape, self.place, versioned)

    def __repr__(self) -> str:
        _, name = dlpack.device_of(self)
        return f"DeviceTensor({self.tensor.layout} on {name})"


def allocated(tensor: Tensor, device: SharingDevice) -> DeviceTensor:
    """A tensor with memory of its own. Raises MemoryLimitError."""
    memory = device.allocate(tensor.nbytes)
    return DeviceTensor(tensor, MemoryRange(memory, 0, tensor.nbytes), device)


def is_elsewhere(value: Any) -> bool:
    """Whether a value is a tensor in memory that the host cannot read."""
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack_device__"):
        return False
    kind, _ = dlpack.device_of(value)
    return kind not in (dlpack.CPU, dlpack.CUDA_HOST)


def taken(
    value: Any, tensor: Tensor, device: SharingDevice, written: bool = False
) -> DeviceTensor:
    """A tensor of another library that is on the device, in its own memory.

    Raises InputError unless it is as kernels expect it; written: which write to it.
    """
    _check_device(value, device)
    if hasattr(value, "detach") and not written:
        value = value.detach()  # a tensor that requires gradients refuses DLPack
    try:
        found = capsule.view(_capsule_of(value, device.stream_handle))
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"it cannot be exported through DLPack: {error}") from error
    code = capsule.code_of(dtype_of(tensor.dtype))
    if (found.code, found.lanes, found.shape) != (code, 1, tensor.extents):
        raise InputError(
            f"expected {tensor.layout}, got {found.dtype}{list(found.shape)}",
            code="TW-DTYPE" if found.shape == tensor.extents else "TW-SHAPE",
        )
    if written and found.read_only:
        raise InputError("the tensor is read-only")
    if not found.is_contiguous:
        raise InputError("it is not contiguous", hint="Give its .contiguous()")
    if found.address % abi.ALIGNMENT and tensor.nbytes:
        raise InputError(
            f"its memory does not begin at a multiple of {abi.ALIGNMENT} bytes, as kernels expect",
            hint="Give a copy of it, such as its .clone()",
        )
    memory = device.adopt(found.address, tensor.nbytes, found)
    return DeviceTensor(tensor, MemoryRange(memory, 0, tensor.nbytes), device, value)


def _check_device(value: Any, device: SharingDevice) -> None:
    found = value.__dlpack_device__()
    kind, number = int(found[0]), int(found[1])
    if (kind, number) != device.dlpack:
        names = dlpack.named(kind, number), dlpack.named(*device.dlpack)
        raise InputError(
            f"it is on {names[0]}, but the model runs on {names[1]}",
            hint=f"Move it to {names[1]}, or to the CPU",
        )


def _capsule_of(value: Any, stream: int) -> Any:
    """A versioned capsule, which says whether it is read-only, where the producer knows these."""
    try:
        return value.__dlpack__(stream=stream, max_version=(1, 0))
    except TypeError:
        return value.__dlpack__(stream=stream)
