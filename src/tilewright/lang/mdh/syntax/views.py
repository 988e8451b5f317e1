"""The three parts of an expression as written: `out_view`, `md_hom`, `inp_view`.

    out_view[float32](w=[lambda i, k: (i)]) @
    md_hom[I, K](mul, (cc, pw(add))) @
    inp_view[float32, float32](M=[lambda i, k: (i, k)], v=[lambda i, k: (k)])

The brackets of a view contain, per buffer: a dtype, and the sizes are inferred; a dtype with
a shape, `buffer(float32, 4, 6)`; a Buffer; or an expression, whose result is meant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, Final, Generic, TypeVar

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import dtype_of
from tilewright.base.errors import InputError
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.lang.mdh.syntax.operators import Combine
from tilewright.lang.mdh.syntax.parts import BufferView, Hom, Shaped, as_extent
from tilewright.lang.mdh.syntax.program import Expression, compose

Buffers = tuple[BufferView, ...]
V = TypeVar("V")


@dataclass(frozen=True, eq=False, slots=True)
class InpView:
    """`inp_view[...](...)`: the arguments of the scalar function."""

    buffers: Buffers


@dataclass(frozen=True, eq=False, slots=True)
class OutView:
    """`out_view[...](...)`: where the results go."""

    buffers: Buffers

    def __matmul__(self, hom: Hom) -> OutHom:
        _expect(hom, Hom, "md_hom")
        return OutHom(self.buffers, hom)


@dataclass(frozen=True, eq=False, slots=True)
class OutHom:
    """`out_view @ md_hom`: an expression that lacks its inp_view (Python's `@` joins leftwards)."""

    out: Buffers
    hom: Hom

    def __matmul__(self, inp: InpView) -> Expression:
        _expect(inp, InpView, "inp_view")
        return compose(self.out, self.hom, inp.buffers)


def _expect(part: object, kind: type, name: str) -> None:
    if not isinstance(part, kind):
        raise InputError(
            f"{name}[...](...) is expected here, not a {type(part).__name__}",
            hint="an expression is out_view[...](...) @ md_hom[...](...) @ inp_view[...](...)",
            where="@",
        )


def mdh(out_view: OutView, md_hom: Hom, inp_view: InpView) -> Expression:
    """The three parts as one expression; the same as `out_view @ md_hom @ inp_view`."""
    return out_view @ md_hom @ inp_view


# -- the syntax with brackets


@dataclass(frozen=True, slots=True)
class _View(Generic[V]):
    """`out_view` or `inp_view` itself; brackets take the types, then a call takes the accesses."""

    name: str
    make: Callable[[Buffers], V]
    types: tuple[Any, ...] = field(default=())

    def __getitem__(self, types: Any) -> _View[V]:
        return _View(
            self.name, self.make, types if isinstance(types, tuple) else (types,)
        )

    def __call__(self, **accesses: Any) -> V:
        if len(self.types) != len(accesses):
            raise InputError(
                f"{len(self.types)} type(s) in brackets, {len(accesses)} buffer(s): "
                f"{', '.join(accesses) or 'none'}",
                where=self.name,
                hint="write one type per buffer, in their order",
            )
        pairs = zip(self.types, accesses.items(), strict=True)
        return self.make(tuple(_buffer_view(self.name, t, n, a) for t, (n, a) in pairs))


def _buffer_view(
    view: str,
    given: Any,
    name: str,
    accesses: Any,
) -> BufferView:
    functions = tuple(accesses) if isinstance(accesses, tuple | list) else (accesses,)
    if not functions or not all(callable(f) for f in functions):
        raise InputError(
            "an access is a function from the dimensions to an index",
            where=f"{view}: {name}",
            hint=f"write {name}=[lambda i, j: (i, j)]",
        )
    if isinstance(given, Computation):
        tensors = tuple(dict.fromkeys(o.tensor for o in given.outputs))
        if len(tensors) != 1:
            raise InputError(
                f"{given.name} has {len(tensors)} results; name the Buffer meant",
                where=f"{view}: {name}",
                hint="put the Buffer itself in the brackets",
            )
        given = tensors[0]
    held = given if isinstance(given, Buffer | Shaped) else dtype_of(given)
    return BufferView(name, held, functions)


@dataclass(frozen=True, slots=True)
class _Hom:
    """`md_hom` itself; brackets take the extents, then a call takes the function and operators."""

    extents: tuple[Any, ...] = field(default=())

    def __getitem__(self, extents: Any) -> _Hom:
        return _Hom(extents if isinstance(extents, tuple) else (extents,))

    def __call__(
        self, function: Callable[..., Any], combine: Any, name: str = "mdh"
    ) -> Hom:
        operators = tuple(combine) if isinstance(combine, tuple | list) else (combine,)
        where = f"md_hom {name}"
        if not callable(function):
            raise InputError(
                f"the scalar function is {function!r}",
                where=where,
                hint="a lambda, or mul",
            )
        for c in operators:
            if not isinstance(c, Combine):
                raise InputError(
                    f"{c!r} is not cc, pw(op) or ps(op)",
                    where=where,
                    hint="as in (cc, pw(add))",
                )
        if len(operators) != len(self.extents):
            raise InputError(
                f"{len(self.extents)} dimension(s), {len(operators)} combine operator(s)",
                where=where,
                hint="give one operator per dimension: cc, pw(op) or ps(op)",
            )
        extents = tuple(
            as_extent(n, where, "a number of iterations") for n in self.extents
        )
        if not isinstance(name, str) or not name.isidentifier():
            raise InputError(
                f"the name {name!r} is not an identifier",
                where="md_hom",
                hint="letters, digits and _",
            )
        return Hom(extents, function, operators, name)


out_view: Final = _View("out_view", OutView)
inp_view: Final = _View("inp_view", InpView)
md_hom: Final = _Hom()
