"""Mapping a program onto an accelerator by search.

Three stages, each with its own rules: the program is brought to operators, the operators to the
sizes that the machine has, the results to its memories. After every move a few rules that only
make programs simpler are run.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.lift.cost import Cycles
from tilewright.lift.derive import Derivation, derive
from tilewright.lift.device import operators
from tilewright.lift.nodes import Lambda
from tilewright.lift.rules import RULES
from tilewright.lift.rules.device import Accelerator, rules
from tilewright.lift.search import Cost, DerivationResult, RuleMove, move, search
from tilewright.lift.strategies import normalize, otherwise, rule, run

SIMPLER = (
    "map-identity",
    "map-join",
    "map-join-one",
    "zip-first",
    "zip-second",
    "zip-flatten-left",
    "zip-drop-first",
    "zip-drop-second",
    "zip-drop-third",
    "join-cancel",
    "split-cancel",
    "chain",
    "zip-map-left",
    "zip-map-right",
)
ALGEBRA = ("zip-commute", "reduce-init", "map-fission", "map-fission-capture")


def accelerate(
    program: Lambda, machine: Accelerator, cost: Cost | None = None
) -> DerivationResult:
    """The cheapest mapping that is found; its derivation names each rule.

    cost: of a program; `Cycles` of the machine by default. Raises InputError for a program that is
    ill-typed or whose lengths are not numbers.
    """
    cost = Cycles(machine.has) if cost is None else cost
    simplify = normalize(otherwise(*(rule(name) for name in SIMPLER)))
    derivation: Derivation = derive(program, {**RULES, **rules(machine)})
    seen = 0
    for moves, width, depth in _stages(machine):
        found = search(derivation, moves, cost, width=width, depth=depth, tidy=simplify)
        derivation = found.derivation
        seen += found.seen
    derivation = run(normalize(rule("issue")), derivation)
    return DerivationResult(derivation, cost(derivation.program), seen)


def _stages(machine: Accelerator) -> Iterator[tuple[list[RuleMove], int, int]]:
    """Moves, width and depth of each stage."""
    vectors = [name for name in operators(machine.dtype) if name.startswith("VV")]
    recognize = [move(f"recognize-{name}") for name in ("MVMul", *vectors)]
    yield [*map(move, ALGEBRA), *recognize], 16, 8
    tiles = [move(f"tile-{name}", p=machine.vector) for name in vectors]
    tiles.append(move("tile-MVMul-rows", p=machine.rows))
    tiles.append(move("tile-MVMul-columns", q=machine.columns))
    yield tiles, 4, 6
    spaces = ("to-chip-1", "to-chip-2", "to-chip-reduce", "to-output-1", "to-output-2")
    yield [move(name) for name in spaces], 4, 6
