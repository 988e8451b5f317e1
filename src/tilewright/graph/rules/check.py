"""Checking a rule: interpret both sides on random instances of its pattern.

An instance gives every tensor of the pattern a random shape, type and elements, and every attribute
one of its examples; instances that the operators' definitions reject are drawn again. If random
operands are not enough, a rule supplies its own (`samples`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from tilewright.base import dtypes
from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType, dtype_of
from tilewright.base.errors import InputError, TilewrightError
from tilewright.graph import interp
from tilewright.graph.nodes import Graph, Operation, Value, constant
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import Array
from tilewright.graph.rules.change import apply, places
from tilewright.graph.rules.driver import rewrite
from tilewright.graph.rules.patterns import (
    AnyOf,
    Apply,
    Attribute,
    Either,
    LeftOut,
    Maybe,
    Number,
    Operator,
    Tensor,
    parts,
)
from tilewright.graph.rules.rule import Rule, Sample, SampleApplication
from tilewright.graph.specialize import specialize

DRAWS: Final = 3000  # most draws
MORE: Final = 40  # further draws after a first counterexample
INSTANCES: Final = 24  # instances that a rule must agree on
SPECIAL: Final = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan)
# Sums and products of these overflow in float32 or float64.
FAR: Final = (3e38, -2e38, 1.5e308, -1e308)
REALS: Final = (dtypes.float32, dtypes.float64)
INTEGERS: Final = (dtypes.int64, dtypes.int32, dtypes.uint8)
FUEL: Final = 5
# Rounding tolerance relative to the largest result: float32 after a few hundred operations.
TOLERANCE: Final = 1e-4
NARROW: Final = (
    2e-2  # the same for float16 and bfloat16, which represent small integers exactly
)
# Advice on a counterexample, by whether the rule claims equal results.
_HINTS: Final = {
    True: "Give it a condition (when=...), or exact=False if both sides may round otherwise",
    False: "Give it a condition (when=...); this is more than rounding, which exact=False allows",
}


def check(
    rule: Rule,
    seed: int = 0,
    once: bool = False,
    instances: int = INSTANCES,
) -> int:
    """Compare both sides on random instances; returns the number of draws.

    once: apply it at one place, as a search does; else until it no longer applies. Raises
    InputError, with the counterexample, if the sides differ, if the replacement fails, if the rule
    never terminates, or if no instance is found.
    """
    rng = np.random.default_rng(seed)
    draws = _Draws(rule, rng, once)
    agreed = 0
    while agreed < instances and draws.count < DRAWS:
        try:
            agreed += draws.next()
        except _Counterexample as first:
            found = _smallest(draws, first)
            raise rule.error(found.message, found.hint) from found.__cause__
    if agreed == instances:
        return draws.count
    raise rule.error(
        f"it applied to {agreed} of {DRAWS} random instances of its pattern {rule.pattern}, "
        f"expected {instances}",
        "Say what to try it on: Rule(..., samples=lambda rng: {x: array, ...})",
    )


def holds(rule: Rule, seed: int = 0, instances: int = INSTANCES) -> bool:
    """Whether one application passes `check`; it does not minimize counterexamples."""
    draws = _Draws(rule, np.random.default_rng(seed), True)
    agreed = 0
    try:
        while agreed < instances and draws.count < DRAWS:
            agreed += draws.next()
    except _Counterexample:
        return False
    return agreed == instances


@dataclass
class _Draws:
    """Random instances of a rule's pattern, one after another. count: draws so far."""

    rule: Rule
    rng: np.random.Generator
    once: bool
    count: int = 0

    def next(self) -> bool:
        """Whether the rule applies to another instance; raises if it changes the result."""
        mixed = self.count > DRAWS // 2
        self.count += 1
        graph = _instance(self.rule, self.rng, mixed)
        return _agrees(self.rule, graph, self.rng, self.once)


class _Counterexample(Exception):
    """An instance on which a rule is wrong. size: its number of elements."""

    def __init__(
        self,
        graph: Graph,
        message: str,
        hint: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        values = (*graph.inputs, *graph.constants)
        self.size = sum(math.prod(v.extents) for v in values) + len(graph.operations)


def _smallest(draws: _Draws, best: _Counterexample) -> _Counterexample:
    """The smallest counterexample of some more draws, as people have to read it."""
    for _ in range(MORE):
        try:
            draws.next()
        except _Counterexample as other:
            best = min(best, other, key=lambda e: e.size)
    return best


def _agrees(
    rule: Rule,
    graph: Graph | None,
    rng: np.random.Generator,
    once: bool,
) -> bool:
    """Whether the rule applies to this instance; raises if it changes the result."""
    if graph is None:
        return False
    odd = _odd(rule)
    feeds = {v.name: _elements(v, rng, odd) for v in graph.inputs}
    with np.errstate(all="ignore"):
        try:
            expected = _run(graph, feeds)
        except TilewrightError:
            return False  # operands that the operators reject
        try:
            after = _once(graph, rule) if once else rewrite(graph, [rule], FUEL)
            if after is None or after is graph:
                return False
            found = _run(after, feeds)
        except TilewrightError as error:
            raise _Counterexample(
                graph, f"it fails on {_shown(graph, feeds)}: {error}"
            ) from error
    for want, got in zip(expected, found, strict=True):
        where = _difference(
            np.asarray(want),
            np.asarray(got),
            rule.exact,
        )
        if where is not None:
            raise _Counterexample(
                graph,
                f"it is wrong on {_shown(graph, feeds)}: {where}",
                _HINTS[rule.exact],
            )
    return True


def _once(graph: Graph, rule: Rule) -> Graph | None:
    """The graph with the rule applied at the first possible place."""
    tried = (apply(graph, rule, m) for m in places(graph, rule))
    return next((after for after in tried if after is not None), None)


def _run(graph: Graph, feeds: Mapping[str, Array]) -> list[Any]:
    """The results; operators defined by decomposition are decomposed first."""
    return list(interp.evaluate(specialize(graph), feeds).values())


def _difference(
    want: Array,
    got: Array,
    exact: bool,
    within: float = TOLERANCE,
) -> str | None:
    """Describe the first difference between two results; None if they agree."""
    if want.dtype != got.dtype or want.shape != got.shape:
        return f"{want.dtype}{list(want.shape)} becomes {got.dtype}{list(got.shape)}"
    if (
        dtype_of(want.dtype) is dtypes.bfloat16
    ):  # which NumPy does not treat as a number
        return _difference(
            want.astype(np.float32), got.astype(np.float32), exact, NARROW
        )
    real = want.dtype.kind == "f"
    within = NARROW if want.dtype == np.float16 else within
    same = (want == got) | ((want != want) & (got != got))
    if real and exact:
        same &= (np.signbit(want) == np.signbit(got)) | (want != want)
    elif real:
        finite = np.isfinite(want)
        peak = float(np.abs(want[finite]).max(initial=0.0))
        with np.errstate(invalid="ignore"):
            same |= np.abs(want - got) <= within * max(peak, 1e-30)
    elif not exact:
        same |= np.abs(want.astype(np.int64) - got.astype(np.int64)) <= 1  # a tie
    if same.all():
        return None
    at = tuple(map(int, np.argwhere(~same)[0]))
    return f"at {at} {want[at]} becomes {got[at]}"


def _shown(graph: Graph, feeds: Mapping[str, Array]) -> str:
    inner = graph.operations[
        : -len(graph.outputs)
    ]  # without the operations that read the results
    steps = "; ".join(str(op).partition("  #")[0] for op in inner)
    values = [*feeds.items(), *((v.name, a) for v, a in graph.constants.items())]
    words = [f"{name} = {_brief(np.asarray(a))}" for name, a in values]
    return f"{steps} with {', '.join(words)}"


def _brief(a: Array) -> str:
    text = np.array2string(a, threshold=24, separator=", ", precision=4)
    return " ".join(text.split())


# -------------------------------------------------------------------------------------- instances


def _instance(
    rule: Rule,
    rng: np.random.Generator,
    mixed: bool,
) -> Graph | None:
    """A graph that the pattern may match, with its result read once; None for a failed draw.

    mixed: tensors may differ in type, as those of a Where do.
    """
    if rule.samples is not None:
        sample = rule.samples(rng)
    else:
        sample = {}
    if isinstance(sample, Graph):
        return _read(sample)
    if not isinstance(rule.pattern, Apply):
        raise rule.error(
            "its pattern is not a formula",
            "Give samples=, a function that draws graphs",
        )
    maker = _Maker(
        sample,
        rng,
        Fragment("", {}),
        _types(rule.pattern, rng, mixed),
        _odd(rule),
    )
    try:
        result = maker.value(rule.pattern)
    except InputError:
        raise
    except Exception:
        # A definition may fail in any way on operands that do not fit: draw again.
        return None
    if result is None or not result.static:
        return None
    constants = {**maker.f.constants, **maker.constants}
    inputs = tuple(maker.inputs)
    return _read(
        Graph(
            "instance",
            inputs,
            (result,),
            tuple(maker.f.operations),
            constants,
        )
    )


def _read(graph: Graph) -> Graph:
    """The graph with its results read by more operations, as graph outputs must be kept."""
    last = [
        Operation("Identity", (y,), (Value(f"out{n}", y.dtype, y.shape),), version=21)
        for n, y in enumerate(graph.outputs)
    ]
    outputs = [v for op in last for v in op.writes]
    return graph.with_operations([*graph.operations, *last], outputs=outputs)


def _types(
    pattern: Apply,
    rng: np.random.Generator,
    mixed: bool,
) -> Mapping[int, DType]:
    """The element type of each tensor."""
    used = [part for part in parts(pattern) if isinstance(part, Tensor)]
    types: Sequence[DType] = REALS
    if not any(part.real for part in used):
        types = (*REALS, *INTEGERS)
    common = types[int(rng.integers(len(types)))]
    others = (*REALS, *INTEGERS, dtypes.bool_)
    found = {}
    for part in used:
        odd = mixed and not part.real and rng.random() < 0.5
        found[id(part)] = others[int(rng.integers(len(others)))] if odd else common
    return found


@dataclass(eq=False)
class _Maker:
    """Builds operations of a pattern. f: receives them."""

    sample: Sample
    rng: np.random.Generator
    f: Fragment
    types: Mapping[int, DType]
    odd: Sequence[float]

    def __post_init__(self) -> None:
        self.values: dict[int, Value | None] = {}
        self.inputs: list[Value] = []
        self.constants: dict[Value, Array] = {}
        rank = int(self.rng.integers(0, 5))
        self.shape = [int(n) for n in self.rng.integers(1, 4, rank)]

    def value(self, part: Any) -> Value | None:
        """The value of a part of the pattern; the same part has the same value."""
        if id(part) not in self.values:
            self.values[id(part)] = self._new(part)
        return self.values[id(part)]

    def _new(self, part: Any) -> Value | None:
        match part:
            case Maybe(part=inner):
                if inner in self.sample:
                    given = self.sample[inner] is not None
                else:
                    given = self._coin()
                return self.value(inner) if given else None
            case Either(forms=forms):
                return self.value(forms[int(self.rng.integers(len(forms)))])
            case Number(value=number):
                return self.f.constant(number, self._type())
            case Tensor():
                return self._tensor(part)
            case Apply():
                return self._applied(part)
        raise TypeError(f"{part} is not a part of a pattern")

    def _coin(self) -> bool:
        return bool(self.rng.random() < 0.5)

    def _type(self) -> DType:
        return next(iter(self.types.values()), dtypes.float32)

    def _tensor(self, part: Tensor) -> Value:
        given = self.sample.get(part)
        if isinstance(given, Value):
            value = given
        elif given is not None:
            value = constant(part.name, np.asarray(given))
        else:
            value = Value(
                part.name,
                self.types[id(part)],
                self._some_shape(),
            )
        if value is given or given is None:
            array = _elements(value, self.rng, self.odd)
            known = part.known or self._coin()
        else:
            array, known = np.asarray(given), True
        if known:
            self.constants[value] = array
            self.f.constants[value] = array
        else:
            self.inputs.append(value)
        return value

    def _some_shape(self) -> tuple[int, ...]:
        """The common shape, one that broadcasts to it, or any other."""
        way = self.rng.random()
        if way < 0.6:
            return tuple(self.shape)
        if way < 0.8:
            start = int(self.rng.integers(len(self.shape) + 1))
            return tuple(1 if self._coin() else n for n in self.shape[start:])
        rank = int(self.rng.integers(0, 5))
        return tuple(int(n) for n in self.rng.integers(1, 4, rank))

    def _applied(self, part: Apply) -> Value:
        given = self.sample.get(part, SampleApplication())
        operator = given.operator or part.operator
        if isinstance(operator, AnyOf):
            operator = self._one_of(operator)
        operands = [self.value(x) for x in part.operands]
        for a in given.more:
            operands.append(None if a is None else self.f.constant(np.asarray(a)))
        while operands and operands[-1] is None:
            operands.pop()
        attributes = {**given.attributes, **dict(self._attributes(part))}
        return self.f.apply(operator, operands, attributes)

    def _one_of(self, choices: AnyOf) -> Operator:
        names = sorted(choices.names)
        domain, _, op_type = names[int(self.rng.integers(len(names)))].rpartition("::")
        return Operator(op_type, domain)

    def _attributes(self, part: Apply) -> Iterator[tuple[str, Any]]:
        for name, wanted in part.attributes.items():
            match wanted:
                case Attribute():
                    examples = self._examples(wanted)
                    found = examples[int(self.rng.integers(len(examples)))]
                    if found is not None:
                        yield name, found
                case LeftOut(default=default):
                    if self._coin():
                        yield name, default
                case _:
                    yield name, wanted

    def _examples(self, wanted: Attribute) -> tuple[Any, ...]:
        if wanted in self.sample:
            return (self.sample[wanted],)
        return (*wanted.examples, wanted.default)


def _odd(rule: Rule) -> Sequence[float]:
    """Unusual elements that a rule must agree on, as far as it claims to."""
    if rule.finite:
        return ()
    return (*SPECIAL, *FAR) if rule.exact else SPECIAL


def _elements(
    v: Value,
    rng: np.random.Generator,
    odd: Sequence[float],
) -> Array:
    """Random elements, including integers of the largest size and, for floats, the `odd` ones."""
    assert v.dtype is not None
    kind = v.dtype.numpy
    if v.dtype.is_bool:
        return rng.integers(0, 2, v.extents).astype(kind)
    if not v.dtype.is_float:
        least = np.iinfo(kind).min
        most = np.iinfo(kind).max
        found = rng.integers(max(least, -4), 5, v.extents).astype(kind)
        # Sums and products of these overflow.
        far = rng.integers(least, most, v.extents, kind, endpoint=True)
        return np.asarray(np.where(rng.random(v.extents) < 0.3, far, found), kind)
    if v.dtype.bits < 32:  # few digits, so that sums and products are exact
        found = rng.integers(-3, 4, v.extents).astype(kind)
    else:
        found = (2 * rng.standard_normal(v.extents)).astype(kind)
    if odd:
        with np.errstate(over="ignore"):
            drawn = rng.choice(np.array(odd).astype(kind), v.extents)
        found = np.where(rng.random(v.extents) < 0.3, drawn, found)
    return np.asarray(found, kind)
