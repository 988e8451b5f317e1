"""Whether the subgraphs of control flow take and give as many values as their operator says."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.base.errors import ModelError
from tilewright.graph.nodes import Graph, Operation


def check_bodies(op: Operation, where: str) -> None:
    """Raise ModelError for a subgraph of If, Loop or Scan with other inputs or outputs."""
    check = _CHECKS.get(op.qualified)
    if check is not None:
        check(op, where)


def _body(op: Operation, name: str, where: str) -> Graph:
    found = op.attributes.get(name)
    if not isinstance(found, Graph):
        raise ModelError(f"attribute {name!r} is missing", where=where)
    return found


def _if(op: Operation, where: str) -> None:
    for name in ("then_branch", "else_branch"):
        branch = _body(op, name, where)
        _expect(len(branch.inputs), 0, f"inputs of {name}", where)
        _expect(len(branch.outputs), len(op.outputs), f"outputs of {name}", where)


def _loop(op: Operation, where: str) -> None:
    """The body gets the iteration, a condition and the state; it gives both latter, and scans."""
    body, state = _body(op, "body", where), len(op.inputs) - 2
    _expect(len(body.inputs), 2 + state, "inputs of body", where)
    _at_least(len(body.outputs), 1 + max(state, len(op.outputs)), "outputs of body", where)


def _scan(op: Operation, where: str) -> None:
    """The body gets the state and a slice of each scanned input; it gives the state, and scans."""
    body, scanned = _body(op, "body", where), int(op.attributes.get("num_scan_inputs", 0))
    operands = len(op.inputs) - (1 if op.version < 9 else 0)
    if not 1 <= scanned <= operands:
        raise ModelError(f"num_scan_inputs is {scanned}, of {operands} inputs", where=where)
    _expect(len(body.inputs), operands, "inputs of body", where)
    _at_least(len(body.outputs), max(operands - scanned, len(op.outputs)), "outputs of body", where)


def _expect(count: int, wanted: int, what: str, where: str) -> None:
    if count != wanted:
        raise ModelError(f"expected {wanted} {what}, got {count}", where=where)


def _at_least(count: int, wanted: int, what: str, where: str) -> None:
    if count < wanted:
        raise ModelError(f"expected at least {wanted} {what}, got {count}", where=where)


_CHECKS: Mapping[str, Callable[[Operation, str], None]] = {"If": _if, "Loop": _loop, "Scan": _scan}
