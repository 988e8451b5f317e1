"""Random graphs of ONNX operators with inputs on which they are well conditioned.

A graph grows operator by operator. Each new operator is run in float64 at once; it is kept only if
its results are finite, moderate, and away from discontinuities (a rounding or a comparison that a
last bit could change), so that a different result of a compiler is wrong.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import count
from typing import Any, TypeVar

import numpy as np

from tilewright.base import dtypes
from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.base.errors import TilewrightError
from tilewright.graph import interp
from tilewright.graph.infer import FallbackProvider, Typer
from tilewright.graph.nodes import Graph, Operation, Value

Array = np.ndarray[Any, Any]
OPSET = 21
MAX_ELEMENTS = 40_000
LARGEST = {"f": 200.0, "i": 1e6, "u": 250.0, "b": 1.0}
# Small ones are more frequent; most are next to a power of two.
EXTENTS = (1, 1, 2, 2, *range(3, 10), 12, 13, 16, 17, 24, 31, 32, 33, 48, 64, 65, 100)
_Option = TypeVar("_Option")
FLOATS = (dtypes.float32, dtypes.float64, dtypes.float16)


class OperatorRejected(Exception):
    """The operator does not fit here; another is tried."""


@dataclass(frozen=True)
class Case:
    """A graph and one array per input, by name. others: further inputs, of other extents if the
    graph has symbolic ones."""

    graph: Graph
    inputs: Mapping[str, Array]
    others: Sequence[Mapping[str, Array]] = ()


@dataclass
class RandomGraphBuilder:
    """A graph in the making, or the body of an operator in it.

    truth: the array of every value, floats in float64. drafts: the operators as they were asked
    for. depth: of bodies around this one. free: extents of inputs that are to be symbols.
    """

    rng: random.Random
    fallback: FallbackProvider
    zeros: bool = False
    inputs: dict[Value, Array] = field(default_factory=dict)
    truth: dict[Value, Array] = field(default_factory=dict)
    values: list[Value] = field(default_factory=list)
    drafts: list[Operation] = field(default_factory=list)
    names: Iterator[int] = field(default_factory=lambda: count(1))
    depth: int = 0
    free: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.typer = Typer(self.fallback)
        self.noise = np.random.default_rng(self.rng.randrange(2**32))
        self.extents = [self.rng.choice(EXTENTS) for _ in range(4)]
        if self.zeros:
            self.extents[0] = 0

    def bit(self) -> int:
        """0 or 1."""
        return self.rng.randint(0, 1)

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.rng.random() < probability

    def one_of(self, *options: _Option) -> _Option:
        """One of the options, each as likely."""
        return self.rng.choice(options)

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        """Extents from the few that this graph uses, and 1."""
        if rank is None:
            rank = self.rng.choice((0, 1, 2, 2, 3, 3, 4, 4, 5))
        found = [self.one_of(*self.extents, 1) for _ in range(rank)]
        while math.prod(found) > MAX_ELEMENTS // 4:
            largest = found.index(max(found))
            found[largest] = self.one_of(1, 2, 3)
        return tuple(found)

    def leaf(
        self,
        shape: Sequence[int],
        dtype: DType | None = dtypes.float32,
        fixed: bool | None = None,
    ) -> Value:
        """A new input or constant (`fixed`) with random contents; None: either."""
        assert dtype is not None
        array: Array
        if dtype is dtypes.bool_:
            array = self.noise.random(tuple(shape)) < 0.5
        elif dtype.is_float:
            array = np.clip(self.noise.standard_normal(tuple(shape)), -2, 2)
        else:
            low = -4 if dtype.is_signed else 0
            array = self.noise.integers(low, 5, tuple(shape))
        array = np.asarray(array).astype(dtype.numpy)
        if fixed is None:
            fixed = self.chance(0.4)
        return self.given(array, fixed)

    def given(self, array: Array, fixed: bool = True) -> Value:
        """A constant, or an input, with these contents."""
        name = self.fresh("c" if fixed else "x")
        dtype = dtypes.dtype_of(array.dtype)
        value = Value(name, dtype, array.shape)
        if fixed:
            self.typer.known[value] = array
        else:
            self.inputs[value] = array
            self.values.append(value)
        self.truth[value] = _double(array)
        return value

    def scalar(
        self,
        number: float,
        like: Value,
        fixed: bool = True,
    ) -> Value:
        """A constant, or an input, of no dimension and the dtype of another value."""
        assert like.dtype is not None
        array = np.array(number, like.dtype.numpy)
        return self.given(array, fixed)

    def ints(self, *numbers: int) -> Value:
        """A constant int64 vector (axes, a shape)."""
        array = np.array(numbers, np.int64)
        return self.given(array)

    def slice(
        self,
        x: Value,
        start: int,
        end: int,
        axis: int,
    ) -> Value:
        """The elements `start .. end-1` along one axis."""
        starts = self.ints(start)
        ends = self.ints(end)
        axes = self.ints(axis)
        return self.op("Slice", x, starts, ends, axes)

    def fresh(self, stem: str) -> str:
        """A name not used yet."""
        return f"{stem}{next(self.names)}"

    def pick(self, accept: Any = None) -> Value:
        """An existing value, a recent one rather than an old one. Raises Rejected for none."""
        found = [v for v in self.values if accept is None or accept(v)]
        if not found:
            raise OperatorRejected
        if self.chance(0.7):
            recent = found[-4:]
        else:
            recent = found
        return self.rng.choice(recent)

    def floating(self, low: int = 0, high: int = 5) -> Value:
        """A float value of that range of ranks; a new input if there is none."""
        try:
            return self.pick(
                lambda v: v.dtype in FLOATS and low <= len(v.extents) <= high
            )
        except OperatorRejected:
            rank = self.rng.randint(max(low, 1), high)
            shape = self.shape(rank)
            return self.leaf(shape, fixed=False)

    def partner(self, x: Value) -> Value:
        """A value that broadcasts with `x`: another one, or a leaf."""
        if self.chance(0.6):
            try:
                return self.pick(lambda v: v.dtype is x.dtype and _broadcasts(v, x))
            except OperatorRejected:
                pass
        shape = [e if self.chance(0.7) else 1 for e in x.extents]
        if shape:
            first = self.rng.randint(0, len(shape))
        else:
            first = 0
        return self.leaf(shape[first:], x.dtype)

    def op(
        self,
        op_type: str,
        *inputs: Value | None,
        outputs: int = 1,
        **attrs: Any,
    ) -> Value:
        """Add an operator; returns its first result. Raises Rejected if its results are
        unsuitable."""
        from tilewright.frontends.onnx.functions import schema_of

        version = schema_of(op_type, "", OPSET).since_version
        drafts = tuple(Value(self.fresh("t")) for _ in range(outputs))
        draft = Operation(op_type, inputs, drafts, attrs, "", version, "")
        count = len(self.typer.operations)
        try:
            made = [v for v in self.typer.apply(draft) if v is not None]
            arrays = self._run(draft, made)
        except (TilewrightError, ArithmeticError) as error:
            del self.typer.operations[count:]
            raise OperatorRejected from error
        if not all(_fit(v, a) for v, a in zip(made, arrays, strict=True)):
            del self.typer.operations[count:]
            raise OperatorRejected
        self._made(replace(draft, outputs=tuple(made)), arrays)
        return made[0]

    def control(
        self,
        op_type: str,
        inputs: Sequence[Value | None],
        attributes: Mapping[str, Any],
    ) -> Value | None:
        """Add an If, a Loop or a Scan; its first result. Raises Rejected as `op` does."""
        from tilewright.frontends.onnx.functions import schema_of

        version = schema_of(op_type, "", OPSET).since_version
        body = next(g for g in attributes.values() if isinstance(g, Graph))
        types = body.outputs[1 if op_type == "Loop" else 0 :]
        drafts = tuple(Value(self.fresh("t"), v.dtype) for v in types)
        draft = Operation(op_type, tuple(inputs), drafts, attributes, "", version, "")
        try:
            arrays = self._run(draft, drafts)
        except (TilewrightError, ArithmeticError) as error:
            raise OperatorRejected from error
        made = [replace(v, shape=a.shape) for v, a in zip(drafts, arrays, strict=True)]
        if not all(_fit(v, a) for v, a in zip(made, arrays, strict=True)):
            raise OperatorRejected
        op = replace(draft, outputs=tuple(made))
        self.typer.operations.append(op)
        self._made(op, arrays)
        return made[0] if made else None

    def _made(self, op: Operation, arrays: Sequence[Array]) -> None:
        """Take an operator that fits, and its results."""
        new = any(v not in self.truth for v in op.writes)
        if new:
            self.drafts.append(op)
        for v, a in zip(op.writes, arrays, strict=True):
            self.truth[v] = a
            if v not in self.typer.known:
                self.values.append(v)

    def _run(self, draft: Operation, made: Sequence[Value]) -> list[Array]:
        op = replace(draft, outputs=tuple(made))
        known: dict[Value, Array] = {}
        inputs = []
        for v in op.reads:
            if v in self.typer.known:
                known[v] = self.typer.known[v]
            else:
                inputs.append(v)
        graph = Graph(
            name="one",
            inputs=tuple(inputs),
            outputs=tuple(made),
            operations=(op,),
            constants=known,
        )
        feeds = {v.name: self.truth[v] for v in graph.inputs}
        found = interp.evaluate(graph, feeds, float64=True, fallback=self.fallback)
        return [np.asarray(found[v.name]) for v in made]

    def inside(self, values: Sequence[Value]) -> RandomGraphBuilder:
        """A Builder of a body, which sees these values; new inputs are inputs of the whole."""
        inner = copy.copy(self)
        inner.typer = self.typer.inner()
        inner.values = list(values)
        inner.drafts = []
        inner.depth = self.depth + 1
        return inner

    def body(self, inputs: Sequence[Value], outputs: Sequence[Value]) -> Graph:
        """The body so far: the operators as they were asked for."""
        known = self.typer.own
        return self._drafted("body", inputs, outputs, known)

    def asked(self, outputs: Sequence[Value]) -> Graph:
        """The graph so far: the operators as they were asked for."""
        return self._drafted("random", tuple(self.inputs), outputs, self.typer.known)

    def _drafted(
        self,
        name: str,
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        known: Any,
    ) -> Graph:
        made = {v for op in self.drafts for v in op.writes}
        constants = {v: a for v, a in known.items() if v not in made}
        bare = Graph(
            name=name,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            operations=(),
            constants=constants,
        )
        return bare.with_operations(self.drafts)

    def graph(self, outputs: Sequence[Value]) -> Graph:
        """The graph so far, typed: known values are constants, composed operators are
        decomposed."""
        constants = dict(self.typer.known)
        bare = Graph(
            name="random",
            inputs=tuple(self.inputs),
            outputs=tuple(outputs),
            operations=(),
            constants=constants,
        )
        return bare.with_operations(self.typer.operations)


def _broadcasts(v: Value, x: Value) -> bool:
    try:
        shape = np.broadcast_shapes(v.extents, x.extents)
    except ValueError:
        return False
    return math.prod(shape) <= MAX_ELEMENTS


def _fit(value: Value, array: Array) -> bool:
    """Whether a result is moderate and of the inferred type."""
    if not value.static:
        return False
    if array.size > MAX_ELEMENTS:
        return False
    if array.shape != value.extents:
        return False
    largest = LARGEST.get(array.dtype.kind)
    if largest is None or not array.size:
        return largest is not None
    return bool(np.isfinite(array).all() and np.abs(array).max() <= largest)


def _double(array: Array) -> Array:
    if array.dtype == np.float32:
        return array.astype(np.float64)
    return array
