"""Printing Computations as tensor expressions, and parsing them.

A = placeholder((16, 16), float32)
B = placeholder((16, 16), float32)
k = reduce_axis((0, 16))
C = compute((16, 16), lambda y, x: sum(A[k, y] * B[k, x], axis=k))
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from tilewright.base.dtypes import DType
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.base.names import fresh, identifier
from tilewright.compute.nodes import PS, PW, Computation
from tilewright.compute.reducer import Reducer, arg_reducer, reducer
from tilewright.expr import python
from tilewright.expr.nodes import Buffer, Const, Expr, Load
from tilewright.ir.node import Node, transform
from tilewright.lang.te.syntax import build, program, reduce
from tilewright.lang.te.syntax.nodes import Compute, Tensor

_NAMED: Final = {
    "add": "sum",
    "mul": "prod",
    "max": "max",
    "min": "min",
    "or": "any",
    "and": "all",
}
_ARG: Final = ("argmax", "argmin")


def show(c: Computation) -> str:
    """The text; `parse(show(c))` is structurally equal to `c`.

    Raises UnsupportedError where the notation has no form for it: where the elements written are
    not the whole tensor in the order of the dimensions, or the accumulator has another dtype.
    """
    if not isinstance(c, Computation):
        raise InputError(
            f"expected a Computation, found a {type(c).__name__}",
            where="show",
            hint="computation(C.op) is that of a tensor",
        )
    _check(c)
    words = _Words(c)
    lines = [
        f"{words.buffers[b]} = placeholder({_shape(b)}, {python.dtype_name(b.dtype)})"
        for b in c.inputs
    ]
    free = [d for d in c.dims if d.combine != PW]
    bound = [d for d in c.dims if d.combine == PW]
    lines += [f"{words.vars[d.var]} = reduce_axis((0, {d.extent}))" for d in bound]
    values = [words.text(o.value) for o in c.outputs]
    body = values[0] if len(values) == 1 else f"({', '.join(values)})"
    if c.reducer is not None:
        word, definition = _reducer(c.reducer)
        lines += definition
        scanned = [d for d in free if d.combine == PS]
        axes = [words.vars[d.var] for d in (*scanned, *bound)]
        op = f"scan_op({word})" if scanned else word
        over = axes[0] if len(axes) == 1 else f"[{', '.join(axes)}]"
        body = f"{op}({body}, axis={over})"
    names = ", ".join(words.buffers[o.tensor] for o in c.outputs)
    arguments = ", ".join(words.vars[d.var] for d in free)
    head = f"lambda {arguments}:" if arguments else "lambda:"
    lines.append(f"{names} = compute({_shape(c.outputs[0].tensor)}, {head} {body})")
    return "\n".join(lines)


def _shape(b: Buffer) -> str:
    return repr(tuple(b.shape))


def _check(c: Computation) -> None:
    def refuse(reason: str) -> UnsupportedError:
        return UnsupportedError(
            f"no tensor expression: {reason}",
            where=f"computation {c.name}",
            hint="show(kernel) and mdh.show print others",
        )

    free = [d for d in c.dims if d.combine != PW]
    if c.tags:
        raise refuse(f"it has tags: {', '.join(c.tags)}")
    if list(c.dims[: len(free)]) != free:
        raise refuse("a reduced dimension comes before one of the result")
    for a in c.accesses:
        for i, extent in zip(a.index, a.buffer.shape, strict=True):
            if isinstance(i, Const) and not 0 <= int(i.value.real) < extent:
                raise refuse(f"{a!r}, under a condition, is outside the tensor")
    for n, o in enumerate(c.outputs):
        if o.index != tuple(d.var for d in free):
            raise refuse(f"{o.tensor.name} is not written at its dimensions in order")
        if o.tensor.shape != tuple(d.extent for d in free):
            raise refuse(f"{o.tensor.name} is written in part")
        if c.reducer is not None and c.reducer.dtypes[n] is not o.tensor.dtype:
            raise refuse(f"{o.tensor.name} is accumulated in {c.reducer.dtypes[n]}")


class _Words:
    """A word for each tensor and dimension."""

    def __init__(self, c: Computation) -> None:
        taken = {*scope(), *keyword.kwlist}
        self.buffers: dict[Buffer, str] = {}
        self._renamed: dict[Buffer, Buffer] = {}
        for b in dict.fromkeys((*c.inputs, *(o.tensor for o in c.outputs))):
            word = fresh(taken, _word(b.name, taken))
            self.buffers[b] = word
            self._renamed[b] = Buffer(word, b.shape, b.dtype)
        self.vars: dict[Node, str] = {}
        for d in c.dims:
            self.vars[d.var] = fresh(taken, _word(d.var.name, taken))

    def text(self, e: Expr) -> str:
        return python.show(transform(e, self._rename), self.vars)

    def _rename(self, node: Node) -> Node:
        if isinstance(node, Load):
            return Load(self._renamed[node.buffer], node.index)
        return node


def _word(name: str, taken: set[str]) -> str:
    word = identifier(name)
    if word in taken:
        return word[0].upper()
    return word


def _reducer(op: Reducer) -> tuple[str, list[str]]:
    """The word for an operator, and the lines that define it."""
    dtype = op.dtypes[0]
    several = len(op.dtypes) > 1
    if not several:
        for name, word in _NAMED.items():
            if _fits(name, dtype) and reducer(name, dtype) is op:
                return word, []
    if len(op.dtypes) == 2:
        known = (arg_reducer(name, dtype, op.dtypes[1]) for name in _ARG)
        if any(reducer_ is op for reducer_ in known):
            return op.name, []
    names: dict[Node, str] = {}
    for side, word in ((op.lhs, "a"), (op.rhs, "b")):
        names |= {v: f"{word}[{n}]" if several else word for n, v in enumerate(side)}
    results = ", ".join(python.show(r, names) for r in op.result)
    neutral = ", ".join(python.show(i) for i in op.identity)
    if several:
        results = f"({results})"
        neutral = f"({neutral})"
    options = "" if op.commutative else ", commutative=False"
    made = f"comm_reducer(lambda a, b: {results}, lambda t: {neutral}{options}, samples=())"
    return "combine", [f"combine = {made}"]


def _fits(name: str, dtype: DType) -> bool:
    if name in ("and", "or"):
        return dtype.is_bool
    return not (dtype.is_bool or dtype.is_complex)


_MADE: Final[Mapping[str, Callable[..., Any]]] = {
    "placeholder": build.placeholder,
    "reduce_axis": build.reduce_axis,
    "compute": build.compute,
    "comm_reducer": reduce.comm_reducer,
}


def scope() -> dict[str, Any]:
    """The vocabulary of printed programs: the notation's words, and those of scalar expressions."""
    ops = {word: getattr(reduce, word) for word in (*_NAMED.values(), *_ARG, "scan_op")}
    return {**python.scope(), **ops, **_MADE}


def parse(text: str) -> Computation:
    """The Computation of the last line. Raises InputError for a text of another form."""
    names = scope()
    result = None
    for number, line in enumerate(python.as_text(text).strip().splitlines(), 1):
        found = re.fullmatch(r"\s*(\w+(?:, \w+)*) = (.*)", line)
        if found is None:
            raise InputError(
                f"expected `name = ...`, found {line.strip()[:40]!r}",
                code="TW-SYNTAX",
                where=f"line {number}",
                hint="write it as show() prints it",
            )
        words = found[1].split(", ")
        label: str | list[str] = words if len(words) > 1 else words[0]
        named = {word: partial(f, name=label) for word, f in _MADE.items()}
        result = python.evaluate(found[2], names | named)
        made = result if isinstance(result, tuple) else (result,)
        if len(made) != len(words):
            raise InputError(
                f"{len(made)} results for {len(words)} names",
                code="TW-SYNTAX",
                where=f"line {number}",
                hint="give one name per result",
            )
        names |= dict(zip(words, made, strict=True))
    tensor = result[0] if isinstance(result, tuple) else result
    if not isinstance(tensor, Tensor) or not isinstance(tensor.op, Compute):
        raise InputError(
            "the last line is not a compute(...)",
            code="TW-SYNTAX",
            where="printed form",
            hint="end with the tensor that is meant: C = compute(...)",
        )
    return program.computation(tensor.op)
