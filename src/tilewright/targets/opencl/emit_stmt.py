"""Statements to OpenCL C: one rule per node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tilewright.base.errors import CompileError
from tilewright.expr.bounds import lasting, refine, within
from tilewright.expr.nodes import Buffer, Expr, Load, Not, Var
from tilewright.expr.reads import reads_memory
from tilewright.loops.launch import AtomicUpdate, Barrier, CombineThreads
from tilewright.loops.nodes import (
    Alloc,
    Block,
    For,
    If,
    Stmt,
    Store,
    Unit,
    Update,
    While,
)
from tilewright.loops.passes.atomics import missing
from tilewright.targets.opencl.emit_expr import EmittedValue, OpenCLExpressions, bare
from tilewright.targets.opencl.types import in_memory
from tilewright.targets.simt.code import NO_SUBGROUPS
from tilewright.targets.simt.machine import OWN_BYTES

# The parameters for reporting a wrong index: the buffer, and the number before the first message.
ERROR: Final = "tw_error"
FIRST: Final = "tw_first"
_FENCES: Final = {
    "shared": "CLK_LOCAL_MEM_FENCE",
    "global": "CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE",
}


class OpenCLStatements(OpenCLExpressions):
    """Adds statements to expressions.

    checks: the reports of wrong indices, numbered from 1. threads: of a block on each axis.
    subgroups: whether threads exchange registers. declared: declarations of memory that a block
    shares besides the launch's buffers. exchanged: the most neighbors that exchange registers.
    """

    def __init__(
        self,
        checks: list[str],
        threads: tuple[int, int, int] = (1, 1, 1),
        subgroups: bool = False,
    ) -> None:
        super().__init__()
        self.checks = checks
        self.threads = threads
        self.subgroups = subgroups
        self.declared: list[str] = []
        self.exchanged = 1
        self.has_checks = False

    def emit(self, s: Stmt) -> None:
        """The lines of a statement."""
        rule = _RULES.get(type(s))
        if rule is None:
            raise CompileError(f"{type(s).__name__} has no OpenCL code")
        rule(self, s)

    def _block(self, s: Block) -> None:
        for part in s.stmts:
            self.emit(part)

    def _for(self, s: For) -> None:
        with self.statement(s.extent):
            end = self.value(s.extent)
            if reads_memory(s.extent):  # which the body may write
                end = self.named(end)
        high = s.trips
        self.ranges[s.var] = (0, None if high is None else max(high - 1, 0))
        type = "int" if end.type == "int" else "long"
        name = self.fresh(s.var.name)
        head = f"for ({type} {name} = 0; {name} < {bare(end.text)}; ++{name})"
        with self.scope(), self.braces(head):
            self.values[-1][s.var] = EmittedValue(name, type)
            self.emit(s.body)

    def _while(self, s: While) -> None:
        with self.scope(), self.braces("for (;;)"):
            with self.statement(s.condition):
                found = self.value(s.condition)
                self.line(f"if (!{found.text}) break;")
            self.emit(s.body)

    def _if(self, s: If) -> None:
        with self.statement(s.condition):
            name = bare(self.value(s.condition).text)
        self._branch(f"if ({name})", s.then, s.condition)
        if s.otherwise is not None:
            self._branch("else", s.otherwise, Not(s.condition))

    def _branch(self, head: str, body: Stmt, condition: Expr) -> None:
        outer = self.ranges
        self.ranges = lasting(refine(outer, condition))
        with self.scope(), self.braces(head):
            self.emit(body)
        self.ranges = outer

    def _unit(self, s: Unit) -> None:
        if s.intrinsic is not None:
            raise CompileError(
                f"the intrinsic of {s.name} has no OpenCL code", code="TW-OPERATION"
            )
        self.emit(s.body)

    def _alloc(self, s: Alloc) -> None:
        self.declare(s.buffer)
        self.emit(s.body)

    def declare(self, buffer: Buffer, scope: str = "") -> None:
        """An array for a buffer. Raises CompileError for one that a thread cannot have."""
        size = max(1, buffer.size)
        bytes_ = size * buffer.dtype.itemsize
        if not scope and bytes_ > OWN_BYTES:
            raise CompileError(
                f"{buffer.name} takes {bytes_:,} bytes of each thread, of {OWN_BYTES:,} at most",
                code="TW-REGISTERS",
                hint="allocate it around the launch, or in shared memory",
            )
        name = self.buffers[buffer] = self.fresh(buffer.name)
        self.line(f"{scope}{in_memory(buffer.dtype)} {name}[{size}];")

    # -- memory

    def _store(self, s: Store) -> None:
        if 0 in s.buffer.extents:
            return
        with self.statement(s.value, *s.index):
            value = self.value(s.value)
            self._put(s.buffer, s.index, value)

    def _put(self, buffer: Buffer, index: Sequence[Expr], value: EmittedValue) -> None:
        """Write an element, where every index that data decides is inside."""
        found = [
            self.checked(buffer, part, extent)
            for part, extent in zip(index, buffer.shape, strict=True)
        ]
        place = f"{self.buffers[buffer]}[{self.address(buffer, list(index))}]"
        text = f"{place} = {self.stored(value, buffer.dtype)};"
        conditions = " && ".join(ok for ok in found if ok is not None)
        self.line(f"if ({conditions}) {text}" if conditions else text)

    def _update(self, s: Update) -> None:
        if any(0 in b.extents for b in s.buffers):
            return
        before = tuple(Load(b, index) for b, index in s.targets)
        after = s.reducer.combine(before, s.values)
        with self.statement(
            *after, *(part for _, index in s.targets for part in index)
        ):
            values = [self.value(e) for e in after]
            if len(values) > 1:
                values = [self.named(v) for v in values]
            for (buffer, index), value in zip(s.targets, values, strict=True):
                self._put(buffer, index, value)

    def _atomic(self, s: AtomicUpdate) -> None:
        """Raises CompileError for an update that is no single step."""
        ((buffer, index),) = s.targets
        if why := missing(s.reducer, buffer):
            raise CompileError(why, code="TW-OPERATION", where=f"buffer {buffer.name}")
        if 0 in buffer.extents:
            return
        with self.statement(s.values[0], *index):
            value = self.named(self.value(s.values[0]))
            found = [
                self.checked(buffer, part, extent)
                for part, extent in zip(index, buffer.shape, strict=True)
            ]
            place = f"{self.buffers[buffer]} + {self.address(buffer, list(index))}"
            name = f"atomic_{s.reducer.name}"
            if buffer.dtype.is_float:
                name = self.helpers.whole("tw_atomic_add_float")
            conditions = " && ".join(ok for ok in found if ok is not None)
            text = f"{name}({place}, {value.text});"
            self.line(f"if ({conditions}) {text}" if conditions else text)

    def checked(self, buffer: Buffer, part: Expr, extent: int) -> str | None:
        """The name of the truth that an index which data decides is inside, told if it is not."""
        if not reads_memory(part) or within(part, extent, self.ranges):
            return None
        found = self.value(part)
        ok = self.named(EmittedValue(f"((ulong){found.text} < {extent}uL)", "bool"))
        said = f"an index of {buffer.name} is outside 0..{extent - 1}"
        self.line(self._report(f"!{ok.text}", said))
        return ok.text

    def _report(self, condition: str, said: str) -> str:
        """A statement that tells the host what is wrong under a condition."""
        self.has_checks = True
        if said not in self.checks:
            self.checks.append(said)
        return f"if ({condition}) *{ERROR} = {FIRST} + {self.checks.index(said) + 1};"

    # -- the threads of a block

    def _barrier(self, s: Barrier) -> None:
        self.line(f"barrier({_FENCES[s.scope]});")

    def _combine(self, s: CombineThreads) -> None:
        """As a tree: each thread and the one whose number differs in one bit have the result of
        both. Through shared memory, as OpenCL C 1.2 has no exchange between registers, or by the
        functions of subgroups."""
        own = [Load(b, i) for b, i in zip(s.buffers, s.indices, strict=True)]
        steps = [1 << n for n in range(s.width.bit_length() - 1)]
        if self.subgroups:
            self.exchanged = max(self.exchanged, s.width)
            for step in steps:
                self._combined(s, own, self._in_registers(own, step))
            return
        x, y, z = self.threads
        places = []
        for b in s.buffers:
            name = self.fresh(f"{b.name}_shared")
            self.declared.append(f"__local {in_memory(b.dtype)} {name}[{x * y * z}];")
            places.append(name)
        for step in steps:
            self._combined(s, own, self._in_shared(own, places, step))
            self.line(f"barrier({_FENCES['shared']});")

    @property
    def _me(self) -> str:
        """The number of a thread in its block."""
        x, y, _ = self.threads
        return f"(get_local_id(0) + {x} * (get_local_id(1) + {y} * get_local_id(2)))"

    def _in_shared(
        self, own: Sequence[Load], places: Sequence[str], step: int
    ) -> list[list[str]]:
        """The elements of both threads, the first one first, through shared memory."""
        with self.statement(*own):
            for place, load in zip(places, own, strict=True):
                text = self.stored(self.value(load), load.dtype)
                self.line(f"{place}[{bare(self._me)}] = {text};")
        self.line(f"barrier({_FENCES['shared']});")
        numbers = f"{self._me} & ~{step}", f"{self._me} | {step}"
        return [[f"{place}[{n}]" for place in places] for n in numbers]

    def _in_registers(self, own: Sequence[Load], step: int) -> list[list[str]]:
        """The same by an exchange within subgroups."""
        sides: list[list[str]] = [[], []]
        with self.statement(*own):
            for load in own:
                pair = [self.fresh(f"{load.buffer.name}_{x}") for x in ("own", "other")]
                text = self.stored(self.value(load), load.dtype)
                shuffled = f"sub_group_shuffle_xor({pair[0]}, {step}u)"
                for name, value in zip(pair, (text, shuffled)):
                    self.line(f"const {in_memory(load.dtype)} {name} = {value};")
                for side, (no, yes) in zip(sides, (pair, pair[::-1])):
                    side.append(f"({self._me} & {step} ? {yes} : {no})")
        return sides

    def _combined(
        self, s: CombineThreads, own: Sequence[Load], elements: Sequence[Sequence[str]]
    ) -> None:
        """Put the result of two threads' elements into the registers of a thread."""
        sides: list[list[Expr]] = []
        scope: dict[Expr, EmittedValue] = {}
        for texts in elements:
            side: list[Expr] = []
            for text, load in zip(texts, own, strict=True):
                var = Var(text, load.dtype)
                scope[var] = self.named(self.element(text, load.dtype))
                side.append(var)
            sides.append(side)
        after = s.reducer.combine(tuple(sides[0]), tuple(sides[1]))
        with self.statement(*after):
            self.values[-1].update(scope)
            values = [self.named(self.value(e)) for e in after]
            for b, index, value in zip(s.buffers, s.indices, values, strict=True):
                self._put(b, index, value)

    def expected_subgroups(self) -> list[str]:
        """What a kernel reports first if threads that exchange registers are not the neighbors that
        they seem to be: OpenCL does not say which threads of a block are a subgroup.

        If a thread's number is that of its subgroup, times their size, and its own there, then one
        that differs in a bit below their size is in the same subgroup, and differs in this bit.
        """
        if self.exchanged == 1:
            return []
        size = "get_max_sub_group_size()"
        number = f"get_sub_group_id() * {size} + get_sub_group_local_id()"
        wrong = f"{size} % {self.exchanged} || {number} != {bare(self._me)}"
        return [self._report(wrong, NO_SUBGROUPS)]


_RULES: Final[Mapping[type[Stmt], Callable[[Any, Any], None]]] = {
    Block: OpenCLStatements._block,
    For: OpenCLStatements._for,
    While: OpenCLStatements._while,
    If: OpenCLStatements._if,
    Unit: OpenCLStatements._unit,
    Alloc: OpenCLStatements._alloc,
    Store: OpenCLStatements._store,
    Update: OpenCLStatements._update,
    AtomicUpdate: OpenCLStatements._atomic,
    Barrier: OpenCLStatements._barrier,
    CombineThreads: OpenCLStatements._combine,
}
