"""Printing Computations in this notation, and parsing it."""

from __future__ import annotations

import keyword
from collections.abc import Sequence
from typing import Any

from tilewright.base.errors import InputError, UnsupportedError
from tilewright.base.names import fresh, identifier
from tilewright.compute.nodes import CC, Computation, Dim
from tilewright.compute.reducer import Reducer
from tilewright.compute.sizes import infer_sizes
from tilewright.expr import python
from tilewright.expr.nodes import Buffer, Const, Expr, Extent, Var
from tilewright.expr.reads import reads_memory
from tilewright.ir.node import Node
from tilewright.lang.mdh.syntax.operators import OPERATORS, cc, ps, pw, pw_custom_func
from tilewright.lang.mdh.syntax.parts import buffer
from tilewright.lang.mdh.syntax.program import Expression
from tilewright.lang.mdh.syntax.views import inp_view, md_hom, out_view

SCOPE = python.scope() | {
    **OPERATORS,
    "cc": cc,
    "pw": pw,
    "ps": ps,
    "pw_custom_func": pw_custom_func,
    "buffer": buffer,
    "out_view": out_view,
    "md_hom": md_hom,
    "inp_view": inp_view,
}


def parse(text: str) -> Expression:
    """The expression that `show` printed; only the notation's own names are evaluated.

    Raises InputError (TW-SYNTAX) for other text, and as the parts do for ill-formed ones.
    """
    made = python.evaluate(f"({python.as_text(text)})", SCOPE)
    if not isinstance(made, Expression):
        raise InputError(
            f"expected a whole expression, found a {type(made).__name__}",
            code="TW-SYNTAX",
            where="printed form",
            hint="as in out_view[...](...) @ md_hom[...](...) @ inp_view[...](...)",
        )
    return made


def show(c: Computation) -> str:
    """`c` as out_view @ md_hom @ inp_view: text that `parse` reads back as an equal Computation.

    Raises UnsupportedError, with the reason, for one that has no such form.
    """
    if not isinstance(c, Computation):
        raise InputError(
            f"expected a Computation, found a {type(c).__name__}",
            where="show",
            hint="give an expression, or the Computation of another notation",
        )
    return _Text(c).show()


class _Text:
    """Names for everything in one Computation: identifiers, each once, none of the notation's."""

    def __init__(self, c: Computation) -> None:
        self.c = c
        self.taken = {*SCOPE, *keyword.kwlist}
        _refuse(c)
        self.sizes = _inferred(c)
        self.dims: dict[Node, str] = {d.var: self.fresh(d.var.name) for d in c.dims}
        self.results = list(dict.fromkeys(o.tensor for o in c.outputs))
        self.buffers = {b: self.fresh(b.name) for b in (*self.results, *c.inputs)}
        self.arguments: dict[Node, str] = {}
        for b in c.inputs:
            loads = [a for a in c.accesses if a.buffer is b]
            if len(loads) == 1:
                self.arguments[loads[0]] = self.buffers[b]
                continue
            for n, load in enumerate(loads):
                self.arguments[load] = self.fresh(f"{b.name}{n}")

    def fresh(self, name: str) -> str:
        word = identifier(name)
        return fresh(self.taken, f"x{word}" if word.startswith("__") else word)

    def show(self) -> str:
        c = self.c
        extents = ", ".join(str(d.extent) for d in c.dims)
        operators = ", ".join(_combine(c, d) for d in c.dims)
        operators += "," if len(c.dims) == 1 else ""
        name = identifier(c.name)
        named = f', name="{name}"' if name != "mdh" else ""
        reads = {b: [a.index for a in c.accesses if a.buffer is b] for b in c.inputs}
        writes = {
            b: [o.index for o in c.outputs if o.tensor is b] for b in self.results
        }
        return "\n".join(
            [
                f"out_view{self.view(writes)} @",
                f"md_hom[{extents or '()'}]({self.function()}, ({operators}){named}) @",
                f"inp_view{self.view(reads)}",
            ]
        )

    def view(self, accesses: dict[Buffer, list[tuple[Expr, ...]]]) -> str:
        if not accesses:
            return "()"
        types = ", ".join(map(self.type, accesses))
        parts = ", ".join(
            f"{self.buffers[b]}=[{', '.join(map(self.access, a))}]"
            for b, a in accesses.items()
        )
        return f"[{types}]({parts})"

    def type(self, b: Buffer) -> str:
        dtype = python.dtype_name(b.dtype)
        if self.sizes.get(b) == b.shape:
            return dtype
        return f"buffer({', '.join([dtype, *map(str, b.shape)])})"

    def access(self, index: Sequence[Expr]) -> str:
        places = ", ".join(
            str(i.value) if isinstance(i, Const) else python.show(i, self.words())
            for i in index
        )
        return f"lambda {', '.join(self.dims.values())}: ({places})".replace(
            "lambda :", "lambda:"
        )

    def words(self) -> dict[Node, str]:
        return {**self.dims, **self.arguments}

    def function(self) -> str:
        used = _seen(self.c, set(self.arguments))
        asked = [name for v, name in self.dims.items() if v in used]
        parameters = [*self.arguments.values()]
        if asked:
            parameters += ["*", *asked]
        values = [o.value for o in self.c.outputs]
        texts = [python.show(v, self.words()) for v in values]
        if len(values) > 1:
            body = f"({', '.join(texts)})"
        elif isinstance(values[0], Const):
            body = python.show(values[0])
        else:
            body = texts[0]
        return f"lambda {', '.join(parameters)}: {body}".replace("lambda :", "lambda:")


def _seen(c: Computation, loads: set[Node]) -> set[Var]:
    """The variables that the scalar function sees next to its arguments."""
    found: set[Var] = set()
    stack: list[Node] = [o.value for o in c.outputs]
    done: set[Node] = set()
    while stack:
        node = stack.pop()
        if node in done or node in loads:
            continue
        done.add(node)
        if isinstance(node, Var):
            found.add(node)
        stack.extend(node.children())
    return found


def _inferred(c: Computation) -> dict[Buffer, tuple[Extent, ...]]:
    try:
        return infer_sizes(c)
    except InputError:
        return {}


def _refuse(c: Computation) -> None:
    """Raise UnsupportedError for a Computation that the notation cannot express."""
    tensors = [o.tensor for o in c.outputs]
    reasons = [
        (bool(c.tags), "it has tags"),
        (
            any(reads_memory(i) for a in c.accesses for i in a.index),
            "an access reads its index from memory",
        ),
        (
            any(b.scope != "global" for b in (*tensors, *c.inputs)),
            "a tensor is in another memory scope",
        ),
        (
            [t for b in dict.fromkeys(tensors) for t in tensors if t is b] != tensors,
            "its values alternate between result tensors",
        ),
        (any(b in tensors for b in c.inputs), "it reads what it writes"),
    ]
    for holds, reason in reasons:
        if holds:
            raise UnsupportedError(
                f"this has no mdh form: {reason}",
                where=f"computation {c.name}",
                hint="print it with repr, or in another notation",
            )


# -- operators


def _combine(c: Computation, d: Dim) -> str:
    if d.combine == CC or c.reducer is None:
        return CC
    return f"{d.combine}({_operator(c.reducer)})"


def _operator(r: Reducer) -> str:
    for name, operator in OPERATORS.items():
        if _is(r, operator, name):
            return name
    several = len(r.lhs) > 1
    words: dict[Node, str] = {}
    for side, group in (("lhs", r.lhs), ("rhs", r.rhs)):
        for n, v in enumerate(group):
            words[v] = f"{side}[{n}]" if several else side
    result = ", ".join(python.show(e, words) for e in r.result)
    neutral = ", ".join(repr(e.value) for e in r.identity)
    if several:
        result = f"({result})"
        neutral = f"({neutral})"
    return (
        f"pw_custom_func(lambda lhs, rhs: {result}, identity={neutral}, "
        f'commutative={r.commutative}, samples=(), name="{r.name}")'
    )


def _is(r: Reducer, operator: Any, name: str) -> bool:
    """Whether `r` is the built-in operator, up to the names of its variables."""
    if len(r.dtypes) != (2 if name.startswith("arg") else 1):
        return False
    try:
        known: Reducer = operator.reducer(r.dtypes)
    except (TypeError, InputError):
        return False
    same = known.combine(r.lhs, r.rhs) == r.result and known.identity == r.identity
    return same and known.commutative == r.commutative
