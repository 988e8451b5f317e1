"""Deriving rules from axioms: rewrite both sides until no axiom applies, and compare.

A proof says that both sides are equal wherever everything in it is defined. It does not say for
which shapes that holds, nor how sums round. Conditions, labels and the check on random operands
cover that; a proof complements them and does not replace them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.graph.rules.axioms import AXIOMS
from tilewright.graph.rules.patterns import (
    AnyOf,
    Apply,
    Attribute,
    Computed,
    LeftOut,
    Maybe,
    Number,
    On,
    Pattern,
    Tensor,
)
from tilewright.graph.rules.rule import Rule
from tilewright.graph.rules.substitutions.rows import NUMBER

STEPS = 200  # most steps per side
COMMUTATIVE = ("Add", "Mul")  # commutative and associative


@dataclass(frozen=True)
class FormulaTerm:
    """An operator applied to terms; a tensor or a number has no operands.

    Sums and products have any number of operands, in canonical order.
    """

    head: str
    operands: tuple[FormulaTerm, ...] = ()
    attributes: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        if not self.operands:
            return self.head
        words = [*map(str, self.operands), *(f"{k}={v}" for k, v in self.attributes)]
        return f"{self.head}({', '.join(words)})"


Bound = Mapping[int, Any]


class NotAFormula(Exception):
    """A side that is not a formula, so nothing can be derived from it."""


def prove(
    rule: Rule,
    axioms: Sequence[Rule] = AXIOMS,
) -> tuple[str, ...] | None:
    """The names of the axioms that make both sides equal, each once; None if they do not."""
    used: dict[str, None] = {}
    try:
        known = _meaning(rule)
        left = _normal(_term(rule.pattern, known), axioms, used)
        right = _normal(_term(rule.replacement, known), axioms, used)
    except NotAFormula:
        return None
    return tuple(used) if left == right else None


def _meaning(rule: Rule) -> Bound:
    """What its conditions say about attributes and tensors, by their identities."""
    found: dict[int, Any] = {}
    for condition in rule.when:
        found |= getattr(condition, "means", {})
    return found


def _term(part: Any, bound: Bound) -> FormulaTerm:
    """A pattern as a term. bound: stands for tensors and attributes, by their identities."""
    match part:
        case Tensor():
            found = bound.get(id(part))
            if isinstance(found, FormulaTerm):
                return found
            return FormulaTerm(f"number {part.name}" if found == NUMBER else part.name)
        case Number():
            return FormulaTerm(f"{part.value:g}")
        case Apply():
            head = bound.get(id(part), str(part.operator))
            named = [(k, _attribute(v, bound)) for k, v in part.attributes.items()]
            given = [(k, v) for k, v in named if v is not None]
            return _applied(head, [_term(p, bound) for p in part.operands], given)
        case On():
            head = bound.get(id(part.pattern), str(part.pattern.operator))
            return _applied(head, [_term(p, bound) for p in part.operands], [])
    raise NotAFormula


def _attribute(given: Any, bound: Bound) -> Any:
    match given:
        case Attribute():
            return bound.get(id(given), given.name)
        case Computed():
            return given.text
        case LeftOut():
            return None  # it means the same as omitting it
    return str(given)


def _applied(
    head: str,
    operands: Sequence[FormulaTerm],
    attributes: Sequence[tuple[str, Any]],
) -> FormulaTerm:
    """The term, with operands sorted if order does not matter and numbers multiplied."""
    if head not in COMMUTATIVE:
        return FormulaTerm(head, tuple(operands), tuple(sorted(attributes)))
    flat: list[FormulaTerm] = []
    for t in operands:
        flat += t.operands if t.head == head else [t]
    if head == "Mul":
        flat = _one_factor(flat)
    if len(flat) == 1:
        return flat[0]
    return FormulaTerm(head, tuple(sorted(flat, key=str)))


def _one_factor(factors: Sequence[FormulaTerm]) -> list[FormulaTerm]:
    numbers = [t for t in factors if _is_literal(t)]
    others = [t for t in factors if not _is_literal(t)]
    product = 1.0
    for t in numbers:
        product *= float(t.head)
    if product == 1.0 and others:
        return others
    return [FormulaTerm(f"{product:g}"), *others]


def _is_literal(term: FormulaTerm) -> bool:
    return not term.operands and term.head.lstrip("-")[:1].isdigit()


def _is_number(term: FormulaTerm) -> bool:
    """Whether a term is a number, written out or by a condition."""
    named = not term.operands and term.head.startswith("number ")
    return named or _is_literal(term)


# -------------------------------------------------------------------------------------- rewriting


def _normal(
    term: FormulaTerm,
    axioms: Sequence[Rule],
    used: dict[str, None],
) -> FormulaTerm:
    """The term after applying axioms, innermost terms first, until none applies."""
    for _ in range(STEPS):
        inner = [_normal(t, axioms, used) for t in term.operands]
        term = _applied(term.head, inner, term.attributes) if inner else term
        changed = _step(term, axioms, used)
        if changed is None:
            return term
        term = changed
    raise NotAFormula


def _step(
    term: FormulaTerm,
    axioms: Sequence[Rule],
    used: dict[str, None],
) -> FormulaTerm | None:
    """The term after the first axiom that matches all of it, or some operands of a sum."""
    for axiom in axioms:
        for part, rest in _parts(term):
            for bound in _match(axiom.pattern, part, _meaning(axiom)):
                made = _term(axiom.replacement, bound)
                whole = _applied(term.head, [made, *rest], ()) if rest else made
                if whole != term:
                    used[axiom.name] = None
                    return whole
    return None


def _parts(term: FormulaTerm) -> Iterator[tuple[FormulaTerm, Sequence[FormulaTerm]]]:
    """The whole term; for sums and products, also each two operands with the rest."""
    yield term, ()
    if term.head in COMMUTATIVE and len(term.operands) > 2:
        places = range(len(term.operands))
        for pair in itertools.combinations(places, 2):
            chosen = [term.operands[n] for n in pair]
            rest = [term.operands[n] for n in places if n not in pair]
            yield FormulaTerm(term.head, tuple(chosen)), rest


def _match(
    part: Any,
    term: FormulaTerm,
    bound: Bound,
) -> Iterator[Bound]:
    match part:
        case Tensor():
            found = bound.get(id(part))
            if found is None or (found == NUMBER and _is_number(term)):
                yield {**bound, id(part): term}
            elif bound[id(part)] == term:
                yield bound
        case Number():
            if term.head == f"{part.value:g}":
                yield bound
        case Apply():
            yield from _match_applied(part, term, bound)


def _match_applied(part: Apply, term: FormulaTerm, bound: Bound) -> Iterator[Bound]:
    if not term.operands or not _heads(part, term.head):
        return
    named: dict[int, Any] = {id(part): term.head}
    given = dict(term.attributes)
    for name, wanted in part.attributes.items():
        match wanted:
            case Attribute():
                named[id(wanted)] = given.pop(name, None)
            case LeftOut():
                pass
            case _ if given.pop(name, None) != str(wanted):
                return
    clash = any(bound.get(key, value) != value for key, value in named.items())
    if clash or given:
        return
    for operands in _groupings(term, len(part.operands)):
        yield from _match_all(part.operands, operands, {**bound, **named})


def _heads(part: Apply, head: str) -> bool:
    if isinstance(part.operator, AnyOf):
        return head in (*part.operator.names, str(part.operator))
    return head == str(part.operator)


def _groupings(term: FormulaTerm, count: int) -> Iterator[Sequence[FormulaTerm]]:
    """The operands; those of a sum or product in two groups, in every way."""
    if term.head not in COMMUTATIVE or count != 2:
        if len(term.operands) == count:
            yield term.operands
        return
    total = len(term.operands)
    for bits in range(1, 2**total - 1):
        groups: tuple[list[FormulaTerm], list[FormulaTerm]] = ([], [])
        for n, t in enumerate(term.operands):
            groups[bits >> n & 1].append(t)
        yield [_applied(term.head, g, ()) for g in groups]


def _match_all(
    parts: Sequence[Pattern | Maybe],
    terms: Sequence[FormulaTerm],
    bound: Bound,
) -> Iterator[Bound]:
    if not parts:
        yield bound
        return
    for more in _match(parts[0], terms[0], bound):
        yield from _match_all(parts[1:], terms[1:], more)
