"""The simulator: loops and addresses in Python, instructions through their lowering."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tilewright.base.dtypes import float32
from tilewright.base.errors import CompileError
from tilewright.expr.nodes import Buffer, Expr
from tilewright.expr.reads import reads_memory
from tilewright.loops.interp import check_array
from tilewright.loops.interp_source import SourceWriter
from tilewright.loops.intrinsic import Argument, Extent, Pointer, Stride
from tilewright.loops.nodes import Alloc, Block, For, If, Kernel, Stmt, Unit
from tilewright.loops.printer import show_place
from tilewright.targets.vdla.machine import (
    CAPACITY,
    INSTRUCTIONS,
    Counts,
    VdlaInstruction,
)

NAME: Final = "vdla"


class VdlaProgram:
    """A kernel that the machine can run; called with one array per parameter.

    text: the program of the machine's host, with a call per instruction.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        for b in kernel.params:
            _check_buffer(b, f"kernel {kernel.name}")
        writer = _Writer(kernel)
        source = self.text = writer.kernel(kernel)
        self._scope = writer.scope | {"alloc": _undefined, "counts": None}
        exec(compile(source, f"<vdla {kernel.name}>", "exec"), self._scope)

    def __call__(self, arrays: Sequence[Any]) -> Counts:
        """Run in place on the arrays; returns the counts. Raises InputError for wrong arrays."""
        for b, a in zip(self.kernel.params, arrays, strict=True):
            check_array(self.kernel, b, a)
        counts = self._scope["counts"] = Counts()
        self._scope["main"](*(np.ascontiguousarray(a).reshape(-1) for a in arrays))
        return counts


def _undefined(size: int) -> Any:
    return np.full(size, np.nan, np.float32)


def _check_buffer(b: Buffer, where: str) -> None:
    if b.dtype is not float32:
        raise CompileError(f"{b!r}: the machine computes in float32", where=where)


class _Writer(SourceWriter):
    """Writes the kernel as Python over flat arrays, an instruction as one call."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.where = f"kernel {kernel.name}"
        self.used = dict.fromkeys(CAPACITY, 0)

    def stmt(self, s: Stmt) -> None:
        if isinstance(s, Alloc):
            self._alloc(s)
        elif isinstance(s, Unit) and s.intrinsic is not None:
            self.done = {}
            self._instruction(s)
        elif isinstance(s, For | Block | Unit) or (
            isinstance(s, If) and _is_address(s.condition)
        ):
            super().stmt(s)
        else:
            line = str(s).splitlines()[0]
            raise CompileError(
                f"no instruction performs `{line}`, and the machine has no scalar unit",
                code="TW-VDLA-SCALAR",
                where=self.where,
                hint="tensorize the nest around it",
            )

    def _alloc(self, s: Alloc) -> None:
        b = s.buffer
        if b.scope not in CAPACITY:
            raise CompileError(
                f"{b.name} is allocated in {b.scope}, which the machine does not have",
                code="TW-SCOPE",
                where=self.where,
                hint=f"use {' or '.join(CAPACITY)}",
            )
        _check_buffer(b, self.where)
        size = b.size * b.dtype.itemsize
        room = CAPACITY[b.scope]
        self.used[b.scope] += size
        if self.used[b.scope] > room:
            raise CompileError(
                f"{b.name} needs {size} bytes of {b.scope}, where {self.used[b.scope] - size} of "
                f"{room} are in use",
                code="TW-VDLA-MEMORY",
                where=self.where,
                hint="compute it in an inner loop, so that a smaller part is held at a time",
            )
        self.names[b] = self._fresh("b")
        self.line(f"{self.known(b)} = alloc({b.size})")
        self.stmt(s.body)
        self.used[b.scope] -= size

    def _instruction(self, s: Unit) -> None:
        assert s.intrinsic is not None
        call = s.intrinsic.call
        run = self.named(_decoded(s, self.where).run, "op")
        name = self.named(call.name, "n")
        parts = [part for a in call.args for part in self._argument(s, a)]
        self.line(f"counts.count({name})")
        self.line(f"{run}(counts, {', '.join(parts)})")

    def _argument(self, s: Unit, a: Argument) -> tuple[str, ...]:
        assert s.intrinsic is not None
        if isinstance(a, Pointer):
            operand = s.operand(a.tensor)
            if any(not _is_address(i) for i in operand.index):
                place = show_place(operand.buffer, operand.index)
                raise CompileError(
                    f"the address {place} depends on data", where=self.where
                )
            return self.known(operand.buffer), self.position(
                operand.buffer, operand.index
            )
        if isinstance(a, Stride):
            return (str(s.operand(a.tensor).strides[a.axis]),)
        return (str(s.intrinsic.sizes[a.dim]) if isinstance(a, Extent) else repr(a),)


def _is_address(e: Expr) -> bool:
    """Whether an expression depends on loops only."""
    return not reads_memory(e)


def _decoded(s: Unit, where: str) -> VdlaInstruction:
    """The machine's instruction for a call, by its name and the memories it works on."""
    assert s.intrinsic is not None
    call = s.intrinsic.call
    of = s.intrinsic.intrinsic
    if of.target != NAME or call.name not in INSTRUCTIONS:
        raise CompileError(
            f"{s!r}: {of.name} is declared for {of.target or 'no machine'}, but vdla has "
            f"{', '.join(INSTRUCTIONS)}",
            code="TW-VDLA-INSTRUCTION",
            where=where,
            hint='declare it with target="vdla" and one of these calls',
        )
    scopes = tuple(s.operand(n).buffer.scope for n in call.tensors)
    for candidate in INSTRUCTIONS[call.name]:
        if scopes in candidate.scopes:
            return candidate
    raise CompileError(
        f"{s!r} works on {', '.join(scopes)}, which {call.name} cannot reach",
        code="TW-VDLA-INSTRUCTION",
        where=where,
        hint="stage its operands with cache_read and cache_write in the machine's memories",
    )
