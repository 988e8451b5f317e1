"""Questions under bounds that stay: each is answered once, as if it were the only one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tilewright.expr import bounds as asked
from tilewright.expr.bounds import MAX_CASES, CachedEnvironment, bounds
from tilewright.expr.nodes import (
    INDEX,
    Expr,
    FloorDiv,
    Lt,
    Min,
    Mod,
    Select,
    Var,
    const,
)
from tilewright.expr.simplify import simplify
from tilewright.ir.node import postorder

X, Y = Var("x", INDEX), Var("y", INDEX)
ENV = {X: (0, 100), Y: (0, 50)}


def nested(count: int) -> Expr:
    """Selects in one another, each between divisions."""
    e: Expr = X % 7
    for k in range(count):
        e = Select(Lt(X, const(k + 1)), (Y * k + 1) // 3, (e + Y) // 2)
    return e


@pytest.mark.representatives("the whole-16", "the parts-16")
@pytest.mark.parametrize("count", [3, MAX_CASES // 2, MAX_CASES + 8])
@pytest.mark.parametrize("first", ["the whole", "the parts"])
def test_answers_do_not_depend_on_what_was_asked_before(count: int, first: str) -> None:
    nodes = [n for n in postorder(nested(count)) if isinstance(n, Expr)]
    if first == "the whole":
        nodes.reverse()
    env = CachedEnvironment(ENV)
    for e in nodes:
        assert bounds(e, env) == bounds(e, ENV)


def chosen_by_itself(count: int) -> Expr:
    """Selects whose conditions and arms are the selects below them."""
    e: Expr = X
    for k in range(count):
        e = Select(Lt(Mod(e, const(7 + k)), const(3)), FloorDiv(e + Y, const(2)), e)
    return e


# How often one node may be asked about, in the mean.
MOST = {nested: 40, chosen_by_itself: 500}
DEEP = {
    "quotients": lambda e, k: FloorDiv(e + X, const(2)),
    "arms": lambda e, k: Select(Lt(X, const(k)), e, X),
    "conditions": lambda e, k: Select(Lt(e, const(k)), X, Y),
    "extremes": lambda e, k: Min(e, const(k)) * const(2) // 2,
}


@pytest.mark.parametrize("kind", DEEP)
def test_any_depth_has_bounds(kind: str) -> None:
    e: Expr = X
    for k in range(2000):
        e = DEEP[kind](e, k)
    lo, hi = bounds(e, ENV)
    assert lo is not None and lo <= 0
    assert hi is not None and hi >= 0


def test_a_term_of_few_nodes_is_told_apart_within_one_of_many() -> None:
    """`x if x < 10 else 9` is below 10, also as the deepest of 500 quotients."""
    e: Expr = Select(Lt(X, const(10)), X, const(9))
    assert bounds(e, ENV) == (0, 9)
    for _ in range(500):
        e = FloorDiv(e + 9, const(2))
    assert bounds(e, ENV) == (8, 9)


@pytest.mark.parametrize(
    ("build", "count"), [(nested, 16), (nested, 64), (chosen_by_itself, 64)]
)
def test_nodes_are_asked_about_a_few_times(
    build: Callable[[int], Expr], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once more for each select around them, or for each question about one of these."""
    asked_about = 0
    find = asked._bounds

    def counted(e: Expr, env: Any) -> Any:
        nonlocal asked_about
        asked_about += 1
        return find(e, env)

    monkeypatch.setattr(asked, "_bounds", counted)
    e = build(count)
    simplify(e, {**ENV, Var(f"other{count}", INDEX): (0, 1)})  # not remembered
    assert asked_about < MOST[build] * sum(1 for _ in postorder(e))
