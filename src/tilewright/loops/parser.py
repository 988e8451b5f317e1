"""Parsing the text of kernels and programs of launches that `loops/printer.py` prints.

The text of a Unit with an intrinsic has no body, so kernels with one are rejected: such text shows
a schedule, while the parser reads unscheduled programs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import Any, Final

from tilewright.base import dtypes
from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.base.errors import InputError
from tilewright.compute.nodes import sizes_of
from tilewright.compute.reducer import STANDARD, Reducer, reducer
from tilewright.expr.nodes import INDEX, Buffer, Const, Expr, Extent, Var
from tilewright.expr.parser import expression, place, separated
from tilewright.ir.scanner import Scanner
from tilewright.loops.launch import (
    AXIS,
    AtomicUpdate,
    Barrier,
    CombineThreads,
    Commit,
    Launch,
    LaunchProgram,
    Wait,
)
from tilewright.loops.nodes import (
    KINDS,
    SIZE,
    Alloc,
    For,
    If,
    Kernel,
    Stmt,
    Store,
    Unit,
    Update,
    While,
    block,
)

_SIZES: Final = re.compile(r" *for ([\w.]+) in \d+ size:$")
_SIZE: Final = re.compile(r"  size ([\w.]+)$")
_NOTES: Final = re.compile(r" \{(.*)\}:$")
_NAMES: Final = {t.name: t for t in dtypes.ALL}


def parse(
    lines: Sequence[str],
    buffers: Mapping[str, Buffer] | None = None,
    operators: Mapping[str, Reducer] | None = None,
    where: str = "kernel",
) -> Kernel:
    """Parse the lines of a Kernel.

    buffers: existing parameters, by name. operators: additional ones, by name. Raises InputError
    (TW-SYNTAX) naming the line if the text is not a kernel.
    """
    return _Reader(lines, where, dict(operators or {})).kernel(buffers or {})


def parse_program(
    lines: Sequence[str],
    operators: Mapping[str, Reducer] | None = None,
    where: str = "program",
) -> LaunchProgram:
    """The Program of its lines; as `parse` of a Kernel."""
    return _Reader(lines, where, dict(operators or {})).program()


def buffer_type(
    s: Scanner, name: str, sizes: Mapping[str, Any] = MappingProxyType({})
) -> Buffer:
    """A buffer of that name, from `float32[4, 8]`, optionally followed by ` in scope`, and that by
    ` swizzled 128`.

    sizes: symbolic sizes that may occur in extents, by name.
    """
    dtype = _NAMES.get(s.take("word", "a dtype"))
    if dtype is None:
        raise s.refusal("expected a dtype")
    shape: list[Extent] = []
    s.expect("[")
    separated(s, lambda: shape.append(_extent(s, sizes)), "]")
    scope = s.take("word") if s.accept("in") else "global"
    swizzle = int(s.take("number", "bytes")) if s.accept("swizzled") else 0
    return Buffer(name, tuple(shape), dtype, scope, swizzle)


def _extent(s: Scanner, sizes: Mapping[str, Any]) -> Extent:
    if not sizes:
        return int(s.take("number", "an extent"))
    found = expression(s, sizes)
    if isinstance(found, Const):
        return int(found.value.real)
    return found


@dataclass(eq=False)
class _Reader:
    """Reads statements line by line; deeper lines belong to the line above them."""

    lines: Sequence[str]
    where: str
    operators: dict[str, Reducer]
    names: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, Var] = field(default_factory=dict)
    notes: dict[str, dict[str, object]] = field(default_factory=dict)
    position: int = 0

    def kernel(self, known: Mapping[str, Buffer]) -> Kernel:
        name, inputs, outputs = self._head("kernel", _SIZES, known)
        self.names = {b.name: b for b in (*inputs, *outputs)}
        body = self._block(1)
        self._finished()
        return Kernel(name, (*inputs, *outputs), tuple(outputs), body, self.notes)

    def program(self) -> LaunchProgram:
        name, inputs, outputs = self._head("program", _SIZE, {})
        for _ in self.sizes:
            self.position += 1
        workspace = self._declared("workspace", 1)
        buffers = (*inputs, *outputs, *workspace)
        self.names = {**AXIS, **self.sizes, **{b.name: b for b in buffers}}
        launches = []
        while self._depth() == 1:
            launches.append(self._launch(self._line()))
        self._finished()
        params = (*inputs, *outputs)
        return LaunchProgram(name, params, tuple(outputs), workspace, tuple(launches))

    def _head(
        self, what: str, sizes: re.Pattern[str], known: Mapping[str, Buffer]
    ) -> tuple[str, list[Buffer], list[Buffer]]:
        """The name, the inputs and the outputs."""
        found = (sizes.match(line) for line in self.lines)
        extents = (e for b in known.values() for e in b.extents)
        mine = {v.name: v for v in sizes_of(extents)}
        words = (m[1] for m in found if m is not None)
        self.sizes = {word: mine.get(word, Var(word, INDEX)) for word in words}
        s = self._line()
        s.expect(what)
        name = s.take("word", "a name")
        inputs: list[Buffer] = []
        outputs: list[Buffer] = []
        s.expect("(")
        separated(s, lambda: inputs.append(self._parameter(s, known)), ")")
        s.expect("->")
        separated(s, lambda: outputs.append(self._parameter(s, known)), ":")
        return name, inputs, outputs

    def _finished(self) -> None:
        if self.position < len(self.lines):
            raise self._line().refusal("this line belongs to nothing above it")

    def _declared(
        self, what: str, depth: int, places: dict[Buffer, int] | None = None
    ) -> tuple[Buffer, ...]:
        """The buffers of lines `what name: type`. places: takes those of lines that end `at N`."""
        found: list[Buffer] = []
        while self._depth() == depth:
            s = self._line()
            if not s.accept(what):
                self.position -= 1
                break
            found.append(self._parameter(s, {}))
            if places is not None and s.accept("at"):
                places[found[-1]] = int(s.take("number", "a byte"))
            s.end()
        return tuple(found)

    def _launch(self, s: Scanner) -> Launch:
        s.expect("launch")
        name = s.take("word", "a name")
        params: list[Buffer] = []
        s.expect("(")
        separated(s, lambda: params.append(self._named(s)), ")")
        s.expect("grid")
        grid = self._extents(s, self.sizes)
        s.expect("threads")
        threads = self._counts(s)
        cluster = self._counts(s) if s.accept("cluster") else (1, 1, 1)
        self._end(s)
        places: dict[Buffer, int] = {}
        shared = self._declared("shared", 2, places)
        before = self.names
        self.names = {**before, **{b.name: b for b in shared}}
        body = self._block(2)
        self.names = before
        return Launch(name, tuple(params), grid, threads, shared, body, places, cluster)

    def _named(self, s: Scanner) -> Buffer:
        found = self.names.get(s.take("word", "a buffer"))
        if not isinstance(found, Buffer):
            raise s.refusal("expected a parameter or a buffer of the workspace")
        return found

    def _counts(self, s: Scanner) -> tuple[int, int, int]:
        x, y, z = (n for n in self._extents(s, {}) if isinstance(n, int))
        return x, y, z

    def _extents(
        self, s: Scanner, sizes: Mapping[str, Any]
    ) -> tuple[Extent, Extent, Extent]:
        """`[x, y, z]`."""
        found: list[Extent] = []
        s.expect("[")
        separated(s, lambda: found.append(_extent(s, sizes)), "]")
        if len(found) != 3:
            raise s.refusal(f"expected 3 extents, found {len(found)}")
        x, y, z = found
        return x, y, z

    def _parameter(self, s: Scanner, known: Mapping[str, Buffer]) -> Buffer:
        name = s.take("word", "a parameter")
        s.expect(":")
        made = buffer_type(s, name, self.sizes)
        found = known.get(name, made)
        if (found.extents, found.dtype, found.scope) != (
            made.extents,
            made.dtype,
            made.scope,
        ):
            raise s.refusal(f"{name} was declared as {found!r}, and here as {made!r}")
        return found

    def _line(self) -> Scanner:
        """The line that comes now."""
        where = f"{self.where}, line {self.position + 1}"
        if self.position == len(self.lines):
            raise InputError("a statement is missing", code="TW-SYNTAX", where=where)
        text = self.lines[self.position]
        self.position += 1
        return Scanner(
            _NOTES.sub(":", text) if text.lstrip().startswith("for ") else text, where
        )

    def _depth(self) -> int:
        if self.position == len(self.lines):
            return 0
        line = self.lines[self.position]
        return (len(line) - len(line.lstrip())) // 2

    def _block(self, depth: int) -> Stmt:
        """The statements at this depth, one at least."""
        if self._depth() != depth:
            raise self._line().refusal("expected a statement below the line above")
        found: list[Stmt] = []
        while self._depth() == depth:
            s = self._line()
            if s.accept("pass"):
                s.end()
            else:
                found.append(self._statement(s, depth))
        return block(*found)

    def _statement(self, s: Scanner, depth: int) -> Stmt:
        read = _STATEMENTS.get(s.next.text)
        if read is None or s.next.kind != "word" or s.next.text in self.names:
            return self._assignment(s)
        s.position += 1
        return read(self, s, depth)

    def _for(self, s: Scanner, depth: int) -> Stmt:
        var = Var(s.take("word", "a loop"), INDEX)
        s.expect("in")
        extent = expression(s, self.names)
        kind = s.take("word") if s.next.kind == "word" else "serial"
        if kind == SIZE:
            var = self.sizes[var.name]
        if kind not in KINDS:
            raise s.refusal(f"a loop is {kind!r}, not one of {', '.join(KINDS)}")
        self._end(s)
        noted = _NOTES.search(self.lines[self.position - 1])
        if noted is not None:
            self.notes[var.name] = _literals(noted[1], s)
        return For(var, extent, kind, self._inside(var.name, var, depth))

    def _if(self, s: Scanner, depth: int) -> Stmt:
        condition = self._condition(s)
        then = self._block(depth + 1)
        otherwise = None
        if self._depth() == depth and self.lines[self.position].strip() == "else:":
            self.position += 1
            otherwise = self._block(depth + 1)
        return If(condition, then, otherwise)

    def _while(self, s: Scanner, depth: int) -> Stmt:
        return While(self._condition(s), self._block(depth + 1))

    def _alloc(self, s: Scanner, depth: int) -> Stmt:
        name = s.take("word", "a buffer")
        s.expect(":")
        buffer = buffer_type(s, name, self.sizes)
        self._end(s)
        return Alloc(buffer, self._inside(name, buffer, depth))

    def _unit(self, s: Scanner, depth: int) -> Stmt:
        name = s.take("word", "a name")
        self._end(s)
        return Unit(name, None, (), self._block(depth + 1))

    def _barrier(self, s: Scanner, depth: int) -> Stmt:
        scope = s.take("word", "shared or global")
        s.end()
        return Barrier(scope)

    def _wait(self, s: Scanner, depth: int) -> Stmt:
        of = self._started(s)
        pending = 0 if s.next.kind == "end" else int(s.take("number", "groups"))
        s.end()
        return Wait(of, pending)

    def _commit(self, s: Scanner, depth: int) -> Stmt:
        of = self._started(s)
        s.end()
        return Commit(of)

    def _started(self, s: Scanner) -> str:
        return s.take("word", "what") if s.next.kind == "word" else "copies"

    def _atomic(self, s: Scanner, depth: int) -> Stmt:
        u = self._assignment(s)
        if not isinstance(u, Update):
            raise s.refusal("only an update is atomic")
        return AtomicUpdate(u.buffers, u.indices, u.values, u.reducer)

    def _combine(self, s: Scanner, depth: int) -> Stmt:
        places = [place(s, self.names)]
        while s.accept(","):
            places.append(place(s, self.names))
        s.expect("by")
        name = s.take("word", "an operator")
        buffers, indices = zip(*places, strict=True)
        operator = self._operator(s, name, buffers[0].dtype)
        s.expect("over")
        width = int(s.take("number", "a number of threads"))
        s.end()
        return CombineThreads(buffers, indices, operator, width)

    def _assignment(self, s: Scanner) -> Stmt:
        """`t[i] = value`, or `t[i], u[i] op= value, value`."""
        places = [place(s, self.names)]
        while s.accept(","):
            places.append(place(s, self.names))
        name = None if s.at("=") else s.take("word", "= or an operator")
        s.expect("=")
        values = [expression(s, self.names)]
        while s.accept(","):
            values.append(expression(s, self.names))
        s.end()
        if len(values) != len(places):
            raise s.refusal(f"expected {len(places)} value(s), found {len(values)}")
        if name is None:
            if len(values) > 1:
                raise s.refusal("a statement stores one value")
            return Store(*places[0], values[0])
        buffers, indices = zip(*places, strict=True)
        return Update(
            buffers, indices, tuple(values), self._operator(s, name, values[0].dtype)
        )

    def _operator(self, s: Scanner, name: str, dtype: DType) -> Reducer:
        if name not in self.operators and name not in STANDARD:
            raise s.refusal(f"unknown operator {name!r}")
        if name in self.operators:
            return self.operators[name]
        return reducer(name, dtype)

    def _condition(self, s: Scanner) -> Expr:
        condition = expression(s, self.names)
        self._end(s)
        return condition

    def _inside(
        self,
        name: str,
        meaning: Buffer | Var,
        depth: int,
    ) -> Stmt:
        """The statements below a line that declares a name."""
        before = self.names
        self.names = {**before, name: meaning}
        body = self._block(depth + 1)
        self.names = before
        return body

    @staticmethod
    def _end(s: Scanner) -> None:
        s.expect(":")
        s.end()


def _literals(text: str, s: Scanner) -> dict[str, object]:
    """`key: value, ...`, the values as Python writes them."""
    try:
        found = ast.literal_eval(
            "{" + re.sub(r"(^|, )(\w+): ", r"\1'\2': ", text) + "}"
        )
    except (SyntaxError, ValueError):
        raise s.refusal(f"the notes {text!r} are not key: value, ...") from None
    return dict(found)


_STATEMENTS: Final[Mapping[str, Callable[[_Reader, Scanner, int], Stmt]]] = {
    "for": _Reader._for,
    "if": _Reader._if,
    "while": _Reader._while,
    "alloc": _Reader._alloc,
    "block": _Reader._unit,
    "barrier": _Reader._barrier,
    "wait": _Reader._wait,
    "commit": _Reader._commit,
    "combine": _Reader._combine,
    "atomic": _Reader._atomic,
}
