"""The combined expression: a Computation that also knows the order of its inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError, VerifyError
from tilewright.compute.check import check
from tilewright.compute.nodes import CC, Computation, Dim, Output
from tilewright.compute.reducer import Reducer
from tilewright.compute.sizes import infer_sizes
from tilewright.expr.nodes import (
    INDEX,
    Buffer,
    Expr,
    Extent,
    Load,
    Var,
    as_expr,
)
from tilewright.lang.mdh.syntax.parts import BufferView, Hom, Shaped, parameters

Buffers = Sequence[BufferView]
_NAMES = "ijklmnpqrstuvwxyz"


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Expression(Computation):
    """A Computation written in this notation; `declared` are the buffers of its inp_view."""

    declared: tuple[Buffer, ...] = ()

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        """The tensors read: in the order of the inp_view, then those a law has brought in."""
        read = {load.buffer: None for load in self.accesses}
        return tuple(dict.fromkeys([*(b for b in self.declared if b in read), *read]))

    @property
    def results(self) -> tuple[Buffer, ...]:
        """The tensors written, in the order of the out_view."""
        return tuple(dict.fromkeys(o.tensor for o in self.outputs))


def compose(out: Buffers, hom: Hom, inp: Buffers) -> Expression:
    """`out_view . md_hom . inp_view`, with inferred sizes, checked.

    cc dimensions come first in the Computation, then the others, each kind in its order.
    Raises VerifyError for an expression that is not a homomorphism (operators that differ between
    dimensions, results that conflict, ...), InputError for parts that do not fit together.
    """
    unsized = _assemble(out, hom, inp, {})
    stated = {v.name for v in (*out, *inp) if isinstance(v.type, Buffer | Shaped)}
    touched = (*unsized.inputs, *unsized.results)
    known = [b for b in touched if b.name in stated]
    sizes = {b.name: s for b, s in infer_sizes(unsized, known).items()}
    made = _assemble(out, hom, inp, sizes)
    check(made)
    return made


def _assemble(
    out: Buffers, hom: Hom, inp: Buffers, sizes: Mapping[str, tuple[Extent, ...]]
) -> Expression:
    """The Computation on buffers of the given sizes (0 along each axis where not known yet)."""
    where = f"md_hom {hom.name}"
    names = _dimension_names(out, inp, len(hom.extents))
    point = tuple(Var(name, INDEX) for name in names)
    results = [_buffer(v, point, sizes) for v in out]
    inputs = [_buffer(v, point, sizes) for v in inp]
    loads = [
        Load(b, v.at(n, point))
        for v, b in zip(inp, inputs, strict=True)
        for n in range(len(v.accesses))
    ]
    places = [
        (b, v.at(n, point))
        for v, b in zip(out, results, strict=True)
        for n in range(len(v.accesses))
    ]
    values = _values(hom, loads, point, [b for b, _ in places])
    outputs = tuple(Output(b, i, v) for (b, i), v in zip(places, values, strict=True))
    triples = zip(point, hom.extents, hom.combine, strict=True)
    dims = sorted(
        (Dim(v, n, c.kind) for v, n, c in triples), key=lambda d: d.combine != CC
    )
    made = Expression(
        hom.name,
        tuple(dims),
        outputs,
        _reducer(hom, names, values),
        declared=tuple(inputs),
    )
    read = {a.buffer for a in made.accesses}
    seen: dict[str, Buffer] = {}
    for b in (*results, *inputs):
        if seen.setdefault(b.name, b) is not b:
            raise InputError(
                f"two buffers are called {b.name}",
                where=where,
                hint="name one differently",
            )
    for b in inputs:
        if b not in read:
            raise InputError(
                f"the scalar function does not use {b.name}",
                where=where,
                hint="use it, or leave it out of the inp_view",
            )
    return made


def _dimension_names(out: Buffers, inp: Buffers, count: int) -> Sequence[str]:
    """The parameter names of the first index function that has one per dimension."""
    functions = [f for v in (*out, *inp) for f in v.accesses]
    for names in map(parameters, functions):
        if len(names) == count:
            return names
    return [_NAMES[n] if n < len(_NAMES) else f"d{n}" for n in range(count)]


def _buffer(view: BufferView, point: Sequence[Var], sizes: Mapping[str, Any]) -> Buffer:
    if isinstance(view.type, Buffer):
        return view.type
    if isinstance(view.type, Shaped):
        return Buffer(view.name, view.type.shape, view.type.dtype)
    rank = len(view.at(0, point))
    return Buffer(view.name, sizes.get(view.name, (0,) * rank), view.type)


def _values(
    hom: Hom, loads: Sequence[Load], point: Sequence[Var], results: Sequence[Buffer]
) -> tuple[Expr, ...]:
    """The results of the scalar function on the loads: one value per access of the out_view."""
    where = f"md_hom {hom.name}"
    known = {v.name: v for v in point}
    asked = _keywords(hom.function)
    if not asked <= known.keys():
        raise InputError(
            f"{', '.join(sorted(asked - known.keys()))} is not a dimension: {', '.join(known)}",
            where=where,
            hint="keyword-only parameters are dimensions, by their names in the views",
        )
    try:
        found = hom.function(*loads, **{name: known[name] for name in asked})
    except InputError as error:
        raise error.at(where) from None
    except TypeError as error:
        raise InputError(
            f"the scalar function cannot be applied to the {len(loads)} access(es): {error}",
            where=where,
            hint="it gets one argument per access of the inp_view, in their order",
        ) from error
    values = found if isinstance(found, tuple) else (found,)
    if len(values) != len(results):
        raise InputError(
            f"the scalar function returns {len(values)} value(s), out_view has {len(results)} "
            "access(es)",
            where=where,
            hint="return a tuple with one value per access of the out_view",
        )
    return tuple(as_expr(v, b.dtype) for v, b in zip(values, results, strict=True))


def _keywords(f: Callable[..., Any]) -> set[str]:
    """The dimensions that a scalar function wants to know: its keyword-only parameters."""
    signature = inspect.signature(f)
    return {p.name for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY}


def _reducer(hom: Hom, names: Sequence[str], values: Sequence[Expr]) -> Reducer | None:
    """The operator that all dimensions but the cc ones share."""
    combined = [
        (n, c)
        for n, c in zip(names, hom.combine, strict=True)
        if c.operator is not None
    ]
    if not combined:
        return None
    first = combined[0][0]
    operator = combined[0][1].operator
    for name, c in combined[1:]:
        if c.operator is not operator:
            raise VerifyError(
                f"dimension {first} combines by {operator}, dimension {name} by {c.operator}",
                code="TW-OPERATOR",
                where=f"md_hom {hom.name}",
                hint="all dimensions but the cc ones share one operator; make two expressions",
            )
    assert operator is not None
    return operator.reducer([v.dtype for v in values])
