"""MDH's directive: perfectly nested loops as an expression.

    @mdh(
        out(w=Buffer[float32]),
        inp(M=Buffer[float32], v=Buffer[float32]),
        combine_ops(cc, pw(add)),
    )
    def mat_vec(w, M, v):
        for i in range(I):
            for k in range(K):
                w[i] = M[i, k] * v[k]

The loops are the dimensions, what is read and written are the views, and the statements inside are
the scalar function. They run once, on expressions; a result is assigned, and combined along each
loop as `combine_ops` says.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from types import FunctionType
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType, dtype_of
from tilewright.base.errors import InputError
from tilewright.expr.nodes import INDEX, Expr, Var, as_expr
from tilewright.ir.node import substitute
from tilewright.lang.mdh.syntax.parts import Shaped, buffer
from tilewright.lang.mdh.syntax.program import Expression
from tilewright.lang.mdh.syntax.views import inp_view, md_hom, out_view
from tilewright.lang.mdh.syntax.views import mdh as composed

Held = DType | Shaped


class _BufferWord:
    """`Buffer[float32]`, its size inferred, or `Buffer[float32, [I, K]]`."""

    def __getitem__(self, given: Any) -> Held:
        if not isinstance(given, tuple):
            return dtype_of(given)
        dtype, *shape = given
        if len(shape) == 1 and isinstance(shape[0], list | tuple):
            shape = list(shape[0])
        return buffer(dtype, *shape)

    def __repr__(self) -> str:
        return "Buffer"


Buffer: Final = _BufferWord()


@dataclass(frozen=True, slots=True)
class Buffers:
    """`out(...)` or `inp(...)`: the element type of each buffer, by name."""

    word: str
    held: Mapping[str, Held]


@dataclass(frozen=True, slots=True)
class CombineOps:
    """`combine_ops(...)`: one combine operator per loop."""

    operators: tuple[Any, ...]


def out(**held: Held) -> Buffers:
    """The results of a directive: `out(w=Buffer[float32])`."""
    return _buffers("out", held)


def inp(**held: Held) -> Buffers:
    """The inputs of a directive: `inp(M=Buffer[float32], v=Buffer[float32])`."""
    return _buffers("inp", held)


def _buffers(word: str, held: Mapping[str, Any]) -> Buffers:
    for name, given in held.items():
        if not isinstance(given, DType | Shaped):
            raise InputError(
                f"{name} is {given!r}",
                where=word,
                hint=f"write {word}({name}=Buffer[float32])",
            )
    return Buffers(word, held)


def combine_ops(*operators: Any) -> CombineOps:
    """How results are combined along the loops, from the outermost: `combine_ops(cc, pw(add))`."""
    return CombineOps(operators)


def mdh(*parts: Any, **named: Any) -> Any:
    """`mdh(out_view=..., md_hom=..., inp_view=...)`: the three parts as one expression; or
    `@mdh(out(...), inp(...), combine_ops(...))` above a function of nested loops.

    Raises InputError for parts that do not fit together, and for loops that are not nested
    perfectly.
    """
    if not parts or not isinstance(parts[0], Buffers):
        return composed(*parts, **named)
    words = [getattr(p, "word", "combine_ops") for p in parts]
    if words != ["out", "inp", "combine_ops"] or named:
        raise InputError(
            f"a directive of {', '.join(words) or 'nothing'}",
            where="mdh",
            hint="write @mdh(out(...), inp(...), combine_ops(...))",
        )
    results, inputs, combine = parts
    return lambda f: _expression(f, results.held, inputs.held, combine.operators)


# -- from a function to the three parts


@dataclass(eq=False)
class _Read:
    """An input in the loops: each element is a variable, later a parameter of the scalar
    function."""

    name: str
    dtype: DType
    elements: dict[tuple[Expr, ...], Var] = field(default_factory=dict)

    def __getitem__(self, index: Any) -> Var:
        at = _index(index)
        if at not in self.elements:
            name = f"{self.name}{len(self.elements)}"
            self.elements[at] = Var(name, self.dtype)
        return self.elements[at]

    def __setitem__(self, index: Any, value: Any) -> None:
        raise _wrong(self.name, "an input is written", "name it in out(...)")


@dataclass(eq=False)
class _Write:
    """A result in the loops."""

    name: str
    dtype: DType
    values: dict[tuple[Expr, ...], Expr] = field(default_factory=dict)

    def __getitem__(self, index: Any) -> Expr:
        raise _wrong(
            self.name,
            "a result is read",
            "assign what is combined (w[i] = ...); combine_ops says how",
        )

    def __setitem__(self, index: Any, value: Any) -> None:
        at = _index(index)
        if at in self.values:
            raise _wrong(self.name, "one element is assigned twice", "assign it once")
        self.values[at] = as_expr(value, self.dtype)


def _index(index: Any) -> tuple[Expr, ...]:
    parts = index if isinstance(index, tuple) else (index,)
    return tuple(as_expr(i, INDEX) for i in parts)


def _expression(
    f: FunctionType,
    results: Mapping[str, Held],
    inputs: Mapping[str, Held],
    operators: tuple[Any, ...],
) -> Expression:
    names = list(inspect.signature(f).parameters)
    if names != [*results, *inputs]:
        raise InputError(
            f"the function takes {', '.join(names)}",
            where=f.__name__,
            hint=f"its parameters are the buffers: {', '.join([*results, *inputs])}",
        )
    nest = _Nest.of(f)
    point = tuple(Var(name, INDEX) for name in nest.names)
    reads = [_Read(name, _dtype(held)) for name, held in inputs.items()]
    writes = [_Write(name, _dtype(held)) for name, held in results.items()]
    try:
        nest.body(*writes, *reads, *point)
    except TypeError as error:
        raise InputError(
            str(error),
            where=f.__name__,
            hint="statements run once, on expressions: write select(condition, a, b)",
        ) from error
    for w in writes:
        if not w.values:
            raise _wrong(w.name, "it is never assigned", "assign it, or leave it out")
    for r in reads:
        if not r.elements:
            raise _wrong(r.name, "it is never read", "read it, or leave it out")
    elements = tuple(e for r in reads for e in r.elements.values())
    values = tuple(v for w in writes for v in w.values.values())
    hom = md_hom[tuple(nest.extents)](
        _scalar_function(elements, values, point), operators, name=f.__name__
    )
    inp_part = inp_view[tuple(inputs.values())](
        **{r.name: _index_functions(r.elements, point) for r in reads}
    )
    out_part = out_view[tuple(results.values())](
        **{w.name: _index_functions(w.values, point) for w in writes}
    )
    return out_part @ hom @ inp_part


def _dtype(held: Held) -> DType:
    return held.dtype if isinstance(held, Shaped) else held


def _index_functions(
    indices: Iterable[tuple[Expr, ...]], point: tuple[Var, ...]
) -> list[Callable[..., Any]]:
    """An index function per access."""
    return [_index_function(at, point) for at in indices]


def _index_function(at: tuple[Expr, ...], point: tuple[Var, ...]) -> Callable[..., Any]:
    def index(*values: Expr) -> Any:
        env = dict(zip(point, values, strict=True))
        return tuple(substitute(i, env) for i in at)

    return _signed(index, [v.name for v in point])


def _scalar_function(
    elements: tuple[Var, ...], values: tuple[Expr, ...], point: tuple[Var, ...]
) -> Callable[..., Any]:
    """`values` as a function of the elements that are read, and of the dimensions by name."""

    def function(*given: Expr, **dims: Expr) -> Any:
        env: dict[Any, Any] = dict(zip(elements, given, strict=True))
        env |= {v: dims[v.name] for v in point}
        return tuple(substitute(v, env) for v in values)

    names = [f"x{n}" for n in range(len(elements))]
    return _signed(function, names, [v.name for v in point])


def _signed(
    f: Callable[..., Any], names: Sequence[str], keywords: Sequence[str] = ()
) -> Callable[..., Any]:
    """`f` with named parameters, from which the views take their dimensions."""
    parameter = inspect.Parameter
    given = [parameter(name, parameter.POSITIONAL_OR_KEYWORD) for name in names]
    asked = [parameter(name, parameter.KEYWORD_ONLY) for name in keywords]
    f.__signature__ = inspect.Signature([*given, *asked])  # type: ignore[attr-defined]
    return f


@dataclass(frozen=True, slots=True)
class _Nest:
    """The loops of a function: variables, extents, and the body as a function of both."""

    names: tuple[str, ...]
    extents: tuple[Any, ...]
    body: Callable[..., None]

    @staticmethod
    def of(f: FunctionType) -> _Nest:
        """The loops of a function in a file. Raises InputError for another form."""
        definition = _definition(f)
        known = {**f.__globals__, **inspect.getclosurevars(f).nonlocals}
        names: list[str] = []
        extents: list[Any] = []
        inner = definition.body
        if isinstance(inner[0], ast.Expr) and isinstance(inner[0].value, ast.Constant):
            inner = inner[1:]  # a docstring
        while len(inner) == 1 and isinstance(inner[0], ast.For):
            loop = inner[0]
            name, extent = _header(f, loop)
            names.append(name)
            code = compile(ast.Expression(extent), f.__code__.co_filename, "eval")
            extents.append(eval(code, known))
            inner = loop.body
        if not names:
            raise InputError(
                "its body is not one loop",
                where=f.__name__,
                hint="write loops nested perfectly: for i in range(I): for k in range(K): ...",
            )
        own = [ast.arg(name) for name in names]
        made = ast.FunctionDef(
            name=f.__name__,
            args=ast.arguments(
                [], [*definition.args.args, *own], None, [], [], None, []
            ),
            body=inner,
            decorator_list=[],
        )
        ast.copy_location(made, definition)
        module = ast.fix_missing_locations(ast.Module([made], []))
        exec(compile(module, f.__code__.co_filename, "exec"), known)
        return _Nest(tuple(names), tuple(extents), known[f.__name__])


def _definition(f: FunctionType) -> ast.FunctionDef:
    try:
        text = textwrap.dedent(inspect.getsource(f))
    except (OSError, TypeError):
        raise InputError(
            "its source is not available",
            where=f.__name__,
            hint="write the function into a file, or out_view @ md_hom @ inp_view",
        ) from None
    found = ast.parse(text).body[0]
    assert isinstance(found, ast.FunctionDef)
    ast.increment_lineno(found, f.__code__.co_firstlineno - 1)
    return found


def _header(f: FunctionType, loop: ast.For) -> tuple[str, ast.expr]:
    """The variable of a loop and its extent."""
    match loop:
        case ast.For(
            target=ast.Name(name),
            iter=ast.Call(func=ast.Name("range"), args=[extent], keywords=[]),
            orelse=[],
        ):
            return name, extent
    raise InputError(
        f"`{ast.unparse(loop).splitlines()[0]}`",
        where=f"{f.__name__}, line {loop.lineno}",
        hint="a loop is `for i in range(I):`",
    )


def _wrong(name: str, message: str, hint: str) -> InputError:
    return InputError(message, where=name, hint=hint)
