"""The canonical text: the same whatever names are, another one for whatever changes a result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.base.dtypes import DType, bool_, float32, float64, int32
from tilewright.compute.build import cast, map_, reduce_
from tilewright.compute.canonical import canonical, canonical_tree
from tilewright.compute.nodes import CC, PS, PW, Computation, Dim, Output
from tilewright.compute.reducer import Reducer, reducer
from tilewright.expr.nodes import (
    INDEX,
    Buffer,
    Const,
    Expr,
    Load,
    Max,
    Min,
    Select,
    Var,
    const,
)
from tilewright.loops.nodes import Store, Update, block, loop

Text = str


def product(
    shape: tuple[int, int] = (4, 6),
    dtype: DType = float32,
    scope: str = "global",
    names: str = "xwyijk",
    turned: bool = False,
) -> tuple[Computation, tuple[Buffer, ...]]:
    """A product of matrices under some names, and its parameters."""
    rows, columns = shape
    x, w = (
        Buffer(names[0], (rows, 5), dtype),
        Buffer(names[1], (5, columns), dtype, scope),
    )
    y = Buffer(names[2], shape, dtype)
    i, j, k = (Var(n, INDEX) for n in names[3:])
    dims = (Dim(i, rows), Dim(j, columns), Dim(k, 5, PW))
    value = w[k, j] * x[i, k] if turned else x[i, k] * w[k, j]
    return Computation(
        "mm", dims, (Output(y, (i, j), value),), reducer("add", dtype)
    ), (x, w, y)


def text(c: Computation, params: tuple[Buffer, ...]) -> Text:
    return canonical([c], params)


PLAIN = text(*product())


def test_names_play_no_part() -> None:
    assert text(*product(names="abcdef")) == PLAIN
    assert text(*product()) == PLAIN


def changed(f: Callable[[Computation], Computation]) -> Text:
    c, params = product()
    return text(f(c), params)


def with_operator(**fields: object) -> Text:
    return changed(
        lambda c: replace(c, reducer=replace(reducer("add", float32), **fields))
    )


def with_output(f: Callable[[Output, list[Var]], Output]) -> Text:
    def one(c: Computation) -> Computation:
        return replace(c, outputs=(f(c.outputs[0], [d.var for d in c.dims]),))

    return changed(one)


def with_value(f: Callable[[Expr], Expr]) -> Text:
    return with_output(lambda o, _: replace(o, value=f(o.value)))


def parameters(order: tuple[int, ...]) -> Text:
    c, params = product()
    return text(c, tuple(params[n] for n in order))


def kinds(*combine: str) -> Text:
    def one(c: Computation) -> Computation:
        pairs = zip(c.dims, combine, strict=True)
        return replace(c, dims=tuple(replace(d, combine=k) for d, k in pairs))

    return changed(one)


A, B = reducer("add", float32).lhs[0], reducer("add", float32).rhs[0]
DIFFERENT: dict[str, Text] = {
    "an extent": text(*product((4, 7))),
    "extents of one product": text(*product((6, 4))),
    "a dtype": text(*product(dtype=float64)),
    "a scope": text(*product(scope="stack")),
    "the order of operands": text(*product(turned=True)),
    "the order of parameters": parameters((1, 0, 2)),
    "a parameter less": parameters((0, 2)),
    "the order of dimensions": changed(lambda c: replace(c, dims=c.dims[::-1])),
    "how one combines": kinds(CC, PW, PW),
    "what scans": kinds(CC, CC, PS),
    "what an operator does": with_operator(result=(Max(A, B),)),
    "where it begins": with_operator(identity=(const(1.0, float32),)),
    "the sign of where it begins": with_operator(identity=(const(-0.0, float32),)),
    "whether it commutes": with_operator(commutative=False),
    "which operand is which": with_operator(lhs=(B,), rhs=(A,), result=(A - B,)),
    "the order of operands of an operator": with_operator(result=(A - B,)),
    "no operator": changed(lambda c: replace(c, reducer=None)),
    "where it writes": with_output(lambda o, v: replace(o, index=(v[1] % 4, v[0]))),
    "a shifted place": with_output(lambda o, v: replace(o, index=(v[0], v[1] - 1))),
    "another tensor": with_output(
        lambda o, v: replace(o, tensor=Buffer("z", (4, 6), float32))
    ),
    "one more output": changed(lambda c: replace(c, outputs=c.outputs * 2)),
    "a cast": with_value(lambda e: cast(cast(e, float64), float32)),
    "a constant": with_value(lambda e: e * 2.0),
    "another constant": with_value(lambda e: e * 3.0),
    "a zero": with_value(lambda e: e + const(0.0, float32)),
    "a zero of the other sign": with_value(lambda e: e + const(-0.0, float32)),
    "no number": with_value(lambda e: e + const(float("nan"), float32)),
    "infinity": with_value(lambda e: e + const(float("inf"), float32)),
    "the greater": with_value(lambda e: Max(e, const(2.0, float32))),
    "the less": with_value(lambda e: Min(e, const(2.0, float32))),
    "a tag": changed(lambda c: replace(c, tags={"a": 1})),
    "another tag": changed(lambda c: replace(c, tags={"a": True})),
}


def test_whatever_changes_a_result_changes_the_text() -> None:
    texts = {"as it was": PLAIN, **DIFFERENT}
    seen: dict[Text, str] = {}
    for name, t in texts.items():
        assert t not in seen, f"{name} is taken for {seen[t]}"
        seen[t] = name


def test_truth_is_no_number() -> None:
    """`x < 1` chosen by True, by 1 and by an index: constants that are equal in Python."""
    y = Buffer("y", (4,), bool_)
    found = set()
    for c in (Const(True, bool_), Const(False, bool_)):
        found.add(text(map_("m", y, lambda i, c=c: c), (y,)))
    for dtype in (int32, INDEX, float32):
        z = Buffer("z", (4,), dtype)
        found.add(text(map_("m", z, lambda i, z=z: const(1, z.dtype)), (z,)))
    assert len(found) == 5


def test_which_variable_is_which() -> None:
    x, y = Buffer("x", (4, 4), float32), Buffer("y", (4, 4), float32)
    plain, turned = (
        map_("m", y, f) for f in (lambda i, j: x[i, j], lambda i, j: x[j, i])
    )
    assert text(plain, (x, y)) != text(turned, (x, y))


def test_which_of_two_tensors_is_read() -> None:
    a, b, y = (Buffer(n, (4,), float32) for n in "aby")
    one, two = (map_("m", y, lambda i, t=t: t[i] * 2.0) for t in (a, b))
    assert text(one, (a, b, y)) != text(two, (a, b, y))
    assert text(one, (a, b, y)) == text(two, (b, a, y))


def test_who_is_written_between_is_part_of_it() -> None:
    """A tensor of the kernel's own is not a parameter, and two are not one."""
    x, t, u, y = (Buffer(n, (4,), float32) for n in "xtuy")
    first, second = (
        map_("m", t, lambda i: x[i] * 2.0),
        map_("m", u, lambda i: x[i] * 2.0),
    )
    last = map_("s", y, lambda i: t[i] + x[i])
    texts = {
        canonical([first, last], (x, y)),
        canonical([first, last], (x, t, y)),
        canonical([last, first], (x, t, y)),
        canonical([second, last], (x, t, y)),
        canonical([last], (x, t, y)),
    }
    assert len(texts) == 5


def test_several_components() -> None:
    """Values and places of an operator in its order."""
    dtypes = (float32, INDEX)
    lhs = tuple(Var(n, t) for n, t in zip("ai", dtypes, strict=True))
    rhs = tuple(Var(n, t) for n, t in zip("bj", dtypes, strict=True))
    first = lhs[0] >= rhs[0]
    pick = tuple(Select(first, a, b) for a, b in zip(lhs, rhs, strict=True))
    swapped = (pick[0], Select(first, rhs[1], lhs[1]))
    identity = (const(float("-inf"), float32), const(0))
    x, m, p = (
        Buffer("x", (4,), float32),
        Buffer("m", (), float32),
        Buffer("p", (), INDEX),
    )
    found = set()
    for result in (pick, swapped):
        op = Reducer("argmax", lhs, rhs, result, identity)
        c = reduce_("a", [m, p], (4,), op, lambda k: (x[k], k))
        found.add(text(c, (x, m, p)))
        found.add(text(c, (x, p, m)))
    assert len(found) == 4


def test_trees_of_loops() -> None:
    x, y = Buffer("x", (8,), float32), Buffer("y", (8,), float32)

    def body(
        n: int, kind: str = "serial", turned: bool = False, name: str = "i"
    ) -> Text:
        i = Var(name, INDEX)
        stores = [
            Store(y, (i,), Load(x, (i,))),
            Store(y, (const(0),), const(1.0, float32)),
        ]
        nest = loop(i, n, block(*stores[:: -1 if turned else 1]), kind)
        return canonical_tree(nest, (x, y))

    assert body(8) == body(8, name="j")
    assert len({body(8), body(7), body(8, "parallel"), body(8, turned=True)}) == 4


def test_operators_of_a_tree_are_told_by_what_they_do() -> None:
    x, y = Buffer("x", (8,), float32), Buffer("y", (1,), float32)
    i = Var("i", INDEX)

    def body(name: str, result: Expr) -> Text:
        op = replace(reducer("add", float32), name=name, result=(result,))
        update = Update((y,), ((const(0),),), (Load(x, (i,)),), op)
        return canonical_tree(loop(i, 8, update, "serial"), (x, y))

    assert body("mine", A + B) == body("yours", A + B) != body("mine", Max(A, B))


def test_sizes_are_told_apart_by_where_they_occur_and_not_by_name() -> None:
    def rows(n: Var, inner: Var) -> Text:
        x, y = (Buffer(name, (n, inner, 4), float32) for name in "xy")
        i, j, k = (Var(name, INDEX) for name in "ijk")
        dims = (Dim(i, n), Dim(j, inner), Dim(k, 4))
        c = Computation("neg", dims, (Output(y, (i, j, k), -x[i, j, k]),))
        return canonical([first, second, c], (x, y))

    first, second = Var("n", INDEX), Var("n", INDEX)
    one = rows(first, second)
    assert rows(second, first) != one
    assert rows(first, first) != one
    first, second = Var("a", INDEX), Var("b", INDEX)
    assert rows(first, second) == one
