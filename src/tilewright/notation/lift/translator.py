"""Terms as views: what pattern functions (codegen.py, folds.py) call one another through."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.expr.nodes import Const, Expr, Load, const
from tilewright.ir.node import postorder
from tilewright.notation.lift import nodes as n
from tilewright.notation.lift.code import Code
from tilewright.notation.lift.infer import Scope as Types
from tilewright.notation.lift.infer import arguments_of_body, result, type_of, unpacked
from tilewright.notation.lift.producer import Produced, inverse_of_all, invertible
from tilewright.notation.lift.types import Scalar, Type
from tilewright.notation.lift.views import LAYOUT, Array, Reads, View, number

# A value and its type.
Typed = tuple[View, Type]


@dataclass(frozen=True, slots=True)
class Scope:
    """The parameters in sight with their types; `known` are the terms evaluated with them."""

    env: Mapping[n.Param, View]
    types: Types
    known: dict[n.Term, Typed] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Translator:
    """Terms to views; what takes statements is Produced.

    patterns: the translation of each; in_place: reductions accumulate where their result belongs.
    """

    code: Code
    patterns: Mapping[type[n.Fun], Callable[..., View]]
    in_place: bool = False

    def value(self, term: n.Term, scope: Scope) -> Typed:
        """A term with its type."""
        if term not in scope.known:
            scope.known[term] = self._value(term, scope), type_of(term, scope.types)
        return scope.known[term]

    def here(self, term: n.Term, scope: Scope) -> Typed:
        """A term inside a pattern: evaluated anew in the block where the pattern runs."""
        return self.value(term, Scope(scope.env, scope.types))

    def _value(self, term: n.Term, scope: Scope) -> View:
        match term:
            case n.Param():
                return scope.env[term]
            case n.Literal(value, dtype):
                return const(value, dtype)
            case n.Apply(f, args):
                values = [self.value(a, scope) for a in args]
                if isinstance(f, n.Lambda):
                    values = [(self.named(v, t), t) for v, t in values]
                return self.call(f, values, scope)
            case n.Tuple(items):
                return tuple(self.value(i, scope)[0] for i in items)
            case n.Fill(value, length):
                filled = self.value(value, scope)[0]
                reads = Reads.MEMORY if in_memory(filled) else Reads.EXPRESSION
                return Array(number(length), lambda i: filled, reads=reads)
            case n.Iota(length):
                return Array(number(length), lambda i: i, reads=Reads.MEMORY)
        raise TypeError(type(term).__name__)

    def call(self, f: n.Fun, args: Sequence[Typed], scope: Scope) -> View:
        """`f` applied; one tuple may stand for several arguments."""
        types = tuple(t for _, t in args)
        items = unpacked(f, types)
        if items is not types:
            args = [(args[0][0][k], t) for k, t in enumerate(items)]
        if len(args) == 1 and isinstance(args[0][0], Produced):
            moved = self._moved(f, args[0], scope)
            if moved is not None:
                return moved
        if type(f) in LAYOUT and type(f) is not n.Concat:
            return LAYOUT[type(f)](f, *(v for v, _ in args))
        return self.patterns[type(f)](self, f, scope, *args)

    def result(self, f: n.Fun, args: Sequence[Typed], scope: Scope) -> Type:
        """The type of `f` applied to these."""
        return result(f, tuple(t for _, t in args), scope.types)

    def body(self, f: Any, args: Sequence[Typed], scope: Scope) -> tuple[Type, ...]:
        """The types of the arguments of `f.f`."""
        return arguments_of_body(f, tuple(t for _, t in args), scope.types)

    def produced(
        self, t: Type, write: Callable[[View], None], space: str | None = None
    ) -> Produced:
        """A value made in the block being written."""
        return Produced(t, write, self.code.frames[-1], self.code, space)

    def named(self, view: View, t: Type) -> View:
        """In memory, unless it only moves what is there already."""
        if isinstance(view, Produced):
            return view.place()
        if isinstance(t, Scalar) or in_memory(view):
            return view
        return self.produced(t, lambda to: self.code.into(view, t, to)).place()

    def guarded(self, view: View, t: Type) -> View:
        """A view that may be read under a condition: no statement is needed for it there."""
        if isinstance(view, Array | Produced) and view.reads is Reads.STATEMENTS:
            return self.named(view, t)
        return view

    def _moved(self, f: n.Fun, arg: Typed, scope: Scope) -> View | None:
        """A pattern that only moves data: the destination moves instead of the value."""
        view, t = arg
        if view.made is not None or not invertible(f):
            return None

        def types(g: n.Fun, a: Type) -> Type:
            return result(g, (a,), scope.types)

        lazy = None if view.lazy is None else self.call(f, [(view.lazy, t)], scope)
        return Produced(
            types(f, t),
            lambda to: view.write(inverse_of_all(f, types, t, to)),
            view.frame,
            self.code,
            view.space,
            lazy,
        )


def in_memory(view: View) -> bool:
    """Whether every leaf is an element of memory, a constant or an index."""
    if isinstance(view, tuple):
        return all(map(in_memory, view))
    if isinstance(view, Array):
        return view.reads is Reads.MEMORY
    if not isinstance(view, Expr):
        return False
    return isinstance(view, Load | Const) or not any(isinstance(x, Load) for x in postorder(view))
