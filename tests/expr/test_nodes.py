"""The grammar at the top of expr/nodes.py is the grammar of the classes."""

import re

import pytest

from tilewright.base.dtypes import bool_, float32, int32
from tilewright.base.errors import InputError
from tilewright.expr import nodes
from tilewright.expr.nodes import Binary, Compare, Expr
from tilewright.expr.patterns import Hole


def grammar() -> dict[str, tuple[str, ...]]:
    text = nodes.__doc__
    found: dict[str, tuple[str, ...]] = {}
    block = text[text.index("Expr = ") + 7 : text.index("Meaning")]
    for line in block.strip().splitlines():
        fields = re.findall(r"(\w*)\(([^)]*)\)", line)
        shared = next((f for name, f in fields if not name), "")
        own = {name: f for name, f in fields if name}
        for name in re.findall(r"[A-Z]\w+", re.sub(r"\([^)]*\)", "", line)):
            found[name] = tuple((own.get(name) or shared or "").split(", "))
    return found


def classes(kind: type) -> set[type]:
    return {kind} | {c for sub in kind.__subclasses__() for c in classes(sub)}


def test_the_docstring_lists_every_class_with_its_fields():
    abstract = {Expr, Binary, Compare, nodes.Bitwise, nodes.Shift, Hole}
    ours = {
        c.__name__: tuple(c._fields)
        for c in classes(Expr) - abstract
        if c.__module__ == nodes.__name__
    }
    assert grammar() == ours


def test_operators_build_the_nodes_they_look_like():
    i, j = nodes.var("i"), nodes.var("j")
    built = [
        i + j,
        i - j,
        i * j,
        i / j,
        i // j,
        i % j,
        i < j,
        i <= j,
        i & j,
        i | j,
        i ^ j,
    ]
    built += [i << j, i >> j]
    names = "Add Sub Mul Div FloorDiv Mod Lt Le And Or Xor Shl Shr".split()
    assert [type(e).__name__ for e in built] == names
    assert (i > j) is (j < i)
    assert (i >= j) is (j <= i)
    assert (1 + i) is nodes.Add(nodes.const(1), i)
    assert (2 - i) is nodes.Sub(nodes.const(2), i)
    turned = [2 // i, 2 % i, 2 & i, 2 | i, 2 ^ i, 2 << i, 2 >> i]
    kinds = (
        nodes.FloorDiv,
        nodes.Mod,
        nodes.And,
        nodes.Or,
        nodes.Xor,
        nodes.Shl,
        nodes.Shr,
    )
    assert turned == [kind(nodes.const(2), i) for kind in kinds]


@pytest.mark.parametrize(
    "build",
    [
        lambda x: x & x,
        lambda x: x | 1,
        lambda x: ~x,
        lambda x: x << 1,
        lambda x: x >> 1,
    ],
    ids=["and", "or", "not", "shl", "shr"],
)
def test_bits_of_a_float_are_refused(build):
    with pytest.raises(TypeError, match=r"is for integers.* not float32; cast it"):
        build(nodes.var("x", float32))


def test_a_truth_value_is_not_shifted():
    p = nodes.var("p", bool_)
    with pytest.raises(TypeError, match="Shl is for integers, not bool"):
        _ = p << True


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(0.5, int32), (float("inf"), int32), ("i", int32), (None, float32), (1j, float32)],
    ids=repr,
)
def test_a_constant_is_a_number_of_its_dtype(value, dtype):
    with pytest.raises(
        InputError, match=f"is not a valid {dtype}. cast the other operand"
    ):
        nodes.const(value, dtype)


def test_numbers_without_a_fraction_are_integers():
    assert nodes.const(2.0, int32) is nodes.const(2, int32)
    with pytest.raises(InputError, match=r"0\.5 is not a valid int32"):
        nodes.var("i", int32) * 0.5  # it was `i * 0`
