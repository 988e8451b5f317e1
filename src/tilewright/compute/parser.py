"""Computations and their operators from the text that `compute/printer.py` writes of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from typing import Final

from tilewright.base.dtypes import DType
from tilewright.compute.nodes import CC, PS, PW, Computation, Dim, Output
from tilewright.compute.reducer import STANDARD, Reducer, reducer
from tilewright.expr.nodes import INDEX, Buffer, Const, Expr, Extent, Load, Var
from tilewright.expr.parser import TYPES, WORDS, expression, place, separated
from tilewright.ir.scanner import Scanner

LINES: Final = 4  # of a Computation
# Words that a text uses in the place of a variable or a buffer: those of expressions, and these.
RESERVED: Final = re.compile(rf"let|in|f|[xt]\d+|{'|'.join(sorted(WORDS))}")


def parse(
    lines: list[str],
    buffers: Mapping[str, Buffer | Var],
    variables: MutableMapping[str, Var],
    operators: Mapping[str, Reducer],
    where: str,
) -> Computation:
    """The Computation of its LINES lines.

    buffers: by name, including sizes that occur in extents. variables: of earlier Computations in
    the group, in which each name is one variable; new ones are added. operators: additional ones,
    by name. Raises InputError (TW-SYNTAX).
    """
    head, out, function, inp = (Scanner(line, f"{where}, line {n + 1}") for n, line in
                                enumerate(lines))  # fmt: skip
    open_sizes = {n: v for n, v in buffers.items() if isinstance(v, Var)}
    name, sizes = _head(head, open_sizes)
    for v, _ in sizes:
        variables.setdefault(v, Var(v, INDEX))
    dims = open_sizes | {v: variables[v] for v, _ in sizes}
    accesses = _accesses(inp, {**buffers, **dims})
    places = _places(out, {**buffers, **dims})
    values, combines = _function(function, {**dims, **accesses}, len(places))
    results = zip(places, values, strict=True)
    outputs = tuple(Output(t, index, v) for (t, index), v in results)
    named = {op for _, op in combines if op is not None}
    if len(combines) != len(sizes) or len(named) > 1:
        raise function.refusal(
            f"expected one operator for each of {len(sizes)} dimensions, found {len(combines)}"
        )
    op: Reducer | None = None
    for stated in named:
        op = _operator(function, stated, values[0].dtype, operators)
    made = []
    for (v, extent), (combine, _) in zip(sizes, combines, strict=True):
        made.append(Dim(dims[v], extent, combine))
    return Computation(name, tuple(made), outputs, op)


def parse_reducer(text: str, where: str) -> Reducer:
    """The operator of a line of `show_reducer`. Raises InputError (TW-SYNTAX)."""
    s = Scanner(text, where)
    name = s.take("word", "the operator's name")
    lhs = _operands(s)
    rhs = _operands(s)
    s.expect("=")
    names = _let(s, {v.name: v for v in (*lhs, *rhs)})
    s.expect("(")
    result = tuple(_values(s, names))
    s.expect("from", "(")
    identity: list[Const] = []
    for e in _values(s, {}):
        if not isinstance(e, Const):
            raise s.refusal("the identity of an operator is constants")
        identity.append(e)
    commutative = not s.accept("in")
    if not commutative:
        s.expect("order")
    s.end()
    return Reducer(
        name,
        lhs,
        rhs,
        result,
        tuple(identity),
        commutative,
    )


def _operands(s: Scanner) -> tuple[Var, ...]:
    found: list[Var] = []

    def one() -> None:
        name = s.take("word")
        s.expect(":")
        dtype = TYPES.get(s.take("word", "a dtype's short name"))
        if dtype is None:
            raise s.refusal("expected a dtype's short name")
        found.append(Var(name, dtype))

    s.expect("(")
    separated(s, one, ")")
    return tuple(found)


def _head(
    s: Scanner, open_sizes: Mapping[str, Var]
) -> tuple[str, list[tuple[str, Extent]]]:
    """`name(i < 4, j < n) =`."""
    name = s.take("word", "a Computation's name")
    sizes: list[tuple[str, Extent]] = []

    def one() -> None:
        v = s.take("word", "a dimension")
        s.expect("<")
        if not open_sizes:
            sizes.append((v, int(s.take("number"))))
            return
        found = expression(s, open_sizes)
        sizes.append((v, int(found.value.real) if isinstance(found, Const) else found))

    s.expect("(")
    separated(s, one, ")")
    s.expect("=")
    s.end()
    return name, sizes


def _places(
    s: Scanner,
    names: Mapping[str, Expr | Buffer],
) -> list[tuple[Buffer, tuple[Expr, ...]]]:
    found: list[tuple[Buffer, tuple[Expr, ...]]] = []
    s.expect("out_view", "[")
    separated(s, lambda: found.append(place(s, names)), "]")
    s.expect("o")
    s.end()
    return found


def _accesses(
    s: Scanner,
    names: Mapping[str, Expr | Buffer],
) -> dict[str, Expr]:
    found: dict[str, Expr] = {}

    def one() -> None:
        arg = s.take("word", "an argument")
        s.expect("=")
        found[arg] = Load(*place(s, names))

    s.expect("inp_view", "[")
    separated(s, one, "]")
    s.end()
    return found


def _function(
    s: Scanner,
    names: Mapping[str, Expr],
    count: int,
) -> tuple[list[Expr], list[tuple[str, str | None]]]:
    """The values, and for each dimension how it combines and by which operator."""
    s.expect("md_hom", "[", "f", "(")
    separated(s, lambda: s.take("word", "an argument"), ")")
    s.expect("=")
    known = _let(s, names)
    if count == 1:
        values = [expression(s, known)]
    else:
        s.expect("(")
        values = _values(s, known)
    if len(values) != count:
        raise s.refusal(f"expected {count} value(s), found {len(values)}")
    combines: list[tuple[str, str | None]] = []
    s.expect(",", "(")
    separated(s, lambda: combines.append(_combine(s)), ")")
    s.expect("]", "o")
    s.end()
    return values, combines


def _let(
    s: Scanner,
    names: Mapping[str, Expr],
) -> Mapping[str, Expr]:
    """The names for what comes after `let t0 = e, ... in`, if that comes now."""
    known = dict(names)
    if s.accept("let"):
        while not s.accept("in"):
            word = s.take("word")
            s.expect("=")
            known[word] = expression(s, known)
            if not s.at("in"):
                s.expect(",")
    return known


def _values(
    s: Scanner,
    names: Mapping[str, Expr],
) -> list[Expr]:
    """The expressions up to `)`."""
    found: list[Expr] = []
    separated(s, lambda: found.append(expression(s, names)), ")")
    return found


def _combine(s: Scanner) -> tuple[str, str | None]:
    word = s.take("word", "cc, pw or ps")
    if word == CC:
        return CC, None
    if word not in (PW, PS):
        raise s.refusal(f"expected cc, pw or ps, found {word!r}")
    s.expect("(")
    name = s.take("word", "an operator")
    s.expect(")")
    return word, name


def _operator(
    s: Scanner,
    name: str,
    dtype: DType,
    known: Mapping[str, Reducer],
) -> Reducer:
    if name in known:
        return known[name]
    if name not in STANDARD:
        raise s.refusal(f"unknown operator {name!r}")
    return reducer(name, dtype)
