"""in_ and clone_in: some readers of a Func or image read another Func with the same values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from tilewright.base.errors import InputError
from tilewright.lang.halide.syntax.domain import Var
from tilewright.lang.halide.syntax.func import Func
from tilewright.lang.halide.syntax.image import Image, Symbol
from tilewright.lang.halide.syntax.values import Tuple

_F = TypeVar("_F", bound=Func)


def wrapped(source: Func | Image, readers: Sequence[Func] | None, make: type[_F]) -> _F:
    """A Func of the values of `source`, which `readers` read from now on (None: all there are).

    All includes Funcs that are defined later, but neither `source` nor its other wrappers. Raises
    InputError for a reader that does not read `source`, or a source that is not defined.
    """
    old = _symbols(source)
    if not old:
        raise InputError(
            "it is not defined",
            where=f"Func {source.name()}",
            hint="define it before in_",
        )
    if readers is not None:
        _expect_readers("in_", source, readers)
        w = make(f"{source.name()}_in_{_joined(readers)}")
        _define(w, source)
        _redirect(readers, old, w)
        return w
    w = make(f"{source.name()}_global_wrapper")
    _define(w, source)
    for symbol, other in zip(old, w.symbols, strict=True):
        symbol.instead = other
    for reader in dict.fromkeys(r for s in old for r in s.readers):
        reader.read_again()
    return w


def cloned(source: Func, readers: Sequence[Func], make: type[_F]) -> _F:
    """A Func with the definitions of `source`, which `readers` read from now on.

    Raises InputError for a reader that does not read `source`.
    """
    _expect_readers("clone_in", source, readers)
    c = make(f"{source.name()}_clone_in_{_joined(readers)}")
    c.args = source.args
    c.symbols = tuple(Symbol(s.name, len(s.shape), s.dtype, c) for s in source.symbols)
    c.instead = source.instead | dict(zip(source.symbols, c.symbols, strict=True))
    for definition in source.definitions:
        c.keep(definition)
    _redirect(readers, source.symbols, c)
    return c


def _symbols(source: Func | Image) -> tuple[Symbol, ...]:
    if isinstance(source, Func):
        return source.symbols
    return (source.symbol,)


def _joined(readers: Sequence[Func]) -> str:
    return "_".join(r.name() for r in readers)


def _expect_readers(verb: str, source: Func | Image, readers: Sequence[Func]) -> None:
    where = f"{verb} of {source.name()}"
    if not readers:
        raise InputError(
            "no reader is named", where=where, hint="name Funcs that read it"
        )
    for reader in readers:
        if reader is source or not reader.reads(_symbols(source)):
            raise InputError(
                f"{reader.name()} does not read it",
                where=where,
                hint=_who(source, reader),
            )


def _who(source: Func | Image, reader: Func) -> str:
    """What a user who named the wrong reader may have meant."""
    if not reader.defined():
        return f"define {reader.name()} first"
    symbols = _symbols(source)
    found = dict.fromkeys(
        r.name() for s in symbols for r in s.readers if r.reads(symbols)
    )
    found.pop(source.name(), None)
    return f"these do: {', '.join(found)}" if found else "nothing does"


def _define(w: Func, source: Func | Image) -> None:
    """`w` has the values of `source` itself, even if others read a wrapper of it."""
    w.instead = {s: s for s in _symbols(source)}
    if isinstance(source, Image):
        args = tuple(Var(f"_{n}") for n in range(source.dimensions()))
        w[args] = Image.__getitem__(source, args)
        return
    ref = source[source.args]
    w[source.args] = Tuple(*(ref[n] for n in range(len(ref))))


def _redirect(readers: Sequence[Func], old: Sequence[Symbol], to: Func) -> None:
    for reader in readers:
        reader.instead |= dict(zip(old, to.symbols, strict=True))
        reader.read_again()
