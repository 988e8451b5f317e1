"""Kernels as Python source, for the interpreter.

Each expression node becomes one assignment to a local name (shared nodes once per statement); the
arms of a Select with loads in them become an `if`. Names that the source uses are in `scope`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilewright.base import dtypes
from tilewright.base.errors import ExecutionError
from tilewright.expr import nodes as n
from tilewright.expr.bounds import bounds, lasting, refine, within
from tilewright.expr.interp import operation
from tilewright.expr.intervals import Interval
from tilewright.expr.nodes import (
    INDEX,
    MAX_SIZE,
    Buffer,
    Cast,
    Const,
    Expr,
    Extent,
    Load,
    Select,
    Var,
)
from tilewright.expr.reads import Anywhere
from tilewright.loops.nodes import (
    SIZE,
    Alloc,
    Block,
    For,
    If,
    Kernel,
    Stmt,
    Store,
    Unit,
    Update,
    While,
)

# CPython allows at most 20 nested blocks in a function; a deeper nest continues in another
# function.
_MAX_BLOCKS = 12

_NATIVE = frozenset(
    {dtypes.float32, dtypes.float64, dtypes.int8, dtypes.int16, dtypes.int32}
    | {dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64}
    | {dtypes.complex64, dtypes.complex128}
)
_ARITHMETIC: Mapping[type[Expr], str] = {n.Add: "+", n.Sub: "-", n.Mul: "*"}
_COMPARE: Mapping[type[Expr], str] = {n.Lt: "<", n.Le: "<=", n.Eq: "==", n.Ne: "!="}
_LOGIC: Mapping[type[Expr], str] = {n.And: "and", n.Or: "or"}
_INT64 = (-(1 << 63), (1 << 63) - 1)


def _wrap(x: int) -> int:
    """An integer as int64."""
    return ((x + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)


class SourceWriter:
    """Writes one kernel; `scope` holds the objects that the source names.

    calls: the prefix of a call to the function that continues a deep nest.
    """

    calls = ""

    def __init__(self) -> None:
        self.scope: dict[str, Any] = {"wrap": _wrap, "int64": np.int64}
        self.written: set[Buffer] = set()
        self.lines: list[str] = []
        self.depth = 0
        self.blocks = 0
        self.count = 0
        self.names: dict[Any, str] = {}
        self.done: dict[Expr, str] = {}
        self.ranges: dict[Any, Interval] = {}
        self.anywhere = Anywhere(self.ranges)

    def kernel(self, kernel: Kernel) -> str:
        """Source of `main(one flat list per parameter, one number per size)`."""
        self.names = {b: self._fresh("b") for b in kernel.params}
        self.names |= {v: self._fresh("n") for v in kernel.sizes}
        self.line(f"def main({', '.join(self.names.values())}):")
        self.depth += 1
        self.stmt(kernel.body)
        self.line("return")
        return "\n".join(self.lines)

    # -- statements

    def stmt(self, s: Stmt) -> None:
        self.done = {}
        self.anywhere = Anywhere(self.ranges)
        _STATEMENTS[type(s)](self, s)

    def line(self, text: str) -> None:
        self.lines.append(" " * self.depth + text)

    def _fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def named(
        self,
        key: Any,
        prefix: str,
        value: Any = None,
    ) -> str:
        """A name in the source for an object of ours: the value, or else the key itself."""
        name = self.names.get(key)
        if name is None:
            name = self.names[key] = self._fresh(prefix)
            self.scope[name] = key if value is None else value
        return name

    def known(self, symbol: Var | Buffer) -> str:
        """The name of a variable or buffer in scope."""
        name = self.names.get(symbol)
        if name is None:
            raise ExecutionError(
                f"{symbol.name} is used where it is not bound", code="TW-UNBOUND"
            )
        return name

    def assign(self, text: str) -> str:
        name = self._fresh("t")
        self.line(f"{name} = {text}")
        return name

    def nested(
        self, head: str, body: Stmt, condition: Expr | None = None, yes: bool = True
    ) -> None:
        """`head` and the body below it, knowing that the condition holds (or not)."""
        ranges = self.ranges
        if condition is not None:
            self.ranges = lasting(refine(ranges, condition, yes))
        self.line(head)
        self.depth += 1
        self.stmt(body)
        self.line("pass")
        self.depth -= 1
        self.ranges = ranges

    def for_(self, s: For) -> None:
        if s.kind == SIZE:
            self.ranges[s.var] = (0, MAX_SIZE - 1)
            self.stmt(s.body)
            return
        extent = self.value(s.extent)
        var = self.names[s.var] = self._fresh("i")
        if self.blocks >= _MAX_BLOCKS:
            blocks, self.blocks = self.blocks, 0
            rest = self._fresh("f")
            self.line(f"def {rest}():")
            self.depth += 1
            self._loop(s, var, extent)
            self.depth -= 1
            self.line(f"{self.calls}{rest}()")
            self.blocks = blocks
        else:
            self._loop(s, var, extent)

    def _loop(self, s: For, var: str, extent: str) -> None:
        ranges = self.ranges
        top = bounds(s.extent, ranges)[1]
        self.ranges = ranges | {s.var: (0, None if top is None else max(top - 1, 0))}
        self.blocks += 1
        self.nested(f"for {var} in range({extent}):", s.body, n.Lt(s.var, s.extent))
        self.blocks -= 1
        self.ranges = ranges

    def block(self, s: Block) -> None:
        for inner in s.stmts:
            self.stmt(inner)

    def store(self, s: Store) -> None:
        at = self.position(s.buffer, s.index)
        value = self.value(s.value)
        self.written.add(s.buffer)
        self.put(self.known(s.buffer), at, value)

    def get(self, buffer: Buffer, at: str) -> str:
        """The text of an element."""
        return f"{self.known(buffer)}[{at}]"

    def put(self, memory: str, at: str, value: str) -> None:
        """Write an element."""
        self.line(f"{memory}[{at}] = {value}")

    def update(self, s: Update) -> None:
        at = [self.position(b, i) for b, i in s.targets]
        values = [self.value(v) for v in s.values]
        r = s.reducer
        for var, b, place in zip(r.lhs, s.buffers, at, strict=True):
            self.done[var] = self.assign(f"{self.known(b)}[{place}]")
        self.done |= dict(zip(r.rhs, values, strict=True))
        results = [self.value(e) for e in r.result]
        for b, place, result in zip(s.buffers, at, results, strict=True):
            self.written.add(b)
            self.line(f"{self.known(b)}[{place}] = {result}")

    def if_(self, s: If) -> None:
        condition = self.value(s.condition)
        self.nested(f"if {condition}:", s.then, s.condition)
        if s.otherwise is not None:
            self.nested("else:", s.otherwise, s.condition, False)

    def while_(self, s: While) -> None:
        self.line("while True:")
        self.depth += 1
        self.blocks += 1
        self.line(f"if not {self.value(s.condition)}: break")
        self.stmt(s.body)
        self.blocks -= 1
        self.depth -= 1

    def alloc(self, s: Alloc) -> None:
        b = s.buffer
        self.names[b] = self._fresh("b")
        count = " * ".join(self._extent(e) for e in b.extents) or "1"
        self.line(
            f"{self.known(b)} = [undefined({self.named(b.dtype, 'd')})] * ({count})"
        )
        self.stmt(s.body)

    def unit(self, s: Unit) -> None:
        self.stmt(s.body)

    # -- expressions

    def value(self, e: Expr) -> str:
        """The name of the value of `e`, computed by the lines written so far."""
        found = self.done.get(e)
        if found is None:
            found = self.done[e] = self._value(e)
        return found

    def _value(self, e: Expr) -> str:
        if isinstance(e, Var):
            return self.known(e)
        if isinstance(e, Const):
            if e.dtype is INDEX:
                return f"({e.value})"
            return self.named(e, "c", operation(e)())
        if isinstance(e, Load):
            return self.assign(self.get(e.buffer, self.position(e.buffer, e.index)))
        if isinstance(e, Select):
            return self._select(e)
        children: Any = e.children()
        args = [self.value(c) for c in children]
        text = _inline(self, e, args)
        return self.assign(
            text if text is not None else self._general(e, children, args)
        )

    def _general(
        self,
        e: Expr,
        children: tuple[Expr, ...],
        args: list[str],
    ) -> str:
        """The scalar interpreter's operation on the values."""
        given = [
            f"int64({a})" if c.dtype is INDEX else a for a, c in zip(args, children)
        ]
        text = f"{self.named(operation(e), 'o')}({', '.join(given)})"
        return f"int({text})" if e.dtype is INDEX else text

    def _select(self, e: Select) -> str:
        condition = self.value(e.condition)
        for shared in self.anywhere.shared(e):
            self.value(shared)
        result = self._fresh("t")
        done = self.done
        ranges = self.ranges
        for head, arm, holds in (
            (f"if {condition}:", e.then, True),
            ("else:", e.otherwise, False),
        ):
            self.line(head)
            self.depth += 1
            self.done = dict(done)
            self.ranges = refine(ranges, e.condition, holds)
            self.line(f"{result} = {self.value(arm)}")
            self.depth -= 1
        self.done, self.ranges = done, ranges
        return result

    def position(self, buffer: Buffer, index: tuple[Expr, ...]) -> str:
        """The flat position of an element, after a check of each index not proven inside."""
        total = ""
        for axis, (i, extent) in enumerate(zip(index, buffer.extents, strict=True)):
            text = self.value(i)
            size = self._extent(extent)
            if not within(i, extent, self.ranges):
                place = self.named(buffer.name, "s")
                call = f"out_of_range({place}, {axis}, {size}, {text})"
                self.line(f"if not 0 <= {text} < {size}: {call}")
            total = f"({total}) * {size} + {text}" if total else text
        return total or "0"

    def _extent(self, extent: Extent) -> str:
        return str(extent) if isinstance(extent, int) else self.value(extent)


def _inline(w: SourceWriter, e: Expr, args: list[str]) -> str | None:
    """`e` as Python's own operators, where they mean the same on these dtypes."""
    kind = type(e)
    operand = e.lhs.dtype if isinstance(e, n.Binary) else e.dtype
    if kind in _COMPARE and (operand is INDEX or operand in _NATIVE):
        return f"{args[0]} {_COMPARE[kind]} {args[1]}"
    if operand.is_bool:
        if kind in _LOGIC:
            return f"{args[0]} {_LOGIC[kind]} {args[1]}"
        return f"not {args[0]}" if kind is n.Not else None
    if kind in (n.Min, n.Overlap, n.Max) and (operand is INDEX or operand in _NATIVE):
        first = ">" if kind is n.Max else "<"
        nan = f" or {args[0]} != {args[0]}" if operand.is_float else ""
        return f"{args[0]} if {args[0]} {first} {args[1]}{nan} else {args[1]}"
    if operand is INDEX:
        return _index_arithmetic(w, e, args)
    if operand in _NATIVE:
        if kind in _ARITHMETIC:
            return f"{args[0]} {_ARITHMETIC[kind]} {args[1]}"
        if kind is n.Div and operand.is_float:
            return f"{args[0]} / {args[1]}"
    if isinstance(e, Cast) and e.dtype in _NATIVE and e.value.dtype in _NATIVE:
        if e.dtype.is_float and not e.value.dtype.is_complex:
            return f"{w.named(e.dtype.numpy.type, 'n')}({args[0]})"
    return None


def _index_arithmetic(w: SourceWriter, e: Expr, args: list[str]) -> str | None:
    """int64 as Python integers, wrapped where an overflow is not excluded."""
    kind = type(e)
    if kind in _ARITHMETIC:
        text = f"{args[0]} {_ARITHMETIC[kind]} {args[1]}"
        lo, hi = bounds(e, w.ranges)
        inside = (
            lo is not None and hi is not None and _INT64[0] <= lo and hi <= _INT64[1]
        )
        return text if inside else f"wrap({text})"
    if (
        isinstance(e, n.FloorDiv | n.Mod)
        and isinstance(e.rhs, Const)
        and e.rhs.value.real > 0
    ):
        return f"{args[0]} {'//' if kind is n.FloorDiv else '%'} {args[1]}"
    if (
        isinstance(e, Cast)
        and e.value.dtype.is_int
        and e.value.dtype is not dtypes.uint64
    ):
        return f"int({args[0]})"
    return None


_STATEMENTS: Mapping[type[Stmt], Callable[[SourceWriter, Any], None]] = {
    For: SourceWriter.for_,
    Block: SourceWriter.block,
    Store: SourceWriter.store,
    Update: SourceWriter.update,
    If: SourceWriter.if_,
    While: SourceWriter.while_,
    Alloc: SourceWriter.alloc,
    Unit: SourceWriter.unit,
}
