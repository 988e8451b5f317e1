"""Questions under bounds that stay: each is answered once, as if it were the only one."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.expr import bounds as asked
from tilewright.expr.bounds import MAX_CASES, Remembering, bounds
from tilewright.expr.nodes import INDEX, Expr, Lt, Select, Var, const
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


@pytest.mark.parametrize("count", [3, MAX_CASES // 2, MAX_CASES + 8])
@pytest.mark.parametrize("first", ["the whole", "the parts"])
def test_answers_do_not_depend_on_what_was_asked_before(count: int, first: str) -> None:
    nodes = [n for n in postorder(nested(count)) if isinstance(n, Expr)]
    if first == "the whole":
        nodes.reverse()
    env = Remembering(ENV)
    for e in nodes:
        assert bounds(e, env) == bounds(e, ENV)


@pytest.mark.parametrize("count", [16, 32, 64])
def test_nodes_are_asked_about_a_few_times(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once more for each select around them, or for each question about one of these."""
    asked_about = 0
    find = asked._bounds

    def counted(e: Expr, env: Any) -> Any:
        nonlocal asked_about
        asked_about += 1
        return find(e, env)

    monkeypatch.setattr(asked, "_bounds", counted)
    e = nested(count)
    simplify(e, {**ENV, Var(f"other{count}", INDEX): (0, 1)})  # not remembered
    assert asked_about < 40 * sum(1 for _ in postorder(e))
