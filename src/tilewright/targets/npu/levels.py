"""The three stages of a derivation, each applied exhaustively.

1. To operators. Expressions are recognized as operators of any size, as they are written or taken
   apart first.
2. To the machine's sizes, by the choices that were made for each operator.
3. To its memories. The results of the program to `output`, the others to `chip` as long as they
   fit, or to `dram`.

All of it is one derivation: rules applied at places, recorded, replayable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from tilewright.ir.node import postorder
from tilewright.ir.strategy import Strategy
from tilewright.lift.derive import Derivation
from tilewright.lift.lambdas import opened
from tilewright.lift.nodes import (
    AnyMap,
    AnyReduce,
    Apply,
    DeviceOp,
    Lambda,
    Literal,
    Part,
    Reduce,
    ScalarFun,
)
from tilewright.lift.sites import Path, root_site, site, walk
from tilewright.lift.strategies import (
    Focus,
    normalize,
    otherwise,
    rule,
    run,
    then,
    top_down,
    try_all,
)
from tilewright.targets.npu.errors import NPUError
from tilewright.targets.npu.machine import BINARY, REDUCTIONS, UNARY
from tilewright.targets.npu.operator import operator_of
from tilewright.targets.npu.sizes import Choices, SizedRule

MATRICES = ("MMMul", "MVMul", "MVAdd", "MMAdd")
VECTORS = (*REDUCTIONS, *BINARY, *UNARY)
SPREAD = tuple(f"spread-{name}{side}" for name in BINARY for side in ("", "-left"))
SIMPLER = (
    "map-identity", "map-join", "map-join-one", "zip-first", "zip-second", "zip-flatten-left",
    "zip-drop-first", "zip-drop-second", "zip-drop-third", "zip-map-left", "zip-map-right",
)  # fmt: skip
TIDY = (
    "take-all", "drop-none", "pad-none", "pad-none-in-rows", "pad-no-rows",
    "take-concat", "drop-concat", "take-in-first", "drop-in-first",
    "take-into-second", "drop-into-second", "join-cancel", "split-cancel",
)  # fmt: skip
SPACES = (
    "to-output-1",
    "to-output-2",
    "to-chip-1",
    "to-chip-2",
    "to-dram-1",
    "to-dram-2",
)


# -- level 1

_Step = Callable[[Focus], Focus | None]


def to_operators(derivation: Derivation) -> list[Derivation]:
    """Every scalar function in an operator, in one or two ways.

    Recognized as it is written, or after what follows a reduction in the function of a map was
    taken out of it, which is how a fused layer becomes a product, an addition and an activation.
    Raises NPUError naming a function that neither brings to an operator.
    """
    ways = (derivation, run(_APART, derivation))
    found = {
        done.program: done
        for way in ways
        for done in [run(_VECTORS, run(_MATRICES, way))]
    }
    left = {program: _scalars(done) for program, done in found.items()}
    if all(left.values()):
        function = next(iter(left.values()))[0]
        raise NPUError(
            f"no rule brings {function!r} to an operator",
            where="npu.map_onto",
            hint="write it with functions that the machine's operators compute",
        )
    return [done for program, done in found.items() if not left[program]]


def _either(*names: str) -> _Step:
    """The first of these rules that applies, here."""

    def apply(focus: Focus) -> Focus | None:
        if not focus.place.is_place:
            return None
        for name in names:
            after = focus.derivation.attempt(focus.place, name, {})
            if after is not None:
                return focus.moved(after)
        return None

    return apply


_REDUCE_INIT: _Step = rule("reduce-init")


def _start_out(focus: Focus) -> Focus | None:
    """A reduction that starts with its own value: that is combined at the end."""
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
        if ends and any(
            isinstance(part, AnyReduce) for part in postorder(body.children()[1])
        ):
            return step(focus)
        return None

    return apply


_RECOGNIZE = tuple(f"recognize-{name}" for name in MATRICES)
_MATRICES = normalize(
    otherwise(
        _either(*_RECOGNIZE),
        # The row and the vector the other way round.
        then(top_down(rule("zip-commute")), rule("recognize-MVMul")),
    )
)
_VECTORS = normalize(_either(*(f"recognize-{name}" for name in VECTORS), *SPREAD))
_APART = then(
    try_all(_start_out),
    normalize(
        otherwise(
            _either(*SIMPLER),
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


def in_sizes(derivation: Derivation, choices: Choices) -> Derivation:
    """Every operator one of the machine's, by a choice for each."""
    derivation = run(normalize(_TIDY), derivation)
    while (found := _next(derivation.program, choices)) is not None:
        path, choice = found
        place = site(derivation.program, path)
        derivation = derivation.at(place, choice.rule, dict(choice.sizes))
        derivation = _tidied(derivation, path)
    return derivation


def _next(program: Lambda, choices: Choices) -> tuple[Path, SizedRule] | None:
    """The inmost operator that is not the machine's, and the rule for it."""
    for path, op in reversed(list(_operators(program, ()))):
        choice = choices[operator_of(op)]
        if choice is not None:
            return path, choice
    return None


def _operators(node: Part, path: Path) -> Iterator[tuple[Path, DeviceOp]]:
    """The places of operators: where one is applied, or handed to a pattern."""
    if isinstance(node, DeviceOp):
        yield path, node
        return
    below = list(enumerate(node.children()))
    if isinstance(node, Apply) and isinstance(node.fun, DeviceOp):
        yield path, node.fun
        below = below[1:]
    for n, part in below:
        if isinstance(part, Part):
            yield from _operators(part, (*path, n))


_TIDY = _either(*TIDY)


def _tidied(derivation: Derivation, changed: Path) -> Derivation:
    """A program tidied again that was tidy before the part at a path changed.

    As by `normalize`, which would look for places in all of it: rules can only apply in that part
    and around it, and where one of them changes more, in and around that.
    """
    while (after := _tidied_once(derivation, changed)) is not None:
        derivation, at = after
        changed = min(changed, at, key=len)
    return derivation


def _tidied_once(
    derivation: Derivation, changed: Path
) -> tuple[Derivation, Path] | None:
    around = [root_site(derivation.program)]
    for n in changed:
        around.append(around[-1].child(n))
    for place in chain(around[:-1], walk(around[-1])):
        after = _TIDY(Focus(derivation, place))
        if after is not None:
            return after.derivation, place.path
    return None


# -- level 3


def in_memories(derivation: Derivation) -> Derivation:
    """Every result of an operator in a memory."""
    return run(try_all(_either(*SPACES)), derivation)
