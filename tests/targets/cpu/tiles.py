"""Tiles without a processor that has them: compiled kernels whose tile instructions are calls.

Only the names of the tile instructions change in the kernel's LLVM text: they become functions of
this file that work on arrays; addresses, strides and loops are those of the real code.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tests.targets.cpu.native import aligned, context
from tilewright.loops.nodes import Kernel
from tilewright.runtime.abi import CTX_STATUS
from tilewright.targets.cpu.compile import llvm_ir
from tilewright.targets.cpu.machine import CpuMachine, host

ROWS, WIDTH = 16, 64

_I8, _I64, _PTR = ctypes.c_int8, ctypes.c_int64, ctypes.c_void_p
_TYPES = {_I8: "i8", _I64: "i64", _PTR: "ptr"}


def are_here() -> bool:
    """Whether this processor has tiles of bytes and of bfloat16, and code for it may use them."""
    return all(map(host().has, ("amx-tile", "amx-int8", "amx-bf16")))


class Tiles:
    """Eight tile registers and the instructions on them (Intel's SDM, volume 2)."""

    def __init__(self) -> None:
        self.registers: np.ndarray[Any, Any] | None = None
        self.rows: list[int] = []

    def _tile(self, n: int, dtype: Any) -> np.ndarray[Any, Any]:
        assert self.registers is not None, "a tile is used before it is configured"
        return self.registers[n].view(dtype)

    def ldtilecfg(self, config: int) -> None:
        palette, *_ = data = ctypes.string_at(config, 64)
        assert palette == 1 and not any(data[1:16])
        widths = np.frombuffer(data[16:48], np.uint16)
        assert list(widths) == [WIDTH] * 8 + [0] * 8
        self.rows = list(data[48:56])
        assert all(1 <= n <= ROWS for n in self.rows) and not any(data[56:])
        self.registers = np.full((8, ROWS, WIDTH), 0xEE, np.uint8)

    def tilerelease(self) -> None:
        self.registers = None

    def tilezero(self, n: int) -> None:
        self._tile(n, np.uint8)[:] = 0

    def tileloadd64(self, n: int, start: int, stride: int) -> None:
        self._tile(n, np.uint8)[:] = 0
        for row in range(self.rows[n]):
            data = ctypes.string_at(start + row * stride, WIDTH)
            self._tile(n, np.uint8)[row] = np.frombuffer(data, np.uint8)

    def tilestored64(self, n: int, start: int, stride: int) -> None:
        for row in range(self.rows[n]):
            ctypes.memmove(
                start + row * stride, self._tile(n, np.uint8)[row].tobytes(), WIDTH
            )

    def _products(self, out: int, a: int, b: int, types: tuple[Any, Any, Any]) -> None:
        left, right, result = types
        assert self.rows[out] == self.rows[a] and self.rows[b] == ROWS
        inside = 4 // np.dtype(left).itemsize
        x = self._tile(a, left).reshape(ROWS, ROWS, inside).astype(result)
        y = self._tile(b, right).reshape(ROWS, ROWS, inside).astype(result)
        self._tile(out, result)[:] += np.einsum("mkp,knp->mn", x, y)

    def tdpbusd(self, out: int, a: int, b: int) -> None:
        self._products(out, a, b, (np.uint8, np.int8, np.int32))

    def tdpbssd(self, out: int, a: int, b: int) -> None:
        self._products(out, a, b, (np.int8, np.int8, np.int32))

    def tdpbf16ps(self, out: int, a: int, b: int) -> None:
        self._products(out, a, b, (ml_dtypes.bfloat16, ml_dtypes.bfloat16, np.float32))


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ldtilecfg": (_PTR,),
    "tilerelease": (),
    "tilezero": (_I8,),
    "tileloadd64": (_I8, _PTR, _I64),
    "tilestored64": (_I8, _PTR, _I64),
    "tdpbusd": (_I8, _I8, _I8),
    "tdpbssd": (_I8, _I8, _I8),
    "tdpbf16ps": (_I8, _I8, _I8),
}


def run(
    kernel: Kernel,
    machine: CpuMachine,
    arrays: list[np.ndarray[Any, Any]],
    refuse: bool,
) -> int:
    """Run a kernel with simulated tiles on one thread; the call's status.

    refuse: the system denies the permission.
    """
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    tiles = Tiles()
    text = _permission(llvm_ir(kernel, machine, "kernel"), refuse)
    text = text.replace(f'"target-features"="{machine.feature_string}"', "")
    kept: list[Callable[..., Any]] = []
    for name, types in _SIGNATURES.items():
        callback = ctypes.CFUNCTYPE(None, *types)(getattr(tiles, name))
        kept.append(callback)
        llvm.add_symbol(f"simulated_{name}", ctypes.cast(callback, _PTR).value)
        text = text.replace(f"@llvm.x86.{name}(", f"@simulated_{name}(")
        text += (
            f"\ndeclare void @simulated_{name}({', '.join(_TYPES[t] for t in types)})\n"
        )
    target = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), target)
    engine.finalize_object()
    address = engine.get_function_address("kernel")
    f = ctypes.CFUNCTYPE(None, *[_PTR] * (len(arrays) + 2))(address)
    ctx, callback = context(1)
    kept.append(callback)
    workspace = aligned(1 << 20)
    f(ctx.ctypes.data, *(a.ctypes.data for a in arrays), workspace.ctypes.data)
    assert tiles.registers is None, "the tiles are not released"
    return int(ctx[CTX_STATUS])


def _permission(text: str, refuse: bool) -> str:
    """The module with the answer of arch_prctl in the place of the call."""
    start = text.index("define internal i64 @tile_permission")
    end = text.index("\n}", start)
    answer = (
        f"define internal i64 @tile_permission() {{\n  ret i64 {-22 if refuse else 0}"
    )
    return text[:start] + answer + text[end:]
