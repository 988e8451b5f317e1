"""in_ and clone_in: some readers of a Func or image read another Func with the same values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from tilewright.expr import nodes
from tilewright.ir.node import Node, transform
from tilewright.notation.halide.domain import Var
from tilewright.notation.halide.func import Definition, Func, Tuple
from tilewright.notation.halide.image import Image, Symbol

_F = TypeVar("_F", bound=Func)


def wrapped(source: Func | Image, readers: Sequence[Func] | None, make: type[_F]) -> _F:
    """A Func of the values of `source`, which `readers` read from now on (None: all there are)."""
    who = "global_wrapper" if readers is None else f"in_{'_'.join(r.name() for r in readers)}"
    w = make(f"{source.name()}_{who}")
    if readers is not None:
        _define(w, source)
        _redirect(readers, dict(zip(_symbols(source), w.symbols, strict=True)))
        return w
    # What has been written names the old symbols: these become the wrapper's.
    old = _symbols(source)
    _renew(source)
    _define(w, source)
    w.symbols = old
    for symbol in old:
        symbol.owner = w
    return w


def cloned(source: Func, readers: Sequence[Func], make: type[_F]) -> _F:
    """A Func with the definitions of `source`, which `readers` read from now on."""
    c = make(f"{source.name()}_clone_in_{'_'.join(r.name() for r in readers)}")
    c.args = source.args
    c.symbols = _fresh(source.symbols, c)
    table = dict(zip(source.symbols, c.symbols, strict=True))
    c.definitions = [_redirected(d, table) for d in source.definitions]
    _redirect(readers, table)
    return c


def _symbols(source: Func | Image) -> tuple[Symbol, ...]:
    return source.symbols if isinstance(source, Func) else (source.symbol,)


def _fresh(symbols: Sequence[Symbol], owner: Func | Image) -> tuple[Symbol, ...]:
    return tuple(Symbol(s.name, len(s.shape), s.dtype, owner) for s in symbols)


def _renew(source: Func | Image) -> None:
    """Give `source` symbols that nobody but itself reads."""
    if isinstance(source, Image):
        (source.symbol,) = _fresh((source.symbol,), source)
        return
    fresh = _fresh(source.symbols, source)
    table = dict(zip(source.symbols, fresh, strict=True))
    source.symbols = fresh
    source.definitions[:] = [_redirected(d, table) for d in source.definitions]


def _define(w: Func, source: Func | Image) -> None:
    if isinstance(source, Image):
        args = tuple(Var(f"_{n}") for n in range(source.dimensions()))
        w[args] = Image.__getitem__(source, args)
        return
    ref = source[source.args]
    w[source.args] = Tuple(*(ref[n] for n in range(len(ref))))


def _redirect(readers: Sequence[Func], table: Mapping[Symbol, Symbol]) -> None:
    for reader in readers:
        reader.definitions[:] = [_redirected(d, table) for d in reader.definitions]


def _redirected(d: Definition, table: Mapping[Symbol, Symbol]) -> Definition:
    def step(node: Node) -> Node:
        if isinstance(node, nodes.Load) and isinstance(node.buffer, Symbol):
            return nodes.Load(table.get(node.buffer, node.buffer), node.index)
        return node

    args = tuple(transform(a, step) for a in d.args)
    values = tuple(transform(v, step) for v in d.values)
    return Definition(args, values, d.domain, d.reducer)
