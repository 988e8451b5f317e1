"""The multiples that extents are, from PyTorch's guards and its derived dimensions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tilewright.frontends.torch.multiples import multiples, says_multiple

sympy = pytest.importorskip("sympy")
N, M = sympy.Symbol("n"), sympy.Symbol("m")


def program(*guards: str, extents: tuple[Any, ...] = ()) -> Any:
    """One of `x` of [n, 4], and of `Y["k"][1]` of [m]."""
    shapes = {"x": (N, 4), "y_k_1": (M,)}
    nodes = [
        SimpleNamespace(
            name=name, op="placeholder", meta={"val": SimpleNamespace(shape=shape)}
        )
        for name, shape in shapes.items()
    ]
    graph = SimpleNamespace(nodes=nodes)
    bounds = dict.fromkeys(extents)
    return SimpleNamespace(_guards_code=guards, graph=graph, range_constraints=bounds)


@pytest.mark.parametrize(
    ("guards", "found"),
    [
        (["(L['x'].size()[0] % 3) == 0"], {"n": 3}),
        (["((3*L['x'].size()[0]) % 6) <= 0"], {"n": 2}),  # 3 divides it anyway
        (["((4*L['x'].size()[0]) % 6) == 0"], {"n": 3}),
        (["(L['x'].size()[0] % 4) == 0", "(L['x'].size()[0] % 6) == 0"], {"n": 12}),
        (["(L['Y']['k'][1].size()[0] % 5) == 0"], {"m": 5}),
        (["(L['x'].size()[2] % 3) == 0"], {}),  # no such axis
        (["(L['z'].size()[0] % 3) == 0"], {}),  # no such input
    ],
)
def test_guards(guards: list[str], found: dict[str, int]) -> None:
    assert all(map(says_multiple, guards))
    assert multiples(program(*guards)) == found


@pytest.mark.parametrize(
    "guard",
    [
        "L['x'].size()[0] != 6",
        "(L['x'].size()[0] % 2) != 0",
        "((1 + L['x'].size()[0]) % 2) == 0",
        "(L['x'].size()[0] % 3) == 0 and exit()",
        "(L['x y'].size()[0] % 3) == 0",
    ],
)
def test_guards_of_another_form_are_none(guard: str) -> None:
    assert not says_multiple(guard)
    assert multiples(program(guard)) == {}


def test_derived_dimensions() -> None:
    made = multiples(program(extents=(N, 2 * N, 3 * M + 1)))
    assert made == {"2*n": 2}
