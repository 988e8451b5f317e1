"""Tests on one use of an operator whether it has the traits of its definition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import dtype_of
from tilewright.base.errors import CompileError
from tilewright.graph import interp
from tilewright.graph.infer import FallbackProvider
from tilewright.graph.nodes import Operation, Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import Array, Trait, definition_of

POINTS: Final = 5  # of a result that are looked at


@dataclass(frozen=True, eq=False)
class OperatorUse:
    """An operator applied to arrays (None: omitted), on which a trait is tried.

    fallback: runs operators without a native form.
    """

    op_type: str
    operands: Sequence[Array | None]
    attributes: Mapping[str, Any]
    domain: str = ""
    version: int = 21
    count: int = 1
    fallback: FallbackProvider | None = None

    def operation(self) -> tuple[Operation, Sequence[Operation]]:
        """The operation on its own, and the operations that compute it."""
        f = Fragment("use", {})
        values = [None if a is None else f.constant(a) for a in self.operands]
        how: dict[str, Any] = {"version": self.version, "domain": self.domain}
        f.ops(self.op_type, *values, count=self.count, **how, **self.attributes)
        return f.operations[-1], f.operations

    def run(self) -> list[Array]:
        """The results."""
        op, _ = self.operation()
        definition = definition_of(op)
        assert definition is not None
        given = [None if a is None else np.asarray(a) for a in self.operands]
        if definition.compute is None and definition.decompose is not None:
            return _run_parts(op, given)
        with np.errstate(all="ignore"):
            return [np.asarray(a) for a in interp.run_on(op, given, self.fallback)]

    def on(self, first: Array, *, second: Array | None = None) -> list[Array]:
        """The results with another first operand, or others."""
        if second is None:
            rest = self.operands[1:]
        else:
            rest = (second, *self.operands[2:])
        return replace(self, operands=(first, *rest)).run()

    @property
    def first(self) -> Array:
        """The first operand."""
        found = self.operands[0]
        assert found is not None
        return found


def _run_parts(op: Operation, given: Sequence[Array | None]) -> list[Array]:
    """The results of an operator that other operators say."""
    from tilewright.graph.infer import Typer

    known: dict[Value, Any] = {}
    for v, a in zip(op.inputs, given, strict=True):
        if v is not None and a is not None:
            known[v] = a
    # The first operand is an input, so that the parts are not folded.
    free: dict[Value, Value] = {}
    first = op.inputs[0]
    if first is not None and first in known:
        free[first] = Value(f"{first.name}/free", first.dtype, first.shape)
    constants = {v: a for v, a in known.items() if v not in free}
    typer = Typer(None, None, constants)
    inputs = tuple(None if v is None else free.get(v, v) for v in op.inputs)
    outputs = typer.apply(replace(op, inputs=inputs))
    values: dict[Value, Any] = dict(typer.known)
    for v, renamed in free.items():
        values[renamed] = known[v]
    for part in typer.operations:
        found = interp.run(part, values, None)
        for v, a in zip(part.outputs, found, strict=False):
            if v is not None:
                values[v] = a
    return [np.asarray(values[v]) for v in outputs if v is not None]


def wrong_traits(use: OperatorUse, traits: Trait) -> list[str]:
    """The `traits` that do not hold in this use, a line each. Each use tries every trait."""
    return [
        f"{use.op_type} is not {trait.name}: {why}"
        for trait, check in _CHECKS.items()
        if trait & traits
        for why in check(use)
    ]


def _same(a: Array, b: Array) -> bool:
    if a.shape != b.shape:
        return False
    if a.dtype != b.dtype:
        return False
    both_nan = (a != a) & (b != b)
    return bool(((a == b) | both_nan).all())


def _pointwise(use: OperatorUse) -> Iterator[str]:
    operands = [None if a is None else np.asarray(a) for a in use.operands]
    (result,) = use.run()
    shape = result.shape
    shapes = [a.shape for a in operands if a is not None]
    if np.broadcast_shapes(*shapes) != shape:
        yield f"the result has the shape {list(shape)}"
        return
    spread = [None if a is None else np.broadcast_to(a, shape) for a in operands]
    rng = np.random.default_rng(1)
    for n in rng.integers(0, result.size, POINTS):
        at = tuple(int(i) for i in np.unravel_index(int(n), shape))
        alone: list[Array | None] = []
        for whole, operand in zip(spread, operands, strict=True):
            if whole is None or operand is None:
                alone.append(None)
            elif operand.ndim:
                alone.append(whole[at].reshape((1,) * len(shape)))
            else:  # what may be a scalar alone (a bound, a type to cast to) stays one
                alone.append(operand)
        (found,) = replace(use, operands=alone).run()
        if not _same(found.reshape(()), result[at]):
            other = found.reshape(()).item()
            yield f"at {at} it gives {result[at]:.6g}, on the elements there alone {other:.6g}"


def _commutative(use: OperatorUse) -> Iterator[str]:
    second = use.operands[1]
    assert second is not None
    there = use.run()[0]
    back = use.on(second, second=use.first)[0]
    if not _same(there, back):
        yield "with its first two operands exchanged it gives something else"


def _idempotent(use: OperatorUse) -> Iterator[str]:
    (once,) = use.run()
    twice = use.on(once)[0]
    if not _same(once, twice):
        yield "a second time it changes its result"


def _distinct(like: Array, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    numbers = rng.permutation(like.size) - like.size // 3
    return numbers.reshape(like.shape).astype(like.dtype)


def _sources(use: OperatorUse, x: Array) -> list[Array] | None:
    """For each element of each result the position in `x`, whose elements differ, that it had."""
    place = {float(v): n for n, v in enumerate(x.reshape(-1))}
    found = []
    for y in use.on(x):
        elements = [float(v) for v in y.reshape(-1)]
        if not all(v in place for v in elements):
            return None
        places = np.array([place[v] for v in elements])
        found.append(places.reshape(y.shape))
    return found


def _moves_data(use: OperatorUse) -> Iterator[str]:
    first = _sources(use, _distinct(use.first, 1))
    second = _sources(use, _distinct(use.first, 2))
    if first is None or second is None:
        yield "it gives a number that is not among its first operand's"
    elif any(not _same(a, b) for a, b in zip(first, second, strict=True)):
        yield "where an element goes depends on the elements"


def _joins(use: OperatorUse) -> Iterator[str]:
    found = [_origins(use, seed) for seed in (1, 2)]
    if any(places is None for places in found):
        yield "it gives a number that is not among its operands'"
    elif found[0] != found[1]:
        yield "where an element goes depends on the elements"


def _origins(use: OperatorUse, seed: int) -> list[int] | None:
    """For each element of the results its position in all operands, whose elements differ."""
    given = [np.asarray(a) for a in use.operands if a is not None]
    ends = np.cumsum([a.size for a in given])
    numbers = _distinct(np.empty(int(ends[-1]), use.first.dtype), seed)
    parts = np.split(numbers, ends[:-1])
    operands = [p.reshape(a.shape) for p, a in zip(parts, given, strict=True)]
    place = {float(v): n for n, v in enumerate(numbers)}
    results = replace(use, operands=operands).run()
    elements = [float(v) for y in results for v in y.reshape(-1)]
    if not all(v in place for v in elements):
        return None
    return [place[v] for v in elements]


def _selects(use: OperatorUse) -> Iterator[str]:
    x = _distinct(use.first, 1)
    if _sources(use, x) is None:
        yield "it gives a number that is not among its first operand's"

    def increasing(a: Array) -> Array:
        return np.asarray(3 * a + (a > x.size // 2) * 5 - 2, a.dtype)

    pairs = zip(use.on(x), use.on(increasing(x)), strict=True)
    if any(not _same(increasing(a), b) for a, b in pairs):
        yield "an increasing function applied before it is not the same as one behind it"


def _spatial(use: OperatorUse) -> Iterator[str]:
    x = use.first
    y = use.run()[0]
    if x.ndim < 3 or y.ndim != x.ndim or y.shape[0] != x.shape[0]:
        yield f"it makes {list(y.shape)} of {list(x.shape)}"
        return
    other = x.copy()
    other[0] = other[0][..., ::-1] + other.dtype.type(1)
    if x.shape[0] < 2:
        return
    changed = use.on(other)[0]
    if not _same(y[1:], changed[1:]):
        yield "an element of the batch depends on another"


def _changes_axes(use: OperatorUse) -> Iterator[str]:
    x = np.abs(_distinct(use.first, 1)) + use.first.dtype.type(1)
    (y,) = use.on(x)
    if y.shape != x.shape:
        return
    at = tuple(0 if n == 0 else extent - 1 for n, extent in enumerate(x.shape))
    other = x.copy()
    other[at] += 1
    changed = use.on(other)[0]
    if not _same(y[at], changed[at]):
        yield "an element of the result stands where the operand's did"


def _stacks(use: OperatorUse) -> Iterator[str]:
    x, y = use.first, use.run()[0]
    if x.ndim < 3 or y.shape[:-2] != x.shape[:-2] or x.shape[-3] < 2:
        yield f"it makes {list(y.shape)} of {list(x.shape)}"
        return
    other = x.copy()
    other[..., 0, :, :] += x.dtype.type(1)
    changed = use.on(other)[0]
    if not _same(y[..., 1:, :, :], changed[..., 1:, :, :]):
        yield "a matrix of the result depends on another of the stack"


def _impure(use: OperatorUse) -> Iterator[str]:
    runs = [replace(use).run()[0] for _ in range(4)]
    first, *others = runs
    if all(_same(first, other) for other in others):
        yield "four runs give the same"


def _dequantizes(use: OperatorUse) -> Iterator[str]:
    x = use.first
    y = use.run()[0]
    given = [0 if a is None else a for a in (*use.operands[1:3], None, None)]
    scale, zero = (np.asarray(a).astype(y.dtype) for a in given[:2])
    expected = (x.astype(y.dtype) - zero) * scale
    from_integer = dtype_of(x.dtype).is_int
    to_float = dtype_of(y.dtype).is_float
    if not (from_integer and to_float):
        yield f"it makes {y.dtype} of {x.dtype}"
    elif not np.allclose(y, expected):
        yield "the result is not (x - zero) * scale"


def _mixes_types(use: OperatorUse) -> Iterator[str]:
    """Tried on a first operand of float32 and others of float64."""
    rest = [None if a is None else a.astype(np.float64) for a in use.operands[1:]]
    first = use.first.astype(np.float32)
    mixed = replace(use, operands=(first, *rest))
    op, _ = mixed.operation()
    try:
        interp.run_natively(op, mixed.operands)
    except CompileError as error:
        yield f"its Computations do not take float32 and float64: {error.message}"


_CHECKS: Final[Mapping[Trait, Callable[[OperatorUse], Iterator[str]]]] = {
    Trait.POINTWISE: _pointwise,
    Trait.COMMUTATIVE: _commutative,
    Trait.IDEMPOTENT: _idempotent,
    Trait.MOVES_DATA: _moves_data,
    Trait.JOINS: _joins,
    Trait.SELECTS: _selects,
    Trait.SPATIAL: _spatial,
    Trait.CHANGES_AXES: _changes_axes,
    Trait.STACKS: _stacks,
    Trait.IMPURE: _impure,
    Trait.DEQUANTIZES: _dequantizes,
    Trait.MIXES_TYPES: _mixes_types,
}
