"""Checks of a captured graph, which PyTorch makes on results that the graph returns for them.

`linalg.inv` is an operator that also returns which pivots are zero, and a check of these, which
raises an error. PyTorch orders these checks by tokens: each takes one and returns another. An
assertion about a tensor is a node without tokens and results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tilewright.frontends.torch.aten.rules import name_of

# A function of a result that raises an error.
Check = Callable[[Any], None]

_EFFECT: Final = "torch.ops.higher_order.with_effects"
_CHECK: Final = "aten._linalg_check_errors.default"
_ASSERTION: Final = "aten._assert_async.msg"  # PyTorch drops those without a message
_FIRST_TOKEN: Final = "prims._make_token.default"
_TOKENS: Final = (_FIRST_TOKEN, "prims._sink_tokens.default")


def checks_last(module: Any) -> tuple[Any, Sequence[Check]]:
    """A graph without checks whose last results are what they check, and the checks.

    A graph that checks nothing is unchanged.
    """
    import torch

    found = [n for n in module.graph.nodes if _is_check(n)]
    if not found:
        return module, ()
    graph = torch.fx.Graph()
    copies: dict[Any, Any] = {}
    results = graph.graph_copy(module.graph, copies)
    checks = []
    checked = []
    for node in found:
        given, check = _check_of(node)
        checks.append(check)
        checked.append(copies[given])
        if _is_assertion(node):
            graph.erase_node(copies[node])
        else:
            _remove(graph, copies[node])
    backward = reversed(list(graph.nodes))
    for node in backward:
        name = name_of(node.target)
        if name in _TOKENS and not node.users:
            graph.erase_node(node)
    graph.output((*results, *checked))
    return torch.fx.GraphModule(module, graph), checks


def passed(checks: Sequence[Check], results: Sequence[Any]) -> tuple[Any, ...]:
    """The results of the original graph, after the checks of the last ones."""
    count = len(results) - len(checks)
    for check, held in zip(checks, results[count:], strict=True):
        check(held)
    return tuple(results[:count])


def token_count(module: Any) -> int:
    """The number of tokens that the graph makes, which were inputs in front of the others."""
    nodes = module.graph.nodes
    names = [name_of(n.target) for n in nodes]
    return names.count(_FIRST_TOKEN)


def _is_assertion(node: Any) -> bool:
    return node.op == "call_function" and name_of(node.target) == _ASSERTION


def _is_check(node: Any) -> bool:
    if _is_assertion(node):
        return True
    effect = node.op == "call_function" and name_of(node.target) == _EFFECT
    return effect and name_of(node.args[1]) == _CHECK


def _check_of(node: Any) -> tuple[Any, Check]:
    """The node that is checked, and the check."""
    if _is_assertion(node):
        check = node.target
        given, *others = node.args
    else:
        _, check, given, *others = node.args
    named = dict(node.kwargs)

    def made(held: Any) -> None:
        check(held, *others, **named)

    return given, made


def _remove(graph: Any, node: Any) -> None:
    """Erase a check, giving on the token that it took."""
    given = node.args[0]
    tokens = list(node.users)
    for token in tokens:
        token.replace_all_uses_with(given)
        graph.erase_node(token)
    graph.erase_node(node)
