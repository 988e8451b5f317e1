"""Random well-typed Lift programs on small integer arrays, for differential tests.

A function is grown from the type it is applied to: each step is a pattern that the type allows.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tilewright.base.dtypes import int64
from tilewright.lift import nodes as n
from tilewright.lift.infer import Scope, result
from tilewright.lift.lengths import evaluate
from tilewright.lift.patterns import (
    At,
    Concat,
    Drop,
    Fill,
    Gather,
    Iota,
    Iterate,
    Join,
    Map,
    Pad,
    PartRed,
    Reduce,
    Scan,
    Scatter,
    Slide,
    Split,
    Take,
    To,
    Transpose,
    Tuple,
    Unzip,
    Vectorize,
    Zip,
    asScalar,
    asVector,
    let,
    userfun,
)
from tilewright.lift.types import Array, Scalar, TupleType, Type, array

_INT = Scalar(int64)
_NEUTRAL = {
    "add": 0,
    "max": int(int64.min),
    "min": int(int64.max),
}


def random_program(rng: Random, steps: int = 3) -> n.Lambda:
    """A program without low-level patterns, of one or two parameters."""
    types = [
        array(_INT, *(rng.randint(1, 6) for _ in range(rng.randint(1, 2))))
        for _ in range(2)
    ]
    x, y = (n.Param(name, t) for name, t in zip("xy", types, strict=True))
    term = x
    t = types[0]
    grower = _Grower(rng, {y: types[1]})
    f = grower.function(t, steps)
    body = n.apply(f, term)
    if rng.random() < 0.2:
        body = n.Tuple((body, y))
    return n.Lambda((x, y), body)


class _Grower:
    """Functions of a type; `others` are the parameters that they may use as well."""

    def __init__(self, rng: Random, others: dict[n.Param, Type]) -> None:
        self.rng = rng
        self.others = others

    def function(self, t: Type, steps: int) -> n.Fun:
        """A composition of `steps` patterns, from `t` on."""
        funs: list[n.Fun] = []
        for _ in range(steps):
            f = self.step(t, steps - 1)
            found = self.type(f, t)
            if _size(found) > 400:
                continue
            funs.append(f)
            t = found
        if funs:
            return n.compose(*funs)
        return n.as_fun(lambda x: x)

    def type(self, f: n.Fun, t: Type) -> Type:
        scope = Scope(dict(self.others))
        return result(f, (t,), scope)

    def step(self, t: Type, depth: int) -> n.Fun:
        if isinstance(t, TupleType):
            return self.on_tuple(t)
        if not isinstance(t, Array):
            return self.on_scalar()
        kinds: list[Callable[[Array, int], n.Fun]] = [
            self.map,
            self.map,
            self.move,
            self.fold,
        ]
        if isinstance(t.item, Scalar):
            kinds += [self.vectors, self.zipped, self.zipped, self.named]
        elif isinstance(t.item, Array):
            kinds += [self.rows, self.rows]
        elif isinstance(t.item, TupleType) and _of_scalars(t.item):
            together = Map(self.on_tuple(t.item))
            position = self.rng.randrange(2)
            component = Unzip >> n.Get(position)
            return self.rng.choice((together, component))
        return self.rng.choice(kinds)(t, depth)

    # -- scalars and tuples

    def on_scalar(self) -> n.Fun:
        c = self.rng.randint(-3, 3)
        forms = (
            n.as_fun(lambda x: x + c),
            n.as_fun(lambda x: x * x - c),
            n.Builtin("neg"),
            n.Builtin("relu"),
            userfun("affine", lambda a: a * c + 1, "int64"),
        )
        return self.rng.choice(forms)

    def on_tuple(self, t: TupleType) -> n.Fun:
        if _of_scalars(t) and self.rng.random() < 0.7:
            if len(t.items) == 2:
                name = self.rng.choice(("add", "max", "sub"))
                return n.Builtin(name)
            return n.Get(0)
        position = self.rng.randrange(len(t.items))
        return n.Get(position)

    # -- arrays

    def map(self, t: Array, depth: int) -> n.Fun:
        steps = max(1, depth - 1)
        return Map(self.function(t.item, steps))

    def move(self, t: Array, depth: int) -> n.Fun:
        length = evaluate(t.length, {})
        divisor = self.rng.choice(_divisors(length))
        size = self.rng.randint(1, length)
        steps = [s for s in range(1, length + 1) if (length - size) % s == 0]
        step = self.rng.choice(steps)
        part = self.rng.randint(1, length)
        left = self.rng.randint(0, 2)
        right = self.rng.randint(0, 2)
        boundary = self.rng.choice(n.BOUNDARIES)
        fill = self.rng.randint(-2, 2)
        filler = _filled(t.item, fill)
        moves: list[n.Fun] = [
            Split(divisor),
            Slide(size, step),
            Take(part),
            Drop(length - part),
            Gather("reverse"),
            Gather("stride", divisor),
            Scatter("stride", divisor),
            Gather("rotate", part),
            Pad(left, right, boundary),
            Pad(left, right, filler),
            n.as_fun(lambda x: Concat(x | Take(part), x)),
            n.as_fun(lambda x: Concat(x | Drop(length - part) | Map(_each(t.item)), x)),
        ]
        return self.rng.choice(moves)

    def rows(self, t: Array, depth: int) -> n.Fun:
        op = self.rng.choice(("add", "max"))
        assert isinstance(t.item, Array)
        f = _elementwise(op, t.item)
        neutral = _filled(t.item, _NEUTRAL[op])
        whole: n.Fun = Join
        if _flat(t):
            whole = Join >> Reduce(n.Builtin(op), _NEUTRAL[op])
        inner: n.Fun = Transpose
        if isinstance(t.item.item, Array):
            inner = Map(Join)
        folds = [Join, Transpose, whole, inner, Reduce(f, neutral)]
        return self.rng.choice(folds)

    def fold(self, t: Array, depth: int) -> n.Fun:
        if not isinstance(t.item, Scalar):
            return self.map(t, depth)
        op = self.rng.choice(("add", "max", "min"))
        length = evaluate(t.length, {})
        count = self.rng.choice(_divisors(length))
        f = n.Builtin(op)
        zero = _NEUTRAL[op]
        scaled = n.as_fun(lambda a, x: a + x * 2)
        return self.rng.choice(
            (
                Reduce(f, zero),
                Reduce(f, self.rng.randint(-2, 2)),
                Reduce(scaled, 0),
                Scan(f, zero),
                PartRed(f, zero, count),
                Iterate(2, Map(n.Builtin("neg"))),
            )
        )

    def vectors(self, t: Array, depth: int) -> n.Fun:
        length = evaluate(t.length, {})
        width = self.rng.choice([d for d in range(1, length + 1) if length % d == 0])
        return asVector(width) >> Map(Vectorize(width, self.on_scalar())) >> asScalar

    def zipped(self, t: Array, depth: int) -> n.Fun:
        f = self.function(t, 1)
        other = self.type(f, t)
        same = isinstance(other, Array) and other.length is t.length
        y, found = self.rng.choice([*self.others.items()])
        if (
            isinstance(found, Array)
            and found.length is t.length
            and self.rng.random() < 0.5
        ):
            return n.as_fun(lambda x: Zip(x, y))
        if not same:
            return n.as_fun(lambda x: Zip(x, Iota(t.length)))
        return n.as_fun(lambda x: Zip(x, n.apply(f, x)))

    def named(self, t: Array, depth: int) -> n.Fun:
        total = Reduce(n.Builtin("add"), 0) >> At(0)
        mapped = Map(self.on_scalar())
        forms: tuple[Callable[[n.Term], n.Term], ...] = (
            lambda x: let(mapped(x), lambda e: Zip(e, e)),
            lambda x: let(total(x), lambda s: x | Map(lambda v: v - s)),
            lambda x: x | Map(lambda v: v * total(x)),
            lambda x: x | Map(lambda v: Tuple(v, v + 1)),
        )
        return n.as_fun(self.rng.choice(forms))


def _flat(t: Array) -> bool:
    if not isinstance(t.item, Array):
        return False
    return isinstance(t.item.item, Scalar)


def _of_scalars(t: TupleType) -> bool:
    return all(isinstance(item, Scalar) for item in t.items)


def _divisors(length: int) -> list[int]:
    return [d for d in range(1, length + 1) if length % d == 0]


def _size(t: Type) -> int:
    match t:
        case Array(item, length):
            return evaluate(length, {}) * _size(item)
        case TupleType(items):
            return sum(map(_size, items))
    return 1


def _filled(t: Type, value: int) -> n.Term:
    """A value of the type `t` that holds `value` everywhere."""
    match t:
        case Array(item, length):
            return Fill(_filled(item, value), length)
        case TupleType(items):
            return Tuple(*(_filled(i, value) for i in items))
    return n.Literal(value, int64)


def _each(t: Type) -> n.Fun:
    """neg of every scalar; components swap places."""
    match t:
        case Array(item, _):
            return Map(_each(item))
        case TupleType():
            return n.as_fun(lambda x: x)
    return n.Builtin("neg")


def _elementwise(op: str, t: Type) -> n.Fun:
    if isinstance(t, Array):
        return n.as_fun(lambda a, x: Zip(a, x) | Map(_elementwise(op, t.item)))
    if isinstance(t, TupleType):
        parts = [_elementwise(op, item) for item in t.items]

        def of_tuples(a: n.Term, x: n.Term) -> n.Term:
            return Tuple(*(f(a[k], x[k]) for k, f in enumerate(parts)))

        return n.as_fun(of_tuples)
    return n.Builtin(op)


# -- low-level programs


def lowered(program: n.Lambda, rng: Random) -> n.Lambda:
    """The program with low-level patterns in place of some: the same meaning, other loops."""

    def body(part: n.Part, inside: bool) -> n.Part:
        if isinstance(part, n.Map):
            f = body(part.f, True)
            assert isinstance(f, n.Fun)
            return _loop(n.Map(f), rng, inside)
        new = part.map(lambda x: body(x, inside) if isinstance(x, n.Part) else x)
        match new:
            case n.Reduce(f, init):
                reduction = rng.choice((n.Reduce, n.ReduceSeq, n.ReduceSeqUnroll))
                return reduction(f, init)
            case n.Scan(f, init):
                scan = rng.choice((n.Scan, n.ScanSeq))
                return scan(f, init)
        return new

    found = body(program.body, False)
    assert isinstance(found, n.Term)
    return n.Lambda(program.params, found)


def _loop(
    f: n.Map,
    rng: Random,
    inside: bool,
) -> n.Fun:
    kinds: list[type[n.AnyMap]] = [n.Map, n.MapSeq]
    if isinstance(f.f, n.ScalarFun):
        kinds.append(n.MapVec)
    if not inside:
        kinds.append(n.MapPar)
    new: n.Fun = rng.choice(kinds)(f.f)
    if rng.random() < 0.3:
        new = To(rng.choice(("private", "local", "global")))(new)
    return new
