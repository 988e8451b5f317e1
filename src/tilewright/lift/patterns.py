"""The names of Lift as users write them, which printed programs use, too.

A function is a pattern or a Python lambda; a length is a number, a name or arithmetic on lengths.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Final

from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.base.errors import InputError
from tilewright.base.numbers import whole
from tilewright.expr import python
from tilewright.expr.nodes import Expr
from tilewright.expr.printer import short
from tilewright.lift import nodes as n
from tilewright.lift import scalars
from tilewright.lift.nodes import as_fun, as_term
from tilewright.lift.types import Length, Scalar, TupleType, Type, Vector, length

Size = int | str | Length


class Word:
    """A dtype: `f32[m, n]` is a type, `f32(x)` a cast or a literal, `f32` alone the scalar type."""

    def __init__(self, dtype: DType) -> None:
        self.type: Final = Scalar(dtype)
        # What `Map(f32)` maps: `as_fun` asks for it.
        self.fun: Final = n.Builtin(short(dtype))

    def __getitem__(self, lengths: Any) -> Type:
        return self.type[lengths]

    def __call__(self, value: Any) -> n.Term:
        """A literal of this dtype for a number, a cast for a term."""
        if isinstance(value, bool | int | float):
            return n.literal(value, self.type.dtype)
        return self.fun(value)

    def __repr__(self) -> str:
        return repr(self.type)


def as_type(t: Any) -> Type:
    """A type unchanged, or the type of a dtype's word. Raises InputError for anything else."""
    if isinstance(t, Word):
        return t.type
    if not isinstance(t, Type):
        raise InputError(
            f"{t!r} is not a type of Lift",
            hint="types look like f32, f32[m, n]",
            where="type",
        )
    return t


def Tup(*items: Any) -> Type:
    """The type of tuples: `Tup(f32, i64)`."""
    return TupleType(tuple(map(as_type, items)))


def Vec(item: Word, width: int) -> Type:
    """The type of vectors: `Vec(f32, 4)`."""
    t = as_type(item)
    if not isinstance(t, Scalar):
        raise InputError(
            f"a vector of {t!r}", where="Vec", hint="of scalars: Vec(f32, 4)"
        )
    return Vector(t.dtype, _count("width", width, 1))


# -- programs


def fun(*parts: Any) -> Any:
    """A function: `fun(lambda x: ...)`; a program where the parameters are given types.

    `fun(lambda A, v: ..., f32["m", "n"], f32["n"])`, or as a decorator on a function whose
    parameters are annotated with such types, or `@fun(f32["m", "n"], f32["n"])`.
    Raises InputError for types that do not match the parameters.
    """
    if parts and not isinstance(parts[0], Type | Word):
        f, *types = parts
        return _program(f, types or _annotated(f))
    return lambda f: _program(f, list(parts))


def _program(f: Callable[..., Any], types: list[Any]) -> n.Fun:
    if not types:
        return as_fun(f)
    names = n.parameters(f)
    if len(names) != len(types):
        raise InputError(
            f"{len(types)} types are given for the parameters {', '.join(names)}",
            code="TW-LIFT-TYPE",
            where="fun",
            hint="give one type per parameter, in their order",
        )
    pairs = zip(names, types, strict=True)
    params = tuple(n.Param(name, as_type(t)) for name, t in pairs)
    return n.Lambda(params, as_term(f(*params)))


def _annotated(f: Any) -> list[Any]:
    """The annotations of the parameters, in order; none if there is none."""
    found = dict(getattr(f, "__annotations__", {}))
    found.pop("return", None)
    return [_resolved(f, t) for t in found.values()]


def _resolved(f: Any, t: Any) -> Any:
    """An annotation; as text (from __future__ import annotations) it is looked up around f."""
    if not isinstance(t, str):
        return t
    cells = zip(f.__code__.co_freevars, f.__closure__ or (), strict=True)
    known = {**f.__globals__, **{name: cell.cell_contents for name, cell in cells}}
    return python.evaluate(t, {**SCOPE, **known, **_lengths_in(t, known)})


def let(value: Any, body: Callable[..., Any]) -> n.Term:
    """`body(value)` with the value named: computed once, its own stage."""
    names = n.parameters(body)
    if len(names) != 1:
        raise InputError(
            f"the body takes {', '.join(names) or 'nothing'}",
            where="let",
            hint="it takes the value: let(value, lambda v: ...)",
        )
    p = n.Param(names[0], None)
    return n.Apply(n.Lambda((p,), as_term(body(p))), (as_term(value),))


def _count(what: str, value: Any, least: int) -> int:
    """A number that is known. Raises InputError for another."""
    number = whole(value, least)
    if number is None:
        raise InputError(
            f"expected a number, {least} or more, found {value!r}",
            code="TW-LIFT-TYPE",
            where=what,
            hint="lengths may be names; this is a number of the program itself",
        )
    return number


# -- patterns


def Map(f: Any) -> n.Fun:
    """`f` at every element."""
    return n.Map(as_fun(f))


def MapSeq(f: Any) -> n.Fun:
    """Map as a serial loop."""
    return n.MapSeq(as_fun(f))


def MapPar(f: Any) -> n.Fun:
    """Map over the cores of a processor."""
    return n.MapPar(as_fun(f))


def MapVec(f: Any) -> n.Fun:
    """Map over the lanes of a vector unit."""
    return n.MapVec(as_fun(f))


def MapGlb(f: Any, dim: int = 0) -> n.Fun:
    """Map over all work items of a GPU, one per group, along axis `dim` of its grid."""
    return n.MapGlb(as_fun(f), _axis(dim))


def MapWrg(f: Any, dim: int = 0) -> n.Fun:
    """Map over the work groups of a GPU, along axis `dim` of its grid."""
    return n.MapWrg(as_fun(f), _axis(dim))


def MapLcl(f: Any, dim: int = 0) -> n.Fun:
    """Map over the work items of a group, along axis `dim`; inside a MapWrg."""
    return n.MapLcl(as_fun(f), _axis(dim))


def MapAtomWrg(f: Any, dim: int = 0) -> n.Fun:
    """MapWrg whose groups take the next element as they get free; `f` may not rely on an order."""
    return n.MapAtomWrg(as_fun(f), _axis(dim))


def MapAtomLcl(f: Any, dim: int = 0) -> n.Fun:
    """MapLcl whose work items take the next element as they get free; inside a MapWrg."""
    return n.MapAtomLcl(as_fun(f), _axis(dim))


def MapWarp(f: Any) -> n.Fun:
    """Map over the warps of a group, along axis 1 of its work items; inside a MapWrg."""
    return n.MapWarp(as_fun(f))


def MapLane(f: Any) -> n.Fun:
    """Map over the lanes of a warp, along axis 0; of a group's only one without a MapWarp."""
    return n.MapLane(as_fun(f))


def _axis(dim: int) -> int:
    if dim not in (0, 1, 2):
        raise InputError(
            f"a grid has the axes 0, 1 and 2, not {dim!r}",
            where="dim",
            hint="leave it out for axis 0",
        )
    return dim


def MapSeqSlide(f: Any, size: Size, step: Size) -> n.Fun:
    """`f` at every window, which is kept in registers that rotate."""
    return n.MapSeqSlide(as_fun(f), length(size), length(step))


def Reduce(f: Any, init: Any) -> n.Fun:
    """All elements combined; `f` is associative and `init` its neutral element."""
    return n.Reduce(as_fun(f), as_term(init))


def ReduceSeq(f: Any, init: Any) -> n.Fun:
    """A fold from the left, by any function."""
    return n.ReduceSeq(as_fun(f), as_term(init))


def ReduceSeqUnroll(f: Any, init: Any) -> n.Fun:
    """ReduceSeq, unrolled."""
    return n.ReduceSeqUnroll(as_fun(f), as_term(init))


def PartRed(f: Any, init: Any, count: Size) -> n.Fun:
    """`count` partial results, each of one run of elements."""
    return n.PartRed(as_fun(f), as_term(init), length(count))


def Scan(f: Any, init: Any) -> n.Fun:
    """All prefixes combined, inclusive."""
    return n.Scan(as_fun(f), as_term(init))


def ScanSeq(f: Any, init: Any) -> n.Fun:
    """Scan as a serial loop, by any function."""
    return n.ScanSeq(as_fun(f), as_term(init))


def Iterate(times: int, f: Any) -> n.Fun:
    """`f`, `times` times."""
    return n.Iterate(_count("times", times, 0), as_fun(f))


def Tuple(*items: Any) -> n.Term:
    """The tuple of the items."""
    return n.Tuple(tuple(map(as_term, items)))


def Get(position: int) -> n.Fun:
    """Component `position` of a tuple; `x[position]` applies it."""
    return n.Get(_count("position", position, 0))


def At(index: Size) -> n.Fun:
    """Element `index` of an array."""
    return n.At(length(index))


def Fill(value: Any, count: Size) -> n.Term:
    """An array of `count` times the value."""
    return n.Fill(as_term(value), length(count))


def Iota(count: Size) -> n.Term:
    """The array 0, 1, ..., count-1."""
    return n.Iota(length(count))


def Split(size: Size) -> n.Fun:
    """Rows of `size` elements."""
    return n.Split(length(size))


def Slide(size: Size, step: Size) -> n.Fun:
    """Windows of `size` elements, each `step` after the one before."""
    return n.Slide(length(size), length(step))


def Slide2D(size: Size, step: Size) -> n.Fun:
    """Square windows: `a[m, n] -> a[(m-s+t)/t, (n-s+t)/t, s, s]`, made of Slides."""
    rows = Slide(size, step)
    return Map(rows) >> rows >> Map(n.Transpose())


def Take(size: Size) -> n.Fun:
    """The first `size` elements."""
    return n.Take(length(size))


def Drop(size: Size) -> n.Fun:
    """All but the first `size` elements."""
    return n.Drop(length(size))


def Pad(left: Size, right: Size, boundary: Any) -> n.Fun:
    """More elements on both sides: copies by a rule ("clamp", "mirror", "wrap"), or a value."""
    if isinstance(boundary, str):
        return n.Pad(length(left), length(right), boundary)
    return n.PadConstant(length(left), length(right), as_term(boundary))


def Gather(name: str, *args: Size) -> n.Fun:
    """Element p(i) at i, for the index function `name`: reverse, stride(s), rotate(k)."""
    return n.Gather(n.IndexFun(name, tuple(map(length, args))))


def Scatter(name: str, *args: Size) -> n.Fun:
    """Element i at p(i): Gather's inverse."""
    return n.Scatter(n.IndexFun(name, tuple(map(length, args))))


def asVector(width: int) -> n.Fun:
    """Scalars as vectors of `width`."""
    return n.AsVector(_count("width", width, 1))


def Vectorize(width: int, f: Any) -> n.Fun:
    """A scalar function on vectors of `width`."""
    return n.Vectorize(_count("width", width, 1), as_fun(f))


def To(space: str) -> Callable[[Any], n.Fun]:
    """`toLocal(f)` and the others: the result of `f` lives in that address space."""

    def to(f: Any) -> n.Fun:
        return n.To(space, as_fun(f))

    to.__doc__ = f"`f`, with its result in the address space {space!r}."
    return to


def userfun(name: str, f: Any, *of: Any) -> n.Fun:
    """A scalar function as Python on scalar expressions, with the dtypes of its arguments."""
    types = [t.type.dtype if isinstance(t, Word) else t for t in of]
    return scalars.user_fun(name, f, *types)


Zip = n.Zip()
Unzip = n.Unzip()
Join = n.Join()
Transpose = n.Transpose()
Concat = n.Concat()
Filter = n.Filter()
asScalar = n.AsScalar()

WORDS: Final[Mapping[str, Word]] = {
    short(t): Word(t) for t in dtypes.ALL if not (t.is_string or t.is_sub_byte)
}
FUNCTIONS: Final[Mapping[str, n.Fun]] = {
    name: n.Builtin(name) for name in scalars.BUILTINS if name not in WORDS
}
SPACES: Final[Mapping[str, Any]] = {f"to{s.capitalize()}": To(s) for s in n.SPACES}

# Every word that a printed program may use.
SCOPE: Final[Mapping[str, Any]] = {
    **{
        f.__name__: f
        for f in (Map, MapSeq, MapPar, MapVec, MapGlb, MapWrg, MapLcl, MapSeqSlide)
    },
    **{f.__name__: f for f in (MapAtomWrg, MapAtomLcl, MapWarp, MapLane)},
    **{
        f.__name__: f
        for f in (Reduce, ReduceSeq, ReduceSeqUnroll, PartRed, Scan, ScanSeq)
    },
    **{f.__name__: f for f in (Iterate, Tuple, Get, At, Fill, Iota, Split, Slide)},
    **{f.__name__: f for f in (Slide2D, Take, Drop)},
    **{
        f.__name__: f
        for f in (Pad, Gather, Scatter, asVector, Vectorize, userfun, let, fun)
    },
    **{f.__name__: f for f in (Tup, Vec)},
    "Zip": Zip,
    "Unzip": Unzip,
    "Join": Join,
    "Transpose": Transpose,
    "Concat": Concat,
    "Filter": Filter,
    "asScalar": asScalar,
    **SPACES,
    **FUNCTIONS,
    **WORDS,
    "inf": float("inf"),
    "nan": float("nan"),
}


def kind_of(word: Any) -> type[n.Fun] | None:
    """The class of the patterns that a word makes: `Reduce`, `MapLcl`; None for another value."""
    name = getattr(word, "__name__", "")
    if not isinstance(word, FunctionType) or SCOPE.get(name) is not word:
        return None
    kind = getattr(n, name[:1].upper() + name[1:], None)
    return kind if isinstance(kind, type) and issubclass(kind, n.Fun) else None


def parse(text: str, more: Mapping[str, Any] | None = None) -> n.Part:
    """Parse the printer's text of a term or function; only the words of `SCOPE` are evaluated.

    more: additional words, such as device operators. Any other name is a length. Raises InputError
    (TW-SYNTAX) if the text is not a program of these words.
    """
    known = {**SCOPE, "userfun": _written_userfun, **(more or {})}
    found = python.evaluate(text, {**known, **_lengths_in(python.as_text(text), known)})
    if isinstance(found, Word):
        return found.fun
    if isinstance(found, n.Part):
        return found
    return as_term(found)


def _written_userfun(name: str, f: Any, *of: Any) -> n.Fun:
    """`userfun` of a lambda in a text, where the words mean functions of expressions."""
    if not isinstance(f, FunctionType):
        raise InputError(
            f"user function {name!r} is {f!r}",
            code="TW-SYNTAX",
            where="userfun",
            hint="write a lambda of its arguments",
        )
    words = {"__builtins__": {}, **python.scope()}
    return userfun(name, FunctionType(f.__code__, words), *of)


def _lengths_in(text: str, known: Mapping[str, Any]) -> dict[str, Expr]:
    """A length for every other name in the text."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}  # evaluating it says what is wrong
    used = [x.id for x in ast.walk(tree) if isinstance(x, ast.Name)]
    bound = {x.arg for x in ast.walk(tree) if isinstance(x, ast.arg)}
    return {
        name: length(name) for name in used if name not in known and name not in bound
    }
