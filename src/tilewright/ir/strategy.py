"""Strategies: where and how often to rewrite, as composable functions.

A strategy takes a node and returns its replacement, or None if it does not apply. A rule set's
`at_root` is the simplest one. The language is that of Elevate (Hagedorn et al., ICFP 2020).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.ir.node import Node, postorder, substitute
from tilewright.ir.rewrite import GENERATIONS, RewriteLoopError

Strategy = Callable[[Any], Any]


def then(*strategies: Strategy) -> Strategy:
    """Strategies in sequence; None as soon as one does not apply."""

    def apply(node: Any) -> Any:
        for strategy in strategies:
            node = strategy(node)
            if node is None:
                return None
        return node

    return apply


def otherwise(*strategies: Strategy) -> Strategy:
    """The first that applies."""

    def apply(node: Any) -> Any:
        for strategy in strategies:
            result = strategy(node)
            if result is not None:
                return result
        return None

    return apply


def attempt(strategy: Strategy) -> Strategy:
    """The strategy, or the node unchanged; always applies."""
    return otherwise(strategy, lambda node: node)


def repeat(strategy: Strategy, limit: int = GENERATIONS) -> Strategy:
    """Repeat a strategy until it does not apply; always applies.

    Raises RewriteLoopError after `limit` times.
    """

    def apply(node: Any) -> Any:
        for _ in range(limit):
            result = strategy(node)
            if result is None or result is node:
                return node
            node = result
        raise RewriteLoopError(
            f"a strategy was repeated {limit} times and still applies",
            where=repr(node)[:200],
        )

    return apply


def at_children(strategy: Strategy) -> Strategy:
    """Apply a strategy at every direct child where it applies; None if it applies at none."""

    def apply(node: Node) -> Any:
        result = node.map(attempt(strategy))
        return None if result is node else result

    return apply


def everywhere(strategy: Strategy) -> Strategy:
    """Once at every distinct node, children first; None if it applies nowhere. No recursion."""

    def apply(root: Any) -> Any:
        done: dict[Node, Any] = {}
        for node in postorder(root):
            new = node.map(done.__getitem__)
            result = strategy(new)
            done[node] = new if result is None else result
        return None if done[root] is root else done[root]

    return apply


def somewhere(strategy: Strategy) -> Strategy:
    """Apply a strategy at the first distinct node, children first, where it applies; None if there
    is none.

    Interned nodes: a node that occurs several times is one place.
    """

    def apply(root: Any) -> Any:
        for node in postorder(root):
            result = strategy(node)
            if result is not None:
                return substitute(root, {node: result})
        return None

    return apply
