"""Finding substitutions: all small graphs over a set of operators, grouped by what they compute.

    python -m benchmarks.substitutions [--operators 3]

1. Every formula of up to --operators operators over four matrices is run on small integers, on
   which no operator rounds. Formulas with equal results, twice, are candidates for one equation.
2. Equations that follow from shorter ones are dropped: the same up to names, an instance, or one
   operator around an equation; and those that a few steps of kept equations derive.
3. Each candidate is proved from the axioms (`graph/rules/prove.py`) and checked on random shapes
   and types (`graph/rules/check.py`), which finds its labels. One that fails is dropped.

Those that do not follow from the axioms are new: beyond those published with TASO, whose axioms
they are. The others are in `SUBSTITUTIONS` already or follow from it.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.graph.rules.check import holds
from tilewright.graph.rules.patterns import Apply, onnx, reals, tensors
from tilewright.graph.rules.prove import prove
from tilewright.graph.rules.rule import Rule
from tilewright.graph.rules.substitutions import found as found_rules

FILE = Path(found_rules.__file__).with_name("found.txt")
NAMES = "abc"
EXTENT = 3
ROUNDS = 6  # of random operands
INSTANCES = 40  # that a found rule must agree on
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Kind:
    """An operator of the set. cost: roughly, in passes over a matrix."""

    op_type: str
    run: Any
    cost: int
    commutes: bool = False
    attributes: tuple[tuple[str, Any], ...] = ()

    @property
    def given(self) -> dict[str, Any]:
        """The attributes as a pattern has them."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in self.attributes}


def _join(axis: int) -> Kind:
    def run(a: Array, b: Array) -> Array:
        return np.concatenate([a, b], axis + 1)

    return Kind("Concat", run, 2, attributes=(("axis", axis),))


def _swapped(a: Array) -> Array:
    return a.swapaxes(1, 2)


UNARY: Mapping[str, Kind] = {
    "Relu": Kind("Relu", lambda a: np.maximum(a, 0), 1),
    "Neg": Kind("Neg", np.negative, 1),
    "Abs": Kind("Abs", np.abs, 1),
    "Transpose": Kind("Transpose", _swapped, 1, attributes=(("perm", (1, 0)),)),
}
BINARY: Mapping[str, Kind] = {
    "Add": Kind("Add", np.add, 1, True),
    "Sub": Kind("Sub", np.subtract, 1),
    "Mul": Kind("Mul", np.multiply, 1, True),
    "Max": Kind("Max", np.maximum, 1, True),
    "Min": Kind("Min", np.minimum, 1, True),
    "MatMul": Kind("MatMul", np.matmul, 2 * EXTENT),
    "JoinRows": _join(0),
    "JoinColumns": _join(1),
}
KINDS = {**UNARY, **BINARY}


@dataclass(frozen=True)
class Formula:
    """A name, or an operator on formulas."""

    head: str
    operands: tuple[Formula, ...] = ()

    @cached_property
    def operators(self) -> frozenset[Formula]:
        """The operations, each once however often it is read."""
        inner = (o.operators for o in self.operands)
        own = [self] if self.operands else []
        return frozenset(own).union(*inner)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names in it, in the order of reading."""
        if not self.operands:
            return (self.head,)
        return tuple(dict.fromkeys(n for o in self.operands for n in o.names))

    @cached_property
    def cost(self) -> int:
        """The total cost of its operations."""
        return sum(KINDS[f.head].cost for f in self.operators)

    @cached_property
    def text(self) -> str:
        """The text that it is sorted by."""
        if not self.operands:
            return self.head
        return f"{self.head}({', '.join(o.text for o in self.operands)})"

    def renamed(self, names: Mapping[str, Formula]) -> Formula:
        """The formula with names replaced by formulas."""
        if not self.operands:
            return names.get(self.head, self)
        return applied(self.head, *(o.renamed(names) for o in self.operands))


def applied(head: str, *operands: Formula) -> Formula:
    """The formula, the operands of a commutative operator in order."""
    if head in BINARY and BINARY[head].commutes:
        operands = tuple(sorted(operands, key=lambda f: f.text))
    return Formula(head, operands)


# ------------------------------------------------------------------------------------ enumeration


def equations(operators: int) -> list[tuple[Formula, Formula]]:
    """Formulas of at most `operators` operators, each with the cheapest equivalent one.

    Larger formulas are built only from cheapest ones: an equation for a subformula covers every
    formula that contains it.
    """
    rng = np.random.default_rng(0)
    shape = (ROUNDS, EXTENT, EXTENT)
    values = {Formula(n): rng.integers(-5, 6, shape) for n in NAMES}
    cheapest = {_fingerprint(a): f for f, a in values.items()}
    levels = [list(values)]
    found: list[tuple[Formula, Formula]] = []
    for count in range(1, operators + 1):
        groups: dict[bytes, list[Formula]] = {}
        made: dict[bytes, Array] = {}
        for f in dict.fromkeys(_next(levels, count)):
            array = _run(f, values)
            if array is not None:
                key = _fingerprint(array)
                groups.setdefault(key, []).append(f)
                made[key] = array
        level = []
        for key, group in groups.items():
            best = min(group, key=_weight)
            if key not in cheapest:
                cheapest[key] = best
                values[best] = made[key]
                level.append(best)
            found += [(f, cheapest[key]) for f in group if f is not cheapest[key]]
        levels.append(level)
    return found


def _fingerprint(values: Array) -> bytes:
    return bytes(values.shape) + values.astype(np.int64).tobytes()


def _next(levels: Sequence[Sequence[Formula]], count: int) -> Iterator[Formula]:
    for head, inner in itertools.product(UNARY, levels[count - 1]):
        yield applied(head, inner)
    for left in range(count):
        pairs = itertools.product(levels[left], levels[count - 1 - left])
        for (one, other), head in itertools.product(pairs, BINARY):
            if one != other or head != "Sub":  # zeros, of which all is equal
                yield applied(head, one, other)


def _run(f: Formula, known: Mapping[Formula, Array]) -> Array | None:
    """The result of a formula; None if operands do not fit."""
    try:
        return np.asarray(KINDS[f.head].run(*(known[o] for o in f.operands)))
    except ValueError:
        return None


# ---------------------------------------------------------------------------------------- pruning


def candidates(operators: int) -> Iterator[tuple[Formula, Formula]]:
    """Equations that make a formula cheaper and are not instances of smaller ones."""
    known: dict[str, list[Formula]] = {}
    cheaper = [e for e in equations(operators) if e[1].cost < e[0].cost]
    for left, right in sorted(cheaper, key=lambda e: (_weight(e[0]), _weight(e[1]))):
        before = known.setdefault(left.head, [])
        if not _in_first_names(left) or not set(right.names) <= set(left.names):
            continue
        if all(_instance(other, left, {}) is None for other in before):
            before.append(left)
            yield left, right


def _weight(f: Formula) -> tuple[int, int, str]:
    return len(f.operators), f.cost, f.text


def _in_first_names(f: Formula) -> bool:
    """Whether its names occur in order: others are the same formula with other names."""
    return f.names == tuple(NAMES[: len(f.names)])


def _instance(
    pattern: Formula,
    f: Formula,
    names: Mapping[str, Formula],
) -> Mapping[str, Formula] | None:
    """The bindings of a pattern's names in a formula; None if it is not an instance."""
    if not pattern.operands:
        bound = names.get(pattern.head, f)
        return {**names, pattern.head: f} if bound == f else None
    if pattern.head != f.head:
        return None
    orders = [f.operands]
    if pattern.head in BINARY and BINARY[pattern.head].commutes:
        orders.append(f.operands[::-1])
    for operands in orders:
        found: Mapping[str, Formula] | None = names
        for inner, operand in zip(pattern.operands, operands, strict=True):
            found = None if found is None else _instance(inner, operand, found)
        if found is not None:
            return found
    return None


# ------------------------------------------------------------------------------------------ rules

# From the strongest claim to the weakest: the rule gets the first one that passes the check.
AGREE: tuple[list[str], ...] = (["finite"],)  # stronger ones need more instances
TYPES: tuple[list[str], ...] = ([], ["real"])
CLAIMS = tuple(
    [*agree, *types, *where]
    for where in ([], ["matrices"], ["alike"])
    for agree in AGREE
    for types in TYPES
)


def pattern(f: Formula, named: Mapping[str, Any], from_end: bool = False) -> Any:
    """The formula as a pattern over tensors. from_end: axes of matrices are counted from the last,
    as the axioms do.
    """
    if not f.operands:
        return named[f.head]
    kind = KINDS[f.head]
    operands = (pattern(o, named, from_end) for o in f.operands)
    given = kind.given
    if from_end and "axis" in given:
        given["axis"] -= 2
    return getattr(onnx, kind.op_type)(*operands, **given)


def follows(left: Formula, right: Formula) -> bool:
    """Whether an equation of matrices follows from the axioms."""
    named = dict(zip(NAMES, tensors(" ".join(NAMES)), strict=True))
    sides = (pattern(f, named, from_end=True) for f in (left, right))
    return prove(Rule("equation", *sides)) is not None


def _equal_in_reals(left: Formula, right: Formula) -> bool:
    """Whether both agree on random real matrices: many equations hold for integers alone."""
    rng = np.random.default_rng(1)
    given = {n: rng.standard_normal((9, EXTENT, EXTENT)) for n in NAMES}
    one, other = (_evaluated(f, given) for f in (left, right))
    return bool(np.allclose(one, other, rtol=1e-9, atol=1e-9))


def _evaluated(f: Formula, given: Mapping[str, Array]) -> Array:
    if not f.operands:
        return given[f.head]
    operands = [_evaluated(o, given) for o in f.operands]
    return np.asarray(KINDS[f.head].run(*operands))


def as_rule(name: str, left: Formula, right: Formula) -> tuple[Rule, list[str]] | None:
    """The rule with the strongest labels that it is checked to have; None if it is wrong."""
    if not _equal_in_reals(left, right):
        return None
    for labels in CLAIMS:
        make = reals if "real" in labels else tensors
        named = dict(zip(NAMES, make(" ".join(NAMES)), strict=True))
        top = pattern(left, named)
        if not isinstance(top, Apply):
            return None
        rule = found_rules.made(name, top, pattern(right, named), labels)
        if holds(rule, seed=1, instances=INSTANCES):
            return rule, labels
    return None


HEAD = """\
# Substitutions found by enumeration: python -m benchmarks.substitutions --operators {operators}
# {formulas} equations of up to {operators} operators over {names}; {proved} follow from the axioms,
# {wrong} hold for small integers alone, {new} are new.
# All are labeled `finite` and none `exact`: the weakest claims.
"""


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operators", type=int, default=3)
    operators = parser.parse_args().operators
    lines: list[str] = []
    proved = wrong = total = 0
    for left, right in candidates(operators):
        total += 1
        if follows(left, right):
            proved += 1
            continue
        made = as_rule(f"found-{len(lines) + 1}", left, right)
        if made is None:
            wrong += 1
            print("wrong:", left.text, "=>", right.text)
            continue
        rule, labels = made
        sides = str(rule).partition("  where")[0]
        lines.append(f"{sides}  # {' '.join(labels)}".rstrip(" #"))
        print(lines[-1], flush=True)
    head = HEAD.format(
        operators=operators,
        formulas=total,
        names=", ".join(NAMES),
        proved=proved,
        wrong=wrong,
        new=len(lines),
    )
    FILE.write_text(head + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
