"""Checking the number of inputs and outputs of control-flow subgraphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from tilewright.base.errors import ModelError
from tilewright.base.text import plural
from tilewright.graph.nodes import Graph, Operation


def check_bodies(op: Operation, where: str) -> None:
    """Raise ModelError if a subgraph of If, Loop or Scan has other inputs or outputs."""
    if op.qualified not in _CHECKS:
        return
    check, form = _CHECKS[op.qualified]
    for problem in check(op):
        raise ModelError(problem, where=where, hint=f"{form}: export the model again")


def _if(op: Operation) -> Iterator[str]:
    for name in ("then_branch", "else_branch"):
        branch = op.attributes.get(name)
        if not isinstance(branch, Graph):
            yield from _missing(name)
            continue
        count = len(branch.inputs)
        yield from _expect(count, 0, "input", name)
        count = len(branch.outputs)
        wanted = len(op.outputs)
        yield from _expect(count, wanted, "output", name)


def _loop(op: Operation) -> Iterator[str]:
    body = op.attributes.get("body")
    state = len(op.inputs) - 2
    if not isinstance(body, Graph):
        yield from _missing("body")
        return
    count = len(body.inputs)
    yield from _expect(count, 2 + state, "input", "body")
    yield from _at_least(
        len(body.outputs), 1 + max(state, len(op.outputs)), "output", "body"
    )


def _scan(op: Operation) -> Iterator[str]:
    body = op.attributes.get("body")
    scanned = int(op.attributes.get("num_scan_inputs", 0))
    if not isinstance(body, Graph):
        yield from _missing("body")
        return
    operands = len(op.inputs) - (1 if op.version < 9 else 0)
    if not 1 <= scanned <= operands:
        yield f"num_scan_inputs is {scanned}, of {plural(operands, 'input')}"
    count = len(body.inputs)
    yield from _expect(count, operands, "input", "body")
    results = max(operands - scanned, len(op.outputs))
    yield from _at_least(len(body.outputs), results, "output", "body")


def _missing(name: str) -> Iterator[str]:
    yield f"attribute {name!r} is missing"


def _expect(count: int, wanted: int, what: str, of: str) -> Iterator[str]:
    if count != wanted:
        yield f"expected {plural(wanted, what)} of {of}, got {count}"


def _at_least(count: int, wanted: int, what: str, of: str) -> Iterator[str]:
    if count < wanted:
        yield f"expected at least {plural(wanted, what)} of {of}, got {count}"


# By operator: the error in its subgraphs, and their required form.
_CHECKS: Mapping[str, tuple[Callable[[Operation], Iterator[str]], str]] = {
    "If": (
        _if,
        "both branches of an If take no inputs and have as many outputs as the If",
    ),
    "Loop": (
        _loop,
        "the body of a Loop takes the iteration, a condition and the state, and returns the "
        "condition, the state and the scan outputs",
    ),
    "Scan": (
        _scan,
        "the body of a Scan takes the state and a slice of each scanned input, and returns the "
        "state and the scan outputs",
    ),
}
