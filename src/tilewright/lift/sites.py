"""Positions in a program: a path of child positions, with the facts known there.

A site is a term, or a function passed to a pattern (`f` of `Map(f)`). An applied function is not a
separate site: the application is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.expr.nodes import INDEX, Var
from tilewright.lift import infer
from tilewright.lift.lambdas import abstraction, opened
from tilewright.lift.nodes import (
    Apply,
    Fun,
    Iterate,
    Lambda,
    Param,
    Part,
    ScalarFun,
    Term,
    To,
    free_params,
)
from tilewright.lift.types import Array, Length, TupleType, Type

Path = tuple[int, ...]
# Types of terms and functions that are kept for the programs to come.
_KNOWN = 50_000


class IterationLength(Var, intern=False):
    """A length that is another one in each iteration of an `Iterate`."""


@dataclass(frozen=True, eq=False)
class Site:
    """The part of `root` at `path`.

    above: the parts around it, outermost first. scope: the types in sight. args: the types that a
    function is applied to; None for a term. params: set where the node is the body of a function
    at the path, see `opened`.
    """

    root: Fun
    path: Path
    node: Part
    above: tuple[Part, ...]
    scope: infer.Scope
    args: tuple[Type, ...] | None = None
    params: tuple[Param, ...] | None = None

    @cached_property
    def children(self) -> tuple[Site, ...]:
        """The sites one step below, in order; none where an iteration changes more than lengths."""
        if isinstance(self.node, Iterate) and self._iterated(self.node) is None:
            return ()
        return tuple(
            self._child(n)
            for n, part in enumerate(self.node.children())
            if isinstance(part, Part) and not self._is_bound(part)
        )

    def child(self, n: int) -> Site:
        """The site of child `n` of the node. Raises InputError if there is none."""
        for found in self.children:
            if found.path[-1] == n:
                return found
        raise InputError(
            f"{self.node!r} has no part {n}",
            where=show_path(self.path),
            hint=f"its parts are 0 to {len(self.node.children()) - 1}",
        )

    @property
    def iterations(self) -> tuple[Site, ...]:
        """The function of an `Iterate`, once for each iteration, with the types of that one."""
        assert isinstance(self.node, Iterate) and self.args is not None
        types = infer.iterates(self.node, self.args[0], self.scope)
        last = [types[-1]] * (self.node.times - len(types))
        sites = {t: self._function(0, self.node.f, (t,)) for t in types}
        return tuple(sites[t] for t in (*types, *last)[: self.node.times])

    def _function(self, n: int, f: Fun, args: tuple[Type, ...] | None) -> Site:
        """The site of the node's function `f`, its child `n`, applied to these types."""
        above = (*self.above, self.node)
        return Site(self.root, (*self.path, n), f, above, self.scope, args)

    def _child(self, n: int) -> Site:
        parts = self.node.children()
        part: Any = parts[n]
        if isinstance(part, Fun):
            return self._function(n, part, self._arguments())
        scope = self.scope
        if isinstance(self.node, Lambda) and n == len(parts) - 1:
            types = infer.unpacked(self.node, self.args or ())
            scope = scope.inner(self.node.params, types)
        return Site(self.root, (*self.path, n), part, (*self.above, self.node), scope)

    def type_of(self, term: Term) -> Type:
        """The type of a term over the variables in scope here."""
        return infer.type_of(term, self.scope)

    def result_of(self, f: Fun, args: tuple[Type, ...]) -> Type:
        """The type of a function's result."""
        return infer.result(f, args, self.scope)

    def replaced(self, part: Any) -> Fun:
        """The root with `part` at this place."""
        if self.params is not None:
            part = abstraction(self.params, part)
        return _put(self.root, self.path, part)  # type: ignore[no-any-return]

    @cached_property
    def opened(self) -> Site:
        """The site of a function as the site of its body on fresh arguments; a term's site is
        unchanged."""
        if self.args is None:
            return self
        assert isinstance(self.node, Fun)
        params, body = opened(self.node, len(self.args))
        scope = self.scope.inner(params, self.args)
        return Site(self.root, self.path, body, self.above, scope, None, params)

    @property
    def inside(self) -> Site:
        """The body of a lambda; any other site itself."""
        return self.children[0] if isinstance(self.node, Lambda) else self

    @property
    def is_place(self) -> bool:
        """Whether rules apply here: a term, or a function that a pattern is given."""
        if isinstance(self.node, Term):
            return not isinstance(self.node, Param)
        if not self.above or isinstance(self.node, Lambda | ScalarFun):
            return False
        return not isinstance(self.above[-1], Apply | To)

    def _iterated(self, node: Iterate) -> Type | None:
        """What the arguments of all iterations have in common; None if there is none."""
        assert self.args is not None
        types = infer.iterates(node, self.args[0], self.scope)[: node.times]
        return in_common(types) if types else None

    def _is_bound(self, part: Part) -> bool:
        return isinstance(self.node, Lambda) and part is not self.node.body

    def _arguments(self) -> tuple[Type, ...]:
        """The types of the arguments of the function in this node."""
        if isinstance(self.node, Apply):
            return tuple(self.type_of(a) for a in self.node.args)
        assert self.args is not None
        if isinstance(self.node, Iterate):
            found = self._iterated(self.node)
            assert found is not None
            return (found,)
        return infer.arguments_of_body(self.node, self.args, self.scope)


def in_common(types: Sequence[Type]) -> Type | None:
    """The type that all of these are, with an IterationLength where lengths differ; None if they
    differ in more."""
    first = types[0]
    if all(t is first for t in types):
        return first
    if all(isinstance(t, Array) for t in types):
        item = in_common([t.item for t in types])  # type: ignore[attr-defined]
        lengths = tuple(t.length for t in types)  # type: ignore[attr-defined]
        return None if item is None else Array(item, _length_in_common(lengths))
    if all(isinstance(t, TupleType) for t in types):
        columns = list(zip(*(t.items for t in types)))  # type: ignore[attr-defined]
        items = tuple(map(in_common, columns))
        same = all(len(t.items) == len(items) for t in types)  # type: ignore[attr-defined]
        return TupleType(items) if same and None not in items else None  # type: ignore[arg-type]
    return None


@lru_cache(maxsize=512)
def _length_in_common(lengths: tuple[Length, ...]) -> Length:
    """One variable for lengths that change in the same way."""
    same = all(n is lengths[0] for n in lengths)
    return lengths[0] if same else IterationLength("length", INDEX)


@lru_cache(maxsize=512)
def root_site(program: Fun) -> Site:
    """The place of the whole program, a Lambda whose parameters carry types.

    Raises InputError if the types of the program do not fit.
    """
    free = tuple(p for p in free_params(program) if p.type is not None)
    scope = _scope(free)
    if len(scope.known) + len(scope.functions) > _KNOWN:
        _scope.cache_clear()
        scope = _scope(free)
    types, _ = infer.infer_in(program, scope)
    return Site(program, (), program, (), scope, types)


@lru_cache(maxsize=16)
def _scope(free: tuple[Param, ...]) -> infer.Scope:
    """What programs over these free parameters have in common: one changes into the next."""
    return infer.Scope({p: p.type for p in free if p.type is not None})


def site(program: Fun, path: Path) -> Site:
    """The place at `path`. Raises InputError if there is none."""
    at = root_site(program)
    for n in path:
        at = at.child(n)
    return at


def same_place(place: Site, program: Fun) -> Site:
    """The place of another program's `place`, or the nearest around it that is still there.

    A function stays the same place where it is a lambda now, `lambda x: ...` for `f`, or is none
    any more: the place is then the lambda's body, or the function.
    """
    at = root_site(program)
    for n, node in zip(place.path, place.above, strict=True):
        at = at.inside
        if isinstance(node, Lambda):
            continue
        found = [child for child in at.children if child.path[-1] == n]
        if not found or isinstance(at.node, Term) != isinstance(node, Term):
            return at
        at = found[0]
    return at if isinstance(place.node, Lambda) else at.inside


def walk(at: Site) -> Iterator[Site]:
    """The site and all below it, outermost first, left to right."""
    yield at
    for child in at.children:
        yield from walk(child)


def show_path(path: Path) -> str:
    """`2.0.1`; `top` for the whole."""
    return ".".join(map(str, path)) or "top"


def parse_path(text: str) -> Path:
    """The path that `show_path` shows."""
    if text == "top":
        return ()
    return tuple(map(int, text.split(".")))


def _put(node: Any, path: Path, part: Part) -> Any:
    if not path:
        return part
    children = list(node.children())
    children[path[0]] = _put(children[path[0]], path[1:], part)
    following = iter(children)
    return node.map(lambda _: next(following))
