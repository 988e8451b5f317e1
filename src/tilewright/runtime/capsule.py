"""DLPack's capsules, in which libraries hand tensors to each other without copies (dlpack.h)."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, Final

from tilewright.base import dtypes
from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.base.errors import InputError

# (type code, bits) -> dtype, for the types that NumPy's own reader does not take.
OTHER_DTYPES: Final[Mapping[tuple[int, int], DType]] = {
    (4, 16): dtypes.bfloat16,
    (10, 8): dtypes.float8_e4m3fn,
    (11, 8): dtypes.float8_e4m3fnuz,
    (12, 8): dtypes.float8_e5m2,
    (13, 8): dtypes.float8_e5m2fnuz,
    (14, 8): dtypes.float8_e8m0fnu,
}
# The type codes of NumPy's own kinds.
_CODES: Final[Mapping[str, int]] = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_KINDS: Final = {code: kind for kind, code in _CODES.items()}
_READ_ONLY: Final = 1  # of a versioned capsule's flags
# A capsule's name, until someone has taken its tensor over.
_PLAIN: Final = b"dltensor"
_VERSIONED: Final = b"dltensor_versioned"


class TensorFields(ctypes.Structure):
    """struct DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    """struct DLManagedTensor."""

    _fields_ = [
        ("tensor", TensorFields),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class _ManagedVersioned(ctypes.Structure):
    """struct DLManagedTensorVersioned."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", TensorFields),
    ]


_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_new = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(("PyCapsule_New", ctypes.pythonapi))


@dataclass(frozen=True, slots=True)
class TensorView:
    """What a capsule says. strides: in elements. capsule: owns the memory."""

    address: int
    device: tuple[int, int]
    code: tuple[int, int]
    lanes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    read_only: bool
    capsule: Any

    @property
    def dtype(self) -> str:
        """The name of its dtype, or of its type code where we have none."""
        found = OTHER_DTYPES.get(self.code)
        code, bits = self.code
        kind = {"i": "int", "u": "uint", "f": "float", "c": "complex", "b": "bool"}
        if found is not None:
            return found.name
        if code not in _KINDS or self.lanes != 1:
            return f"DLPack's type {code} of {bits} bits"
        name = kind[_KINDS[code]]
        return name if name == "bool" else f"{name}{bits}"

    @property
    def is_contiguous(self) -> bool:
        """Whether its elements are in C order, without gaps."""
        if self.strides is None or 0 in self.shape:
            return True
        step = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides)):
            if extent != 1 and stride != step:
                return False
            step *= extent
        return True


def view(capsule: Any) -> TensorView:
    """What is in a capsule that nobody has taken over yet. Raises InputError for any other.

    The view does not take it over: it refers to the capsule, which frees the tensor in the end.
    """
    versioned = _is_valid(id(capsule), _VERSIONED)
    if not versioned and not _is_valid(id(capsule), _PLAIN):
        raise InputError("its DLPack capsule is of another kind")
    at = _pointer(id(capsule), _VERSIONED if versioned else _PLAIN)
    managed = _ManagedVersioned if versioned else _Managed
    held: Any = managed.from_address(at)
    t = held.tensor
    axes = range(t.ndim)
    return TensorView(
        (t.data or 0) + t.byte_offset,
        (t.device_type, t.device_id),
        (t.code, t.bits),
        t.lanes,
        tuple(t.shape[n] for n in axes),
        tuple(t.strides[n] for n in axes) if t.strides else None,
        bool(versioned and held.flags & _READ_ONLY),
        capsule,
    )


def code_of(dtype: DType) -> tuple[int, int]:
    """DLPack's type code and bits. Raises InputError for a dtype that it lacks."""
    for code, found in OTHER_DTYPES.items():
        if found is dtype:
            return code
    kind = _CODES.get(dtype.numpy.kind)
    if kind is None:
        raise InputError(f"DLPack has no type for {dtype.name}")
    return kind, 8 * dtype.itemsize


# What capsules of ours refer to, by the address of their structure, until their deleter is called.
_held: dict[int, tuple[Any, ...]] = {}


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _delete(managed: int) -> None:
    _held.pop(managed, None)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _destroy(capsule: int) -> None:
    """The end of a capsule; its tensor's too, if nobody has taken it over."""
    for name in (_PLAIN, _VERSIONED):
        if _is_valid(capsule, name):
            _held.pop(_pointer(capsule, name), None)


def capsule(
    address: int,
    device: tuple[int, int],
    dtype: DType,
    shape: tuple[int, ...],
    owner: object,
    versioned: bool,
) -> Any:
    """A capsule of memory in C order, which keeps `owner` alive. Raises as `code_of`."""
    extents = (ctypes.c_int64 * len(shape))(*shape)
    steps = (ctypes.c_int64 * len(shape))()
    step = 1
    for n in reversed(range(len(shape))):
        steps[n] = step
        step *= shape[n]
    managed: Any = _ManagedVersioned() if versioned else _Managed()
    if versioned:
        managed.major = 1
    code, bits = code_of(dtype)
    managed.tensor = TensorFields(
        address, *device, len(shape), code, bits, 1, extents, steps, 0
    )
    managed.deleter = ctypes.cast(_delete, ctypes.c_void_p).value
    at = ctypes.addressof(managed)
    _held[at] = (managed, extents, steps, owner)
    name = _VERSIONED if versioned else _PLAIN
    return _new(at, name, ctypes.cast(_destroy, ctypes.c_void_p).value)
