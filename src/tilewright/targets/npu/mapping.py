"""A Lift program onto a machine: three levels of rules, each taken as far as it goes.

1. To operators. Expressions are recognised as operators of any size, as they are written or taken
   apart first, whichever is cheaper.
2. To the machine's sizes. Each operator by the cheapest of all derivations (`sizes`).
3. To its memories. The results of the program to `output`, the others to `chip` as long as they
   fit, or to `dram`.

All of it is one derivation: rules applied at places, recorded, replayable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tilewright.ir.node import postorder
from tilewright.ir.strategy import Strategy
from tilewright.notation.lift.derive import Derivation, derive, places
from tilewright.notation.lift.lambdas import opened
from tilewright.notation.lift.nodes import (
    AnyMap,
    AnyReduce,
    Apply,
    DeviceOp,
    Lambda,
    Literal,
    Reduce,
    ScalarFun,
)
from tilewright.notation.lift.sites import Site, root_site, walk
from tilewright.notation.lift.strategies import (
    Focus,
    normalize,
    otherwise,
    rule,
    run,
    then,
    top_down,
    try_all,
)
from tilewright.targets.npu.codegen import generate
from tilewright.targets.npu.errors import NPUError
from tilewright.targets.npu.evaluate import evaluate
from tilewright.targets.npu.isa import Program
from tilewright.targets.npu.machine import BINARY, REDUCTIONS, UNARY, Machine
from tilewright.targets.npu.price import Price, operator_of
from tilewright.targets.npu.rules import rules
from tilewright.targets.npu.sizes import Key, Sizes
from tilewright.targets.npu.timing import Timing, time

MATRICES = ("MMMul", "MVMul", "MVAdd", "MMAdd")
VECTORS = (*REDUCTIONS, *BINARY, *UNARY)
SPREAD = tuple(f"spread-{name}{side}" for name in BINARY for side in ("", "-left"))
SIMPLER = (
    "map-identity", "map-join", "map-join-one", "zip-first", "zip-second", "zip-flatten-left",
    "zip-drop-first", "zip-drop-second", "zip-drop-third", "zip-map-left", "zip-map-right",
)  # fmt: skip
TIDY = (
    "take-all", "drop-none", "take-concat", "drop-concat", "take-in-first", "drop-in-first",
    "take-into-second", "drop-into-second", "join-cancel", "split-cancel",
    *(f"unpad-{name}" for name in UNARY), *(f"unpad-{name}-{i}" for name in BINARY for i in (1, 2)),
)  # fmt: skip
SPACES = ("to-output-1", "to-output-2", "to-chip-1", "to-chip-2", "to-dram-1", "to-dram-2")


@dataclass(frozen=True, slots=True)
class Mapped:
    """A program on a machine: how it got there, its instructions, what they take."""

    derivation: Derivation
    program: Program
    timing: Timing

    @property
    def summary(self) -> str:
        """The operators that the derivation ends in: `4 MVMul64 2 VVAdd128 ...`."""
        found = Counter(task.title for task in evaluate(self.derivation.program).tasks)
        return ", ".join(f"{count} {name}" for name, count in found.items())


def map_onto(program: Lambda, machine: Machine, sizes: Sizes | None = None) -> Mapped:
    """The cheapest mapping that is found.

    sizes: the choices of operator sizes; the cheapest by default. Raises NPUError for what no rule
    brings to an operator of the machine, and for programs whose operands alone do not fit;
    InputError for ill-typed programs.
    """
    sizes = Sizes(machine) if sizes is None else sizes
    # Operands of the operators at work need registers too, and results may lie between others.
    chip = machine.elements("vrf") * 4
    while True:
        derivation = derive(program, rules(machine, chip))
        mapped = in_memories(in_sizes(to_operators(derivation, Price(sizes)), sizes))
        try:
            code = generate(mapped.program, machine)
        except NPUError as error:
            if error.code != "TW-NPU-CAPACITY" or chip == 0:
                raise
            chip = chip // 2 if chip > 64 else 0
            continue
        return Mapped(mapped, code, time(code, machine))


# -- level 1

_Step = Callable[[Focus], Focus | None]


def to_operators(derivation: Derivation, price: Price) -> Derivation:
    """Every scalar function in an operator: the cheaper of two ways.

    Recognised as it is written, or after what follows a reduction in the function of a map was
    taken out of it, which is how a fused layer becomes a product, an addition and an activation.
    Raises NPUError naming a function that neither brings to an operator.
    """
    found = []
    for prepared in (derivation, run(_APART, derivation)):
        done = run(_VECTORS, run(_MATRICES, prepared))
        found.append((price(done.program), done))
    _, done = min(found, key=lambda pair: pair[0])
    left = _scalars(done)
    if left:
        raise NPUError(
            f"no rule brings {left[0]!r} to an operator",
            where="npu.map_onto",
            hint="write it with functions that the machine's operators compute",
        )
    return done


def _first(*names: str) -> Strategy:
    return normalize(otherwise(*(rule(name) for name in names)))


_REDUCE_INIT: _Step = rule("reduce-init")


def _start_out(focus: Focus) -> Focus | None:
    """A reduction that starts with a value of its own: that is combined at the end."""
    node = focus.place.opened.node
    if isinstance(node, Apply) and isinstance(node.fun, Reduce):
        if not isinstance(node.fun.init, Literal):
            return _REDUCE_INIT(focus)
    return None


def _after_reduction(name: str) -> Strategy:
    """The rule at maps whose function ends in a map over what it has reduced."""
    step: _Step = rule(name)

    def apply(focus: Focus) -> Focus | None:
        node = focus.place.opened.node
        if not (isinstance(node, Apply) and isinstance(node.fun, AnyMap)):
            return None
        _, body = opened(node.fun.f)
        ends = isinstance(body, Apply) and isinstance(body.fun, AnyMap)
        if ends and any(isinstance(part, AnyReduce) for part in postorder(body.children()[1])):
            return step(focus)
        return None

    return apply


_RECOGNISE = tuple(f"recognise-{name}" for name in MATRICES)
_MATRICES = normalize(
    otherwise(
        *(rule(name) for name in _RECOGNISE),
        # The row and the vector the other way round.
        then(top_down(rule("zip-commute")), rule("recognise-MVMul")),
    )
)
_VECTORS = _first(*(f"recognise-{name}" for name in VECTORS), *SPREAD)
_APART = then(
    try_all(_start_out),
    normalize(
        otherwise(
            *(rule(name) for name in SIMPLER),
            *map(_after_reduction, ("map-fission", "map-fission-capture")),
        )
    ),
)


def _scalars(derivation: Derivation) -> list[ScalarFun]:
    """Scalar functions that are in no operator."""
    sites = walk(root_site(derivation.program))
    return [
        at.node
        for at in sites
        if isinstance(at.node, ScalarFun)
        and not any(isinstance(part, DeviceOp) for part in at.above)
    ]


# -- level 2


def in_sizes(derivation: Derivation, sizes: Sizes) -> Derivation:
    """Every operator one of the machine's. Raises NPUError for one that cannot be made so."""
    tidy = _first(*TIDY)
    while (found := _next(derivation, sizes)) is not None:
        place, name, parameters = found
        derivation = run(tidy, derivation.at(place, name, parameters))
    return derivation


def _next(derivation: Derivation, sizes: Sizes) -> tuple[Site, str, dict[str, int]] | None:
    """The inmost operator that is not the machine's, and the rule for it."""
    for place in reversed(list(places(derivation.program))):
        key = operator_at(place)
        if key is None:
            continue
        best = sizes.best(*key)
        if best.cost == float("inf"):
            raise NPUError(
                f"{sizes.machine.name} has no operators for {key[0]}{key[1]}",
                where="npu.map_onto",
                hint="describe one, or write the program with others",
            )
        if best.choice is not None:
            return place, best.choice.rule, dict(best.choice.sizes)
    return None


def operator_at(place: Site) -> Key | None:
    """Name and sizes of the operator that is applied at a place."""
    node = place.opened.node
    if isinstance(node, Apply) and isinstance(node.fun, DeviceOp):
        return operator_of(node.fun)
    return None


# -- level 3


def in_memories(derivation: Derivation) -> Derivation:
    """Every result of an operator in a memory."""
    return run(try_all(otherwise(*(rule(name) for name in SPACES))), derivation)
