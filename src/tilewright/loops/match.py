"""Whether a loop nest is what a tensor intrinsic computes, and with which operands.

The nest has to be the description up to names: its loops are the description's dimensions in some
order, its values the same expressions (operands of commutative operators may be swapped), and each
tensor of the description lies in one buffer, so that moving along a dimension moves by one stride
per axis. What does not fit is said by the `Mismatch` of the attempt that came furthest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from tilewright.compute.nodes import CC, Dim
from tilewright.expr.affine import Affine, affine, to_expr
from tilewright.expr.nodes import Add, And, Buffer, Expr, Load, Max, Min, Mul, Or, Var
from tilewright.expr.reads import variables
from tilewright.loops.intrinsic import Instance, Stride, TensorIntrinsic
from tilewright.loops.nodes import Block, For, Operand, Stmt, Store, Update

Index = tuple[Expr, ...]
Match = tuple[Instance, tuple[Operand, ...]]

_COMMUTATIVE = (Add, Mul, Min, Max, And, Or)
# How far an attempt came: the form of the nest, its extents, its values, strides, the machine.
_FORM, _EXTENTS, _VALUES, _STRIDES, _MACHINE = range(5)


class Mismatch(Exception):
    """Why a nest is not an intrinsic: what was expected and what was found."""

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(text)
        self.rank = rank


@dataclass(frozen=True, slots=True)
class _Nest:
    """A nest taken apart: its part, loops (around all; around the step), start and step."""

    part: str
    outer: tuple[For, ...]
    inner: tuple[For, ...]
    start: Store | None
    step: Store | Update | None


def match(intrinsic: TensorIntrinsic, nest: Stmt) -> Match:
    """The part of `intrinsic` that `nest` is, and its operands. Raises Mismatch if it is none."""
    found = _take_apart(intrinsic, nest)
    worst: Mismatch | None = None
    for sizes, names in _assignments(intrinsic, found):
        try:
            return _bound(intrinsic, found, sizes, names)
        except Mismatch as error:
            if worst is None or error.rank > worst.rank:
                worst = error
    raise worst or _extents_differ(intrinsic, found)


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
        start, (inner, step) = s.stmts[0], _peeled(s.stmts[1])
        if isinstance(start, Store) and isinstance(step, Update):
            found = _Nest("compute", outer, inner, start, step)
    if found is None:
        form = "one store" if reducer is None else f"a reduction by {reducer.name}"
        raise Mismatch(_FORM, f"{intrinsic.name} is {form} in a nest of loops, found {_form(s)}")
    if intrinsic.call(found.part) is None:
        raise Mismatch(_FORM, f"this is the {found.part} of {intrinsic.name}, which has none")
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
    outer, inner = _longer(nest.outer), _longer(nest.inner)
    free = [d for d in dims if d.combine == CC] if nest.start is not None else list(dims)
    bound = [d for d in dims if d not in free]
    for first in _bijections(free, outer, intrinsic.free):
        for second in _bijections(bound, inner, intrinsic.free):
            chosen = {**first, **second}
            sizes: dict[Expr, int] = {d.var: d.extent for d in intrinsic.description.dims}
            sizes |= {d.var: _trips(chosen[d.var]) for d in dims}
            yield sizes, {v: None if f is None else f.var for v, f in chosen.items()}


def _longer(loops: Sequence[For]) -> tuple[For, ...]:
    return tuple(f for f in loops if f.trips != 1)


def _trips(f: For | None) -> int:
    return 1 if f is None else f.trips or 0


def _bijections(
    dims: Sequence[Dim], loops: Sequence[For], free: frozenset[str]
) -> Iterator[dict[Expr, For | None]]:
    if not dims:
        if not loops:
            yield {}
        return
    d, anything = dims[0], dims[0].var.name in free
    options: list[For | None] = [f for f in loops if anything or f.trips == d.extent]
    if anything or d.extent == 1:
        options.append(None)
    for f in options:
        for rest in _bijections(dims[1:], [x for x in loops if x is not f], free):
            yield {d.var: f, **rest}


def _extents_differ(intrinsic: TensorIntrinsic, nest: _Nest) -> Mismatch:
    dims = intrinsic.description.dims
    if nest.part == "reset":
        dims = tuple(d for d in dims if d.combine == CC)
    want = [
        f"{d.var.name}{'' if d.var.name in intrinsic.free else f' < {d.extent}'} ({d.combine})"
        for d in dims
    ]
    have = [f"{f.var.name} < {f.extent!r}" for f in (*nest.outer, *nest.inner)]
    return Mismatch(
        _EXTENTS,
        f"the {nest.part} of {intrinsic.name} has dimensions {', '.join(want)}; found loops "
        f"{', '.join(have) or 'none'}",
    )


# -- values and tensors


def _bound(
    intrinsic: TensorIntrinsic,
    nest: _Nest,
    sizes: dict[Expr, int],
    names: Mapping[Expr, Expr | None],
) -> Match:
    description = intrinsic.description
    output, reducer = description.outputs[0], description.reducer
    inner = {f.var for f in (*nest.outer, *nest.inner)}
    if nest.start is not None:
        assert reducer is not None
        if nest.start.value is not reducer.identity[0]:
            raise Mismatch(
                _VALUES,
                f"{intrinsic.name} starts from {reducer.identity[0]!r}, found {nest.start.value!r}",
            )
    instance = Instance(intrinsic, nest.part, tuple(sizes[d.var] for d in description.dims))
    made = (Load(output.tensor, output.index), _written(intrinsic, nest))
    if nest.step is None:
        return instance, (_operand(instance, output.tensor, [made], names, inner),)
    value = nest.step.value if isinstance(nest.step, Store) else nest.step.values[0]
    worst: Mismatch | None = None
    for pairs in _unified(output.value, value, names):
        try:
            operands = tuple(
                _operand(instance, t, [p for p in (*pairs, made) if p[0].buffer is t], names, inner)
                for t in intrinsic.tensors
            )
            _check_apart(operands)
            _check_scopes(instance, operands)
            return instance, operands
        except Mismatch as error:
            if worst is None or error.rank > worst.rank:
                worst = error
    raise worst or Mismatch(
        _VALUES,
        f"{intrinsic.name} computes {output.value!r}, found {value!r}"
        + _dtype_note(output.value, value),
    )


def _written(intrinsic: TensorIntrinsic, nest: _Nest) -> Load:
    """The place that the nest writes, the same in its start and its step."""
    reducer, tensor = intrinsic.description.reducer, intrinsic.tensors[-1]
    places = []
    if nest.start is not None:
        places.append(Load(nest.start.buffer, nest.start.index))
    if isinstance(nest.step, Store):
        places.append(Load(nest.step.buffer, nest.step.index))
    elif nest.step is not None:
        found = nest.step.reducer
        assert reducer is not None
        if found.name != reducer.name or found.dtypes != reducer.dtypes:
            have = ", ".join(map(str, found.dtypes))
            raise Mismatch(
                _VALUES,
                f"{intrinsic.name} reduces by {reducer.name} of {reducer.dtypes[0]}, found "
                f"{found.name} of {have}",
            )
        places.append(Load(nest.step.buffers[0], nest.step.index))
    if any(p is not places[0] for p in places):
        raise Mismatch(_VALUES, f"it starts {places[0]!r} and then updates {places[1]!r}")
    if places[0].dtype is not tensor.dtype:
        raise Mismatch(
            _VALUES, f"{tensor!r} is written, found {places[0].buffer!r} of another dtype"
        )
    return places[0]


def _dtype_note(want: Expr, have: Expr) -> str:
    """The dtypes of the tensors read, where they explain the difference."""
    wanted, found = ([x.dtype for x in _loads(e)] for e in (want, have))
    if len(wanted) != len(found) or sorted(map(str, wanted)) == sorted(map(str, found)):
        return ""
    return f": of {' and '.join(map(str, wanted))}, not of {' and '.join(map(str, found))}"


def _loads(e: Expr) -> list[Load]:
    if isinstance(e, Load):
        return [e]
    return [x for c in e.children() if isinstance(c, Expr) for x in _loads(c)]


Pairs = tuple[tuple[Load, Load], ...]


def _unified(want: Expr, have: Expr, names: Mapping[Expr, Expr | None]) -> Iterator[Pairs]:
    """Every way to see `have` as `want`: the loads of both that correspond."""
    if isinstance(want, Load):
        if isinstance(have, Load) and have.dtype is want.dtype:
            yield ((want, have),)
    elif isinstance(want, Var):
        if names.get(want) is have:
            yield ()
    elif want is have:
        yield ()
    elif type(want) is type(have) and want.dtype is have.dtype and _same_data(want, have):
        left, right = want.children(), have.children()
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


# -- strides


def _operand(
    instance: Instance,
    tensor: Buffer,
    pairs: Sequence[tuple[Load, Load]],
    names: Mapping[Expr, Expr | None],
    inner: set[Var],
) -> Operand:
    """The tensor in its buffer. Raises Mismatch where its elements do not lie as they have to."""
    buffer = pairs[0][1].buffer
    if any(have.buffer is not buffer for _, have in pairs):
        raise Mismatch(_VALUES, f"{tensor.name} is one tensor, found {_texts(pairs)}")
    moves = [(want, _moves(have, inner)) for want, have in pairs]
    strides = _strides(instance, tensor, pairs[0], moves[0][1], names)
    for want, steps in moves:
        for dim, var in names.items():
            if var is None:
                continue
            distance = sum(
                s * affine(i).coefficient(dim) for s, i in zip(strides, want.index, strict=True)
            )
            if distance != steps.get(var, 0):
                raise Mismatch(
                    _STRIDES,
                    f"along {dim!r} (loop {var!r}) {tensor.name}{_at(want.index)} moves by "
                    f"{distance} elements, found {_texts(pairs)}, which moves by "
                    f"{steps.get(var, 0)}",
                )
    bases = [_base(have, inner) for _, have in pairs]
    if any(b != bases[0] for b in bases):
        raise Mismatch(_VALUES, f"{tensor.name} is read at one place, found {_texts(pairs)}")
    _check_alignment(instance.intrinsic, tensor, buffer, bases[0])
    return Operand(buffer, bases[0], strides)


def _texts(pairs: Sequence[tuple[Load, Load]]) -> str:
    return " and ".join(dict.fromkeys(repr(have) for _, have in pairs))


def _at(index: Index) -> str:
    return f"[{', '.join(map(repr, index))}]"


def _position(load: Load) -> Affine:
    """The flat position of an access in its buffer."""
    total = Affine((), 0)
    for i, stride in zip(load.index, load.buffer.strides, strict=True):
        total = total + affine(i).scaled(stride)
    return total


def _moves(load: Load, inner: set[Var]) -> dict[Expr, int]:
    """By how many elements an access moves with each loop of the nest."""
    moves: dict[Expr, int] = {}
    for atom, c in _position(load).terms:
        if atom in inner:
            moves[atom] = c
        elif any(v in inner for v in variables(atom)):
            raise Mismatch(_STRIDES, f"the index of {load!r} is not linear in {atom!r}")
    return moves


def _base(load: Load, inner: set[Var]) -> Index:
    """The index of the first element: all loops of the nest at 0."""
    base = []
    for i in load.index:
        form = affine(i)
        base.append(to_expr(Affine(tuple(t for t in form.terms if t[0] not in inner), form.const)))
    return tuple(base)


def _strides(
    instance: Instance,
    tensor: Buffer,
    pair: tuple[Load, Load],
    moves: Mapping[Expr, int],
    names: Mapping[Expr, Expr | None],
) -> tuple[int, ...]:
    """One stride per axis: what the call passes as it is found, the others as compact."""
    dims = instance.intrinsic.description.dims
    sizes: dict[Expr, int] = {d.var: n for d, n in zip(dims, instance.sizes, strict=True)}
    free: set[Expr] = {d.var for d in dims if d.var.name in instance.intrinsic.free}
    number, index = instance.intrinsic.tensors.index(tensor), pair[0].index
    strides: list[int] = []
    compact = 1
    for axis in reversed(range(len(index))):
        form = affine(index[axis])
        passed = instance.intrinsic.passes(instance.part, Stride(number, axis))
        found = _stride_of(index, axis, moves, names)
        strides.insert(0, compact if found is None else found)
        if found is not None and found != compact and not passed:
            raise Mismatch(
                _STRIDES,
                f"{tensor.name} has stride {compact} along axis {axis}, found {found} in "
                f"{pair[1]!r}",
            )
        reach = 1 + sum(c * (sizes[atom] - 1) for atom, c in form.terms)
        own = any(atom in free for atom, _ in form.terms)
        compact *= reach if own else tensor.shape[axis]
    return tuple(strides)


def _stride_of(
    index: Index, axis: int, moves: Mapping[Expr, int], names: Mapping[Expr, Expr | None]
) -> int | None:
    """The stride of an axis, from a dimension that moves along this axis only; None: any."""
    for dim, c in affine(index[axis]).terms:
        var = names.get(dim)
        alone = all(affine(i).coefficient(dim) == 0 for n, i in enumerate(index) if n != axis)
        if var is not None and alone and moves.get(var, 0) % c == 0:
            return moves.get(var, 0) // c
    return None


# -- the machine


def _check_alignment(
    intrinsic: TensorIntrinsic, tensor: Buffer, buffer: Buffer, base: Index
) -> None:
    need = intrinsic.alignment.get(tensor.name, 1)
    form = _position(Load(buffer, base))
    unit = gcd(form.const, *(c for _, c in form.terms)) * buffer.dtype.itemsize
    if unit % need:
        raise Mismatch(
            _MACHINE,
            f"{tensor.name} starts at a multiple of {need} bytes, found {buffer.name}{_at(base)}, "
            f"a multiple of {unit}",
        )


def _check_apart(operands: Sequence[Operand]) -> None:
    if any(o.buffer is operands[-1].buffer for o in operands[:-1]):
        name = operands[-1].buffer.name
        raise Mismatch(_MACHINE, f"its output is apart from its inputs, found {name} as both")


def _check_scopes(instance: Instance, operands: Sequence[Operand]) -> None:
    rows = instance.intrinsic.scopes
    have = tuple(o.buffer.scope for o in operands)
    if rows and have not in rows:
        names = [t.name for t in instance.intrinsic.tensors]
        want = " or ".join(_scopes(names, row) for row in rows)
        raise Mismatch(
            _MACHINE, f"{instance.intrinsic.name} takes {want}; found {_scopes(names, have)}"
        )


def _scopes(names: Sequence[str], row: Sequence[str]) -> str:
    return ", ".join(f"{name} in {scope}" for name, scope in zip(names, row, strict=True))
