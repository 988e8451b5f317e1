"""The table itself: what an expansion may contain, and that it covers what has no instruction."""

from __future__ import annotations

import pytest

from tilewright.base import dtypes
from tilewright.expr import nodes
from tilewright.expr.functions import FUNCTIONS
from tilewright.expr.nodes import Call, var
from tilewright.ir.node import postorder
from tilewright.targets.llvm.expansions import expansion as expanded
from tilewright.targets.llvm.math import AVX512, EXPANSIONS, MAX_ULP

ARITHMETIC = (nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.Neg)
BITS = (nodes.And, nodes.Or, nodes.Xor, nodes.Not, nodes.Shl, nodes.Shr, nodes.Bitcast)
OTHER = (nodes.Compare, nodes.Select, nodes.Cast, nodes.Const, nodes.Var)
INSTRUCTIONS = {"fma", "sqrt", "floor", "round_even", "abs", "copysign"}


@pytest.mark.parametrize(("function", "dtype"), sorted(EXPANSIONS))
def test_only_instructions(function: str, dtype: str) -> None:
    of = getattr(dtypes, dtype)
    arguments = [var(f"x{n}", of) for n in range(FUNCTIONS[function].arity)]
    expansion = EXPANSIONS[function, dtype](*arguments)
    assert expansion.dtype is of
    for node in postorder(expansion):
        if isinstance(node, Call):
            assert node.function in INSTRUCTIONS
        else:
            assert isinstance(node, (*ARITHMETIC, *BITS, *OTHER)), node


@pytest.mark.parametrize(
    ("function", "most", "avx512"),
    [
        ("exp", 18, False),
        ("exp", 14, True),
        ("tanh", 19, False),
        ("sigmoid", 20, False),
        ("erf", 27, False),
        ("erf", 19, True),
        ("log", 31, False),
    ],
)
def test_size_of_hot_functions(function: str, most: int, avx512: bool) -> None:
    """Operations that become instructions: these run in the inner loops of transformers."""
    free = (nodes.Const, nodes.Var, nodes.Bitcast)
    rewrite = expanded(function, "float32", avx512)
    assert rewrite is not None
    expansion = rewrite(var("x", dtypes.float32))
    assert sum(not isinstance(n, free) for n in postorder(expansion)) <= most


def test_every_error_is_stated() -> None:
    assert AVX512.keys() <= EXPANSIONS.keys()
    assert MAX_ULP.keys() == EXPANSIONS.keys()
    hot = ("exp", "log", "tanh", "sigmoid", "erf", "sin", "cos")
    assert all(MAX_ULP[f, "float32"] <= 2 for f in hot)
