"""The expected results of a kernel: Computations in float64, or the loop interpreter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ExecutionError
from tilewright.base.guarded import poison
from tilewright.compute.nodes import Computation
from tilewright.compute.truth import ReferenceTensors
from tilewright.expr.nodes import Buffer
from tilewright.expr.rounding import format_of
from tilewright.loops import interp
from tilewright.loops.nodes import Block, For, If, Kernel, Stmt, While

Array = np.ndarray[Any, Any]
# Statements that the loop interpreter runs in about two seconds.
STEPS: Final = 2_000_000
_TRIAL: Final = 16  # results that are always judged; they show what one costs
_FIRST: Final = 256  # as many are judged if that takes at most _FAR times the effort
_FAR: Final = 20
_SAMPLES: Final = 1 << 16  # most results that are judged, unless all are
_ROUNDINGS: Final = 64.0


@dataclass(frozen=True, slots=True)
class ExpectedElements:
    """Elements of an output: their positions, values and error bounds."""

    places: Array
    value: Array
    error: Array


class Judge(Protocol):
    """Knows the results of one kernel on one set of data.

    refused: the kernel must reject the data. note: what is not judged, and why.
    """

    refused: bool
    note: str

    def written(self, b: Buffer) -> Array:
        """A flat mask of the elements of an output that the kernel writes."""
        ...

    def expected(self, b: Buffer) -> ExpectedElements:
        """Elements of an output to compare."""
        ...


class ComputationJudge:
    """Results of Computations: all of them if `effort` nodes suffice, else a sample."""

    _truth: ReferenceTensors

    def __init__(
        self,
        group: Sequence[Computation],
        arrays: Mapping[Buffer, Array],
        outputs: Sequence[Buffer],
        effort: int,
        seed: int,
        other: ComputationJudge | None = None,
    ) -> None:
        self.refused = False
        self.note = ""
        before = None if other is None or other.refused else other.truth
        self._expected: dict[Buffer, ExpectedElements] = {}
        try:
            self.truth: ReferenceTensors = ReferenceTensors(group, arrays, before)
            if self.truth.in_order and self.truth.total > _FAR * effort:
                self.note = (
                    "values were not compared: results are written several times"
                )
                outputs = ()
            for b in outputs:
                places = self._places(
                    b, effort // len(outputs), np.random.default_rng(seed)
                )
                found = self.truth.at(b, places)
                error = np.broadcast_to(found.error, places.shape)
                self._expected[b] = ExpectedElements(places, found.value, error)
        except ExecutionError as error:
            if error.code != "TW-INDEX":
                raise
            self.refused = True

    def written(self, b: Buffer) -> Array:
        """A flat mask of the elements of an output that the Computations write."""
        return self.truth.written(b)

    def expected(self, b: Buffer) -> ExpectedElements:
        """Elements of an output to compare."""
        nothing = np.zeros(0, np.int64)
        return self._expected.get(
            b, ExpectedElements(nothing, np.zeros(0), np.zeros(0))
        )

    def _places(self, b: Buffer, effort: int, rng: np.random.Generator) -> Array:
        truth = self.truth
        if truth.total <= effort:
            return np.flatnonzero(truth.written(b))
        before = truth.work
        truth.at(b, truth.sample(b, _TRIAL, rng))
        each = max(1.0, (truth.work - before) / _TRIAL)
        count = max(effort / each, min(_FIRST, _FAR * effort / each), _TRIAL)
        if count > b.size:
            return np.flatnonzero(truth.written(b))
        return truth.sample(b, int(min(count, _SAMPLES)), rng)


class KernelJudge:
    """Results of a loop program, from the loop interpreter."""

    def __init__(
        self, kernel: Kernel, arrays: Mapping[Buffer, Array], outputs: Sequence[Buffer]
    ) -> None:
        self.refused = False
        self.note = ""
        self._first = self._run(kernel, arrays, outputs, False)
        self._second = self._run(kernel, arrays, outputs, True)
        self._before = {b: _initial(b, arrays) for b in outputs}
        self._longest = longest(kernel.params)

    def _run(
        self,
        kernel: Kernel,
        arrays: Mapping[Buffer, Array],
        outputs: Sequence[Buffer],
        again: bool,
    ) -> dict[Buffer, Array]:
        given = {b: np.array(arrays[b]) for b in kernel.params if b in arrays}
        given |= {b: _initial(b, arrays, again) for b in outputs}
        try:
            interp.run(kernel, given)
        except ExecutionError as error:
            if error.code != "TW-INDEX":
                raise
            self.refused = True
        return {b: given[b].reshape(-1) for b in outputs}

    def written(self, b: Buffer) -> Array:
        """A flat mask of the elements that the program writes, whatever they held before."""
        one = differ(self._first[b], self._before[b].reshape(-1))
        return one | ~differ(self._first[b], self._second[b])

    def expected(self, b: Buffer) -> ExpectedElements:
        """All elements that are written."""
        places = np.flatnonzero(self.written(b))
        found = self._first[b][places]
        error = np.zeros(len(places))
        if b.dtype.is_float:
            found = found.astype(np.float64)
            error += rounding(b, found, self._longest)
        return ExpectedElements(places, found, error)


def longest(buffers: Sequence[Buffer]) -> int:
    """The greatest extent: no reduction along one dimension is longer."""
    return max((max(b.shape, default=1) for b in buffers), default=1)


def rounding(b: Buffer, values: Array, terms: int) -> float:
    """The error bound of values of a float tensor that are sums of `terms` terms."""
    wide = values.astype(np.float64)
    peak = float(np.abs(wide[np.isfinite(wide)]).max(initial=0.0))
    return format_of(b.dtype).unit * _ROUNDINGS * math.sqrt(terms) * peak


def _initial(b: Buffer, arrays: Mapping[Buffer, Array], again: bool = False) -> Array:
    if b in arrays:
        return np.array(arrays[b])
    size, floating = b.dtype.itemsize, b.dtype.is_float
    data = poison(size, floating, b.size * size, again)
    return data.view(b.dtype.numpy).reshape(b.shape).copy()


def differ(one: Array, other: Array) -> Array:
    """A flat mask of the elements in which two arrays of one dtype differ in any bit."""
    kind = np.dtype((np.void, one.dtype.itemsize))
    found: Array = np.ascontiguousarray(one).view(kind) != np.ascontiguousarray(
        other
    ).view(kind)
    return found.reshape(-1)


def steps(stmt: Stmt) -> float:
    """The estimated statements of one run; a loop of unknown length has 64 iterations."""
    match stmt:
        case For():
            return (64 if stmt.trips is None else stmt.trips) * steps(stmt.body)
        case Block():
            return sum(map(steps, stmt.stmts))
        case While():
            return 64 * steps(stmt.body)
        case If():
            return steps(stmt.then) + (
                0 if stmt.otherwise is None else steps(stmt.otherwise)
            )
    inner = [c for c in stmt.children() if isinstance(c, Stmt)]
    return sum(map(steps, inner)) if inner else 1.0
