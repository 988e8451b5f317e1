"""Parsing the plan texts printed by `plan/printer.py`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final

from tilewright.base import dtypes
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.compute.nodes import Computation
from tilewright.compute.parser import LINES, parse_reducer
from tilewright.compute.parser import parse as parse_computation
from tilewright.compute.reducer import Reducer
from tilewright.expr.nodes import INDEX, Buffer, Extent, Var
from tilewright.expr.parser import expression, separated
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.bounded_control import IF, LOOP
from tilewright.ir.scanner import Scanner
from tilewright.loops.nodes import Kernel
from tilewright.loops.parser import buffer_type
from tilewright.loops.parser import parse as parse_kernel
from tilewright.plan.nodes import (
    HOST,
    Branch,
    Control,
    DeviceCall,
    DeviceCopy,
    FusionGroup,
    HostFallback,
    Loop,
    MemoryPlan,
    OpenExtent,
    Plan,
    Step,
)

_INDENT: Final = "  "
_NAMES: Final = {t.name: t for t in dtypes.ALL}


def parse(text: str, graph: Graph | None = None, where: str = "plan") -> Plan:
    """The plan of a text.

    graph: provides the contents of constants and the operators of host fallbacks; a plan without
    either needs none. Raises InputError (TW-SYNTAX) naming the line of a syntax error.
    """
    return _Reader(text.rstrip().split("\n"), graph, where).plan()


@dataclass(eq=False)
class _Reader:
    """Reads a plan line by line and records the declarations."""

    lines: list[str]
    graph: Graph | None
    where: str
    position: int = 0
    roles: dict[str, list[Value]] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    names: dict[str, Buffer] = field(default_factory=dict)
    buffers: dict[Value, Buffer] = field(default_factory=dict)
    devices: dict[Buffer, str] = field(default_factory=dict)
    places: dict[Buffer, int] = field(default_factory=dict)
    over: dict[FusionGroup, tuple[Buffer, ...]] = field(default_factory=dict)
    elsewhere: dict[str, int] = field(default_factory=dict)
    operators: dict[str, Reducer] = field(default_factory=dict)
    inside: dict[Control, int] = field(default_factory=dict)
    at: int | None = None  # start of the arena of the plans nested in the current step
    steps: list[Step] = field(default_factory=list)
    sizes: dict[str, Var] = field(default_factory=dict)
    sources: list[Callable[[], OpenExtent]] = field(default_factory=list)

    def plan(self) -> Plan:
        s = self._scanner(0)
        s.expect("plan")
        name = _name(s)
        total = None
        if s.accept(","):
            s.expect("arena", "of")
            total = int(s.take("number"))
            s.expect("bytes")
        while s.accept(","):
            size = int(s.take("number"))
            s.expect("bytes", "on")
            self.elsewhere[_name(s)] = size
        _end(s)
        if self.graph is not None:
            self.values = {v.name: v for v in (*self.graph.outputs, *self.graph.values)}
        while self.position < len(self.lines):
            s = self._scanner(1)
            read = _LINES.get(s.next.text)
            if read is None:
                raise s.wrong(f"one of {', '.join(_LINES)}")
            role = s.take("word")
            read(self, s, role)
        graph = self.graph or self._interface(name)
        known = graph.constants.items()
        data = {self.buffers[v]: a for v, a in known if v in self.buffers}
        memory = (
            None
            if total is None
            else MemoryPlan(self.places, total, self.over, self.elsewhere, self.inside)
        )
        steps = tuple(self.steps)
        opened = tuple(read() for read in self.sources)
        return Plan(graph, steps, self.buffers, data, self.devices, memory, opened)

    def _interface(self, name: str) -> Graph:
        inputs, outputs = (
            tuple(self.roles.get(role, ())) for role in ("input", "output")
        )
        return Graph(
            name=name,
            inputs=inputs,
            outputs=outputs,
            operations=(),
        )

    def _scanner(self, depth: int) -> Scanner:
        """The next line, if it has this depth."""
        where = f"{self.where}, line {self.position + 1}"
        line = self.lines[self.position]
        if _depth(line) != depth:
            raise InputError(
                f"expected a line with {2 * depth} spaces before it, found {line!r}",
                code="TW-SYNTAX",
                where=where,
                hint="give the text as it was printed",
            )
        self.position += 1
        return Scanner(line, where)

    def _value(self, s: Scanner, role: str) -> None:
        """`input x: float32[2, 3] in x_2 on device`."""
        name = _name(s)
        s.expect(":")
        made = _typed(s, name)
        known = self.values.setdefault(name, made)
        if role == "constant" and self.graph is None:
            raise s.refusal(
                f"the constant {name!r} has contents, which are in its graph: give the graph"
            )
        if known.type_text != made.type_text:
            raise s.refusal(f"the graph has {known!r}, the plan {made!r}")
        self.roles.setdefault(role, []).append(known)
        if s.accept("in"):
            within = s.take("word")
        else:
            within = name
        if within == "none":
            s.end()
            return
        buffer = self.names.get(within)
        if buffer is None:
            shape = self._extents(made)
            if made.dtype is None or shape is None:
                raise s.refusal(f"{made!r} has no known size, and so no buffer")
            buffer = Buffer(within, shape, made.dtype)
        self.buffers[known] = buffer
        self._declare(s, buffer)

    def _extents(self, v: Value) -> tuple[Extent, ...] | None:
        """The extents of a value in terms of the plan's sizes; None if it has others."""
        if v.static:
            return v.extents
        if not self.sizes or v.shape is None or None in v.shape:
            return None
        return tuple(
            d
            if isinstance(d, int)
            else expression(Scanner(str(d), self.where), self.sizes)
            for d in v.shape
        )

    def _size(self, s: Scanner, role: str) -> None:
        """`size n in 1 to 64 from x[0]`, or `from count`, and `, counted at 8`."""
        name = s.take("word", "a size")
        s.expect("in")
        least = int(s.take("number"))
        s.expect("to")
        most = int(s.take("number"))
        s.expect("from")
        source = _name(s)
        axis = None
        if s.accept("["):
            axis = int(s.take("number"))
            s.expect("]")
        counted = None
        if s.accept(","):
            s.expect("counted")
            s.expect("at")
            counted = int(s.take("number"))
        s.end()
        size = self.sizes[name] = Var(name, INDEX)

        def made() -> OpenExtent:
            known = self.names if axis is None else self.values
            if source not in known:
                raise s.refusal(f"the plan has no {source}")
            at = self.names[source] if axis is None else (self.values[source], axis)
            return OpenExtent(size, least, most, at, counted)

        self.sources.append(made)

    def _buffer(self, s: Scanner, role: str) -> None:
        """`buffer t: float32[2, 3] on device at 64`."""
        name = s.take("word", "a buffer")
        s.expect(":")
        self._declare(s, buffer_type(s, name, self.sizes))

    def _declare(self, s: Scanner, buffer: Buffer) -> None:
        """The attributes of a buffer, after its type."""
        self.names[buffer.name] = buffer
        if s.accept("on"):
            self.devices[buffer] = _name(s)
        if s.accept("at"):
            self.places[buffer] = int(s.take("number"))
        s.end()

    def _reducer(self, s: Scanner, role: str) -> None:
        line = self.lines[self.position - 1].strip().removeprefix("reducer ")
        op = parse_reducer(line, s.where)
        self.operators[op.name] = op

    def _host(self, s: Scanner, role: str) -> None:
        """`host NonMaxSuppression(boxes, scores) -> chosen`."""
        kind = _name(s)
        s.expect("(")
        separated(s, lambda: _name(s), ")")
        s.expect("->")
        written: list[str] = []
        while s.next.kind != "end":
            written.append(_name(s))
            if s.next.kind != "end":
                s.expect(",")
        value = next((self.values[n] for n in written if n in self.values), None)
        op = None if self.graph is None or value is None else self.graph.producer(value)
        if op is None or op.qualified != kind:
            raise s.refusal(
                f"no {kind} of the plan's graph writes {', '.join(written)}"
            )
        reads, writes = (
            tuple(self.buffers[v] for v in e if v in self.buffers)
            for e in (op.reads, op.writes)
        )
        self.steps.append(HostFallback(op, reads, writes))

    def _call(self, s: Scanner, role: str) -> None:
        """`call Program(x_npu, w) -> y_npu on npu, from "all of it"`."""
        kind = _name(s)
        s.expect("(")
        reads: list[Buffer] = []
        separated(s, lambda: reads.append(self._known(s)), ")")
        s.expect("->")
        writes = [self._known(s)]
        while s.accept(","):
            writes.append(self._known(s))
        s.expect("on")
        device = _name(s)
        s.expect(",", "from")
        label = _name(s)
        s.end()
        found = () if self.graph is None else self.graph.operations
        op = next((o for o in found if (o.qualified, o.label) == (kind, label)), None)
        if op is None:
            raise s.refusal(f"the plan's graph has no {kind} called {label!r}")
        self.steps.append(
            DeviceCall(
                operation=op,
                reads=tuple(reads),
                writes=tuple(writes),
                device=device,
            )
        )

    def _known(self, s: Scanner) -> Buffer:
        name = s.take("word", "a buffer")
        if name not in self.names:
            raise s.refusal(f"the plan has no buffer {name}")
        return self.names[name]

    def _copy(self, s: Scanner, role: str) -> None:
        """`copy x -> x_vta`."""
        source = self._known(s)
        s.expect("->")
        target = self._known(s)
        s.end()
        self.steps.append(DeviceCopy(source, target))

    def _loop(self, s: Scanner, role: str) -> None:
        """`loop "l" below trips while going; carries x_0 as x, ...; counts n; ...:`."""
        op = self._operation(s, LOOP)
        s.expect("below")
        trips = self._known(s)
        s.expect("while")
        going = self._known(s)
        clauses = self._clauses(s)
        pairs = clauses.get("carries", ())
        step = Loop(
            operation=op,
            body=self._plans([op.attributes["body"]])[0],
            trips=trips,
            going=going,
            initial=pairs[::2],
            taken=clauses.get("takes", ()),
            count=clauses["counts"][0],
            states=pairs[1::2],
            stacked=clauses.get("stacks", ()),
        )
        self._controlled(step)

    def _branch(self, s: Scanner, role: str) -> None:
        """`branch "b" on c; takes x; gives y:`."""
        op = self._operation(s, IF)
        s.expect("on")
        condition = self._known(s)
        clauses = self._clauses(s)
        names = ("then_branch", "else_branch")
        then, other = self._plans([op.attributes[n] for n in names])
        taken, results = (clauses.get(verb, ()) for verb in ("takes", "gives"))
        self._controlled(Branch(op, then, other, condition, taken, results))

    def _operation(self, s: Scanner, kind: str) -> Operation:
        """The operation of the plan's graph that a line names."""
        label = _name(s)
        found = () if self.graph is None else self.graph.operations
        op = next((o for o in found if (o.qualified, o.label) == (kind, label)), None)
        if op is None:
            raise s.refusal(f"the plan's graph has no {kind} called {label!r}")
        return op

    def _clauses(self, s: Scanner) -> dict[str, tuple[Buffer, ...]]:
        """The buffers after each verb, to the end of the line; `at` and a place come before it."""
        found: dict[str, tuple[Buffer, ...]] = {}
        self.at = None
        while s.accept(";"):
            verb = s.take("word", "a verb")
            if verb == "at":
                self.at = int(s.take("number"))
                continue
            buffers = [self._known(s)]
            while s.accept(",") or s.accept("as"):
                buffers.append(self._known(s))
            found[verb] = tuple(buffers)
        _end(s)
        return found

    def _plans(self, bodies: Sequence[Graph]) -> list[Plan]:
        """The plans below a line, indented by two more spaces, with their graphs in order."""
        start = self.position
        while self.position < len(self.lines) and _depth(self.lines[self.position]) > 1:
            self.position += 1
        below = [x.removeprefix(_INDENT * 2) for x in self.lines[start : self.position]]
        starts = [n for n, line in enumerate(below) if line.startswith("plan ")]
        ends = [*starts[1:], len(below)]
        where = f"{self.where}, lines {start + 1} to {self.position}"
        if len(starts) != len(bodies):
            raise InputError(
                f"expected {len(bodies)} plans, found {len(starts)}",
                code="TW-SYNTAX",
                where=where,
            )
        texts = ("\n".join(below[a:b]) for a, b in zip(starts, ends, strict=True))
        return [parse(t, g, where) for t, g in zip(texts, bodies, strict=True)]

    def _controlled(self, step: Control) -> None:
        self.steps.append(step)
        if self.at is not None:
            self.inside[step] = self.at

    def _group(self, s: Scanner, role: str) -> None:
        """`group conv+relu on device, 96 flops, over t, from "c", "r":` and the lines below it."""
        name = _name(s)
        if s.accept("on"):
            device = _name(s)
        else:
            device = HOST
        flops = 0
        sources = []
        over = []
        while s.accept(","):
            if s.accept("over"):
                while s.next.kind == "word":
                    over.append(self.names[s.take("word")])
            elif s.accept("from"):
                while s.next.kind == "text":
                    sources.append(_name(s))
                    s.accept(",")
            else:
                flops = int(s.take("number", "flops, over or from"))
                s.expect("flop" if flops == 1 else "flops")
        _end(s)
        computations, kernel = self._inside()
        group = FusionGroup(
            name=name,
            computations=computations,
            sources=tuple(sources),
            flops=flops,
            kernel=kernel,
            device=device,
        )
        self.steps.append(group)
        if over:
            self.over[group] = tuple(over)

    def _inside(self) -> tuple[tuple[Computation, ...], Kernel | None]:
        """The Computations or the Kernel below a group."""
        start = self.position
        while self.position < len(self.lines) and _depth(self.lines[self.position]) > 1:
            self.position += 1
        lines = [
            line.removeprefix(_INDENT * 2) for line in self.lines[start : self.position]
        ]
        where = f"{self.where}, lines {start + 1} to {self.position}"
        if lines and lines[0].startswith("kernel "):
            return (), parse_kernel(lines, self.names, self.operators, where)
        variables: dict[str, Var] = {}
        found: list[Computation] = []
        while lines:
            if lines[0].startswith("local "):
                s = Scanner(lines.pop(0), where)
                self._buffer(s, s.take("word"))
                continue
            here, lines = lines[:LINES], lines[LINES:]
            if len(here) < LINES:
                raise Scanner(here[0], where).refusal(
                    f"a Computation has {LINES} lines"
                )
            known: dict[str, Buffer | Var] = {**self.sizes, **self.names}
            made = parse_computation(here, known, variables, self.operators, where)
            found.append(made)
        return tuple(found), None


def _depth(line: str) -> int:
    return (len(line) - len(line.lstrip())) // len(_INDENT)


def _name(s: Scanner) -> str:
    """An identifier, or any text in quotes."""
    if s.next.kind == "text":
        return str(json.loads(s.take("text")))
    return s.take("word", "a name")


def _end(s: Scanner) -> None:
    s.expect(":")
    s.end()


def _typed(s: Scanner, name: str) -> Value:
    """A value from its type: `float32[1, N, ?]`, `sequence(int64)`."""
    if s.accept("?"):
        word = "?"
    else:
        word = s.take("word", "a type")
    if s.accept("("):
        inner = _typed(s, name)
        s.expect(")")
        kind = word if inner.kind == "tensor" else f"{word}.{inner.kind}"
        return Value(name, inner.dtype, inner.shape, kind)
    if word != "?" and word not in _NAMES:
        raise s.refusal(f"{word} is not a dtype")
    shape: list[Any] | None = None
    if s.accept("["):
        shape = []
        extents = shape
        separated(s, lambda: extents.append(_extent(s)), "]")
    return Value(name, _NAMES.get(word), None if shape is None else tuple(shape))


def _extent(s: Scanner) -> int | str | None:
    if s.accept("?"):
        return None
    if s.next.kind == "number":
        return int(s.take("number"))
    return _name(s)


_LINES: Final[Mapping[str, Callable[[_Reader, Scanner, str], None]]] = {
    **dict.fromkeys(("input", "constant", "output", "value"), _Reader._value),
    "buffer": _Reader._buffer,
    "size": _Reader._size,
    "reducer": _Reader._reducer,
    "host": _Reader._host,
    "call": _Reader._call,
    "copy": _Reader._copy,
    "group": _Reader._group,
    "loop": _Reader._loop,
    "branch": _Reader._branch,
}
