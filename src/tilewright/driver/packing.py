"""Work on constants that is a `Packing`: what needs no code, and can be done again from the weight.

A kernel that only moves elements is one, and so are two where the first does arithmetic at each
point of a box and the second moves its results: Winograd's filters, transformed and packed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import float32, float64
from tilewright.base.names import fresh
from tilewright.expr.affine import Affine, affine
from tilewright.expr.nodes import (
    INDEX,
    Add,
    Buffer,
    Const,
    Expr,
    FloorDiv,
    Load,
    Mod,
    Mul,
    Overlap,
    Sub,
    Var,
    const,
)
from tilewright.expr.simplify import simplify
from tilewright.ir.node import postorder, substitute
from tilewright.loops.nodes import SIZE, Block, For, Kernel, Store
from tilewright.runtime.packing import Packing, PackingPart, Step

_MOST_RESULTS: Final = 64  # of arithmetic at one point; F(6, 3) has as many
Ranges = Mapping[Expr, range]


@dataclass(frozen=True, slots=True)
class _Nest:
    """Loops of constant extents around stores, and nothing else."""

    loops: Mapping[Expr, int]
    stores: Sequence[Store]

    @staticmethod
    def of(kernel: Kernel) -> _Nest | None:
        """That of a kernel, if it is one that makes a tensor of another of its dtype."""
        loops: dict[Expr, int] = {}
        body = kernel.body
        while isinstance(body, For):
            if body.trips is None or body.kind == SIZE:
                return None
            loops[body.var] = body.trips
            body = body.body
        stores = body.stmts if isinstance(body, Block) else (body,)
        if len(kernel.inputs) != 1 or len(kernel.outputs) != 1 or not stores:
            return None
        (source,), (result,) = kernel.inputs, kernel.outputs
        if source.dtype is not result.dtype or not (source.static and result.static):
            return None
        found = [s for s in stores if isinstance(s, Store) and s.buffer == result]
        return _Nest(loops, found).digits() if len(found) == len(stores) else None

    def digits(self) -> _Nest:
        """With two loops for each whose quotient and remainder by a divisor of its extent occur.

        A window of 3 x 3 is one loop over 9 in a kernel, and two in the weight.
        """
        for e in (e for s in self.stores for e in postorder(s)):
            if not isinstance(e, FloorDiv | Mod) or not isinstance(e.rhs, Const):
                continue
            extent = self.loops.get(e.lhs, 1)
            divisor = int(e.rhs.value.real)
            if isinstance(e.lhs, Var) and 1 < divisor < extent and not extent % divisor:
                return self._parted(e.lhs, divisor).digits()
        return self

    def _parted(self, var: Var, divisor: int) -> _Nest:
        """With a loop over quotients and one over remainders."""
        taken = {v.name for v in self.loops if isinstance(v, Var)}
        high, low = (Var(fresh(taken, f"{var.name}.{n}"), INDEX) for n in range(2))
        loops = {v: n for v, n in self.loops.items() if v is not var}
        loops |= {high: self.loops[var] // divisor, low: divisor}
        env = {v: (0, n - 1) for v, n in loops.items()}
        moved = {var: high * const(divisor, INDEX) + low}

        def there(e: Expr) -> Expr:
            return simplify(substitute(e, moved), env)

        stores = [
            Store(s.buffer, tuple(map(there, s.index)), there(s.value))
            for s in self.stores
        ]
        return _Nest(loops, stores)


@dataclass(frozen=True, slots=True)
class _Arithmetic:
    """What a nest computes at each point, on elements of a buffer around `place`.

    reads: how far from there they are. results: registers, by the constants in the result's index.
    axes: for each dimension of the result the variable in its index; None where it is a constant.
    """

    source: Buffer
    place: Affine
    reads: tuple[int, ...]
    steps: tuple[Step, ...]
    results: Mapping[tuple[int | None, ...], int]
    axes: tuple[Var | None, ...]


def packing_of(
    kernel: Kernel, made: Mapping[str, Kernel]
) -> tuple[Buffer, Packing] | None:
    """The constant that a kernel's result is made of, and how, if that is a packing.

    made: the kernels in front, by the names of their results. requires, else None:
        a single store of a single load, whose places are 0, 1, .. to the end of the result, once
        the places read are linear forms of the loops' variables, up to where a tile starts
        (`Overlap`) that depends on one of them
        a result of `made` that it reads is as `_arithmetic` requires, and made of a constant
        all are inside of the constant
    """
    nest = _Nest.of(kernel)
    if nest is None or len(nest.stores) > 1:
        return None
    (store,) = nest.stores
    load = store.value
    if not isinstance(load, Load) or load.buffer != kernel.inputs[0]:
        return None
    target = _place(store.buffer, store.index)
    if not _dense(target, nest.loops, store.buffer):
        return None
    producer = made.get(load.buffer.name)
    if producer is None:
        place = _place(load.buffer, load.index)
        work = _Arithmetic(load.buffer, place, (0,), (), {(): 0}, ())
        results = [(0, 0)]
        ranges: Ranges = _ranges(nest)
    else:
        found = _arithmetic(producer)
        joined = None if found is None else _joined(found, load, target, nest)
        if joined is None:
            return None
        work, results, ranges = joined
    if work.source.name in made:
        return None
    parts = tuple(_parts(work, results, target, ranges))
    if not all(_inside(p, work.source) for p in parts):
        return None
    packing = Packing(parts)
    return (work.source, packing) if packing.size == store.buffer.size else None


def _ranges(nest: _Nest) -> dict[Expr, range]:
    return {var: range(n) for var, n in nest.loops.items()}


def _dense(place: Affine, loops: Mapping[Expr, int], buffer: Buffer) -> bool:
    """Whether loops go through 0, 1, .. to the end of a buffer, to each once."""
    if any(atom not in loops for atom, _ in place.terms):
        return False
    size = 1
    for var in sorted(loops, key=place.coefficient):
        if loops[var] == 1:
            continue
        if place.coefficient(var) != size:
            return False
        size *= loops[var]
    return size == buffer.size


def _arithmetic(kernel: Kernel) -> _Arithmetic | None:
    """What a kernel computes at each point of its loops.

    requires, else None: each index of its stores is a constant, or the variable of a loop over that
    whole dimension, the same one in all of them; there are no other loops; values are sums,
    differences and multiples of loads, all of them equally far from one another at each point.
    """
    nest = _Nest.of(kernel)
    if nest is None or len(nest.stores) > _MOST_RESULTS:
        return None
    (result,) = kernel.outputs
    axes = tuple(map(_axis, zip(*(s.index for s in nest.stores), strict=True)))
    used = [a for a in axes if a is not None]
    whole = all(
        a is None or nest.loops.get(a) == n
        for a, n in zip(axes, result.shape, strict=True)
    )
    if not whole or set(used) != set(nest.loops) or len(set(used)) < len(used):
        return None
    values = [s.value for s in nest.stores]
    loads = [e for v in values for e in postorder(v) if isinstance(e, Load)]
    source = kernel.inputs[0]
    if not loads or any(e.buffer != source for e in loads):
        return None
    if source.dtype not in (float32, float64):
        return None
    place = _place(loads[0].buffer, loads[0].index)
    steps = _Steps(place)
    if not all(map(steps.read, loads)):
        return None
    registers = [steps.register(v) for v in values]
    results: dict[tuple[int | None, ...], int] = {}
    for store, register in zip(nest.stores, registers, strict=True):
        fixed = [i for i, a in zip(store.index, axes, strict=True) if a is None]
        key = tuple(int(i.value.real) for i in fixed if isinstance(i, Const))
        if register is None or len(key) < len(fixed):
            return None
        results[key] = register
    reads = tuple(steps.reads)
    return _Arithmetic(source, place, reads, tuple(steps.steps), results, axes)


def _axis(parts: Sequence[Expr]) -> Var | None:
    """The variable that all are."""
    first = parts[0]
    return first if isinstance(first, Var) and set(parts) == {first} else None


class _Steps:
    """Arithmetic on loads as steps; what is equal is computed once.

    place: of one of the loads. reads: how far from it the others are, with their registers.
    """

    def __init__(self, place: Affine) -> None:
        self.place = place
        self.reads: dict[int, int] = {}
        self.steps: list[Step] = []
        self._known: dict[Expr, int] = {}

    def read(self, load: Load) -> bool:
        """Give a load a register, before any step; whether it is equally far at each point."""
        distance = _place(load.buffer, load.index) - self.place
        number = self.reads.setdefault(distance.const, len(self.reads))
        self._known[load] = number
        return not distance.terms

    def register(self, value: Expr) -> int | None:
        """Where the value is; None if it is not such arithmetic."""
        if value not in self._known:
            step = self._step(value)
            if step is None:
                return None
            self._known[value] = len(self.reads) + len(self.steps)
            self.steps.append(step)
        return self._known[value]

    def _step(self, e: Expr) -> Step | None:
        if not isinstance(e, Add | Sub | Mul):
            return None
        if not isinstance(e, Mul):
            a = self.register(e.lhs)
            b = self.register(e.rhs)
            name = "add" if isinstance(e, Add) else "subtract"
            return None if a is None or b is None else (name, a, b)
        value, number = (e.rhs, e.lhs) if isinstance(e.lhs, Const) else (e.lhs, e.rhs)
        register = self.register(value)
        if register is None or not isinstance(number, Const):
            return None
        return ("scale", register, float(number.value.real))


def _joined(
    work: _Arithmetic, load: Load, target: Affine, nest: _Nest
) -> tuple[_Arithmetic, list[tuple[int, int]], Ranges] | None:
    """Arithmetic at the points that a load of its results goes through.

    The results are registers with their places in the target, at the first point; the ranges are
    those of the loops that are left. requires, else None: loops over results read no others, and
    what they go through has been made.
    """
    ranges = _ranges(nest)
    forms = list(map(affine, load.index))
    fixed = [f for f, axis in zip(forms, work.axes, strict=True) if axis is None]
    over = [v for v in ranges if any(f.coefficient(v) for f in fixed)]
    place = Affine((), work.place.const)
    moved = dict(zip(work.axes, forms, strict=True))
    for atom, factor in work.place.terms:
        if atom not in moved:
            return None
        place += moved[atom].scaled(factor)
    results: list[tuple[int, int]] = []
    for point in product(*(ranges[v] for v in over)):
        at = dict(zip(over, point, strict=True))
        key = tuple(_value(f, at) for f in fixed)
        if key not in work.results:
            return None
        shift = sum(target.coefficient(v) * n for v, n in at.items())
        results.append((work.results[key], shift))
    left = {v: r for v, r in ranges.items() if v not in over}
    return replace(work, place=place), results, left


def _value(form: Affine, at: Mapping[Expr, int]) -> int | None:
    """A form at a point; None where it has other variables."""
    if any(atom not in at for atom, _ in form.terms):
        return None
    return form.const + sum(factor * at[atom] for atom, factor in form.terms)


def _parts(
    work: _Arithmetic,
    results: Sequence[tuple[int, int]],
    target: Affine,
    ranges: Ranges,
) -> Iterator[PackingPart]:
    """The work over these ranges: one part for each range in which tiles start at regular places.

    None at all where something else than a variable or the start of a tile is in the place.
    """
    place = work.place
    odd = [(atom, factor) for atom, factor in place.terms if atom not in ranges]
    if not odd:
        yield _part(work, results, target, ranges)
        return
    start, factor = odd[0]
    regular = _regular(start, ranges)
    if regular is None:
        return
    var, ideal, last, count = regular
    rest = place - Affine(((start, factor),), 0)
    span = ranges[var]
    halves = (
        (ideal, span[:count]),
        (Affine((), last), span[count:]),
    )
    for form, values in halves:
        if values:
            moved = replace(work, place=rest + form.scaled(factor))
            yield from _parts(moved, results, target, {**ranges, var: values})


def _regular(start: Expr, ranges: Ranges) -> tuple[Expr, Affine, int, int] | None:
    """Of a tile's start `min(form of one variable, last)`: the variable, the form, the last start,
    and in how many of the variable's values, from the first on, the form is it."""
    if not isinstance(start, Overlap) or not isinstance(start.rhs, Const):
        return None
    form = affine(start.lhs)
    last = int(start.rhs.value.real)
    if len(form.terms) != 1 or form.terms[0][1] < 0 or form.terms[0][0] not in ranges:
        return None
    var, factor = form.terms[0]
    count = sum(factor * n + form.const <= last for n in ranges[var])
    return var, form, last, count


def _part(
    work: _Arithmetic,
    results: Sequence[tuple[int, int]],
    target: Affine,
    ranges: Ranges,
) -> PackingPart:
    """The work over these ranges, all of whose places are linear forms of the variables."""
    place = work.place
    first = place.const + sum(place.coefficient(v) * r.start for v, r in ranges.items())
    begin = sum(target.coefficient(v) * r.start for v, r in ranges.items())
    axes = [v for v, r in ranges.items() if len(r) > 1]
    axes.sort(key=target.coefficient, reverse=True)
    return PackingPart(
        tuple(len(ranges[v]) for v in axes),
        tuple(first + distance for distance in work.reads),
        tuple(place.coefficient(v) for v in axes),
        work.steps,
        tuple((register, begin + at) for register, at in results),
        tuple(target.coefficient(v) for v in axes),
    )


def _inside(part: PackingPart, source: Buffer) -> bool:
    """Whether all that it reads is inside of the constant."""
    axes = zip(part.extents, part.strides, strict=True)
    reach = [(n - 1) * stride for n, stride in axes]
    low = min(part.reads) + sum(min(n, 0) for n in reach)
    high = max(part.reads) + sum(max(n, 0) for n in reach)
    return low >= 0 and high < source.size


def _place(buffer: Buffer, index: Sequence[Expr]) -> Affine:
    """The number of an element."""
    total = Affine((), 0)
    for part, stride in zip(index, buffer.strides, strict=True):
        total += affine(part).scaled(stride)
    return total
