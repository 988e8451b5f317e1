"""Matching a loop nest against a tensor intrinsic, and finding its operands.

The nest has to be the description up to names: its loops are the description's dimensions in some
order, its values the same expressions (operands of commutative operators may be swapped), and each
tensor of the description is in one buffer, so that moving along a dimension moves by one stride
per axis. What does not fit is reported by the `OperandMismatch` of the attempt that came furthest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tilewright.base.dataclass import dataclass
from tilewright.compute.nodes import CC, Dim
from tilewright.expr.nodes import Add, And, Expr, Load, Max, Min, Mul, Or, Var
from tilewright.loops.intrinsic import Instance, TensorIntrinsic
from tilewright.loops.nodes import Block, For, Operand, Stmt, Store, Update
from tilewright.loops.operands import (
    EXTENTS,
    FORM,
    VALUES,
    OperandMismatch,
    check_scopes,
    check_separate,
    operand,
)

Match = tuple[Instance, tuple[Operand, ...]]

_COMMUTATIVE = (Add, Mul, Min, Max, And, Or)


@dataclass(frozen=True, slots=True)
class _Nest:
    """A nest in pieces: its part, loops (around all; around the step), start and step."""

    part: str
    outer: tuple[For, ...]
    inner: tuple[For, ...]
    start: Store | None
    step: Store | Update | None


def match(intrinsic: TensorIntrinsic, nest: Stmt) -> Match:
    """The part of `intrinsic` that `nest` is, and its operands. Raises Mismatch if it is none."""
    found = _take_apart(intrinsic, nest)
    worst: OperandMismatch | None = None
    for sizes, names in _assignments(intrinsic, found):
        try:
            return _bound(intrinsic, found, sizes, names)
        except OperandMismatch as error:
            if worst is None or error.rank > worst.rank:
                worst = error
    try:
        raise worst or _extents_differ(intrinsic, found)
    finally:
        del worst  # its traceback has this frame, and so all that its callers hold


# -- the form


def _take_apart(intrinsic: TensorIntrinsic, nest: Stmt) -> _Nest:
    outer, s = _peeled(nest)
    reducer = intrinsic.description.reducer
    found: _Nest | None = None
    if isinstance(s, Store):
        found = _Nest("compute", outer, (), None, s)
        if reducer is not None:
            found = _Nest("reset", outer, (), s, None)
    elif isinstance(s, Update) and reducer is not None:
        found = _Nest("update", outer, (), None, s)
    elif isinstance(s, Block) and len(s.stmts) == 2 and reducer is not None:
        start = s.stmts[0]
        inner, step = _peeled(s.stmts[1])
        if isinstance(start, Store) and isinstance(step, Update):
            found = _Nest("compute", outer, inner, start, step)
    if found is None:
        form = "one store" if reducer is None else f"a reduction by {reducer.name}"
        raise OperandMismatch(
            FORM, f"{intrinsic.name} is {form} in a nest of loops, found {_form(s)}"
        )
    if intrinsic.call(found.part) is None:
        raise OperandMismatch(
            FORM, f"this is the {found.part} of {intrinsic.name}, which has none"
        )
    return found


def _peeled(s: Stmt) -> tuple[tuple[For, ...], Stmt]:
    loops: list[For] = []
    while isinstance(s, For):
        loops.append(s)
        s = s.body
    return tuple(loops), s


def _form(s: Stmt) -> str:
    if isinstance(s, Block):
        return f"{len(s.stmts)} statements: {'; '.join(_form(x) for x in s.stmts)}"
    return f"`{str(s).splitlines()[0].rstrip(':')}`"


# -- which loop is which dimension


def _assignments(
    intrinsic: TensorIntrinsic, nest: _Nest
) -> Iterator[tuple[dict[Expr, int], dict[Expr, Expr | None]]]:
    """Every way to see the loops as the dimensions: extents, and the loop variable of each."""
    dims = intrinsic.description.dims
    if nest.part == "reset":
        dims = tuple(d for d in dims if d.combine == CC)
    outer = _longer(nest.outer)
    inner = _longer(nest.inner)
    if nest.start is not None:
        free = [d for d in dims if d.combine == CC]
    else:
        free = list(dims)
    bound = [d for d in dims if d not in free]
    for first in _bijections(free, outer, intrinsic):
        for second in _bijections(bound, inner, intrinsic):
            chosen = {**first, **second}
            sizes: dict[Expr, int] = {
                d.var: d.extent for d in intrinsic.description.dims
            }
            sizes |= {d.var: _trips(chosen[d.var]) for d in dims}
            yield sizes, {v: None if f is None else f.var for v, f in chosen.items()}


def _longer(loops: Sequence[For]) -> tuple[For, ...]:
    return tuple(f for f in loops if f.trips != 1)


def _trips(f: For | None) -> int:
    trips = 1 if f is None else f.trips
    assert trips is not None, "only loops of constant extent are assigned"
    return trips


def _bijections(
    dims: Sequence[Dim], loops: Sequence[For], of: TensorIntrinsic
) -> Iterator[dict[Expr, For | None]]:
    if not dims:
        if not loops:
            yield {}
        return
    d = dims[0]
    anything = d.var.name in of.free
    most = of.most.get(d.var.name)
    options: list[For | None] = [
        f
        for f in loops
        if f.trips == d.extent
        or (anything and f.trips and (most is None or f.trips <= most))
    ]
    if anything or d.extent == 1:
        options.append(None)
    for f in options:
        for rest in _bijections(dims[1:], [x for x in loops if x is not f], of):
            yield {d.var: f, **rest}


def _extents_differ(intrinsic: TensorIntrinsic, nest: _Nest) -> OperandMismatch:
    dims = intrinsic.description.dims
    if nest.part == "reset":
        dims = tuple(d for d in dims if d.combine == CC)
    want = [f"{d.var.name}{_allowed(intrinsic, d)} ({d.combine})" for d in dims]
    have = [f"{f.var.name} < {f.extent!r}" for f in (*nest.outer, *nest.inner)]
    return OperandMismatch(
        EXTENTS,
        f"the {nest.part} of {intrinsic.name} has dimensions {', '.join(want)}; found loops "
        f"{', '.join(have) or 'none'}",
    )


def _allowed(intrinsic: TensorIntrinsic, d: Dim) -> str:
    name = d.var.name
    if name not in intrinsic.free:
        return f" < {d.extent}"
    return f" < {intrinsic.most[name] + 1}" if name in intrinsic.most else ""


# -- values and tensors


def _bound(
    intrinsic: TensorIntrinsic,
    nest: _Nest,
    sizes: dict[Expr, int],
    names: Mapping[Expr, Expr | None],
) -> Match:
    description = intrinsic.description
    output = description.outputs[0]
    reducer = description.reducer
    inner = {f.var for f in (*nest.outer, *nest.inner)}
    if nest.start is not None:
        assert reducer is not None
        if nest.start.value is not reducer.identity[0]:
            raise OperandMismatch(
                VALUES,
                f"{intrinsic.name} starts from {reducer.identity[0]!r}, found {nest.start.value!r}",
            )
    instance = Instance(
        intrinsic, nest.part, tuple(sizes[d.var] for d in description.dims)
    )
    made = (Load(output.tensor, output.index), _written(intrinsic, nest))
    if nest.step is None:
        start = (operand(instance, output.tensor, [made], names, inner),)
        check_separate(instance, start)
        return instance, start
    if isinstance(nest.step, Store):
        value = nest.step.value
    else:
        value = nest.step.values[0]
    worst: OperandMismatch | None = None
    for pairs in _unified(output.value, value, names):
        try:
            operands = tuple(
                operand(
                    instance,
                    t,
                    [p for p in (*pairs, made) if p[0].buffer is t],
                    names,
                    inner,
                )
                for t in intrinsic.tensors
            )
            check_separate(instance, operands)
            check_scopes(instance, operands)
            return instance, operands
        except OperandMismatch as error:
            if worst is None or error.rank > worst.rank:
                worst = error
    try:
        raise worst or OperandMismatch(
            VALUES,
            f"{intrinsic.name} computes {output.value!r}, found {value!r}"
            + _dtype_note(output.value, value),
        )
    finally:
        del worst  # as in `match`


def _written(intrinsic: TensorIntrinsic, nest: _Nest) -> Load:
    """The place that the nest writes, the same in its start and its step."""
    reducer = intrinsic.description.reducer
    tensor = intrinsic.tensors[-1]
    places = []
    if nest.start is not None:
        places.append(Load(nest.start.buffer, nest.start.index))
    if isinstance(nest.step, Store):
        places.append(Load(nest.step.buffer, nest.step.index))
    elif nest.step is not None:
        found = nest.step.reducer
        assert reducer is not None
        if not found.does_as(reducer):
            have = ", ".join(map(str, found.dtypes))
            other = "another " if found.name == reducer.name else ""
            raise OperandMismatch(
                VALUES,
                f"{intrinsic.name} reduces by {reducer.name} of {reducer.dtypes[0]}, found "
                f"{other}{found.name} of {have}",
            )
        places.append(Load(nest.step.buffers[0], nest.step.indices[0]))
    if any(p is not places[0] for p in places):
        raise OperandMismatch(
            VALUES, f"it starts {places[0]!r} and then updates {places[1]!r}"
        )
    if places[0].dtype is not tensor.dtype:
        raise OperandMismatch(
            VALUES,
            f"{tensor!r} is written, found {places[0].buffer!r} of another dtype",
        )
    return places[0]


def _dtype_note(want: Expr, have: Expr) -> str:
    """The dtypes of the tensors read, where they explain the difference."""
    wanted, found = ([x.dtype for x in _loads(e)] for e in (want, have))
    if len(wanted) != len(found) or sorted(map(str, wanted)) == sorted(map(str, found)):
        return ""
    return (
        f": of {' and '.join(map(str, wanted))}, not of {' and '.join(map(str, found))}"
    )


def _loads(e: Expr) -> list[Load]:
    if isinstance(e, Load):
        return [e]
    return [x for c in e.children() if isinstance(c, Expr) for x in _loads(c)]


Pairs = tuple[tuple[Load, Load], ...]


def _unified(
    want: Expr, have: Expr, names: Mapping[Expr, Expr | None]
) -> Iterator[Pairs]:
    """Every way to see `have` as `want`: the loads of both that correspond."""
    if isinstance(want, Load):
        if isinstance(have, Load) and have.dtype is want.dtype:
            yield ((want, have),)
    elif isinstance(want, Var):
        if names.get(want) is have:
            yield ()
    elif want is have:
        yield ()
    elif (
        type(want) is type(have) and want.dtype is have.dtype and _same_data(want, have)
    ):
        left = want.children()
        right = have.children()
        yield from _all_unified(left, right, names)
        if isinstance(want, _COMMUTATIVE):
            yield from _all_unified(left, right[::-1], names)


def _same_data(want: Expr, have: Expr) -> bool:
    data = set(want._fields) - want._child_fields
    return all(getattr(want, f) == getattr(have, f) for f in data)


def _all_unified(
    want: Sequence[object], have: Sequence[object], names: Mapping[Expr, Expr | None]
) -> Iterator[Pairs]:
    if not want or len(want) != len(have):
        if len(want) == len(have):
            yield ()
        return
    assert isinstance(want[0], Expr) and isinstance(have[0], Expr)
    for first in _unified(want[0], have[0], names):
        for rest in _all_unified(want[1:], have[1:], names):
            yield first + rest
